#include "base/kept_descriptor.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>

#include "base/file_identity.h"

namespace gdx {
namespace {

constexpr int kFirstFree = 3;
// Bounds the numbers, because a process's table of descriptors is as long as its highest number, and fork()
// copies it.
constexpr rlim_t kHighestLimit = 4096;
constexpr std::size_t kNumbers = 1 << 16;

struct Note {
  std::atomic<std::uint64_t> number{0};  // of this note, 0: none; the other members hold while it stays
  std::atomic<dev_t> device{0};
  std::atomic<ino_t> inode{0};
  std::atomic<pid_t> keeper{0};  // a child may close what it inherits
};
std::array<Note, kNumbers> notes;
std::atomic<int> notes_end{0};  // behind the highest number ever noted
std::atomic<std::uint64_t> last_note{0};

Note* note_of(int number) {
  return number >= 0 && static_cast<std::size_t>(number) < kNumbers ? &notes[static_cast<std::size_t>(number)]
                                                                    : nullptr;
}

// Returns all zero if note `number` is not, or no longer, at `note`.
FileIdentity read(const Note& note, std::uint64_t number) {
  const FileIdentity noted{note.device.load(), note.inode.load()};
  return note.number.load() == number ? noted : FileIdentity{};
}

std::uint64_t note_down(int number) {
  Note* const note = note_of(number);
  if (note == nullptr) return 0;
  const FileIdentity identity = identity_of(number);
  note->number.store(0);
  note->device.store(identity.device);
  note->inode.store(identity.inode);
  note->keeper.store(getpid());
  const std::uint64_t made = ++last_note;
  note->number.store(made);
  for (int end = notes_end.load(); end <= number && !notes_end.compare_exchange_weak(end, number + 1);) {
  }
  return made;
}

int high_number() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kFirstFree;
  return std::max(kFirstFree, static_cast<int>(std::min(limit.rlim_cur, kHighestLimit) / 2));
}

// Closes without an interposed close().
void close_number(int number) {
#if defined(__SANITIZE_THREAD__)
  ::close(number);  // ThreadSanitizer follows descriptors by libc's calls
#else
  syscall(SYS_close, number);
#endif
}

int move(int descriptor, int first, int command) {
  int moved = fcntl(descriptor, command, first);
  if (moved < 0 && first > kFirstFree) moved = fcntl(descriptor, command, kFirstFree);
  if (moved < 0 && descriptor >= kFirstFree) return descriptor;
  const int error = errno == EINVAL ? EMFILE : errno;  // a number beyond the limit
  close_number(descriptor);
  errno = error;
  return moved;
}

}  // namespace

KeptDescriptor keep_descriptor(int descriptor) {
  if (descriptor < 0) return {};
  const int kept = move(descriptor, high_number(), F_DUPFD_CLOEXEC);
  return kept < 0 ? KeptDescriptor{} : KeptDescriptor{kept, note_down(kept)};
}

int spare_standard_descriptors(int descriptor, bool close_on_exec) {
  if (descriptor < 0 || descriptor >= kFirstFree) return descriptor;
  return move(descriptor, kFirstFree, close_on_exec ? F_DUPFD_CLOEXEC : F_DUPFD);
}

bool is_kept(int number) {
  const Note* const note = note_of(number);
  if (note == nullptr) return false;
  const std::uint64_t present = note->number.load();
  if (present == 0 || note->keeper.load() != getpid()) return false;
  const FileIdentity noted = read(*note, present);
  return noted != FileIdentity{} && identity_of(number) == noted;
}

bool is_kept(const KeptDescriptor& kept) {
  const Note* const note = note_of(kept.number);
  if (note == nullptr || kept.note == 0) return kept.number >= 0;
  const FileIdentity noted = read(*note, kept.note);
  return noted != FileIdentity{} && identity_of(kept.number) == noted;
}

int next_kept(int from) {
  for (int number = from; number < notes_end.load(); ++number) {
    if (is_kept(number)) return number;
  }
  return -1;
}

bool stop_keeping(const KeptDescriptor& kept) {
  Note* const note = note_of(kept.number);
  if (note == nullptr || kept.note == 0) return true;
  const FileIdentity noted = read(*note, kept.note);
  std::uint64_t present = kept.note;
  return note->number.compare_exchange_strong(present, 0) && identity_of(kept.number) == noted;
}

}  // namespace gdx
