#include "host/programs/cli/labelled_output.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "host/programs/cli/supervisor.h"

namespace gdx {
namespace {

constexpr std::size_t kReadBytes = 64 * 1024;
constexpr std::size_t kMaxLabelledLineBytes = 1024 * 1024;  // a longer line is written in parts

struct Stream {
  Descriptor pipe;
  int target = STDOUT_FILENO;
  std::string label;
  std::string line;  // begin of a line whose end has not come yet
};

// Returns whether the target took all.
bool write_all(int target, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(target, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN) {
      pollfd room{target, POLLOUT, 0};
      poll(&room, 1, -1);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

// Takes the lines of `stream` that are whole, or `all`, with their labels.
std::string take_lines(Stream& stream, bool all) {
  std::string labelled;
  std::string_view rest = stream.line;
  while (!rest.empty()) {
    const std::size_t end = rest.find('\n');
    if (end == std::string_view::npos && !all && rest.size() < kMaxLabelledLineBytes) break;
    const std::string_view line = rest.substr(0, end);
    labelled.append(stream.label).append(line).push_back('\n');
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
  }
  stream.line.erase(0, stream.line.size() - rest.size());
  return labelled;
}

}  // namespace

class LabelledOutput::Reader {
 public:
  void run();

  std::vector<Stream> streams;
  Descriptor finish;  // readable once its other end closes
  std::atomic<bool> finished = false;
  std::atomic<int> lost_errno = 0;

 private:
  [[nodiscard]] bool write_lines(Stream& stream, bool all);
  [[nodiscard]] bool read_from(Stream& stream);
  void drain(Stream& stream);
};

// Returns whether the target took them.
bool LabelledOutput::Reader::write_lines(Stream& stream, bool all) {
  if (write_all(stream.target, take_lines(stream, all))) return true;
  // Does not end a rank for a full stderr, because that ends no other program either.
  if (stream.target == STDERR_FILENO) return errno != EPIPE;
  lost_errno = errno;
  return false;
}

// Returns whether to read on.
bool LabelledOutput::Reader::read_from(Stream& stream) {
  const std::size_t before = stream.line.size();
  stream.line.resize(before + kReadBytes);
  const ssize_t got = ::read(stream.pipe.value(), stream.line.data() + before, kReadBytes);
  const bool again = got < 0 && errno == EINTR;
  stream.line.resize(before + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  return again || (write_lines(stream, got <= 0) && got > 0);
}

// Reads only what the pipe holds now, because a process that is no rank's may write for ever.
void LabelledOutput::Reader::drain(Stream& stream) {
  int held = 0;
  if (ioctl(stream.pipe.value(), FIONREAD, &held) != 0) return;
  bool more = true;
  for (int left = held; more && left > 0; left -= static_cast<int>(kReadBytes)) more = read_from(stream);
  if (more) static_cast<void>(write_lines(stream, true));
}

void LabelledOutput::Reader::run() {
  sigset_t broken_pipe;
  sigemptyset(&broken_pipe);
  sigaddset(&broken_pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
  std::vector<pollfd> watched;
  while (!streams.empty()) {
    watched.assign(1, {finish.value(), POLLIN, 0});
    for (const Stream& stream : streams) watched.push_back({stream.pipe.value(), POLLIN, 0});
    poll(watched.data(), watched.size(), -1);
    if (watched.front().revents != 0) break;
    // A pipe whose target takes nothing is closed, too: its rank then finds a broken pipe.
    for (std::size_t i = 0; i < streams.size(); ++i) {
      if (watched[i + 1].revents != 0 && !read_from(streams[i])) streams[i].pipe.close();
    }
    std::erase_if(streams, [](const Stream& stream) { return !stream.pipe; });
  }
  for (Stream& stream : streams) drain(stream);
  finished = true;
  kill(getpid(), SIGCHLD);
}

LabelledOutput::LabelledOutput(std::uint32_t ranks)
    : reader_(std::make_shared<Reader>()), label_width_(fmt::formatted_size("{}", ranks - 1)) {}

Result<std::array<Descriptor, 2>> LabelledOutput::add_rank() {
  const std::string label = fmt::format("{:>{}}: ", ranks_++, label_width_);
  std::array<Descriptor, 2> writers;
  for (const int target : {STDOUT_FILENO, STDERR_FILENO}) {
    auto ends = GDX_TRY(make_pipe());
    reader_->streams.push_back({std::move(ends.reader), target, label, {}});
    writers[static_cast<std::size_t>(target - STDOUT_FILENO)] = std::move(ends.writer);
  }
  return writers;
}

Result<void> LabelledOutput::start() {
  auto ends = GDX_TRY(make_pipe());
  reader_->finish = std::move(ends.reader);
  finish_ = std::move(ends.writer);
  std::thread([reader = reader_] { reader->run(); }).detach();
  return {};
}

void LabelledOutput::finish() { finish_.close(); }
bool LabelledOutput::is_finished() const { return reader_->finished; }
int LabelledOutput::lost_errno() const { return reader_->lost_errno; }

}  // namespace gdx
