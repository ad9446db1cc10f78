// Endpoints on an InfiniBand port that requires a GRH and is of several partitions, by libibverbs and
// libmlx5. CMake sets the port.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "host/hca/hca.h"
#include "host/queue/endpoint.h"
#include "host/queue/queue_commands.h"
#include "proto/mlx5/prm.h"
#include "tests/unit/host/own_gdxd.h"

namespace {
std::optional<ibv_gid> routable;  // the port's GID at index 1, if a test sets it
}

// Before that of libibverbs, which it calls.
extern "C" int _ibv_query_gid_ex(ibv_context* context, std::uint32_t port, std::uint32_t index,
                                 ibv_gid_entry* entry, std::uint32_t flags, std::size_t entry_bytes) {
  static const auto real = reinterpret_cast<decltype(&_ibv_query_gid_ex)>(dlsym(RTLD_NEXT, __func__));
  const int error = real(context, port, index, entry, flags, entry_bytes);
  if (index == 1 && routable) entry->gid = *routable;
  return error;
}

namespace gdx {
namespace infiniband_endpoint_test {

using ::testing::HasSubstr;
namespace prm = mlx5::prm;

// GDX_SOFTHCA_PKEYS
constexpr std::uint16_t kChosen = 0x8001;  // the first full member
constexpr std::uint16_t kChosenIndex = 2;
constexpr std::uint16_t kLimited = 0x0002;
constexpr std::uint16_t kLimitedIndex = 3;

template <typename T>
T must(Result<T> result) {
  if (!result) ADD_FAILURE() << result.error().message;
  return std::move(result).take();
}

class InfiniBandPort : public ::testing::TestWithParam<bool> {
 protected:
  InfiniBandPort() {
    if (GetParam()) gdxd_.emplace();
    hca_.emplace(must(Hca::open()));
  }
  Endpoint create(const EndpointOptions& options = {}) {
    return must(Endpoint::create(*hca_, nullptr, options));
  }
  static std::uint64_t field(const Endpoint& endpoint, prm::PrmField wanted) {
    return prm::get(must(endpoint.query_queue_pair()), wanted);
  }

  std::optional<test::OwnGdxd> gdxd_;
  std::optional<Hca> hca_;
};

TEST_P(InfiniBandPort, endpoint_has_a_grh_and_the_first_full_partition_unless_told) {
  EXPECT_EQ(hca_->link_layer(), LinkLayer::kInfiniBand);
  EXPECT_TRUE(hca_->grh_required());
  Endpoint endpoint = create();
  EXPECT_EQ(endpoint.address().pkey, kChosen);
  EXPECT_EQ(endpoint.address().grh_required, 1);
  const auto connected = endpoint.connect(endpoint.address());
  ASSERT_TRUE(connected) << connected.error().message;
  EXPECT_EQ(field(endpoint, prm::qp::kPathGrh), 1u);
  EXPECT_EQ(field(endpoint, prm::qp::kPathPkeyIndex), kChosenIndex);
}

TEST_P(InfiniBandPort, partition_is_that_of_option_or_variable) {
  for (const std::uint16_t wanted : {kLimited, static_cast<std::uint16_t>(kLimited | 0x8000)}) {
    Endpoint endpoint = create({.pkey = wanted});
    EXPECT_EQ(endpoint.address().pkey, kLimited);
  }
  setenv(kPkeyVariable, "0x2", 1);
  Endpoint endpoint = create();
  unsetenv(kPkeyVariable);
  EXPECT_EQ(endpoint.address().pkey, kLimited);
  // The peer is a full member.
  EndpointAddress peer = endpoint.address();
  peer.pkey |= 0x8000;
  const auto connected = endpoint.connect(peer);
  ASSERT_TRUE(connected) << connected.error().message;
  EXPECT_EQ(field(endpoint, prm::qp::kPathPkeyIndex), kLimitedIndex);
}

TEST_P(InfiniBandPort, partition_that_the_port_lacks_is_refused_with_those_that_it_has) {
  const auto refused = Endpoint::create(*hca_, nullptr, {.pkey = 0x8009});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, Status::kNotFound);
  EXPECT_THAT(refused.error().message,
              HasSubstr("has no P_Key 0x8009 (option pkey, $GDX_PKEY), but 0x7fff, 0x8001, "
                        "0x0002"));
}

TEST_P(InfiniBandPort, peers_of_another_partition_or_subnet_are_refused_before_the_queue_pair_leaves_reset) {
  Endpoint endpoint = create();
  const EndpointAddress other = create({.pkey = kLimited}).address();
  EXPECT_THAT(endpoint.connect(other).error().message,
              HasSubstr("the peer's P_Key is 0x0002, and this endpoint's is 0x8001"));
  EXPECT_TRUE(endpoint.connect(endpoint.address()));
  Endpoint second = create();
  EndpointAddress routed = second.address();
  ASSERT_EQ(inet_pton(AF_INET6, "fec0:0:202:9::2", routed.gid), 1);
  EXPECT_EQ(second.connect(routed).error().status, Status::kUnsupported);
}

TEST_P(InfiniBandPort, service_levels_reach_to_15) {
  EXPECT_TRUE(Endpoint::create(*hca_, nullptr, {.service_level = 15}));
  EXPECT_THAT(Endpoint::create(*hca_, nullptr, {.service_level = 16}).error().message,
              HasSubstr("service_level = 16: use 0 to 15"));
}

// The HCA refuses that path, because behind it there is no router.
TEST(RoutedInfiniBand, gid_with_a_flid_is_chosen_and_leads_to_the_peers_flid) {
  routable.emplace();
  ASSERT_EQ(inet_pton(AF_INET6, "fec0:0:101:7::1", routable->raw), 1);
  const Hca hca = must(Hca::open());
  const Hca unrouted = must(Hca::open({.gid_index = 0}));
  routable.reset();
  EXPECT_EQ(unrouted.gid_index(), 0);
  EXPECT_EQ(hca.gid_index(), 1);
  EXPECT_EQ(hca.address_text(), "fec0:0:101:7::1");
  Endpoint endpoint = must(Endpoint::create(hca, nullptr));
  EndpointAddress peer = endpoint.address();
  ASSERT_EQ(inet_pton(AF_INET6, "fec0:0:202:9::2", peer.gid), 1);
  std::vector<commands::CommandRecord> sent;
  {
    const commands::CommandRecording recording(sent);
    EXPECT_EQ(endpoint.connect(peer).error().status, Status::kSystem);
  }
  const auto path = std::ranges::find(sent, "INIT2RTR_QP", &commands::CommandRecord::name);
  ASSERT_NE(path, sent.end());
  EXPECT_EQ(prm::get(path->input, prm::qp::kPathRemoteLid), 0x202u);
  EXPECT_EQ(prm::get(path->input, prm::qp::kPathGrh), 1u);
  EXPECT_EQ(prm::get(path->input, prm::qp::kPathSourceGidIndex), 1u);
  EXPECT_TRUE(std::ranges::equal(peer.gid, std::span(path->input).subspan(prm::qp::kPathRemoteGidByte, 16)));
}

INSTANTIATE_TEST_SUITE_P(Owner, InfiniBandPort, ::testing::Bool(),
                         [](const auto& of) { return of.param ? "gdxd" : "own"; });

}  // namespace infiniband_endpoint_test
}  // namespace gdx
