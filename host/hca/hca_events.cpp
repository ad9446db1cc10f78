#include "host/hca/hca_events.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>

#include "base/descriptor.h"
#include "base/library_thread.h"
#include "base/log.h"
#include "base/own_process.h"
#include "proto/mlx5/prm.h"

namespace gdx {
namespace {

struct FatalEvent {
  mlx5::prm::Event number;
  ibv_event_type type;
};
// Events after which a queue pair is in error without a completion that says so.
constexpr std::array<FatalEvent, 3> kFatalEvents{
    {{mlx5::prm::Event::kQpFatal, IBV_EVENT_QP_FATAL},
     {mlx5::prm::Event::kQpRequestError, IBV_EVENT_QP_REQ_ERR},
     {mlx5::prm::Event::kQpAccessError, IBV_EVENT_QP_ACCESS_ERR}}};

// Ensures that a read of a file without news returns, because another may have read what a poll saw.
void make_nonblocking(int file) { ::fcntl(file, F_SETFL, ::fcntl(file, F_GETFL) | O_NONBLOCK); }

EventChannelHandle open_queue_pair_channel(ibv_context* context) {
  constexpr auto kWithData = static_cast<mlx5dv_devx_create_event_channel_flags>(0);
  EventChannelHandle channel(mlx5dv_devx_create_event_channel(context, kWithData));
  if (channel) make_nonblocking(channel->fd);
  return channel;
}

}  // namespace

// The thread that reads events, and the means by which it is ended.
class HcaEvents::Reader {
 public:
  Reader(HcaEvents& events, Descriptor stop)
      : stop_(std::move(stop)), thread_(start_library_thread([this, &events] { serve(events); })) {}
  ~Reader() {
    if (!process_.is_here()) {
      thread_.detach();
      return;
    }
    eventfd_write(stop_.value(), 1);
    thread_.join();
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

 private:
  void serve(HcaEvents& events) {
    if (events.has_failed()) return;  // the files of a failed HCA stay readable, so no more is read
    const int of_queue_pairs = events.queue_pairs_ ? events.queue_pairs_->fd : -1;
    for (;;) {
      std::array<pollfd, 3> ready{
          {{stop_.value(), POLLIN, 0}, {events.context_->async_fd, POLLIN, 0}, {of_queue_pairs, POLLIN, 0}}};
      ::poll(ready.data(), ready.size(), -1);
      if (ready[0].revents != 0) return;
      while (const auto event = events.next()) {
        log::warn("{}", events.text_of(*event));
        if (*event == ipc::Event::kHcaFailed) return;
      }
    }
  }

  OwnProcess process_;
  Descriptor stop_;
  std::thread thread_;
};

HcaEvents::HcaEvents(ibv_context* context, std::string hca_name, std::uint8_t port)
    : context_(context),
      hca_name_(std::move(hca_name)),
      port_(port),
      queue_pairs_(open_queue_pair_channel(context)) {
  make_nonblocking(context_->async_fd);
}

std::string HcaEvents::text_of(ipc::Event event) const {
  switch (event) {
    case ipc::Event::kPortUp: return fmt::format("port {} of HCA {} is up", port_, hca_name_);
    case ipc::Event::kPortDown:
      return fmt::format("port {} of HCA {} is down: endpoints fail once their retries are exceeded", port_,
                         hca_name_);
    case ipc::Event::kHcaFailed:
      return fmt::format("HCA {} is in a fatal error: its objects are lost", hca_name_);
    case ipc::Event::kKicked: break;  // comes from no HCA
  }
  return {};
}

std::shared_ptr<void> HcaEvents::on_failure(mlx5dv_devx_obj* queue_pair, Act act) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t number = ++last_number_;
  if (failed_) act(IBV_EVENT_DEVICE_FATAL);
  acts_.emplace(number, std::move(act));
  if (queue_pair != nullptr) subscribe(queue_pair, number);
  return {nullptr, [this, number](std::nullptr_t) {
            const std::lock_guard removal(mutex_);
            acts_.erase(number);
          }};
}

// One at a time, because the kernel refuses a whole list for one event that the HCA lacks. It ends a
// subscription with the queue pair.
void HcaEvents::subscribe(mlx5dv_devx_obj* queue_pair, std::uint64_t number) {
  for (const FatalEvent& fatal : kFatalEvents) {
    std::uint16_t event = static_cast<std::uint16_t>(fatal.number);
    const int error = !queue_pairs_ ? EOPNOTSUPP
                                    : mlx5dv_devx_subscribe_devx_event(queue_pairs_.get(), queue_pair,
                                                                       sizeof event, &event, number);
    if (error == 0 || std::exchange(told_missing_, true)) continue;
    log::info("HCA {} does not tell every fatal event of a queue pair ({}): waits may end by their timeout",
              hca_name_, std::strerror(error));
  }
}

bool HcaEvents::has_failed() {
  const std::lock_guard lock(mutex_);
  return failed_;
}

Result<std::shared_ptr<void>> HcaEvents::watch() {
  const std::lock_guard lock(mutex_);
  auto reader = reader_.lock();
  if (reader) return reader;
  Descriptor stop = Descriptor::keep(eventfd(0, EFD_CLOEXEC));
  if (!stop)
    return fail(Status::kNoMemory, fmt::format("no descriptor for the events of HCA {}: {}; raise ulimit -n",
                                               hca_name_, std::strerror(errno)));
  try {
    reader = std::make_shared<Reader>(*this, std::move(stop));
  } catch (const std::system_error& error) {
    return fail(Status::kNoMemory, fmt::format("no thread for the events of HCA {}: {}; raise ulimit -u",
                                               hca_name_, error.what()));
  }
  reader_ = reader;
  return reader;
}

void HcaEvents::fail_all() {
  failed_ = true;
  for (const auto& [number, act] : acts_) act(IBV_EVENT_DEVICE_FATAL);
}

// Source: Linux include/linux/mlx5/device.h, struct mlx5_eqe: the type in byte 1 of 64.
void HcaEvents::act_on_queue_pairs() {
  constexpr std::size_t kTypeByte = sizeof(mlx5dv_devx_async_event_hdr) + 1;
  alignas(mlx5dv_devx_async_event_hdr) std::array<std::byte, sizeof(mlx5dv_devx_async_event_hdr) + 64> told{};
  auto* const header = reinterpret_cast<mlx5dv_devx_async_event_hdr*>(told.data());
  while (queue_pairs_ && mlx5dv_devx_get_event(queue_pairs_.get(), header, told.size()) ==
                             static_cast<ssize_t>(told.size())) {
    const auto* const event =
        std::ranges::find(kFatalEvents, std::to_integer<std::uint16_t>(told[kTypeByte]),
                          [](const FatalEvent& it) { return static_cast<std::uint16_t>(it.number); });
    const auto found = acts_.find(header->cookie);
    if (event != kFatalEvents.end() && found != acts_.end()) found->second(event->type);
  }
}

std::optional<ipc::Event> HcaEvents::next() {
  const std::lock_guard lock(mutex_);
  act_on_queue_pairs();
  while (!failed_) {
    ibv_async_event event{};
    errno = 0;
    const bool told = ibv_get_async_event(context_, &event) == 0;
    if (!told && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
    if (told) ibv_ack_async_event(&event);
    // The driver closes the stream of a device that it has taken away.
    if (!told || event.event_type == IBV_EVENT_DEVICE_FATAL) {
      fail_all();
      return ipc::Event::kHcaFailed;
    }
    const bool down = event.event_type == IBV_EVENT_PORT_ERR;
    const bool of_port = down || event.event_type == IBV_EVENT_PORT_ACTIVE;
    if (of_port && event.element.port_num == port_) return down ? ipc::Event::kPortDown : ipc::Event::kPortUp;
    log::info("HCA {}: {}", hca_name_, ibv_event_type_str(event.event_type));
  }
  return std::nullopt;
}

}  // namespace gdx
