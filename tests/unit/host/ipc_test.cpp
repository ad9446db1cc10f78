// Messages of gdxd as bytes, and a client's connection to a gdxd that the test plays.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "host/bootstrap/local_socket.h"
#include "host/ipc/daemon.h"
#include "tests/unit/host/loopback.h"

namespace gdx::ipc {
namespace ipc_test {

std::uint64_t soon() { return monotonic_ns() + test::kLongNs; }

std::string parse_text(const Header& header, std::size_t bytes = sizeof(Header)) {
  std::vector<std::byte> message(bytes);
  std::memcpy(message.data(), &header, std::min(bytes, sizeof header));
  const auto parsed = parse_message(message);
  if (!parsed) return fmt::format("{}: {}", status_name(parsed.error().status), parsed.error().message);
  return fmt::format("{} {} {}", static_cast<int>(parsed->kind), status_name(parsed->status),
                     parsed->body.size());
}

TEST(Message, header_and_length_are_checked) {
  const std::string bad = std::string(status_name(Status::kInvalidArgument)) + ": ";
  EXPECT_EQ(parse_text({kMagic, kVersion, 1, 0, 0}), "1 ok 0");
  EXPECT_EQ(parse_text({kMagic, kVersion, kLastKind, 0, 0}, kMaxMessageBytes), "19 ok 1024");
  EXPECT_EQ(parse_text({kMagic, kVersion, 2, static_cast<std::uint32_t>(Status::kBusy), 9}, 17),
            fmt::format("2 {} 1", status_name(Status::kBusy)));
  EXPECT_EQ(parse_text({kMagic, kVersion, 2, 0xdead, 0}),
            fmt::format("2 {} 0", status_name(Status::kSystem)));
  EXPECT_EQ(parse_text({kMagic, kVersion, 1, 0, 0}, 15), bad + "a message of 15 bytes is none of gdxd's");
  EXPECT_EQ(parse_text({kMagic, kVersion, 1, 0, 0}, kMaxMessageBytes + 1),
            bad + "a message of 1041 bytes is none of gdxd's");
  EXPECT_EQ(parse_text({kMagic + 1, 9, 0, 0, 0}), bad + "a message begins with 0x67647865, not gdxd's");
  EXPECT_EQ(
      parse_text({kMagic, kVersion + 1, 0, 0, 0}),
      std::string(status_name(Status::kVersionMismatch)) +
          ": a message of protocol version 2 came, and this side has 1: use gdxd and libgdx of one release");
  for (const int kind : {0, kLastKind + 1})
    EXPECT_EQ(parse_text({kMagic, kVersion, static_cast<std::uint16_t>(kind), 0, 0}),
              fmt::format("{}a message is of the unknown kind {}", bad, kind));
}

TEST(Message, body_and_refusal_come_back_as_they_went) {
  const auto bytes = encode(Kind::kReadPool, PoolFigures{4, 5, 6});
  EXPECT_EQ(bytes.size(), sizeof(Header) + sizeof(PoolFigures));
  const auto parsed = parse_message(bytes);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->kind, Kind::kReadPool);
  EXPECT_EQ(parse_body<PoolFigures>(*parsed)->bad_returns, 6u);
  EXPECT_EQ(parse_body<Done>(*parsed).error().message,
            "a message between gdxd and a client has the wrong length");
  EXPECT_FALSE(parse_body<OpenPool>(*parsed));
  const Header empty{0x67647864, 1, 16, 0, 0};
  const auto drain = encode(Kind::kDrain, Drain{});
  ASSERT_EQ(drain.size(), sizeof empty);
  EXPECT_EQ(std::memcmp(drain.data(), &empty, sizeof empty), 0);
  const auto refusal =
      encode_refusal(Kind::kKick, {Status::kBusy, std::string(3, '\n') + std::string(2'000, 'x')});
  const Error error = decode_refusal(*parse_message(refusal));
  EXPECT_EQ(error.status, Status::kBusy);
  EXPECT_EQ(error.message, "???" + std::string(kMaxReasonBytes - 3, 'x'));
}

TEST(Message, texts_are_cut_to_fit) {
  char text[4] = {'9', '9', '9', '9'};
  for (const auto& [from, stored] : {std::pair{"", ""}, {"ab", "ab"}, {"abc", "abc"}, {"abcd", "abc"}}) {
    set_text(text, from);
    EXPECT_EQ(std::string(text, sizeof text), (std::string(stored) + std::string(4, '\0')).substr(0, 4));
    EXPECT_EQ(text_of(text), stored);
  }
  text[3] = 'd';
  EXPECT_EQ(text_of(text), "abcd") << "without its zero";
}

TEST(DaemonPlaces, are_those_of_the_variable_or_the_usual_ones_that_exist) {
  const std::string folder = testing::TempDir() + fmt::format("gdx-places-{}", getpid());
  const std::string own = folder + "/gdx/gdxd.sock";
  ASSERT_EQ(std::system(fmt::format("mkdir -p {0}/gdx && touch {1}", folder, own).c_str()), 0);
  const auto places = [](const char* value) {
    setenv(kDaemonVariable, value, 1);
    const auto found = daemon_places_from_environment();
    unsetenv(kDaemonVariable);
    if (!found) return found.error().message;
    return fmt::format("{}{}", found->required ? "required " : "",
                       found->paths.empty() ? "" : found->paths[0]);
  };
  setenv("XDG_RUNTIME_DIR", folder.c_str(), 1);
  EXPECT_EQ(default_socket_path(), geteuid() == 0 ? "/run/gdx/gdxd.sock" : own);
  EXPECT_EQ(places("off"), "");
  EXPECT_EQ(places("auto"), own);
  EXPECT_EQ(daemon_places_from_environment()->paths.at(0), own) << "auto is the default";
  EXPECT_EQ(places("unix:/a/b"), "required /a/b");
  EXPECT_EQ(places("unix:a"), "GDX_DAEMON is 'unix:a': use auto, off or unix:PATH with an absolute path");
  setenv("XDG_RUNTIME_DIR", "relative", 1);
  EXPECT_NE(places("auto"), own);
  unsetenv("XDG_RUNTIME_DIR");
  EXPECT_EQ(default_socket_path(), "/run/gdx/gdxd.sock");
  ASSERT_EQ(std::system(("rm -r " + folder).c_str()), 0);
}

// gdxd's end of one connection, run by a script on a thread of its own.
class Gdxd {
 public:
  explicit Gdxd(const std::function<void(Gdxd&)>& script, uid_t user = geteuid())
      : name_(fmt::format("gdx-test-ipc-{}", getpid())) {
    // Of this thread alone, as the kernel has it and the C library does not.
    const uid_t own = geteuid();
    EXPECT_EQ(syscall(SYS_setresuid, -1, user, -1), 0);
    listener_ = std::move(*bootstrap::listen_local(name_));
    EXPECT_EQ(syscall(SYS_setresuid, -1, own, -1), 0);
    thread_ = std::thread([this, script] {
      client_ = std::move(*bootstrap::accept_local(listener_, soon()));
      script(*this);
      client_.close();
      notices_.close();
    });
  }
  ~Gdxd() { thread_.join(); }
  Gdxd(const Gdxd&) = delete;
  Gdxd& operator=(const Gdxd&) = delete;

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] std::shared_ptr<Daemon> connect() const {
    auto daemon = Daemon::connect(name_);
    EXPECT_TRUE(daemon) << daemon.error().message;
    return daemon ? *daemon : nullptr;
  }
  // Returns the kind of the next request.
  Kind take() {
    auto received = bootstrap::receive_local(client_, soon());
    if (!received) return {};
    request = std::move(*received);
    return parse_message(request.bytes)->kind;
  }
  void answer(const std::vector<std::byte>& bytes, std::span<const int> files = {}) const {
    EXPECT_TRUE(bootstrap::send_local(client_, bytes, files, soon()));
  }
  void greet() {
    EXPECT_EQ(take(), Kind::kHello);
    const auto hello = parse_body<Hello>(*parse_message(request.bytes));
    EXPECT_EQ(hello->oldest_version, kVersion);
    EXPECT_EQ(hello->newest_version, kVersion);
    EXPECT_EQ(text_of(hello->program), program_invocation_short_name);
    std::array<int, 2> ends{};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()), 0);
    const Descriptor theirs(ends[1]);
    notices_ = Descriptor(ends[0]);
    answer(encode(Kind::kHello, HelloAnswer{1, 0, 11, 12, "a version"}), std::span(&ends[1], 1));
  }
  void notify(Event event) const {
    const Notice notice{static_cast<std::uint32_t>(event), 0, "a reason"};
    EXPECT_TRUE(bootstrap::send_local(notices_, encode(Kind::kNotice, notice), {}, soon()));
  }

  void close() { client_.close(); }

  bootstrap::LocalMessage request;

 private:
  std::string name_;
  Descriptor listener_;
  Descriptor client_;
  Descriptor notices_;
  std::thread thread_;
};

TEST(Daemon, greeting_names_the_program_and_brings_limits_and_notices) {
  const Gdxd greeting([](Gdxd& self) {
    self.greet();
    EXPECT_EQ(self.take(), Kind{}) << "the client has closed";
  });
  auto daemon = greeting.connect();
  ASSERT_NE(daemon, nullptr);
  EXPECT_EQ(daemon->path(), greeting.name());
  EXPECT_EQ(daemon->limits().max_endpoints, 11u);
  EXPECT_EQ(daemon->limits().max_registered_bytes, 12u);
  bool told = false;
  (void)daemon->on_loss([&] { told = true; });
  daemon.reset();
  EXPECT_FALSE(told) << "this side has closed";
}

TEST(Daemon, listener_of_another_user_needs_consent) {
  if (geteuid() != 0) GTEST_SKIP() << "SKIPPED: needs root, who can be other users";
  constexpr uid_t kDaemon = 1;  // its number in every Debian
  for (const char* const consent : {"", "2", "nobody", "1", "daemon"}) {
    setenv(kDaemonUserVariable, consent, 1);
    bool asked = false;
    std::string reason;
    {
      const Gdxd stranger([&](Gdxd& self) { asked = self.take() == Kind::kHello; }, kDaemon);
      reason = Daemon::connect(stranger.name()).error().message;
    }
    EXPECT_EQ(asked, consent == std::string("1") || consent == std::string("daemon")) << consent;
    const std::string who = "is of user 1, who would get this process's memory: set GDX_DAEMON_USER=1 if";
    EXPECT_EQ(reason.find(who) != std::string::npos, !asked && *consent != 0) << reason;
    EXPECT_EQ(reason == "GDX_DAEMON_USER is '': use the name or the number of a user", *consent == 0);
  }
  unsetenv(kDaemonUserVariable);
}

TEST(Daemon, without_notices_or_an_answer_there_is_no_connection) {
  {
    const Gdxd mute([](Gdxd& self) {
      self.take();
      self.answer(encode(Kind::kHello, HelloAnswer{}));
    });
    EXPECT_EQ(Daemon::connect(mute.name()).error().message, "gdxd sent no notice socket: restart it");
  }
  const Gdxd refusing([](Gdxd& self) {
    self.take();
    self.answer(encode_refusal(Kind::kHello, {Status::kNoMemory, "later"}));
  });
  const auto refused = Daemon::connect(refusing.name());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, Status::kNoMemory);
  EXPECT_EQ(refused.error().message, "later");
}

TEST(Daemon, call_brings_the_answer_with_its_files_or_the_refusal) {
  const Descriptor file(memfd_create("a", MFD_CLOEXEC));
  ASSERT_EQ(::write(file.value(), "text", 4), 4);
  const Gdxd gdxd([&](Gdxd& self) {
    self.greet();
    const int number = file.value();
    EXPECT_EQ(self.take(), Kind::kReadStatistics);
    EXPECT_EQ(self.request.descriptors.size(), 1u);
    self.answer(encode(Kind::kReadStatistics, StatisticsAnswer{4}), std::span(&number, 1));
    EXPECT_EQ(self.take(), Kind::kReadPool);
    EXPECT_EQ(parse_body<ReadPool>(*parse_message(self.request.bytes))->pool, 7u);
    self.answer(encode_refusal(Kind::kReadPool, {Status::kNotFound, "no pool"}));
    EXPECT_EQ(self.take(), Kind::kReadPool);
    self.answer(encode(Kind::kClosePool, Done{}));
    EXPECT_EQ(self.take(), Kind{}) << "the client has closed";
  });
  const auto daemon = gdxd.connect();
  ASSERT_NE(daemon, nullptr);
  const int number = file.value();
  auto reply = daemon->call<StatisticsAnswer>(ReadStatistics{}, std::span(&number, 1));
  ASSERT_TRUE(reply) << reply.error().message;
  EXPECT_EQ(read_text(*reply).value(), "text");
  reply->answer.bytes = 5;
  EXPECT_EQ(read_text(*reply).error().message, "the file of gdxd's answer cannot be read: restart it");
  reply->files.clear();
  EXPECT_EQ(read_text(*reply).error().message, "gdxd's answer holds no file: restart it");
  const auto refused = daemon->call<PoolFigures>(ReadPool{7});
  EXPECT_EQ(refused.error().status, Status::kNotFound);
  EXPECT_EQ(refused.error().message, "no pool");
  EXPECT_FALSE(daemon->lost());
  EXPECT_EQ(daemon->call<PoolFigures>(ReadPool{7}).error().message,
            fmt::format("gdxd at {} answered out of turn: restart it", gdxd.name()));
  EXPECT_TRUE(daemon->lost());
  EXPECT_EQ(daemon->call<PoolFigures>(ReadPool{7}).error().status, Status::kDaemonGone);
}

TEST(Daemon, refusal_that_came_before_the_end_is_told) {
  std::promise<void> closed;
  std::promise<void> end;
  const Gdxd gdxd([&](Gdxd& self) {
    self.greet();
    self.answer(encode_refusal(Kind::kReadPool, {Status::kNotFound, "no pool"}));
    self.close();
    closed.set_value();
    end.get_future().wait();
  });
  const auto daemon = gdxd.connect();
  ASSERT_NE(daemon, nullptr);
  closed.get_future().wait();
  EXPECT_EQ(daemon->call<PoolFigures>(ReadPool{7}).error().message, "no pool");
  end.set_value();
}

// Functions run in their order, so the last one's end is the end of all.
TEST(Daemon, loss_runs_each_function_once_that_was_not_withdrawn_and_names_its_cause) {
  const std::tuple<Event, Status, const char*> causes[] = {
      {Event::kPortDown, Status::kDaemonGone,
       "gdxd at {} has ended, and with it this process's objects: start it again, then open the HCA again"},
      {Event::kHcaFailed, Status::kHcaFailed,
       "the HCA is in a fatal error, and this process's objects are lost: open the HCA again once it is "
       "back"},
      {Event::kKicked, Status::kDaemonGone,
       "gdxd at {} has kicked this process, and its objects are lost: ask who runs it, then open the HCA "
       "again"}};
  for (const auto& [event, status, text] : causes) {
    std::promise<void> begin;
    const Gdxd gdxd([&begin, event = event](Gdxd& self) {
      self.greet();
      begin.get_future().wait();
      self.notify(Event::kPortUp);
      self.notify(event);
    });
    const auto daemon = gdxd.connect();
    ASSERT_NE(daemon, nullptr);
    std::array<int, 4> runs{};
    std::promise<void> end;
    (void)daemon->on_loss([&] { ++runs[0]; });
    const std::uint64_t withdrawn = daemon->on_loss([&] { ++runs[1]; });
    (void)daemon->on_loss([&] { ++runs[2]; });
    (void)daemon->on_loss([&] { end.set_value(); });
    daemon->forget(withdrawn);
    EXPECT_FALSE(daemon->lost());
    begin.set_value();
    ASSERT_EQ(end.get_future().wait_for(std::chrono::minutes(2)), std::future_status::ready);
    const auto refused = daemon->call<Done>(ClosePool{1});
    EXPECT_EQ(refused.error().status, status);
    EXPECT_EQ(refused.error().message, fmt::format(fmt::runtime(text), gdxd.name()));
    (void)daemon->on_loss([&] { ++runs[3]; });
    EXPECT_EQ(runs, (std::array<int, 4>{1, 0, 1, 1}));
  }
}

TEST(Daemon, wake_up_is_sent_and_needs_no_answer) {
  const Gdxd gdxd([](Gdxd& self) {
    self.greet();
    EXPECT_EQ(self.take(), Kind::kWake);
    EXPECT_EQ(self.request.bytes.size(), sizeof(Header));
  });
  const auto daemon = gdxd.connect();
  ASSERT_NE(daemon, nullptr);
  daemon->wake();
}

}  // namespace ipc_test
}  // namespace gdx::ipc
