#include "driver-shim/softhca/cm/agent.h"

#include <gtest/gtest.h>

#include "tests/unit/cm/two_agents.h"

namespace gdx::softhca::cm {
namespace agent_test {

constexpr std::uint64_t kResponseNs = std::uint64_t{4096} << 17;
constexpr std::uint64_t kServiceNs = std::uint64_t{4096} << 20;

class CmAgent : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(world.passive.agent.listen(7, 99, 4)); }

  // Up to where the passive user has to answer.
  Connection& requested() {
    Connection& active = world.connect();
    world.deliver_all();
    return active;
  }
  Connection& passive_side() { return *world.passive.agent.find(world.passive.events.front().id); }
  Connection& established() {
    Connection& active = requested();
    EXPECT_TRUE(passive_side().accept(world.now_ns, TwoAgents::passive_endpoint(), {}));
    world.deliver_all();
    EXPECT_TRUE(active.establish());
    world.deliver_all();
    return active;
  }
  EventType last_of(const TwoAgents::End& end) { return end.events.back().type; }

  TwoAgents world;
};

TEST_F(CmAgent, connect_to_listener_accepted_establishes_both) {
  Connection& active = established();
  EXPECT_EQ(active.state(), State::kEstablished);
  EXPECT_EQ(passive_side().state(), State::kEstablished);
  EXPECT_EQ(world.passive.events[0].listener, 99u);
  EXPECT_EQ(world.passive.events[0].message.private_data[0], std::byte{0xab});
  EXPECT_EQ(last_of(world.passive), EventType::kEstablished);
  EXPECT_EQ(last_of(world.active), EventType::kResponse);
}

// Each end sends with the PSN that the other one named (12.7.31).
TEST_F(CmAgent, established_parameters_of_both_ends_agree) {
  const QueuePairParameters a = established().parameters();
  const QueuePairParameters p = passive_side().parameters();
  EXPECT_EQ(a.send_psn, p.receive_psn);
  EXPECT_EQ(p.send_psn, a.receive_psn);
  EXPECT_NE(a.send_psn, p.send_psn);
  EXPECT_EQ(a.remote_qpn, 0x200u);
  EXPECT_EQ(p.remote_qpn, 0x100u);
  EXPECT_EQ(p.initiator_depth, 3);  // the active side's offer as responder
  EXPECT_EQ(p.responder_resources, 4);
  EXPECT_EQ(a.initiator_depth, 5);
}

TEST_F(CmAgent, connect_without_listener_is_rejected_by_service_id) {
  Connection& active = world.active.agent.make(host(1));
  active.connect(0, TwoAgents::request(8));
  world.deliver_all();
  EXPECT_EQ(last_of(world.active), EventType::kRejected);
  EXPECT_EQ(world.active.events.back().status, static_cast<int>(RejectReason::kInvalidServiceId));
  EXPECT_EQ(world.passive.agent.connections(), 0u);
}

TEST_F(CmAgent, connect_unanswered_is_sent_again_as_often_as_said_then_unreachable) {
  world.passive_alive = false;
  const Connection& active = world.connect();
  world.deliver_all();
  world.run_out();
  const auto reqs = std::count_if(world.active.sent.begin(), world.active.sent.end(),
                                  [](const Message& m) { return m.type == MessageType::kReq; });
  EXPECT_EQ(reqs, 16);
  EXPECT_EQ(world.now_ns, 16 * kResponseNs);
  ASSERT_EQ(world.active.events.size(), 1u);
  EXPECT_EQ(world.active.events[0].type, EventType::kUnreachable);
  EXPECT_EQ(world.active.events[0].status, kNoAnswer);
  EXPECT_EQ(active.state(), State::kClosed);
  EXPECT_LT(world.now_ns, 10'000'000'000u);
}

TEST_F(CmAgent, goodbye_has_all_its_retries_though_the_request_used_up_its_own) {
  Connection& active = world.connect();
  for (int lost = 0; lost < 15; ++lost) {
    world.drop();
    ASSERT_TRUE(world.advance());
  }
  world.deliver_all();
  ASSERT_TRUE(passive_side().accept(world.now_ns, TwoAgents::passive_endpoint(), {}));
  world.deliver_all();
  ASSERT_TRUE(active.establish());
  world.deliver_all();
  EXPECT_FALSE(world.advance()) << "an established connection waits for nothing";
  world.passive_alive = false;
  ASSERT_TRUE(active.disconnect(world.now_ns));
  world.run_out();
  EXPECT_EQ(std::ranges::count(world.active.sent, MessageType::kDreq, &Message::type), 16);
}

TEST_F(CmAgent, request_repeated_while_user_thinks_is_answered_with_mra_which_stretches_the_wait) {
  Connection& active = requested();
  const std::uint64_t first_ns = active.deadline_ns();
  for (int repeated = 1; repeated <= 3; ++repeated) {
    world.advance();
    world.deliver_all();
    EXPECT_EQ(world.passive.sent.back().type, MessageType::kMra);
    EXPECT_EQ(active.state(), State::kMraReceived);
    EXPECT_GT(active.deadline_ns() - world.now_ns, 4 * first_ns) << "repetition " << repeated;
  }
  EXPECT_EQ(world.passive.events.size(), 1u);
}

TEST_F(CmAgent, mra_repeated_stretches_the_wait_once_and_never_for_hours) {
  constexpr std::uint64_t kMostNs = kServiceNs + kResponseNs;
  Message mra;
  mra.type = MessageType::kMra;
  mra.service_timeout = 31;
  Connection& active = requested();
  mra.answered = gdx::cm::Answered::kReq;
  active.on_message(0, mra);
  const std::uint64_t active_ns = active.deadline_ns();
  EXPECT_EQ(active_ns, kMostNs);
  active.on_message(active_ns - 1, mra);
  EXPECT_EQ(active.deadline_ns(), active_ns);

  EXPECT_TRUE(passive_side().accept(0, TwoAgents::passive_endpoint(), {}));
  mra.answered = gdx::cm::Answered::kRep;
  passive_side().on_message(0, mra);
  const std::uint64_t passive_ns = passive_side().deadline_ns();
  EXPECT_EQ(passive_ns, kMostNs);
  passive_side().on_message(passive_ns - 1, mra);
  EXPECT_EQ(passive_side().deadline_ns(), passive_ns);
}

TEST_F(CmAgent, time_wait_of_a_peer_with_the_longest_ack_timeout_is_bounded) {
  Message request = TwoAgents::request();
  request.path.ack_timeout = 31;
  Connection& active = world.active.agent.make(host(1));
  active.connect(0, std::move(request));
  world.deliver_all();
  EXPECT_TRUE(passive_side().accept(0, TwoAgents::passive_endpoint(), {}));
  world.deliver_all();
  EXPECT_TRUE(active.establish());
  world.deliver_all();
  EXPECT_TRUE(active.disconnect(0));
  world.deliver_all();
  ASSERT_EQ(passive_side().state(), State::kTimeWait);
  EXPECT_EQ(passive_side().deadline_ns(), 2 * kServiceNs);
  EXPECT_EQ(active.deadline_ns(), 2 * kServiceNs);
}

// Of the newest message of an end: its type, ids, what it answers and why.
std::vector<std::uint64_t> head_of(const TwoAgents::End& end) {
  const Message& m = end.sent.back();
  return {static_cast<std::uint64_t>(m.type),
          m.local_id,
          m.remote_id,
          static_cast<std::uint64_t>(m.answered),
          m.reason,
          m.transaction_id,
          m.service_id};
}
std::vector<std::uint64_t> head(MessageType type, std::uint32_t local, std::uint32_t remote,
                                const Message& of, gdx::cm::Answered answered = gdx::cm::Answered::kReq,
                                int reason = 0, std::uint64_t service = 0) {
  return {static_cast<std::uint64_t>(type),
          local,
          remote,
          static_cast<std::uint64_t>(answered),
          static_cast<std::uint64_t>(reason),
          of.transaction_id,
          service};
}

TEST_F(CmAgent, each_answer_names_both_ids_and_what_it_answers) {
  using enum gdx::cm::Answered;
  Connection& active = requested();
  const Message req = world.active.sent.back();
  const std::uint32_t a = active.id();
  const std::uint32_t p = passive_side().id();
  EXPECT_NE(a, p) << "drawn by chance";
  EXPECT_EQ(world.passive.events.front().status, 0);
  EXPECT_EQ(req.remote_response_timeout, 17);
  EXPECT_EQ(req.local_response_timeout, 17);
  EXPECT_EQ(req.max_cm_retries, 15);
  EXPECT_EQ(active.deadline_ns(), kResponseNs);
  world.passive.agent.on_datagram(0, host(2), gdx::cm::encode(req));
  EXPECT_EQ(head_of(world.passive)[0], static_cast<std::uint64_t>(MessageType::kMra));
  const Message mra = world.passive.sent.back();
  EXPECT_EQ(head_of(world.passive), head(MessageType::kMra, p, a, mra, kReq));
  EXPECT_EQ(mra.service_timeout, 20);
  EXPECT_TRUE(passive_side().accept(5, TwoAgents::passive_endpoint(), {}));
  const Message rep = world.passive.sent.back();
  EXPECT_EQ(head_of(world.passive), head(MessageType::kRep, p, a, mra));
  EXPECT_EQ(passive_side().deadline_ns(), 5 + kResponseNs);
  world.deliver_all();
  EXPECT_EQ(active.deadline_ns(), kNever);
  EXPECT_TRUE(active.reject(0, RejectReason::kConsumerDefined, {}));
  EXPECT_EQ(head_of(world.active), head(MessageType::kRej, a, p, req, kRep, 28));
  world.deliver_all();
  EXPECT_EQ(active.state(), State::kClosed);
  EXPECT_EQ(passive_side().deadline_ns(), 2 * (std::uint64_t{4096} << 15));
  world.passive.agent.on_datagram(0, host(2), gdx::cm::encode(req));
  EXPECT_EQ(head_of(world.passive), head(MessageType::kRej, p, a, rep, kOther, 10));

  // Strangers: an end that knows neither id, nor the service.
  TwoAgents fresh;
  const auto answer_to = [&fresh](const Message& message) {
    fresh.active.sent.clear();
    fresh.active.agent.on_datagram(0, host(1), gdx::cm::encode(message));
    return fresh.active.sent.empty() ? std::vector<std::uint64_t>{} : head_of(fresh.active);
  };
  EXPECT_EQ(answer_to(rep), head(MessageType::kRej, a, p, rep, kRep, 6));
  EXPECT_EQ(answer_to(req), head(MessageType::kRej, 0, a, req, kReq, 8));
  Message other = req;
  for (const MessageType silent :
       {MessageType::kMra, MessageType::kRtu, MessageType::kDrep, MessageType::kSidrRep}) {
    other.type = silent;
    EXPECT_TRUE(answer_to(other).empty());
  }
  other.type = MessageType::kDreq;
  other.remote_id = 77;
  EXPECT_EQ(answer_to(other), head(MessageType::kDrep, 77, a, req));
  other.type = MessageType::kSidrReq;
  EXPECT_EQ(answer_to(other), head(MessageType::kSidrRep, a, 0, req, kReq, 1, 7));
}

TEST_F(CmAgent, rejected_after_a_reply_or_by_a_peer_that_gives_up_ends_as_far_as_it_came) {
  Connection& active = requested();
  EXPECT_TRUE(passive_side().reject(0, RejectReason::kConsumerDefined, {}));
  EXPECT_EQ(passive_side().state(), State::kClosed);
  EXPECT_EQ(head_of(world.passive)[3], static_cast<std::uint64_t>(gdx::cm::Answered::kReq));
  world.deliver_all();
  EXPECT_EQ(active.state(), State::kClosed);
  Message request = TwoAgents::request();
  request.endpoint.qpn = 0x101;
  Connection& second = world.active.agent.make(host(1));
  second.connect(0, request);
  world.deliver_all();
  Connection& accepting = *world.passive.agent.find(world.passive.events.back().id);
  EXPECT_TRUE(accepting.accept(0, TwoAgents::passive_endpoint(), {}));
  EXPECT_TRUE(accepting.reject(7, RejectReason::kConsumerDefined, {}));
  EXPECT_EQ(accepting.state(), State::kTimeWait);
  EXPECT_EQ(accepting.deadline_ns(), 7 + 2 * (std::uint64_t{4096} << 15));
  EXPECT_EQ(head_of(world.passive)[3], static_cast<std::uint64_t>(gdx::cm::Answered::kOther));
  world.deliver_all();
  EXPECT_EQ(last_of(world.active), EventType::kRejected);
}

// An MRA renews no retries: whoever asks for time again and again is given up in the end.
TEST_F(CmAgent, peer_that_only_asks_for_time_is_given_up) {
  const Connection& active = requested();
  int rounds = 0;
  while (active.state() != State::kClosed && ++rounds < 1000) {
    world.advance();
    world.deliver_all();
  }
  EXPECT_LE(rounds, 17);
  EXPECT_EQ(last_of(world.active), EventType::kUnreachable);
}

TEST_F(CmAgent, peer_dead_before_accepting_is_unreachable) {
  const Connection& active = requested();
  world.passive_alive = false;
  world.passive.agent.release_all(0);
  world.drop();
  for (int i = 0; i < 100 && active.state() != State::kClosed; ++i) {
    world.advance();
    world.drop();
  }
  EXPECT_EQ(last_of(world.active), EventType::kUnreachable);
}

TEST_F(CmAgent, reject_carries_reason_and_private_data) {
  requested();
  EXPECT_TRUE(passive_side().reject(0, RejectReason::kConsumerDefined, {std::byte{0x11}}));
  world.deliver_all();
  const Event& event = world.active.events.back();
  EXPECT_EQ(event.type, EventType::kRejected);
  EXPECT_EQ(event.status, 28);
  EXPECT_EQ(event.message.private_data[0], std::byte{0x11});
}

TEST_F(CmAgent, lost_rtu_is_sent_again_for_the_repeated_rep) {
  Connection& active = requested();
  passive_side().accept(0, TwoAgents::passive_endpoint(), {});
  world.deliver_all();
  active.establish();
  world.drop();
  EXPECT_EQ(passive_side().state(), State::kRepSent);
  world.advance();
  world.deliver_all();
  EXPECT_EQ(passive_side().state(), State::kEstablished);
  EXPECT_EQ(world.active.events.size(), 1u);
}

TEST_F(CmAgent, disconnect_tells_both_once_and_time_wait_ends) {
  Connection& active = established();
  EXPECT_TRUE(active.disconnect(0));
  EXPECT_FALSE(active.disconnect(0));
  world.deliver_all();
  EXPECT_EQ(last_of(world.active), EventType::kDisconnected);
  EXPECT_EQ(last_of(world.passive), EventType::kDisconnected);
  world.run_out();
  EXPECT_EQ(last_of(world.active), EventType::kTimeWaitOver);
  EXPECT_EQ(last_of(world.passive), EventType::kTimeWaitOver);
}

TEST_F(CmAgent, goodbye_whose_answer_was_lost_is_answered_again) {
  Connection& active = established();
  active.disconnect(0);
  world.deliver_all();
  ASSERT_EQ(passive_side().state(), State::kTimeWait);
  Message again = world.active.sent.back();
  ASSERT_EQ(again.type, MessageType::kDreq);
  passive_side().on_message(world.now_ns, again);
  EXPECT_EQ(std::ranges::count(world.passive.sent, MessageType::kDrep, &Message::type), 2);
  EXPECT_EQ(std::ranges::count(world.passive.events, EventType::kDisconnected, &Event::type), 1);
}

TEST_F(CmAgent, both_disconnecting_at_once_end_in_time_wait) {
  Connection& active = established();
  active.disconnect(0);
  passive_side().disconnect(0);
  world.deliver_all();
  EXPECT_EQ(active.state(), State::kTimeWait);
  EXPECT_EQ(passive_side().state(), State::kTimeWait);
  EXPECT_EQ(last_of(world.active), EventType::kDisconnected);
}

TEST_F(CmAgent, released_connection_says_goodbye_by_itself_and_is_forgotten) {
  Connection& active = established();
  const std::uint32_t id = active.id();
  world.active.agent.release(0, id);
  EXPECT_EQ(world.active.agent.find(id), nullptr);
  world.drop();  // the first DREQ is lost
  world.advance();
  world.deliver_all();
  EXPECT_EQ(last_of(world.passive), EventType::kDisconnected);
  world.run_out();
  EXPECT_EQ(world.active.agent.connections(), 0u);
}

TEST_F(CmAgent, end_of_the_process_says_goodbye_again_until_it_is_confirmed) {
  established();
  EXPECT_EQ(world.active.agent.release_all(0), 1u);
  world.drop();
  EXPECT_EQ(world.active.agent.release_all(0), 1u);
  world.deliver_all();
  EXPECT_EQ(last_of(world.passive), EventType::kDisconnected);
  const std::size_t sent = world.active.sent.size();
  EXPECT_EQ(world.active.agent.release_all(0), 0u);
  EXPECT_EQ(world.active.sent.size(), sent) << "and no more";
}

TEST_F(CmAgent, dreq_of_a_connection_long_gone_is_confirmed) {
  Connection& active = established();
  active.disconnect(0);
  world.drop();
  TwoAgents fresh;  // the passive process has come back without a memory
  fresh.passive.agent.on_datagram(0, host(2), gdx::cm::encode(world.active.sent.back()));
  ASSERT_EQ(fresh.passive.sent.size(), 1u);
  EXPECT_EQ(fresh.passive.sent[0].type, MessageType::kDrep);
  EXPECT_EQ(fresh.passive.sent[0].remote_id, active.id());
}

TEST_F(CmAgent, rep_for_nobody_is_rejected_by_communication_id) {
  Message rep;
  rep.type = MessageType::kRep;
  rep.local_id = 5;
  rep.remote_id = 12345;
  world.active.agent.on_datagram(0, host(1), gdx::cm::encode(rep));
  EXPECT_EQ(world.active.sent.back().type, MessageType::kRej);
  EXPECT_EQ(world.active.sent.back().reason, static_cast<int>(RejectReason::kInvalidCommunicationId));
}

TEST_F(CmAgent, message_from_another_address_moves_nothing) {
  Connection& active = requested();
  Message rep;
  rep.type = MessageType::kRep;
  rep.local_id = 5;
  rep.remote_id = active.id();
  world.active.agent.on_datagram(0, host(9), gdx::cm::encode(rep));
  EXPECT_EQ(active.state(), State::kReqSent);
  EXPECT_TRUE(world.active.events.empty());
}

// Ids and queue pairs are of one host only: another's request is new, and its rejection ends its own.
TEST_F(CmAgent, equal_ids_and_queue_pairs_of_two_hosts_are_told_apart) {
  established();
  const auto from = [this](const wire::Address& source, const Message& message) {
    world.passive.agent.on_datagram(world.now_ns, source, gdx::cm::encode(message));
  };
  const Message request = world.active.sent.front();
  ASSERT_EQ(request.type, MessageType::kReq);
  Message rejection;
  rejection.type = MessageType::kRej;
  rejection.local_id = request.local_id;  // the peer's own, as long as it has heard of no other
  rejection.reason = static_cast<std::uint16_t>(RejectReason::kTimeout);

  from(host(3), rejection);
  EXPECT_EQ(passive_side().state(), State::kEstablished);
  from(host(3), request);
  ASSERT_EQ(last_of(world.passive), EventType::kRequest);
  EXPECT_EQ(passive_side().state(), State::kEstablished);
  const Connection& other = *world.passive.agent.find(world.passive.events.back().id);
  EXPECT_EQ(other.state(), State::kReqReceived);
  from(host(2), rejection);
  EXPECT_EQ(passive_side().state(), State::kTimeWait);
  EXPECT_EQ(other.state(), State::kReqReceived);
}

TEST_F(CmAgent, message_with_another_remote_id_moves_nothing) {
  Connection& active = established();
  Message dreq;
  dreq.type = MessageType::kDreq;
  dreq.local_id = active.remote_id() + 1;
  dreq.remote_id = active.id();
  world.active.agent.on_datagram(0, host(1), gdx::cm::encode(dreq));
  EXPECT_EQ(active.state(), State::kEstablished);
}

TEST_F(CmAgent, queue_pair_used_again_by_the_peer_ends_the_stale_connection) {
  established();
  world.connect();  // of the same queue pair: its owner has forgotten the first
  world.deliver_all();
  const auto happened = [this](EventType type, int status) {
    return std::ranges::any_of(world.active.events, [&](const Event& event) {
      return event.type == type && event.status == status;
    });
  };
  EXPECT_TRUE(happened(EventType::kDisconnected, 0));
  EXPECT_TRUE(happened(EventType::kRejected, static_cast<int>(RejectReason::kStaleConnection)));
}

TEST_F(CmAgent, requests_beyond_the_backlog_wait_until_one_is_read) {
  for (std::uint32_t i = 0; i < 5; ++i) {
    Message request = TwoAgents::request();
    request.endpoint.qpn = 0x300 + i;
    world.active.agent.make(host(1)).connect(0, request);
  }
  world.deliver_all();
  EXPECT_EQ(world.passive.events.size(), 4u);
  EXPECT_TRUE(world.active.events.empty())
      << "the fifth is not refused: there may be room when it comes again";
  world.advance();
  world.deliver_all();
  EXPECT_EQ(world.passive.events.size(), 4u);
  world.passive.agent.note_read(world.passive.events[0].id);  // read, and not yet answered
  world.advance();
  world.deliver_all();
  EXPECT_EQ(world.passive.events.size(), 5u);
  // One that its user has left counts no more, though it is remembered. Calls from here never count.
  world.passive.agent.make(host(2));
  Connection& left = *world.passive.agent.find(world.passive.events[1].id);
  EXPECT_TRUE(left.accept(world.now_ns, TwoAgents::passive_endpoint(), {}));
  world.passive.agent.release(world.now_ns, left.id());
  EXPECT_EQ(left.state(), State::kTimeWait);
  Message request = TwoAgents::request();
  request.endpoint.qpn = 0x305;
  world.active.agent.make(host(1)).connect(world.now_ns, request);
  world.deliver_all();
  EXPECT_EQ(world.passive.events.size(), 6u);
}

TEST_F(CmAgent, request_given_up_by_a_peer_that_knows_no_id_is_rejected_to_the_user) {
  world.passive.agent.note_read(requested().id());
  world.active.agent.release(0, world.active.sent[0].local_id);
  const Message& rej = world.active.sent.back();
  ASSERT_EQ(rej.type, MessageType::kRej);
  EXPECT_EQ(rej.remote_id, 0u);
  world.deliver_all();
  ASSERT_EQ(last_of(world.passive), EventType::kRejected);
  EXPECT_EQ(world.passive.events.back().status, static_cast<int>(RejectReason::kTimeout));
  EXPECT_EQ(passive_side().state(), State::kClosed);
}

TEST_F(CmAgent, rejection_by_timeout_says_whose_it_is) {
  constexpr std::uint64_t kGuid = 0x1122334455667788;
  Message request = TwoAgents::request();
  request.endpoint.ca_guid = kGuid;
  Connection& active = world.active.agent.make(host(1));
  active.connect(0, request);
  world.active.agent.release(0, active.id());
  EXPECT_EQ(world.active.sent.back().reject_information, gdx::cm::wire_bytes(Be64(kGuid)));
}

TEST_F(CmAgent, established_is_rejected_by_the_peer_the_user_is_told_so) {
  Connection& active = established();
  Message rej;
  rej.type = MessageType::kRej;
  rej.local_id = active.remote_id();
  rej.remote_id = active.id();
  rej.reason = static_cast<std::uint16_t>(RejectReason::kConsumerDefined);
  world.active.agent.on_datagram(0, host(1), gdx::cm::encode(rej));
  EXPECT_EQ(last_of(world.active), EventType::kRejected);
  EXPECT_EQ(active.state(), State::kTimeWait);
}

// Those that end next in time wait are forgotten first. What its user still has, and a goodbye without an
// answer, stay.
TEST_F(CmAgent, peers_that_connect_and_leave_without_end_take_bounded_memory) {
  constexpr std::uint32_t kPeers = 5000;
  constexpr std::uint32_t kHeld = 1;
  constexpr std::uint32_t kSilent = 2;
  constexpr std::uint32_t kOldestKept = kPeers - 4095 + 1;  // of those in time wait; 4096 are retained
  Agent& agent = world.passive.agent;
  const auto say = [&](MessageType type, std::uint32_t number, std::uint32_t id) {
    Message message = TwoAgents::request();
    message.type = type;
    message.local_id = number;
    message.remote_id = id;
    message.endpoint.qpn = 0x1000 + number;
    agent.on_datagram(number, host(2), gdx::cm::encode(message));
  };
  for (std::uint32_t number = 1; number <= kPeers; ++number) {
    say(MessageType::kReq, number, 0);
    const std::uint32_t id = world.passive.events.back().id;
    agent.note_read(id);
    ASSERT_TRUE(agent.find(id)->accept(number, TwoAgents::passive_endpoint(), {}));
    say(number == kSilent ? MessageType::kRtu : MessageType::kDreq, number, id);
    if (number != kHeld) agent.release(number, id);
    world.drop();
  }
  EXPECT_EQ(agent.connections(), 4097u);
  for (const std::uint32_t number : {kHeld, kSilent, 3u, kOldestKept - 1, kOldestKept, kPeers}) {
    const bool known = number < 3 || number >= kOldestKept;
    const std::size_t events = world.passive.events.size();
    say(MessageType::kReq, number, 0);
    EXPECT_EQ(world.passive.events.size() == events, known) << number;
  }
  agent.on_timer(kSilent + kResponseNs);
  EXPECT_EQ(world.passive.sent.back().type, MessageType::kDreq);
  EXPECT_EQ(world.passive.sent.back().remote_id, kSilent);
}

TEST_F(CmAgent, path_mtu_or_transport_beyond_the_port_is_rejected) {
  struct Case {
    std::uint8_t path_mtu;
    std::uint8_t transport;
    int status;
  };
  for (const auto& [path_mtu, transport, status] : {Case{6, 0, 26}, Case{0, 0, 26}, Case{1, 2, 9}}) {
    Message request = TwoAgents::request();
    request.path_mtu = path_mtu;
    request.transport = static_cast<gdx::cm::Transport>(transport);
    world.active.agent.make(host(1)).connect(0, request);
    world.deliver_all();
    EXPECT_EQ(world.active.events.back().status, status);
  }
}

TEST_F(CmAgent, second_listener_on_a_service_is_refused) {
  EXPECT_FALSE(world.passive.agent.listen(7, 100, 1));
  world.passive.agent.stop_listening(7);
  EXPECT_TRUE(world.passive.agent.listen(7, 100, 1));
}

TEST_F(CmAgent, resolution_answered_gives_queue_pair_and_key) {
  Connection& active = world.active.agent.make(host(1));
  active.resolve(0, TwoAgents::request());
  world.deliver_all();
  Message answer;
  answer.endpoint.qpn = 0x77;
  answer.qkey = 0x1234;
  EXPECT_TRUE(passive_side().reply(answer));
  EXPECT_FALSE(passive_side().reply(answer)) << "once";
  EXPECT_EQ(head_of(world.passive), head(MessageType::kSidrRep, active.id(), 0, world.passive.sent.back(),
                                         gdx::cm::Answered::kReq, 0, 7));
  world.deliver_all();
  EXPECT_EQ(last_of(world.active), EventType::kResponse);
  EXPECT_EQ(world.active.events.back().message.endpoint.qpn, 0x77u);
  EXPECT_EQ(world.active.events.back().message.qkey, 0x1234u);
}

TEST_F(CmAgent, resolution_rejected_or_unknown_is_unreachable) {
  world.active.agent.make(host(1)).resolve(0, TwoAgents::request());
  world.deliver_all();
  EXPECT_TRUE(passive_side().reject(0, RejectReason::kConsumerDefined, {std::byte{0x11}}));
  world.active.agent.make(host(1)).resolve(0, TwoAgents::request(8));
  world.deliver_all();
  ASSERT_EQ(world.active.events.size(), 2u);
  EXPECT_EQ(world.active.events[0].message.private_data[0], std::byte{0x11});
  EXPECT_EQ(world.active.events[0].type, EventType::kUnreachable);
  EXPECT_EQ(world.active.events[0].status, static_cast<int>(gdx::cm::SidrStatus::kRejected));
  EXPECT_EQ(world.active.events[1].status, static_cast<int>(gdx::cm::SidrStatus::kInvalidServiceId));
}

}  // namespace agent_test
}  // namespace gdx::softhca::cm
