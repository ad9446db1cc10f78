#include "base/kept_descriptor.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>

#include "base/file_identity.h"

namespace gdx {
namespace {

constexpr int kFirstFree = 3;
// A process's table of descriptors is as long as its highest number, and fork() copies it.
constexpr rlim_t kHighestLimit = 4096;
constexpr std::size_t kNumbers = 1 << 16;

struct Note {
  std::atomic<dev_t> device{0};
  std::atomic<pid_t> keeper{0};  // a child may close what it inherits
  std::atomic<ino_t> inode{0};
};
std::array<Note, kNumbers> notes;
std::atomic<int> notes_end{0};  // behind the highest number ever noted

Note* note_of(int number) {
  return number >= 0 && static_cast<std::size_t>(number) < kNumbers ? &notes[static_cast<std::size_t>(number)]
                                                                    : nullptr;
}

FileIdentity read(const Note& note) {
  return {note.device.load(std::memory_order_relaxed), note.inode.load(std::memory_order_acquire)};
}

void write(Note& note, const FileIdentity& identity) {
  note.device.store(identity.device, std::memory_order_relaxed);
  note.inode.store(identity.inode, std::memory_order_release);
}

void note_down(int number) {
  Note* const note = note_of(number);
  if (note == nullptr) return;
  note->keeper.store(getpid(), std::memory_order_relaxed);  // published by the inode
  write(*note, identity_of(number));
  for (int end = notes_end.load(); end <= number && !notes_end.compare_exchange_weak(end, number + 1);) {
  }
}

int high_number() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kFirstFree;
  return std::max(kFirstFree, static_cast<int>(std::min(limit.rlim_cur, kHighestLimit) / 2));
}

// Past what an interposed close() knows of descriptors.
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

int keep_descriptor(int descriptor) {
  if (descriptor < 0) return descriptor;
  const int kept = move(descriptor, high_number(), F_DUPFD_CLOEXEC);
  if (kept >= 0) note_down(kept);
  return kept;
}

int spare_standard_descriptors(int descriptor, bool close_on_exec) {
  if (descriptor < 0 || descriptor >= kFirstFree) return descriptor;
  return move(descriptor, kFirstFree, close_on_exec ? F_DUPFD_CLOEXEC : F_DUPFD);
}

bool is_kept(int descriptor) {
  const Note* const note = note_of(descriptor);
  if (note == nullptr) return false;
  const FileIdentity noted = read(*note);
  return noted != FileIdentity{} && note->keeper.load() == getpid() && identity_of(descriptor) == noted;
}

int next_kept(int from) {
  for (int number = from; number < notes_end.load(); ++number) {
    if (is_kept(number)) return number;
  }
  return -1;
}

bool stop_keeping(int descriptor) {
  Note* const note = note_of(descriptor);
  if (note == nullptr) return true;
  const FileIdentity noted = read(*note);
  if (noted == FileIdentity{}) return true;
  write(*note, {});
  return identity_of(descriptor) == noted;
}

}  // namespace gdx
