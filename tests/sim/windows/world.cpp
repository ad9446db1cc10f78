#include "tests/sim/windows/world.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace gdx::sim {

namespace {

constexpr std::uint64_t kMicrosecondNs = 1'000;
constexpr std::uint64_t kMillisecondNs = 1'000'000;
constexpr std::uint64_t kSecondNs = 1'000'000'000;
constexpr std::uint64_t kLimitNs = 120 * kSecondNs;
constexpr std::uint64_t kStepBytes = 128 << 10;
constexpr std::uint64_t kControlBytes = 48;

transport::ReceiveShares::Key key_of(std::size_t sender) { return {static_cast<std::uint8_t>(sender + 1)}; }

std::uint64_t choose_socket(Random& random) { return std::uint64_t{256 << 10} << random.between(0, 4); }

}  // namespace

void WindowOutcome::add(const WindowOutcome& other) {
  packets += other.packets;
  lost += other.lost;
  waits += other.waits;
  deaths += other.deaths;
  restarts += other.restarts;
  pauses += other.pauses;
  fullest = std::max(fullest, other.fullest);
}

WindowWorld::WindowWorld(std::uint64_t seed)
    : random_(seed),
      socket_bytes_(choose_socket(random_)),
      shares_(socket_bytes_),
      loss_(random_.chance(0.5) ? 0 : 0.05),
      pauses_(random_.chance(0.5) ? 0 : 0.002),
      reorders_(random_.chance(0.15)),
      slow_(random_.chance(0.3)) {
  // A quarter of the socket has to hold the minimum of each, twice where one starts anew.
  const std::uint64_t most = socket_bytes_ / 4 / transport::kMinimumUnits;
  senders_.resize(random_.between(1, std::min<std::uint64_t>(std::max<std::uint64_t>(most / 2, 1), 10)));
  for (std::size_t number = 0; number < senders_.size(); ++number) {
    senders_[number].path_ns = random_.between(1, 200) * kMicrosecondNs;
    const std::uint64_t late_ns = random_.chance(0.5) ? 0 : random_.between(0, 3 * kSecondNs);
    at(now_ns_ + late_ns, [this, number] { start(number); });
  }
  at(now_ns_, [this] { serve(); });
  for (std::uint64_t i = random_.between(0, 6); i > 0; --i) {
    at(now_ns_ + random_.between(0, 4 * kSecondNs), [this] { misfortune(); });
  }
}

void WindowWorld::fail(const std::string& what) {
  if (outcome_.problem.empty()) outcome_.problem = what;
}

void WindowWorld::at(std::uint64_t time_ns, std::function<void()> act) {
  events_.push({time_ns, order_++, std::move(act)});
}

// For the first time, or as another process with the same address.
void WindowWorld::start(std::size_t number) {
  Sender& sender = senders_[number];
  sender.window = std::make_unique<transport::SendWindow>(random_.next());
  ++sender.life;
  sender.asleep_until_ns = 0;
  sender.packet_bytes = random_.chance(0.3) ? random_.between(40, 300) : random_.between(1000, 4168);
  sender.backlog_bytes = random_.between(1, 60) * sender.packet_bytes * 20;
  if (slow_ && random_.chance(0.7)) sender.backlog_bytes = 2 * socket_bytes_;
  schedule_step(number, now_ns_);
}

void WindowWorld::schedule_step(std::size_t number, std::uint64_t time_ns) {
  const std::uint64_t step_ns = std::max(time_ns, now_ns_ + random_.between(500, 5000));
  if (step_ns >= senders_[number].step_ns) return;  // it will look soon enough
  senders_[number].step_ns = step_ns;
  at(step_ns, [this, number, step_ns] {
    if (senders_[number].step_ns == step_ns) step(number);
  });
}

void WindowWorld::step(std::size_t number) {
  Sender& sender = senders_[number];
  sender.step_ns = transport::kNever;
  if (sender.dead) return;
  if (now_ns_ < sender.asleep_until_ns) return schedule_step(number, sender.asleep_until_ns);
  const std::uint64_t units = transport::window_units(sender.packet_bytes);
  std::uint64_t sent_bytes = 0;
  while (sender.backlog_bytes > 0 && sent_bytes < kStepBytes && sender.window->room_units(now_ns_) >= units) {
    send_packet(number);
    sent_bytes += sender.packet_bytes;
  }
  const bool held = sender.backlog_bytes > 0 && sender.window->room_units(now_ns_) < units;
  if (held && sender.window->wait(now_ns_)) ++outcome_.waits;
  if (held && sender.window->stalled(now_ns_)) {  // a connection's timer
    send_packet(number);
    schedule_step(number, now_ns_ + 200 * kMillisecondNs);
  }
  if (const auto marker = sender.window->take_marker(now_ns_)) {
    Packet packet;
    packet.sender = number;
    packet.life = sender.life;
    packet.bytes = kControlBytes;
    packet.marker = marker;
    transmit(packet);
  }
  if (sender.backlog_bytes > 0 && !held) return schedule_step(number, now_ns_);
  const std::uint64_t deadline_ns = sender.window->next_deadline_ns(now_ns_);
  if (deadline_ns != transport::kNever) schedule_step(number, deadline_ns);
}

void WindowWorld::send_packet(std::size_t number) {
  Sender& sender = senders_[number];
  sender.window->charge(transport::window_units(sender.packet_bytes));
  sender.backlog_bytes -= std::min(sender.backlog_bytes, sender.packet_bytes);
  Packet packet;
  packet.sender = number;
  packet.life = sender.life;
  packet.bytes = sender.packet_bytes;
  transmit(packet);
}

// A path keeps the order, unless this seed's do not.
void WindowWorld::transmit(Packet packet) {
  Sender& sender = senders_[packet.sender];
  ++outcome_.packets;
  if (random_.chance(loss_)) {
    ++outcome_.lost;
    if (!packet.marker) sender.backlog_bytes += packet.bytes;
    return;
  }
  std::uint64_t arrives_ns = now_ns_ + sender.path_ns;
  if (reorders_) {
    arrives_ns += random_.between(0, 30 * kMicrosecondNs);
  } else {
    arrives_ns = sender.arrives_ns = std::max(sender.arrives_ns, arrives_ns);
  }
  at(arrives_ns, [this, packet] { arrive(packet); });
}

// Returns Linux's charge: alone, a power of two that holds the datagram and its headers, and a descriptor;
// joined by GRO, less.
std::uint64_t WindowWorld::truesize_of(std::uint64_t bytes) {
  if (random_.chance(0.3)) return bytes + 75;
  return std::max<std::uint64_t>(832, std::bit_ceil(bytes + 364) + 256);
}

void WindowWorld::arrive(Packet packet) {
  packet.truesize = truesize_of(packet.bytes);
  if (packet.truesize > transport::window_units(packet.bytes))
    fail("a unit bounds less than the kernel charges");
  const std::uint64_t charged = held_bytes_ + unreleased_bytes_ + packet.truesize;
  if (charged > socket_bytes_) {
    if (!reorders_) return fail("a packet found no room in the socket");
    if (!packet.marker) senders_[packet.sender].backlog_bytes += packet.bytes;
    return;
  }
  outcome_.fullest =
      std::max(outcome_.fullest, static_cast<double>(charged) / static_cast<double>(socket_bytes_));
  held_bytes_ += packet.truesize;
  socket_.push_back(packet);
}

void WindowWorld::serve() {
  const int batch = slow_ ? 1 : 4;
  for (int i = 0; i < batch && !socket_.empty(); ++i) {
    const Packet packet = socket_.front();
    socket_.pop_front();
    held_bytes_ -= packet.truesize;
    unreleased_bytes_ += packet.truesize;
    if (socket_.empty() || unreleased_bytes_ >= socket_bytes_ / 4) unreleased_bytes_ = 0;
    take(packet);
  }
  if (socket_.empty()) shares_.on_drained(now_ns_);
  // Slow receivers, whose socket need not run empty before the end.
  const std::uint64_t takes_ns =
      slow_ ? kSecondNs / (socket_bytes_ >> 10) : random_.between(1, 10) * kMicrosecondNs;
  std::uint64_t next_ns = now_ns_ + takes_ns;
  if (socket_.empty()) next_ns += 100 * kMicrosecondNs;
  if (random_.chance(pauses_) && outcome_.pauses < kMostPauses) {
    ++outcome_.pauses;
    next_ns += random_.between(0, 2 * kSecondNs);
  }
  at(next_ns, [this] { serve(); });
}

void WindowWorld::take(const Packet& packet) {
  taken_bytes_ += packet.bytes;
  shares_.on_taken(packet.bytes);
  Sender& sender = senders_[packet.sender];
  if (packet.marker) {
    sender.renewed_ns = now_ns_;  // a dead one's last may have lain in the socket
    sender.mourned_at_bytes.reset();
    const auto grant = shares_.on_marker(now_ns_, key_of(packet.sender), *packet.marker);
    check_books();
    if (grant && !random_.chance(loss_)) answer(packet, *grant);
  } else if (packet.life == sender.life) {
    answer(packet, std::nullopt);
  }
}

// An acknowledgement, or a grant. Grants may overtake each other where packets do.
void WindowWorld::answer(const Packet& packet, std::optional<roce::WindowGrant> grant) {
  const std::size_t number = packet.sender;
  const std::uint64_t jitter_ns = reorders_ ? random_.between(0, 30 * kMicrosecondNs) : 0;
  at(now_ns_ + senders_[number].path_ns + jitter_ns, [this, number, grant] {
    Sender& sender = senders_[number];
    if (sender.dead) return;
    const auto deliver = [this, number, grant] {
      Sender& awake = senders_[number];
      const bool news =
          grant ? awake.window->on_grant(now_ns_, *grant) : awake.window->on_packet(now_ns_, true);
      if (news) schedule_step(number, now_ns_);
    };
    if (now_ns_ >= sender.asleep_until_ns) return deliver();
    at(sender.asleep_until_ns, deliver);
  });
}

void WindowWorld::misfortune() {
  const std::size_t number = random_.between(0, senders_.size() - 1);
  Sender& sender = senders_[number];
  if (sender.window == nullptr || sender.dead) return;
  switch (random_.between(0, 3)) {
    case 0:
      sender.dead = true;
      ++outcome_.deaths;
      break;
    case 1:  // once, or its minima would add up
      if (sender.life > 1) break;
      ++outcome_.restarts;
      start(number);
      break;
    case 2:  // stopped as by a signal: it goes on with what it knew
      sender.asleep_until_ns = now_ns_ + random_.between(0, 3 * kSecondNs);
      schedule_step(number, sender.asleep_until_ns);
      break;
    default:  // silent, then it has something to say again
      at(now_ns_ + random_.between(0, 3 * kSecondNs), [this, number] {
        Sender& again = senders_[number];
        again.backlog_bytes += 200 * again.packet_bytes;
        schedule_step(number, now_ns_);
      });
  }
}

void WindowWorld::check_books() {
  if (shares_.promised_units() > shares_.capacity_units()) fail("more is promised than the socket can hold");
  for (std::size_t number = 0; number < senders_.size(); ++number) {
    Sender& sender = senders_[number];
    if (!sender.dead || now_ns_ < sender.renewed_ns + transport::kReclaimNs) continue;
    if (!sender.mourned_at_bytes) sender.mourned_at_bytes = taken_bytes_;
    const bool over = taken_bytes_ - *sender.mourned_at_bytes > 2 * socket_bytes_;
    if (over && shares_.promised_units(key_of(number)) > 0)
      fail("the share of a dead peer did not come back");
  }
}

void WindowWorld::check_invariants() {
  if (const char* const broken = shares_.check_invariants()) fail(broken);
  for (const Sender& sender : senders_) {
    const char* const broken = sender.window != nullptr ? sender.window->check_invariants() : nullptr;
    if (broken != nullptr) fail(broken);
  }
}

bool WindowWorld::done() const {
  return now_ns_ > 5 * kSecondNs && std::all_of(senders_.begin(), senders_.end(), [](const Sender& sender) {
           return sender.dead || (sender.window != nullptr && sender.backlog_bytes == 0);
         });
}

WindowOutcome WindowWorld::run() {
  while (outcome_.problem.empty() && !done() && now_ns_ < kLimitNs) {
    const Event event = events_.top();
    events_.pop();
    now_ns_ = event.time_ns;
    event.act();
    check_invariants();
  }
  outcome_.end_ns = now_ns_;
  if (!outcome_.problem.empty()) return outcome_;
  if (!done()) fail("somebody who could send did not get on");
  if (!socket_.empty()) return outcome_;
  now_ns_ += 3 * transport::kReclaimNs;
  shares_.on_drained(now_ns_);
  if (shares_.promised_units() > 0) fail("the share of a silent peer did not come back");
  return outcome_;
}

}  // namespace gdx::sim
