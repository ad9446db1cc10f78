#include "driver-shim/softhca/engine/engine.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cassert>
#include <cstring>

#include "base/counters.h"
#include "base/log.h"
#include "driver-shim/softhca/engine/planted_fault.h"
#include "proto/mad/mad.h"
#include "proto/mlx5/doorbell.h"
#include "proto/roce/codec.h"

namespace gdx::softhca {
namespace {

constexpr std::size_t kReceiveBudget = 256;            // packets a step
constexpr std::uint64_t kSendBudgetBytes = 512 << 10;  // a step, before the next look at arrivals
// Burst of a rate limit: a GSO send, and the bytes that the link carries while the engine's thread dozes.
constexpr std::uint64_t kLinkBurstBytes = 64 << 10;
constexpr double kLinkBurstNs = 100'000;
constexpr std::uint64_t kMaxIdleNs = 1'000'000'000;
constexpr std::size_t kRecordlessDoorbell = 0x600;  // DOCA's mode that carries the producer index itself

std::atomic_ref<std::uint64_t> uar_word(std::byte* page, std::size_t offset) {
  return std::atomic_ref(*reinterpret_cast<std::uint64_t*>(page + offset));
}

// Takes a doorbell's value; 0 without one. Ordering: acquire, so that the record written before it is
// visible.
std::uint64_t take_doorbell(std::byte* page, std::size_t offset) {
  const auto word = uar_word(page, offset);
  return word.load(std::memory_order_relaxed) == 0 ? 0 : word.exchange(0, std::memory_order_acquire);
}

// Returns whether one of a page's doorbells names `qp`, or may have overwritten one that did. A register
// keeps its newest doorbell alone, and another's serves only queue pairs that ring in the same one.
// `registers` are those in which `qp` was seen to ring, a bit each. One that was not seen yet may ring in
// any.
bool may_have_rung(const QueuePair& qp, std::span<const DoorbellWrite> rings, std::uint32_t& registers) {
  bool named = false;
  std::uint32_t of_others = 0;
  for (const DoorbellWrite& ring : rings) {
    const bool names_it = ring.qpn() == qp.number();
    named |= names_it;
    (names_it ? registers : of_others) |= ring.register_bit();
  }
  if (named || planted_fault == PlantedFault::kMergedDoorbells) return named;
  return registers == 0 || (registers & of_others) != 0;
}

// Returns whether a planted fault loses the doorbell. `first_qpn` is of the first doorbell of a poll, or 0;
// `newest` the page's newest value.
bool loses(const DoorbellWrite& ring, std::uint32_t& first_qpn, std::uint64_t& newest) {
  switch (planted_fault) {
    case PlantedFault::kMuteBlueFlame: return ring.has_copy();
    case PlantedFault::kMergedDoorbells:
      if (first_qpn == 0) first_qpn = ring.qpn();
      return ring.qpn() != first_qpn;
    case PlantedFault::kDeafToRepeats: return std::exchange(newest, ring.value()) == ring.value();
    default: return false;
  }
}

SipKey drawn_key(const Random& random) {
  SipKey key{};
  for (std::uint64_t& word : key) {
    word = random();
    word = word << 32 | random();
  }
  return key;
}

std::uint64_t link_burst_bytes(double rate_gbps) {
  return kLinkBurstBytes + static_cast<std::uint64_t>(rate_gbps * kLinkBurstNs / kBitsPerByte);
}

}  // namespace

Engine::Engine(const HcaConfig& config, std::unique_ptr<wire::Wire> wire, std::byte* device_memory,
               Random random, Clock clock)
    : parts_{.config = config,
             .windows = PeerWindows(config.receive_window, wire->socket_bytes(), random),
             .wire = std::move(wire),
             .device_memory = device_memory,
             .staging = StagingAudit({device_memory, config.device_memory_bytes}),
             .memory = {},
             .foreign = {},
             .counters = {},
             .late = {},
             .held_completions = {}},
      random_(std::move(random)),
      clock_(std::move(clock)),
      numbers_(drawn_key(random_)),
      spoils_(config.udp.faults.seed),
      scheduler_(turn_bytes(config.rate_gbps, config.quantum_bytes, config.mtu_bytes)),
      link_(config.rate_gbps, link_burst_bytes(config.rate_gbps)) {}

QueuePair* Engine::find_qp(std::uint32_t qpn) {
  if (last_found_ != nullptr && last_found_->number() == qpn) return last_found_;
  const auto found = qps_.find(qpn);
  if (found == qps_.end()) return nullptr;
  last_found_ = found->second.get();
  return last_found_;
}

void Engine::activate(QueuePair& qp) {
  if (qp.busy()) scheduler_.add(qp);
}

void Engine::note_bad_doorbell(std::uint64_t value) {
  if (parts_.counters.bad_doorbells++ > 0) return;
  log::warn(
      "{}: a doorbell of value 0x{:016x} names no queue of its page and is ignored; ring with the WQE's "
      "first 8 bytes, or with the CQ's arm word and number",
      parts_.config.name, value);
}

int Engine::take_rings(Uar& uar) {
  int done = 0;
  for (const std::size_t offset : kSendDoorbells) {
    const std::optional<DoorbellWrite> ring = DoorbellWrite::take(uar.page, offset);
    if (!ring) continue;
    ++done;
    if (loses(*ring, first_rung_qpn_, uar.newest_ring)) continue;
    ++parts_.counters.doorbells;
    const bool named = std::ranges::any_of(
        uar.ringers, [&ring](const Ringer& ringer) { return ringer.qp->number() == ring->qpn(); });
    if (named) {
      rings_.push_back(*ring);
    } else {
      note_bad_doorbell(ring->value());
    }
  }
  return done;
}

// Spoils BlueFlame copies as write-combining and PCIe may. A copy that is made late arrives after all that
// came meanwhile.
void Engine::spoil_copies(Uar& uar) {
  const std::vector<DoorbellWrite> came_late = std::exchange(uar.late, {});
  std::erase_if(rings_, [&](DoorbellWrite& ring) {
    if (!ring.has_copy() || !std::bernoulli_distribution(parts_.config.spoiled_copies)(spoils_)) return false;
    switch (std::uniform_int_distribution(0, 2)(spoils_)) {
      case 0: ring.drop_copy(); return false;
      case 1: ring.tear(); return false;
      default: uar.late.push_back(ring); return true;
    }
  });
  rings_.insert(rings_.end(), came_late.begin(), came_late.end());
}

int Engine::poll_uar(Uar& uar) {
  int done = 0;
  if (const std::uint64_t value = take_doorbell(uar.page, mlx5::kUarCqDoorbell); value != 0) {
    ++done;
    if (cqs_.contains(second_dword(value) & roce::kQpnMask)) {
      // Checks every record, because another CQ's arm may have overwritten this one's in the register.
      for (const auto& [cqn, cq] : cqs_) cq->check_arm();
    } else {
      note_bad_doorbell(value);
    }
  }
  if (take_doorbell(uar.page, kRecordlessDoorbell) != 0 && !recordless_reported_) {
    recordless_reported_ = true;
    log::warn("{}: a doorbell without a doorbell record is not supported; create the queue with a record",
              parts_.config.name);
  }
  rings_.clear();
  // Takes rings twice, because halves alternate: an empty one may have been written before a full one.
  done += take_rings(uar);
  if (!rings_.empty()) done += take_rings(uar);
  spoil_copies(uar);
  if (rings_.empty()) return done;
  for (auto& [qp, registers] : uar.ringers) {
    if (may_have_rung(*qp, rings_, registers) && qp->fetch_sends(rings_) > 0) activate(*qp);
  }
  return done;
}

int Engine::poll_doorbells() {
  int done = 0;
  first_rung_qpn_ = 0;
  for (auto& [number, uar] : uars_) done += poll_uar(uar);
  if (done > 0) rung_at_ns_.store(parts_.now_ns, std::memory_order_relaxed);
  return done;
}

void Engine::accept(const wire::Address& source, std::span<const std::byte> datagram) {
  const std::optional<roce::Decoded> packet = roce::decode(datagram);
  const std::uint16_t port = parts_.wire->arrival_port();
  if (!parts_.windows.on_taken(source, port, datagram.size(), parts_.now_ns)) {
    ++parts_.counters.wire.forged_drops;
    return;
  }
  if (packet && port == roce::kUdpPort && parts_.windows.on_packet(source, *packet, parts_.now_ns)) return;
  if (packet && accept_management(source, *packet)) return;
  QueuePair* qp = packet ? find_qp(packet->headers.bth.destination_qpn) : nullptr;
  const bool marked = parts_.wire->arrival_is_marked();
  if (qp == nullptr || !qp->on_packet(parts_.now_ns, source, *packet, marked)) {
    ++parts_.counters.dropped_packets;
    return;
  }
  activate(*qp);
}

bool Engine::accept_management(const wire::Address& source, const roce::Decoded& packet) {
  ManagementAgent* const agent = agent_.load();
  const roce::Headers& headers = packet.headers;
  const bool addressed = headers.bth.destination_qpn == mad::kGsiQpn &&
                         headers.bth.opcode == roce::Opcode::kUdSendOnly &&
                         headers.deth.qkey == mad::kGsiQkey && headers.deth.source_qpn == mad::kGsiQpn;
  if (!addressed || agent == nullptr) return false;
  management_arrivals_.push_back({source, {packet.payload.begin(), packet.payload.end()}});
  return true;
}

void Engine::send_management(const wire::Address& destination, std::span<const std::byte> datagram) {
  const std::scoped_lock lock(mutex_);
  if (wire_is_lost() || destination.is_ipv4() != parts_.wire->local().is_ipv4()) return;
  roce::Headers headers;
  headers.bth.opcode = roce::Opcode::kUdSendOnly;
  headers.bth.pad_count = roce::pad_count_for(datagram.size());
  headers.bth.destination_qpn = mad::kGsiQpn;
  headers.bth.psn = management_psn_++ & roce::kPsnMask;
  headers.deth = {.qkey = mad::kGsiQkey, .source_qpn = mad::kGsiQpn};
  const std::span<std::byte> packet = parts_.wire->begin_packet(destination);
  const std::size_t header_bytes = roce::encode(headers, packet);
  std::memcpy(packet.data() + header_bytes, datagram.data(), datagram.size());
  std::memset(packet.data() + header_bytes + datagram.size(), 0, headers.bth.pad_count);
  parts_.wire->commit_packet(destination, header_bytes + datagram.size() + headers.bth.pad_count);
  parts_.wire->flush();
}

void Engine::send_window(const wire::Address& peer, roce::Opcode opcode, const roce::WindowGrant& body) {
  roce::Headers headers;
  headers.bth.opcode = opcode;
  const std::span<std::byte> packet = parts_.wire->begin_packet(peer);
  const std::size_t header_bytes = roce::encode(headers, packet);
  roce::encode_grant(body, packet.subspan(header_bytes));
  parts_.wire->commit_packet(peer, header_bytes + roce::kWindowBytes);
}

// Charges all bytes sent since the last call, by any sender. Acknowledgements wait for no turn, nor for the
// link.
void Engine::charge_link() {
  link_.charge(parts_.now_ns, parts_.link_bytes - charged_bytes_);
  charged_bytes_ = parts_.link_bytes;
}

int Engine::serve_active() {
  if (scheduler_.empty()) return 0;
  int done = 0;
  scheduler_.visit([&](QueuePair& qp) { done += qp.run_unpaced(parts_.now_ns); });
  charge_link();
  const std::uint64_t now_ns = parts_.now_ns;
  const std::uint64_t sent_bytes = scheduler_.run(
      std::min(kSendBudgetBytes, link_.budget_bytes(now_ns)),
      [now_ns](const QueuePair& qp) { return qp.can_send(now_ns); },
      [now_ns](QueuePair& qp, std::uint64_t allowance) { return qp.send_some(now_ns, allowance); });
  charge_link();
  scheduler_.retain([](const QueuePair& qp) { return qp.busy(); });
  return done + (sent_bytes > 0 ? 1 : 0);
}

// Ends a step: packets first, then the completions that announce them, then datagrams of QP 1. A connection's
// end must not become visible before its peer's earlier packets.
void Engine::finish_step() {
  parts_.late.end_step();
  parts_.foreign.synchronize();  // before the step's packets and completions announce it
  parts_.windows.send_due(parts_.now_ns, [this](const auto&... packet) { send_window(packet...); });
  assert(parts_.windows.check_invariants() == nullptr);
  parts_.wire->flush();
  for (std::size_t i = 0; i < parts_.held_completions.size(); ++i) {
    const HcaParts::HeldCompletion held = parts_.held_completions[i];
    held.qp->deliver(held);
  }
  parts_.held_completions.clear();
  ManagementAgent* const agent = agent_.load();
  for (const ManagementArrival& arrival : management_arrivals_) {
    if (agent != nullptr) agent->on_datagram(arrival.source, arrival.datagram);
  }
  management_arrivals_.clear();
}

int Engine::progress() {
  // Stops at a lost wire, because a file that the program opened at its number would be read or written.
  // Checks at intervals, because the check costs a system call.
  constexpr std::uint64_t kCheckNs = 20'000;
  const std::uint64_t now_ns = clock_();
  if (now_ns - wire_checked_ns_.load(std::memory_order_relaxed) >= kCheckNs) {
    if (wire_is_lost()) return 0;
    wire_checked_ns_.store(now_ns, std::memory_order_relaxed);
  }
  const int done = step();
  ManagementAgent* const agent = agent_.load();
  return agent == nullptr ? done : done + agent->step(clock_());
}

int Engine::step() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return 0;
  parts_.now_ns = clock_();
  parts_.foreign.synchronize_all();
  const bool was_idle = scheduler_.empty();
  int done = poll_doorbells();
  if (done > 0 && was_idle) {
    // Sends before it reads the wire only for the first post after a pause, whose latency counts. In a stream
    // of posts larger batches matter more.
    done += serve_active();
    parts_.wire->flush();
  }
  const std::size_t received = parts_.wire->receive(
      kReceiveBudget,
      [this](const wire::Address& source, std::span<const std::byte> datagram) { accept(source, datagram); });
  if (parts_.wire->socket_was_drained()) parts_.windows.on_drained(parts_.now_ns);
  arrivals_left_ = received > 0;
  done += static_cast<int>(received);
  done += serve_active();
  finish_step();
  return done;
}

std::uint64_t Engine::idle_ns() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return kHeldElsewhere;
  if (arrivals_left_ || !parts_.late.empty() || !parts_.wire->arm()) return 0;
  const auto rung = [](std::byte* page, std::size_t offset) {
    return uar_word(page, offset).load(std::memory_order_relaxed) != 0;
  };
  for (const auto& [number, uar] : uars_) {
    if (!uar.late.empty() || rung(uar.page, mlx5::kUarCqDoorbell)) return 0;
    for (const std::size_t offset : kSendDoorbells) {
      if (rung(uar.page, offset)) return 0;
    }
  }
  const std::uint64_t now_ns = clock_();
  std::uint64_t deadline_ns = now_ns + kMaxIdleNs;
  if (const ManagementAgent* const agent = agent_.load(); agent != nullptr) {
    deadline_ns = std::min(deadline_ns, agent->next_deadline_ns());
  }
  bool waits = true;
  scheduler_.visit([&](const QueuePair& qp) {
    if (qp.can_send(now_ns)) {
      const std::uint64_t wait_ns = link_.wait_ns(now_ns);
      waits = waits && wait_ns != 0;
      deadline_ns = std::min(deadline_ns, now_ns + wait_ns);
    }
    deadline_ns = std::min(deadline_ns, qp.next_deadline_ns());
  });
  if (!waits) return 0;
  deadline_ns =
      // of the waits that can_send() found too
      std::min({deadline_ns, parts_.windows.next_deadline_ns(now_ns), parts_.wire->next_deadline_ns()});
  return deadline_ns > now_ns ? deadline_ns - now_ns : 0;
}

const char* Engine::check_invariants() {
  const std::scoped_lock lock(mutex_);
  const char* broken = parts_.windows.check_invariants();
  for (auto cq = cqs_.begin(); cq != cqs_.end() && broken == nullptr; ++cq) {
    broken = cq->second->check_invariants();
  }
  for (auto qp = qps_.begin(); qp != qps_.end() && broken == nullptr; ++qp) {
    broken = qp->second->check_invariants();
  }
  return broken;
}

HcaCounters Engine::counters() {
  const std::scoped_lock lock(mutex_);
  HcaCounters sum = parts_.counters;
  sum.transport = closed_;
  for (const auto& [qpn, qp] : qps_) add_counters(sum.transport, qp->counters());
  add_counters(sum.wire, parts_.wire->counters());
  sum.window = parts_.windows.counters();
  return sum;
}

}  // namespace gdx::softhca
