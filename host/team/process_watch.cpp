#include "host/team/process_watch.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "base/library_thread.h"

namespace gdx::team {

Result<std::unique_ptr<ProcessWatch>> ProcessWatch::start(std::map<std::uint32_t, int> processes,
                                                          std::function<void(std::uint32_t)> ended) {
  Descriptor stop = Descriptor::keep(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop) return fail(Status::kSystem, fmt::format("no eventfd: {}", std::strerror(errno)));
  std::unique_ptr<ProcessWatch> watch(
      new ProcessWatch(std::move(processes), std::move(ended), std::move(stop)));
  watch->thread_ = start_library_thread([raw = watch.get()] { raw->serve(); });
  return watch;
}

ProcessWatch::~ProcessWatch() {
  eventfd_write(stop_.value(), 1);
  thread_.join();
}

void ProcessWatch::serve() {
  while (!processes_.empty()) {
    std::vector<pollfd> waited{{stop_.value(), POLLIN, 0}};
    for (const auto& [rank, process] : processes_) waited.push_back({process, POLLIN, 0});
    if (poll(waited.data(), waited.size(), -1) < 0 && errno != EINTR) return;
    if (waited.front().revents != 0) return;
    std::size_t at = 1;
    std::erase_if(processes_, [&](const auto& process) {
      const bool ends = waited[at++].revents != 0;
      if (ends) ended_(process.first);
      return ends;
    });
  }
}

}  // namespace gdx::team
