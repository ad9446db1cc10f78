// Primary paths of REQs: between InfiniBand ports by LID, SL and GRH, between RoCE ports without LIDs.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "tests/unit/cm/two_agents.h"

namespace gdx::softhca::cm {
namespace path_test {

using gdx::cm::kPermissiveLid;
using gdx::cm::Path;
using Layer = TwoAgents::Layer;

constexpr Harm kNoHarm{};

// Sends a request, and returns whether it has reached the passive user.
bool arrives(TwoAgents& world, Message request) {
  world.passive.agent.listen(7, 99, 4);
  Connection& active = world.active.agent.make(host(1));
  active.connect(world.now_ns, std::move(request));
  world.deliver_all();
  return !world.passive.events.empty();
}

TEST(CmPath, both_ends_see_it_from_their_own_side) {
  TwoAgents world(1, kNoHarm, Layer::kInfiniBand);
  ASSERT_TRUE(arrives(world, TwoAgents::request_by_lid()));
  Connection& passive = *world.passive.agent.find(world.passive.events.front().id);
  ASSERT_TRUE(passive.accept(world.now_ns, TwoAgents::passive_endpoint(), {}));
  world.deliver_all();
  const Path of_passive = passive.parameters().path;
  const Path of_active = world.active.agent.find(world.active.events.front().id)->parameters().path;
  EXPECT_EQ(of_active.local_lid, TwoAgents::lid(2));
  EXPECT_EQ(of_active.remote_lid, TwoAgents::lid(1));
  EXPECT_EQ(of_active.remote_gid, TwoAgents::subnet_gid(1));
  EXPECT_EQ(of_passive.local_lid, TwoAgents::lid(1));
  EXPECT_EQ(of_passive.remote_lid, TwoAgents::lid(2));
  EXPECT_EQ(of_passive.local_gid, TwoAgents::subnet_gid(1));
  EXPECT_EQ(of_passive.remote_gid, TwoAgents::subnet_gid(2));
  for (const Path& path : {of_active, of_passive}) {
    EXPECT_EQ(path.service_level, 5);
    EXPECT_TRUE(path.subnet_local);
  }
}

// Through a router, with or without the LIDs of the passive subnet.
TEST(CmPath, routed_request_arrives_with_its_header_fields) {
  for (const bool open : {false, true}) {
    TwoAgents world(1, kNoHarm, Layer::kInfiniBand);
    Message request = TwoAgents::request_by_lid();
    request.path.subnet_local = false;
    request.path.hop_limit = 64;
    request.path.flow_label = 0x12345;
    request.path.traffic_class = 0x20;
    if (open) request.path.local_lid = request.path.remote_lid = kPermissiveLid;
    ASSERT_TRUE(arrives(world, request)) << open;
    const Path path = world.passive.events.front().message.path;
    EXPECT_EQ(path.local_lid, request.path.local_lid);
    EXPECT_EQ(path.hop_limit, 64);
    EXPECT_EQ(path.flow_label, 0x12345u);
    EXPECT_EQ(path.traffic_class, 0x20);
    EXPECT_FALSE(path.subnet_local);
  }
}

struct Wrong {
  const char* what;
  Layer layer;
  RejectReason reason;
  std::vector<std::byte> information;
  void (*spoil)(Path& path);
};

const std::vector<Wrong>& wrong_paths() {
  const auto gid = gdx::cm::wire_bytes(TwoAgents::subnet_gid(1));
  const auto lid = gdx::cm::wire_bytes(Be16(TwoAgents::lid(1)));
  using enum RejectReason;
  static const std::vector<Wrong> paths{
      {"another GID", Layer::kInfiniBand, kInvalidGid, gid, [](Path& p) { p.remote_gid[15] = 9; }},
      {"the GID of RoCE", Layer::kInfiniBand, kInvalidGid, gid, [](Path& p) { p.remote_gid = host(1).gid; }},
      {"a request of RoCE", Layer::kInfiniBand, kInvalidGid, gid, [](Path& p) { p = {}; }},
      {"no LID here", Layer::kInfiniBand, kInvalidLid, lid, [](Path& p) { p.remote_lid = 0; }},
      {"another LID here", Layer::kInfiniBand, kInvalidLid, lid, [](Path& p) { ++p.remote_lid; }},
      {"a group's LID here", Layer::kInfiniBand, kInvalidLid, lid, [](Path& p) { p.remote_lid = 0xc000; }},
      {"an open LID here", Layer::kInfiniBand, kInvalidLid, lid,
       [](Path& p) { p.remote_lid = kPermissiveLid; }},
      {"no LID there", Layer::kInfiniBand, kInvalidLid, {}, [](Path& p) { p.local_lid = 0; }},
      {"a group's LID there", Layer::kInfiniBand, kInvalidLid, {}, [](Path& p) { p.local_lid = 0xc000; }},
      {"an open LID there",
       Layer::kInfiniBand,
       kInvalidLid,
       {},
       [](Path& p) { p.local_lid = kPermissiveLid; }},
      {"a router that no packet passes",
       Layer::kInfiniBand,
       kInvalidHopLimit,
       {},
       [](Path& p) {
         p.subnet_local = false;
         p.hop_limit = 1;
       }},
      {"no LID through a router",
       Layer::kInfiniBand,
       kInvalidLid,
       {},
       [](Path& p) {
         p.subnet_local = false;
         p.hop_limit = 64;
         p.local_lid = 0;
       }},
      {"LIDs at RoCE", Layer::kEthernet, kInvalidLid, {}, [](Path&) {}},
      {"one LID at RoCE", Layer::kEthernet, kInvalidLid, {}, [](Path& p) { p.local_lid = 0; }},
  };
  return paths;
}

TEST(CmPath, wrong_one_is_rejected_by_reason_and_tells_what_would_serve) {
  for (const Wrong& wrong : wrong_paths()) {
    SCOPED_TRACE(wrong.what);
    TwoAgents world(1, kNoHarm, wrong.layer);
    Message request = TwoAgents::request_by_lid();
    wrong.spoil(request.path);
    EXPECT_FALSE(arrives(world, request));
    EXPECT_EQ(world.passive.agent.connections(), 0u);
    ASSERT_EQ(world.active.events.size(), 1u);
    const Event& event = world.active.events.front();
    EXPECT_EQ(event.type, EventType::kRejected);
    EXPECT_EQ(event.status, static_cast<int>(wrong.reason));
    EXPECT_EQ(event.message.reject_information, wrong.information);
  }
}

// A peer on RoCE may leave its LIDs zero, as Linux does within a link.
TEST(CmPath, roce_request_without_lids_arrives) {
  for (const std::uint16_t lid : {std::uint16_t{0}, kPermissiveLid}) {
    TwoAgents world;
    Message request = TwoAgents::request();
    request.path.local_lid = request.path.remote_lid = lid;
    EXPECT_TRUE(arrives(world, request)) << lid;
  }
}

}  // namespace path_test
}  // namespace gdx::softhca::cm
