// Environment of a device node whose program is the fuzzer: a wire that returns sent packets, the program's
// event channels, and the memory that its requests may name.
#pragma once

#include <sys/mman.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "driver-shim/softhca/engine/engine.h"
#include "driver-shim/softhca/uverbs/context.h"
#include "driver-shim/softhca/uverbs/real.h"
#include "driver-shim/softhca/wire/wire.h"
#include "proto/mlx5/wqe.h"
#include "tests/fuzz/input.h"

namespace gdx::softhca::uverbs {

using fuzz::Input;

inline constexpr std::size_t kArenaBytes = 64 * 1024;
inline constexpr std::size_t kGuardBytes = 64 * 1024;  // no range that a request names is longer, or it wraps
inline constexpr std::size_t kMaxPackets = 32;

class EchoWire final : public wire::Wire {
 public:
  explicit EchoWire(const wire::Address& local = wire::Address::ipv4(0x7f000002)) : local_(local) {}
  const wire::Address& local() const override { return local_; }
  std::size_t room(const wire::Address& /*destination*/) override { return kMaxPackets; }
  std::span<std::byte> begin_packet(const wire::Address& /*destination*/) override { return packet_; }
  void commit_packet(const wire::Address& /*destination*/, std::size_t length_bytes) override {
    fuzz::expect(length_bytes <= packet_.size(), "a packet fits its buffer");
    if (packets_.size() == kMaxPackets) return;
    packets_.emplace_back(packet_.begin(), packet_.begin() + static_cast<long>(length_bytes));
  }
  void flush() override {}
  std::size_t receive(std::size_t /*max_packets*/, const Sink& sink) override {
    std::deque<std::vector<std::byte>> arrived;
    arrived.swap(packets_);
    for (const auto& packet : arrived) sink(local_, packet);
    return arrived.size();
  }
  int poll_fd() const override { return -1; }
  bool arm() override { return packets_.empty(); }
  const wire::WireCounters& counters() const override { return counters_; }

 private:
  wire::Address local_;
  std::array<std::byte, 4096 + 64> packet_;
  std::deque<std::vector<std::byte>> packets_;
  wire::WireCounters counters_;
};

class Channels final : public ChannelRegistry {
 public:
  ~Channels() override {
    for (const auto& [fd, channel] : channels_) real_close(fd);
  }
  ErrnoOr<std::shared_ptr<EventChannel>> open_channel() override {
    ErrnoOr<std::shared_ptr<EventChannel>> channel = EventChannel::open();
    if (channel) channels_[(*channel)->user_fd()] = *channel;
    return channel;
  }
  ErrnoOr<std::shared_ptr<EventChannel>> find_channel(int user_fd) override {
    const auto found = channels_.find(user_fd);
    if (found == channels_.end()) return refuse(EBADF);
    return found->second;
  }

 private:
  std::map<int, std::shared_ptr<EventChannel>> channels_;
};

// The only memory that requests may name: what lies on either side of it answers EFAULT.
class Arena {
 public:
  Arena() {
    void* const all =
        mmap(nullptr, kArenaBytes + 2 * kGuardBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fuzz::expect(all != MAP_FAILED, "address space");
    base_ = static_cast<std::uint8_t*>(all) + kGuardBytes;
    fuzz::expect(mprotect(base_, kArenaBytes, PROT_READ | PROT_WRITE) == 0, "memory");
  }
  ~Arena() { munmap(base_ - kGuardBytes, kArenaBytes + 2 * kGuardBytes); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  std::uint8_t* data() { return base_; }
  [[nodiscard]] bool holds(const void* at, std::uint64_t bytes) const {
    const std::uint64_t offset =
        reinterpret_cast<std::uintptr_t>(at) - reinterpret_cast<std::uintptr_t>(base_);
    return offset <= kArenaBytes && bytes <= kArenaBytes - offset;
  }
  std::uint64_t address(Input& input) {
    const auto choice = input.take<std::uint16_t>();
    if (choice % 32 == 31) return 0x10;
    return reinterpret_cast<std::uintptr_t>(base_) + choice % (kArenaBytes / 64) * 64 +
           (choice >> 14 == 3 ? 4 : 0);
  }

 private:
  std::uint8_t* base_;
};

// The HCA, which raises an alarm when it is given memory that is not the program's: whatever gets so far is
// used.
class WatchedEngine final : public Engine {
 public:
  // Returns true where [at, at + bytes) is the program's: its own memory, or device memory that it was given.
  using Owns = std::function<bool(const void* at, std::uint64_t bytes, bool device_memory)>;

  template <typename... Arguments>
  explicit WatchedEngine(Owns owns, Arguments&&... arguments)
      : Engine(std::forward<Arguments>(arguments)...), owns_(std::move(owns)) {}

  ErrnoOr<std::uint32_t> register_memory(const MemoryRegionSpec& spec) override {
    check(spec);
    return Engine::register_memory(spec);
  }
  Errno replace_memory(std::uint32_t mkey, const MemoryRegionSpec& spec) override {
    check(spec);
    return Engine::replace_memory(mkey, spec);
  }
  ErrnoOr<std::uint32_t> create_cq(const CompletionQueueSpec& spec) override {
    check(spec.ring, std::uint64_t{spec.entry_bytes} << spec.log_entries);
    check(spec.doorbell_record, 2 * sizeof *spec.doorbell_record);
    const ErrnoOr<std::uint32_t> made = Engine::create_cq(spec);
    if (made) entry_bytes_[*made] = spec.entry_bytes;
    return made;
  }
  Errno resize_cq(std::uint32_t cqn, std::byte* ring, std::uint32_t log_entries) override {
    check(ring, std::uint64_t{entry_bytes_.at(cqn)} << log_entries);
    return Engine::resize_cq(cqn, ring, log_entries);
  }
  ErrnoOr<std::uint32_t> create_srq(const SharedReceiveQueueSpec& spec) override {
    check(spec.ring, std::uint64_t{spec.entries} * spec.stride_bytes);
    check(spec.doorbell_record, sizeof *spec.doorbell_record);
    return Engine::create_srq(spec);
  }
  ErrnoOr<std::uint32_t> create_qp(const QueuePairSpec& spec) override {
    check(spec.send_ring, std::uint64_t{spec.send_blocks} * mlx5::kWqeBasicBlockBytes);
    check(spec.receive_ring, std::uint64_t{spec.receive_entries} * spec.receive_stride_bytes);
    check(spec.doorbell_record, 2 * sizeof *spec.doorbell_record);
    return Engine::create_qp(spec);
  }

 private:
  void check(const void* at, std::uint64_t bytes) const {
    fuzz::expect(bytes == 0 || owns_(at, bytes, false), "a queue lies in the program's memory");
  }
  // Memory paged on demand need not exist before it is used, and may be all that the process has.
  void check(const MemoryRegionSpec& spec) const {
    if (spec.umr || !spec.pieces.empty()) return;
    const auto first = reinterpret_cast<std::uintptr_t>(spec.base);
    const bool whole = first == 0 && spec.length_bytes == ~std::uint64_t{0};
    const bool holds = (spec.access & kOnDemand) != 0
                           ? whole || first + spec.length_bytes >= first
                           : owns_(spec.base, spec.length_bytes, spec.device_memory);
    fuzz::expect(holds, "a region covers nobody else's memory");
  }

  Owns owns_;
  std::map<std::uint32_t, std::uint32_t> entry_bytes_;  // by completion queue
};

}  // namespace gdx::softhca::uverbs
