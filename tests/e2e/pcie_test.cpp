// PCIe transactions of a put, as the HCA counts them: push is there to avoid reads.
#include <atomic>
#include <cstring>
#include <numeric>

#include "proto/mlx5/doorbell.h"
#include "tests/e2e/comes_true.h"
#include "tests/e2e/pair.h"

namespace gdx {
namespace pcie_test {

constexpr std::uint64_t kPuts = 20;

class Pcie : public Pair {
 protected:
  Pcie() { doorbell_ = DoorbellKind::kBlueFlame; }

  struct Cost {
    std::uint64_t record_reads = 0;
    std::uint64_t wqe_reads = 0;
    std::uint64_t payload_reads = 0;
    std::uint64_t doorbell_writes = 0;
    std::uint64_t payload_writes = 0;
    std::uint64_t cqe_writes = 0;
    std::uint64_t blueflame_torn = 0;
  };

  void SetUp() override {
    Pair::SetUp();
    std::iota(reinterpret_cast<std::uint8_t*>(a_.buffer->data()),
              reinterpret_cast<std::uint8_t*>(a_.buffer->data()) + kBufferBytes / 2, std::uint8_t{1});
  }

  [[nodiscard]] Cost total() const {
    return {counter("softhca_pcie_record_reads"),   counter("softhca_pcie_wqe_reads"),
            counter("softhca_pcie_payload_reads"),  counter("softhca_pcie_doorbell_writes"),
            counter("softhca_pcie_payload_writes"), counter("softhca_pcie_cqe_writes"),
            counter("softhca_blueflame_torn")};
  }

  [[nodiscard]] Cost since(const Cost& before) const {
    const Cost after = total();
    return {after.record_reads - before.record_reads,     after.wqe_reads - before.wqe_reads,
            after.payload_reads - before.payload_reads,   after.doorbell_writes - before.doorbell_writes,
            after.payload_writes - before.payload_writes, after.cqe_writes - before.cqe_writes,
            after.blueflame_torn - before.blueflame_torn};
  }

  // Returns the cost of `run()`. Measures again while packets were sent again: that reads payload once more.
  template <typename Run>
  [[nodiscard]] Cost cost_without_resends(Run run) const {
    constexpr const char* kResends = "softhca_retransmitted_packets";
    Cost cost;
    EXPECT_TRUE(comes_true([&] {
      const std::uint64_t resends_before = counter(kResends);
      const Cost before = total();
      run();
      cost = since(before);
      return counter(kResends) == resends_before;
    }));
    return cost;
  }

  // Returns the total cost of `body(endpoint)`, run kPuts times in a kernel with a flush after each. The
  // kernel is a warp of one thread, because a thread's own endpoint rings plainly.
  template <typename Body>
  Cost cost_of(const EndpointHandle& handle, Body body) {
    const auto kernel = [&](EndpointHandle h) {
      device::Endpoint<Scope::kWarp> ep(h);
      for (std::uint64_t i = 0; i < kPuts; ++i) {
        ASSERT_EQ(body(ep), Status::kOk);
        ASSERT_EQ(gdx_flush(ep), Status::kOk);
      }
    };
    return cost_without_resends(
        [&] { EXPECT_EQ(exec::launch({.progress = progress_}, kernel, handle), Status::kOk); });
  }

  // Returns the cost of one message that a warp puts in many chunks.
  template <Mode M>
  Cost cost_of_chunks(const EndpointHandle& handle, std::uint64_t bytes) {
    return cost_without_resends([&] { put_chunks<M>(handle, bytes); });
  }

  // Puts one message by a warp. A register in memory holds only the newest write to each half, whereas a NIC
  // gets every one. So another block makes the HCA look after each write.
  template <Mode M>
  void put_chunks(const EndpointHandle& handle, std::uint64_t bytes) {
    std::atomic<std::uint32_t> left{kWarpThreads};
    const auto rung = [](EndpointHandle h, std::size_t half) {
      return std::atomic_ref(h.doorbell[half / sizeof(std::uint64_t)]).load(std::memory_order_relaxed) != 0;
    };
    const auto kernel = [&](EndpointHandle h) {
      if (blockIdx.x == 1) {
        while (threadIdx.x == 0 && left != 0) {
          if (rung(h, 0) || rung(h, mlx5::kBlueFlameBufferBytes)) {
            (void)progress_();
          } else {
            exec::yield();
          }
        }
        return;
      }
      device::Endpoint<Scope::kWarp> ep(h);
      EXPECT_EQ(gdx_put<M>(ep, a_.peer, a_.buffer->local(), bytes), Status::kOk);
      EXPECT_EQ(gdx_flush(ep), Status::kOk);
      --left;
    };
    const exec::LaunchConfig config{.grid = {2}, .block = {kWarpThreads}, .progress = progress_};
    EXPECT_EQ(exec::launch(config, kernel, handle), Status::kOk);
  }

  // Gives `a_` an endpoint that may hold so few slots that a quarter of them is two.
  void hold_eight_slots() {
    auto endpoint = Endpoint::create(*hca_, {staging_.get(), bounce_.get()},
                                     {.slot_count = 8, .bounce_slot_count = 8, .doorbell = doorbell_});
    ASSERT_TRUE(endpoint) << endpoint.error().message;
    *a_.endpoint = std::move(*endpoint);
    auto peer = Endpoint::create(*hca_, staging_.get(), {.slot_count = 1});
    ASSERT_TRUE(peer) << peer.error().message;
    *b_.endpoint = std::move(*peer);
    ASSERT_TRUE(a_.endpoint->connect(b_.endpoint->address()));
    ASSERT_TRUE(b_.endpoint->connect(a_.endpoint->address()));
  }

  template <Mode M>
  auto put(std::uint64_t bytes) {
    return [this, bytes](auto& ep) { return gdx_put<M>(ep, a_.peer, a_.buffer->local(), bytes); };
  }

  [[nodiscard]] bool arrived(std::uint64_t bytes) const {
    return std::memcmp(a_.buffer->data(), b_.buffer->data(), bytes) == 0;
  }

  // Every put writes one doorbell, one payload at the peer, and one completion.
  static void expect_writes(const Cost& cost) {
    EXPECT_EQ(cost.doorbell_writes, kPuts);
    EXPECT_EQ(cost.payload_writes, kPuts);
    EXPECT_EQ(cost.cqe_writes, kPuts);
  }
};

class PlainPcie : public Pcie {
 protected:
  PlainPcie() { doorbell_ = DoorbellKind::kPlain; }
};

TEST_F(Pcie, push_with_blueflame_costs_no_read) {
  const Cost cost = cost_of(a_.endpoint->handle(), put<Mode::kPush>(4096));
  EXPECT_EQ(cost.record_reads + cost.wqe_reads + cost.payload_reads, 0u);
  EXPECT_EQ(cost.blueflame_torn, 0u);
  expect_writes(cost);
  EXPECT_TRUE(arrived(4096));
}

TEST_F(Pcie, short_inline_with_blueflame_costs_no_read) {
  const Cost cost = cost_of(a_.endpoint->handle(), put<Mode::kInline>(28));
  EXPECT_EQ(cost.record_reads + cost.wqe_reads + cost.payload_reads, 0u);
  expect_writes(cost);
  EXPECT_TRUE(arrived(28));
}

TEST_F(PlainPcie, push_costs_record_and_wqe) {
  const Cost cost = cost_of(a_.endpoint->handle(), put<Mode::kPush>(4096));
  EXPECT_EQ(cost.record_reads, kPuts);
  EXPECT_EQ(cost.wqe_reads, kPuts);
  EXPECT_EQ(cost.payload_reads, 0u);
  expect_writes(cost);
}

TEST_F(PlainPcie, pull_fetches_wqe_and_payload) {
  const Cost cost = cost_of(a_.endpoint->handle(), put<Mode::kPull>(4096));
  EXPECT_EQ(cost.wqe_reads, kPuts);
  EXPECT_EQ(cost.payload_reads, kPuts);
  EXPECT_EQ(cost.record_reads, kPuts);
  expect_writes(cost);
  EXPECT_TRUE(arrived(4096));
}

TEST_F(Pcie, pull_with_blueflame_still_fetches_its_payload) {
  const Cost cost = cost_of(a_.endpoint->handle(), put<Mode::kPull>(4096));
  EXPECT_EQ(cost.record_reads + cost.wqe_reads, 0u);
  EXPECT_EQ(cost.payload_reads, kPuts);
}

template <Mode M>
constexpr auto kPutSignal =
    [](auto& ep, RemoteMemory to, LocalMemory from, std::uint64_t bytes, SignalOp op) {
      return gdx_put_signal<M>(ep, to, from, bytes, to + 65536, 1, op);
    };

TEST_F(Pcie, put_and_signal_with_blueflame_cost_no_read_but_a_pulls_payload) {
  const auto reads = [&](auto put_signal, std::uint64_t bytes, SignalOp op) {
    const Cost cost = cost_of(a_.endpoint->handle(), [&](auto& ep) {
      return put_signal(ep, a_.peer, a_.buffer->local(), bytes, op);
    });
    EXPECT_EQ(cost.record_reads + cost.wqe_reads + cost.blueflame_torn, 0u);
    EXPECT_EQ(cost.doorbell_writes, 2 * kPuts) << "one for each";
    EXPECT_TRUE(arrived(bytes));
    return cost.payload_reads;
  };
  for (const SignalOp op : {SignalOp::kSet, SignalOp::kAdd}) {
    const std::uint64_t at_peer = op == SignalOp::kAdd ? kPuts : 0;  // an atomic reads what it changes
    EXPECT_EQ(reads(kPutSignal<Mode::kPush>, 4096, op), at_peer);
    EXPECT_EQ(reads(kPutSignal<Mode::kInline>, 28, op), at_peer);
    EXPECT_EQ(reads(kPutSignal<Mode::kAuto>, 100, op), at_peer);
    EXPECT_EQ(reads(kPutSignal<Mode::kPull>, 4096, op), at_peer + kPuts);
    EXPECT_EQ(reads(kPutSignal<Mode::kBounce>, 4096, op), at_peer + kPuts);
  }
}

TEST_F(PlainPcie, put_and_signal_share_a_doorbell) {
  const Cost cost = cost_of(a_.endpoint->handle(), [&](auto& ep) {
    return gdx_put_signal<Mode::kPush>(ep, a_.peer, a_.buffer->local(), 4096, a_.peer + 8192, 1);
  });
  EXPECT_EQ(cost.doorbell_writes, kPuts);
  EXPECT_EQ(cost.record_reads, kPuts);
  EXPECT_EQ(cost.wqe_reads, 2 * kPuts);
}

TEST_F(Pcie, push_of_many_chunks_with_blueflame_costs_no_read) {
  constexpr std::uint64_t kChunks = 101;
  hold_eight_slots();
  const Cost cost = cost_of_chunks<Mode::kPush>(a_.endpoint->handle(), kChunks * kDefaultSlotBytes);
  EXPECT_EQ(cost.record_reads, 0u);
  EXPECT_EQ(cost.wqe_reads, 0u);
  EXPECT_EQ(cost.payload_reads, 0u);
  EXPECT_EQ(cost.doorbell_writes, kChunks);
  EXPECT_EQ(staging_violations(), 0u);
  EXPECT_TRUE(arrived(kChunks * kDefaultSlotBytes));
}

TEST_F(Pcie, bounce_of_many_chunks_with_blueflame_reads_its_payload_only) {
  hold_eight_slots();
  const Cost cost = cost_of_chunks<Mode::kBounce>(a_.endpoint->handle(), 32 * 16384);
  EXPECT_EQ(cost.record_reads, 0u);
  EXPECT_EQ(cost.wqe_reads, 0u);
  EXPECT_EQ(cost.payload_reads, 32u * 4) << "one a packet";
}

// Guards the two tests above: without it they would not cover chunks that are rung together.
TEST_F(PlainPcie, push_of_many_chunks_rings_once_for_several) {
  constexpr std::uint64_t kChunks = 101;
  hold_eight_slots();
  const Cost cost = cost_of_chunks<Mode::kPush>(a_.endpoint->handle(), kChunks * kDefaultSlotBytes);
  EXPECT_LT(cost.doorbell_writes, kChunks * 3 / 4);
  EXPECT_EQ(cost.wqe_reads, kChunks);
  EXPECT_TRUE(arrived(kChunks * kDefaultSlotBytes));
}

// The last 16 B of the WQE, where its data is named, never reach the register, or are another WQE's.
TEST_F(Pcie, torn_blueflame_copy_is_fetched_from_the_ring) {
  for (const std::uint32_t found_there : {0u, 0x41414141u}) {
    std::memset(b_.buffer->data(), 0, 4096);
    const Cost cost = cost_of(a_.endpoint->handle(), [&](auto& ep) {
      const Status posted = gdx_put<Mode::kPull>(ep, a_.peer, a_.buffer->local(), 4096, Doorbell::kDefer);
      if (posted != Status::kOk) return posted;
      const EndpointHandle& h = ep.handle();
      const std::uint32_t newest = device::impl::Access::state_of(ep).take_blocks(1) - 1;
      exec::Segment wqe[4];
      std::memcpy(wqe, h.send_queue[newest & ((1u << h.log_send_queue) - 1)].bytes, sizeof wqe);
      wqe[2] = wqe[3] = {{found_there, found_there, found_there, found_there}};
      exec::store_release<Placement::kHost>(h.send_record,
                                            device::impl::Access::state_of(ep).take_blocks(1) & 0xffff);
      exec::fence_release<Placement::kHost>();
      exec::store_blueflame<Scope::kWarp>(h.doorbell, wqe);
      return Status::kOk;
    });
    EXPECT_EQ(cost.wqe_reads, kPuts);
    EXPECT_EQ(cost.blueflame_torn, kPuts);
    EXPECT_TRUE(arrived(4096));
  }
}

}  // namespace pcie_test
}  // namespace gdx
