#include "tests/sim/connector/world.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

namespace gdx::sim {

namespace {

constexpr std::uint64_t kMicrosecondNs = 1'000;
constexpr std::uint64_t kMillisecondNs = 1'000'000;
constexpr std::uint64_t kSecondNs = 1'000'000'000;
constexpr std::uint64_t kTrafficNs = 2 * kSecondNs;
constexpr std::uint64_t kLimitNs = 20 * kSecondNs;
constexpr std::uint64_t kLeastTickNs = 100 * kMicrosecondNs;  // between ticks of a rank
constexpr std::uint64_t kTeam = 0x7465616d;
constexpr std::uint32_t kHungForGood = ~0u;

}  // namespace

void ConnectorOutcome::add(const ConnectorOutcome& other) {
  used += other.used;
  ready += other.ready;
  gone += other.gone;
  crossed += other.crossed;
  letters += other.letters;
  dials += other.dials;
  breaks += other.breaks;
  deaths += other.deaths;
  busy += other.busy;
  refusals += other.refusals;
  longest_ns = std::max(longest_ns, other.longest_ns);
}

// One rank: its connector, and that connector's port.
class ConnectorWorld::Rank final : public ConnectorPort {
 public:
  Rank(ConnectorWorld& world, const ConnectorPlace& own)
      : place(own), machine(own, world.rules_, *this), world_(world) {}

  Result<EndpointAddress> create(std::uint32_t rank, std::uint32_t lane) override {
    return world_.create(place.rank, rank, lane);
  }
  Result<void> connect(std::uint32_t rank, std::uint32_t lane, const EndpointAddress& peer) override {
    return world_.connect(place.rank, rank, lane, peer);
  }
  void ready(std::uint32_t rank, std::uint32_t lane) override { world_.ready(place.rank, rank, lane); }
  void gone(std::uint32_t rank, std::uint32_t lane, const Error& why) override {
    world_.gone(place.rank, rank, lane, why);
  }
  ChannelId dial(std::uint32_t rank) override { return world_.dial(place.rank, rank); }
  void send(ChannelId channel, std::uint32_t rank, const ConnectorLetter& letter) override {
    world_.send(place.rank, channel, rank, letter);
  }
  void close(ChannelId channel) override { world_.close(place.rank, channel); }

  ConnectorPlace place;
  Connector machine;
  bool dead = false;
  bool vanished = false;  // dead, and nobody is told
  std::uint64_t asleep_until_ns = 0;
  std::uint64_t tick_ns = ~std::uint64_t{0};
  std::uint32_t dialled = 0;

 private:
  ConnectorWorld& world_;
};

ConnectorWorld::ConnectorWorld(std::uint64_t seed, std::uint32_t ranks)
    : random_(seed),
      lanes_(static_cast<std::uint32_t>(random_.between(1, 3))),
      large_(ranks != 0),
      breaks_(random_.chance(0.4)   ? 0
              : random_.chance(0.5) ? 0.02
                                    : 0.1),
      trouble_(random_.chance(0.5) ? 0 : 0.1),
      base_delay_ns_(random_.between(20, 5000) * kMicrosecondNs) {
  // Few channels serve few ranks in time.
  rules_.most_dialled =
      static_cast<std::uint32_t>(!large_ && random_.chance(0.5) ? random_.between(2, 4) : 64);
  const auto count = ranks != 0 ? ranks : static_cast<std::uint32_t>(random_.between(2, 24));
  ranks_.reserve(count);
  for (std::uint32_t rank = 0; rank < count; ++rank) {
    ranks_.push_back(std::make_unique<Rank>(*this, ConnectorPlace{kTeam, rank, count, lanes_}));
  }
  plan_traffic();
  if (random_.chance(0.2)) plan_hub();
  plan_misfortune();
}

ConnectorWorld::~ConnectorWorld() = default;

void ConnectorWorld::expect(bool holds, const std::string& what) {
  if (!holds && outcome_.problem.empty()) {
    outcome_.problem =
        fmt::format("{} (at {:.6f} s)", what, static_cast<double>(now_ns_) / static_cast<double>(kSecondNs));
  }
}

void ConnectorWorld::at(std::uint64_t time_ns, std::uint32_t rank, std::function<void()> act) {
  events_.push({time_ns, order_++, rank, std::move(act)});
}

void ConnectorWorld::plan_traffic() {
  const auto last = static_cast<std::uint32_t>(ranks_.size() - 1);
  const std::uint64_t asks = large_ ? 4 * ranks_.size() : random_.between(1, 4 * ranks_.size());
  // Often in bursts, in which many ranks ask at once.
  const bool bursts = random_.chance(0.5);
  for (std::uint64_t i = 0; i < asks; ++i) {
    const auto a = static_cast<std::uint32_t>(random_.between(0, last));
    const auto b = static_cast<std::uint32_t>(random_.between(0, last));
    const auto lane = static_cast<std::uint32_t>(random_.between(0, lanes_ - 1));
    const std::uint64_t time_ns = now_ns_ + (bursts ? random_.between(0, 3) * kTrafficNs / 4 : 0) +
                                  random_.between(0, bursts ? kMillisecondNs : kTrafficNs);
    at(time_ns, a, [this, a, b, lane] { ask(a, b, lane); });
    if (random_.chance(0.3)) {
      at(time_ns + random_.between(0, 4 * base_delay_ns_), b, [this, a, b, lane] { ask(b, a, lane); });
    }
  }
}

// One rank asks for all at once, as the root of a broadcast does.
void ConnectorWorld::plan_hub() {
  const auto hub = static_cast<std::uint32_t>(random_.between(0, ranks_.size() - 1));
  const std::uint64_t time_ns = now_ns_ + random_.between(0, kTrafficNs);
  for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    at(time_ns + random_.between(0, kMillisecondNs), hub, [this, hub, rank] { ask(hub, rank, 0); });
  }
}

void ConnectorWorld::plan_misfortune() {
  const auto last = static_cast<std::uint32_t>(ranks_.size() - 1);
  const auto any = [&] { return static_cast<std::uint32_t>(random_.between(0, last)); };
  if (random_.chance(0.4)) {
    for (std::uint64_t i = random_.between(1, std::min<std::uint64_t>(6, last)); i > 0; --i) {
      const std::uint32_t rank = any();
      const bool vanishes = random_.chance(0.5);
      const std::uint64_t time_ns = random_.chance(0.3) ? 0 : random_.between(0, kTrafficNs);
      at(now_ns_ + time_ns, rank, [this, rank, vanishes] { die(rank, vanishes); });
    }
  }
  if (random_.chance(0.3)) {
    slept_ns_ = 300 * kMillisecondNs;
    for (std::uint64_t i = random_.between(1, 3); i > 0; --i) {
      const std::uint32_t rank = any();
      at(now_ns_ + random_.between(0, kTrafficNs), rank,
         [this, rank] { ranks_[rank]->asleep_until_ns = now_ns_ + random_.between(1, slept_ns_ / 3); });
    }
  }
  if (random_.chance(0.15)) {
    cut_ns_ = now_ns_ + random_.between(0, kTrafficNs);
    for (std::uint64_t i = random_.between(1, 4); i > 0; --i) {
      const std::uint32_t a = any();
      const std::uint32_t b = any();
      cut_.insert({std::min(a, b), std::max(a, b)});
    }
  }
}

bool ConnectorWorld::cut(std::uint32_t a, std::uint32_t b) const {
  return now_ns_ >= cut_ns_ && cut_.count({std::min(a, b), std::max(a, b)}) != 0;
}

ConnectorWorld::End& ConnectorWorld::end_of(std::uint32_t owner, std::uint32_t peer, std::uint32_t lane) {
  const auto [entry, is_new] = ends_.try_emplace({owner, peer, lane});
  if (is_new) {
    entry->second.begun_ns = now_ns_;
    if (random_.chance(trouble_)) {
      entry->second.refuses = random_.chance(0.3);
      entry->second.busy_left =
          random_.chance(0.1) ? kHungForGood : static_cast<std::uint32_t>(random_.between(1, 4));
    }
  }
  return entry->second;
}

void ConnectorWorld::ask(std::uint32_t rank, std::uint32_t peer, std::uint32_t lane) {
  if (ranks_[rank]->dead) return;
  end_of(rank, peer, lane).asked = true;
  ranks_[rank]->machine.ask(now_ns_, peer, lane);
}

// A process that ends closes its sockets; one whose machine vanishes does not.
void ConnectorWorld::die(std::uint32_t rank, bool vanishes) {
  Rank& dead = *ranks_[rank];
  if (dead.dead) return;
  dead.dead = true;
  dead.vanished = vanishes;
  ++outcome_.deaths;
  for (auto& [channel, link] : links_) {
    for (const int side : {0, 1}) {
      if (link.rank[side] != rank) continue;
      link.ended[side] = true;
      if (!vanishes) report_loss(channel, 1 - side, arrival_ns(link, side), "it closed its connection");
    }
  }
}

void ConnectorWorld::report_loss(ChannelId channel, int side, std::uint64_t time_ns, const char* why,
                                 Status status) {
  at(time_ns, links_[channel].rank[side], [this, channel, side, why, status] {
    Link& link = links_[channel];
    if (link.ended[side]) return;
    link.ended[side] = true;
    if (!link.known[side]) return;
    Rank& rank = *ranks_[link.rank[side]];
    if (side == 0) --rank.dialled;
    rank.machine.lost(channel, {status, why});
  });
}

void ConnectorWorld::break_link(ChannelId channel) {
  Link& link = links_[channel];
  if (link.broken) return;
  link.broken = true;
  ++outcome_.breaks;
  report_loss(channel, 0, now_ns_ + delay_ns(), "it reset its connection");
  report_loss(channel, 1, now_ns_ + delay_ns(), "it reset its connection");
}

std::uint64_t ConnectorWorld::delay_ns() {
  const std::uint64_t delay_ns = random_.between(base_delay_ns_ / 2, base_delay_ns_ * 2);
  return random_.chance(0.02) ? delay_ns + random_.between(0, 100) * kMillisecondNs : delay_ns;
}

// A channel keeps the order of each direction.
std::uint64_t ConnectorWorld::arrival_ns(Link& link, int side) {
  return link.arrives_ns[side] = std::max(link.arrives_ns[side], now_ns_ + delay_ns());
}

ChannelId ConnectorWorld::dial(std::uint32_t owner, std::uint32_t peer) {
  const ChannelId channel = ++last_channel_;
  Link& link = links_[channel];
  link.rank[0] = owner;
  link.rank[1] = peer;
  link.known[0] = true;
  ++outcome_.dials;
  ++ranks_[owner]->dialled;
  expect(owner != peer, "a rank dials itself");
  expect(ranks_[owner]->dialled <= rules_.most_dialled, "a rank dials more channels at once than it may");
  // The listener's system answers, asleep or not.
  at(now_ns_ + delay_ns() + delay_ns(), owner, [this, channel, owner, peer] {
    Link& dialled = links_[channel];
    if (dialled.ended[0] || dialled.broken || ranks_[peer]->vanished || cut(owner, peer)) return;
    if (ranks_[peer]->dead)
      return report_loss(channel, 0, now_ns_, "no answer: Connection refused", Status::kNotFound);
    ranks_[owner]->machine.opened(channel);
  });
  if (random_.chance(breaks_)) {
    at(now_ns_ + delay_ns(), owner, [this, channel] { break_link(channel); });
  }
  return channel;
}

void ConnectorWorld::send(std::uint32_t owner, ChannelId channel, std::uint32_t to,
                          const ConnectorLetter& letter) {
  Link& link = links_[channel];
  const int side = link.rank[0] == owner ? 0 : 1;
  expect(link.rank[side] == owner && link.rank[1 - side] == to, "a letter went to another rank");
  expect(!link.ended[side], "a letter went on a channel that had ended");
  ++outcome_.letters;
  const auto message = encode_letter(letter, ranks_[owner]->place, to);
  at(arrival_ns(link, side), to, [this, channel, side, to, message] {
    Link& sent = links_[channel];
    if (sent.broken || sent.ended[1 - side] || ranks_[to]->dead || cut(sent.rank[0], sent.rank[1])) return;
    sent.known[1 - side] = true;
    const auto received = decode_letter(std::as_bytes(std::span(&message, 1)), ranks_[to]->place);
    if (!received) return expect(false, "a letter was refused: it " + received.error().message);
    ranks_[to]->machine.received(now_ns_, channel, *received);
  });
  if (random_.chance(breaks_)) {
    at(now_ns_ + random_.between(0, 2 * base_delay_ns_), to, [this, channel] { break_link(channel); });
  }
}

// Sometimes what was sent is lost with it, as when the other end has sent something that nobody read.
void ConnectorWorld::close(std::uint32_t owner, ChannelId channel) {
  Link& link = links_[channel];
  const int side = link.rank[0] == owner ? 0 : 1;
  expect(!link.ended[side], "a channel was closed twice");
  link.ended[side] = true;
  if (side == 0) --ranks_[owner]->dialled;
  if (random_.chance(breaks_)) link.broken = true;
  if (ranks_[owner]->vanished || cut(link.rank[0], link.rank[1])) return;
  report_loss(channel, 1 - side, arrival_ns(link, side), "it closed its connection");
}

Result<EndpointAddress> ConnectorWorld::create(std::uint32_t owner, std::uint32_t peer, std::uint32_t lane) {
  End& end = end_of(owner, peer, lane);
  expect(!end.endpoint, fmt::format("rank {} makes a second endpoint for rank {}", owner, peer));
  expect(!end.gone, fmt::format("rank {} makes an endpoint for rank {}, which is gone", owner, peer));
  if (end.busy_left != 0 && !end.refuses) {
    if (end.busy_left != kHungForGood) --end.busy_left;
    ++outcome_.busy;
    return fail(Status::kBusy, "no staging slots at present");
  }
  if (end.refuses && random_.chance(0.5)) {
    ++outcome_.refusals;
    return fail(Status::kNoMemory, "no queue pair is left");
  }
  Endpoint endpoint;
  endpoint.address.version = kEndpointAddressVersion;
  endpoint.address.qpn = static_cast<std::uint32_t>(owners_.size() + 1);
  endpoint.address.psn = static_cast<std::uint32_t>(random_.between(0, 0xffffff));
  owners_[endpoint.address.qpn] = {owner, peer, lane};
  end.endpoint = endpoint;
  return endpoint.address;
}

Result<void> ConnectorWorld::connect(std::uint32_t owner, std::uint32_t peer, std::uint32_t lane,
                                     const EndpointAddress& to) {
  End& end = end_of(owner, peer, lane);
  if (!end.endpoint || end.gone || end.endpoint->connected_qpn != 0) {
    expect(false, fmt::format("rank {} connects an endpoint that cannot be connected", owner));
    return {};
  }
  const auto theirs = owners_.find(to.qpn);
  expect(theirs != owners_.end() && theirs->second == Key{peer, owner, lane} &&
             ends_[theirs->second].endpoint && ends_[theirs->second].endpoint->address == to,
         fmt::format("rank {} connects to an endpoint that rank {} did not make for it", owner, peer));
  if (end.refuses) {
    ++outcome_.refusals;
    return fail(Status::kSystem, "the HCA refused a transition");
  }
  end.endpoint->connected_qpn = to.qpn;
  return {};
}

void ConnectorWorld::check_in_time(const Key& key, const End& end) {
  const auto [owner, peer, lane] = key;
  expect(now_ns_ <= end.begun_ns + rules_.deadline_ns + kLeastTickNs + slept_ns_,
         fmt::format("rank {} waited for rank {} beyond the deadline", owner, peer));
}

void ConnectorWorld::ready(std::uint32_t owner, std::uint32_t peer, std::uint32_t lane) {
  End& end = end_of(owner, peer, lane);
  check_in_time({owner, peer, lane}, end);
  expect(!end.ready && !end.gone, fmt::format("rank {} is made ready for rank {} too late", peer, owner));
  end.ready = true;
  ++outcome_.ready;
  if (end.asked) outcome_.longest_ns = std::max(outcome_.longest_ns, now_ns_ - end.begun_ns);
  const End& other = end_of(peer, owner, lane);
  const bool joined = end.endpoint && other.endpoint &&
                      end.endpoint->connected_qpn == other.endpoint->address.qpn &&
                      other.endpoint->connected_qpn == end.endpoint->address.qpn;
  expect(joined, fmt::format("rank {} may post to rank {}, whose endpoint cannot receive", owner, peer));
}

// A pair may fail for each lane alone, if one of its hosts refuses; all else concerns both ranks.
bool ConnectorWorld::excused(std::uint32_t a, std::uint32_t b, std::uint32_t lane) {
  const auto hopeless = [&](std::uint32_t owner, std::uint32_t peer) {
    const auto end = ends_.find({owner, peer, lane});
    return end != ends_.end() && (end->second.refuses || end->second.busy_left == kHungForGood);
  };
  return ranks_[a]->dead || ranks_[b]->dead || cut(a, b) || hopeless(a, b) || hopeless(b, a);
}

void ConnectorWorld::gone(std::uint32_t owner, std::uint32_t peer, std::uint32_t lane, const Error& why) {
  End& end = end_of(owner, peer, lane);
  check_in_time({owner, peer, lane}, end);
  expect(!end.gone, fmt::format("rank {} is gone twice to rank {}", peer, owner));
  expect(excused(owner, peer, lane),
         fmt::format("rank {} is gone to rank {} without a cause: {}", peer, owner, why.message));
  expect(why.message.find(fmt::format("rank {} ", peer)) == 0,
         fmt::format("a message does not name rank {}: {}", peer, why.message));
  end.gone = true;
  if (end.endpoint) end.endpoint->destroyed = true;
  ++outcome_.gone;
}

void ConnectorWorld::after_event(std::uint32_t number) {
  Rank& rank = *ranks_[number];
  if (rank.dead) return;
  const std::uint64_t next_ns = std::max(rank.machine.next_ns(), now_ns_);
  if (next_ns >= rank.tick_ns || next_ns >= kLimitNs) return;
  rank.tick_ns = next_ns;
  at(next_ns, number, [this, number, next_ns] {
    Rank& ticks = *ranks_[number];
    if (ticks.dead || ticks.tick_ns != next_ns) return;
    ticks.machine.tick(now_ns_);
    ticks.tick_ns = ~std::uint64_t{0};
    const std::uint64_t again_ns = ticks.machine.next_ns();
    if (again_ns > now_ns_) return;
    // It waits for something that this tick did not end.
    expect(false, fmt::format("rank {} has something due that its tick does not do", number));
  });
}

ConnectorOutcome ConnectorWorld::run() {
  while (!events_.empty() && outcome_.problem.empty()) {
    Event event = events_.top();
    events_.pop();
    if (event.time_ns > kLimitNs) break;
    now_ns_ = std::max(now_ns_, event.time_ns);
    Rank& rank = *ranks_[event.rank];
    if (rank.asleep_until_ns > now_ns_) {
      event.time_ns = rank.asleep_until_ns;
      events_.push(std::move(event));
      continue;
    }
    event.act();
    after_event(event.rank);
  }
  if (outcome_.problem.empty()) check_end();
  return outcome_;
}

void ConnectorWorld::check_end() {
  check_pairs();
  check_links();
}

void ConnectorWorld::check_pairs() {
  std::set<Key> used;
  for (const auto& [key, end] : ends_) {
    const auto [owner, peer, lane] = key;
    if (end.asked) used.insert({std::min(owner, peer), std::max(owner, peer), lane});
  }
  outcome_.used = used.size();
  const std::vector<std::pair<Key, End>> all(ends_.begin(), ends_.end());
  for (const auto& [key, end] : all) {
    const auto [owner, peer, lane] = key;
    expect(used.count({std::min(owner, peer), std::max(owner, peer), lane}) != 0,
           fmt::format("ranks {} and {} were connected, and nobody asked", owner, peer));
    if (owner < peer && end.asked && end_of(peer, owner, lane).asked) ++outcome_.crossed;
    if (ranks_[owner]->dead) continue;
    expect(end.ready || end.gone || !(end.asked || end.endpoint),
           fmt::format("rank {} waits for rank {} for ever", owner, peer));
    const bool both = used.count({std::min(owner, peer), std::max(owner, peer), lane}) != 0;
    if (both && !excused(owner, peer, lane)) {
      expect(end.ready && !end.gone && end_of(peer, owner, lane).ready,
             fmt::format("ranks {} and {} live, and are not connected", owner, peer));
    }
  }
}

// A machine that vanished leaves at most the channel that it had dialled.
void ConnectorWorld::check_links() {
  std::set<std::pair<std::uint32_t, std::uint32_t>> left;
  for (const auto& [channel, link] : links_) {
    for (const int side : {0, 1}) {
      const std::uint32_t own = link.rank[side];
      const std::uint32_t peer = link.rank[1 - side];
      if (link.ended[side] || !link.known[side] || ranks_[own]->dead) continue;
      const bool silent = side == 1 && (ranks_[peer]->vanished || cut(own, peer));
      expect(silent && left.insert({own, peer}).second,
             fmt::format("rank {} keeps a channel with rank {}", own, peer));
    }
  }
}

}  // namespace gdx::sim
