// Channels of completion events, by the descriptors that programs poll.
#include <cerrno>
#include <memory>
#include <mutex>

#include "driver-shim/softhca/interpose/device.h"
#include "driver-shim/softhca/uverbs/real.h"

namespace gdx::softhca::uverbs {

ErrnoOr<std::shared_ptr<EventChannel>> Device::open_channel() {
  ErrnoOr<std::shared_ptr<EventChannel>> channel = EventChannel::open();
  if (!channel) return channel;
  const int fd = (*channel)->user_fd();
  if (!track_file(fd, {FileKind::kEvents})) {
    real_close(fd);
    return refuse(EMFILE);
  }
  const std::lock_guard lock(channels_mutex_);
  std::shared_ptr<EventChannel>& known = channels_[fd];
  if (known) known->user_closed();  // its descriptor was closed behind our back
  known = *channel;
  return channel;
}

ErrnoOr<std::shared_ptr<EventChannel>> Device::find_channel(int user_fd) {
  const std::lock_guard lock(channels_mutex_);
  const auto found = channels_.find(user_fd);
  if (found == channels_.end()) return refuse(EBADF);
  return found->second;
}

void Device::forget_channel(int fd) {
  const std::lock_guard lock(channels_mutex_);
  const auto found = channels_.find(fd);
  if (found == channels_.end()) return;
  found->second->user_closed();
  channels_.erase(found);
}

void Device::flush_channels() {
  const std::lock_guard lock(channels_mutex_);
  for (const auto& [fd, channel] : channels_) channel->flush();
}

}  // namespace gdx::softhca::uverbs
