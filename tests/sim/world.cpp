#include "tests/sim/world.h"

#include <algorithm>
#include <array>
#include <memory>
#include <queue>
#include <utility>
#include <vector>

#include "proto/roce/codec.h"
#include "tests/sim/datagrams.h"
#include "tests/sim/ledger.h"
#include "tests/sim/link.h"
#include "tests/sim/node.h"
#include "tests/sim/random.h"
#include "tests/sim/scenario.h"

namespace gdx::sim {
namespace {

using mlx5::Syndrome;
using transport::RcConfig;

constexpr std::uint64_t kAckTimeoutUnitNs = 4096;
constexpr std::uint64_t kShortestTailNs = 10'000 * kMicrosecondNs;  // nothing but a timer takes so long
constexpr std::uint64_t kLateTailNs = 100'000 * kMicrosecondNs;
constexpr std::uint64_t kPauseIntervalNs = 3000 * kMicrosecondNs;
constexpr std::uint8_t kEndlessRnrRetry = 7;

// Packets of one queue pair on their way to its peer, counted by the link and by the peer's host.
struct PacketBook {
  std::uint64_t sent = 0;
  std::uint64_t lost = 0;
  std::uint64_t copies = 0;   // beyond the packets themselves
  std::uint64_t damaged = 0;  // and found so
  std::uint64_t late = 0;     // came to a dead host, or to a queue pair in error
  std::uint64_t under_way = 0;
};

class World {
 public:
  explicit World(Random random)
      : random_(random), scenario_(make_scenario(random_)), link_(scenario_.faults, random_, outcome_) {
    const std::size_t nodes = scenario_.configs.size();
    pools_.resize(nodes);
    packets_.resize(nodes);
    for (std::uint32_t node = 0; node < nodes; ++node) {
      std::vector<std::byte> memory(kRegionBytes);
      for (std::byte& byte : memory) byte = static_cast<std::byte>(random_.next());
      ledgers_.push_back(std::make_unique<Ledger>(node ^ 1, node, memory));
      nodes_.push_back(std::make_unique<Node>(
          node, scenario_.configs[node], scenario_.faults, std::move(memory), pools_[pool_of(node)],
          scenario_.advertises_receives(node),
          [this, node](std::vector<std::byte> datagram) { return transmit(node, std::move(datagram)); }));
    }
    // ledgers_[i] is so far about the memory of node i: from here on about what node i posts.
    for (std::size_t node = 0; node < nodes; node += 2) std::swap(ledgers_[node], ledgers_[node + 1]);
    for (std::size_t node = 0; node < nodes; ++node) {
      nodes_[node]->attach(*nodes_[node ^ 1], *ledgers_[node], *ledgers_[node ^ 1]);
      schedule(0, node, Event::Kind::kPost);
      if (pool_of(node) == node) schedule(0, node, Event::Kind::kReplenish);
    }
    pump_scheduled_.resize(nodes);
    burst_ns_.resize(nodes, kNever);
  }

  Outcome run();

 private:
  struct Event {
    enum class Kind : std::uint8_t { kDatagram, kPost, kReplenish, kPump };
    std::uint64_t time_ns = 0;
    std::uint64_t order = 0;  // ties are broken by age
    std::size_t node = 0;     // for a datagram, any node of its host: the QPN says which
    Kind kind = Kind::kPump;
    std::uint64_t sent_ns = 0;  // a datagram
    std::vector<std::byte> datagram;

    bool operator>(const Event& other) const {
      return time_ns != other.time_ns ? time_ns > other.time_ns : order > other.order;
    }
  };

  static std::size_t host_of(std::size_t node) { return node & 1; }
  [[nodiscard]] std::size_t pool_of(std::size_t node) const {
    return scenario_.shared_receives ? host_of(node) : node;
  }
  [[nodiscard]] bool is_dead(std::size_t node) const {
    return host_of(node) == 1 && now_ns_ >= scenario_.death_ns;
  }
  [[nodiscard]] std::uint64_t paused_until_ns(std::size_t node) const {
    return paused_until_ns_[host_of(node)];
  }
  void schedule(std::uint64_t time_ns, std::size_t node, Event::Kind kind,
                std::vector<std::byte> datagram = {});
  Fate transmit(std::size_t from, std::vector<std::byte> datagram);
  void on_datagram(std::size_t host, const Event& event);
  void dispatch(Event event);
  void replenish(std::size_t node);
  void post_some(std::size_t node);
  void note_burst(std::size_t node);
  void after_event(std::size_t node);
  bool step();
  [[nodiscard]] bool done() const;
  [[nodiscard]] bool troubled() const;
  [[nodiscard]] std::uint64_t limit_ns() const;
  [[nodiscard]] std::string verdict() const;
  [[nodiscard]] std::string verdict_of(std::size_t node) const;
  [[nodiscard]] std::string verdict_of_calm(std::size_t node) const;
  [[nodiscard]] std::string verdict_of_packets(std::size_t node) const;
  void count_under_way();
  [[nodiscard]] std::string verdict_of_error(std::size_t node) const;
  [[nodiscard]] std::uint64_t silent_ns(std::size_t node) const;

  Random random_;
  Scenario scenario_;
  Outcome outcome_;
  Link link_;
  std::vector<ReceivePool> pools_;
  std::vector<std::unique_ptr<Ledger>> ledgers_;  // [node]: what it posts
  std::vector<PacketBook> packets_;               // [node]: what it sends
  std::vector<std::unique_ptr<Node>> nodes_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::array<std::uint64_t, 2> paused_until_ns_{};  // [host]
  std::array<std::uint64_t, 2> next_pause_ns_{};
  std::vector<bool> pump_scheduled_;
  std::vector<std::uint64_t> burst_ns_;  // [node]: when what is not completed was posted
  std::uint64_t longest_burst_ns_ = 0;
  std::uint64_t now_ns_ = 0;
  std::uint64_t order_ = 0;
  std::uint64_t last_post_ns_ = 0;
};

void World::schedule(std::uint64_t time_ns, std::size_t node, Event::Kind kind,
                     std::vector<std::byte> datagram) {
  events_.push({time_ns, order_++, node, kind, now_ns_, std::move(datagram)});
}

Fate World::transmit(std::size_t from, std::vector<std::byte> datagram) {
  std::uint64_t carried = 0;
  const Fate fate = link_.transmit(now_ns_, host_of(from), std::move(datagram),
                                   [&](std::uint64_t time_ns, std::vector<std::byte> copy) {
                                     ++carried;
                                     schedule(time_ns, from ^ 1, Event::Kind::kDatagram, std::move(copy));
                                   });
  PacketBook& book = packets_[from];
  ++book.sent;
  book.lost += carried == 0 ? 1 : 0;
  book.copies += fate.repeated ? 1 : 0;
  return fate;
}

void World::on_datagram(std::size_t host, const Event& event) {
  // Pauses are far enough apart, and short enough, that retries outlast them.
  if (now_ns_ >= next_pause_ns_[host] && random_.chance(scenario_.pauses)) {
    ++outcome_.pauses;
    paused_until_ns_[host] = now_ns_ + random_.between(0, 400) * kMicrosecondNs;
    for (const auto& node : nodes_) node->on_pause(host, now_ns_, paused_until_ns_[host]);
    next_pause_ns_[host] = paused_until_ns_[host] + kPauseIntervalNs;
  }
  const std::span<const std::byte> inside = Link::open(1 - host, event.datagram);
  PacketBook& book = packets_[event.node ^ 1];
  if (inside.empty()) {
    ++book.damaged;
    return;
  }
  const std::uint32_t qpn = destination_qpn_of(inside);
  for (std::size_t node = host; node < nodes_.size(); node += 2) {
    if (scenario_.configs[node].local_qpn != qpn) continue;
    book.late += nodes_[node]->in_error() ? 1 : 0;
    nodes_[node]->on_datagram(now_ns_, event.sent_ns, inside);
  }
}

void World::post_some(std::size_t node) {
  Ledger& ledger = *ledgers_[node];
  // A patient one waits, so that each burst ends in a tail.
  if (scenario_.patient && !ledger.all_completed()) {
    return schedule(now_ns_ + 100 * kMicrosecondNs, node, Event::Kind::kPost);
  }
  burst_ns_[node] = now_ns_;
  const std::uint32_t mtu_bytes = scenario_.configs[node].mtu_bytes;
  std::uint64_t burst = random_.between(1, 8);
  for (; burst > 0 && ledger.posted() < scenario_.operations; --burst) {
    const bool flawed = node == 0 && ledger.posted() == scenario_.flawed_operation;
    const Flaw flaw = flawed ? scenario_.flaw : Flaw::kNone;
    if (flaw == Flaw::kLocalMemory) nodes_[node]->fail_local_memory_of(ledger.posted());
    nodes_[node]->post(ledger.post(random_, mtu_bytes, flaw));
    last_post_ns_ = now_ns_;
  }
  if (ledger.posted() < scenario_.operations) {
    schedule(now_ns_ + random_.between(0, 200) * kMicrosecondNs, node, Event::Kind::kPost);
  }
}

void World::note_burst(std::size_t node) {
  if (!scenario_.patient || !ledgers_[node]->all_completed() || burst_ns_[node] == kNever) return;
  const std::uint64_t took_ns = now_ns_ - std::exchange(burst_ns_[node], kNever);
  if (nodes_[node]->in_error()) return;
  longest_burst_ns_ = std::max(longest_burst_ns_, took_ns);
  outcome_.lost_tails += took_ns >= kShortestTailNs ? 1 : 0;
  outcome_.late_tails += took_ns > kLateTailNs ? 1 : 0;
}

void World::replenish(std::size_t node) {
  const bool starved = host_of(node) == 1 && now_ns_ >= scenario_.starve_ns;
  const std::uint64_t more = random_.between(0, 4);
  if (!starved) pools_[node].posted += more;
  if (!done()) schedule(now_ns_ + random_.between(1, 300) * kMicrosecondNs, node, Event::Kind::kReplenish);
}

void World::dispatch(Event event) {
  const std::size_t node = event.node;
  if (is_dead(node)) {
    packets_[node ^ 1].late += event.kind == Event::Kind::kDatagram ? 1 : 0;
    return;
  }
  if (now_ns_ < paused_until_ns(node)) {
    event.time_ns = paused_until_ns(node);
    events_.push(std::move(event));
    return;
  }
  switch (event.kind) {
    case Event::Kind::kDatagram: on_datagram(host_of(node), event); break;
    case Event::Kind::kPost: post_some(node); break;
    case Event::Kind::kReplenish: replenish(node); break;
    case Event::Kind::kPump: pump_scheduled_[node] = false; break;
  }
  after_event(node);
}

void World::after_event(std::size_t number) {
  Node& node = *nodes_[number];
  if (node.next_deadline_ns() <= now_ns_) node.on_timer(now_ns_);
  node.pump(now_ns_, static_cast<std::uint32_t>(random_.between(1, 16)));
  note_burst(number);
  if (pump_scheduled_[number]) return;
  if (node.can_send(now_ns_)) {
    pump_scheduled_[number] = true;
    schedule(now_ns_ + random_.between(200, 3000), number, Event::Kind::kPump);
  }
}

bool World::done() const {
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    if (is_dead(node)) continue;
    if (ledgers_[node]->posted() < scenario_.operations || !ledgers_[node]->all_completed()) return false;
  }
  return true;
}

bool World::troubled() const {
  return std::any_of(nodes_.begin(), nodes_.end(), [](const auto& node) { return !node->problem().empty(); });
}

// By then every promise is due. With a dead peer: all retries, each of up to four timeouts, and some waits.
std::uint64_t World::limit_ns() const {
  if (scenario_.death_ns == kNever) return 5 * kSecondNs;
  const RcConfig& config = scenario_.configs[0];
  const std::uint64_t timeout_ns = kAckTimeoutUnitNs << config.ack_timeout;
  return std::max(scenario_.death_ns, last_post_ns_) + (config.retry_count + 2u) * 4 * timeout_ns +
         transport::rnr_timer_ns(config.min_rnr_timer) + 2000 * kMicrosecondNs;
}

// One event or timer, whichever is first. False: there is none.
bool World::step() {
  std::uint64_t next_ns = events_.empty() ? kNever : events_.top().time_ns;
  std::size_t timed = nodes_.size();
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    if (is_dead(node) || nodes_[node]->next_deadline_ns() == kNever) continue;
    const std::uint64_t due_ns = std::max(nodes_[node]->next_deadline_ns(), paused_until_ns(node));
    if (due_ns >= next_ns) continue;
    next_ns = due_ns;
    timed = node;
  }
  if (next_ns == kNever) return false;
  now_ns_ = std::max(now_ns_, next_ns);
  if (timed < nodes_.size()) {
    after_event(timed);
    return true;
  }
  Event event = events_.top();
  events_.pop();
  dispatch(std::move(event));
  return true;
}

Outcome World::run() {
  while (!done() && !troubled() && now_ns_ < limit_ns() && step()) {
  }
  // Late copies of packets must not undo anything.
  while (done() && !events_.empty() && !troubled()) {
    now_ns_ = std::max(now_ns_, events_.top().time_ns);
    Event event = events_.top();
    events_.pop();
    dispatch(std::move(event));
  }
  count_under_way();
  outcome_.problem = verdict();
  outcome_.scenario = scenario_.text();
  outcome_.finished = done();
  outcome_.deaths = is_dead(1) ? 1 : 0;
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    const auto& counters = nodes_[node]->requester().counters();
    outcome_.retransmitted += counters.retransmitted_packets;
    outcome_.timeouts += counters.timeouts;
    outcome_.tail_resends += counters.tail_resends;
    outcome_.sequence_naks += counters.naks_received;
    outcome_.receiver_not_ready += counters.rnr_naks_received;
    outcome_.credit_waits += counters.credit_waits;
    outcome_.credit_probes += counters.credit_probes;
    outcome_.credit_updates += nodes_[node]->responder().counters().credit_updates;
    outcome_.completions += ledgers_[node]->succeeded();
    const Syndrome error = ledgers_[node]->first_error();
    outcome_.failures += error != Syndrome::kNone ? 1 : 0;
    outcome_.rnr_exhausted += error == Syndrome::kRnrRetryExceeded ? 1 : 0;
    const std::uint64_t peer_silent_ns = silent_ns(node ^ 1);
    const bool peer_lived = peer_silent_ns >= nodes_[node]->error_ns();
    outcome_.retries_exhausted += error == Syndrome::kRetryExceeded && peer_lived ? 1 : 0;
    outcome_.failed_tries += nodes_[node]->tries().failed();
    outcome_.unexplained_tries += nodes_[node]->tries().unexplained(peer_silent_ns);
  }
  outcome_.calm =
      scenario_.calm && outcome_.receiver_not_ready == 0 ? 1 : 0;  // judged whole, see verdict_of_calm
  return outcome_;
}

std::string World::verdict() const {
  const auto name = [](std::size_t node) { return "node " + std::to_string(node) + ": "; };
  // Reports a node's own problem first, because it stopped the run, so other missing events may follow from
  // it.
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    if (!nodes_[node]->problem().empty()) return name(node) + nodes_[node]->problem();
  }
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    const std::string problem = is_dead(node) ? "" : verdict_of(node);
    if (!problem.empty()) return name(node) + problem;
  }
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    const std::string problem = verdict_of_packets(node);
    if (!problem.empty()) return name(node) + problem;
  }
  // Skips a connection that died before, because its cause has been checked.
  if (scenario_.flaw != Flaw::kNone && !is_dead(1) && ledgers_[0]->first_error() == Syndrome::kNone) {
    return "node 0: the flawed request drew no error";
  }
  return "";
}

void World::count_under_way() {
  for (; !events_.empty(); events_.pop()) {
    const Event& event = events_.top();
    packets_[event.node ^ 1].under_way += event.kind == Event::Kind::kDatagram ? 1 : 0;
  }
}

// Every packet that a queue pair counts as sent is counted once more: by its peer, as a fault, or as dropped.
std::string World::verdict_of_packets(std::size_t node) const {
  const PacketBook& book = packets_[node];
  const Node& self = *nodes_[node];
  const Node& peer = *nodes_[node ^ 1];
  const std::uint64_t told =
      self.requester().counters().packets_sent + self.responder().counters().packets_sent;
  if (told != book.sent)
    return "counts " + std::to_string(told) + " packets and sent " + std::to_string(book.sent);
  const std::uint64_t delivered =
      peer.requester().counters().packets_received + peer.responder().counters().packets_received;
  const std::uint64_t accounted = delivered + book.lost + book.damaged + book.late + book.under_way;
  if (book.sent + book.copies == accounted) return "";
  return "of " + std::to_string(book.sent) + " packets and " + std::to_string(book.copies) + " copies, " +
         std::to_string(accounted) + " were delivered, spoilt or dropped";
}

std::string World::verdict_of(std::size_t node) const {
  const Ledger& ledger = *ledgers_[node];
  if (!ledger.all_completed()) return "work requests were never completed";
  if (longest_burst_ns_ > kSecondNs) return "a lost tail waited for the timeout";
  if (ledger.first_error() != Syndrome::kNone) return verdict_of_error(node);
  if (scenario_.death_ns != kNever || nodes_[node]->in_error() || nodes_[node ^ 1]->in_error()) return "";
  if (std::string calm = scenario_.calm ? verdict_of_calm(node) : ""; !calm.empty()) return calm;
  if (!ledger.all_received()) return "the peer never received all messages";
  const std::string memory = ledger.check_memory(nodes_[node ^ 1]->memory(), ~std::uint64_t{0});
  return memory.empty() ? "" : "finally " + memory;
}

// Without faults there is nothing to mend, so whatever was mended the transport broke by itself. A receive
// that is not there is the program's doing, and brings copies of what comes behind it.
std::string World::verdict_of_calm(std::size_t node) const {
  const auto& sent = nodes_[node]->requester().counters();
  const auto& taken = nodes_[node ^ 1]->responder().counters();
  if (sent.timeouts + sent.naks_received + sent.tail_resends > 0)
    return "had to recover on a link without faults";
  if (taken.key_faults > 0) return "drew key faults without a flaw";
  if (sent.rnr_naks_received > 0) return "";
  if (sent.retransmitted_packets > 0) return "sent packets twice on a link without faults";
  const bool tidy = taken.duplicate_requests + taken.out_of_sequence + taken.naks_sent == 0;
  return tidy ? "" : "sent what its peer could not take in its turn, on a link without faults";
}

// From then on it answers nothing.
std::uint64_t World::silent_ns(std::size_t node) const {
  const std::uint64_t death_ns = host_of(node) == 1 ? scenario_.death_ns : kNever;
  return std::min(death_ns, nodes_[node]->error_ns());
}

// An error is right only if the scenario has a cause for it.
std::string World::verdict_of_error(std::size_t node) const {
  const Ledger& ledger = *ledgers_[node];
  const Syndrome error = ledger.first_error();
  const RcConfig& config = scenario_.configs[node];
  const bool refused_twin = node == 1 && scenario_.flaw != Flaw::kNone;  // its responder was at fault
  const bool out_of_rnr_retries =
      config.rnr_retry != kEndlessRnrRetry && nodes_[node]->refusals_in_a_row() > config.rnr_retry;
  if (error == Syndrome::kRetryExceeded && nodes_[node]->tries().exhausted(silent_ns(node ^ 1))) return "";
  if (error == Syndrome::kFlushed && refused_twin) return "";
  if (error == Syndrome::kRnrRetryExceeded && out_of_rnr_retries) return "";
  if (node == 0 && ledger.flawed() == ledger.succeeded() && error == ledger.flaw_syndrome()) return "";
  return std::string("ended in ") + mlx5::syndrome_name(error) + " after " +
         std::to_string(ledger.succeeded()) + " work requests, " + nodes_[node]->tries().text();
}

}  // namespace

Outcome run_connected(Random random) { return World(random).run(); }

Outcome run(std::uint64_t seed) {
  Random random(seed);
  return random.chance(0.75) ? run_connected(random) : run_unacknowledged(random);
}

}  // namespace gdx::sim
