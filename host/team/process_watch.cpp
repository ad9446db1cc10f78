#include "host/team/process_watch.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <vector>

#include "base/library_thread.h"
#include "base/log.h"

namespace gdx::team {

Result<std::unique_ptr<ProcessWatch>> ProcessWatch::start(std::map<std::uint32_t, int> processes,
                                                          std::function<void(std::uint32_t)> ended) {
  Descriptor stop = Descriptor::keep(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop) return fail(Status::kSystem, fmt::format("no eventfd: {}", std::strerror(errno)));
  std::unique_ptr<ProcessWatch> watch(
      new ProcessWatch(std::move(processes), std::move(ended), std::move(stop)));
  try {
    watch->thread_ = start_library_thread([raw = watch.get()] { raw->serve(); });
  } catch (const std::system_error& error) {
    return fail(Status::kNoMemory,
                fmt::format("no thread that watches mapped ranks: {}; raise ulimit -u", error.what()));
  }
  return watch;
}

ProcessWatch::~ProcessWatch() {
  if (!thread_.joinable()) return;
  stops_ = true;
  eventfd_write(stop_.value(), 1);
  thread_.join();
}

// Looks by itself, too, because a program may have closed descriptors that are not its own.
void ProcessWatch::serve() {
  constexpr int kLookAgainMs = 1000;
  int stop = stop_.value();
  while (!processes_.empty() && !stops_) {
    std::vector<pollfd> waited{{stop, POLLIN, 0}};
    for (const auto& [rank, process] : processes_) waited.push_back({process, POLLIN, 0});
    if (poll(waited.data(), waited.size(), kLookAgainMs) < 0) {
      if (errno == EINTR) continue;
      log::warn("nothing watches mapped ranks any more: {}; a wait for one that ends lasts until its timeout",
                std::strerror(errno));
      return;
    }
    if (waited.front().revents != 0) stop = -1;  // not this object's any more, unless it stops
    std::size_t at = 1;
    std::erase_if(processes_, [&](const auto& process) {
      const short told = waited[at++].revents;
      if ((told & POLLIN) != 0) ended_(process.first);
      return told != 0;
    });
  }
}

}  // namespace gdx::team
