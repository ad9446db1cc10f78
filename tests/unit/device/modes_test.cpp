// Bounces, and what Mode::kAuto takes for which size.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "tests/unit/device/memory_nic.h"
#include "tests/unit/device/serving_nic.h"

namespace gdx::device {
namespace modes_test {

constexpr RemoteMemory kTarget{0x10000, 1 << 20, 0xaabbccdd, 0};
constexpr std::uint32_t kSourceLkey = 0x50000000;
constexpr std::uint32_t kSlotBytes = MemoryNic::kSlotBytes;

MemoryNic* serving = nullptr;
int serve() { return serving->complete_published() ? 1 : 0; }

struct Message {
  explicit Message(std::size_t size) : bytes(size) {
    for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 13 + i / 256);
  }
  [[nodiscard]] LocalMemory local() { return {bytes.data(), bytes.size(), kSourceLkey, 0}; }

  std::vector<std::byte> bytes;
};

TEST(Bounce, message_within_the_pool_fills_slots_in_order) {
  MemoryNic nic;
  Message message(3 * kSlotBytes + 10);
  in_kernel<Scope::kWarp>(
      nic,
      [&](auto& ep) {
        EXPECT_EQ(gdx_put<Mode::kBounce>(ep, kTarget, message.local(), message.bytes.size()), Status::kOk);
      },
      nullptr, kWarpThreads);
  EXPECT_TRUE(std::equal(message.bytes.begin(), message.bytes.end(), nic.bounce()));
  EXPECT_EQ(nic.record(), 4u);
  for (std::uint32_t k = 0; k < 4; ++k) {
    const auto data = nic.segment<mlx5::DataSegment>(k, 32);
    EXPECT_EQ(data.lkey, MemoryNic::kBounceLkey);
    EXPECT_EQ(data.address, 0x9000u + k * kSlotBytes);
    EXPECT_EQ(data.byte_count, k == 3 ? 10u : kSlotBytes);
    EXPECT_EQ(nic.segment<mlx5::RemoteAddressSegment>(k, 16).address, kTarget.address + k * kSlotBytes);
  }
  EXPECT_EQ(nic.state().bounce.filled, 4u);
  EXPECT_EQ(nic.state().staging.filled, 0u);
  EXPECT_EQ(nic.state().messages, 1u);
}

TEST(Bounce, message_beyond_the_pool_flows_as_credits_return) {
  MemoryNic nic;
  serving = &nic;
  Message message(1000 * kSlotBytes);
  in_kernel(
      nic,
      [&](auto& ep) {
        ASSERT_EQ(gdx_put<Mode::kBounce>(ep, kTarget, message.local(), message.bytes.size()), Status::kOk);
        ASSERT_EQ(gdx_flush(ep), Status::kOk);
      },
      serve);
  EXPECT_EQ(nic.state().bounce.filled, 1000u);
  EXPECT_EQ(nic.state().bounce.ready - nic.state().bounce.filled, MemoryNic::kSlots) << "all came back";
  EXPECT_EQ(nic.state().messages, 1u);
  const std::byte* const last = nic.bounce() + 999 % MemoryNic::kSlots * kSlotBytes;
  EXPECT_TRUE(std::equal(last, last + kSlotBytes, message.bytes.end() - kSlotBytes));
}

TEST(Bounce, no_credit_left_leaves_every_held_slot_alone) {
  MemoryNic nic;
  nic.timeout_ns = 1'000'000;
  Message message(7 * kSlotBytes);
  in_kernel(nic, [&](auto& ep) {
    EXPECT_EQ(gdx_put<Mode::kBounce>(ep, kTarget, message.local(), message.bytes.size()), Status::kTimeout);
    EXPECT_EQ(nic.bounce_requests().wanted, MemoryNic::kSlots + 3);
  });
  EXPECT_TRUE(std::equal(nic.bounce(), nic.bounce() + 4 * kSlotBytes, message.bytes.begin()));
  EXPECT_EQ(nic.state().bounce.stalls, 1u);
  EXPECT_EQ(nic.bounce_requests().wanted, MemoryNic::kSlots) << "the kernel has ended";
  EXPECT_EQ(nic.requests().wanted, 0u);
}

TEST(Bounce, slots_return_with_their_own_wqes_whatever_is_pushed_in_between) {
  MemoryNic nic;
  Message message(5 * kSlotBytes);
  in_kernel(nic, [&](auto& ep) {
    ASSERT_EQ(gdx_put<Mode::kPush>(ep, kTarget, message.local(), 64), Status::kOk);    // WQE 0
    ASSERT_EQ(gdx_put<Mode::kBounce>(ep, kTarget, message.local(), 64), Status::kOk);  // WQE 1
    ASSERT_EQ(gdx_put<Mode::kPush>(ep, kTarget, message.local(), 64), Status::kOk);    // WQE 2
    nic.complete(0);
  });
  EXPECT_EQ(nic.state().staging.returned, 1u);
  EXPECT_EQ(nic.state().bounce.returned, 0u);
  in_kernel(nic, [&](auto&) { nic.complete(1); });
  EXPECT_EQ(nic.state().staging.returned, 1u);
  EXPECT_EQ(nic.state().bounce.returned, 1u);
}

TEST(Bounce, lowered_limit_gives_back_when_credits_are_polled) {
  MemoryNic nic;
  serving = &nic;
  Message message(kSlotBytes);
  in_kernel(
      nic,
      [&](auto& ep) {
        for (std::uint32_t i = 0; i < MemoryNic::kSlots; ++i)
          ASSERT_EQ(gdx_put<Mode::kBounce>(ep, kTarget, message.local(), 64), Status::kOk);
        nic.limit_bounce(1);
        EXPECT_EQ(nic.bounce_requests().returned, 0u);
        ASSERT_TRUE(nic.complete_published());
        ASSERT_EQ(gdx_put<Mode::kBounce>(ep, kTarget, message.local(), 64), Status::kOk);
        EXPECT_EQ(nic.bounce_requests().returned, 3u);
      },
      serve);
}

TEST(Bounce, failed_endpoint_gives_every_slot_back) {
  MemoryNic nic;
  Message message(kSlotBytes);
  in_kernel(nic, [&](auto& ep) {
    ASSERT_EQ(gdx_put<Mode::kBounce>(ep, kTarget, message.local(), 64), Status::kOk);
    ASSERT_EQ(gdx_put<Mode::kBounce>(ep, kTarget, message.local(), 64, Doorbell::kDefer), Status::kOk);
    nic.fail(0, mlx5::Syndrome::kRemoteAccess);
    EXPECT_EQ(gdx_flush(ep), Status::kRemoteAccess);
    EXPECT_EQ(gdx_put<Mode::kBounce>(ep, kTarget, message.local(), 64), Status::kRemoteAccess);
    nic.fail(1, mlx5::Syndrome::kFlushed);
  });
  EXPECT_EQ(nic.bounce_requests().failed, 1u);
  EXPECT_EQ(nic.bounce_requests().returned, MemoryNic::kSlots);
}

// The kernel ends with a slot that the NIC has yet to flush. What was never rung it does not wait for, nor
// rings it.
TEST(Staged, failed_endpoint_waits_for_the_flush_of_its_slots) {
  const auto flush = [] {
    if (serving->written() != 1) return 0;
    serving->fail(1, mlx5::Syndrome::kFlushed);
    return 1;
  };
  for (const bool bounces : {false, true}) {
    MemoryNic nic;
    serving = &nic;
    Message message(kSlotBytes);
    in_kernel(
        nic,
        [&](auto& ep) {
          for (const Doorbell doorbell : {Doorbell::kRing, Doorbell::kRing, Doorbell::kDefer}) {
            ASSERT_EQ(bounces ? gdx_put<Mode::kBounce>(ep, kTarget, message.local(), 64, doorbell)
                              : gdx_put<Mode::kPush>(ep, kTarget, message.local(), 64, doorbell),
                      Status::kOk);
          }
          nic.fail(0, mlx5::Syndrome::kRemoteAccess);
          impl::Access::state_of(ep).drain();
          EXPECT_EQ(ep.status(), Status::kRemoteAccess);
        },
        flush);
    EXPECT_EQ((bounces ? nic.bounce_requests() : nic.requests()).returned, MemoryNic::kSlots);
    EXPECT_EQ((bounces ? nic.bounce_requests() : nic.requests()).failed, 1u);
    EXPECT_EQ(nic.record(), 2u);
  }
}

TEST(Bounce, endpoint_without_host_memory_says_unsupported) {
  MemoryNic nic;
  EndpointHandle handle = nic.handle();
  handle.bounce = {};
  nic.state().handle = handle;
  Message message(64);
  const auto kernel = [&](EndpointHandle h) {
    Endpoint<> ep(h);
    EXPECT_EQ(gdx_put<Mode::kBounce>(ep, kTarget, message.local(), 64), Status::kUnsupported);
  };
  ASSERT_EQ(exec::launch({}, kernel, handle), Status::kOk);
}

// The NIC is told of stored slots, a quarter at a time, while the rest is still to come.
TEST(Chunks, transmission_begins_before_the_last_chunk_is_stored) {
  static std::uint32_t told_first;
  for (const bool bounces : {false, true}) {
    MemoryNic nic;
    nic.modes = bounces ? ModeTable{0, 0, 0} : ModeTable{0, kNoSizeLimit, kNoSizeLimit};
    serving = &nic;
    told_first = 0;
    const auto note_and_serve = [] {
      if (told_first == 0) told_first = serving->record();
      return serve();
    };
    Message message(3 * MemoryNic::kSlots * kSlotBytes);
    in_kernel(
        nic,
        [&](auto& ep) {
          ASSERT_EQ(gdx_put(ep, kTarget, message.local(), message.bytes.size()), Status::kOk);
          ASSERT_EQ(gdx_flush(ep), Status::kOk);
        },
        note_and_serve);
    EXPECT_EQ(told_first, MemoryNic::kSlots) << "of 12 chunks, when the first credit was waited for";
  }
}

// Four slots are held, so each is a quarter: nothing waits here, and still all but the deferred last are out.
TEST(Chunks, each_quarter_of_the_slots_is_rung_when_it_is_stored) {
  for (const bool bounces : {false, true}) {
    MemoryNic nic;
    nic.modes = bounces ? ModeTable{0, 0, 0} : ModeTable{0, kNoSizeLimit, kNoSizeLimit};
    Message message(MemoryNic::kSlots * kSlotBytes);
    in_kernel(nic, [&](auto& ep) {
      ASSERT_EQ(gdx_put(ep, kTarget, message.local(), message.bytes.size(), Doorbell::kDefer), Status::kOk);
      EXPECT_EQ(nic.record(), MemoryNic::kSlots - 1);
    });
  }
}

// 32 slots, all granted to the one endpoint.
struct LargePool {
  static constexpr std::uint32_t kSlots = 32;
  alignas(64) std::array<std::byte, kSlots * kSlotBytes> memory{};
  std::uint64_t grants = pack_grants(kSlots, kSlots);
  std::array<std::uint32_t, kSlots> granted{};
  std::array<std::uint32_t, kSlots> returned{};
  std::array<HeldSlot, kSlots> held{};
  CreditRequests requests{};

  EndpointHandle put_into(MemoryNic& nic) {
    for (std::uint32_t i = 0; i < kSlots; ++i) granted[i] = i;
    EndpointHandle handle = nic.handle();
    handle.staging = {.base = memory.data(),
                      .nic_offset = 0x1000,
                      .grants = &grants,
                      .granted_slots = granted.data(),
                      .requests = &requests,
                      .returned_slots = returned.data(),
                      .held = held.data(),
                      .lkey = MemoryNic::kStagingLkey,
                      .slot_bytes = kSlotBytes,
                      .slot_count = kSlots,
                      .minimum_slots = kSlots};
    nic.state().handle = handle;
    return handle;
  }
};

// A quarter of 32 slots is eight.
TEST(Chunks, less_than_a_quarter_is_left_to_a_later_doorbell) {
  for (const std::uint32_t chunks : {7u, 8u, 9u, 15u}) {
    MemoryNic nic;
    LargePool pool;
    Message message(chunks * kSlotBytes);
    const auto kernel = [&](EndpointHandle handle) {
      Endpoint<> ep(handle);
      EXPECT_EQ(gdx_put<Mode::kPush>(ep, kTarget, message.local(), message.bytes.size(), Doorbell::kDefer),
                Status::kOk);
      EXPECT_EQ(nic.record(), chunks > 8 ? 8u : 0u);
    };
    ASSERT_EQ(exec::launch({}, kernel, pool.put_into(nic)), Status::kOk);
    EXPECT_EQ(nic.record(), chunks) << "of the endpoint's end";
  }
}

template <Scope S>
void expect_wide_slots_filled(unsigned threads) {
  constexpr std::uint32_t kWide = 512;  // of which two threads store a part each
  constexpr std::uint32_t kWideSlots = LargePool::kSlots * kSlotBytes / kWide;
  MemoryNic nic;
  LargePool pool;
  pool.put_into(nic);
  EndpointHandle& handle = nic.state().handle;
  handle.staging.slot_bytes = kWide;
  handle.staging.slot_count = handle.staging.minimum_slots = kWideSlots;
  pool.grants = pack_grants(kWideSlots, kWideSlots);
  Message message(kWideSlots * kWide - 100);
  const auto kernel = [&](EndpointHandle given) {
    Endpoint<S> ep(given);
    EXPECT_EQ(gdx_put<Mode::kPush>(ep, kTarget, message.local(), message.bytes.size()), Status::kOk);
  };
  ASSERT_EQ(exec::launch({.block = {threads}}, kernel, EndpointHandle(handle)), Status::kOk);
  EXPECT_TRUE(std::equal(message.bytes.begin(), message.bytes.end(), pool.memory.begin()));
  EXPECT_EQ(nic.record(), kWideSlots);
}

TEST(Chunks, slots_that_several_threads_fill_are_filled_whole) {
  expect_wide_slots_filled<Scope::kThread>(1);
  expect_wide_slots_filled<Scope::kWarp>(kWarpThreads);
  expect_wide_slots_filled<Scope::kBlock>(3 * kWarpThreads);
}

// A round of the CPU layer runs each thread that can run: how many a push takes, a spinning block counts.
// Each meeting of a warp takes one at least.
TEST(Chunks, warp_meets_for_each_quarter_of_the_slots_and_not_for_each_slot) {
  constexpr std::uint32_t kChunks = MemoryNic::kBlocks;  // two quarters of the pool; all that the queue takes
  MemoryNic nic;
  LargePool pool;
  Message message(kChunks * kSlotBytes);
  std::uint32_t rounds = 0;
  std::uint32_t over = 0;
  const auto kernel = [&](EndpointHandle handle) {
    if (blockIdx.x == 1) {
      for (; exec::load_counter(&over) == 0; exec::relax()) {
        if (threadIdx.x == 0) ++rounds;
      }
      return;
    }
    Endpoint<Scope::kWarp> ep(handle);
    EXPECT_EQ(gdx_put<Mode::kPush>(ep, kTarget, message.local(), message.bytes.size()), Status::kOk);
    if (ep.is_leader()) exec::publish(&over, 1);
  };
  const EndpointHandle handle = pool.put_into(nic);
  ASSERT_EQ(exec::launch({.grid = {2}, .block = {kWarpThreads}}, kernel, handle), Status::kOk);
  EXPECT_LT(rounds, kChunks);
  EXPECT_EQ(nic.record(), kChunks);
  EXPECT_TRUE(std::equal(message.bytes.begin(), message.bytes.end(), pool.memory.begin()));
  for (std::uint32_t i = 0; i < kChunks; ++i) {
    const auto data = nic.segment<mlx5::DataSegment>(i, 32);
    EXPECT_EQ(data.address, 0x1000u + i * kSlotBytes);
    EXPECT_EQ(nic.segment<mlx5::RemoteAddressSegment>(i, 16).address, kTarget.address + i * kSlotBytes);
  }
}

// Completions come one at a time, so room and credits do, too: a step of two chunks would overwrite what the
// NIC still has. That is a WQE where the queue begins full, and else a slot.
TEST(Chunks, step_of_a_warp_ends_where_room_or_credits_do) {
  static ServingNic* stepped = nullptr;
  const auto serve_one = []() -> int { return stepped->step(); };
  for (const std::uint32_t before : {0u, ServingNic::kBlocks - 1}) {
    for (std::uint32_t chunks = 9; chunks <= 16; ++chunks) {
      SCOPED_TRACE(testing::Message() << before << " WQEs before " << chunks << " chunks");
      ServingNic nic(ServingNic::Staged::kNic, 0, Sharing::kExclusive);
      stepped = &nic;
      nic.completes_one_a_step = true;
      nic.pool.grant(ServingNic::kSlots, ServingNic::kSlots);
      Message message(chunks * ServingNic::kSlotBytes);
      const auto kernel = [&](EndpointHandle handle) {
        Endpoint<Scope::kWarp> ep(handle);
        const LocalMemory local = message.local();
        for (std::uint32_t i = 0; i < before; ++i) {
          EXPECT_EQ(gdx_put<Mode::kPull>(ep, kTarget, local, 8, Doorbell::kDefer), Status::kOk);
        }
        EXPECT_EQ(gdx_put<Mode::kPush>(ep, kTarget, local, local.bytes), Status::kOk);
        EXPECT_EQ(gdx_put_signal<Mode::kPush>(ep, kTarget, local, local.bytes, kTarget, 1), Status::kOk);
        EXPECT_EQ(gdx_flush(ep), Status::kOk);
      };
      ASSERT_EQ(exec::launch({.block = {kWarpThreads}, .progress = serve_one}, kernel, nic.handle()),
                Status::kOk);
      EXPECT_EQ(nic.mistakes(), 0u);
      EXPECT_EQ(nic.overwritten(), 0u);
      ASSERT_EQ(nic.requests().size(), before + 2 * chunks + 1);
      for (std::uint32_t i = 0; i < 2 * chunks; ++i) {
        std::uint64_t first = 0;
        std::memcpy(&first, message.bytes.data() + i % chunks * ServingNic::kSlotBytes, sizeof first);
        EXPECT_EQ(nic.requests()[before + i].local, first) << "chunk " << i;
      }
    }
  }
}

// Two chunks and their signal need three blocks where two are free.
TEST(Chunks, step_of_a_warp_leaves_room_for_the_signal) {
  static ServingNic* stepped = nullptr;
  const auto serve_one = []() -> int { return stepped->step(); };
  constexpr std::uint32_t kBefore = ServingNic::kBlocks - 2;
  ServingNic nic(ServingNic::Staged::kNic, 0, Sharing::kExclusive);
  stepped = &nic;
  nic.completes_one_a_step = true;
  nic.pool.grant(ServingNic::kSlots, ServingNic::kSlots);
  Message message(2 * ServingNic::kSlotBytes);
  const auto kernel = [&](EndpointHandle handle) {
    Endpoint<Scope::kWarp> ep(handle);
    const LocalMemory local = message.local();
    for (std::uint32_t i = 0; i < kBefore; ++i) {
      EXPECT_EQ(gdx_put<Mode::kPull>(ep, kTarget, local, 8, Doorbell::kDefer), Status::kOk);
    }
    EXPECT_EQ(gdx_put_signal<Mode::kPush>(ep, kTarget, local, local.bytes, kTarget, 1), Status::kOk);
    EXPECT_EQ(gdx_flush(ep), Status::kOk);
  };
  ASSERT_EQ(exec::launch({.block = {kWarpThreads}, .progress = serve_one}, kernel, nic.handle()),
            Status::kOk);
  EXPECT_EQ(nic.mistakes(), 0u);
  ASSERT_EQ(nic.requests().size(), kBefore + 3);
  EXPECT_EQ(nic.requests()[0].local, reinterpret_cast<std::uint64_t>(message.bytes.data()));
}

enum class Way { kInline, kPush, kPull, kBounce };

Way way_of(const MemoryNic& nic) {
  const auto data = nic.segment<mlx5::DataSegment>(0, 32);
  if ((data.byte_count & mlx5::kInlineFlag) != 0) return Way::kInline;
  if (data.lkey == MemoryNic::kStagingLkey) return Way::kPush;
  if (data.lkey == MemoryNic::kBounceLkey) return Way::kBounce;
  EXPECT_EQ(data.lkey, kSourceLkey);
  return Way::kPull;
}

Way chosen_by(const ModeTable& modes, std::uint64_t bytes) {
  MemoryNic nic;
  nic.modes = modes;
  serving = &nic;
  Message message(bytes);
  in_kernel(
      nic, [&](auto& ep) { EXPECT_EQ(gdx_put(ep, kTarget, message.local(), bytes), Status::kOk); }, serve);
  return way_of(nic);
}

TEST(Auto, size_at_a_threshold_belongs_to_the_range_below_it) {
  constexpr ModeTable kAll{28, 128, 192};
  EXPECT_EQ(chosen_by(kAll, 1), Way::kInline);
  EXPECT_EQ(chosen_by(kAll, 28), Way::kInline);
  EXPECT_EQ(chosen_by(kAll, 29), Way::kPush);
  EXPECT_EQ(chosen_by(kAll, 128), Way::kPush);
  EXPECT_EQ(chosen_by(kAll, 129), Way::kPull);
  EXPECT_EQ(chosen_by(kAll, 192), Way::kPull);
  EXPECT_EQ(chosen_by(kAll, 193), Way::kBounce);
}

TEST(Auto, empty_ranges_are_passed_over) {
  EXPECT_EQ(chosen_by({0, 0, 0}, 1), Way::kBounce);
  EXPECT_EQ(chosen_by({0, 0, kNoSizeLimit}, 1), Way::kPull);
  EXPECT_EQ(chosen_by({0, kNoSizeLimit, kNoSizeLimit}, 200), Way::kPush);
  EXPECT_EQ(chosen_by({220, 220, 220}, 220), Way::kInline);
  EXPECT_EQ(chosen_by({220, 220, 220}, 221), Way::kBounce);
}

}  // namespace modes_test
}  // namespace gdx::device
