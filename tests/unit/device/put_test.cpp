// Waiting, credits and failure: every wait ends, every error has its cause.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <vector>

#include "tests/unit/device/memory_nic.h"
#include "tests/unit/device/stepped_time.h"

namespace gdx::device {
namespace put_test {

constexpr RemoteMemory kTarget{0x10000, 1 << 20, 0xaabbccdd, 0};

MemoryNic* serving = nullptr;
int serve() { return serving->complete_published() ? 1 : 0; }

std::vector<std::byte> pattern(std::size_t bytes) {
  std::vector<std::byte> out(bytes);
  for (std::size_t i = 0; i < bytes; ++i) out[i] = static_cast<std::byte>(i * 13 + i / 256);
  return out;
}

TEST(Push, message_within_the_pool_fills_slots_in_order) {
  MemoryNic nic;
  std::vector<std::byte> source = pattern(3 * MemoryNic::kSlotBytes + 10);
  in_kernel<Scope::kWarp>(
      nic,
      [&](auto& ep) {
        EXPECT_EQ(gdx_put<Mode::kPush>(ep, kTarget, {source.data(), source.size(), 0, 0}, source.size()),
                  Status::kOk);
      },
      nullptr, kWarpThreads);
  EXPECT_TRUE(std::equal(source.begin(), source.end(), nic.staging()));
  EXPECT_EQ(nic.record(), 4u);
  for (std::uint32_t k = 0; k < 4; ++k) {
    const auto data = nic.segment<mlx5::DataSegment>(k, 32);
    EXPECT_EQ(data.lkey, MemoryNic::kStagingLkey);
    EXPECT_EQ(data.address, 0x1000u + k * MemoryNic::kSlotBytes);
    EXPECT_EQ(data.byte_count, k == 3 ? 10u : MemoryNic::kSlotBytes);
    EXPECT_EQ(nic.segment<mlx5::RemoteAddressSegment>(k, 16).address,
              kTarget.address + k * MemoryNic::kSlotBytes);
  }
  EXPECT_EQ(nic.state().staging.filled, 4u);
  EXPECT_EQ(nic.state().messages, 1u);
}

TEST(Push, no_credit_left_leaves_every_held_slot_alone) {
  MemoryNic nic;
  nic.timeout_ns = 1'000'000;
  std::vector<std::byte> source = pattern(5 * MemoryNic::kSlotBytes);
  in_kernel(nic, [&](auto& ep) {
    EXPECT_EQ(gdx_put<Mode::kPush>(ep, kTarget, {source.data(), source.size(), 0, 0}, source.size()),
              Status::kTimeout);
    EXPECT_EQ(ep.status(), Status::kOk);
  });
  EXPECT_TRUE(std::equal(nic.staging(), nic.staging() + 4 * MemoryNic::kSlotBytes, source.begin()));
  EXPECT_EQ(nic.state().staging.filled - nic.state().staging.returned, MemoryNic::kSlots);
  EXPECT_EQ(nic.state().staging.stalls, 1u);
}

TEST(Push, message_beyond_the_pool_flows_as_credits_return) {
  MemoryNic nic;
  serving = &nic;
  std::vector<std::byte> source = pattern(1000 * MemoryNic::kSlotBytes);
  in_kernel(
      nic,
      [&](auto& ep) {
        ASSERT_EQ(gdx_put<Mode::kPush>(ep, kTarget, {source.data(), source.size(), 0, 0}, source.size()),
                  Status::kOk);
        ASSERT_EQ(gdx_flush(ep), Status::kOk);
      },
      serve);
  EXPECT_GT(nic.state().staging.stalls, 0u);
  EXPECT_EQ(nic.state().staging.filled, 1000u);
}

TEST(Push, pulls_in_between_return_no_credit_early) {
  MemoryNic nic;
  std::vector<std::byte> source = pattern(MemoryNic::kSlotBytes);
  const LocalMemory local{source.data(), source.size(), 0, 0};
  in_kernel(nic, [&](auto& ep) {
    ASSERT_EQ(gdx_put<Mode::kPull>(ep, kTarget, local, 8), Status::kOk);   // WQE 0
    ASSERT_EQ(gdx_put<Mode::kPush>(ep, kTarget, local, 64), Status::kOk);  // WQE 1, slot 0
    ASSERT_EQ(gdx_put<Mode::kPull>(ep, kTarget, local, 8), Status::kOk);   // WQE 2
    ASSERT_EQ(gdx_put<Mode::kPush>(ep, kTarget, local, 64), Status::kOk);  // WQE 3, slot 1
    nic.complete(0);
    impl::Access::state_of(ep).drain();
  });
  EXPECT_EQ(nic.state().staging.returned, 0u);
  in_kernel(nic, [&](auto& ep) {
    nic.complete(2);
    impl::Access::state_of(ep).drain();
  });
  EXPECT_EQ(nic.state().staging.returned, 1u);
}

TEST(Push, steady_state_touches_nothing_of_the_schedulers_but_one_word) {
  MemoryNic nic;
  serving = &nic;
  std::vector<std::byte> source = pattern(MemoryNic::kSlotBytes);
  const LocalMemory local{source.data(), source.size(), 0, 0};
  in_kernel(nic, [&](auto& ep) { ASSERT_EQ(gdx_put<Mode::kPush>(ep, kTarget, local, 64), Status::kOk); });
  EndpointHandle handle = nic.handle();
  handle.staging.granted_slots = nullptr;
  handle.staging.requests = nullptr;
  handle.staging.returned_slots = nullptr;
  nic.state().handle = handle;
  const auto kernel = [&](EndpointHandle h) {
    Endpoint<> ep(h);
    for (int i = 0; i < 1000; ++i) {
      ASSERT_EQ(gdx_put<Mode::kPush>(ep, kTarget, local, 64), Status::kOk);
      if (i % 2 == 0) {
        ASSERT_EQ(gdx_flush(ep), Status::kOk);
      }
    }
  };
  ASSERT_EQ(exec::launch({.progress = serve}, kernel, handle), Status::kOk);
  EXPECT_EQ(nic.state().staging.filled, 1001u);
}

TEST(Push, lowered_limit_gives_back_what_is_not_in_use_at_the_next_poll) {
  MemoryNic nic;
  std::vector<std::byte> source = pattern(MemoryNic::kSlotBytes);
  const LocalMemory local{source.data(), source.size(), 0, 0};
  in_kernel(nic, [&](auto& ep) {
    ASSERT_EQ(gdx_put<Mode::kPush>(ep, kTarget, local, 64), Status::kOk);  // slot 0
    ASSERT_EQ(gdx_put<Mode::kPush>(ep, kTarget, local, 64), Status::kOk);  // slot 1
    nic.limit(1);
    EXPECT_EQ(nic.requests().returned, 0u);
    impl::Access::state_of(ep).drain();  // slots 2 and 3 are free, 0 and 1 with the NIC
    EXPECT_EQ(nic.requests().returned, 2u);
    nic.complete(0);
    impl::Access::state_of(ep).drain();
    EXPECT_EQ(nic.requests().returned, 3u);
    nic.complete(1);
    impl::Access::state_of(ep).drain();
  });
  EXPECT_EQ(nic.requests().returned, 3u);
  EXPECT_EQ(std::count(nic.returned_slots().begin(), nic.returned_slots().begin() + 3, 1u), 0);
  EXPECT_EQ(nic.state().staging.ready - nic.state().staging.filled, 1u);
}

// A wait for room in the queue reads the limit: what it gives back must not be stored to.
TEST(Push, limit_lowered_while_the_queue_is_full_leaves_the_slot_alone) {
  MemoryNic nic;
  nic.timeout_ns = 1'000'000;
  std::vector<std::byte> source = pattern(MemoryNic::kSlotBytes);
  const LocalMemory local{source.data(), source.size(), 0, 0};
  in_kernel(nic, [&](auto& ep) {
    for (std::uint32_t i = 3; i < MemoryNic::kBlocks; ++i) {
      ASSERT_EQ(gdx_put_value(ep, kTarget, std::uint64_t{1}), Status::kOk);
    }
    for (int slot = 0; slot < 3; ++slot) {
      ASSERT_EQ(gdx_put<Mode::kPush>(ep, kTarget, local, source.size()), Status::kOk);
    }
    nic.limit(2);
    nic.complete(0);
    EXPECT_EQ(gdx_put<Mode::kPush>(ep, kTarget, local, source.size()), Status::kTimeout);
  });
  ASSERT_EQ(nic.requests().returned, 1u);
  EXPECT_EQ(nic.returned_slots()[0], 3u);
  EXPECT_NE(std::memcmp(nic.staging() + 3 * MemoryNic::kSlotBytes, source.data(), source.size()), 0);
}

TEST(Push, stall_asks_for_what_the_message_still_needs_and_takes_the_wish_back) {
  MemoryNic nic;
  nic.timeout_ns = 1'000'000;
  std::vector<std::byte> source = pattern(7 * MemoryNic::kSlotBytes);
  in_kernel(nic, [&](auto& ep) {
    EXPECT_EQ(gdx_put<Mode::kPush>(ep, kTarget, {source.data(), source.size(), 0, 0}, source.size()),
              Status::kTimeout);
    EXPECT_EQ(nic.requests().wanted, MemoryNic::kSlots + 3);
  });
  EXPECT_EQ(nic.requests().wanted, MemoryNic::kSlots) << "the kernel has ended";
}

TEST(Fault, slots_go_back_as_the_nic_flushes_and_at_once_where_it_never_heard_of_them) {
  MemoryNic nic;
  std::vector<std::byte> source(64);
  const LocalMemory local{source.data(), 64, 0, 0};
  in_kernel(nic, [&](auto& ep) {
    ASSERT_EQ(gdx_put<Mode::kPush>(ep, kTarget, local, 64), Status::kOk);                    // slot 0
    ASSERT_EQ(gdx_put<Mode::kPush>(ep, kTarget, local, 64), Status::kOk);                    // slot 1
    ASSERT_EQ(gdx_put<Mode::kPush>(ep, kTarget, local, 64, Doorbell::kDefer), Status::kOk);  // slot 2
    nic.fail(0, mlx5::Syndrome::kRetryExceeded);
    impl::Access::state_of(ep).drain();
    EXPECT_EQ(nic.requests().failed, 1u);
    EXPECT_EQ(nic.requests().returned, 3u) << "all but slot 1";
    nic.fail(1, mlx5::Syndrome::kFlushed);
    impl::Access::state_of(ep).drain();
    EXPECT_EQ(nic.requests().returned, 4u);
  });
  EXPECT_EQ(nic.returned_slots()[3], 1u);
}

// Completions that come one by one, each well within the timeout, must not stretch a call beyond it.
TEST(Push, slow_credits_do_not_extend_the_deadline_of_the_call) {
  static constexpr std::uint64_t kTimeoutNs = 60'000'000;
  static std::uint64_t last_ns;
  MemoryNic nic;
  nic.timeout_ns = kTimeoutNs;
  serving = &nic;
  last_ns = stepped_ns;
  const auto serve_one_now_and_then = [] {
    if (stepped_ns - last_ns < kTimeoutNs / 2) return 0;
    last_ns = stepped_ns;
    serving->complete(serving->written());
    return 1;
  };
  std::vector<std::byte> source = pattern(12 * MemoryNic::kSlotBytes);
  in_kernel(
      nic,
      [&](auto& ep) {
        EXPECT_EQ(gdx_put<Mode::kPush>(ep, kTarget, {source.data(), source.size(), 0, 0}, source.size()),
                  Status::kTimeout);
      },
      serve_one_now_and_then, 1, step_time);
}

TEST(Push, endpoint_without_staging_says_unsupported) {
  MemoryNic nic;
  EndpointHandle handle = nic.handle();
  handle.staging = {};
  std::vector<std::byte> source(64);
  const auto kernel = [&](EndpointHandle h) {
    Endpoint<> ep(h);
    EXPECT_EQ(gdx_put<Mode::kPush>(ep, kTarget, {source.data(), 64, 0, 0}, 64), Status::kUnsupported);
  };
  ASSERT_EQ(exec::launch({}, kernel, handle), Status::kOk);
}

TEST(Queue, full_waits_for_completions_and_never_overwrites) {
  MemoryNic nic;
  nic.timeout_ns = 1'000'000;
  std::vector<std::byte> source(8);
  const LocalMemory local{source.data(), 8, 0, 0};
  in_kernel(nic, [&](auto& ep) {
    for (std::uint32_t i = 0; i < MemoryNic::kBlocks; ++i) {
      ASSERT_EQ(gdx_put<Mode::kPull>(ep, kTarget, local, 8), Status::kOk);
    }
    EXPECT_EQ(gdx_put<Mode::kPull>(ep, kTarget, local, 8), Status::kTimeout);
    nic.complete(0);
    EXPECT_EQ(gdx_put<Mode::kPull>(ep, kTarget, local, 8), Status::kOk);
    EXPECT_EQ(gdx_put<Mode::kPull>(ep, kTarget, local, 8), Status::kTimeout);
  });
  EXPECT_EQ(nic.record(), MemoryNic::kBlocks + 1);
}

TEST(Queue, completed_wqe_frees_all_its_blocks) {
  MemoryNic nic;
  std::vector<std::byte> source = pattern(200);
  in_kernel(nic, [&](auto& ep) {
    ASSERT_EQ(gdx_put<Mode::kInline>(ep, kTarget, {source.data(), source.size(), 0, 0}, source.size()),
              Status::kOk);
    nic.complete(0);
    EXPECT_EQ(impl::Access::state_of(ep).reserve_blocks(MemoryNic::kBlocks), Status::kOk);
  });
  EXPECT_EQ(nic.state().completed, nic.state().producer);
}

TEST(Queue, wait_that_was_over_at_once_sets_the_deadline_of_the_next) {
  MemoryNic nic;
  serving = &nic;
  const std::vector<std::byte> source = pattern(1100);  // five inline chunks, of which four fill the queue
  in_kernel(
      nic,
      [&](auto& ep) {
        const LocalMemory local{const_cast<std::byte*>(source.data()), source.size(), 0, 0};
        for (std::uint32_t i = 0; i < MemoryNic::kBlocks; ++i) {
          ASSERT_EQ(gdx_put<Mode::kPull>(ep, kTarget, local, 8), Status::kOk);
        }
        ASSERT_TRUE(nic.complete_published());
        EXPECT_EQ(gdx_put<Mode::kInline>(ep, kTarget, local, source.size()), Status::kOk);
      },
      serve);
  EXPECT_EQ(nic.state().messages, MemoryNic::kBlocks + 1);
}

// The deadline of a call that timed out lies in the past. A call that took it over would end at its first
// wait.
TEST(Queue, each_call_waits_by_a_deadline_of_its_own) {
  static std::uint64_t arrived;
  static std::atomic<bool> serves;
  const auto serve_and_signal = []() -> int {
    if (!serves) return 0;
    std::atomic_ref<std::uint64_t>(arrived).store(1, std::memory_order_release);
    return serve();
  };
  std::array<std::byte, 64> memory{};
  const LocalMemory local{memory.data(), memory.size(), 0, 0};
  using Call = Status (*)(Endpoint<>&, const LocalMemory&);
  const Call calls[] = {
      [](Endpoint<>& ep, const LocalMemory&) { return gdx_flush(ep); },
      [](Endpoint<>& ep, const LocalMemory&) { return gdx_wait(ep, &arrived, Compare::kEqual, 1); },
      [](Endpoint<>& ep, const LocalMemory& at) { return gdx_put<Mode::kPull>(ep, kTarget, at, 8); },
      [](Endpoint<>& ep, const LocalMemory& at) { return gdx_put<Mode::kPush>(ep, kTarget, at, 8); },
      [](Endpoint<>& ep, const LocalMemory& at) { return gdx_put_signal(ep, kTarget, at, 8, kTarget, 1); },
      [](Endpoint<>& ep, const LocalMemory&) { return gdx_put_value(ep, kTarget, 1u); },
      [](Endpoint<>& ep, const LocalMemory&) { return gdx_signal(ep, kTarget, 1); },
      [](Endpoint<>& ep, const LocalMemory& at) { return gdx_get(ep, at, kTarget, 8); },
      [](Endpoint<>& ep, const LocalMemory& at) { return gdx_fetch_add(ep, at, kTarget, 1); },
      [](Endpoint<>& ep, const LocalMemory& at) { return gdx_compare_swap(ep, at, kTarget, 1, 2); }};
  for (std::size_t i = 0; i < std::size(calls); ++i) {
    MemoryNic nic;
    nic.timeout_ns = 1'000'000;
    serving = &nic;
    serves = false;
    arrived = 0;
    in_kernel(
        nic,
        [&](auto& ep) {
          for (std::uint32_t k = 0; k < MemoryNic::kBlocks; ++k) {
            ASSERT_EQ(gdx_put<Mode::kPull>(ep, kTarget, local, 8), Status::kOk);
          }
          ASSERT_EQ(gdx_put<Mode::kPull>(ep, kTarget, local, 8), Status::kTimeout);
          nic.state().handle.timeout_ns = MemoryNic{}.timeout_ns;
          serves = true;
          EXPECT_EQ(calls[i](ep, local), Status::kOk) << "call " << i;
        },
        serve_and_signal);
  }
}

TEST(Queue, flush_waits_for_the_last_wqe_of_an_earlier_kernel) {
  MemoryNic nic;
  nic.timeout_ns = 1'000'000;
  std::vector<std::byte> source(8);
  in_kernel(nic, [&](auto& ep) {
    for (int i = 0; i < 2; ++i) {
      ASSERT_EQ(gdx_put<Mode::kPull>(ep, kTarget, {source.data(), 8, 0, 0}, 8), Status::kOk);
    }
  });
  nic.complete(0);
  in_kernel(nic, [](auto& ep) { EXPECT_EQ(gdx_flush(ep), Status::kTimeout); });
  nic.complete(1);
  in_kernel(nic, [](auto& ep) { EXPECT_EQ(gdx_flush(ep), Status::kOk); });
}

TEST(Queue, counters_wrap_at_sixteen_and_thirty_two_bits) {
  for (const std::uint32_t start : {0xfff8u, 0xfffffff8u}) {
    MemoryNic nic;
    serving = &nic;
    nic.state().producer = nic.state().completed = start;
    nic.state().last_wqe = start - 1;
    std::vector<std::byte> source(8);
    in_kernel(
        nic,
        [&](auto& ep) {
          for (int i = 0; i < 40; ++i) {
            ASSERT_EQ(gdx_put<Mode::kPull>(ep, kTarget, {source.data(), 8, 0, 0}, 8), Status::kOk);
          }
          ASSERT_EQ(gdx_flush(ep), Status::kOk);
        },
        serve);
    EXPECT_EQ(nic.state().producer, start + 40);
    EXPECT_EQ(nic.state().completed, start + 40);
  }
}

TEST(Fault, error_completion_is_sticky_and_keeps_the_first_syndrome) {
  MemoryNic nic;
  std::vector<std::byte> source(64);
  const LocalMemory local{source.data(), 64, 0, 0};
  in_kernel(nic, [&](auto& ep) {
    ASSERT_EQ(gdx_put<Mode::kPush>(ep, kTarget, local, 64), Status::kOk);
    ASSERT_EQ(gdx_put<Mode::kPull>(ep, kTarget, local, 8), Status::kOk);
    nic.fail(0, mlx5::Syndrome::kRetryExceeded);
    nic.fail(1, mlx5::Syndrome::kFlushed);
    EXPECT_EQ(gdx_flush(ep), Status::kPeerUnreachable);
    EXPECT_EQ(gdx_put<Mode::kPull>(ep, kTarget, local, 8), Status::kPeerUnreachable);
    EXPECT_EQ(gdx_signal(ep, kTarget, 1), Status::kPeerUnreachable);
  });
  EXPECT_EQ(nic.state().fault.syndrome, static_cast<std::uint8_t>(mlx5::Syndrome::kRetryExceeded));
  EXPECT_EQ(nic.state().fault.vendor_syndrome, 0x81);
  EXPECT_EQ(nic.state().fault.wqe_counter, 0u);
  EXPECT_EQ(nic.state().staging.filled, nic.state().staging.returned);  // all credits came back
  EXPECT_EQ(nic.record(), 2u);
  in_kernel(nic, [&](auto& ep) { EXPECT_EQ(ep.status(), Status::kPeerUnreachable); });
}

TEST(Fault, every_error_completion_is_sticky) {
  for (unsigned syndrome = 0; syndrome < 256; ++syndrome) {
    MemoryNic nic;
    std::vector<std::byte> source(8);
    const LocalMemory local{source.data(), 8, 0, 0};
    const Status expected = mlx5::status_of(static_cast<mlx5::Syndrome>(syndrome));
    ASSERT_TRUE(impl::is_sticky(expected)) << syndrome;
    in_kernel(nic, [&](auto& ep) {
      ASSERT_EQ(gdx_put<Mode::kPull>(ep, kTarget, local, 8), Status::kOk);
      nic.fail(0, static_cast<mlx5::Syndrome>(syndrome));
      EXPECT_EQ(gdx_flush(ep), expected) << syndrome;
      EXPECT_EQ(gdx_put<Mode::kPull>(ep, kTarget, local, 8), expected) << syndrome;
    });
    EXPECT_EQ(nic.state().fault.syndrome, syndrome);
    EXPECT_EQ(nic.record(), 1u);
  }
}

TEST(Fault, all_threads_of_a_block_get_the_same_status) {
  MemoryNic nic;
  nic.fail(0, mlx5::Syndrome::kRemoteAccess);
  std::vector<std::byte> source(8);
  std::vector<Status> returned(40), kept(40);
  in_kernel<Scope::kBlock>(
      nic,
      [&](auto& ep) {
        (void)gdx_put<Mode::kPull>(ep, kTarget, {source.data(), 8, 0, 0}, 8);
        returned[threadIdx.x] = gdx_flush(ep);
        kept[threadIdx.x] = ep.status();
      },
      nullptr, 40);
  EXPECT_EQ(returned, std::vector<Status>(40, Status::kRemoteAccess));
  EXPECT_EQ(kept, returned);
}

TEST(Open, other_layout_version_or_placement_is_refused) {
  MemoryNic nic;
  EndpointHandle handle = nic.handle();
  const auto kernel = [](EndpointHandle h, Status expected) {
    Endpoint<> ep(h);
    EXPECT_EQ(gdx_signal(ep, kTarget, 1), expected);
  };
  handle.layout_version = kQueueLayoutVersion + 1;
  ASSERT_EQ(exec::launch({}, kernel, handle, Status::kVersionMismatch), Status::kOk);
  EXPECT_EQ(nic.state().fault.status, Status::kOk) << "a refused kernel must not harm the next one";
  handle.layout_version = kQueueLayoutVersion;
  // Fences for GPU memory alone do not order stores to queues in host memory.
  const auto for_gpu = [](EndpointHandle h) {
    Endpoint<Scope::kThread, Placement::kGpu> ep(h);
    EXPECT_EQ(gdx_signal(ep, kTarget, 1), Status::kInvalidArgument);
  };
  ASSERT_EQ(exec::launch({}, for_gpu, handle), Status::kOk);
  EXPECT_EQ(nic.state().fault.status, Status::kOk);
  EXPECT_EQ(nic.record(), 0u);
}

// Opens the endpoint once more while a scope S of `threads` has it open, then after its close.
template <Scope S>
void open_twice(unsigned threads) {
  MemoryNic nic;
  std::atomic<unsigned> refused = 0;
  std::atomic<unsigned> posted = 0;
  const auto kernel = [&](EndpointHandle handle) {
    Endpoint<S> first(handle);
    EXPECT_EQ(gdx_signal(first, kTarget, 1), Status::kOk);
    {
      Endpoint<S> second(handle);
      refused += second.status() == Status::kBusy && gdx_signal(second, kTarget, 2) == Status::kBusy &&
                 gdx_flush(second) == Status::kBusy && second.fault().status == Status::kBusy;
    }
    exec::sync<S>();
    first.close();
    exec::sync<S>();
    Endpoint<S> third(handle);
    posted += gdx_signal(third, kTarget, 3) == Status::kOk;
  };
  ASSERT_EQ(exec::launch({.block = {threads}}, kernel, nic.handle()), Status::kOk);
  EXPECT_EQ(refused, threads);
  EXPECT_EQ(posted, threads);
  EXPECT_EQ(nic.record(), 2u) << "those of the owners";
  EXPECT_EQ(nic.state().messages, 2u);
  EXPECT_EQ(nic.owner(), nic.handle().owner_free);
}

TEST(Open, endpoint_has_one_owner_at_a_time) {
  open_twice<Scope::kThread>(1);
  open_twice<Scope::kWarp>(kWarpThreads);
  open_twice<Scope::kBlock>(40);
}

TEST(Open, one_of_two_blocks_and_one_of_many_threads_has_it) {
  for (const exec::LaunchConfig& config : {exec::LaunchConfig{.grid = {2}}, {.block = {32}}}) {
    MemoryNic nic;
    std::atomic<std::uint32_t> opened = 0;
    std::atomic<std::uint32_t> arrived = 0;
    const std::uint32_t all = config.grid.x * config.block.x;
    const auto kernel = [&](EndpointHandle handle) {
      Endpoint<> ep(handle);
      ++arrived;
      while (arrived != all) exec::yield();
      const Status status = gdx_signal(ep, kTarget, 1, SignalOp::kAdd);
      EXPECT_EQ(status, ep.status());
      opened += status == Status::kOk;
    };
    ASSERT_EQ(exec::launch(config, kernel, nic.handle()), Status::kOk);
    EXPECT_EQ(opened, 1u);
    EXPECT_EQ(nic.record(), 1u);
  }
}

TEST(Open, unconnected_endpoint_is_refused_at_once) {
  MemoryNic nic;
  const auto kernel = [](EndpointHandle handle) {
    Endpoint<> ep(handle);
    EXPECT_EQ(ep.status(), Status::kNotConnected);
    EXPECT_EQ(gdx_signal(ep, kTarget, 1), Status::kNotConnected);
    EXPECT_EQ(gdx_flush(ep), Status::kNotConnected);
  };
  const EndpointHandle handle = nic.handle();
  nic.owner() = handle.owner_free + kMostOpeners;
  ASSERT_EQ(exec::launch({}, kernel, handle), Status::kOk);
  EXPECT_EQ(nic.owner(), handle.owner_free + kMostOpeners) << "the refused endpoint gives nothing back";
  EXPECT_EQ(nic.record(), 0u);
}

TEST(Wait, host_abort_ends_it_and_leaves_the_queue_intact) {
  MemoryNic nic;
  nic.abort() = 1;
  std::uint64_t signal = 0;
  in_kernel(nic, [&](auto& ep) {
    EXPECT_EQ(gdx_wait(ep, &signal, Compare::kEqual, 1), Status::kAborted);
    EXPECT_EQ(ep.status(), Status::kOk);
    EXPECT_EQ(gdx_wait(ep, &signal, Compare::kEqual, 1), Status::kAborted) << "every wait from now on";
  });
}

TEST(Wait, host_abort_ends_the_next_of_waits_shorter_than_the_pause_between_polls) {
  MemoryNic nic;
  nic.timeout_ns = kHostPollNs / 2;
  std::uint64_t signal = 0;
  in_kernel(nic, [&](auto& ep) {
    EXPECT_EQ(gdx_wait(ep, &signal, Compare::kEqual, 1), Status::kTimeout);
    nic.abort() = 1;
    int waits = 1;
    while (gdx_wait(ep, &signal, Compare::kEqual, 1) == Status::kTimeout) ASSERT_LT(++waits, 100);
    EXPECT_EQ(gdx_wait(ep, &signal, Compare::kEqual, 1), Status::kAborted);
  });
}

TEST(Wait, silence_probes_the_peer_once_and_times_out) {
  MemoryNic nic;
  nic.timeout_ns = 50'000'000;
  std::uint64_t signal = 0;
  in_kernel(
      nic, [&](auto& ep) { EXPECT_EQ(gdx_wait(ep, &signal, Compare::kEqual, 1), Status::kTimeout); }, nullptr,
      1, step_time);
  EXPECT_EQ(nic.record(), 1u);
  EXPECT_EQ(nic.segment<mlx5::ControlSegment>(0, 0).qpn_ds, MemoryNic::kQpn << 8 | 2u);
}

TEST(Wait, dead_peer_ends_it_with_the_probes_syndrome) {
  MemoryNic nic;
  serving = &nic;
  std::uint64_t signal = 0;
  const auto refuse_the_probe = [] {
    if (serving->record() == 0 || serving->written() != 0) return 0;
    serving->fail(0, mlx5::Syndrome::kRetryExceeded);
    return 1;
  };
  in_kernel(
      nic, [&](auto& ep) { EXPECT_EQ(gdx_wait(ep, &signal, Compare::kEqual, 1), Status::kPeerUnreachable); },
      refuse_the_probe);
}

TEST(Wait, signal_that_holds_returns_even_on_a_failed_endpoint) {
  MemoryNic nic;
  nic.state().fault = {Status::kRemoteAccess, 0x13, 0, 0};
  std::uint64_t signal = 5;
  in_kernel(nic, [&](auto& ep) {
    EXPECT_EQ(gdx_wait(ep, &signal, Compare::kGreaterEqual, 5), Status::kOk);
    EXPECT_EQ(gdx_wait(ep, &signal, Compare::kGreaterEqual, 6), Status::kRemoteAccess);
  });
}

TEST(Test, compares_as_named) {
  const std::uint64_t signal = 5;
  const auto kernel = [&] {
    EXPECT_TRUE(gdx_test(&signal, Compare::kEqual, 5) && !gdx_test(&signal, Compare::kEqual, 4));
    EXPECT_TRUE(gdx_test(&signal, Compare::kNotEqual, 4) && !gdx_test(&signal, Compare::kNotEqual, 5));
    EXPECT_TRUE(gdx_test(&signal, Compare::kGreaterEqual, 5) &&
                !gdx_test(&signal, Compare::kGreaterEqual, 6));
    EXPECT_TRUE(gdx_test(&signal, Compare::kGreater, 4) && !gdx_test(&signal, Compare::kGreater, 5));
    EXPECT_TRUE(gdx_test(&signal, Compare::kLessEqual, 5) && !gdx_test(&signal, Compare::kLessEqual, 4));
    EXPECT_TRUE(gdx_test(&signal, Compare::kLess, 6) && !gdx_test(&signal, Compare::kLess, 5));
  };
  ASSERT_EQ(exec::launch({}, kernel), Status::kOk);
}

}  // namespace put_test
}  // namespace gdx::device
