// A file descriptor from which a program reads the kernel's event records, one a read(2): a completion
// channel, or a context's asynchronous events.
#pragma once

#include <rdma/ib_user_verbs.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/descriptor.h"
#include "base/file_identity.h"
#include "driver-shim/softhca/engine/hca.h"

namespace gdx::softhca::uverbs {

// Threads: all methods lock. Never calls out, so that the engine may push with its own lock held.
class EventChannel {
 public:
  // Errors: the errno of socketpair(2).
  static ErrnoOr<std::shared_ptr<EventChannel>> open();
  EventChannel(const EventChannel&) = delete;
  EventChannel& operator=(const EventChannel&) = delete;

  // The program's end. It belongs to the program, who closes it.
  [[nodiscard]] int user_fd() const { return user_fd_; }

  // `owner` is the handle that the program gave the object when it made it.
  void push_completion(std::uint64_t owner);
  void push_async(std::uint64_t owner, std::uint32_t event_type);
  // A DevX event: the cookie of the subscription and, unless the channel leaves it out, the event queue
  // entry.
  void push_device_event(std::uint64_t cookie, std::uint16_t event, std::uint32_t object_number);
  void leave_out_device_data();
  // Holds the eventfd of a subscription until the program closes its end.
  void keep(std::shared_ptr<const Descriptor> eventfd);
  // Removes unread events of `owner`; returns the number of read ones.
  std::uint32_t forget(std::uint64_t owner);
  // Sends events for which the socket had no room before.
  void flush();
  // Takes note that the program has closed its end. Later events are dropped.
  void user_closed();

 private:
  using Record = std::vector<std::byte>;
  EventChannel(int user_fd, Descriptor own)
      : user_fd_(user_fd), own_(std::move(own)), user_identity_(identity_of(user_fd)) {}
  void push_locked(std::uint64_t owner, std::span<const std::byte> record);
  void flush_locked();

  const int user_fd_;
  const Descriptor own_;
  const FileIdentity user_identity_;
  std::mutex mutex_;
  bool user_open_ = true;
  bool device_data_ = true;
  std::vector<std::shared_ptr<const Descriptor>> eventfds_;
  std::deque<Record> backlog_;
  std::map<std::uint64_t, std::uint32_t> pushed_;  // count of events by owner, since the owner was made
};

}  // namespace gdx::softhca::uverbs
