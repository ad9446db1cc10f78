// One put on two queues: each call posts the same requests, whoever owns the queue and at whatever scope.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <type_traits>
#include <vector>

#include "device/endpoint.h"
#include "tests/unit/device/serving_nic.h"

namespace gdx::device {
namespace queues_test {

using mlx5::WqeOpcode;

constexpr RemoteMemory kTo{0x10000, 1 << 20, 0x77, 0};
constexpr RemoteMemory kSignal{0x900000, 8, 0x78, 0};
constexpr std::uint64_t kTooLong = (std::uint64_t{1} << 30) + 1;

ServingNic* serving = nullptr;
int serve() { return serving->step() ? 1 : 0; }

template <typename Ep>
struct Kind;
template <Scope S, Sharing Q>
struct Kind<Endpoint<S, Placement::kHost, Q>> {
  static constexpr Sharing kSharing = Q;
  static constexpr unsigned kThreads = S == Scope::kThread ? 1 : S == Scope::kWarp ? kWarpThreads : 80;
};

template <typename Ep>
class Queues : public ::testing::Test {
 protected:
  Queues() {
    for (std::size_t i = 0; i < source_.size(); ++i) source_[i] = static_cast<std::byte>(i * 7 + i / 253 + 1);
    nic_.nic_pool.grant(ServingNic::kSlots, ServingNic::kSlots);
    nic_.host_pool.grant(ServingNic::kSlots, ServingNic::kSlots);
    nic_.signal_fence = mlx5::kFenceStrongOrdering;
  }

  [[nodiscard]] LocalMemory from(std::uint64_t at = 0) {
    return {source_.data() + at, source_.size() - at, 0x88, 0};
  }
  [[nodiscard]] std::uint64_t payload_at(std::uint64_t at, std::uint64_t bytes = 8) const {
    std::uint64_t word = 0;
    std::memcpy(&word, source_.data() + at, bytes < 8 ? bytes : 8);
    return word;
  }
  // Makes `body(endpoint)` in every thread of the endpoint's scope, and serves what it has posted.
  template <typename Body>
  void in_kernel(Body body) {
    serving = &nic_;
    const auto kernel = [&](EndpointHandle handle) {
      Ep endpoint(handle);
      body(endpoint);
    };
    ASSERT_EQ(exec::launch({.block = {Kind<Ep>::kThreads}, .progress = serve}, kernel, nic_.handle()),
              Status::kOk);
    while (nic_.step()) {
    }
    EXPECT_EQ(nic_.mistakes(), 0u);
    EXPECT_EQ(nic_.overwritten(), 0u);
  }
  // Expects request `i` to be `opcode` on `remote`, with this gathered address or inline value.
  void expect_request(std::size_t i, WqeOpcode opcode, const RemoteMemory& remote,
                      std::uint64_t local) const {
    ASSERT_LT(i, nic_.requests().size());
    const ServingNic::Request& request = nic_.requests()[i];
    EXPECT_EQ(request.opcode, opcode) << i;
    EXPECT_EQ(request.remote, remote.address) << i;
    EXPECT_EQ(request.rkey.raw, remote.rkey.raw) << i;
    EXPECT_EQ(request.local, local) << i;
    const bool is_signal = remote.address == kSignal.address;
    EXPECT_EQ(request.flags, mlx5::kCompletionAlways | (is_signal ? mlx5::kFenceStrongOrdering : 0)) << i;
  }
  [[nodiscard]] std::uint64_t address(std::uint64_t at = 0) const {
    return reinterpret_cast<std::uint64_t>(source_.data() + at);
  }

  ServingNic nic_{ServingNic::Staged::kNic, 0, Kind<Ep>::kSharing};
  std::array<std::byte, 1024> source_;
};

using Kinds = ::testing::Types<Endpoint<Scope::kThread>, Endpoint<Scope::kWarp>, Endpoint<Scope::kBlock>,
                               SharedEndpoint<Scope::kThread>, SharedEndpoint<Scope::kWarp>,
                               SharedEndpoint<Scope::kBlock>>;
TYPED_TEST_SUITE(Queues, Kinds);

TYPED_TEST(Queues, every_call_posts_once_what_it_says) {
  this->in_kernel([&](auto& ep) {
    EXPECT_EQ(gdx_put<Mode::kPull>(ep, kTo, this->from(), 16), Status::kOk);
    EXPECT_EQ(gdx_put<Mode::kPush>(ep, kTo + 16, this->from(16), 16), Status::kOk);
    EXPECT_EQ(gdx_put<Mode::kBounce>(ep, kTo + 32, this->from(32), 16), Status::kOk);
    EXPECT_EQ(gdx_put<Mode::kInline>(ep, kTo + 48, this->from(48), 28), Status::kOk);
    EXPECT_EQ(gdx_put(ep, kTo + 64, this->from(64), 16), Status::kOk);
    EXPECT_EQ(gdx_put_value(ep, kTo + 80, std::uint32_t{0x1122}), Status::kOk);
    EXPECT_EQ(gdx_put_value(ep, kTo + 96, std::array<std::uint64_t, 2>{3, 4}), Status::kOk);
    EXPECT_EQ(gdx_signal(ep, kSignal, 7), Status::kOk);
    EXPECT_EQ(gdx_signal(ep, kSignal, 1, SignalOp::kAdd), Status::kOk);
    EXPECT_EQ(gdx_get(ep, this->from(8), kTo + 8, 16), Status::kOk);
    EXPECT_EQ(gdx_fetch_add(ep, this->from(), kTo + 24, 5), Status::kOk);
    EXPECT_EQ(gdx_compare_swap(ep, this->from(), kTo + 40, 1, 2), Status::kOk);
    EXPECT_EQ(gdx_flush(ep), Status::kOk);
  });
  ASSERT_EQ(this->nic_.requests().size(), 12u);
  constexpr WqeOpcode kWrite = WqeOpcode::kRdmaWrite;
  this->expect_request(0, kWrite, kTo, this->address());
  for (const std::size_t at : {1u, 2u, 3u})
    this->expect_request(at, kWrite, kTo + 16 * at, this->payload_at(16 * at));
  this->expect_request(4, kWrite, kTo + 64, this->address(64));
  this->expect_request(5, kWrite, kTo + 80, 0x1122);
  this->expect_request(6, kWrite, kTo + 96, 3);
  this->expect_request(7, kWrite, kSignal, 7);
  EXPECT_EQ(this->nic_.requests()[8].opcode, WqeOpcode::kAtomicFetchAdd);
  this->expect_request(9, WqeOpcode::kRdmaRead, kTo + 8, this->address(8));
  EXPECT_EQ(this->nic_.requests()[10].opcode, WqeOpcode::kAtomicFetchAdd);
  EXPECT_EQ(this->nic_.requests()[11].opcode, WqeOpcode::kAtomicCompareSwap);
}

// Chunks of one slot each, in their order, more of them than slots; behind the last the one signal.
TYPED_TEST(Queues, one_signal_follows_all_chunks_of_a_message) {
  constexpr std::uint64_t kSlot = ServingNic::kSlotBytes;
  for (const std::uint64_t bytes : {std::uint64_t{1}, kSlot, kSlot + 1, 12 * kSlot + 5}) {
    for (const bool pushes : {true, false}) {
      const std::size_t before = this->nic_.requests().size();
      this->in_kernel([&](auto& ep) {
        EXPECT_EQ(pushes ? gdx_put_signal<Mode::kPush>(ep, kTo, this->from(), bytes, kSignal, 9)
                         : gdx_put_signal<Mode::kBounce>(ep, kTo, this->from(), bytes, kSignal, 9),
                  Status::kOk);
        EXPECT_EQ(gdx_flush(ep), Status::kOk);
      });
      const std::uint64_t chunks = (bytes + kSlot - 1) / kSlot;
      ASSERT_EQ(this->nic_.requests().size(), before + chunks + 1);
      for (std::uint64_t k = 0; k < chunks; ++k)
        this->expect_request(before + k, WqeOpcode::kRdmaWrite, kTo + k * kSlot,
                             this->payload_at(k * kSlot, bytes - k * kSlot));
      this->expect_request(before + chunks, WqeOpcode::kRdmaWrite, kSignal, 9);
    }
  }
}

TYPED_TEST(Queues, no_bytes_send_the_signal_and_too_many_nothing) {
  this->in_kernel([&](auto& ep) {
    EXPECT_EQ(gdx_put<Mode::kPull>(ep, {}, {}, 0), Status::kOk);
    EXPECT_EQ(gdx_put<Mode::kPush>(ep, {}, {}, 0), Status::kOk);
    EXPECT_EQ(gdx_put<Mode::kInline>(ep, {}, {}, 0), Status::kOk);
    EXPECT_EQ(gdx_get(ep, {}, {}, 0), Status::kOk);
    EXPECT_EQ(gdx_put<Mode::kPull>(ep, {}, {}, kTooLong), Status::kInvalidLength);
    EXPECT_EQ(gdx_put_signal<Mode::kPull>(ep, {}, {}, kTooLong, kSignal, 1), Status::kInvalidLength);
    EXPECT_EQ(gdx_get(ep, {}, {}, kTooLong), Status::kInvalidLength);
    EXPECT_EQ(gdx_put<Mode::kInline>(ep, {}, {}, kMaxInlinePutBytes + 1), Status::kInvalidLength);
    EXPECT_EQ(gdx_put_signal<Mode::kInline>(ep, {}, {}, kTooLong, kSignal, 1), Status::kInvalidLength);
    EXPECT_EQ(gdx_put_signal<Mode::kPush>(ep, {}, {}, 0, kSignal, 2), Status::kOk);
    EXPECT_EQ(gdx_put_signal<Mode::kPull>(ep, kTo, {}, 0, kSignal, 3), Status::kOk);
    EXPECT_EQ(gdx_flush(ep), Status::kOk);
  });
  this->expect_request(0, WqeOpcode::kRdmaWrite, kSignal, 2);
  this->expect_request(this->nic_.requests().size() - 1, WqeOpcode::kRdmaWrite, kSignal, 3);
}

TYPED_TEST(Queues, push_without_slots_is_refused_and_a_failure_stays) {
  this->nic_.nic_pool.grants = 0;
  this->nic_.fails_at = 0;
  this->in_kernel([&](auto& ep) {
    EXPECT_EQ(gdx_put<Mode::kPush>(ep, kTo, this->from(), 8), Status::kUnsupported);
    EXPECT_EQ(gdx_put<Mode::kPull>(ep, kTo, this->from(), 8), Status::kOk);
    EXPECT_EQ(gdx_flush(ep), Status::kPeerUnreachable);
    EXPECT_EQ(gdx_put<Mode::kPull>(ep, kTo, this->from(), 8), Status::kPeerUnreachable);
    EXPECT_EQ(gdx_put<Mode::kBounce>(ep, kTo, this->from(), 8), Status::kPeerUnreachable);
    EXPECT_EQ(gdx_signal(ep, kSignal, 1), Status::kPeerUnreachable);
  });
  EXPECT_EQ(this->nic_.state().fault.status, Status::kPeerUnreachable);
}

}  // namespace queues_test
}  // namespace gdx::device
