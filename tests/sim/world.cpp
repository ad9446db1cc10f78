#include "tests/sim/world.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <queue>
#include <vector>

#include "driver-shim/softhca/transport/icrc.h"
#include "tests/sim/ledger.h"
#include "tests/sim/node.h"
#include "tests/sim/random.h"

namespace gdx::sim {
namespace {

using mlx5::Syndrome;
using transport::RcConfig;

constexpr std::uint64_t kMicrosecondNs = 1000;
constexpr std::uint64_t kNever = transport::kNever;
constexpr std::uint64_t kSecondNs = 1'000'000'000;
constexpr std::uint64_t kAckTimeoutUnitNs = 4096;
constexpr std::uint64_t kPauseIntervalNs = 3000 * kMicrosecondNs;

struct Scenario {
  double loss = 0, corruption = 0, duplication = 0, reordering = 0, pauses = 0;
  bool calm = false;  // none of them, no death and no flaw
  std::uint64_t delay_ns = 0, jitter_ns = 0;
  std::uint32_t operations = 0;     // of each node
  std::uint64_t death_ns = kNever;  // of node 1
  Flaw flaw = Flaw::kNone;          // in what node 0 posts
  std::uint32_t flawed_operation = 0;
  std::array<RcConfig, 2> configs;
};

Scenario make_scenario(Random& random) {
  Scenario scenario;
  const double harshness = random.chance(0.2) ? 0 : 0.08;
  scenario.loss = harshness * static_cast<double>(random.between(0, 10)) / 10;
  scenario.corruption = harshness * static_cast<double>(random.between(0, 10)) / 40;
  scenario.duplication = harshness * static_cast<double>(random.between(0, 10)) / 10;
  scenario.reordering = harshness * static_cast<double>(random.between(0, 10)) / 10;
  scenario.pauses = random.chance(0.3) ? 0.02 : 0;
  scenario.delay_ns = random.between(1, 20) * kMicrosecondNs;
  scenario.jitter_ns = random.between(0, 2) * random.between(1, 30) * kMicrosecondNs;
  scenario.operations = static_cast<std::uint32_t>(random.between(5, 60));
  if (random.chance(0.1)) scenario.death_ns = random.between(1, 1500) * kMicrosecondNs;
  if (random.chance(0.2)) {
    scenario.flaw = static_cast<Flaw>(random.between(1, 6));
    scenario.flawed_operation = static_cast<std::uint32_t>(random.between(0, scenario.operations - 1));
  }
  scenario.calm =
      harshness == 0 && scenario.pauses == 0 && scenario.death_ns == kNever && scenario.flaw == Flaw::kNone;
  RcConfig base;
  base.mtu_bytes = 256u << random.between(0, 2);
  base.ack_timeout = static_cast<std::uint8_t>(random.between(5, 7));
  base.min_rnr_timer = static_cast<std::uint8_t>(random.between(1, 10));
  base.remote_write = base.remote_read = base.remote_atomic = true;
  const std::uint8_t depth = static_cast<std::uint8_t>(random.between(1, 4));
  base.max_rd_atomic = base.max_dest_rd_atomic = depth;
  static constexpr std::array<std::uint32_t, 4> kWindows{4, 16, 128, 0};
  base.max_unacked_packets = kWindows[random.between(0, 3)];
  scenario.configs.fill(base);
  for (std::uint32_t side = 0; side < 2; ++side) {
    scenario.configs[side].local_qpn = 0x10 + side;
    scenario.configs[side].remote_qpn = 0x11 - side;
    // Half of all runs wrap.
    const auto psn = static_cast<std::uint32_t>(random.chance(0.5) ? random.between(0xffff80, 0xffffff)
                                                                   : random.between(0, 0xffffff));
    scenario.configs[side].send_psn = psn;
    scenario.configs[1 - side].receive_psn = psn;
  }
  return scenario;
}

std::string describe(const Scenario& s) {
  return "loss " + std::to_string(s.loss) + ", corruption " + std::to_string(s.corruption) +
         ", duplication " + std::to_string(s.duplication) + ", reordering " + std::to_string(s.reordering) +
         ", delay " + std::to_string(s.delay_ns) + " ns, jitter " + std::to_string(s.jitter_ns) +
         " ns, operations " + std::to_string(s.operations) + ", mtu " +
         std::to_string(s.configs[0].mtu_bytes) + ", window " +
         std::to_string(s.configs[0].max_unacked_packets) + ", depth " +
         std::to_string(s.configs[0].max_rd_atomic) + ", flaw " + std::to_string(static_cast<int>(s.flaw)) +
         " in operation " + std::to_string(s.flawed_operation) +
         (s.death_ns == kNever ? "" : ", death at " + std::to_string(s.death_ns) + " ns");
}

std::uint32_t icrc_of(std::size_t from, std::span<const std::byte> bth_to_padding) {
  constexpr std::uint32_t kFirstAddress = 0x0a000001;
  constexpr std::uint16_t kSourcePort = 49152;
  const auto side = static_cast<std::uint32_t>(from);
  return softhca::transport::icrc_ipv4(kFirstAddress + side, kFirstAddress + 1 - side, kSourcePort, 0,
                                       bth_to_padding);
}

void append_icrc(std::size_t from, std::vector<std::byte>& datagram) {
  const std::uint32_t icrc = icrc_of(from, datagram);
  datagram.resize(datagram.size() + sizeof icrc);
  std::memcpy(datagram.data() + datagram.size() - sizeof icrc, &icrc, sizeof icrc);
}

bool icrc_is_right(std::size_t from, std::span<const std::byte> datagram) {
  std::uint32_t icrc;
  std::memcpy(&icrc, datagram.last(sizeof icrc).data(), sizeof icrc);
  return icrc == icrc_of(from, datagram.first(datagram.size() - sizeof icrc));
}

class World {
 public:
  explicit World(std::uint64_t seed) : random_(seed), scenario_(make_scenario(random_)) {
    for (std::size_t side = 0; side < 2; ++side) {
      std::vector<std::byte> memory(kRegionBytes);
      for (std::byte& byte : memory) byte = static_cast<std::byte>(random_.next());
      ledgers_[1 - side] = std::make_unique<Ledger>(memory);
      nodes_[side] = std::make_unique<Node>(
          scenario_.configs[side], std::move(memory),
          [this, side](std::vector<std::byte> datagram) { transmit(side, std::move(datagram)); });
    }
    for (std::size_t side = 0; side < 2; ++side) {
      nodes_[side]->attach(*nodes_[1 - side], *ledgers_[side], *ledgers_[1 - side]);
      schedule(0, side, Event::Kind::kPost);
      schedule(0, side, Event::Kind::kReplenish);
    }
  }

  Outcome run();

 private:
  struct Event {
    enum class Kind : std::uint8_t { kDatagram, kPost, kReplenish, kPump };
    std::uint64_t time_ns = 0;
    std::uint64_t order = 0;  // ties are broken by age
    std::size_t side = 0;
    Kind kind = Kind::kPump;
    std::vector<std::byte> datagram;

    bool operator>(const Event& other) const {
      return time_ns != other.time_ns ? time_ns > other.time_ns : order > other.order;
    }
  };

  [[nodiscard]] bool is_dead(std::size_t side) const { return side == 1 && now_ns_ >= scenario_.death_ns; }
  void schedule(std::uint64_t time_ns, std::size_t side, Event::Kind kind,
                std::vector<std::byte> datagram = {});
  void transmit(std::size_t from, std::vector<std::byte> datagram);
  void damage(std::vector<std::byte>& datagram);
  [[nodiscard]] std::uint64_t arrival_ns();
  void on_datagram(std::size_t side, std::span<const std::byte> datagram);
  void dispatch(Event event);
  void post_some(std::size_t side);
  void after_event(std::size_t side);
  [[nodiscard]] bool done() const;
  [[nodiscard]] std::uint64_t limit_ns() const;
  [[nodiscard]] std::string verdict() const;
  [[nodiscard]] std::string verdict_of_error(std::size_t side) const;

  Random random_;
  Scenario scenario_;
  std::array<std::unique_ptr<Ledger>, 2> ledgers_;  // [side]: what that side posts
  std::array<std::unique_ptr<Node>, 2> nodes_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::array<std::uint64_t, 2> paused_until_ns_{};
  std::array<std::uint64_t, 2> next_pause_ns_{};
  std::array<bool, 2> pump_scheduled_{};
  std::uint64_t now_ns_ = 0;
  std::uint64_t order_ = 0;
  std::uint64_t last_post_ns_ = 0;
  Outcome outcome_;
};

void World::schedule(std::uint64_t time_ns, std::size_t side, Event::Kind kind,
                     std::vector<std::byte> datagram) {
  events_.push({time_ns, order_++, side, kind, std::move(datagram)});
}

void World::transmit(std::size_t from, std::vector<std::byte> datagram) {
  ++outcome_.packets;
  if (random_.chance(scenario_.loss)) {
    ++outcome_.dropped;
    return;
  }
  append_icrc(from, datagram);
  if (random_.chance(scenario_.corruption)) damage(datagram);
  if (random_.chance(scenario_.duplication)) {
    ++outcome_.repeated;
    // Some copies arrive long after the original has been dealt with.
    const std::uint64_t lag_ns = random_.chance(0.3) ? random_.between(0, 300 * kMicrosecondNs) : 0;
    schedule(arrival_ns() + lag_ns, 1 - from, Event::Kind::kDatagram, datagram);
  }
  schedule(arrival_ns(), 1 - from, Event::Kind::kDatagram, std::move(datagram));
}

void World::damage(std::vector<std::byte>& datagram) {
  ++outcome_.damaged;
  for (std::uint64_t bits = random_.between(1, 3); bits > 0; --bits) {
    const std::uint64_t bit = random_.between(0, 8 * datagram.size() - 1);
    datagram[bit / 8] ^= std::byte{1} << bit % 8;
  }
}

// Without reordering packets keep their order: the link's age breaks ties.
std::uint64_t World::arrival_ns() {
  std::uint64_t time_ns = now_ns_ + scenario_.delay_ns;
  if (random_.chance(scenario_.reordering)) {
    ++outcome_.delayed;
    time_ns += random_.between(0, scenario_.jitter_ns + 2000);
  }
  return time_ns;
}

void World::on_datagram(std::size_t side, std::span<const std::byte> datagram) {
  // Pauses are far enough apart, and short enough, that retries outlast them.
  if (now_ns_ >= next_pause_ns_[side] && random_.chance(scenario_.pauses)) {
    ++outcome_.pauses;
    paused_until_ns_[side] = now_ns_ + random_.between(0, 400) * kMicrosecondNs;
    next_pause_ns_[side] = paused_until_ns_[side] + kPauseIntervalNs;
  }
  if (!icrc_is_right(1 - side, datagram)) return;
  nodes_[side]->on_datagram(now_ns_, datagram.first(datagram.size() - roce::kIcrcBytes));
}

void World::post_some(std::size_t side) {
  Ledger& ledger = *ledgers_[side];
  const std::uint32_t mtu_bytes = scenario_.configs[side].mtu_bytes;
  std::uint64_t burst = random_.between(1, 8);
  for (; burst > 0 && ledger.posted() < scenario_.operations; --burst) {
    const bool flawed = side == 0 && ledger.posted() == scenario_.flawed_operation;
    const Flaw flaw = flawed ? scenario_.flaw : Flaw::kNone;
    if (flaw == Flaw::kLocalMemory) nodes_[side]->fail_local_memory_of(ledger.posted());
    nodes_[side]->post(ledger.post(random_, mtu_bytes, flaw));
    last_post_ns_ = now_ns_;
  }
  if (ledger.posted() < scenario_.operations) {
    schedule(now_ns_ + random_.between(0, 200) * kMicrosecondNs, side, Event::Kind::kPost);
  }
}

void World::dispatch(Event event) {
  const std::size_t side = event.side;
  if (is_dead(side)) return;
  if (now_ns_ < paused_until_ns_[side]) {
    event.time_ns = paused_until_ns_[side];
    events_.push(std::move(event));
    return;
  }
  switch (event.kind) {
    case Event::Kind::kDatagram: on_datagram(side, event.datagram); break;
    case Event::Kind::kPost: post_some(side); break;
    case Event::Kind::kReplenish:
      nodes_[side]->post_receives(static_cast<std::uint32_t>(random_.between(0, 4)));
      if (!done())
        schedule(now_ns_ + random_.between(1, 300) * kMicrosecondNs, side, Event::Kind::kReplenish);
      break;
    case Event::Kind::kPump: pump_scheduled_[side] = false; break;
  }
  after_event(side);
}

void World::after_event(std::size_t side) {
  Node& node = *nodes_[side];
  if (node.next_deadline_ns() <= now_ns_) node.on_timer(now_ns_);
  node.pump(now_ns_, static_cast<std::uint32_t>(random_.between(1, 16)));
  if (pump_scheduled_[side]) return;
  if (node.can_send(now_ns_)) {
    pump_scheduled_[side] = true;
    schedule(now_ns_ + random_.between(200, 3000), side, Event::Kind::kPump);
  }
}

bool World::done() const {
  for (std::size_t side = 0; side < 2; ++side) {
    if (is_dead(side)) continue;
    if (ledgers_[side]->posted() < scenario_.operations || !ledgers_[side]->all_completed()) return false;
  }
  return true;
}

// By then every promise is due. With a dead peer: all retries, each of up to four timeouts, and some waits.
std::uint64_t World::limit_ns() const {
  if (scenario_.death_ns == kNever) return 5 * kSecondNs;
  const RcConfig& config = scenario_.configs[0];
  const std::uint64_t timeout_ns = kAckTimeoutUnitNs << config.ack_timeout;
  return std::max(scenario_.death_ns, last_post_ns_) + (config.retry_count + 2u) * 4 * timeout_ns +
         transport::rnr_timer_ns(config.min_rnr_timer) + 2000 * kMicrosecondNs;
}

Outcome World::run() {
  while (!done() && now_ns_ < limit_ns()) {
    std::uint64_t next_ns = events_.empty() ? kNever : events_.top().time_ns;
    std::size_t timer_side = 2;
    for (std::size_t side = 0; side < 2; ++side) {
      if (is_dead(side)) continue;
      const std::uint64_t due_ns = std::max(nodes_[side]->next_deadline_ns(), paused_until_ns_[side]);
      if (nodes_[side]->next_deadline_ns() != kNever && due_ns < next_ns) {
        next_ns = due_ns;
        timer_side = side;
      }
    }
    if (next_ns == kNever) break;
    now_ns_ = std::max(now_ns_, next_ns);
    if (timer_side < 2) {
      after_event(timer_side);
    } else {
      Event event = events_.top();
      events_.pop();
      dispatch(std::move(event));
    }
    if (!nodes_[0]->problem().empty() || !nodes_[1]->problem().empty()) break;
  }
  // Late copies of packets must not undo anything.
  while (done() && !events_.empty() && nodes_[0]->problem().empty() && nodes_[1]->problem().empty()) {
    now_ns_ = std::max(now_ns_, events_.top().time_ns);
    Event event = events_.top();
    events_.pop();
    dispatch(std::move(event));
  }
  outcome_.problem = verdict();
  outcome_.scenario = describe(scenario_);
  outcome_.finished = done();
  outcome_.deaths = is_dead(1) ? 1 : 0;
  for (std::size_t side = 0; side < 2; ++side) {
    const auto& counters = nodes_[side]->requester().counters();
    outcome_.retransmitted += counters.retransmitted_packets;
    outcome_.timeouts += counters.timeouts;
    outcome_.sequence_naks += counters.naks_received;
    outcome_.receiver_not_ready += counters.rnr_naks_received;
    outcome_.completions += ledgers_[side]->succeeded();
    outcome_.failures += ledgers_[side]->first_error() != Syndrome::kNone ? 1 : 0;
  }
  return outcome_;
}

std::string World::verdict() const {
  const auto name = [](std::size_t side) { return "node " + std::to_string(side) + ": "; };
  // What a node saw stopped the run, so everything else that is missing may follow from it.
  for (std::size_t side = 0; side < 2; ++side) {
    if (!nodes_[side]->problem().empty()) return name(side) + nodes_[side]->problem();
  }
  for (std::size_t side = 0; side < 2; ++side) {
    const std::string who = name(side);
    if (is_dead(side)) continue;
    if (!ledgers_[side]->all_completed()) return who + "work requests were never completed";
    if (ledgers_[side]->first_error() != Syndrome::kNone) {
      const std::string problem = verdict_of_error(side);
      if (!problem.empty()) return who + problem;
      continue;
    }
    if (scenario_.death_ns != kNever || scenario_.flaw != Flaw::kNone) continue;
    const auto& counters = nodes_[side]->requester().counters();
    if (scenario_.calm && counters.timeouts + counters.naks_received > 0) {
      return who + "had to recover on a link without faults";
    }
    if (!ledgers_[side]->all_received()) return who + "the peer never received all messages";
    const std::string memory = ledgers_[side]->check_memory(nodes_[1 - side]->memory(), ~std::uint64_t{0});
    if (!memory.empty()) return who + "finally " + memory;
  }
  if (scenario_.flaw != Flaw::kNone && !is_dead(1) && ledgers_[0]->first_error() == Syndrome::kNone) {
    return "node 0: the flawed request drew no error";
  }
  return "";
}

// An error is right only if the scenario has a cause for it.
std::string World::verdict_of_error(std::size_t side) const {
  const Ledger& ledger = *ledgers_[side];
  const Syndrome error = ledger.first_error();
  const bool peer_can_vanish = scenario_.death_ns != kNever || scenario_.flaw != Flaw::kNone;
  if (error == Syndrome::kRetryExceeded && peer_can_vanish) return "";
  if (side == 1 && error == Syndrome::kFlushed && scenario_.flaw != Flaw::kNone) return "";
  if (side == 0 && ledger.flawed() == ledger.succeeded() && error == ledger.flaw_syndrome()) return "";
  return std::string("ended in ") + mlx5::syndrome_name(error) + " after " +
         std::to_string(ledger.succeeded()) + " work requests";
}

}  // namespace

Outcome run(std::uint64_t seed) { return World(seed).run(); }

}  // namespace gdx::sim
