// Ports by verbs of this process over the software HCA: what they move, which connections they refuse, that
// no message finds no receive, and that the end of a rank is told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "host/poster/verbs_port.h"
#include "proto/poster/verbs.h"

namespace gdx {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kPatienceNs = 100'000'000'000;
constexpr std::size_t kBytes = 1 << 20;

// A rank: its port, registered memory, and what has happened to it.
struct End {
  End() : memory(kBytes), port(open_verbs_port({}).value()) {
    region = port->register_memory(memory.data(), memory.size(), true).value();
  }
  PortSource at(std::size_t offset) { return {memory.data() + offset, region.local}; }
  PortTarget target(std::size_t offset) const { return {region.base + offset, region.key}; }
  std::uint64_t number() const {
    verbs::Address address{};
    std::memcpy(&address, port->address().data(), sizeof address);
    return address.number;
  }
  void poll() {
    std::vector<PortEvent> events;
    ASSERT_TRUE(port->poll(events));
    for (const PortEvent& event : events) {
      if (event.kind == PortEvent::Kind::kMessage) {
        messages.push_back(event.message);
      } else if (event.kind == PortEvent::Kind::kDone) {
        ++done;
      } else {
        failure = event.error;
      }
    }
  }

  std::vector<std::byte> memory;  // ends behind the port
  std::unique_ptr<Port> port;
  PortRegion region;
  std::vector<std::array<std::byte, kPortMessageBytes>> messages;
  std::size_t done = 0;
  Error failure{Status::kOk, {}};
};

class VerbsPortTest : public ::testing::Test {
 protected:
  VerbsPortTest() { renew(); }
  // Makes both ranks anew; rank 0 is the one that connects.
  void renew() {
    for (auto& end : ends_) end = std::make_unique<End>();
    if (ends_[0]->number() > ends_[1]->number()) std::swap(ends_[0], ends_[1]);
  }
  void connect() {
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      ASSERT_TRUE(ends_[rank]->port->connect(1 - rank, ends_[1 - rank]->port->address()));
      ASSERT_TRUE(ends_[rank]->port->connect(rank, ends_[rank]->port->address()));
    }
  }
  // Polls until `come_true`.
  template <typename Condition>
  void until(Condition come_true) {
    const std::uint64_t deadline_ns = monotonic_ns() + kPatienceNs;
    while (!come_true()) {
      ASSERT_LT(monotonic_ns(), deadline_ns) << "nothing more happens";
      for (const auto& end : ends_) {
        if (end->port) end->poll();
      }
    }
  }
  // Posts by `call` as soon as the port takes it. Returns the error that it ends with.
  template <typename Call>
  Error post(Call call) {
    Error error{Status::kOk, {}};
    until([&] {
      const Result<Posting> posted = call(&contexts_.emplace_back());
      if (!posted) error = posted.error();
      return !posted || *posted == Posting::kPosted;
    });
    return error;
  }
  Error send(std::uint32_t from, std::uint32_t to, std::uint64_t value) {
    std::memcpy(ends_[from]->memory.data(), &value, sizeof value);
    return post(
        [&](PortContext* context) { return ends_[from]->port->send(to, ends_[from]->at(0), context); });
  }

  std::array<std::unique_ptr<End>, 2> ends_;
  std::deque<PortContext> contexts_;
};

std::uint64_t value_of(const std::array<std::byte, kPortMessageBytes>& message) {
  std::uint64_t value = 0;
  std::memcpy(&value, message.data(), sizeof value);
  return value;
}

TEST_F(VerbsPortTest, write_is_there_when_the_message_behind_it_is_and_a_read_sees_it) {
  constexpr std::size_t kPart = kBytes / 4;
  connect();
  for (std::uint32_t to = 0; to < 2; ++to) {
    End& target = *ends_[to];
    std::fill_n(ends_[0]->memory.begin() + kPart, kPart, std::byte(0x11 * (to + 1)));
    const Error write = post([&](PortContext* context) {
      return ends_[0]->port->write(to, ends_[0]->at(kPart), target.target(2 * kPart), kPart, 0, 0, context);
    });
    EXPECT_EQ(write.message, "");
    EXPECT_EQ(send(0, to, to).message, "");
    until([&] { return !target.messages.empty(); });
    EXPECT_EQ(std::count(target.memory.begin() + 2 * kPart, target.memory.begin() + 3 * kPart,
                         std::byte(0x11 * (to + 1))),
              kPart);
    const Error read = post([&](PortContext* context) {
      return ends_[0]->port->read(to, ends_[0]->at(3 * kPart), target.target(2 * kPart), kPart, context);
    });
    EXPECT_EQ(read.message, "");
    until([&] { return ends_[0]->done == 3 * (to + 1); });
    EXPECT_EQ(ends_[0]->memory[3 * kPart], std::byte(0x11 * (to + 1)));
    EXPECT_EQ(value_of(target.messages.front()), to);
    target.messages.clear();
  }
}

// Messages end at the rank's receives where nobody reads them, and none is lost or refused.
TEST_F(VerbsPortTest, messages_wait_for_receives_that_are_free) {
  constexpr std::uint64_t kMessages = 2000;
  connect();
  EXPECT_EQ(send(0, 1, 0).message, "");
  until([&] { return ends_[1]->messages.size() == 1; });
  std::uint64_t sent = 1;
  // Until the port takes none though all are complete, so that nothing but receives is missing.
  const std::uint64_t deadline_ns = monotonic_ns() + kPatienceNs;
  for (bool full = false; !full && sent < kMessages;) {
    ASSERT_LT(monotonic_ns(), deadline_ns);
    std::memcpy(ends_[0]->memory.data(), &sent, sizeof sent);
    const auto posted = ends_[0]->port->send(1, ends_[0]->at(0), &contexts_.emplace_back());
    ASSERT_TRUE(posted) << posted.error().message;
    if (*posted == Posting::kPosted) ++sent;
    full = *posted == Posting::kAgain && ends_[0]->done == sent;
    ends_[0]->poll();
    ASSERT_EQ(ends_[0]->failure.message, "");
  }
  EXPECT_LT(sent, kMessages) << "the rank reads none";
  for (; sent < kMessages; ++sent) ASSERT_EQ(send(0, 1, sent).message, "");
  for (std::uint64_t back = 0; back < kMessages; ++back) ASSERT_EQ(send(1, 0, back).message, "");
  until([&] { return ends_[1]->messages.size() == kMessages && ends_[0]->messages.size() == kMessages; });
  for (std::uint64_t i = 0; i < kMessages; ++i) {
    ASSERT_EQ(value_of(ends_[1]->messages[i]), i);
    ASSERT_EQ(value_of(ends_[0]->messages[i]), i);
  }
  EXPECT_EQ(ends_[0]->failure.message, "");
  EXPECT_EQ(ends_[1]->failure.message, "");
}

// Rank 1 knows the caller, whose card of it holds another number.
TEST_F(VerbsPortTest, connection_without_the_right_number_is_refused) {
  std::vector<std::byte> forged = ends_[1]->port->address();
  verbs::Address address{};
  std::memcpy(&address, forged.data(), sizeof address);
  ++address.number;
  std::memcpy(forged.data(), &address, sizeof address);
  ASSERT_TRUE(ends_[0]->port->connect(1, forged));
  ASSERT_TRUE(ends_[1]->port->connect(0, ends_[0]->port->address()));
  const Error refused = send(0, 1, 1);
  EXPECT_EQ(refused.status, Status::kPeerUnreachable);
  EXPECT_THAT(refused.message, HasSubstr("no connection to it: RDMA_CM_EVENT_REJECTED"));
  EXPECT_TRUE(ends_[1]->messages.empty());
  auto true_caller = std::make_unique<End>();
  while (true_caller->number() > ends_[1]->number()) true_caller = std::make_unique<End>();
  ASSERT_TRUE(ends_[1]->port->connect(2, true_caller->port->address()));
  ASSERT_TRUE(true_caller->port->connect(1, ends_[1]->port->address()));
  ends_[0] = std::move(true_caller);
  EXPECT_EQ(send(0, 1, 5).message, "");
  until([&] { return !ends_[1]->messages.empty(); });
}

TEST_F(VerbsPortTest, rank_that_ends_is_told_to_either_side) {
  for (std::uint32_t ending = 0; ending < 2; ++ending) {
    const std::uint32_t other = 1 - ending;
    connect();
    EXPECT_EQ(send(ending, other, 1).message, "");
    until([&] { return !ends_[other]->messages.empty(); });
    ends_[ending]->port.reset();
    Error told{Status::kOk, {}};
    until([&] {
      const auto posted = ends_[other]->port->send(ending, ends_[other]->at(0), &contexts_.emplace_back());
      told = posted ? ends_[other]->failure : posted.error();
      return told.status != Status::kOk;
    });
    EXPECT_EQ(told.status, Status::kPeerUnreachable) << told.message;
    renew();
  }
}

TEST_F(VerbsPortTest, write_with_a_key_that_the_rank_has_not_is_refused_by_it) {
  connect();
  const Error posted = post([&](PortContext* context) {
    return ends_[0]->port->write(1, ends_[0]->at(0), {ends_[1]->region.base, ends_[1]->region.key + 0x100}, 8,
                                 0, 0, context);
  });
  EXPECT_EQ(posted.message, "");
  until([&] { return ends_[0]->failure.status != Status::kOk; });
  EXPECT_EQ(ends_[0]->failure.status, Status::kRemoteAccess);
  EXPECT_THAT(ends_[0]->failure.message, HasSubstr("vendor's error 0x"));
}

TEST(VerbsPort, names_tell_it_from_the_providers_of_libfabric) {
  EXPECT_EQ(verbs_options_of("ibverbs")->device, "");
  EXPECT_EQ(verbs_options_of("ibverbs:siw0")->device, "siw0");
  EXPECT_FALSE(verbs_options_of("verbs;ofi_rxm"));
  EXPECT_FALSE(verbs_options_of("ibverbs2"));
  const auto port = open_verbs_port({.device = "none"});
  EXPECT_EQ(port.error().status, Status::kNotFound);
  EXPECT_THAT(port.error().message, HasSubstr("no RDMA device none with an IP address"));
}

}  // namespace
}  // namespace gdx
