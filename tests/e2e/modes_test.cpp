// Bounce, and what `auto` makes of sizes, through the whole path.
#include <cstring>
#include <string>

#include "tests/e2e/pair.h"

namespace gdx {
namespace modes_test {

class Modes : public Pair {
 protected:
  void fill() {
    for (std::size_t i = 0; i < kBufferBytes; ++i)
      a_.buffer->data()[i] = static_cast<std::byte>(1 + i * 7 + i / 4096);
    std::memset(b_.buffer->data(), 0, kBufferBytes);
  }
  [[nodiscard]] bool arrived(std::uint64_t bytes) const {
    return std::memcmp(a_.buffer->data(), b_.buffer->data(), bytes) == 0;
  }
  template <Mode M>
  void put_all() {
    in_kernel(a_, [&](auto& ep) {
      ASSERT_EQ(gdx_put<M>(ep, a_.peer, a_.buffer->local(), kBufferBytes), Status::kOk);
      ASSERT_EQ(gdx_flush(ep), Status::kOk);
    });
    EXPECT_TRUE(arrived(kBufferBytes));
  }
  // A second endpoint like side A's, to the same peer's buffer, with this table.
  Endpoint with_table(const ModeTable& table) {
    auto endpoint =
        Endpoint::create(*hca_, {staging_.get(), bounce_.get()},
                         {.slot_count = kSlots, .bounce_slot_count = kSlots, .auto_modes = {.table = table}});
    EXPECT_TRUE(endpoint) << endpoint.error().message;
    return std::move(*endpoint);
  }
};

TEST_F(Modes, bounce_beyond_its_pool_waits_for_credits_and_arrives) {
  fill();
  put_all<Mode::kBounce>();
  const StagingState credits = a_.endpoint->state().bounce;
  EXPECT_GT(credits.stalls, 0u);
  EXPECT_EQ(credits.filled, kBufferBytes / bounce_->slot_bytes());
  EXPECT_EQ(credits.ready - credits.returned, 1u) << "the kernel that ended keeps its minimum";
  EXPECT_EQ(a_.endpoint->state().staging.filled, 0u);
}

TEST_F(Modes, bounced_payload_is_fetched_and_not_staged) {
  fill();
  const std::uint64_t fetched = counter("softhca_pcie_payload_reads");
  in_kernel(a_, [&](auto& ep) {
    ASSERT_EQ(gdx_put<Mode::kBounce>(ep, a_.peer, a_.buffer->local(), 4096), Status::kOk);
    std::memset(a_.buffer->data(), 0, 4096);  // the source is free at once
    ASSERT_EQ(gdx_flush(ep), Status::kOk);
  });
  EXPECT_EQ(counter("softhca_pcie_payload_reads") - fetched, 1u);
  std::memcpy(a_.buffer->data(), b_.buffer->data(), 4096);
  for (std::size_t i = 0; i < 4096; ++i)
    ASSERT_EQ(b_.buffer->data()[i], static_cast<std::byte>(1 + i * 7 + i / 4096)) << i;
}

TEST_F(Modes, many_endpoints_that_want_more_than_the_host_pool_all_get_on) {
  a_.endpoint.reset();
  b_.endpoint.reset();
  fill();
  const std::uint32_t count = bounce_->slot_count();
  constexpr std::uint64_t kPartBytes = kBufferBytes / 8;
  std::vector<Endpoint> endpoints;
  std::vector<EndpointHandle> handles;
  for (std::uint32_t i = 0; i < count; ++i) {
    auto endpoint = Endpoint::create(
        *hca_, {nullptr, bounce_.get()},
        {.bounce_slot_count = count, .auto_modes = {.table = ModeTable{}}, .timeout_ns = 60'000'000'000});
    ASSERT_TRUE(endpoint) << endpoint.error().message;
    endpoints.push_back(std::move(*endpoint));
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    ASSERT_TRUE(endpoints[i].connect(endpoints[i ^ 1].address()));
    handles.push_back(endpoints[i].handle());
  }
  const auto kernel = [&](const EndpointHandle* all, LocalMemory from, RemoteMemory to) {
    device::Endpoint<> ep(all[blockIdx.x]);
    const std::uint64_t at = blockIdx.x % 8 * kPartBytes;
    ASSERT_EQ(gdx_put(ep, to + at, from + at, kPartBytes), Status::kOk);
    ASSERT_EQ(gdx_flush(ep), Status::kOk);
  };
  ASSERT_EQ(exec::launch({.grid = {count}, .progress = progress_, .workers = 2}, kernel,
                         static_cast<const EndpointHandle*>(handles.data()), a_.buffer->local(), a_.peer),
            Status::kOk);
  EXPECT_TRUE(arrived(kBufferBytes));
  endpoints.clear();
  EXPECT_EQ(bounce_->free_slots(), bounce_->slot_count());
  EXPECT_EQ(bounce_->bad_returns(), 0u);
}

TEST_F(Modes, failed_bounce_gives_its_slots_back) {
  const std::uint32_t free_before = bounce_->free_slots();
  RemoteMemory wrong = a_.peer;
  wrong.rkey = wrong.rkey ^ 1u;
  in_kernel(a_, [&](auto& ep) {
    const Status put = gdx_put<Mode::kBounce>(ep, wrong, a_.buffer->local(), kBufferBytes);
    EXPECT_EQ(put == Status::kOk ? gdx_flush(ep) : put, Status::kRemoteAccess);
  });
  a_.endpoint.reset();
  EXPECT_EQ(bounce_->free_slots(), free_before + 1);  // its minimum, too
}

// The message is several times the pool, so its last chunk is stored only after its first has been sent and
// acknowledged.
TEST_F(Modes, chunks_of_a_large_message_are_sent_while_others_are_stored) {
  for (const bool bounces : {false, true}) {
    const StagingPool& pool = bounces ? *bounce_ : *staging_;
    const std::uint64_t chunks = kBufferBytes / pool.slot_bytes();
    ASSERT_GT(chunks, pool.slot_count());
    fill();
    Endpoint endpoint = with_table(bounces ? ModeTable{} : ModeTable{0, kNoSizeLimit, kNoSizeLimit});
    auto peer = Endpoint::create(*hca_, nullptr);
    ASSERT_TRUE(peer) << peer.error().message;
    ASSERT_TRUE(endpoint.connect(peer->address()));
    ASSERT_TRUE(peer->connect(endpoint.address()));
    const auto kernel = [&](EndpointHandle handle) {
      device::Endpoint<> ep(handle);
      ASSERT_EQ(gdx_put(ep, a_.peer, a_.buffer->local(), kBufferBytes), Status::kOk);
      ASSERT_EQ(gdx_flush(ep), Status::kOk);
    };
    ASSERT_EQ(exec::launch({.progress = progress_}, kernel, endpoint.handle()), Status::kOk);
    const StagingState credits = bounces ? endpoint.state().bounce : endpoint.state().staging;
    EXPECT_EQ(credits.filled, chunks) << "all of it went this way";
    EXPECT_TRUE(arrived(kBufferBytes));
  }
}

TEST_F(Modes, pools_must_be_there_and_lie_where_the_options_say) {
  const auto refused = [&](StagingPools pools, const EndpointOptions& options) {
    const auto endpoint = Endpoint::create(*hca_, pools, options);
    return endpoint ? std::string("made") : endpoint.error().message;
  };
  EXPECT_EQ(refused({staging_.get()}, {.bounce_slot_count = 4}),
            "endpoint option bounce_slot_count = 4: without a pool of host memory use 0");
  EXPECT_EQ(refused({bounce_.get(), staging_.get()}, {.slot_count = 4}),
            "endpoint option slot_count = 4: without a pool of the NIC's memory use 0");
  EXPECT_NE(refused({}, {.auto_modes = {.table = ModeTable{28, 4096, kNoSizeLimit}}}), "made");
  EXPECT_NE(refused({}, {.auto_modes = {.calibration_file = "/nonexistent/calibration.json"}}), "made");
}

TEST_F(Modes, endpoint_without_a_table_gets_the_defaults_of_its_path_and_pools) {
  const ModeMeans means{true, false};
  constexpr DoorbellKind kDoorbell = DoorbellKind::kPlain;
  const auto modes_of = [&](const ModeOptions& options) {
    const auto endpoint = Endpoint::create(
        *hca_, staging_.get(), {.slot_count = kSlots, .auto_modes = options, .doorbell = kDoorbell});
    EXPECT_TRUE(endpoint) << endpoint.error().message;
    return endpoint->handle().modes;
  };
  EXPECT_EQ(modes_of({.path = PathClass::kSys}),
            default_mode_table(PathClass::kSys, Placement::kHost, means, kDoorbell));
  EXPECT_EQ(modes_of({.path = PathClass::kPix}),
            default_mode_table(PathClass::kPix, Placement::kHost, means, kDoorbell));
}

}  // namespace modes_test
}  // namespace gdx
