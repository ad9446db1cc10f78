#include "host/messaging/link.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>

namespace gdx::messaging {
namespace {

constexpr std::uint32_t kEnds = 2;
constexpr std::uint8_t kWindow = 0;

std::uint64_t load(std::uint64_t& word) { return std::atomic_ref(word).load(std::memory_order_acquire); }

}  // namespace

Link::Link(std::unique_ptr<Executor> executor, End end)
    : peer_(1 - static_cast<std::uint32_t>(end)),
      control_(std::make_unique<Control>()),
      executor_(std::move(executor)) {}

Result<std::unique_ptr<Link>> Link::open(std::unique_ptr<Port> port, End end) {
  ExecutorOptions options;
  options.rank = static_cast<std::uint32_t>(end);
  options.ranks = kEnds;
  options.peer_timeout_ns = ~std::uint64_t{0};  // a peer may post its receive much later
  auto executor = GDX_TRY(Executor::create(std::move(port), options));
  std::unique_ptr<Link> link(new Link(std::move(executor), end));
  (void)GDX_TRY(
      link->executor_->add_window(reinterpret_cast<std::byte*>(link->control_.get()), sizeof(Control)));
  return link;
}

void Link::forget_memory(const PortRegion& region, std::span<const std::byte> memory) {
  (void)taken();  // marks what has arrived, which needs its memory no more
  const auto needs = [&](const Send& send) {
    const bool is_open =
        send.state == SendState::kWaiting || (send.state == SendState::kPosted && send.index >= completed_);
    return is_open && send.bytes != 0 && send.from.address >= memory.data() &&
           send.from.address < memory.data() + memory.size();
  };
  if (std::ranges::any_of(sends_, needs) || receives_.need(region.key, region.base, memory.size()))
    lose({Status::kInvalidArgument, "memory of open messages was deregistered: end them before"});
  executor_->forget_memory(region);
}

Result<std::uint64_t> Link::send(std::int32_t tag, std::uint64_t bytes, const PortSource& from) {
  if (sends_[sends_to_.posted() % kMostSends].state != SendState::kFree)
    return tl::unexpected(unless_lost({Status::kBusy, fmt::format("{} sends are open", kMostSends)}));
  const auto posted = sends_to_.post(tag, bytes);
  if (!posted) return tl::unexpected(unless_lost(posted.error()));
  const std::uint64_t number = *posted;
  Send& send = sends_[number % kMostSends];
  send = {.state = SendState::kWaiting, .number = number, .from = from, .bytes = bytes};
  ++open_sends_;
  if (!lost_) match();
  return number;
}

Result<std::uint64_t> Link::receive(std::span<const Part> parts) {
  const std::size_t place = receives_.groups() % kMostGroups;
  if (!lost_ && announcing_used_[place] && announcing_index_[place] >= completed_)
    return fail(Status::kBusy, "the announcement before in this place is still under way");
  const auto announcement = receives_.post(parts);
  if (!announcement) return tl::unexpected(unless_lost(announcement.error()));
  for (std::uint64_t& word : control_->arrivals[place])
    std::atomic_ref(word).store(0, std::memory_order_relaxed);
  ++open_groups_;
  if (!lost_) announce(*announcement);
  return announcement->group;
}

Error Link::unless_lost(const Error& error) const {
  return lost_ && error.status == Status::kBusy ? *lost_ : error;
}

void Link::announce(const Announcement& announcement) {
  const std::size_t place = announcement.group % kMostGroups;
  control_->announcing[place] = announcement;
  Command command{};
  command.operation = CommandOperation::kPut;
  command.flags = kCommandSignalSet;
  command.rank = peer_;
  command.local_window = command.remote_window = command.signal_window = kWindow;
  command.local_offset = offsetof(Control, announcing) + place * sizeof(Announcement);
  command.remote_offset = offsetof(Control, announced) + place * sizeof(Announcement);
  command.bytes = offsetof(Announcement, part) + announcement.parts * sizeof(Part);
  command.signal_offset = offsetof(Control, announced_count);
  command.value = announcement.group + 1;
  announcing_used_[place] = true;
  announcing_index_[place] = next_index_;
  executor_->take(0, next_index_++, command);
}

Result<bool> Link::sent(std::uint64_t number) {
  Send& send = sends_[number % kMostSends];
  if (send.state == SendState::kFree || send.number != number)
    return fail(Status::kInvalidArgument, fmt::format("send {} has ended before", number));
  const SendState state = send.state;
  const bool complete = state == SendState::kPosted && (send.index < completed_ || send.ordinal < peer_took_);
  if (state == SendState::kWaiting || state == SendState::kPosted) {
    if (!complete && !lost_) return false;
  }
  send.state = SendState::kFree;
  --open_sends_;
  if (complete) return true;
  if (state == SendState::kRefused)
    return fail(Status::kInvalidLength,
                fmt::format("a send of {} B is longer than the peer's receive: make both equal", send.bytes));
  return tl::unexpected(*lost_);
}

void Link::read_words(std::uint64_t group) {
  for (std::uint32_t part = 0; part < receives_.parts(group); ++part) {
    const auto arrived =
        receives_.on_word({group, part}, load(control_->arrivals[group % kMostGroups][part]));
    if (!arrived && !failure_) failure_ = arrived.error();
  }
}

Result<std::optional<Link::Received>> Link::received(std::uint64_t group) {
  if (!receives_.is_open(group))
    return fail(Status::kInvalidArgument, fmt::format("group {} has ended before", group));
  read_words(group);
  Received result;
  const auto bytes = receives_.complete(group);
  if (bytes.empty() && !lost_) return std::optional<Received>{};
  auto error = bytes.empty() ? lost_ : receives_.refusal(group);
  for (const std::uint64_t count : bytes) result.bytes[result.parts++] = count;
  receives_.retire(group);
  --open_groups_;
  while (oldest_group_ < receives_.groups() && !receives_.is_open(oldest_group_)) ++oldest_group_;
  if (error) return tl::unexpected(std::move(*error));
  return std::optional(result);
}

std::uint64_t Link::taken() {
  for (std::uint64_t group = oldest_group_; group < receives_.groups(); ++group) {
    if (receives_.is_open(group)) read_words(group);
  }
  return receives_.arrived();
}

void Link::take_announcements() {
  const std::uint64_t count = load(control_->announced_count);
  while (sends_to_.announced() < count) {
    // Copied first, because a peer may change it at any time.
    const Announcement announcement = control_->announced[sends_to_.announced() % kMostGroups];
    const auto taken = sends_to_.on_announcement(announcement);
    if (taken) continue;
    if (!failure_) failure_ = taken.error();
    return;
  }
}

void Link::match() {
  while (const auto match = sends_to_.next_match()) {
    Send& send = sends_[match->send % kMostSends];
    Command command{};
    command.operation = CommandOperation::kPut;
    command.flags = kCommandSignalSet;
    command.rank = peer_;
    command.bytes = match->fits ? send.bytes : 0;
    command.signal_window = kWindow;
    command.signal_offset =
        offsetof(Control, arrivals) +
        (match->place.group % kMostGroups * kMostParts + match->place.part) * sizeof(std::uint64_t);
    command.value = pack_arrival(match->place.group, match->fits ? send.bytes : kTooLong);
    send.state = match->fits ? SendState::kPosted : SendState::kRefused;
    send.index = next_index_++;
    send.ordinal = next_ordinal_++;
    undelivered_.push_back(send.index);
    const TransferEnds ends{send.from, {match->receive.address, match->receive.key}};
    executor_->take_transfer(0, send.index, command, ends);
  }
}

bool Link::progress(std::uint64_t now_ns) {
  if (lost_ || port_failed_) return false;
  if (!failure_) {
    take_announcements();
    match();
  }
  const auto done = executor_->progress(now_ns);
  completed_ = executor_->completed(0, peer_);
  while (!undelivered_.empty() && undelivered_.front() < completed_) undelivered_.pop_front();
  const Error& failure = executor_->failure(0, peer_);
  if (failure.status != Status::kOk && !failure_) failure_ = failure;
  port_failed_ = !done;
  if (!done && !failure_) failure_ = done.error();
  if (!done) return true;
  return *done != 0;
}

void Link::peer_has_taken(std::uint64_t taken) { peer_took_ = std::max(peer_took_, taken); }

void Link::lose(Error error) {
  if (!lost_) lost_ = std::move(error);
}

}  // namespace gdx::messaging
