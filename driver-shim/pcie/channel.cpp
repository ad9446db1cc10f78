#include "driver-shim/pcie/channel.h"

#include <algorithm>

namespace gdx::pcie {
namespace {

constexpr std::uint32_t kCreditBytes = 16;

constexpr std::size_t index_of(TlpKind kind) { return static_cast<std::size_t>(kind); }

constexpr std::uint32_t data_credit_bytes(std::uint32_t payload_bytes) {
  return (payload_bytes + kCreditBytes - 1) / kCreditBytes * kCreditBytes;
}

}  // namespace

Channel::Channel(const ChannelConfig& config) : config_(config) {}

void Channel::enqueue(PacketId id, const Packet& packet) {
  queues_[index_of(packet.kind)].push_back({id, next_sequence_++, packet.payload_bytes});
}

bool Channel::has_credits(std::size_t kind, const Waiting& waiting) const {
  const Credits& limit = config_.buffers[kind];
  return used_[kind].headers < limit.headers &&
         used_[kind].data_bytes + data_credit_bytes(waiting.payload_bytes) <= limit.data_bytes;
}

std::optional<std::size_t> Channel::choose() const {
  std::optional<std::size_t> oldest;
  const auto& writes = queues_[index_of(TlpKind::kWrite)];
  for (std::size_t kind = 0; kind < kTlpKinds; ++kind) {
    if (queues_[kind].empty()) continue;
    const Waiting& head = queues_[kind].front();
    const bool behind_a_write =
        kind != index_of(TlpKind::kWrite) && !writes.empty() && writes.front().sequence < head.sequence;
    if (behind_a_write || !has_credits(kind, head)) continue;
    if (!oldest || head.sequence < queues_[*oldest].front().sequence) oldest = kind;
  }
  return oldest;
}

std::optional<Channel::Sent> Channel::send_next(TimePs now) {
  if (now < free_at_) return std::nullopt;
  const auto kind = choose();
  if (!kind) return std::nullopt;
  const Waiting next = queues_[*kind].front();
  queues_[*kind].pop_front();
  ++used_[*kind].headers;
  used_[*kind].data_bytes += data_credit_bytes(next.payload_bytes);

  // Subtracts the owed bytes that went out while the wire was idle.
  const double idle_bytes = static_cast<double>(now - free_at_) * config_.bytes_per_s / kPsPerSecond;
  const double owed_bytes = std::max(0.0, owed_bytes_ - idle_bytes);
  owed_bytes_ = 0;
  const std::uint32_t bytes =
      config_.framing ? wire_bytes(*config_.framing, static_cast<TlpKind>(*kind), next.payload_bytes)
                      : next.payload_bytes;
  bytes_sent_ += bytes;
  free_at_ = now + transfer_ps(bytes + owed_bytes, config_.bytes_per_s);
  return Sent{next.id, free_at_};
}

void Channel::return_credits(const Packet& packet) {
  Credits& used = used_[index_of(packet.kind)];
  --used.headers;
  used.data_bytes -= data_credit_bytes(packet.payload_bytes);
}

}  // namespace gdx::pcie
