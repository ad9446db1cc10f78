// Rounds of all-to-all, incast and all-reduce: one block has an endpoint to each other rank.
#pragma once

#include <new>

#include "device/endpoint.h"
#include "host/programs/bench/load.h"

namespace gdx::bench {

// A part of all floats, in bytes.
struct RingPart {
  std::uint64_t at;
  std::uint64_t bytes;
};
GDX_DEVICE RingPart part_of(const Load& load, std::uint32_t index) {
  const std::uint64_t count = load.bytes / sizeof(float);
  const std::uint64_t begin = count * index / load.ranks;
  const std::uint64_t end = count * (index + 1) / load.ranks;
  return {begin * sizeof(float), (end - begin) * sizeof(float)};
}

template <Mode M, Scope S>
class Collective {
 public:
  GDX_DEVICE Collective(const Lane* lanes, const Load& load) : load_(load), count_(lanes_of(load)) {
    for (std::uint32_t i = 0; i < count_; ++i) {
      lanes_[i] = lanes[i];
      new (endpoints_[i]) Peer(lanes_[i].endpoint);
      keep(i, peer(i).status());
    }
  }
  GDX_DEVICE ~Collective() {
    for (std::uint32_t i = 0; i < count_; ++i) peer(i).~Peer();
  }
  Collective(const Collective&) = delete;
  Collective& operator=(const Collective&) = delete;

  GDX_DEVICE Status status() const { return status_; }
  GDX_DEVICE std::uint32_t failed_lane() const { return failed_lane_; }

  // Runs round number `round`, from 0, to its end at this rank.
  GDX_DEVICE Status run(std::uint64_t round) {
    const std::uint64_t value = load_.first_sequence + round * signals_of_message(load_);
    switch (load_.operation) {
      case Operation::kAllToAll: return all_to_all(value);
      case Operation::kIncast: return incast(value);
      default: return all_reduce(value);
    }
  }
  GDX_DEVICE Status flush() {
    for (std::uint32_t i = 0; i < count_ && status_ == Status::kOk; ++i) keep(i, gdx_flush(peer(i)));
    return status_;
  }

 private:
  using Peer = device::Endpoint<S>;

  GDX_DEVICE Peer& peer(std::uint32_t lane) { return *reinterpret_cast<Peer*>(endpoints_[lane]); }
  GDX_DEVICE void keep(std::uint32_t lane, Status status) {
    if (status_ != Status::kOk || status == Status::kOk) return;
    status_ = status;
    failed_lane_ = lane;
  }
  // Out of line, because nvcc takes minutes over copies of it in each operation.
  GDX_OUT_OF_LINE void put(std::uint32_t lane, RemoteMemory to, LocalMemory from, std::uint64_t bytes,
                           std::uint64_t value) {
    keep(lane, gdx_put_signal<M>(peer(lane), to, from, bytes, lanes_[lane].peer_signals + 8 * kData, value));
  }
  GDX_OUT_OF_LINE void wait(std::uint32_t lane, std::uint64_t value) {
    keep(lane, gdx_wait(peer(lane), lanes_[lane].signals + kData, Compare::kGreaterEqual, value));
  }
  GDX_DEVICE Status wait_for_all(std::uint64_t value) {
    for (std::uint32_t i = 0; i < count_ && status_ == Status::kOk; ++i) wait(i, value);
    return status_;
  }

  // Begins with the next rank, so that no rank is everybody's first.
  GDX_DEVICE Status all_to_all(std::uint64_t value) {
    for (std::uint32_t i = 0; i < count_ && status_ == Status::kOk; ++i)
      put(i, lanes_[i].peer_sink, lanes_[i].source, load_.bytes, value);
    return wait_for_all(value);
  }

  // Rank 0 starts the others, and waits for them.
  GDX_DEVICE Status incast(std::uint64_t value) {
    if (load_.rank == 0) {
      for (std::uint32_t i = 0; i < count_ && status_ == Status::kOk; ++i)
        keep(i, gdx_signal(peer(i), lanes_[i].peer_signals + 8 * kData, value));
      return wait_for_all(value);
    }
    const std::uint32_t root = count_ - load_.rank;  // the lane to rank 0
    wait(root, value);
    if (status_ == Status::kOk) put(root, lanes_[root].peer_sink, lanes_[root].source, load_.bytes, value);
    return status_;
  }

  // Parts go round the ring twice: they are summed on the first way, and sums are handed on in the second. At
  // each rank the lane from its left neighbour has floats in its source, sums in its sink, and behind them
  // the parts that come to be summed. Whoever has a sum of the second way knows that all such parts were
  // read. The flush permits the next round to change sums that a pull reads.
  GDX_DEVICE Status all_reduce(std::uint64_t value) {
    const std::uint32_t right = 0;
    const std::uint32_t left = count_ - 1;
    const LocalMemory floats = lanes_[left].source;
    const LocalMemory sums = lanes_[left].sink;
    const std::uint32_t ranks = load_.ranks;
    for (std::uint32_t step = 0; step < 2 * count_ && status_ == Status::kOk; ++step) {
      const bool adds = step < count_;
      const RingPart mine = part_of(load_, (load_.rank + 2 * ranks - step) % ranks);
      const RemoteMemory to = lanes_[right].peer_sink + mine.at + (adds ? load_.stride_bytes : 0);
      put(right, to, (step == 0 ? floats : sums) + mine.at, mine.bytes, value + step);
      if (status_ == Status::kOk) wait(left, value + step);
      if (status_ == Status::kOk && adds)
        add(sums.address, floats.address, part_of(load_, (load_.rank + 2 * ranks - step - 1) % ranks));
    }
    if (status_ == Status::kOk) keep(right, gdx_flush(peer(right)));
    return status_;
  }
  GDX_DEVICE void add(std::byte* sums, const std::byte* floats, RingPart part) const {
    auto* const sum = reinterpret_cast<float*>(sums + part.at);
    const auto* const own = reinterpret_cast<const float*>(floats + part.at);
    const auto* const come = reinterpret_cast<const float*>(sums + load_.stride_bytes + part.at);
    for (std::uint64_t i = exec::thread_rank<S>(); i < part.bytes / sizeof(float);
         i += exec::thread_count<S>())
      sum[i] = own[i] + come[i];
  }

  const Load& load_;
  const std::uint32_t count_;
  Status status_ = Status::kOk;
  std::uint32_t failed_lane_ = 0;
  Lane lanes_[kMostRanks - 1];  // copies, because a kernel of a GPU loads host memory slowly
  alignas(Peer) std::byte endpoints_[kMostRanks - 1][sizeof(Peer)];
};

}  // namespace gdx::bench
