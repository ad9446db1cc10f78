// Ranks that meet by a secret or as one user's, among strangers who have neither: these are dropped and
// named, and end nothing.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "host/bootstrap/admission.h"
#include "host/bootstrap/connection.h"
#include "host/bootstrap/local_socket.h"
#include "host/bootstrap/reception.h"
#include "host/bootstrap/world.h"
#include "tests/unit/host/loopback.h"
#include "tests/unit/host/skipped_time.h"

namespace gdx {
namespace secret_world_test {

using bootstrap::ChannelPlace;
using bootstrap::Connection;
using bootstrap::encode_hello;
using bootstrap::FrameType;
using bootstrap::Secret;
using test::join_in_background;
using test::kLongNs;
using test::LoopbackRoot;
using test::RawPeer;
using testing::HasSubstr;

// A connection to rank 0, as of rank `rank` with `secret`.
Connection dialled(const LoopbackRoot& root, const Secret::Ptr& secret, std::uint32_t rank) {
  auto socket = bootstrap::connect_to(root.root, monotonic_ns() + kLongNs);
  EXPECT_TRUE(socket) << socket.error().message;
  return Connection::dial(std::move(*socket), secret, {.rank = rank}, 0).value();
}

// Goes on until `done`, or the connection's end, whose reason it returns.
std::string go_on(Connection& connection, const std::function<bool()>& done) {
  while (!done()) {
    const auto frame = connection.receive({FrameType::kWelcome, FrameType::kFailed});
    if (!frame) return frame.error().message;
    if (*frame && (*frame)->type == FrameType::kFailed) return bootstrap::decode_failure(**frame).reason;
    if (*frame) return "welcome";
    if (done()) break;
    pollfd ready{connection.socket().value(), connection.events(), 0};
    EXPECT_TRUE(bootstrap::wait_until({&ready, 1}, monotonic_ns() + kLongNs));
  }
  return {};
}

std::string open(Connection& connection) {
  return go_on(connection, [&] { return connection.is_open(); });
}

// Ends when all ranks have met. Returns what was logged.
std::string meet(std::future<Result<World>>& rank_0, const LoopbackRoot& root, std::uint32_t size) {
  test::run_ranks(size, [&](std::uint32_t rank) {
    auto world = rank == 0 ? rank_0.get() : World::join(root.options(rank, size));
    ASSERT_TRUE(world) << world.error().message;
    const auto values = world->allgather_value(rank + 1, kLongNs);
    ASSERT_TRUE(values) << values.error().message;
    for (std::uint32_t other = 0; other < size; ++other) EXPECT_EQ((*values)[other], other + 1);
  });
  return testing::internal::GetCapturedStderr();
}

struct Meeting {
  explicit Meeting(std::uint32_t ranks = 2) : size(ranks) {
    testing::internal::CaptureStderr();
    rank_0 = join_in_background(root.options(0, size));
  }
  std::string end() { return meet(rank_0, root, size); }

  const std::uint32_t size;
  const LoopbackRoot root;
  std::future<Result<World>> rank_0;
};

TEST(SecretWorld, stranger_without_a_secret_or_with_another_is_dropped_and_named) {
  Meeting meeting;
  const RawPeer plain = RawPeer::connect(meeting.root);
  plain.send(encode_hello(1, 2));
  while (!plain.sees_close()) continue;
  Connection other = dialled(meeting.root, Secret::make().value(), 1);
  EXPECT_EQ(open(other),
            "does not know this rank's secret: give all ranks of the job the same, and the same root");
  const RawPeer noise = RawPeer::connect(meeting.root);
  noise.send(std::string("GET / HTTP/1.1\r\n\r\n"));
  while (!noise.sees_close()) continue;
  const std::string log = meeting.end();
  EXPECT_THAT(log, HasSubstr("has no secret, and this rank has one: give all ranks of the job the same"));
  EXPECT_THAT(log, HasSubstr("came as rank 1 and has another secret"));
  EXPECT_THAT(log, HasSubstr("does not show that it has the job's secret (http request)"));
}

TEST(SecretWorld, holder_of_the_secret_that_does_not_fit_is_refused_and_named) {
  struct {
    std::uint32_t key_of;
    std::vector<std::byte> hello;
    const char* why;
  } const misfits[] = {{1, encode_hello(1, 3), "came as rank 1 of 3 ranks, rank 0 expects 2"},
                       {1, encode_hello(2, 2), "came as rank 2 with the key of rank 1"},
                       {7, encode_hello(7, 2), "came as rank 7: ranks other than 0 go from 1 to 1"}};
  Meeting meeting;
  for (const auto& [key_of, hello, why] : misfits) {
    Connection rank = dialled(meeting.root, meeting.root.secret, key_of);
    EXPECT_EQ(open(rank), "");
    rank.queue(hello);
    EXPECT_TRUE(rank.flush());
    EXPECT_THAT(go_on(rank, [] { return false; }), HasSubstr(why));
  }
  const std::string log = meeting.end();
  for (const auto& misfit : misfits) EXPECT_THAT(log, HasSubstr(misfit.why));
}

// The listener is another rank, or a team's rank.
TEST(SecretWorld, key_is_of_one_place_alone) {
  const auto secret = Secret::make().value();
  const ChannelPlace elsewhere[] = {{.rank = 2}, {.first_frame = FrameType::kConnector}, {.team = 1}};
  for (const ChannelPlace& place : elsewhere) {
    auto listener = bootstrap::listen_on("127.0.0.1").value();
    const std::string address = bootstrap::own_text(listener);
    bootstrap::Reception reception(std::move(listener), place, secret);
    auto caller = Connection::dial(bootstrap::connect_to(address, monotonic_ns() + kLongNs).value(), secret,
                                   {.rank = 1}, 0)
                      .value();
    while (reception.seen().find("dropped") == std::string::npos) {
      (void)caller.receive({FrameType::kWelcome});
      ASSERT_TRUE(reception.receive());
    }
    EXPECT_THAT(reception.seen(),
                HasSubstr(place.rank == 2 ? "came to rank 0, and this is rank 2" : "is of another team"));
  }
}

// Relays one connection to rank 0, and keeps what its rank has sent.
std::vector<std::byte> recorded(const LoopbackRoot& root, const LoopbackRoot& relay) {
  std::vector<std::byte> bytes;
  relay.listen();
  const Descriptor ends[] = {Descriptor(::accept(relay.socket.value(), nullptr, nullptr)),
                             bootstrap::connect_to(root.root, monotonic_ns() + kLongNs).value()};
  for (bool open = true; open;) {
    pollfd set[] = {{ends[0].value(), POLLIN, 0}, {ends[1].value(), POLLIN, 0}};
    EXPECT_GT(::poll(set, 2, 120'000), 0);
    for (int from = 0; from < 2 && open; ++from) {
      std::byte chunk[4096];
      if (set[from].revents == 0) continue;
      const ssize_t got = ::recv(ends[from].value(), chunk, sizeof chunk, 0);
      open = got > 0;
      if (open && from == 0) bytes.insert(bytes.end(), chunk, chunk + got);
      if (open) (void)::send(ends[1 - from].value(), chunk, got, MSG_NOSIGNAL);
    }
  }
  return bytes;
}

std::vector<std::byte> record_of_rank_1(const Secret::Ptr& secret) {
  const LoopbackRoot root(secret);
  const LoopbackRoot relay(secret);
  auto stream = std::async(std::launch::async, [&] { return recorded(root, relay); });
  auto rank_0 = join_in_background(root.options(0, 2));
  EXPECT_TRUE(World::join(relay.options(1, 2)));
  EXPECT_TRUE(rank_0.get());
  return stream.get();
}

TEST(SecretWorld, recorded_stream_is_nobodys_second_rank) {
  Meeting meeting;
  const auto stream = record_of_rank_1(meeting.root.secret);
  ASSERT_GT(stream.size(), encode_hello(1, 2).size());
  const RawPeer replayer = RawPeer::connect(meeting.root);
  replayer.send(stream);
  while (!replayer.sees_close()) continue;
  EXPECT_THAT(meeting.end(), HasSubstr("does not show that it has the job's secret"));
}

// Of those that show the first message of a rank, as a recorder can, and of those that say nothing.
TEST(SecretWorld, flood_of_half_open_handshakes_keeps_no_rank_away) {
  constexpr std::uint32_t kRanks = 4;
  Meeting meeting(kRanks);
  std::atomic<bool> over = false;
  const auto stream = record_of_rank_1(meeting.root.secret);
  std::thread flood([&] {
    std::vector<Descriptor> held;
    for (int i = 0; !over; ++i) {
      auto socket = bootstrap::connect_to(meeting.root.root, monotonic_ns() + kLongNs);
      if (!socket) break;
      // Of the first message up to a half, as a whole, or nothing.
      const std::size_t bytes = i % 3 == 0 ? 0 : i % 3 == 1 ? 100 : std::min<std::size_t>(stream.size(), 400);
      (void)::send(socket->value(), stream.data(), bytes, MSG_NOSIGNAL);
      held.push_back(std::move(*socket));
      if (held.size() > 300) held.erase(held.begin());
    }
  });
  const RawPeer silent = RawPeer::connect(meeting.root);
  while (!silent.sees_close()) continue;
  const std::string log = meeting.end();
  over = true;
  meeting.root.listen();  // for the flood's last connection
  flood.join();
  EXPECT_THAT(log, HasSubstr("dropped a connection: 127.0.0.1:"));
  EXPECT_THAT(log, HasSubstr("those after it are counted alone"));
}

TEST(SecretWorld, rank_in_its_handshake_keeps_its_place_beside_silent_strangers) {
  const auto secret = Secret::make().value();
  auto listener = bootstrap::listen_on("127.0.0.1").value();
  const std::string address = bootstrap::own_text(listener);
  bootstrap::Reception reception(std::move(listener), {}, secret);
  auto rank = Connection::dial(bootstrap::connect_to(address, monotonic_ns() + kLongNs).value(), secret,
                               {.rank = 1}, 0)
                  .value();
  (void)rank.receive({FrameType::kWelcome});
  for (pollfd answered{rank.socket().value(), POLLIN, 0}; ::poll(&answered, 1, 1) == 0;)
    ASSERT_TRUE(reception.receive());
  std::vector<Descriptor> silent;
  for (std::size_t i = 0; i < 2 * bootstrap::kMaxStrangers; ++i)
    silent.push_back(bootstrap::connect_to(address, monotonic_ns() + kLongNs).value());
  while (reception.seen().find("dropped 64 connections") == std::string::npos)
    ASSERT_TRUE(reception.receive());
  EXPECT_EQ(open(rank), "");
  rank.queue(encode_hello(1, 2));
  EXPECT_TRUE(rank.flush());
  for (std::size_t arrived = 0; arrived == 0;) {
    const auto arrivals = reception.receive();
    ASSERT_TRUE(arrivals);
    arrived = arrivals->size();
  }
}

// Answers one handshake by a certificate of its own, as whoever lacks the secret may.
void answer_by_certificate(const Descriptor& listener) {
  const Descriptor socket(::accept(listener.value(), nullptr, nullptr));
  EVP_PKEY* const key = EVP_EC_gen("P-256");
  X509* const certificate = X509_new();
  X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
  X509_set_pubkey(certificate, key);
  EXPECT_GT(X509_sign(certificate, key, EVP_sha256()), 0);
  SSL_CTX* const context = SSL_CTX_new(TLS_server_method());
  EXPECT_EQ(SSL_CTX_use_certificate(context, certificate), 1);
  EXPECT_EQ(SSL_CTX_use_PrivateKey(context, key), 1);
  SSL* const tls = SSL_new(context);
  SSL_set_fd(tls, socket.value());
  EXPECT_NE(SSL_accept(tls), 1) << "a rank takes a certificate";
  SSL_free(tls);
  SSL_CTX_free(context);
  X509_free(certificate);
  EVP_PKEY_free(key);
}

TEST(SecretWorld, certificate_stands_for_no_secret) {
  const LoopbackRoot root;
  root.listen();
  auto joined = join_in_background(root.options(1, 2));
  answer_by_certificate(root.socket);
  const auto world = joined.get();
  ASSERT_FALSE(world);
  EXPECT_EQ(world.error().message,
            fmt::format("rank 0 at {} does not show that it has the job's secret (certificate "
                        "verify failed)",
                        root.root));
}

TEST(SecretWorld, half_open_handshake_expires) {
  Meeting meeting;
  const auto stream = record_of_rank_1(meeting.root.secret);
  const RawPeer half = RawPeer::connect(meeting.root);
  half.send(std::span(stream).first(100));
  while (!half.sees_close()) continue;
  EXPECT_THAT(meeting.end(), HasSubstr("sent no hello within 5 s"));
}

TEST(SecretWorld, rank_with_another_secret_or_none_learns_it_in_one_line) {
  test::SkippedTime time;
  const LoopbackRoot root;
  auto rank_0 = join_in_background(root.options(0, 2));
  auto wrong = root.options(1, 2);
  wrong.secret = Secret::make().value();
  const auto refused = World::join(wrong);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, Status::kInvalidArgument);
  EXPECT_EQ(refused.error().message,
            fmt::format("rank 0 at {} does not know this rank's secret: give all ranks "
                        "of the job the same, and the same root",
                        root.root));
  setenv(kInsecureVariable, "1", 1);
  const auto without = World::join(root.options(1, 2));
  unsetenv(kInsecureVariable);
  ASSERT_FALSE(without);
  EXPECT_THAT(
      without.error().message,
      testing::MatchesRegex("rank 0 refused this rank: 127.0.0.1:[0-9]+ has no secret, and this rank has "
                            "one: give all ranks of the job the same"));
  time.skip(kLongNs);
  const auto world = rank_0.get();
  ASSERT_FALSE(world);
  EXPECT_THAT(world.error().message, HasSubstr("rank 1 of 2 never came to rank 0"));
  EXPECT_THAT(world.error().message, HasSubstr("(dropped 2 connections, the last: 127.0.0.1:"));
}

// Rank 0 has none, and drops each handshake.
TEST(SecretWorld, rank_0_without_the_secret_is_named_by_the_deadline) {
  test::SkippedTime time;
  const LoopbackRoot root;
  root.listen();
  auto joined = join_in_background(root.options(1, 2));
  const auto turn_away = [&] { Descriptor(::accept(root.socket.value(), nullptr, nullptr)).close(); };
  turn_away();
  turn_away();
  time.skip(kLongNs);
  std::thread last(turn_away);
  const auto world = joined.get();
  ASSERT_FALSE(world);
  EXPECT_THAT(world.error().message, HasSubstr(fmt::format("rank 0 at {} closed its connection", root.root)));
  EXPECT_THAT(world.error().message, HasSubstr("in each handshake: it has no secret"));
  (void)bootstrap::connect_to(root.root, monotonic_ns());
  last.join();
}

// Steps of a rank that is killed behind one of them: connected, first message sent, handshake done, hello
// sent, welcome got.
std::string killed_behind(int step) {
  test::SkippedTime time;
  const LoopbackRoot root;
  auto met = std::async(std::launch::async, [&]() -> Result<void> {
    auto world = GDX_TRY(World::join(root.options(0, step == 3 ? 3 : 2)));
    return world.barrier(kLongNs);
  });
  {
    Connection rank = dialled(root, root.secret, 1);
    if (step == 1) (void)rank.receive({FrameType::kWelcome});
    const std::string failure = step >= 2 ? open(rank) : "";
    EXPECT_EQ(failure, "");
    if (step >= 3) {
      rank.queue(encode_hello(1, step == 3 ? 3 : 2));
      EXPECT_TRUE(rank.flush());
    }
    const std::string said = step >= 4 ? go_on(rank, [] { return false; }) : "welcome";
    EXPECT_EQ(said, "welcome");
  }
  if (step < 3) {
    // The drop comes before the end, because a rank that asks next is told so.
    Connection other = dialled(root, Secret::make().value(), 1);
    EXPECT_NE(open(other), "");
    time.skip(kLongNs);
  }
  const auto ended = met.get();
  return ended ? "met" : ended.error().message;
}

TEST(SecretWorld, rank_killed_at_each_step_is_named) {
  for (int step = 0; step < 3; ++step)
    EXPECT_THAT(killed_behind(step), testing::AllOf(HasSubstr("rank 1 of 2 never came to rank 0 at"),
                                                    HasSubstr("dropped 2 connections")))
        << step;
  EXPECT_EQ(killed_behind(3), "rank 1 closed its connection before rank 2 had come");
  EXPECT_EQ(killed_behind(4), "rank 1 closed its connection");
}

TEST(LocalWorld, ranks_of_one_user_meet_without_a_secret) {
  const std::string root = fmt::format("unix:gdx-test-{}", getpid());
  test::run_ranks(3, [&](std::uint32_t rank) {
    auto world = World::join({rank, 3, root, kLongNs});
    ASSERT_TRUE(world) << world.error().message;
    EXPECT_EQ(world->address(), "127.0.0.1");
    EXPECT_EQ(world->options().secret, nullptr);
    const auto values = world->allgather_value(rank, kLongNs);
    ASSERT_TRUE(values) << values.error().message;
    EXPECT_EQ((*values)[2], 2u);
  });
}

TEST(LocalWorld, name_of_another_job_or_with_a_slash_is_refused) {
  const std::string root = fmt::format("unix:gdx-test-{}", getpid());
  const auto taken = bootstrap::listen_at(root);
  ASSERT_TRUE(taken) << taken.error().message;
  const auto second = World::join({0, 2, root, kLongNs});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().status, Status::kBusy);
  EXPECT_THAT(second.error().message, HasSubstr("another process has the name"));
  for (const std::string name : {"unix:", "unix:/tmp/x"})
    EXPECT_THAT(World::join({0, 2, name, kLongNs}).error().message, HasSubstr("use unix:NAME"));
  const auto none = World::join({1, 2, "unix:gdx-test-nobody", test::kShortNs});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().status, Status::kTimeout);
  EXPECT_THAT(none.error().message, HasSubstr("rank 0 did not answer at unix:gdx-test-nobody"));
}

// Runs `body` as another user, in a process of its own, and returns its status.
int as_nobody(const std::function<int()>& body) {
  const pid_t pid = fork();
  if (pid == 0) _exit(setuid(65534) == 0 ? body() : 99);
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Connects once somebody listens. Looks up no name, because a child of several threads may have to wait for
// ever then.
Descriptor called(const std::string& root) {
  for (;;) {
    auto socket = bootstrap::is_local(root) ? bootstrap::connect_local(root.substr(5), 0, SOCK_STREAM)
                                            : bootstrap::begin_connect(root);
    if (!socket) continue;
    pollfd ready{socket->value(), POLLOUT, 0};
    if (::poll(&ready, 1, 120'000) == 1 && bootstrap::finish_connect(*socket)) return std::move(*socket);
  }
}

// Says each of `words` at rank 0 many times, as in a flood, and reads what it is told. Returns 0 if all were
// turned away, and 1 once one was taken for a rank.
int is_welcome(const std::string& root, const std::vector<std::vector<std::byte>>& words) {
  constexpr int kTries = 20;
  const auto welcome = bootstrap::encode_frame(FrameType::kWelcome, 0, 0);
  for (std::size_t i = 0; i < kTries * words.size(); ++i) {
    const auto& said = words[i % words.size()];
    const Descriptor socket = called(root);
    (void)::send(socket.value(), said.data(), said.size(), MSG_NOSIGNAL);
    std::vector<std::byte> told;
    for (pollfd ready{socket.value(), POLLIN, 0}; ::poll(&ready, 1, 120'000) == 1;) {
      std::byte chunk[4096];
      const ssize_t got = ::recv(socket.value(), chunk, sizeof chunk, 0);
      if (got <= 0) break;
      told.insert(told.end(), chunk, chunk + got);
      if (std::search(told.begin(), told.end(), welcome.begin(), welcome.end()) != told.end()) return 1;
    }
  }
  return 0;
}

// Over TCP with the secret, over TCP without one, and at a local socket.
TEST(AnotherUser, whatever_it_says_it_is_turned_away_and_named_and_the_job_is_whole) {
  if (geteuid() != 0) GTEST_SKIP() << "SKIPPED: needs root, to be another user too";
  for (const std::string way : {"secret", "insecure", "local"}) {
    LoopbackRoot root;
    std::vector<std::vector<std::byte>> words = {encode_hello(1, 2), encode_hello(1, 3), encode_hello(0, 2),
                                                 encode_hello(7, 2), std::vector<std::byte>(64)};
    if (way == "secret") words.push_back(record_of_rank_1(root.secret));
    if (way == "insecure") setenv(kInsecureVariable, "1", 1);
    if (way == "local") {
      root.root = fmt::format("unix:gdx-test-{}", getpid());
      root.secret = nullptr;
    }
    testing::internal::CaptureStderr();
    auto rank_0 = join_in_background(root.options(0, 2));
    called(root.root).close();  // it listens
    EXPECT_EQ(as_nobody([&] { return is_welcome(root.root, words); }), 0) << way;
    const std::string log = meet(rank_0, root, 2);
    unsetenv(kInsecureVariable);
    EXPECT_THAT(log, HasSubstr(way == "secret" ? "has no secret, and this rank has one"
                                               : "is user 65534's, and this is user 0's"));
    EXPECT_THAT(log, HasSubstr("those after it are counted alone"));
  }
}

TEST(AnotherUser, rank_0_of_its_is_refused) {
  if (geteuid() != 0) GTEST_SKIP() << "SKIPPED: needs root, to be another user too";
  const std::string root = fmt::format("unix:gdx-test-{}", getpid());
  const auto own = bootstrap::listen_at(root);
  EXPECT_EQ(as_nobody([&] {
              const auto joined = World::join({1, 2, root, kLongNs});
              return joined.error().message ==
                             fmt::format(
                                 "rank 0 at {} is user 0's, and this is user 65534's: let GDX_ROOT "
                                 "be another name",
                                 root)
                         ? 0
                         : 1;
            }),
            0);
}

}  // namespace secret_world_test
}  // namespace gdx
