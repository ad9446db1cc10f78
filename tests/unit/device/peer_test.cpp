// Calls on mapped memory of a peer: what is stored, in which order, what is refused; and the NIC where
// nothing is mapped.
#include "device/peer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <numeric>
#include <thread>
#include <vector>

#include "tests/unit/device/memory_nic.h"

// As kernel authors write it: outside namespace gdx.
__global__ void put_value_and_flush(gdx::PeerHandle handle, gdx::RemoteMemory to, gdx::Status* end) {
  gdx::device::PeerEndpoint<> endpoint(handle);
  *end = gdx_put_value(endpoint, to, std::uint32_t{0x01020304});
  if (*end == gdx::Status::kOk) *end = gdx_flush(endpoint);
}

namespace gdx::device {
namespace peer_test {

constexpr std::uint64_t kPeerAddress =
    0x7000'0000'0000;  // as the peer has it; nothing is there in this process
constexpr std::uint32_t kRkey = 0x77;
constexpr std::uint32_t kAll = kPeerWrite | kPeerRead | kPeerAtomic;
constexpr std::size_t kBytes = 4096;

// A peer's region, with bytes around it that nobody may touch.
struct Region {
  static constexpr std::size_t kAround = 64;
  alignas(64) std::array<std::byte, kBytes + 2 * kAround> memory{};
  std::uint64_t address = kPeerAddress;
  std::uint32_t rkey = kRkey;

  [[nodiscard]] std::byte* data() { return memory.data() + kAround; }
  [[nodiscard]] std::uint64_t& word(std::size_t index) {
    return reinterpret_cast<std::uint64_t*>(data())[index];
  }
  [[nodiscard]] RemoteMemory remote() const { return {address, kBytes, rkey, 0}; }
  [[nodiscard]] PeerWindow window(std::uint32_t access) { return {address, kBytes, data(), rkey, access}; }
};

PeerHandle handle_of(MemoryNic& nic, std::initializer_list<PeerWindow> windows) {
  PeerHandle handle{};
  handle.endpoint = nic.handle();
  handle.layout_version = kPeerLayoutVersion;
  for (const PeerWindow& window : windows) handle.windows[handle.window_count++] = window;
  return handle;
}

template <Scope S = Scope::kThread, typename Body>
void in_kernel(const PeerHandle& handle, Body body, unsigned threads = 1, int (*progress)() = nullptr) {
  const auto kernel = [&](PeerHandle parameter) {
    PeerEndpoint<S> endpoint(parameter);
    body(endpoint);
  };
  ASSERT_EQ(exec::launch({.block = {threads}, .progress = progress}, kernel, handle), Status::kOk);
}

std::vector<std::byte> pattern(std::size_t bytes, unsigned seed) {
  std::vector<std::byte> out(bytes);
  for (std::size_t i = 0; i < bytes; ++i) out[i] = static_cast<std::byte>(1 + (i * 7 + seed) % 255);
  return out;
}

template <Scope S>
void expect_exact_puts(unsigned threads) {
  for (const std::size_t at : {std::size_t{0}, std::size_t{5}, std::size_t{16}}) {
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{16}, std::size_t{33}, kBytes - 16}) {
      MemoryNic nic;
      Region region;
      std::vector<std::byte> source = pattern(bytes, static_cast<unsigned>(at));
      in_kernel<S>(
          handle_of(nic, {region.window(kAll)}),
          [&](auto& ep) {
            EXPECT_EQ(gdx_put(ep, region.remote() + at, {source.data(), bytes, 0, 0}, bytes), Status::kOk);
            std::fill(source.begin(), source.end(), std::byte{0});  // reused at once
          },
          threads);
      const std::vector<std::byte> wanted = pattern(bytes, static_cast<unsigned>(at));
      EXPECT_TRUE(std::equal(wanted.begin(), wanted.end(), region.data() + at));
      const auto touched =
          kBytes + 2 * Region::kAround - std::count(region.memory.begin(), region.memory.end(), std::byte{0});
      EXPECT_EQ(static_cast<std::size_t>(touched), bytes);
      EXPECT_EQ(nic.record(), 0u) << "the NIC was told";
      EXPECT_EQ(nic.state().messages, 1u);
    }
  }
}

TEST(PeerPut, of_any_place_and_size_stores_exactly_its_bytes_and_posts_nothing) {
  expect_exact_puts<Scope::kThread>(1);
}

// One thread zeroes the source as soon as its call returns; the others must have copied their parts by then.
TEST(PeerPut, by_warp_and_block_returns_when_all_threads_have_copied) {
  const auto put_and_spoil = [](auto scope, unsigned threads) {
    constexpr Scope S = decltype(scope)::value;
    MemoryNic nic;
    Region region;
    std::vector<std::byte> source = pattern(kBytes, 3);
    in_kernel<S>(
        handle_of(nic, {region.window(kAll)}),
        [&](auto& ep) {
          EXPECT_EQ(gdx_put(ep, region.remote(), {source.data(), kBytes, 0, 0}, kBytes), Status::kOk);
          if (ep.is_leader()) std::fill(source.begin(), source.end(), std::byte{0});
        },
        threads);
    const std::vector<std::byte> wanted = pattern(kBytes, 3);
    EXPECT_TRUE(std::equal(wanted.begin(), wanted.end(), region.data()));
  };
  put_and_spoil(std::integral_constant<Scope, Scope::kWarp>{}, 32);
  put_and_spoil(std::integral_constant<Scope, Scope::kWarp>{}, 20);
  put_and_spoil(std::integral_constant<Scope, Scope::kBlock>{}, 96);
}

// The second block looks whenever the first lets it in. It must never find the signal before the payload.
TEST(PeerPutSignal, seen_by_another_block_shows_all_of_its_payload) {
  constexpr std::uint64_t kRounds = 20;
  constexpr std::size_t kPayload = kBytes - 16;
  for (const SignalOp op : {SignalOp::kSet, SignalOp::kAdd}) {
    MemoryNic nic;
    Region region;
    const RemoteMemory signal = region.remote() + kPayload;
    std::uint64_t& word = region.word(kPayload / 8);
    std::vector<std::byte> source(kPayload);
    std::uint64_t answered = 0;
    std::atomic<int> wrong{0};
    const auto kernel = [&](PeerHandle parameter) {
      if (blockIdx.x == 0) {
        PeerEndpoint<Scope::kBlock> ep(parameter);
        for (std::uint64_t round = 1; round <= kRounds; ++round) {
          for (std::size_t i = threadIdx.x; i < kPayload; i += blockDim.x) source[i] = std::byte(round);
          const std::uint64_t value = op == SignalOp::kSet ? round : 1;
          wrong += gdx_put_signal(ep, region.remote(), {source.data(), kPayload, 0, 0}, kPayload, signal,
                                  value, op) != Status::kOk;
          while (!gdx_test(&answered, Compare::kGreaterEqual, round) && wrong == 0) {
          }
          __syncthreads();
        }
      } else if (threadIdx.x == 0) {
        for (std::uint64_t round = 1; round <= kRounds && wrong == 0; ++round) {
          while (!gdx_test(&word, Compare::kGreaterEqual, round) && wrong == 0) {
          }
          wrong += std::count(region.data(), region.data() + kPayload, std::byte(round)) !=
                   static_cast<std::ptrdiff_t>(kPayload);
          exec::publish(&answered, round);
        }
      }
    };
    const exec::LaunchConfig config{.grid = {2}, .block = {64}};
    ASSERT_EQ(exec::launch(config, kernel, handle_of(nic, {region.window(kAll)})), Status::kOk);
    EXPECT_EQ(wrong, 0);
  }
}

// Puts between threads of two kernels, for ThreadSanitizer: only the signal orders the payload.
TEST(PeerPutSignal, between_two_kernels_orders_the_payload) {
  constexpr std::uint64_t kRounds = 50;
  constexpr std::size_t kWords = 64;
  MemoryNic sender_nic;
  MemoryNic receiver_nic;
  sender_nic.timeout_ns = receiver_nic.timeout_ns = 60'000'000'000;
  Region region;
  Region answers;
  const RemoteMemory signal = region.remote() + 8 * kWords;
  std::thread receiver([&] {
    PeerHandle handle = handle_of(receiver_nic, {answers.window(kAll)});
    handle.endpoint.probe_after_ns = 60'000'000'000;
    in_kernel<Scope::kWarp>(
        handle,
        [&](auto& ep) {
          for (std::uint64_t round = 1; round <= kRounds; ++round) {
            ASSERT_EQ(gdx_wait(ep, &region.word(kWords), Compare::kGreaterEqual, round), Status::kOk);
            for (std::size_t i = threadIdx.x; i < kWords; i += 32) ASSERT_EQ(region.word(i), round);
            ASSERT_EQ(gdx_signal(ep, answers.remote(), round), Status::kOk);
          }
        },
        32);
  });
  PeerHandle handle = handle_of(sender_nic, {region.window(kAll)});
  handle.endpoint.probe_after_ns = 60'000'000'000;
  std::array<std::uint64_t, kWords> source{};
  in_kernel<Scope::kWarp>(
      handle,
      [&](auto& ep) {
        for (std::uint64_t round = 1; round <= kRounds; ++round) {
          for (std::size_t i = threadIdx.x; i < kWords; i += 32) source[i] = round;
          const LocalMemory local{reinterpret_cast<std::byte*>(source.data()), 8 * kWords, 0, 0};
          ASSERT_EQ(gdx_put_signal(ep, region.remote(), local, 8 * kWords, signal, round), Status::kOk);
          ASSERT_EQ(gdx_wait(ep, &answers.word(0), Compare::kGreaterEqual, round), Status::kOk);
        }
      },
      32);
  receiver.join();
}

struct Place {
  const char* what;
  std::uint64_t address;
  std::uint64_t bytes;
  std::uint32_t rkey;
};

TEST(PeerPut, what_leaves_the_region_is_refused_stores_nothing_and_ends_the_endpoint) {
  const Place places[] = {
      {"the last byte outside", kPeerAddress + kBytes - 15, 16, kRkey},
      {"all outside", kPeerAddress + kBytes, 1, kRkey},
      {"before it", kPeerAddress - 1, 16, kRkey},
      {"a length that wraps", kPeerAddress + 16, ~std::uint64_t{0}, kRkey},
      {"another key", kPeerAddress, 16, kRkey + 1},
      {"an address that is this process's", 0, 16, kRkey},
  };
  for (const Place& place : places) {
    MemoryNic nic;
    Region region;
    std::vector<std::byte> source = pattern(64, 0);
    in_kernel<Scope::kWarp>(
        handle_of(nic, {region.window(kAll)}),
        [&](auto& ep) {
          const LocalMemory local{source.data(), source.size(), 0, 0};
          const RemoteMemory to{place.address, place.bytes, place.rkey, 0};
          EXPECT_EQ(gdx_put(ep, to, local, place.bytes), Status::kRemoteAccess) << place.what;
          EXPECT_EQ(ep.status(), Status::kRemoteAccess);
          EXPECT_EQ(gdx_put(ep, region.remote(), local, 16), Status::kRemoteAccess) << "it goes on";
          EXPECT_EQ(gdx_signal(ep, region.remote(), 1), Status::kRemoteAccess);
          EXPECT_EQ(gdx_flush(ep), Status::kRemoteAccess);
        },
        32);
    EXPECT_EQ(std::count(region.memory.begin(), region.memory.end(), std::byte{0}),
              static_cast<std::ptrdiff_t>(region.memory.size()));
    EXPECT_EQ(nic.state().fault.status, Status::kRemoteAccess) << place.what;
    EXPECT_EQ(nic.state().fault.syndrome, 0u) << "no NIC said so";
    EXPECT_EQ(nic.state().fault.vendor_syndrome, 0u);
    EXPECT_EQ(nic.state().fault.wqe_counter, 0u);
    EXPECT_EQ(nic.record(), 0u);
  }
}

// Neighbours at the peer need not be neighbours here.
TEST(PeerPut, across_two_windows_is_refused) {
  MemoryNic nic;
  Region first;
  Region second;
  second.address = kPeerAddress + kBytes;
  std::vector<std::byte> source = pattern(64, 0);
  in_kernel(handle_of(nic, {first.window(kAll), second.window(kAll)}), [&](auto& ep) {
    const LocalMemory local{source.data(), source.size(), 0, 0};
    EXPECT_EQ(gdx_put(ep, second.remote(), local, 64), Status::kOk);
    EXPECT_EQ(gdx_put(ep, first.remote() + (kBytes - 8), local, 16), Status::kRemoteAccess);
  });
  EXPECT_TRUE(std::equal(source.begin(), source.end(), second.data()));
}

TEST(PeerCalls, what_the_registration_does_not_permit_is_refused) {
  std::uint64_t local_words[4] = {};
  const LocalMemory local{reinterpret_cast<std::byte*>(local_words), sizeof local_words, 0, 0};
  const auto outcome = [&](std::uint32_t access, auto call) {
    MemoryNic nic;
    Region region;
    Status status = Status::kPending;
    in_kernel(handle_of(nic, {region.window(access)}), [&](auto& ep) { status = call(ep, region.remote()); });
    return status;
  };
  const auto put = [&](auto& ep, RemoteMemory to) { return gdx_put(ep, to, local, 8); };
  const auto value = [&](auto& ep, RemoteMemory to) { return gdx_put_value(ep, to, std::uint16_t{1}); };
  const auto set = [&](auto& ep, RemoteMemory to) { return gdx_signal(ep, to, 1); };
  const auto add = [&](auto& ep, RemoteMemory to) { return gdx_signal(ep, to, 1, SignalOp::kAdd); };
  const auto get = [&](auto& ep, RemoteMemory from) { return gdx_get(ep, local, from, 8); };
  const auto fetch = [&](auto& ep, RemoteMemory at) { return gdx_fetch_add(ep, local, at, 1); };
  const auto swap = [&](auto& ep, RemoteMemory at) { return gdx_compare_swap(ep, local, at, 0, 1); };
  const auto check = [&](auto call, std::uint32_t needs) {
    EXPECT_EQ(outcome(needs, call), Status::kOk) << needs;
    EXPECT_EQ(outcome(kAll & ~needs, call), Status::kRemoteAccess) << needs;
  };
  check(put, kPeerWrite);
  check(value, kPeerWrite);
  check(set, kPeerWrite);
  check(add, kPeerAtomic);
  check(get, kPeerRead);
  check(fetch, kPeerAtomic);
  check(swap, kPeerAtomic);
}

TEST(PeerCalls, words_that_are_not_aligned_are_refused) {
  const auto outcome = [](auto call) {
    MemoryNic nic;
    Region region;
    Status status = Status::kPending;
    in_kernel(handle_of(nic, {region.window(kAll)}),
              [&](auto& ep) { status = call(ep, region.remote() + 4); });
    return status;
  };
  std::uint64_t was = 0;
  const LocalMemory original{reinterpret_cast<std::byte*>(&was), 8, 0, 0};
  EXPECT_EQ(outcome([](auto& ep, RemoteMemory w) { return gdx_signal(ep, w, 1); }), Status::kRemoteInvalid);
  EXPECT_EQ(outcome([](auto& ep, RemoteMemory w) { return gdx_signal(ep, w, 1, SignalOp::kAdd); }),
            Status::kRemoteInvalid);
  EXPECT_EQ(outcome([&](auto& ep, RemoteMemory w) { return gdx_fetch_add(ep, original, w, 1); }),
            Status::kRemoteInvalid);
  EXPECT_EQ(outcome([&](auto& ep, RemoteMemory w) { return gdx_put_value(ep, w + 1, std::uint64_t{1}); }),
            Status::kOk);
}

TEST(PeerCalls, no_bytes_touch_no_memory_and_a_signal_goes_alone) {
  MemoryNic nic;
  Region region;
  in_kernel(handle_of(nic, {region.window(kAll)}), [&](auto& ep) {
    EXPECT_EQ(gdx_put(ep, {}, {}, 0), Status::kOk);
    EXPECT_EQ(gdx_get(ep, {}, {}, 0), Status::kOk);
    EXPECT_EQ(gdx_get(ep, {}, region.remote(), (1ull << 30) + 1), Status::kInvalidLength);
    EXPECT_EQ(gdx_put_signal(ep, {}, {}, 0, region.remote(), 7), Status::kOk);
  });
  EXPECT_EQ(region.word(0), 7u);
  EXPECT_EQ(nic.state().messages, 1u);
  EXPECT_EQ(nic.state().fault.status, Status::kOk);
}

TEST(PeerCalls, values_gets_and_atomics_do_what_they_say) {
  MemoryNic nic;
  Region region;
  region.word(0) = 40;
  for (std::size_t i = 0; i < 8; ++i) region.word(8 + i) = 100 + i;
  std::uint64_t local_words[8] = {};
  in_kernel<Scope::kBlock>(
      handle_of(nic, {region.window(kAll)}),
      [&](auto& ep) {
        const LocalMemory local{reinterpret_cast<std::byte*>(local_words), sizeof local_words, 0, 0};
        ASSERT_EQ(gdx_fetch_add(ep, local, region.remote(), 2), Status::kOk);
        EXPECT_EQ(local_words[0], 40u);
        ASSERT_EQ(gdx_compare_swap(ep, local + 8, region.remote(), 42, 50), Status::kOk);
        EXPECT_EQ(local_words[1], 42u);
        ASSERT_EQ(gdx_compare_swap(ep, local + 8, region.remote(), 42, 60), Status::kOk);
        EXPECT_EQ(local_words[1], 50u);
        gdx_fence(ep);
        ASSERT_EQ(gdx_put_value(ep, region.remote() + 11, std::uint32_t{0xa1b2c3d4}), Status::kOk);
        ASSERT_EQ(gdx_put_value(ep, region.remote() + 24, std::uint8_t{0x12}), Status::kOk);
        ASSERT_EQ(gdx_put_value(ep, region.remote() + 26, std::uint16_t{0x3456}), Status::kOk);
        ASSERT_EQ(gdx_put_value(ep, region.remote() + 32, std::array<std::uint64_t, 2>{7, 8}), Status::kOk);
        ASSERT_EQ(gdx_signal(ep, region.remote() + 16, 5, SignalOp::kAdd), Status::kOk);
        ASSERT_EQ(gdx_get(ep, local, region.remote() + 64, 64), Status::kOk);
        ASSERT_EQ(gdx_flush(ep), Status::kOk);
        EXPECT_EQ(local_words[7], 107u);
      },
      40);
  EXPECT_EQ(region.word(0), 50u);
  EXPECT_EQ(region.word(1), std::uint64_t{0xa1b2c3d4} << 24);
  EXPECT_EQ(region.word(2), 5u);
  EXPECT_EQ(region.word(3), 0x34560012u);
  EXPECT_EQ(region.word(4), 7u);
  EXPECT_EQ(region.word(5), 8u);
  EXPECT_EQ(nic.state().messages, 9u);
}

TEST(PeerCalls, adds_of_several_kernels_are_all_counted) {
  constexpr std::uint64_t kAdds = 500;
  Region region;
  std::array<MemoryNic, 3> nics;
  std::vector<std::thread> threads;
  for (MemoryNic& nic : nics) {
    threads.emplace_back([&] {
      in_kernel(handle_of(nic, {region.window(kAll)}), [&](auto& ep) {
        for (std::uint64_t i = 0; i < kAdds; ++i)
          ASSERT_EQ(gdx_signal(ep, region.remote(), 1, SignalOp::kAdd), Status::kOk);
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(region.word(0), kAdds * nics.size());
}

TEST(PeerPutWarp, of_every_lane_goes_to_its_own_place_or_none_does) {
  constexpr std::uint32_t kIdleLane = 21;
  for (const bool bad_lane : {false, true}) {
    MemoryNic nic;
    Region region;
    std::vector<std::byte> source = pattern(kWarpThreads * 16, 9);
    in_kernel<Scope::kWarp>(
        handle_of(nic, {region.window(kAll)}),
        [&](auto& ep) {
          const std::uint64_t at = 16 * threadIdx.x;
          const std::uint64_t to = bad_lane && threadIdx.x == 13 ? kBytes - 8 : at;
          const std::uint64_t bytes = threadIdx.x == kIdleLane ? 0 : 16;
          EXPECT_EQ(gdx_put_warp(ep, region.remote() + to, LocalMemory{source.data() + at, 16, 0, 0}, bytes),
                    bad_lane ? Status::kRemoteAccess : Status::kOk);
        },
        kWarpThreads);
    const std::size_t idle_at = 16 * kIdleLane;
    std::fill_n(source.begin() + idle_at, 16, std::byte{0});
    if (bad_lane) std::fill(source.begin(), source.end(), std::byte{0});
    EXPECT_TRUE(std::equal(source.begin(), source.end(), region.data()));
    EXPECT_EQ(nic.state().messages, bad_lane ? 0u : kWarpThreads - 1);
  }
}

MemoryNic* serving = nullptr;
int serve() { return serving->complete_published() ? 1 : 0; }

TEST(PeerEndpoint, without_windows_every_call_is_the_nics) {
  MemoryNic nic;
  serving = &nic;
  Region region;
  std::vector<std::byte> source = pattern(64, 0);
  in_kernel(
      handle_of(nic, {}),
      [&](auto& ep) {
        EXPECT_FALSE(ep.is_direct());
        const LocalMemory local{source.data(), source.size(), 0x88, 0};
        EXPECT_EQ(gdx_put<Mode::kPull>(ep, region.remote(), local, 64), Status::kOk);
        EXPECT_EQ(gdx_put_signal<Mode::kPull>(ep, region.remote(), local, 64, region.remote(), 1),
                  Status::kOk);
        EXPECT_EQ(gdx_get(ep, local, region.remote(), 8), Status::kOk);
        EXPECT_EQ(gdx_fetch_add(ep, local, region.remote(), 1), Status::kOk);
        EXPECT_EQ(gdx_flush(ep), Status::kOk);
      },
      1, serve);
  EXPECT_EQ(nic.record(), 5u);
  EXPECT_EQ(nic.state().messages, 5u);
  EXPECT_EQ(region.word(0), 0u);
}

TEST(PeerEndpoint, closed_twice_counts_its_direct_operations_once) {
  MemoryNic nic;
  Region region;
  std::vector<std::byte> source = pattern(64, 0);
  in_kernel(handle_of(nic, {region.window(kAll)}), [&](auto& ep) {
    EXPECT_EQ(gdx_put(ep, region.remote(), {source.data(), source.size(), 0, 0}, 64), Status::kOk);
    ep.close();
  });
  EXPECT_EQ(nic.state().messages, 1u);
}

TEST(PeerEndpoint, handle_of_another_layout_is_refused_and_touches_nothing) {
  MemoryNic nic;
  Region region;
  PeerHandle handle = handle_of(nic, {region.window(kAll)});
  for (const bool direct : {true, false}) {
    handle.layout_version = kPeerLayoutVersion + 1;
    handle.window_count = direct ? 1 : 0;
    in_kernel(handle, [&](auto& ep) {
      std::byte byte{1};
      std::uint64_t signal = 0;
      EXPECT_EQ(ep.status(), Status::kVersionMismatch);
      EXPECT_EQ(gdx_put(ep, region.remote(), {&byte, 1, 0, 0}, 1), Status::kVersionMismatch);
      EXPECT_EQ(gdx_signal(ep, region.remote(), 1), Status::kVersionMismatch);
      EXPECT_EQ(gdx_flush(ep), Status::kVersionMismatch);
      EXPECT_EQ(gdx_wait(ep, &signal, Compare::kEqual, 0), Status::kVersionMismatch);
    });
  }
  EXPECT_EQ(nic.record(), 0u);
  EXPECT_EQ(region.word(0), 0u);
}

// The queue pair finds a dead peer although no payload goes through it.
int answer_that_nobody_is_there() {
  if (serving->record() != 0 && serving->written() == 0) serving->fail(0, mlx5::Syndrome::kRetryExceeded);
  return 0;
}

TEST(PeerWait, silent_peer_is_probed_through_the_nic_and_found_dead) {
  MemoryNic nic;
  nic.timeout_ns = 60'000'000'000;
  serving = &nic;
  Region region;
  std::uint64_t signal = 0;
  in_kernel<Scope::kWarp>(
      handle_of(nic, {region.window(kAll)}),
      [&](auto& ep) {
        ASSERT_EQ(gdx_signal(ep, region.remote(), 1), Status::kOk);
        EXPECT_EQ(gdx_wait(ep, &signal, Compare::kEqual, 1), Status::kPeerUnreachable);
        EXPECT_EQ(gdx_signal(ep, region.remote(), 2), Status::kPeerUnreachable) << "stored for the dead";
      },
      kWarpThreads, answer_that_nobody_is_there);
  EXPECT_EQ(region.word(0), 1u);
  EXPECT_EQ(nic.state().messages, 1u) << "a probe is no message";
}

TEST(PeerWait, that_nobody_ends_ends_in_time_and_leaves_the_endpoint_usable) {
  MemoryNic nic;
  nic.timeout_ns = 2'000'000;
  serving = &nic;
  Region region;
  std::uint64_t signal = 0;
  in_kernel(
      handle_of(nic, {region.window(kAll)}),
      [&](auto& ep) {
        EXPECT_EQ(gdx_wait(ep, &signal, Compare::kEqual, 1), Status::kTimeout);
        EXPECT_EQ(gdx_signal(ep, region.remote(), 2), Status::kOk);
      },
      1, serve);
  EXPECT_EQ(region.word(0), 2u);
}

TEST(PeerEndpoint, is_used_outside_of_the_namespace) {
  MemoryNic nic;
  Region region;
  Status end = Status::kPending;
  ASSERT_EQ(
      exec::launch({}, put_value_and_flush, handle_of(nic, {region.window(kAll)}), region.remote(), &end),
      Status::kOk);
  EXPECT_EQ(end, Status::kOk);
  EXPECT_EQ(region.word(0), 0x01020304u);
}

}  // namespace peer_test
}  // namespace gdx::device
