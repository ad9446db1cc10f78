#include "driver-shim/pcie/world/world.h"

#include <algorithm>
#include <utility>

namespace gdx::pcie {
namespace {

constexpr std::uint32_t kBlockBytes = mlx5::kWqeBasicBlockBytes;
constexpr std::uint32_t kInlineWqesPerBatch = 16;  // [guessed] a queue of 64 blocks, rung when full
constexpr std::uint32_t kDoorbellBytes = 8;
constexpr double kBitsPerByte = 8;

constexpr std::uint32_t inline_blocks(std::uint64_t payload_bytes) {
  return static_cast<std::uint32_t>((payload_bytes + kInlineFixedBytes + kBlockBytes - 1) / kBlockBytes);
}

constexpr std::uint64_t divide_up(std::uint64_t value, std::uint64_t by) { return (value + by - 1) / by; }

}  // namespace

World::World(const WorldConfig& config, Mode mode)
    : config_(config),
      mode_(mode),
      steps_(entry(mode).steps),
      sender_(events_, config_.platform, config_.path),
      receiver_(events_, config_.platform, config_.path),
      slot_bytes_(slot_payload_bytes(config, mode)),
      slots_free_(static_cast<std::uint32_t>(slots_of(config, mode))) {}

void World::begin(std::uint64_t message_bytes, std::uint64_t messages, std::uint32_t lanes,
                  const Events& events) {
  observer_ = events;
  message_bytes_ = message_bytes;
  lanes_.assign(lanes, {});
  // Slots of each endpoint under the credit scheduler's dynamic threshold (host/staging); other libraries
  // have no limit.
  lease_ = mode_ == Mode::kProxy ? slots_free_ : std::max(slots_free_ / (lanes + 1), 1u);
  puts_a_batch_ = is_push(mode_) || mode_ == Mode::kBounce ? std::min(config_.batch, lease_) : config_.batch;
  for (std::uint64_t i = 0; i < messages; ++i) ++lanes_[i % lanes].messages_left;
  for (std::uint32_t lane = 0; lane < lanes; ++lane) post_next(lane, events_.now());
}

// An endpoint posts one batch after the other, as far as window and credits go.
void World::post_next(std::uint32_t lane, TimePs now) {
  Lane& here = lanes_[lane];
  if (here.posting) return;
  if (here.rest_bytes == 0) {
    if (here.messages_left == 0 || here.uncompleted == config_.window) return;
    here.puts = static_cast<std::uint32_t>(std::min<std::uint64_t>(puts_a_batch_, here.messages_left));
    here.messages_left -= here.puts;
    ++here.uncompleted;
    here.rest_bytes = here.puts * message_bytes_;
  }
  const Batch batch = next_batch(lane);
  if (here.slots + batch.slots > lease_) return;  // until one of its own comes back
  here.posting = true;
  // Serves lanes in the order in which they began to wait for slots.
  if (batch.slots > slots_free_ || (batch.slots > 0 && !waiting_for_slots_.empty())) {
    waiting_for_slots_.push_back(lane);
    return;
  }
  start(batch, now);
}

// The endpoint has done its part of a batch.
void World::may_post(std::uint32_t lane, TimePs now) {
  lanes_[lane].posting = false;
  post_next(lane, now);
}

void World::start(const Batch& batch, TimePs now) {
  slots_free_ -= batch.slots;
  lanes_[batch.lane].slots += batch.slots;
  lanes_[batch.lane].rest_bytes -= batch.payload_bytes;
  if (free_batches_.empty()) {
    free_batches_.push_back(static_cast<BatchId>(batches_.size()));
    batches_.emplace_back();
  }
  const BatchId id = free_batches_.back();
  free_batches_.pop_back();
  batches_[id] = batch;
  take_step(id, now);
}

World::Batch World::next_batch(std::uint32_t lane) const {
  const std::uint64_t rest = lanes_[lane].rest_bytes;
  Batch batch;
  batch.lane = lane;
  batch.puts = lanes_[lane].puts;
  batch.address = batch.puts * message_bytes_ - rest;
  batch.payload_bytes = rest;
  batch.wqe_bytes = kBlockBytes;
  const auto take_slots = [&](std::uint32_t most) {
    batch.payload_bytes = std::min(rest, std::uint64_t{most} * slot_bytes_);
    batch.slots = batch.wqes = static_cast<std::uint32_t>(divide_up(batch.payload_bytes, slot_bytes_));
    batch.wqe_bytes = batch.wqes * kBlockBytes;
  };
  if (batch.puts > 1) {  // check() has each be one work request
    const std::uint32_t blocks = mode_ == Mode::kInline ? inline_blocks(message_bytes_) : 1;
    batch.wqes = batch.puts;
    batch.wqe_bytes = batch.puts * blocks * kBlockBytes;
    if (is_push(mode_) || mode_ == Mode::kBounce) batch.slots = batch.puts;
    batch.ends_message = true;
    return batch;
  }
  switch (mode_) {
    case Mode::kPull: break;
    case Mode::kPush:
    case Mode::kPushFlags:
    case Mode::kPushOrdered:
    case Mode::kBounce:  // ordered and rung as by device/impl/put.h: for a quarter of the lease at a time
      take_slots((lease_ + 3) / 4);
      break;
    case Mode::kInline: {
      batch.payload_bytes = std::min<std::uint64_t>(rest, kInlineWqesPerBatch * kMaxInlineBytes);
      const std::uint64_t full = batch.payload_bytes / kMaxInlineBytes;
      const std::uint64_t tail = batch.payload_bytes % kMaxInlineBytes;
      const std::uint64_t blocks = full * inline_blocks(kMaxInlineBytes) + (tail ? inline_blocks(tail) : 0);
      batch.wqes = static_cast<std::uint32_t>(full + (tail != 0 ? 1 : 0));
      batch.wqe_bytes = static_cast<std::uint32_t>(blocks * kBlockBytes);
      break;
    }
    case Mode::kProxy: take_slots(1); break;
  }
  batch.ends_message = batch.payload_bytes == rest;
  return batch;
}

const Step* World::next_step(const Batch& batch) const {
  return batch.step + 1 < steps_.size() ? &steps_[batch.step + 1] : nullptr;
}

bool World::is_brought(const Batch& batch) const {
  return config_.doorbell == DoorbellKind::kBlueFlame && config_.batch == 1 &&
         batch.wqe_bytes == batch.wqes * kBlockBytes;
}

NodeId World::node_of(Place place) const {
  switch (place) {
    case Place::kQueue: return config_.queues == QueuePlacement::kGpu ? kGpuNode : kHostNode;
    case Place::kGpu: return kGpuNode;
    case Place::kHost: return kHostNode;
    case Place::kStaging:
    case Place::kUar:
    case Place::kWqe: return kNicNode;
  }
  return kNoNode;
}

NodeId World::node_of(Actor actor) {
  switch (actor) {
    case Actor::kGpu: return kGpuNode;
    case Actor::kNic: return kNicNode;
    case Actor::kCpu: return kHostNode;
  }
  return kNoNode;
}

std::uint64_t World::extent_bytes(Extent extent, const Batch& batch) {
  switch (extent) {
    case Extent::kNothing: return 0;
    case Extent::kPayload: return batch.payload_bytes;
    case Extent::kLines: {
      constexpr std::uint32_t kPayloadOfLine = kFlaggedLineBytes - kFlagBytes;
      return batch.puts * divide_up(batch.payload_bytes / batch.puts, kPayloadOfLine) * kFlaggedLineBytes;
    }
    case Extent::kWqes: return batch.wqe_bytes;
    case Extent::kWord: return 4;
    case Extent::kFlag: return 8;
    case Extent::kBlock: return std::uint64_t{batch.puts} * kBlockBytes;
  }
  return 0;
}

std::uint32_t World::transfers(Extent extent, const Batch& batch) {
  const bool apart = extent == Extent::kPayload || extent == Extent::kLines || extent == Extent::kBlock;
  return apart ? batch.puts : 1;
}

void World::take_step(BatchId id, TimePs now) {
  const Step& step = steps_[batches_[id].step];
  switch (step.verb) {
    case Verb::kStore: return store(id, step, now);
    case Verb::kRing: return ring(id, step, now);
    case Verb::kLoad: return load(id, step, now);
    case Verb::kFetch: {
      const bool unread = step.purpose == Purpose::kRecord && config_.record == RecordUse::kUnread;
      return unread || is_brought(batches_[id]) ? step_done(id, now) : load(id, step, now);
    }
    case Verb::kOrder: return order(id, step, now);
    case Verb::kOrderFetched: return is_brought(batches_[id]) ? step_done(id, now) : order(id, step, now);
    case Verb::kNotice:
      events_.at(now + from_ns(config_.notice_ns), [this, id](TimePs at) { step_done(id, at); });
      return;
    case Verb::kSend: return send(id, step, now);
  }
}

void World::step_done(BatchId id, TimePs now) {
  if (next_step(batches_[id]) == nullptr) return finish(id, now);
  ++batches_[id].step;
  take_step(id, now);
}

void World::store(BatchId id, const Step& step, TimePs now) {
  const Batch& batch = batches_[id];
  const NodeId from = node_of(step.actor);
  const NodeId to = node_of(step.place);
  const Step* next = next_step(batch);
  const bool goes_on = next != nullptr && next->actor == step.actor;
  if (from == to) {  // its own memory: no PCIe
    step_done(id, now);
    return;
  }
  // A slot's place in staging memory does not matter to the timing beyond its alignment.
  const std::uint64_t address = step.extent == Extent::kPayload ? batch.address : 0;
  const bool hands_over = !goes_on && step.actor == Actor::kGpu;  // to a CPU
  const std::uint32_t lane = batch.lane;
  const std::uint32_t writes = transfers(step.extent, batch);
  const std::uint64_t bytes = extent_bytes(step.extent, batch) / writes;
  for (std::uint32_t i = 1; i <= writes; ++i) {
    EventQueue::Handler arrived;
    if (!goes_on && i == writes) arrived = [this, id](TimePs at) { step_done(id, at); };
    sender_.write(from, to, address, bytes, step.purpose, std::move(arrived));
  }
  if (goes_on) step_done(id, now);
  if (hands_over) may_post(lane, now);
}

// Writes of their own, which the NIC takes in their order: it has all of the batch with the last.
void World::ring(BatchId id, const Step& step, TimePs now) {
  const Batch& batch = batches_[id];
  const bool brings = is_brought(batch);
  const std::uint32_t lane = batch.lane;
  const std::uint32_t doorbells = brings ? batch.wqes : 1;
  for (std::uint32_t i = 1; i <= doorbells; ++i) {
    EventQueue::Handler arrived;
    if (i == doorbells) arrived = [this, id](TimePs at) { step_done(id, at); };
    sender_.write(node_of(step.actor), node_of(step.place), 0, brings ? kBlockBytes : kDoorbellBytes,
                  step.purpose, std::move(arrived));
  }
  if (step.actor == Actor::kGpu) may_post(lane, now);
}

void World::load(BatchId id, const Step& step, TimePs now) {
  const NodeId from = node_of(step.actor);
  const NodeId to = node_of(step.place);
  if (from == to) return step_done(id, now);
  const std::uint32_t reads = transfers(step.extent, batches_[id]);
  const std::uint64_t bytes = extent_bytes(step.extent, batches_[id]) / reads;
  // One after the other: a poster polls a CQE once it has the one before.
  const auto done = [this, id, step, reads](TimePs at) {
    if (++batches_[id].polled < reads) return load(id, step, at);
    batches_[id].polled = 0;
    step_done(id, at);
  };
  // A GPU's load pays its way to the port and back; a NIC's is part of its pipeline.
  const std::uint32_t issue_ns = step.actor == Actor::kGpu ? config_.platform.gpu_issue_ns : 0;
  events_.at(now + from_ns(issue_ns), [this, from, to, step, bytes, done](TimePs) {
    sender_.read(from, to, 0, bytes, step.purpose, done);
  });
}

void World::order(BatchId id, const Step& step, TimePs now) {
  const bool within_gpu = node_of(step.place) == kGpuNode;
  const std::uint32_t ns = within_gpu ? config_.ordering.gpu_scope_ns : config_.ordering.system_scope_ns;
  events_.at(now + from_ns(ns), [this, id](TimePs at) { step_done(id, at); });
}

void World::send(BatchId id, const Step& step, TimePs now) {
  const Batch& batch = batches_[id];
  const Sending sending{id, node_of(step.place), batch.address, batch.payload_bytes / batch.puts, true};
  events_.at(now + from_ns(config_.nic_ns), [this, sending, puts = batch.puts](TimePs) {
    sending_.insert(sending_.end(), puts, sending);
    fetch_packets();
  });
}

// Sends payload in NIC memory at once. Fetches other payload, a wire packet at a time, and only to a bound
// ahead of the wire.
void World::fetch_packets() {
  while (!sending_.empty() && fetched_ahead_bytes_ < config_.fetch_ahead_bytes) {
    Sending next = sending_.front();
    sending_.pop_front();
    const std::uint64_t address = next.address;
    const std::uint32_t bytes = first_piece(address, next.rest_bytes, config_.wire.mtu_bytes);
    const bool first = std::exchange(next.first, false);
    next.address += bytes;
    next.rest_bytes -= bytes;
    if (next.rest_bytes > 0) sending_.push_back(next);
    fetched_ahead_bytes_ += bytes;
    if (next.source == kNicNode) {
      transmit(next.id, bytes, first, events_.now());
      continue;
    }
    sender_.read(kNicNode, next.source, address, bytes, Purpose::kPayload,
                 [this, id = next.id, bytes, first](TimePs at) { transmit(id, bytes, first, at); });
  }
}

void World::transmit(BatchId id, std::uint32_t bytes, bool first, TimePs now) {
  const Wire& wire = config_.wire;
  const std::uint32_t on_wire = bytes + wire.packet_overhead_bytes + (first ? wire.reth_bytes : 0);
  wire_free_at_ = std::max(wire_free_at_, now) + transfer_ps(on_wire, wire.bits_per_s / kBitsPerByte);
  events_.at(wire_free_at_, [this, bytes](TimePs) {
    fetched_ahead_bytes_ -= bytes;
    fetch_packets();
  });
  events_.at(wire_free_at_ + from_ns(wire.latency_ns) + from_ns(config_.nic_ns),
             [this, id, bytes](TimePs at) { receive(id, bytes, at); });
}

// The peer's NIC acknowledges what it has received; it does not wait for its own PCIe.
void World::receive(BatchId id, std::uint32_t bytes, TimePs now) {
  receiver_.write(kNicNode, kGpuNode, 0, bytes, Purpose::kPayload, [this, bytes](TimePs at) {
    if (observer_.delivered) observer_.delivered(at, bytes);
  });
  Batch& batch = batches_[id];
  batch.at_peer_bytes += bytes;
  if (batch.at_peer_bytes < batch.payload_bytes) return;
  events_.at(now + from_ns(config_.wire.latency_ns) + from_ns(config_.nic_ns),
             [this, id](TimePs at) { step_done(id, at); });
}

void World::finish(BatchId id, TimePs now) {
  const Batch batch = batches_[id];
  free_batches_.push_back(id);
  slots_free_ += batch.slots;
  lanes_[batch.lane].slots -= batch.slots;
  if (batch.ends_message) {
    --lanes_[batch.lane].uncompleted;
    for (std::uint32_t i = 0; observer_.completed && i < batch.puts; ++i) observer_.completed(now);
  }
  post_next(batch.lane, now);
  while (!waiting_for_slots_.empty()) {
    const Batch first = next_batch(waiting_for_slots_.front());
    if (first.slots > slots_free_) return;
    waiting_for_slots_.pop_front();
    start(first, now);
  }
}

}  // namespace gdx::pcie
