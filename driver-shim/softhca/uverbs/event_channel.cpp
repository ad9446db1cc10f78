#include "driver-shim/softhca/uverbs/event_channel.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "driver-shim/softhca/uverbs/real.h"
#include "proto/mlx5/prm.h"

namespace gdx::softhca::uverbs {
namespace {

// Both records of the kernel begin with the handle of the object that the event is about.
static_assert(offsetof(ib_uverbs_comp_event_desc, cq_handle) == 0);
static_assert(offsetof(ib_uverbs_async_event_desc, element) == 0);

std::uint64_t owner_of(std::span<const std::byte> record) {
  std::uint64_t owner = 0;
  std::memcpy(&owner, record.data(), sizeof owner);
  return owner;
}

}  // namespace

ErrnoOr<std::shared_ptr<EventChannel>> EventChannel::open() {
  // A socket, not a pipe: it can be drained without touching the program's file flags. Writing to one whose
  // reader is gone raises no signal.
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) return refuse(errno);
  Descriptor own = Descriptor::keep(ends[1]);
  const int user_fd = spare_standard_descriptors(ends[0], true);
  if (own && user_fd >= 0) return std::shared_ptr<EventChannel>(new EventChannel(user_fd, std::move(own)));
  if (user_fd >= 0) real_close(user_fd);
  return refuse(EMFILE);
}

void EventChannel::push_completion(std::uint64_t owner) {
  ib_uverbs_comp_event_desc record{};
  record.cq_handle = owner;
  const std::lock_guard lock(mutex_);
  push_locked(owner, std::as_bytes(std::span(&record, 1)));
}

void EventChannel::push_async(std::uint64_t owner, std::uint32_t event_type) {
  ib_uverbs_async_event_desc record{};
  record.element = owner;
  record.event_type = event_type;
  const std::lock_guard lock(mutex_);
  push_locked(owner, std::as_bytes(std::span(&record, 1)));
}

// Source: Linux include/linux/mlx5/device.h, struct mlx5_eqe: the type in byte 1, the event's data from
// byte 32. struct mlx5_eqe_cq_err has the number first and a syndrome; other objects have it in the last
// dword.
void EventChannel::push_device_event(std::uint64_t cookie, std::uint16_t event, std::uint32_t object_number) {
  struct {
    std::uint64_t cookie;
    std::array<std::byte, 64> entry;
  } record{cookie, {}};
  constexpr std::size_t kTypeByte = 1;
  constexpr std::size_t kCqErrorNumberByte = 32;
  constexpr std::size_t kCqErrorSyndromeByte = 43;
  constexpr std::size_t kNumberByte = 56;
  constexpr std::byte kOverrun{1};
  const bool cq_error = event == static_cast<std::uint16_t>(mlx5::prm::Event::kCqError);
  record.entry[kTypeByte] = static_cast<std::byte>(event);
  if (cq_error) record.entry[kCqErrorSyndromeByte] = kOverrun;
  const Be32 number = object_number;
  std::memcpy(record.entry.data() + (cq_error ? kCqErrorNumberByte : kNumberByte), &number, sizeof number);
  const std::lock_guard lock(mutex_);
  push_locked(cookie,
              std::as_bytes(std::span(&record, 1)).first(device_data_ ? sizeof record : sizeof cookie));
}

void EventChannel::leave_out_device_data() {
  const std::lock_guard lock(mutex_);
  device_data_ = false;
}

void EventChannel::keep(std::shared_ptr<const Descriptor> eventfd) {
  const std::lock_guard lock(mutex_);
  if (user_open_) eventfds_.push_back(std::move(eventfd));
}

void EventChannel::push_locked(std::uint64_t owner, std::span<const std::byte> record) {
  if (!user_open_) return;
  ++pushed_[owner];
  backlog_.emplace_back(record.begin(), record.end());
  flush_locked();
}

void EventChannel::flush_locked() {
  // Sends only while the number refers to this socket, because the program may have opened another file
  // there.
  while (user_open_ && !backlog_.empty() && own_.refers()) {
    const Record& record = backlog_.front();
    if (send(own_.value(), record.data(), record.size(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0) return;
    backlog_.pop_front();
  }
}

void EventChannel::flush() {
  const std::lock_guard lock(mutex_);
  flush_locked();
}

std::uint32_t EventChannel::forget(std::uint64_t owner) {
  const std::lock_guard lock(mutex_);
  std::deque<Record> unread;
  std::array<std::byte, sizeof(ib_uverbs_async_event_desc)> buffer{};
  // Never from another file that has come to the descriptor's number.
  const bool readable = user_open_ && identity_of(user_fd_) == user_identity_;
  while (readable) {
    const ssize_t length = recv(user_fd_, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (length < static_cast<ssize_t>(sizeof(std::uint64_t))) break;
    unread.emplace_back(buffer.begin(), buffer.begin() + length);
  }
  unread.insert(unread.end(), backlog_.begin(), backlog_.end());
  const std::size_t before = unread.size();
  std::erase_if(unread, [owner](const Record& record) { return owner_of(record) == owner; });
  const auto taken_back = static_cast<std::uint32_t>(before - unread.size());
  backlog_ = std::move(unread);
  flush_locked();

  const auto found = pushed_.find(owner);
  if (found == pushed_.end()) return 0;
  const std::uint32_t reported = found->second - taken_back;
  pushed_.erase(found);
  return reported;
}

void EventChannel::user_closed() {
  const std::lock_guard lock(mutex_);
  user_open_ = false;
  eventfds_.clear();
}

}  // namespace gdx::softhca::uverbs
