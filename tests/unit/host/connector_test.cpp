// Connectors on loopback sockets: several ranks in this process, hosts that are books, and strangers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "host/bootstrap/frame.h"
#include "host/bootstrap/socket.h"
#include "host/team/connector_service.h"
#include "tests/unit/host/loopback.h"
#include "tests/unit/host/skipped_time.h"

namespace gdx {
namespace connector_test {

using bootstrap::ConnectorIdentity;
using bootstrap::ConnectorMessage;
using test::kLongNs;
using test::kShortNs;
using ::testing::HasSubstr;

constexpr std::uint32_t kRanks = 8;
constexpr std::uint32_t kLanes = 2;
constexpr std::uint64_t kTeam = 7;
using Key = std::pair<std::uint32_t, std::uint32_t>;  // rank, lane

std::atomic<std::uint32_t> last_qpn = 0;

// A host whose endpoints are entries of a book.
class Books final : public ConnectorHost {
 public:
  struct Entry {
    std::uint32_t qpn = 0;
    std::uint32_t connected_qpn = 0;
    int created = 0;
    int ready = 0;
    std::string gone;
  };

  Result<EndpointAddress> create(std::uint32_t rank, std::uint32_t lane) override {
    if (before_create) before_create(rank, lane);
    const std::lock_guard lock(mutex_);
    if (refused) return tl::unexpected(*refused);
    Entry& entry = entries_[{rank, lane}];
    ++entry.created;
    entry.qpn = ++last_qpn;
    EndpointAddress address{};
    address.version = kEndpointAddressVersion;
    address.qpn = entry.qpn;
    return address;
  }
  Result<void> connect(std::uint32_t rank, std::uint32_t lane, const EndpointAddress& peer) override {
    const std::lock_guard lock(mutex_);
    entries_[{rank, lane}].connected_qpn = peer.qpn;
    return {};
  }
  void ready(std::uint32_t rank, std::uint32_t lane) override {
    const std::lock_guard lock(mutex_);
    ++entries_[{rank, lane}].ready;
  }
  void gone(std::uint32_t rank, std::uint32_t lane, const Error& why) override {
    const std::lock_guard lock(mutex_);
    entries_[{rank, lane}].gone = why.message;
  }

  Entry of(std::uint32_t rank, std::uint32_t lane) {
    const std::lock_guard lock(mutex_);
    return entries_[{rank, lane}];
  }
  std::set<Key> used() {
    const std::lock_guard lock(mutex_);
    std::set<Key> keys;
    for (const auto& [key, entry] : entries_) {
      if (entry.created != 0) keys.insert(key);
    }
    return keys;
  }

  // Set before the connector starts.
  std::optional<Error> refused;
  std::function<void(std::uint32_t rank, std::uint32_t lane)> before_create;

 private:
  std::mutex mutex_;
  std::map<Key, Entry> entries_;
};

template <typename Condition>
bool comes_true(Condition condition) {
  const std::uint64_t end_ns = monotonic_ns() + kLongNs;
  while (!condition()) {
    if (monotonic_ns() >= end_ns) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// Finds this process's socket that is connected to one at `address`; -1 without one.
int socket_to(const std::string& address) {
  for (int number = 0; number < 8192; ++number) {
    sockaddr_in peer{};
    socklen_t length = sizeof peer;
    if (getpeername(number, reinterpret_cast<sockaddr*>(&peer), &length) != 0 || peer.sin_family != AF_INET)
      continue;
    if (address == "127.0.0.1:" + std::to_string(ntohs(peer.sin_port))) return number;
  }
  return -1;
}

class Connectors : public ::testing::Test {
 protected:
  void listen(std::uint32_t size, std::uint64_t deadline_ns = kLongNs) {
    books.resize(size);
    asked.resize(size);
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      ConnectorOptions options;
      options.rank = rank;
      options.size = size;
      options.lanes = kLanes;
      options.rules.deadline_ns = deadline_ns;
      options.secret = secret;
      options.host = host;
      auto service = ConnectorService::listen(options);
      ASSERT_TRUE(service) << service.error().message;
      identities.push_back((*service)->identity());
      services.push_back(std::move(*service));
      books[rank] = std::make_unique<Books>();
      asked[rank].resize(std::size_t{size} * kLanes);
    }
  }
  void start() {
    for (std::size_t rank = 0; rank < services.size(); ++rank) {
      const auto started = services[rank]->start(identities, *books[rank], asked[rank].data());
      ASSERT_TRUE(started) << started.error().message;
    }
  }
  // As a kernel does it.
  void ask(std::uint32_t rank, std::uint32_t peer, std::uint32_t lane) {
    std::atomic_ref(asked[rank][std::size_t{lane} * services.size() + peer])
        .store(1, std::memory_order_relaxed);
  }
  [[nodiscard]] std::string address(std::uint32_t rank) const { return identities[rank].address; }
  // Sends a letter of rank 0 to rank 1.
  void send_letter(const Descriptor& socket, const ConnectorLetter& letter) {
    const auto message = encode_letter(letter, {identities[0].token, 0, 2, kLanes}, 1);
    const auto frame = bootstrap::encode_frame(bootstrap::FrameType::kConnector, 0, 0,
                                               std::as_bytes(std::span(&message, 1)));
    EXPECT_EQ(::send(socket.value(), frame.data(), frame.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(frame.size()));
  }
  void expect_joined(std::uint32_t a, std::uint32_t b, std::uint32_t lane) {
    EXPECT_TRUE(comes_true([&] { return books[a]->of(b, lane).ready == 1; })) << a << " to " << b;
    EXPECT_TRUE(comes_true([&] { return books[b]->of(a, lane).ready == 1; })) << b << " to " << a;
    const auto one = books[a]->of(b, lane);
    const auto other = books[b]->of(a, lane);
    EXPECT_EQ(one.connected_qpn, other.qpn);
    EXPECT_EQ(other.connected_qpn, one.qpn);
    EXPECT_EQ(one.created, 1);
    EXPECT_EQ(other.created, 1);
  }

  test::SkippedTime time;
  bootstrap::Secret::Ptr secret = bootstrap::Secret::make().value();
  std::string host = "127.0.0.1";
  std::vector<std::unique_ptr<Books>> books;
  std::vector<std::vector<std::uint32_t>> asked;
  std::vector<ConnectorIdentity> identities;
  std::vector<std::unique_ptr<ConnectorService>> services;  // ends first
};

TEST_F(Connectors, only_pairs_that_are_asked_for_connect) {
  listen(kRanks);
  start();
  ask(0, 5, 0);
  ask(3, 2, 1);
  ASSERT_TRUE(services[6]->connect(7, 1, kLongNs));
  expect_joined(0, 5, 0);
  expect_joined(3, 2, 1);
  expect_joined(6, 7, 1);
  EXPECT_TRUE(services[7]->connect(6, 1, kLongNs)) << "a pair that is ready";
  const std::vector<std::set<Key>> used = {{{5, 0}}, {},       {{3, 1}}, {{2, 1}},
                                           {},       {{0, 0}}, {{7, 1}}, {{6, 1}}};
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) EXPECT_EQ(books[rank]->used(), used[rank]) << rank;
}

TEST_F(Connectors, all_ask_for_all_at_once_and_each_end_is_made_once) {
  listen(kRanks);
  start();
  for (std::uint32_t a = 0; a < kRanks; ++a) {
    for (std::uint32_t b = 0; b < kRanks; ++b) {
      for (std::uint32_t lane = 0; lane < kLanes; ++lane) ask(a, b, lane);
    }
  }
  for (std::uint32_t a = 0; a < kRanks; ++a) {
    for (std::uint32_t b = a + 1; b < kRanks; ++b) {
      for (std::uint32_t lane = 0; lane < kLanes; ++lane) expect_joined(a, b, lane);
    }
    ASSERT_TRUE(services[a]->connect(a, 0, kLongNs));
    EXPECT_EQ(books[a]->of(a, 0).connected_qpn, books[a]->of(a, 0).qpn) << "an endpoint for this rank itself";
  }
}

TEST_F(Connectors, rank_that_has_ended_is_named_and_the_others_connect) {
  listen(3, 600 * kShortNs);
  start();
  ASSERT_TRUE(services[0]->connect(2, 0, kLongNs));
  services[2].reset();
  const auto lost = services[0]->connect(2, 1, kLongNs);
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.error().status, Status::kPeerUnreachable);
  EXPECT_THAT(lost.error().message, HasSubstr("rank 2 was not connected on lane 1 (no answer at 127.0.0.1:"));
  EXPECT_THAT(lost.error().message, HasSubstr("it has ended"));
  EXPECT_EQ(books[0]->of(2, 1).gone, lost.error().message);
  EXPECT_EQ(books[0]->of(2, 0).gone, "") << "a pair that was ready";
  EXPECT_TRUE(services[0]->connect(1, 0, kLongNs));
}

// 40 pairs at one rank, whose channels open after 16. Before the 33rd the first is to have reached its peer.
TEST_F(Connectors, sockets_are_served_while_many_pairs_begin) {
  secret = nullptr;  // a handshake takes more looks than one
  constexpr std::uint32_t kMany = 20;
  listen(kMany);
  std::atomic<std::uint32_t> created = 0;
  std::atomic<bool> reached = false;
  books[0]->before_create = [&](std::uint32_t, std::uint32_t) {
    const std::uint32_t before = created++;
    if (before == 16) {  // the first channel is open
      EXPECT_TRUE(comes_true([&] { return socket_to(address(1)) >= 0; }));
    }
    if (before == 32) reached = comes_true([&] { return books[1]->of(0, 0).created == 1; });
  };
  for (std::uint32_t rank = 0; rank < kMany; ++rank) {
    for (std::uint32_t lane = 0; lane < kLanes; ++lane) ask(0, rank, lane);
  }
  start();
  EXPECT_TRUE(comes_true([&] { return created == kMany * kLanes; }));
  ASSERT_TRUE(reached);
  for (std::uint32_t rank = 1; rank < kMany; ++rank) expect_joined(0, rank, 1);
}

// As on a machine that is far too busy, or was stopped for a while.
TEST_F(Connectors, time_in_which_a_rank_does_not_run_is_no_time_of_its_peers) {
  listen(2);
  books[0]->before_create = [this](std::uint32_t, std::uint32_t) { time.skip(2 * kLongNs); };
  start();
  ask(0, 1, 0);
  const auto connected = services[0]->connect(1, 0, kLongNs);
  EXPECT_TRUE(connected) << connected.error().message;
}

TEST_F(Connectors, accepted_channel_ends_with_a_machine_that_is_silent) {
  secret = nullptr;  // the test says a rank's words
  listen(2);
  start();
  auto dialled = bootstrap::connect_to(address(1), monotonic_ns() + kLongNs);
  ASSERT_TRUE(dialled);
  ConnectorLetter letter;
  letter.address.qpn = 99;
  send_letter(*dialled, letter);
  ASSERT_TRUE(comes_true([&] { return books[1]->of(0, 0).created == 1; }));
  int keeps_alive = 0;
  socklen_t length = sizeof keeps_alive;
  ASSERT_EQ(
      getsockopt(socket_to(bootstrap::own_text(*dialled)), SOL_SOCKET, SO_KEEPALIVE, &keeps_alive, &length),
      0);
  EXPECT_EQ(keeps_alive, 1);
}

TEST_F(Connectors, refusal_reaches_who_asked_with_its_reason) {
  listen(2);
  books[1]->refused = Error{Status::kNoMemory, "no staging slots are left"};
  start();
  const auto refused = services[0]->connect(1, 0, kLongNs);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, Status::kNoMemory);
  EXPECT_THAT(refused.error().message, HasSubstr("rank 1 refused the connection on lane 0"));
  EXPECT_THAT(refused.error().message, HasSubstr("no staging slots are left"));
  EXPECT_NE(books[1]->of(0, 0).gone, "");
}

TEST_F(Connectors, host_that_stays_busy_is_waited_for_in_bounded_time) {
  listen(2);
  books[1]->refused = Error{Status::kBusy, "all slots are held"};
  start();
  const auto waited = services[0]->connect(1, 0, kShortNs);
  ASSERT_FALSE(waited);
  EXPECT_EQ(waited.error().status, Status::kTimeout);
  EXPECT_THAT(waited.error().message, HasSubstr("rank 1 was not connected on lane 0 in 0.100 s"));
}

TEST_F(Connectors, abort_ends_waits_of_the_host_before_and_after_it) {
  listen(3);
  books[1]->refused = Error{Status::kBusy, "all slots are held"};
  start();
  ASSERT_TRUE(services[0]->connect(2, 0, kLongNs));
  std::thread aborter([&] {
    EXPECT_TRUE(comes_true([&] { return books[0]->of(1, 0).created == 1; }));
    services[0]->abort();
  });
  const auto during = services[0]->connect(1, 0, kLongNs);
  aborter.join();
  ASSERT_FALSE(during);
  EXPECT_EQ(during.error().status, Status::kAborted);
  EXPECT_EQ(services[0]->connect(1, 1, kLongNs).error().status, Status::kAborted);
  EXPECT_TRUE(services[0]->connect(2, 0, kLongNs)) << "it was ready before";
}

TEST_F(Connectors, strangers_do_no_harm) {
  secret = nullptr;  // the test says a rank's words
  listen(2);
  start();
  const auto stranger = [&](const std::string& text) {
    auto socket = bootstrap::connect_to(address(1), monotonic_ns() + kLongNs);
    EXPECT_TRUE(socket);
    EXPECT_EQ(::send(socket->value(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
    return std::move(*socket);
  };
  const auto framed = [](const ConnectorMessage& message) {
    const auto frame = bootstrap::encode_frame(bootstrap::FrameType::kConnector, 0, 0,
                                               std::as_bytes(std::span(&message, 1)));
    return std::string(reinterpret_cast<const char*>(frame.data()), frame.size());
  };
  ConnectorLetter ask;
  ask.address.qpn = 99;
  std::string other_version = framed(encode_letter(ask, {identities[0].token, 0, 2, kLanes}, 1));
  other_version[5] = 9;
  const auto sees_close = [](const Descriptor& socket) {
    pollfd closed{socket.value(), POLLIN, 0};
    return ::poll(&closed, 1, 120'000) == 1;
  };
  const Descriptor in_parts = stranger(other_version.substr(0, 3));
  const Descriptor silent = stranger(other_version.substr(0, 4));  // the rest never comes
  EXPECT_TRUE(sees_close(stranger("GET / HTTP/1.1\r\n\r\n")));
  EXPECT_TRUE(sees_close(stranger(framed(encode_letter(ask, {identities[0].token + 1, 0, 2, kLanes}, 1)))));
  // By now the first part has been read.
  EXPECT_GT(::send(in_parts.value(), other_version.data() + 3, other_version.size() - 3, MSG_NOSIGNAL), 0);
  EXPECT_TRUE(sees_close(in_parts));
  EXPECT_TRUE(books[1]->used().empty());
  ASSERT_TRUE(services[0]->connect(1, 0, kLongNs));
  expect_joined(0, 1, 0);
}

TEST_F(Connectors, ranks_of_one_host_connect_by_local_sockets) {
  secret = nullptr;
  host = "unix:";
  listen(3);
  EXPECT_THAT(address(1), testing::StartsWith("unix:"));
  start();
  for (std::uint32_t rank = 0; rank < 3; ++rank)
    ASSERT_TRUE(services[rank]->connect((rank + 1) % 3, 0, kLongNs));
  for (std::uint32_t rank = 0; rank < 3; ++rank) expect_joined(rank, (rank + 1) % 3, 0);
}

// With another secret, and with the right one as another rank than its letter says.
TEST_F(Connectors, dialler_that_does_not_show_its_rank_ends_nothing) {
  listen(3);
  start();
  const auto call = [&](const bootstrap::Secret::Ptr& with, std::uint32_t from) {
    auto socket = bootstrap::connect_to(address(1), monotonic_ns() + kLongNs);
    auto connection = bootstrap::Connection::dial(
        std::move(*socket), with, {bootstrap::FrameType::kConnector, identities[0].token, from}, 1);
    const auto message = encode_letter({}, {identities[0].token, 0, 3, kLanes}, 1);
    connection->queue(bootstrap::encode_frame(bootstrap::FrameType::kConnector, from, 0,
                                              std::as_bytes(std::span(&message, 1))));
    for (;;) {
      (void)connection->flush();
      const auto frame = connection->receive({bootstrap::FrameType::kConnector});
      if (!frame) return frame.error().message;
      pollfd ready{connection->socket().value(), connection->events(), 0};
      EXPECT_TRUE(bootstrap::wait_until({&ready, 1}, monotonic_ns() + kLongNs));
    }
  };
  EXPECT_THAT(call(bootstrap::Secret::make().value(), 0), HasSubstr("does not know this rank's secret"));
  EXPECT_EQ(call(secret, 2), "closed its connection");
  EXPECT_TRUE(books[1]->used().empty());
  ASSERT_TRUE(services[0]->connect(1, 0, kLongNs));
  expect_joined(0, 1, 0);
}

TEST_F(Connectors, rank_with_another_secret_is_gone_with_the_reason) {
  listen(2, 10 * kShortNs);
  ConnectorOptions options;
  options.rank = 1;
  options.size = 2;
  options.lanes = kLanes;
  options.secret = bootstrap::Secret::make().value();
  services[1] = ConnectorService::listen(options).value();
  identities[1] = services[1]->identity();
  start();
  const auto connected = services[0]->connect(1, 0, kLongNs);
  ASSERT_FALSE(connected);
  EXPECT_EQ(connected.error().status, Status::kPeerUnreachable);
  EXPECT_THAT(connected.error().message, HasSubstr("it does not know this rank's secret"));
}

// A rank that says what a connector never says.
TEST_F(Connectors, rank_that_contradicts_itself_is_gone) {
  secret = nullptr;  // the test says a rank's words
  listen(2);
  start();
  auto socket = bootstrap::connect_to(address(1), monotonic_ns() + kLongNs);
  ASSERT_TRUE(socket);
  ConnectorLetter done;
  done.kind = ConnectorKind::kDone;
  done.address.qpn = 99;
  done.connected_qpn = 1234;
  send_letter(*socket, done);
  EXPECT_TRUE(comes_true([&] { return !books[1]->of(0, 0).gone.empty(); }));
  EXPECT_THAT(books[1]->of(0, 0).gone, HasSubstr("rank 0 connected to an endpoint that does not exist"));
  EXPECT_TRUE(books[1]->used().empty());
}

TEST_F(Connectors, start_refuses_identities_that_are_not_all_ranks) {
  listen(2);
  auto identities_of_one = identities;
  identities_of_one.pop_back();
  EXPECT_EQ(services[0]->start(identities_of_one, *books[0]).error().status, Status::kInvalidArgument);
  auto wrong = identities;
  wrong[1].version = 9;
  EXPECT_THAT(services[0]->start(wrong, *books[0]).error().message,
              HasSubstr("rank 1 has connector version 9"));
  wrong = identities;
  std::fill(std::begin(wrong[1].address), std::end(wrong[1].address), 'x');
  EXPECT_THAT(services[0]->start(wrong, *books[0]).error().message, HasSubstr("rank 1 published"));
  EXPECT_EQ(services[0]->connect(1, 0, kShortNs).error().status, Status::kInvalidArgument) << "not started";
}

// Surroundings in which endpoints are made, unless `refused`, and no letter arrives.
class Silence final : public ConnectorPort {
 public:
  Result<EndpointAddress> create(std::uint32_t /*rank*/, std::uint32_t /*lane*/) override {
    if (refused) return tl::unexpected(*refused);
    return EndpointAddress{};
  }
  Result<void> connect(std::uint32_t /*rank*/, std::uint32_t /*lane*/,
                       const EndpointAddress& /*peer*/) override {
    return {};
  }
  void ready(std::uint32_t /*rank*/, std::uint32_t /*lane*/) override {}
  void gone(std::uint32_t /*rank*/, std::uint32_t /*lane*/, const Error& why) override { last = why; }
  ChannelId dial(std::uint32_t /*rank*/) override { return ++channel; }
  void send(ChannelId /*channel*/, std::uint32_t /*rank*/, const ConnectorLetter& /*letter*/) override {}
  void close(ChannelId /*channel*/) override {}

  std::optional<Error> refused;
  Error last;
  ChannelId channel = 0;
};

TEST(ConnectorReason, deadline_states_what_happened_to_this_attempt) {
  Silence port;
  const ConnectorRules rules;
  Connector connector({kTeam, 0, 2, 4}, rules, port);
  std::uint64_t now_ns = 0;
  const auto end_of = [&](std::uint32_t lane, auto happens) {
    connector.ask(now_ns, 1, lane);
    connector.tick(now_ns);
    happens();
    now_ns += rules.deadline_ns;
    connector.tick(now_ns);
    return port.last;
  };
  const Error lost = end_of(0, [&] { connector.lost(port.channel, {Status::kPeerGone, "it was reset"}); });
  EXPECT_EQ(lost.status, Status::kPeerUnreachable);
  EXPECT_THAT(lost.message, HasSubstr("(it was reset)"));
  const Error silent = end_of(1, [] {});
  EXPECT_EQ(silent.status, Status::kPeerUnreachable);
  EXPECT_THAT(silent.message, HasSubstr("(it did not answer)"));
  port.refused = Error{Status::kBusy, "all slots are held"};
  const Error busy = end_of(2, [] {});
  EXPECT_EQ(busy.status, Status::kBusy) << "no reason to hold the rank for dead";
  EXPECT_THAT(busy.message, HasSubstr("(all slots are held)"));
  const Error over = end_of(3, [&] {
    port.refused.reset();
    connector.tick(now_ns + rules.deadline_ns / 2);
  });
  EXPECT_EQ(over.status, Status::kPeerUnreachable) << "the endpoint was made, and nobody answered";
  EXPECT_THAT(over.message, HasSubstr("(it did not answer)"));
}

TEST(ConnectorOptions, listen_names_an_impossible_option) {
  const auto refusal = [](const ConnectorOptions& options) {
    const auto service = ConnectorService::listen(options);
    return service ? std::string() : service.error().message;
  };
  EXPECT_THAT(refusal({1, 1}), HasSubstr("rank = 1"));
  EXPECT_THAT(refusal({0, 1, 0}), HasSubstr("lanes = 0"));
  EXPECT_THAT(refusal({0, 1, 1, "localhost"}), HasSubstr("'localhost' is no numeric address"));
  EXPECT_THAT(refusal({0, 1, 1, "127.0.0.1", {0, 1}}), HasSubstr("deadline_ns = 0"));
  EXPECT_THAT(refusal({0, 1, 1, "127.0.0.1", {1, 0}}), HasSubstr("most_dialled = 0"));
}

class Letter : public ::testing::Test {
 protected:
  Letter() {
    letter.kind = ConnectorKind::kAnswer;
    letter.from = 2;
    letter.lane = 1;
    letter.connected_qpn = 17;
    letter.address.qpn = 18;
    message = encode_letter(letter, {kTeam, 2, kRanks, kLanes}, 3);
  }
  [[nodiscard]] Result<ConnectorLetter> decode() const {
    return decode_letter(std::as_bytes(std::span(&message, 1)), place);
  }
  [[nodiscard]] std::string refusal() const {
    const auto decoded = decode();
    return decoded ? "decoded" : decoded.error().message;
  }

  ConnectorPlace place{kTeam, 3, kRanks, kLanes};
  ConnectorLetter letter;
  ConnectorMessage message{};
};

TEST_F(Letter, comes_back_as_it_was) {
  const auto decoded = decode();
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(decoded->kind, letter.kind);
  EXPECT_EQ(decoded->from, 2u);
  EXPECT_EQ(decoded->lane, 1u);
  EXPECT_EQ(decoded->connected_qpn, 17u);
  EXPECT_EQ(decoded->address, letter.address);
}

TEST_F(Letter, reason_is_printable_cut_and_a_failure) {
  letter.kind = ConnectorKind::kRefusal;
  letter.why = {Status::kNoMemory, "no\x1b[2J" + std::string(1000, 'x')};
  message = encode_letter(letter, {kTeam, 2, kRanks, kLanes}, 3);
  auto decoded = decode();
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(decoded->why.status, Status::kNoMemory);
  EXPECT_THAT(decoded->why.message, HasSubstr("no?[2Jxxx"));
  EXPECT_EQ(decoded->why.message.size(), bootstrap::kConnectorReasonBytes);
  message.status = 0;
  decoded = decode();
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->why.status, Status::kSystem);
}

TEST_F(Letter, each_wrong_field_is_named) {
  const ConnectorMessage good = message;
  const auto with = [&](auto change) {
    message = good;
    change(message);
    return refusal();
  };
  EXPECT_THAT(with([](auto& m) { m.version = 2; }), HasSubstr("version 2"));
  EXPECT_THAT(with([](auto& m) { m.team = 8; }), HasSubstr("another team"));
  EXPECT_THAT(with([](auto& m) { m.to = 2; }), HasSubstr("receiver 2"));
  EXPECT_THAT(with([](auto& m) { m.from = kRanks; }), HasSubstr("sender 8"));
  EXPECT_THAT(with([](auto& m) { m.from = 3; }), HasSubstr("sender 3"));
  EXPECT_THAT(with([](auto& m) { m.lane = kLanes; }), HasSubstr("lane 2"));
  EXPECT_THAT(with([](auto& m) { m.kind = 0; }), HasSubstr("kind 0"));
  EXPECT_THAT(with([](auto& m) { m.kind = 6; }), HasSubstr("kind 6"));
  EXPECT_THAT(with([](auto& m) { m.connected_qpn = 0; }), HasSubstr("connected QPN 0"));
  EXPECT_THAT(with([](auto& m) { m.kind = 1; }), HasSubstr("connected QPN 17"));
  EXPECT_THAT(decode_letter(std::as_bytes(std::span(&good, 1)).first(100), place).error().message,
              HasSubstr("length 100"));
}

}  // namespace connector_test
}  // namespace gdx
