// Ports, listeners and options: which ids may have one address, and what an option changes.
#include "tests/unit/rdma_cm/cm_commands.h"

namespace gdx::softhca::uverbs {
namespace listeners_test {

using commands_test::any_address;
using commands_test::CmCommands;
using commands_test::first_address;
using commands_test::kNowhere;
using commands_test::second_address;

class CmListeners : public CmCommands {};

TEST_F(CmListeners, port_is_taken_by_ids_of_its_space_and_addresses) {
  struct Id {
    std::uint16_t space;
    CmAddress address;
    bool shares = false;
    bool listening = false;
    std::optional<bool> one_family = std::nullopt;
  };
  struct Case {
    const char* what;
    Id first;
    Id second;
    Errno error;
  };
  const CmAddress next = address_of("127.0.0.3", 7472);
  const CmAddress any_v6 = address_of("::", 7471);
  for (const Case& c :
       {Case{"the same", {RDMA_PS_TCP, first_address}, {RDMA_PS_TCP, first_address}, EADDRINUSE},
        Case{"every one", {RDMA_PS_TCP, any_address}, {RDMA_PS_TCP, first_address}, EADDRINUSE},
        Case{"to every one", {RDMA_PS_TCP, first_address}, {RDMA_PS_TCP, any_address}, EADDRINUSE},
        Case{"another HCA", {RDMA_PS_TCP, first_address}, {RDMA_PS_TCP, second_address}, 0},
        Case{"another space", {RDMA_PS_TCP, first_address}, {RDMA_PS_UDP, first_address}, 0},
        Case{"another port", {RDMA_PS_TCP, first_address}, {RDMA_PS_TCP, next}, 0},
        Case{"both share", {RDMA_PS_TCP, first_address, true}, {RDMA_PS_TCP, first_address, true}, 0},
        Case{"one shares", {RDMA_PS_TCP, first_address, true}, {RDMA_PS_TCP, first_address}, EADDRINUSE},
        Case{"other shares", {RDMA_PS_TCP, first_address}, {RDMA_PS_TCP, first_address, true}, EADDRINUSE},
        Case{"one listens",
             {RDMA_PS_TCP, first_address, true, true},
             {RDMA_PS_TCP, first_address, true},
             EADDRINUSE},
        Case{"every one of each family",
             {RDMA_PS_TCP, any_address, false, true, true},
             {RDMA_PS_TCP, any_v6, false, true, true},
             0},
        Case{"IPv4 means itself alone",
             {RDMA_PS_TCP, any_v6, false, true, true},
             {RDMA_PS_TCP, any_address, false, true},
             0},
        Case{"every one of both", {RDMA_PS_TCP, any_v6}, {RDMA_PS_TCP, any_address}, EADDRINUSE},
        Case{"one of both, one not",
             {RDMA_PS_TCP, any_v6, false, false, true},
             {RDMA_PS_TCP, any_address, false, false, false},
             EADDRINUSE},
        Case{"every one of one family",
             {RDMA_PS_TCP, any_address, false, false, true},
             {RDMA_PS_TCP, first_address, false, false, true},
             EADDRINUSE}}) {
    SCOPED_TRACE(c.what);
    std::array<std::uint32_t, 2> ids{};
    for (const bool second : {false, true}) {
      const Id& wanted = second ? c.second : c.first;
      const std::uint32_t id = ids[second ? 1 : 0] = program_.create(wanted.space);
      ASSERT_EQ(program_.set_option(id, RDMA_OPTION_ID_REUSEADDR, wanted.shares ? 1 : 0, 4), 0);
      if (wanted.one_family) {
        EXPECT_EQ(program_.set_option(id, RDMA_OPTION_ID_AFONLY, *wanted.one_family ? 1 : 0, 4), 0);
      }
      EXPECT_EQ(program_.bind(id, wanted.address), second ? c.error : 0);
      EXPECT_EQ(wanted.listening ? program_.listen(id) : 0, 0);
    }
    program_.destroy(ids[0]);
    EXPECT_EQ(program_.bind(ids[1], c.second.address), c.error == 0 ? EINVAL : 0);
    program_.destroy(ids[1]);
  }
}

TEST_F(CmListeners, listener_shares_its_port_with_no_bound_id) {
  const std::array<std::uint32_t, 2> ids{program_.create(), program_.create()};
  for (const std::uint32_t id : ids) {
    ASSERT_EQ(program_.set_option(id, RDMA_OPTION_ID_REUSEADDR, 1, 4), 0);
    ASSERT_EQ(program_.bind(id, first_address), 0);
  }
  EXPECT_EQ(program_.listen(ids[1]), EADDRINUSE);
  EXPECT_EQ(program_.set_option(ids[1], RDMA_OPTION_ID_REUSEADDR, 0, 4), EINVAL);
  const std::uint32_t third = program_.create();
  ASSERT_EQ(program_.set_option(third, RDMA_OPTION_ID_REUSEADDR, 1, 4), 0);
  EXPECT_EQ(program_.bind(third, first_address), 0) << "it still shares";
  program_.destroy(third);
  program_.destroy(ids[0]);
  EXPECT_EQ(program_.listen(ids[1]), 0);
}

// The port of one HCA is taken when every one is to listen, and that of the others is free again after that.
TEST_F(CmListeners, listen_that_fails_at_one_listens_at_none) {
  const std::uint32_t of_v6 = program_.create();
  ASSERT_EQ(program_.set_option(of_v6, RDMA_OPTION_ID_AFONLY, 1, 4), 0);
  ASSERT_EQ(program_.bind(of_v6, address_of("::", 7471)), 0);
  ASSERT_EQ(program_.listen(of_v6), 0);
  const std::uint32_t of_both = program_.create();
  ASSERT_EQ(program_.bind(of_both, any_address), 0);
  ASSERT_EQ(program_.set_option(of_both, RDMA_OPTION_ID_AFONLY, 0, 4), 0);
  EXPECT_EQ(program_.listen(of_both), EADDRINUSE);
  EXPECT_FALSE(listens(*program_.hcas[0]));
  EXPECT_TRUE(listens(*program_.hcas[2]));
}

TEST_F(CmListeners, listener_waits_at_the_hcas_of_its_address_and_no_longer_than_it_lives) {
  struct Case {
    CmAddress address;
    bool one_family;
    std::array<bool, 3> at;
  };
  for (const auto& [address, one_family, at] :
       {Case{first_address, false, {true, false, false}}, Case{second_address, false, {false, true, false}},
        Case{any_address, false, {true, true, true}}, Case{any_address, true, {true, true, false}},
        Case{address_of("::", 7471), true, {false, false, true}}}) {
    const std::uint32_t id = program_.create();
    ASSERT_EQ(program_.set_option(id, RDMA_OPTION_ID_AFONLY, one_family ? 1 : 0, 4), 0);
    ASSERT_EQ(program_.bind(id, address), 0);
    ASSERT_EQ(program_.listen(id), 0);
    EXPECT_EQ(program_.listen(id), EINVAL);
    for (std::size_t i = 0; i < at.size(); ++i)
      EXPECT_EQ(listens(*program_.hcas[i]), at[i]) << address.address.text() << " at " << i;
    EXPECT_FALSE(listens(*program_.hcas[0], 7472));
    program_.destroy(id);
    for (const auto& hca : program_.hcas) EXPECT_FALSE(listens(*hca));
  }
}

TEST_F(CmListeners, listen_without_an_address_or_by_gid) {
  const std::uint32_t id = program_.create();
  EXPECT_EQ(program_.listen(id), 0);
  rdma_ucm_query body{};
  body.id = id;
  const auto answer = program_.ask<rdma_ucm_query_addr_resp>(RDMA_USER_CM_CMD_QUERY, body);
  const CmAddress source = *read_address(&answer.src_addr, answer.src_size);
  EXPECT_TRUE(source.is_any());
  EXPECT_TRUE(listens(*program_.hcas[1], source.port));
  rdma_ucm_bind bind{};
  bind.id = program_.create();
  bind.addr_size = static_cast<std::uint16_t>(write_address({AF_IB, {}, 7471}, bind.addr));
  ASSERT_EQ(program_.command(RDMA_USER_CM_CMD_BIND, bind), 0);
  EXPECT_EQ(program_.listen(bind.id), EOPNOTSUPP);
}

TEST_F(CmListeners, backlog_is_as_asked_up_to_the_largest) {
  for (const auto& [asked, room] : {std::pair(3u, 3u), std::pair(0u, 1024u), std::pair(1025u, 1024u)}) {
    const std::uint32_t id = program_.listen_at(first_address, RDMA_PS_TCP, asked);
    PortHca& hca = *program_.hcas[0];
    for (std::uint32_t i = 0; i < room + 2; ++i)
      hca.agent().on_datagram(peer_, gdx::cm::encode(request_for(7471, ++requests_)));
    deliver_all(network_);
    hca.sent.clear();
    program_.destroy(id);  // rejects what is unread
    EXPECT_EQ(hca.sent.size(), room);
  }
}

TEST_F(CmListeners, options_judge_their_length_value_and_time) {
  const std::uint32_t id = program_.create();
  struct Case {
    std::uint32_t name;
    std::int32_t value;
    std::uint32_t length_bytes;
    Errno errors[3];  // by stage
  };
  enum { kIdle, kBound, kListening };
  for (const int stage : {kIdle, kBound, kListening}) {
    ASSERT_EQ(stage == kBound ? program_.bind(id, first_address) : 0, 0);
    ASSERT_EQ(stage == kListening ? program_.listen(id) : 0, 0);
    for (const Case& c : {Case{RDMA_OPTION_ID_TOS, 255, 1, {0, 0, 0}},
                          Case{RDMA_OPTION_ID_TOS, 1, 4, {EINVAL, EINVAL, EINVAL}},
                          Case{RDMA_OPTION_ID_REUSEADDR, 0, 4, {0, EINVAL, EINVAL}},
                          Case{RDMA_OPTION_ID_REUSEADDR, 1, 4, {0, 0, EINVAL}},
                          Case{RDMA_OPTION_ID_REUSEADDR, 1, 1, {EINVAL, EINVAL, EINVAL}},
                          Case{RDMA_OPTION_ID_AFONLY, 1, 4, {0, 0, EINVAL}},
                          Case{RDMA_OPTION_ID_AFONLY, 1, 1, {EINVAL, EINVAL, EINVAL}},
                          Case{RDMA_OPTION_ID_ACK_TIMEOUT, 31, 1, {0, 0, 0}},
                          Case{RDMA_OPTION_ID_ACK_TIMEOUT, 32, 1, {EINVAL, EINVAL, EINVAL}},
                          Case{RDMA_OPTION_ID_ACK_TIMEOUT, 1, 4, {EINVAL, EINVAL, EINVAL}},
                          Case{4, 1, 4, {ENOSYS, ENOSYS, ENOSYS}}})
      EXPECT_EQ(program_.set_option(id, c.name, c.value, c.length_bytes), c.errors[stage])
          << c.name << " at stage " << stage;
  }
  const std::uint32_t of_datagrams = program_.create(RDMA_PS_UDP);
  EXPECT_EQ(program_.set_option(of_datagrams, RDMA_OPTION_ID_ACK_TIMEOUT, 1, 1), EINVAL);
  rdma_ucm_set_option option{
      .optval = kNowhere, .id = id, .level = RDMA_OPTION_ID, .optname = RDMA_OPTION_ID_TOS, .optlen = 1};
  EXPECT_EQ(program_.command(RDMA_USER_CM_CMD_SET_OPTION, option), EFAULT);
  option.level = RDMA_OPTION_IB;
  EXPECT_EQ(program_.command(RDMA_USER_CM_CMD_SET_OPTION, option), ENOSYS);
}

}  // namespace listeners_test
}  // namespace gdx::softhca::uverbs
