// Stores of kernels to a NIC are permitted ones, whatever the message; and the recorder reports others.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <vector>

#include "device/endpoint.h"
#include "device/exec/nic_stores.h"
#include "tests/unit/device/memory_nic.h"
#include "tests/unit/device/serving_nic.h"
#include "tests/unit/device/team_records.h"

namespace gdx::device {
namespace nic_stores_test {

// Strict for the test's time, however the binary was started.
class NicStores : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { setenv(exec::kStrictVariable, "1", 1); }

  // Returns the status of a launch of one thread with an endpoint on the NIC.
  template <typename Body>
  Status launch(Body body) {
    const auto kernel = [&](EndpointHandle handle) {
      Endpoint<> endpoint(handle);
      body();
    };
    return exec::launch({}, kernel, nic_.handle());
  }

  MemoryNic nic_;
  std::vector<std::byte> source_ = std::vector<std::byte>(MemoryNic::kSlotBytes, std::byte{0x5a});
  std::vector<std::byte> two_chunks_ = std::vector<std::byte>(2 * MemoryNic::kSlotBytes, std::byte{0x5a});
};

template <Scope S>
void push_every_length(const std::vector<std::byte>& source) {
  for (std::uint32_t bytes = 1; bytes <= source.size(); ++bytes) {
    MemoryNic nic;
    std::memset(nic.staging(), 0xee, MemoryNic::kSlotBytes);
    in_kernel<S>(
        nic,
        [&](auto& endpoint) {
          EXPECT_EQ(gdx_put<Mode::kPush>(endpoint, {0x1000, 64, Be32{7}, 0},
                                         {const_cast<std::byte*>(source.data()), bytes, Be32{}, 0}, bytes),
                    Status::kOk);
        },
        nullptr, S == Scope::kThread ? 1 : 40);
    ASSERT_EQ(std::memcmp(nic.staging(), source.data(), bytes), 0) << bytes;
    for (std::uint32_t i = bytes; i < MemoryNic::kSlotBytes; ++i) {
      ASSERT_EQ(nic.staging()[i], i < (bytes + 15) / 16 * 16 ? std::byte{0} : std::byte{0xee})
          << bytes << " " << i;
    }
    ASSERT_EQ(nic.segment<mlx5::DataSegment>(0, 32).byte_count, bytes);
  }
}

TEST_F(NicStores, pushes_of_any_length_are_of_whole_words) {
  push_every_length<Scope::kThread>(source_);
  push_every_length<Scope::kBlock>(source_);
}

TEST_F(NicStores, store_of_bytes_to_staging_memory_is_found) {
  EXPECT_EQ(launch([&] { exec::copy<Scope::kThread>(nic_.staging(), source_.data(), 7); }), Status::kSystem);
}

TEST_F(NicStores, misaligned_store_to_staging_memory_is_found) {
  EXPECT_EQ(launch([&] { exec::store_word(nic_.staging() + 6, 1); }), Status::kSystem);
}

TEST_F(NicStores, aligned_words_in_staging_memory_and_bytes_beside_it_are_none) {
  std::byte beside[8];
  EXPECT_EQ(launch([&] {
              exec::store_word(nic_.staging() + 4, 1);
              exec::copy<Scope::kThread>(beside, source_.data(), 7);
            }),
            Status::kOk);
}

std::uint64_t doorbell_of(std::uint32_t index, std::uint32_t qpn) {
  return impl::doorbell_value(
      impl::control_segment(mlx5::WqeOpcode::kRdmaWrite, index, impl::queue_pair_word(qpn), 3, 0));
}

TEST_F(NicStores, doorbell_that_goes_backwards_is_found) {
  std::uint64_t doorbell = 0;
  EXPECT_EQ(launch([&] {
              exec::store_doorbell(&doorbell, doorbell_of(5, 1));
              exec::store_doorbell(&doorbell, doorbell_of(4, 1));
            }),
            Status::kSystem);
}

TEST_F(NicStores, doorbell_that_goes_backwards_in_the_other_half_is_found) {
  alignas(512) std::uint64_t halves[64]{};
  EXPECT_EQ(launch([&] {
              exec::store_doorbell(halves, doorbell_of(5, 1));
              exec::store_doorbell(halves + 32, doorbell_of(4, 1));
            }),
            Status::kSystem);
}

// No publication tells the writes that a GPU makes of several stores, so no test may rely on one.
TEST_F(NicStores, copy_of_a_wqe_is_whole_by_one_store_and_torn_by_several) {
  exec::Segment wqe[4] = {{{1, 2, 3, 4}}, {{5, 6, 7, 8}}, {{9, 10, 11, 12}}, {{13, 14, 15, 16}}};
  alignas(64) std::uint64_t half[8]{};
  EXPECT_EQ(launch([&] { exec::store_blueflame<Scope::kWarp>(half, wqe); }), Status::kOk);
  EXPECT_EQ(std::memcmp(half, wqe, sizeof wqe), 0);
  const auto store_pieces = [&] {
    std::memset(half, 0, sizeof half);
    return launch([&] {
      for (std::uint32_t piece = 4; piece-- > 0;) exec::store_blueflame_piece(half, wqe, piece);
    });
  };
  EXPECT_EQ(store_pieces(), Status::kOk);
  EXPECT_EQ(std::memcmp(half, wqe, sizeof half[0]), 0) << "it rings";
  for (int word = 1; word < 8; ++word) EXPECT_EQ(half[word], 0u);
  unsetenv(exec::kStrictVariable);
  EXPECT_EQ(store_pieces(), Status::kOk);
  setenv(exec::kStrictVariable, "1", 1);
  EXPECT_EQ(std::memcmp(half, wqe, sizeof wqe), 0);
}

TEST_F(NicStores, doorbells_that_wrap_and_those_of_another_queue_are_none) {
  std::uint64_t doorbell = 0;
  EXPECT_EQ(launch([&] {
              exec::store_doorbell(&doorbell, doorbell_of(0xffff, 1));
              exec::store_doorbell(&doorbell, doorbell_of(0, 2));
              exec::store_doorbell(&doorbell, doorbell_of(0, 1));
            }),
            Status::kOk);
}

// Runs the library's own calls, for every endpoint, mode, scope and place of the queues: in_kernel() and
// post_shared() expect of the launch that the recorder found nothing.
constexpr RemoteMemory kTo{0x1000, 4096, Be32{7}, 0};

template <Scope S, Placement P>
void post_every_way(std::vector<std::byte>& source) {
  constexpr unsigned kThreads = S == Scope::kThread ? 1 : S == Scope::kWarp ? kWarpThreads : 40;
  const LocalMemory from{source.data(), source.size(), Be32{}, 0};
  for (const std::uint32_t half_bytes : {0u, 256u}) {
    MemoryNic nic;
    nic.blueflame_half_bytes = half_bytes;
    const auto drain = [&] { nic.complete_published(); };
    const auto put = [&](auto& ep, auto mode, Doorbell doorbell) {
      EXPECT_EQ(gdx_put<mode()>(ep, kTo, from, 64, doorbell), Status::kOk);
    };
    const auto every = [&](auto mode) {
      in_kernel<S, P>(
          nic, [&](auto& ep) { put(ep, mode, Doorbell::kRing); }, nullptr, kThreads);
      drain();
      in_kernel<S, P>(
          nic,
          [&](auto& ep) {  // the doorbell of another call
            put(ep, mode, Doorbell::kDefer);
            EXPECT_EQ(gdx_put_value(ep, kTo, std::uint64_t{1}), Status::kOk);
          },
          nullptr, kThreads);
      drain();
      in_kernel<S, P>(
          nic, [&](auto& ep) { EXPECT_EQ(gdx_put_signal<mode()>(ep, kTo, from, 100, kTo, 1), Status::kOk); },
          nullptr, kThreads);
      drain();
    };
    every(std::integral_constant<Mode, Mode::kPull>());
    every(std::integral_constant<Mode, Mode::kPush>());
    every(std::integral_constant<Mode, Mode::kBounce>());
    every(std::integral_constant<Mode, Mode::kInline>());
    if constexpr (S == Scope::kBlock) {
      in_kernel<S, P>(
          nic,
          [&](auto& ep) { EXPECT_EQ((gdx_put<Mode::kPush, Copy::kBulk>(ep, kTo, from, 100)), Status::kOk); },
          nullptr, kThreads);
    }
  }
}

template <Placement P>
void post_shared_every_way(std::vector<std::byte>& source) {
  const LocalMemory from{source.data(), source.size(), 0x88, 0};
  ServingNic nic;
  nic.placement = P;
  nic.nic_pool.grant(4, 4);
  nic.host_pool.grant(4, 4);
  const auto kernel = [&](EndpointHandle handle) {
    SharedEndpoint<Scope::kThread, P> ep(handle);
    SharedEndpoint<Scope::kWarp, P> warp(handle);
    EXPECT_EQ(gdx_put(ep, kTo, from, 64), Status::kOk);
    EXPECT_EQ(gdx_put<Mode::kInline>(ep, kTo, from, 12), Status::kOk);
    EXPECT_EQ(gdx_put<Mode::kPull>(ep, kTo, from, 0), Status::kOk);
    EXPECT_EQ((gdx_put_signal<Mode::kPull>(ep, kTo, from, 0, kTo, 1)), Status::kOk);
    EXPECT_EQ(gdx_put<Mode::kPush>(ep, kTo, from, 64), Status::kOk);
    EXPECT_EQ(gdx_put<Mode::kBounce>(ep, kTo, from, 64), Status::kOk);
    EXPECT_EQ((gdx_put_signal<Mode::kPush>(ep, kTo, from, 100, kTo, 1)), Status::kOk);
    EXPECT_EQ((gdx_put<Mode::kPush>(warp, kTo, from, 100)), Status::kOk);
    EXPECT_EQ((gdx_put<Mode::kBounce>(warp, kTo, from, 100)), Status::kOk);
    EXPECT_EQ(gdx_put_warp(warp, kTo, from, 8), Status::kOk);
    EXPECT_EQ(gdx_put_value(ep, kTo, std::uint64_t{1}), Status::kOk);
    EXPECT_EQ(gdx_flush(ep), Status::kOk);
  };
  static ServingNic* serving = nullptr;
  serving = &nic;
  const auto serve = []() -> int { return serving->step(); };
  EXPECT_EQ(exec::launch({.block = {64}, .progress = serve}, kernel, nic.handle()), Status::kOk);
}

TEST_F(NicStores, whatever_is_posted_is_released_as_far_as_who_looks_is_away) {
  post_every_way<Scope::kThread, Placement::kHost>(two_chunks_);
  post_every_way<Scope::kThread, Placement::kGpu>(two_chunks_);
  post_every_way<Scope::kWarp, Placement::kGpu>(two_chunks_);
  post_every_way<Scope::kBlock, Placement::kGpu>(two_chunks_);
}

TEST_F(NicStores, whatever_is_posted_on_a_shared_endpoint_is_too) {
  post_shared_every_way<Placement::kHost>(two_chunks_);
  post_shared_every_way<Placement::kGpu>(two_chunks_);
}

struct Releases {
  std::uint64_t of_host = 0;
  std::uint64_t of_gpu = 0;
  bool operator==(const Releases&) const = default;
};

// Returns the releases of `ring`, and of three deferred puts in mode M before it, which have none.
template <Scope S, Placement P, Mode M, typename Ring>
Releases releases_of_batch(std::vector<std::byte>& source, Ring ring) {
  const LocalMemory from{source.data(), source.size(), Be32{}, 0};
  MemoryNic nic;
  Releases made;
  in_kernel<S, P>(
      nic,
      [&](auto& ep) {
        const auto now = [&] {
          return Releases{exec::nic_stores->releases(Placement::kHost),
                          exec::nic_stores->releases(Placement::kGpu)};
        };
        const Releases before = now();
        for (int i = 0; i < 3; ++i) EXPECT_EQ(gdx_put<M>(ep, kTo, from, 64, Doorbell::kDefer), Status::kOk);
        if (ep.is_leader()) {
          EXPECT_EQ(now(), before);
        }
        EXPECT_EQ(ring(ep, from), Status::kOk);
        if (!ep.is_leader()) return;
        const Releases after = now();
        made = {after.of_host - before.of_host, after.of_gpu - before.of_gpu};
        EXPECT_EQ(exec::nic_stores->report(), "");
      },
      nullptr, S == Scope::kThread ? 1 : kWarpThreads);
  return made;
}

// A put that rings has two releases: before the record, and between record and doorbell.
TEST_F(NicStores, deferred_pushes_are_released_once_with_the_doorbell_that_covers_them) {
  const auto push = [](auto& ep, LocalMemory from) { return gdx_put<Mode::kPush>(ep, kTo, from, 64); };
  const auto pull = [](auto& ep, LocalMemory from) { return gdx_put<Mode::kPull>(ep, kTo, from, 64); };
  const auto pulls = [](auto& ep, LocalMemory from) {
    return gdx_put_warp(ep, kTo, from, exec::thread_rank<Scope::kWarp>() < 4 ? 64 : 0);
  };
  const auto value = [](auto& ep, LocalMemory) { return gdx_put_value(ep, kTo, std::uint64_t{1}); };
  const auto inlined = [](auto& ep, LocalMemory from) { return gdx_put<Mode::kInline>(ep, kTo, from, 100); };
  const auto twice = [](auto& ep, LocalMemory) {
    (void)gdx_put_value(ep, kTo, std::uint64_t{1});
    return gdx_put_value(ep, kTo, std::uint64_t{2});
  };
  constexpr Placement kGpu = Placement::kGpu;
  const Releases one_more{1, 2};  // for the payload, before the queue's own two
  const auto in_gpu = [&](auto mode) {
    constexpr Mode kMode = mode();
    EXPECT_EQ((releases_of_batch<Scope::kThread, kGpu, kMode>(two_chunks_, value)), one_more);
    EXPECT_EQ((releases_of_batch<Scope::kThread, kGpu, kMode>(two_chunks_, pull)), one_more);
    EXPECT_EQ((releases_of_batch<Scope::kBlock, kGpu, kMode>(two_chunks_, inlined)), one_more);
    EXPECT_EQ((releases_of_batch<Scope::kWarp, kGpu, kMode>(two_chunks_, pulls)), one_more);
    EXPECT_EQ((releases_of_batch<Scope::kThread, kGpu, kMode>(two_chunks_, twice)), (Releases{1, 4}));
    EXPECT_EQ((releases_of_batch<Scope::kWarp, kGpu, kMode>(two_chunks_, push)), (Releases{2, 0}));
    EXPECT_EQ((releases_of_batch<Scope::kWarp, Placement::kHost, kMode>(two_chunks_, pull)),
              (Releases{2, 0}));
  };
  in_gpu(std::integral_constant<Mode, Mode::kPush>());
  in_gpu(std::integral_constant<Mode, Mode::kBounce>());
  EXPECT_EQ((releases_of_batch<Scope::kThread, kGpu, Mode::kPull>(two_chunks_, value)), (Releases{0, 2}));
}

// Queues in GPU memory, and ranks whose memory the kernel stores to.
class TeamStores : public Team {
 protected:
  static void SetUpTestSuite() { setenv(exec::kStrictVariable, "1", 1); }
};

// Stores to the rank's memory must be visible to its processors before the NIC's signal is.
TEST_F(TeamStores, nics_signal_to_a_mapped_rank_is_released_to_the_host_and_another_to_the_gpu) {
  handle_.layout = team_layout(Placement::kGpu);
  handle_.atomics = TeamAtomics::kNic;
  const auto releases_to = [&](std::uint32_t rank, PeerWay way) {
    nic(rank).placement = Placement::kGpu;
    connect(0, rank, way);
    Releases made;
    in_kernel([&](const TeamHandle& team) {
      const exec::NicStores& recorder = *exec::nic_stores;
      const Releases before{recorder.releases(Placement::kHost), recorder.releases(Placement::kGpu)};
      EXPECT_EQ((gdx_signal<Scope::kThread, Placement::kGpu>(team, word(0), 1, SignalOp::kAdd, rank)),
                Status::kOk);
      made = {recorder.releases(Placement::kHost) - before.of_host,
              recorder.releases(Placement::kGpu) - before.of_gpu};
    });
    return made;
  };
  EXPECT_EQ(releases_to(kNative, PeerWay::kNative), (Releases{0, 3}));
  EXPECT_EQ(releases_to(kDirect, PeerWay::kDirect), (Releases{2, 1}));
}

// The recorder sees too small a scope, wherever the store went.
TEST_F(NicStores, store_that_no_release_of_its_scope_covers_is_found) {
  struct Case {
    bool in_gpu;  // the queues
    std::byte* (*to)(MemoryNic&);
    Status expected;  // after a release of GPU scope
  };
  const auto ring = [](MemoryNic& nic) { return reinterpret_cast<std::byte*>(nic.handle().send_queue); };
  const auto beside = [](MemoryNic& nic) { return reinterpret_cast<std::byte*>(&nic.abort()); };
  const Case cases[] = {
      {true, [](MemoryNic& nic) { return nic.staging(); }, Status::kSystem},
      {true, [](MemoryNic& nic) { return nic.bounce(); }, Status::kSystem},
      {false, ring, Status::kSystem},
      {true, ring, Status::kOk},
      {true, beside, Status::kOk},
  };
  for (const Case& one : cases) {
    MemoryNic nic;
    nic.placement = one.in_gpu ? Placement::kGpu : Placement::kHost;
    const auto launched = [&](auto release) {
      const auto kernel = [&](EndpointHandle handle) {
        exec::watch_endpoint(handle);
        exec::store_word(one.to(nic), 1);
        release(handle);
      };
      return exec::launch({}, kernel, nic.handle());
    };
    const auto at = [&](auto scope) {
      return launched([&](const EndpointHandle& h) { exec::store_release<scope()>(h.send_record, Be32{1}); });
    };
    EXPECT_EQ(at(std::integral_constant<Placement, Placement::kGpu>()), one.expected);
    EXPECT_EQ(at(std::integral_constant<Placement, Placement::kHost>()), Status::kOk);
    const auto marks = [&](auto scope, std::uint32_t mark) {
      return launched([&](const EndpointHandle& h) {
        exec::fence_release<scope()>();
        exec::store_counter(&h.state->shared.marks[kMarkedBlocks - 1], mark);
      });
    };
    EXPECT_EQ(marks(std::integral_constant<Placement, Placement::kGpu>(), 1), one.expected);
    EXPECT_EQ(marks(std::integral_constant<Placement, Placement::kGpu>(), 0), Status::kOk) << "takes it away";
    EXPECT_EQ(marks(std::integral_constant<Placement, Placement::kHost>(), 1), Status::kOk);
    EXPECT_EQ(launched([](const EndpointHandle& h) { exec::store_doorbell(h.doorbell, doorbell_of(0, 1)); }),
              &one == &cases[4] ? Status::kOk : Status::kSystem);
  }
}

TEST_F(NicStores, doorbell_without_a_release_of_its_record_is_found) {
  const EndpointHandle handle = nic_.handle();
  EXPECT_EQ(launch([&] {
              exec::store_record(handle.send_record, Be32{1});
              exec::store_doorbell(handle.doorbell, doorbell_of(0, 1));
            }),
            Status::kSystem);
  EXPECT_EQ(launch([&] {
              exec::store_record(handle.send_record, Be32{1});
              exec::fence_release<Placement::kHost>();
              exec::store_doorbell(handle.doorbell, doorbell_of(0, 1));
            }),
            Status::kOk);
}

TEST_F(NicStores, stores_of_others_are_the_first_threads_to_release) {
  nic_.placement = Placement::kGpu;
  for (const Placement scope : {Placement::kGpu, Placement::kHost}) {
    const auto kernel = [&](EndpointHandle handle) {
      exec::watch_endpoint(handle);
      if (threadIdx.x == 1) exec::store_word(nic_.staging(), 1);
      exec::gather<Scope::kBlock>();
      if (threadIdx.x != 0) return;
      if (scope == Placement::kGpu) exec::store_release<Placement::kGpu>(handle.send_record, Be32{1});
      if (scope == Placement::kHost) exec::store_release<Placement::kHost>(handle.send_record, Be32{1});
    };
    EXPECT_EQ(exec::launch({.block = {2}}, kernel, nic_.handle()),
              scope == Placement::kHost ? Status::kOk : Status::kSystem);
  }
}

TEST_F(NicStores, nobody_is_punished_where_nobody_asked) {
  unsetenv(exec::kStrictVariable);
  EXPECT_EQ(launch([&] { exec::store_word(nic_.staging() + 6, 1); }), Status::kOk);
  setenv(exec::kStrictVariable, "1", 1);
}

}  // namespace nic_stores_test
}  // namespace gdx::device
