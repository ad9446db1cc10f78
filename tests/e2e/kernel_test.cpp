// Every operation of the device API has its documented effect on memory.
#include <algorithm>
#include <atomic>
#include <vector>

#include "tests/e2e/pair.h"

namespace gdx {
namespace kernel_test {

std::byte pattern(std::uint64_t seed, std::size_t i) {
  return static_cast<std::byte>(seed * 31 + i * 7 + i / 251);
}

// A put of `bytes` at odd addresses on both sides writes exactly those bytes.
class Put : public Pair {
 protected:
  template <Mode M, Scope S>
  void check(std::uint64_t bytes, unsigned threads) {
    constexpr std::size_t kSourceAt = 3;
    constexpr std::size_t kTargetAt = 5;
    std::byte* const source = a_.buffer->data();
    std::byte* const target = b_.buffer->data();
    const std::uint64_t seed = ++seed_;
    for (std::size_t i = 0; i < bytes; ++i) source[kSourceAt + i] = pattern(seed, i);
    std::fill_n(target, bytes + 64, std::byte{0xee});
    in_kernel<S>(
        a_,
        [&](auto& ep) {
          ASSERT_EQ(gdx_put<M>(ep, a_.peer + kTargetAt, a_.buffer->local() + kSourceAt, bytes), Status::kOk);
          ASSERT_EQ(gdx_flush(ep), Status::kOk);
        },
        threads);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < bytes; ++i) wrong += target[kTargetAt + i] != pattern(seed, i);
    EXPECT_EQ(wrong, 0u) << bytes << " B";
    EXPECT_EQ(target[kTargetAt - 1], std::byte{0xee});
    EXPECT_EQ(target[kTargetAt + bytes], std::byte{0xee});
  }

  template <Mode M>
  void check_all(std::initializer_list<std::uint64_t> sizes) {
    for (const std::uint64_t bytes : sizes) {
      check<M, Scope::kThread>(bytes, 1);
      check<M, Scope::kWarp>(bytes, kWarpThreads);
      check<M, Scope::kBlock>(bytes, 50);
    }
    EXPECT_EQ(staging_violations(), 0u);
  }

 private:
  std::uint64_t seed_ = 0;
};

TEST_F(Put, pull_of_any_length_arrives) { check_all<Mode::kPull>({1, 28, 4095, 4096, 4097, 100'001}); }
TEST_F(Put, push_of_any_length_arrives) { check_all<Mode::kPush>({1, 28, 4095, 4096, 4097, 300'001}); }
TEST_F(Put, inline_of_any_length_arrives) {
  check_all<Mode::kInline>({1, 28, 29, 220, 221, kMaxInlinePutBytes});
}
TEST_F(Put, bounce_of_any_length_arrives) { check_all<Mode::kBounce>({1, 16'383, 16'384, 16'385, 900'001}); }
TEST_F(Put, auto_of_any_length_arrives) {
  check_all<Mode::kAuto>({1, 28, 29, 4096, 4097, 16'384, 16'385, 131'072, 131'073, 900'001});
}

class Operations : public Pair {};

TEST_F(Operations, get_reads_the_peers_bytes) {
  for (std::size_t i = 0; i < 50'000; ++i) b_.buffer->data()[i] = pattern(1, i);
  in_kernel(a_, [&](auto& ep) {
    ASSERT_EQ(gdx_get(ep, a_.buffer->local() + 7, a_.peer, 50'000), Status::kOk);
    ASSERT_EQ(gdx_flush(ep), Status::kOk);
  });
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < 50'000; ++i) wrong += a_.buffer->data()[7 + i] != pattern(1, i);
  EXPECT_EQ(wrong, 0u);
}

TEST_F(Operations, atomics_return_the_original_and_change_the_target) {
  auto* target = reinterpret_cast<std::uint64_t*>(b_.buffer->data());
  auto* results = reinterpret_cast<std::uint64_t*>(a_.buffer->data());
  *target = 40;
  in_kernel(a_, [&](auto& ep) {
    const LocalMemory result = a_.buffer->local();
    ASSERT_EQ(gdx_fetch_add(ep, result, a_.peer, 2), Status::kOk);
    ASSERT_EQ(gdx_compare_swap(ep, result + 8, a_.peer, 42, 100), Status::kOk);
    ASSERT_EQ(gdx_compare_swap(ep, result + 16, a_.peer, 42, 200), Status::kOk);
    ASSERT_EQ(gdx_flush(ep), Status::kOk);
  });
  EXPECT_EQ(results[0], 40u);
  EXPECT_EQ(results[1], 42u);
  EXPECT_EQ(results[2], 100u);
  EXPECT_EQ(*target, 100u);
}

TEST_F(Operations, values_of_every_width_write_only_themselves) {
  struct Quad {
    std::uint32_t of[4];
  };
  std::fill_n(b_.buffer->data(), 48, std::byte{0xee});
  in_kernel(a_, [&](auto& ep) {
    ASSERT_EQ(gdx_put_value(ep, a_.peer, std::uint8_t{0x11}), Status::kOk);
    ASSERT_EQ(gdx_put_value(ep, a_.peer + 2, std::uint16_t{0x2222}), Status::kOk);
    ASSERT_EQ(gdx_put_value(ep, a_.peer + 8, std::uint32_t{0x44444444}), Status::kOk);
    ASSERT_EQ(gdx_put_value(ep, a_.peer + 16, std::uint64_t{0x8888888888888888}), Status::kOk);
    ASSERT_EQ(gdx_put_value(ep, a_.peer + 28, Quad{{0x01010101, 0x02020202, 0x03030303, 0x04040404}}),
              Status::kOk);
    ASSERT_EQ(gdx_flush(ep), Status::kOk);
  });
  const unsigned char expected[48] = {0x11, 0xee, 0x22, 0x22, 0xee, 0xee, 0xee, 0xee, 0x44, 0x44, 0x44, 0x44,
                                      0xee, 0xee, 0xee, 0xee, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88,
                                      0xee, 0xee, 0xee, 0xee, 1,    1,    1,    1,    2,    2,    2,    2,
                                      3,    3,    3,    3,    4,    4,    4,    4,    0xee, 0xee, 0xee, 0xee};
  EXPECT_EQ(std::memcmp(b_.buffer->data(), expected, sizeof expected), 0);
}

TEST_F(Operations, added_signals_sum_up) {
  auto* signal = reinterpret_cast<std::uint64_t*>(b_.buffer->data());
  in_kernel(a_, [&](auto& ep) {
    for (std::uint64_t i = 1; i <= 300; ++i)
      ASSERT_EQ(gdx_signal(ep, a_.peer, i, SignalOp::kAdd), Status::kOk);
    ASSERT_EQ(gdx_flush(ep), Status::kOk);
  });
  EXPECT_EQ(*signal, 300u * 301 / 2);
}

// One block sends, the other checks on every signal that the payload before it is all there.
__global__ void stream(EndpointHandle sender, EndpointHandle receiver, LocalMemory source,
                       RemoteMemory target, RemoteMemory back, const std::byte* arrivals,
                       std::uint64_t* torn) {
  constexpr std::uint64_t kMessages = 200;
  constexpr std::uint64_t kWords = 512;
  constexpr std::uint64_t kSignalAt = kWords * 8;
  if (blockIdx.x == 0) {
    device::Endpoint<Scope::kWarp> ep(sender);
    auto* words = reinterpret_cast<std::uint64_t*>(source.address);
    auto* answer = reinterpret_cast<const std::uint64_t*>(source.address + kSignalAt);
    for (std::uint64_t m = 1; m <= kMessages; ++m) {
      for (std::uint64_t i = threadIdx.x; i < kWords; i += kWarpThreads) words[i] = m;
      ASSERT_EQ(gdx_put_signal<Mode::kPush>(ep, target, source, kWords * 8, target + kSignalAt, m),
                Status::kOk);
      ASSERT_EQ(gdx_wait(ep, answer, Compare::kEqual, m), Status::kOk);
    }
    ASSERT_EQ(gdx_flush(ep), Status::kOk);
  } else {
    device::Endpoint<Scope::kWarp> ep(receiver);
    auto* words = reinterpret_cast<const std::uint64_t*>(arrivals);
    for (std::uint64_t m = 1; m <= kMessages; ++m) {
      ASSERT_EQ(gdx_wait(ep, words + kWords, Compare::kEqual, m), Status::kOk);
      for (std::uint64_t i = threadIdx.x; i < kWords; i += kWarpThreads) {
        if (words[i] != m) exec::add(torn, 1);
      }
      ASSERT_EQ(gdx_signal(ep, back + kSignalAt, m), Status::kOk);
    }
    ASSERT_EQ(gdx_flush(ep), Status::kOk);
  }
}

TEST_F(Operations, signal_is_visible_only_after_its_payload) {
  std::uint64_t torn = 0;
  ASSERT_EQ(exec::launch({.grid = {2}, .block = {kWarpThreads}, .progress = progress_, .workers = 2}, stream,
                         a_.endpoint->handle(), b_.endpoint->handle(), a_.buffer->local(), a_.peer, b_.peer,
                         static_cast<const std::byte*>(b_.buffer->data()), &torn),
            Status::kOk);
  EXPECT_EQ(torn, 0u);
  EXPECT_EQ(staging_violations(), 0u);
}

}  // namespace kernel_test
}  // namespace gdx
