// Stores of a posting call to the ring, the doorbell record and the doorbell, byte by byte.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "tests/unit/device/memory_nic.h"

namespace gdx::device {
namespace post_test {

constexpr RemoteMemory kTarget{0x1122334455667788, 4096, 0xaabbccdd, 0};
const LocalMemory kSource{reinterpret_cast<std::byte*>(0x0000700012345000), 4096, 0x01020304, 0};

void expect_control(const mlx5::ControlSegment& control, mlx5::WqeOpcode opcode, std::uint32_t index,
                    std::uint32_t segments) {
  EXPECT_EQ(control.opmod_index_opcode, index << 8 | static_cast<std::uint32_t>(opcode));
  EXPECT_EQ(control.qpn_ds, MemoryNic::kQpn << 8 | segments);
  EXPECT_EQ(control.fm_ce_se & mlx5::kCompletionMask, mlx5::kCompletionAlways);
}

TEST(Put, pull_posts_write_with_gather_segment_and_rings) {
  MemoryNic nic;
  in_kernel(nic, [](auto& ep) { EXPECT_EQ(gdx_put<Mode::kPull>(ep, kTarget, kSource, 4096), Status::kOk); });

  const auto control = nic.segment<mlx5::ControlSegment>(0, 0);
  expect_control(control, mlx5::WqeOpcode::kRdmaWrite, 0, 3);
  const auto address = nic.segment<mlx5::RemoteAddressSegment>(0, 16);
  EXPECT_EQ(address.address, kTarget.address);
  EXPECT_EQ(address.rkey, kTarget.rkey);
  const auto data = nic.segment<mlx5::DataSegment>(0, 32);
  EXPECT_EQ(data.byte_count, 4096u);
  EXPECT_EQ(data.lkey, kSource.lkey);
  EXPECT_EQ(data.address, reinterpret_cast<std::uint64_t>(kSource.address));
  EXPECT_EQ(nic.record(), 1u);
  EXPECT_EQ(nic.doorbell(), nic.segment<std::uint64_t>(0, 0));
}

TEST(Put, deferred_doorbell_rings_with_the_next_call) {
  MemoryNic nic;
  in_kernel(nic, [&](auto& ep) {
    ASSERT_EQ(gdx_put<Mode::kPull>(ep, kTarget, kSource, 8, Doorbell::kDefer), Status::kOk);
    EXPECT_EQ(nic.record(), 0u);
    EXPECT_EQ(nic.doorbell(), 0u);
    ASSERT_EQ(gdx_put<Mode::kPull>(ep, kTarget, kSource, 8), Status::kOk);
  });
  EXPECT_EQ(nic.record(), 2u);
  EXPECT_EQ(nic.doorbell(), nic.segment<std::uint64_t>(1, 0));
}

TEST(Put, deferred_doorbell_rings_when_the_endpoint_closes) {
  MemoryNic nic;
  in_kernel(nic, [](auto& ep) { (void)gdx_put<Mode::kPull>(ep, kTarget, kSource, 8, Doorbell::kDefer); });
  EXPECT_EQ(nic.record(), 1u);
  EXPECT_EQ(nic.state().rung, 1u);
  EXPECT_EQ(nic.doorbell(), nic.segment<std::uint64_t>(0, 0));
}

// Returns whether the register's half holds the WQE at `block`, of so many 16 B segments.
bool holds_wqe(const MemoryNic& nic, bool second_half, std::uint32_t block, std::size_t segments) {
  const auto wqe = nic.segment<mlx5::WqeBasicBlock>(block, 0);
  return std::memcmp(nic.blueflame(second_half).data(), wqe.bytes, segments * mlx5::kSegmentBytes) == 0;
}

TEST(BlueFlame, single_wqes_travel_in_their_doorbells_and_halves_alternate) {
  MemoryNic nic;
  nic.blueflame_half_bytes = mlx5::kBlueFlameBufferBytes;
  std::array<std::byte, 28> bytes{};
  bytes.fill(std::byte{0x5a});
  const LocalMemory source{bytes.data(), bytes.size(), 0, 0};
  in_kernel<Scope::kWarp>(nic, [&](auto& ep) {
    ASSERT_EQ(gdx_put<Mode::kPush>(ep, kTarget, source, 28), Status::kOk);
    EXPECT_EQ(nic.record(), 1u);
    EXPECT_TRUE(holds_wqe(nic, false, 0, 3));
    ASSERT_EQ(gdx_put<Mode::kInline>(ep, kTarget, source, 28), Status::kOk);
    EXPECT_TRUE(holds_wqe(nic, true, 1, 4));
    EXPECT_TRUE(holds_wqe(nic, false, 0, 3)) << "the first half is left alone";
    ASSERT_EQ(gdx_signal(ep, kTarget, 7, SignalOp::kAdd), Status::kOk);
    EXPECT_TRUE(holds_wqe(nic, false, 2, 4));
  });
}

TEST(BlueFlame, put_and_signal_have_a_doorbell_each_and_one_record) {
  MemoryNic nic;
  nic.blueflame_half_bytes = mlx5::kBlueFlameBufferBytes;
  std::array<std::byte, 64> bytes{};
  const LocalMemory source{bytes.data(), bytes.size(), 0, 0};
  in_kernel<Scope::kWarp>(nic, [&](auto& ep) {
    ASSERT_EQ(gdx_put_signal<Mode::kPush>(ep, kTarget, source, 64, kTarget + 64, 7, SignalOp::kAdd),
              Status::kOk);
    EXPECT_EQ(nic.record(), 2u);
    EXPECT_TRUE(holds_wqe(nic, false, 0, 3));
    EXPECT_TRUE(holds_wqe(nic, true, 1, 4));
    ASSERT_EQ(gdx_put_signal<Mode::kInline>(ep, kTarget, source, 28, kTarget + 64, 7), Status::kOk);
    EXPECT_TRUE(holds_wqe(nic, false, 2, 4));
    EXPECT_TRUE(holds_wqe(nic, true, 3, 3));
    EXPECT_EQ(nic.record(), 4u);
  });
  EXPECT_EQ(nic.state().messages, 4u);
}

// The fence is of the WQE in the ring, and a copy without it would start too early.
TEST(BlueFlame, chunks_that_are_rung_together_are_what_the_ring_says) {
  MemoryNic nic;
  nic.blueflame_half_bytes = mlx5::kBlueFlameBufferBytes;
  std::array<std::byte, 4 * MemoryNic::kSlotBytes> bytes{};
  const LocalMemory source{bytes.data(), bytes.size(), 0, 0};
  in_kernel<Scope::kWarp>(nic, [&](auto& ep) {
    gdx_fence(ep);
    ASSERT_EQ(gdx_put<Mode::kPull>(ep, kTarget, source, 8, Doorbell::kDefer), Status::kOk);
    ASSERT_EQ(gdx_put<Mode::kPull>(ep, kTarget, source, 8, Doorbell::kDefer), Status::kOk);
    impl::Access::state_of(ep).ring_together(2);
    EXPECT_EQ(nic.record(), 2u);
    EXPECT_TRUE(holds_wqe(nic, false, 0, 3));
    EXPECT_TRUE(holds_wqe(nic, true, 1, 3));
    ASSERT_EQ(gdx_put<Mode::kPull>(ep, kTarget, source, 8, Doorbell::kDefer), Status::kOk);
    ASSERT_EQ(gdx_put<Mode::kPush>(ep, kTarget, source, 64), Status::kOk);
    EXPECT_EQ(nic.blueflame(false)[0], nic.segment<std::uint64_t>(3, 0))
        << "plain, for another's was deferred";
    EXPECT_NE(nic.blueflame(false)[4], nic.segment<std::uint64_t>(3, 32));
    ASSERT_EQ(gdx_put<Mode::kPull>(ep, kTarget, source, 8, Doorbell::kDefer), Status::kOk);
    ASSERT_EQ(gdx_put<Mode::kPull>(ep, kTarget, source, 8, Doorbell::kDefer), Status::kOk);
    impl::Access::state_of(ep).ring_together(2);
    EXPECT_TRUE(holds_wqe(nic, true, 4, 3));
    EXPECT_TRUE(holds_wqe(nic, false, 5, 3));
  });
  EXPECT_EQ(nic.state().rung, 6u);
}

TEST(BlueFlame, wqe_behind_deferred_ones_rings_with_eight_bytes) {
  MemoryNic nic;
  nic.blueflame_half_bytes = mlx5::kBlueFlameBufferBytes;
  in_kernel<Scope::kWarp>(nic, [&](auto& ep) {
    ASSERT_EQ(gdx_put<Mode::kPull>(ep, kTarget, kSource, 8, Doorbell::kDefer), Status::kOk);
    ASSERT_EQ(gdx_put<Mode::kPull>(ep, kTarget, kSource, 8), Status::kOk);
  });
  EXPECT_EQ(nic.record(), 2u);
  EXPECT_EQ(nic.blueflame(false)[0], nic.segment<std::uint64_t>(1, 0));
  EXPECT_EQ(nic.blueflame(false)[1], 0u);
}

// No publication tells whether four stores of one thread arrive as one write.
TEST(BlueFlame, thread_rings_with_eight_bytes) {
  MemoryNic nic;
  nic.blueflame_half_bytes = mlx5::kBlueFlameBufferBytes;
  std::array<std::byte, 28> bytes{};
  in_kernel(nic, [&](auto& ep) {
    ASSERT_EQ(gdx_put<Mode::kInline>(ep, kTarget, {bytes.data(), bytes.size(), 0, 0}, 28), Status::kOk);
    ASSERT_EQ(gdx_put_signal<Mode::kPull>(ep, kTarget, kSource, 8, kTarget + 64, 7), Status::kOk);
    ASSERT_EQ(gdx_put<Mode::kPull>(ep, kTarget, kSource, 8, Doorbell::kDefer), Status::kOk);
    impl::Access::state_of(ep).ring_together(1);
  });
  EXPECT_EQ(nic.record(), 4u);
  EXPECT_EQ(nic.blueflame(false)[0], nic.segment<std::uint64_t>(3, 0));
  for (const bool second : {false, true}) {
    for (int word = 1; word < 8; ++word) EXPECT_EQ(nic.blueflame(second)[word], 0u);
  }
}

// Owner word that another opener counts up between the first look and the first store of who opens.
struct ContestedOwner {
  ContestedOwner() {
    word = static_cast<std::uint64_t*>(
        mmap(nullptr, sizeof *word, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    struct sigaction action {};
    action.sa_handler = [](int) {
      if (mprotect(word, sizeof *word, PROT_READ | PROT_WRITE) != 0) _exit(1);
      ++*word;
    };
    EXPECT_EQ(sigaction(SIGSEGV, &action, &before), 0);
  }
  ~ContestedOwner() {
    sigaction(SIGSEGV, &before, nullptr);
    munmap(word, sizeof *word);
  }
  static inline std::uint64_t* word = nullptr;
  struct sigaction before {};
};

TEST(Open, opener_that_another_forestalled_leaves_no_count) {
  MemoryNic nic;
  EndpointHandle handle = nic.handle();
  const ContestedOwner owner;
  handle.owner = owner.word;
  handle.owner_free = 0;
  EXPECT_EQ(impl::take_endpoint(handle), Status::kBusy);
  EXPECT_EQ(*owner.word, 1u) << "the other opener alone";
  *owner.word = 0;
  EXPECT_EQ(impl::take_endpoint(handle), Status::kOk);
}

TEST(Put, second_kernel_continues_where_the_first_stopped) {
  MemoryNic nic;
  for (std::uint32_t launch = 0; launch < 3; ++launch) {
    in_kernel(nic, [](auto& ep) { (void)gdx_put<Mode::kPull>(ep, kTarget, kSource, 8); });
    EXPECT_EQ(nic.record(), launch + 1);
    expect_control(nic.segment<mlx5::ControlSegment>(launch, 0), mlx5::WqeOpcode::kRdmaWrite, launch, 3);
  }
  EXPECT_EQ(nic.state().messages, 3u);
}

TEST(Put, inline_carries_the_payload_in_the_wqe) {
  std::array<std::byte, impl::kMaxInlineBytes> payload;
  for (std::size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<std::byte>(i + 1);
  for (const std::uint32_t bytes : {1u, 8u, 12u, 28u, 29u, 92u, 93u, 219u, 220u}) {
    MemoryNic nic;
    nic.state().producer = nic.state().completed = MemoryNic::kBlocks - 2;  // so that long WQEs wrap
    in_kernel(nic, [&](auto& ep) {
      EXPECT_EQ(gdx_put<Mode::kInline>(ep, kTarget, {payload.data(), bytes, 0, 0}, bytes), Status::kOk);
    });
    const std::uint32_t first = MemoryNic::kBlocks - 2;
    const std::uint32_t segments = impl::inline_segments(bytes);
    expect_control(nic.segment<mlx5::ControlSegment>(first, 0), mlx5::WqeOpcode::kRdmaWrite, first, segments);
    EXPECT_EQ(nic.segment<Be32>(first, 32), mlx5::kInlineFlag | bytes);
    for (std::uint32_t i = 0; i < bytes; ++i) {
      const std::uint32_t at = 36 + i;
      ASSERT_EQ(nic.segment<std::byte>(first + at / 64, at % 64), payload[i]) << bytes << " byte " << i;
    }
    EXPECT_EQ(nic.record(), first + impl::blocks_of(segments));
    EXPECT_EQ(nic.state().messages, 1u) << bytes << " bytes";
  }
}

TEST(Put, value_travels_little_endian) {
  MemoryNic nic;
  in_kernel(nic,
            [](auto& ep) { EXPECT_EQ(gdx_put_value(ep, kTarget, std::uint32_t{0x04030201}), Status::kOk); });
  EXPECT_EQ(nic.segment<Be32>(0, 32), mlx5::kInlineFlag | 4u);
  EXPECT_EQ(nic.segment<std::uint32_t>(0, 36), 0x04030201u);
}

TEST(Put, values_of_any_type_travel_as_their_bytes) {
  struct Quad {
    float of[4];
  };
  MemoryNic nic;
  in_kernel<Scope::kWarp>(
      nic,
      [](auto& ep) {
        EXPECT_EQ(gdx_put_value(ep, kTarget, 1.5f), Status::kOk);
        EXPECT_EQ(gdx_put_value(ep, kTarget, -2.5), Status::kOk);
        EXPECT_EQ(gdx_put_value(ep, kTarget, std::int16_t{-2}), Status::kOk);
        EXPECT_EQ(gdx_put_value(ep, kTarget, Quad{{1, 2, 3, 4}}), Status::kOk);
      },
      nullptr, kWarpThreads);
  EXPECT_EQ(nic.segment<Be32>(0, 32), mlx5::kInlineFlag | 4u);
  EXPECT_EQ(nic.segment<float>(0, 36), 1.5f);
  EXPECT_EQ(nic.segment<Be32>(1, 32), mlx5::kInlineFlag | 8u);
  EXPECT_EQ(nic.segment<double>(1, 36), -2.5);
  EXPECT_EQ(nic.segment<Be32>(2, 32), mlx5::kInlineFlag | 2u);
  EXPECT_EQ(nic.segment<std::int16_t>(2, 36), -2);
  expect_control(nic.segment<mlx5::ControlSegment>(3, 0), mlx5::WqeOpcode::kRdmaWrite, 3, 4);
  EXPECT_EQ(nic.segment<Be32>(3, 32), mlx5::kInlineFlag | 16u);
  for (std::uint32_t i = 0; i < 4; ++i)
    EXPECT_EQ(nic.segment<float>(3, 36 + 4 * i), 1.0f + static_cast<float>(i));
}

// Makes `call(endpoint)`, in every mode, of no bytes; it may post `blocks` WQEs in all.
template <typename Call>
void expect_nothing_but(std::uint32_t blocks, Call call) {
  MemoryNic nic;
  in_kernel<Scope::kWarp>(nic, call, nullptr, kWarpThreads);
  EXPECT_EQ(nic.record(), blocks);
  for (std::uint32_t k = 0; k < blocks; ++k) {
    EXPECT_EQ(nic.segment<Be32>(k, 32), mlx5::kInlineFlag | 8u);
    EXPECT_EQ(nic.segment<std::uint64_t>(k, 36), k + 1) << "its signal";
  }
  EXPECT_EQ(nic.state().messages, blocks);
}

TEST(Put, no_bytes_send_nothing_and_with_a_signal_the_signal_alone) {
  expect_nothing_but(0, [](auto& ep) {
    EXPECT_EQ(gdx_put(ep, {}, {}, 0), Status::kOk);
    EXPECT_EQ(gdx_put<Mode::kPull>(ep, {}, {}, 0), Status::kOk);
    EXPECT_EQ(gdx_put<Mode::kPush>(ep, {}, {}, 0), Status::kOk);
    EXPECT_EQ(gdx_put<Mode::kBounce>(ep, {}, {}, 0), Status::kOk);
    EXPECT_EQ(gdx_put<Mode::kInline>(ep, {}, {}, 0), Status::kOk);
    EXPECT_EQ(gdx_get(ep, {}, {}, 0), Status::kOk);
  });
  expect_nothing_but(4, [](auto& ep) {
    EXPECT_EQ(gdx_put_signal(ep, {}, {}, 0, kTarget, 1), Status::kOk);
    EXPECT_EQ(gdx_put_signal<Mode::kPush>(ep, {}, {}, 0, kTarget, 2), Status::kOk);
    EXPECT_EQ(gdx_put_signal<Mode::kBounce>(ep, {}, {}, 0, kTarget, 3), Status::kOk);
    EXPECT_EQ(gdx_put_signal<Mode::kInline>(ep, {}, {}, 0, kTarget, 4), Status::kOk);
  });
}

TEST(Put, no_bytes_pulled_before_a_signal_are_a_write_without_data) {
  for (const std::uint32_t half_bytes : {0u, 256u}) {
    MemoryNic nic;
    nic.blueflame_half_bytes = half_bytes;
    in_kernel(nic, [](auto& ep) {
      EXPECT_EQ(gdx_put_signal<Mode::kPull>(ep, {}, {}, 0, kTarget, 7), Status::kOk);
      EXPECT_EQ(gdx_put_signal<Mode::kPull>(ep, kTarget, kSource, (1ull << 30) + 1, kTarget, 8),
                Status::kInvalidLength);
    });
    EXPECT_EQ(nic.record(), 2u);
    expect_control(nic.segment<mlx5::ControlSegment>(0, 0), mlx5::WqeOpcode::kRdmaWrite, 0, 2);
    expect_control(nic.segment<mlx5::ControlSegment>(1, 0), mlx5::WqeOpcode::kRdmaWrite, 1, 3);
    EXPECT_EQ(nic.segment<std::uint64_t>(1, 36), 7u);
  }
}

TEST(Put, no_bytes_ring_for_deferred_calls_as_a_put_does) {
  MemoryNic nic;
  in_kernel(nic, [&](auto& ep) {
    EXPECT_EQ(gdx_put<Mode::kPull>(ep, kTarget, kSource, 8, Doorbell::kDefer), Status::kOk);
    EXPECT_EQ(gdx_put<Mode::kPull>(ep, kTarget, kSource, 0, Doorbell::kDefer), Status::kOk);
    EXPECT_EQ(nic.record(), 0u);
    EXPECT_EQ(gdx_put<Mode::kPull>(ep, kTarget, kSource, 0), Status::kOk);
    EXPECT_EQ(nic.record(), 1u);
  });
}

TEST(Put, fence_goes_with_the_first_lane_that_posts) {
  MemoryNic nic;
  in_kernel<Scope::kWarp>(
      nic,
      [&](auto& ep) {
        gdx_fence(ep);
        const std::uint64_t bytes = threadIdx.x == 3 || threadIdx.x == 9 ? 8 : 0;
        EXPECT_EQ(gdx_put_warp(ep, kTarget, kSource, bytes), Status::kOk);
      },
      nullptr, kWarpThreads);
  EXPECT_EQ(nic.record(), 2u);
  EXPECT_EQ(nic.segment<mlx5::ControlSegment>(0, 0).fm_ce_se, mlx5::kCompletionAlways | mlx5::kFenceReads);
  EXPECT_EQ(nic.segment<mlx5::ControlSegment>(1, 0).fm_ce_se, mlx5::kCompletionAlways);
}

TEST(Put, more_than_a_message_holds_is_refused) {
  MemoryNic nic;
  in_kernel(nic, [](auto& ep) {
    EXPECT_EQ(gdx_put<Mode::kPull>(ep, kTarget, kSource, (1ull << 30) + 1), Status::kInvalidLength);
    EXPECT_EQ(gdx_get(ep, kSource, kTarget, (1ull << 30) + 1), Status::kInvalidLength);
    EXPECT_EQ(ep.status(), Status::kOk);
  });
  EXPECT_EQ(nic.record(), 0u);
}

TEST(Signal, set_is_an_inline_write_and_add_a_fetch_add_into_scratch) {
  MemoryNic nic;
  EndpointHandle handle = nic.handle();
  handle.signal_fence = mlx5::kFenceReads;
  const auto kernel = [](EndpointHandle h) {
    Endpoint<> ep(h);
    EXPECT_EQ(gdx_signal(ep, kTarget, 7), Status::kOk);
    EXPECT_EQ(gdx_signal(ep, kTarget, 9, SignalOp::kAdd), Status::kOk);
  };
  ASSERT_EQ(exec::launch({}, kernel, handle), Status::kOk);
  expect_control(nic.segment<mlx5::ControlSegment>(0, 0), mlx5::WqeOpcode::kRdmaWrite, 0, 3);
  EXPECT_EQ(nic.segment<mlx5::ControlSegment>(0, 0).fm_ce_se, mlx5::kCompletionAlways | mlx5::kFenceReads);
  EXPECT_EQ(nic.segment<Be32>(0, 32), mlx5::kInlineFlag | 8u);
  EXPECT_EQ(nic.segment<std::uint64_t>(0, 36), 7u);
  expect_control(nic.segment<mlx5::ControlSegment>(1, 0), mlx5::WqeOpcode::kAtomicFetchAdd, 1, 4);
  EXPECT_EQ(nic.segment<mlx5::ControlSegment>(1, 0).fm_ce_se, mlx5::kCompletionAlways | mlx5::kFenceReads);
  EXPECT_EQ(nic.segment<mlx5::AtomicSegment>(1, 32).swap_or_add, 9u);
  const auto result = nic.segment<mlx5::DataSegment>(1, 48);
  EXPECT_EQ(result.lkey, handle.scratch_lkey);
  EXPECT_EQ(result.byte_count, 8u);
  EXPECT_EQ(result.address, reinterpret_cast<std::uint64_t>(handle.scratch));
}

TEST(Fence, marks_the_next_work_request_only) {
  MemoryNic nic;
  in_kernel(nic, [](auto& ep) {
    ASSERT_EQ(gdx_get(ep, kSource, kTarget, 8), Status::kOk);
    gdx_fence(ep);
    ASSERT_EQ(gdx_put<Mode::kPull>(ep, kTarget, kSource, 8), Status::kOk);
    ASSERT_EQ(gdx_put<Mode::kPull>(ep, kTarget, kSource, 8), Status::kOk);
  });
  const auto flags = [&](std::uint32_t block) {
    return nic.segment<mlx5::ControlSegment>(block, 0).fm_ce_se;
  };
  EXPECT_EQ(flags(0), mlx5::kCompletionAlways);
  EXPECT_EQ(flags(1), mlx5::kCompletionAlways | mlx5::kFenceReads);
  EXPECT_EQ(flags(2), mlx5::kCompletionAlways);
}

TEST(Atomics, compare_swap_posts_both_operands) {
  MemoryNic nic;
  in_kernel(nic, [](auto& ep) { EXPECT_EQ(gdx_compare_swap(ep, kSource, kTarget, 3, 5), Status::kOk); });
  expect_control(nic.segment<mlx5::ControlSegment>(0, 0), mlx5::WqeOpcode::kAtomicCompareSwap, 0, 4);
  EXPECT_EQ(nic.segment<mlx5::AtomicSegment>(0, 32).swap_or_add, 5u);
  EXPECT_EQ(nic.segment<mlx5::AtomicSegment>(0, 32).compare, 3u);
  EXPECT_EQ(nic.segment<mlx5::DataSegment>(0, 48).lkey, kSource.lkey);
}

TEST(PutSignal, rings_once_for_both) {
  MemoryNic nic;
  in_kernel(nic, [](auto& ep) {
    EXPECT_EQ(gdx_put_signal<Mode::kPull>(ep, kTarget, kSource, 64, kTarget + 4088, 1), Status::kOk);
  });
  EXPECT_EQ(nic.record(), 2u);
  EXPECT_EQ(nic.doorbell(), nic.segment<std::uint64_t>(1, 0));
  EXPECT_EQ(nic.segment<mlx5::RemoteAddressSegment>(1, 16).address, kTarget.address + 4088);
}

// Flushes wait for the newest WQE, deferred doorbells name it, and the next kernel goes by it.
TEST(Put, newest_wqe_is_known_whatever_is_posted_before_it) {
  constexpr std::uint32_t kLanes = 4;
  constexpr std::uint64_t kLongBytes = 200;  // inline, 4 blocks
  std::vector<std::byte> bytes(kLongBytes);
  const LocalMemory source{bytes.data(), bytes.size(), 0, 0};
  using Ep = Endpoint<Scope::kWarp>;
  const std::vector<std::function<Status(Ep&)>> calls = {
      [&](Ep& ep) { return gdx_put<Mode::kInline>(ep, kTarget, source, kLongBytes, Doorbell::kDefer); },
      [&](Ep& ep) { return gdx_put<Mode::kInline>(ep, kTarget, source, 8, Doorbell::kDefer); },
      [&](Ep& ep) { return gdx_put<Mode::kPush>(ep, kTarget, source, 64, Doorbell::kDefer); },
      [&](Ep& ep) { return gdx_put_warp(ep, kTarget, source, 8, Doorbell::kDefer); }};
  for (std::size_t i = 0; i < calls.size() * calls.size(); ++i) {
    SCOPED_TRACE(std::to_string(i / calls.size()) + " then " + std::to_string(i % calls.size()));
    MemoryNic nic;
    const auto post = [&](Ep& ep) {
      EXPECT_EQ(calls[i / calls.size()](ep), Status::kOk);
      EXPECT_EQ(calls[i % calls.size()](ep), Status::kOk);
    };
    in_kernel<Scope::kWarp>(nic, post, nullptr, kLanes);
    EXPECT_EQ(nic.doorbell(), nic.segment<std::uint64_t>(nic.newest_wqe(0, nic.state().producer), 0));
  }
}

TEST(Queue, each_call_needs_all_its_blocks_and_no_more) {
  std::vector<std::byte> bytes(200);
  std::uint64_t result = 0;
  const LocalMemory from{bytes.data(), bytes.size(), 0, 0};
  const LocalMemory original{reinterpret_cast<std::byte*>(&result), sizeof result, 0, 0};
  struct Call {
    std::uint32_t blocks;
    std::function<Status(Endpoint<>&)> make;
  };
  const std::vector<Call> calls = {
      {1, [&](auto& ep) { return gdx_put<Mode::kPull>(ep, kTarget, from, 64); }},
      {1, [&](auto& ep) { return gdx_put<Mode::kPush>(ep, kTarget, from, 64); }},
      {1, [&](auto& ep) { return gdx_put<Mode::kBounce>(ep, kTarget, from, 64); }},
      {1, [&](auto& ep) { return gdx_put<Mode::kInline>(ep, kTarget, from, 28); }},
      {2, [&](auto& ep) { return gdx_put<Mode::kInline>(ep, kTarget, from, 29); }},
      {4, [&](auto& ep) { return gdx_put<Mode::kInline>(ep, kTarget, from, 200); }},
      {2, [&](auto& ep) { return gdx_put_signal<Mode::kPull>(ep, kTarget, from, 64, kTarget, 1); }},
      {2, [&](auto& ep) { return gdx_put_signal<Mode::kPull>(ep, kTarget, from, 0, kTarget, 1); }},
      {2, [&](auto& ep) { return gdx_put_signal<Mode::kPush>(ep, kTarget, from, 64, kTarget, 1); }},
      {1, [&](auto& ep) { return gdx_put_signal<Mode::kPush>(ep, kTarget, from, 0, kTarget, 1); }},
      {2, [&](auto& ep) { return gdx_put_signal<Mode::kBounce>(ep, kTarget, from, 64, kTarget, 1); }},
      {2, [&](auto& ep) { return gdx_put_signal<Mode::kInline>(ep, kTarget, from, 28, kTarget, 1); }},
      {5, [&](auto& ep) { return gdx_put_signal<Mode::kInline>(ep, kTarget, from, 200, kTarget, 1); }},
      {1, [&](auto& ep) { return gdx_put_value(ep, kTarget, 1.5f); }},
      {1, [&](auto& ep) { return gdx_signal(ep, kTarget, 1); }},
      {1, [&](auto& ep) { return gdx_signal(ep, kTarget, 1, SignalOp::kAdd); }},
      {1, [&](auto& ep) { return gdx_get(ep, from, kTarget, 64); }},
      {1, [&](auto& ep) { return gdx_fetch_add(ep, original, kTarget, 1); }},
      {1, [&](auto& ep) { return gdx_compare_swap(ep, original, kTarget, 1, 2); }},
  };
  for (std::size_t i = 0; i < calls.size(); ++i) {
    for (const std::uint32_t missing : {0u, 1u}) {
      SCOPED_TRACE(std::to_string(i) + ", missing " + std::to_string(missing));
      MemoryNic nic;
      nic.timeout_ns = 100'000;
      const std::uint32_t used = MemoryNic::kBlocks - calls[i].blocks + missing;
      in_kernel(nic, [&](Endpoint<>& ep) {
        for (std::uint32_t k = 0; k < used; ++k) ASSERT_EQ(gdx_signal(ep, kTarget, k), Status::kOk);
        EXPECT_EQ(calls[i].make(ep), missing == 0 ? Status::kOk : Status::kTimeout);
      });
      EXPECT_EQ(nic.record(), missing == 0 ? MemoryNic::kBlocks : used);
    }
  }
}

TEST(Put, warp_of_more_lanes_than_the_queue_has_blocks_is_refused_whole) {
  for (const unsigned lanes : {MemoryNic::kBlocks, MemoryNic::kBlocks + 1}) {
    MemoryNic nic;
    const bool fits = lanes == MemoryNic::kBlocks;
    in_kernel<Scope::kWarp>(
        nic,
        [&](auto& ep) {
          EXPECT_EQ(gdx_put_warp(ep, kTarget, kSource, 8), fits ? Status::kOk : Status::kUnsupported);
          EXPECT_EQ(ep.status(), Status::kOk);
        },
        nullptr, lanes);
    EXPECT_EQ(nic.record(), fits ? lanes : 0);
  }
}

// Time goes by in steps of 1 us. The peer's NIC answers each probe, and the first rings for what was
// deferred.
TEST(Wait, live_but_silent_peer_is_probed_once_a_period) {
  static std::uint64_t now_ns;
  static MemoryNic* serving;
  for (const std::uint64_t periods : {1u, 3u}) {
    now_ns = 0;
    MemoryNic nic;
    serving = &nic;
    const std::uint64_t signal = 0;
    EndpointHandle handle = nic.handle();
    handle.probe_after_ns = 1'000'000;
    handle.timeout_ns = periods * handle.probe_after_ns + 900'000;
    nic.state().handle = handle;
    const auto kernel = [&](EndpointHandle h) {
      Endpoint<> ep(h);
      EXPECT_EQ(gdx_put<Mode::kPull>(ep, kTarget, kSource, 8, Doorbell::kDefer), Status::kOk);
      EXPECT_EQ(gdx_wait(ep, &signal, Compare::kEqual, 1), Status::kTimeout);
      EXPECT_EQ(nic.record(), 1 + periods);
      expect_control(nic.segment<mlx5::ControlSegment>(1, 0), mlx5::WqeOpcode::kRdmaWrite, 1, 2);
      EXPECT_EQ(nic.segment<mlx5::RemoteAddressSegment>(1, 16).address, 0u);
      EXPECT_EQ(nic.segment<mlx5::RemoteAddressSegment>(1, 16).rkey, 0u);
      EXPECT_EQ(gdx_flush(ep), Status::kOk);
    };
    const exec::LaunchConfig config{.progress = [] { return serving->complete_published() ? 1 : 0; },
                                    .clock = [] { return now_ns += 1'000; }};
    ASSERT_EQ(exec::launch(config, kernel, handle), Status::kOk);
    EXPECT_EQ(nic.state().messages, 1u) << "a probe is no message";
  }
}

TEST(Put, warp_and_block_post_once) {
  for (const bool block : {false, true}) {
    MemoryNic nic;
    const auto put = [](auto& ep) { EXPECT_EQ(gdx_put<Mode::kPull>(ep, kTarget, kSource, 8), Status::kOk); };
    if (block) {
      in_kernel<Scope::kBlock>(nic, put, nullptr, 96);
    } else {
      in_kernel<Scope::kWarp>(nic, put, nullptr, kWarpThreads);
    }
    EXPECT_EQ(nic.record(), 1u);
  }
}

}  // namespace post_test
}  // namespace gdx::device
