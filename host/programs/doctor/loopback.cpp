#include "host/programs/doctor/loopback.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "device/exec/exec.h"

namespace gdx::doctor {
WorkRequest::WorkRequest(mlx5::WqeOpcode opcode, std::uint8_t flags) : opcode_(opcode), flags_(flags) {}

template <typename T>
void WorkRequest::append(const T& part) {
  const auto bytes = std::as_bytes(std::span(&part, 1));
  segments_.insert(segments_.end(), bytes.begin(), bytes.end());
}

WorkRequest& WorkRequest::remote(std::uint64_t address, std::uint32_t rkey) {
  append(mlx5::RemoteAddressSegment{address, rkey, 0});
  return *this;
}

WorkRequest& WorkRequest::gather(std::uint64_t address, std::uint32_t lkey, std::uint32_t bytes) {
  append(mlx5::DataSegment{bytes, lkey, address});
  return *this;
}

WorkRequest& WorkRequest::inlined(std::span<const std::byte> payload) {
  append(Be32(mlx5::kInlineFlag | static_cast<std::uint32_t>(payload.size())));
  segments_.insert(segments_.end(), payload.begin(), payload.end());
  segments_.resize((segments_.size() + mlx5::kSegmentBytes - 1) / mlx5::kSegmentBytes * mlx5::kSegmentBytes);
  return *this;
}

WorkRequest& WorkRequest::operand(std::uint64_t addend) {
  append(mlx5::AtomicSegment{addend, 0});
  return *this;
}

std::size_t WorkRequest::blocks() const {
  const std::size_t bytes = sizeof(mlx5::ControlSegment) + segments_.size();
  return (bytes + mlx5::kWqeBasicBlockBytes - 1) / mlx5::kWqeBasicBlockBytes;
}

std::vector<std::byte> WorkRequest::encode(std::uint16_t index, std::uint32_t qpn) const {
  mlx5::ControlSegment control{};
  control.opmod_index_opcode = std::uint32_t{index} << 8 | static_cast<std::uint32_t>(opcode_);
  control.qpn_ds = qpn << mlx5::kQpnShift |
                   static_cast<std::uint32_t>((sizeof control + segments_.size()) / mlx5::kSegmentBytes);
  control.fm_ce_se = flags_;
  std::vector<std::byte> wqe(blocks() * mlx5::kWqeBasicBlockBytes);
  std::memcpy(wqe.data(), &control, sizeof control);
  std::ranges::copy(segments_, wqe.begin() + sizeof control);
  return wqe;
}

Loopback::Loopback(EndpointPair pair) : pair_(std::move(pair)), handle_(pair_.endpoint.handle()) {}

Result<Loopback> Loopback::open(const Hca& hca, const PairOptions& options) {
  return Loopback(GDX_TRY(EndpointPair::open(hca, options)));
}

std::uint16_t Loopback::post(const WorkRequest& request) {
  const auto index = next_index();
  const std::vector<std::byte> wqe = request.encode(index, handle_.qpn);
  const std::uint32_t mask = (1u << handle_.log_send_queue) - 1;
  for (std::uint32_t block = 0; block < request.blocks(); ++block) {
    std::memcpy(handle_.send_queue[(producer_ + block) & mask].bytes,
                wqe.data() + block * mlx5::kWqeBasicBlockBytes, mlx5::kWqeBasicBlockBytes);
  }
  newest_ = producer_;
  producer_ += static_cast<std::uint32_t>(request.blocks());
  return index;
}

void Loopback::publish() {
  exec::store_release<Placement::kHost>(handle_.send_record, Be32(producer_ & 0xffff));
  exec::write_combining_barrier();
}

void Loopback::ring() {
  publish();
  ring_for(static_cast<std::uint16_t>(newest_));
}

void Loopback::ring_for(std::uint16_t index) {
  const std::uint32_t mask = (1u << handle_.log_send_queue) - 1;
  std::uint64_t value = 0;
  std::memcpy(&value, handle_.send_queue[index & mask].bytes, sizeof value);
  exec::ring<Placement::kHost>(handle_.doorbell, value);
}

Completed Loopback::read_entry(std::uint32_t index) const {
  const std::uint32_t mask = (1u << handle_.log_completion_queue) - 1;
  auto* const words = reinterpret_cast<std::uint64_t*>(&handle_.completion_queue[index & mask]);
  std::array<std::uint64_t, 8> copied{};
  // The word of which the last byte is op_own, first: the HCA's newest store.
  copied[7] = std::atomic_ref(words[7]).load(std::memory_order_acquire);
  for (std::size_t i = 0; i < 7; ++i) copied[i] = std::atomic_ref(words[i]).load(std::memory_order_relaxed);
  return {std::bit_cast<mlx5::Cqe64>(copied)};
}

std::string Loopback::newest_entry() const { return read_entry(looked_at_).bytes(); }

std::optional<Completed> Loopback::poll() {
  looked_at_ = consumer_;
  const auto owner = static_cast<std::uint8_t>(consumer_ >> handle_.log_completion_queue & 1);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(kWaitS);
  while (std::chrono::steady_clock::now() < deadline) {
    const Completed completed = read_entry(consumer_);
    if (completed.opcode() != mlx5::CqeOpcode::kInvalid &&
        (completed.cqe.op_own & mlx5::kCqeOwnerMask) == owner) {
      ++consumer_;
      return completed;
    }
    std::this_thread::yield();
  }
  return std::nullopt;
}

}  // namespace gdx::doctor
