// A team of records that tests fill in, each with a NIC that serves. Ranks differ in their way.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "device/team.h"
#include "tests/unit/device/serving_nic.h"

namespace gdx::device {

inline constexpr std::size_t kHeapBytes = 4096;
inline constexpr std::size_t kWindowBytes = 512;
inline constexpr std::uint64_t kRemoteHeap = 0x7000'0000'0000;  // as the peers' NICs have it
inline constexpr std::uint64_t kRemoteWindow = 0x7100'0000'0000;
inline constexpr std::uint32_t kSize = 5;

// Ranks of the team, by their way.
inline constexpr std::uint32_t kOwn = 0;
inline constexpr std::uint32_t kNative = 1;
inline constexpr std::uint32_t kDirect = 2;
inline constexpr std::uint32_t kAbsent = 3;
inline constexpr std::uint32_t kMapped = 4;

// A rank's heap and second window, with bytes around them that nobody may touch.
struct RankMemory {
  alignas(64) std::array<std::byte, 64> before{};
  alignas(64) std::array<std::byte, kHeapBytes> heap{};
  alignas(64) std::array<std::byte, 64> between{};
  alignas(64) std::array<std::byte, kWindowBytes> window{};
};

class Team : public ::testing::Test {
 protected:
  void SetUp() override {
    for (std::uint32_t i = 0; i < 2 * kSize; ++i) {
      nics_.push_back(std::make_unique<ServingNic>());
      nics_.back()->probe_after_ns = 1'000;
      nics_.back()->modes = {0, 0, kNoSizeLimit};
    }
    for (std::uint32_t rank = 0; rank < kSize; ++rank) ranks_.push_back(std::make_unique<RankMemory>());
    handle_.layout = team_layout(Placement::kHost);
    handle_.size = kSize;
    handle_.lanes = 2;
    handle_.window_count = 2;
    handle_.most_bytes = kHeapBytes;
    handle_.peers = records_.data();
    handle_.pool_peers = records_.data();
    handle_.pool_peer_count = 2 * kSize;
    handle_.fault = &fault_;
    handle_.abort = &abort_;
    handle_.timeout_ns = 60'000'000'000;
    handle_.probe_after_ns = 1'000;
    handle_.progress = progress;
    handle_.windows[0] = {ranks_[kOwn]->heap.data(), kHeapBytes, 0x11, 0};
    handle_.windows[1] = {ranks_[kOwn]->window.data(), kWindowBytes, 0x12, 0};
    running = this;
    for (const std::uint32_t lane : {0u, 1u}) {
      connect(lane, kOwn, PeerWay::kDirect);
      connect(lane, kNative, PeerWay::kNative);
      connect(lane, kDirect, PeerWay::kDirect);
      connect(lane, kAbsent, PeerWay::kNone);
      connect(lane, kMapped, PeerWay::kMapped);
    }
  }

  TeamPeer& record(std::uint32_t lane, std::uint32_t rank) { return records_[lane * kSize + rank]; }
  ServingNic& nic(std::uint32_t rank, std::uint32_t lane = 0) { return *nics_[lane * kSize + rank]; }

  void connect(std::uint32_t lane, std::uint32_t rank, PeerWay way) {
    TeamPeer& peer = record(lane, rank);
    const bool mapped = way == PeerWay::kDirect || way == PeerWay::kMapped;
    peer.asked = &asked_[lane * kSize + rank];
    peer.set_endpoint(nic(rank, lane).handle());
    peer.set_window(0, {kRemoteHeap, 0x77, 0, mapped ? ranks_[rank]->heap.data() : nullptr}, heap());
    peer.set_window(1, {kRemoteWindow, 0x78, 0, mapped ? ranks_[rank]->window.data() : nullptr}, heap());
    std::atomic_ref<std::uint64_t>(reinterpret_cast<std::uint64_t&>(peer))
        .store(peer.first_word(way), std::memory_order_release);
  }

  std::byte* heap() { return ranks_[kOwn]->heap.data(); }
  std::uint64_t* word(std::size_t index) { return reinterpret_cast<std::uint64_t*>(heap()) + index; }
  static std::uint64_t& word_of(RankMemory& memory, std::size_t index) {
    return reinterpret_cast<std::uint64_t*>(memory.heap.data())[index];
  }

  // Runs `body(team)` in each of `threads` threads of one block, then serves the rest.
  template <typename Body>
  void in_kernel(Body body, unsigned threads = 1) {
    handle_.copy = &copy_;
    copy_ = handle_;
    ASSERT_EQ(exec::launch(
                  {.block = {threads}}, [&](const TeamHandle& team) { body(team); }, handle_),
              Status::kOk);
    while (progress() != 0) {
    }
  }
  template <typename Body>
  Status status_of(Body body) {
    Status status = Status::kPending;
    in_kernel([&](const TeamHandle& team) { status = body(team); });
    return status;
  }

  static int progress() {
    int done = 0;
    for (const auto& nic : running->nics_) done += nic->step() ? 1 : 0;
    if (running->on_progress_) running->on_progress_();
    return done;
  }

  std::size_t posted() {
    std::size_t total = 0;
    for (const auto& nic : nics_) total += nic->requests().size();
    return total;
  }

  static inline Team* running = nullptr;
  std::vector<std::unique_ptr<ServingNic>> nics_;
  std::vector<std::unique_ptr<RankMemory>> ranks_;
  std::array<TeamPeer, 2 * kSize> records_{};
  std::array<std::uint32_t, 2 * kSize> asked_{};
  std::function<void()> on_progress_;
  TeamFault fault_{};
  std::uint32_t abort_ = 0;
  TeamHandle handle_{};
  TeamHandle copy_{};
};

}  // namespace gdx::device
