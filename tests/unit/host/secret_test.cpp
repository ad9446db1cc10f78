// The job's secret: where it comes from, in which order, and which sources are refused.
#include "host/bootstrap/secret.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>

#include "host/bootstrap/admission.h"
#include "tests/unit/host/secret_file.h"

namespace gdx::bootstrap {
namespace secret_test {

using test::SecretFile;
using testing::HasSubstr;

Secret::Ptr made() { return Secret::make().value(); }
ChannelKey key(const Secret::Ptr& secret, const ChannelIdentity& identity = {}) {
  return secret->key_of(identity).value();
}

TEST(Secret, key_is_of_one_secret_direction_team_and_kind_of_channel) {
  const auto secret = made();
  const ChannelIdentity usual{kIdentityMagic, 1, 1, 7, 1, 2};
  EXPECT_EQ(key(secret, usual), key(secret, usual));
  EXPECT_NE(key(secret, usual), key(made(), usual));
  for (const ChannelIdentity& other :
       {ChannelIdentity{kIdentityMagic, 1, 1, 7, 2, 1}, ChannelIdentity{kIdentityMagic, 1, 1, 8, 1, 2},
        ChannelIdentity{kIdentityMagic, 1, 6, 7, 1, 2}, ChannelIdentity{kIdentityMagic, 1, 1, 7, 1, 3}})
    EXPECT_NE(key(secret, usual), key(secret, other));
}

// HKDF-SHA384 with the salt "gdx channel", by another implementation: python3 -c '
// import hmac; h = lambda k, m: hmac.new(k, m, "sha384").digest()
// print(h(h(b"gdx channel", b"s" * 32), bytes.fromhex("676478690001000100000000000000070000000100000002") +
// b"\1").hex())'
TEST(Secret, key_is_what_the_protocol_says) {
  const SecretFile file;
  const auto secret = Secret::from_file(file.path);
  ASSERT_TRUE(secret) << secret.error().message;
  std::string text;
  for (const std::byte byte : key(*secret, {kIdentityMagic, 1, 1, 7, 1, 2}))
    text += fmt::format("{:02x}", std::to_integer<int>(byte));
  EXPECT_EQ(
      text,
      "19781aa5666b535460bab4635a2cea1dbf344021a63a4a8b74e246f263910e9ac3ddfda065a985ea238e43156005ac9b");
}

std::ptrdiff_t pages_out_of_core_files() {
  std::ifstream maps("/proc/self/smaps");
  return std::count_if(std::istream_iterator<std::string>(maps), {},
                       [](const std::string& word) { return word == "dd"; });
}

TEST(Secret, core_files_leave_it_out) {
  const auto before = pages_out_of_core_files();
  const auto secret = made();
  EXPECT_EQ(pages_out_of_core_files(), before + 1);
}

TEST(Secret, shared_one_is_the_same_closed_on_exec_and_cannot_be_changed) {
  const auto secret = made();
  const auto file = secret->share();
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(fcntl(file->value(), F_GETFD), FD_CLOEXEC);
  EXPECT_LT(pwrite(file->value(), "x", 1, 0), 0);
  for (int readers = 0; readers < 2; ++readers) {
    const auto read = Secret::from_descriptor(file->value());
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(key(*read), key(secret));
  }
}

// Closed by what lies between, and then the number is another file's.
TEST(Secret, process_above_holds_it_where_the_own_descriptor_was_closed) {
  const auto secret = made();
  const auto file = secret->share();
  ASSERT_TRUE(file) << file.error().message;
  const auto expected = key(secret);
  const pid_t pid = fork();
  if (pid == 0) {
    const int number = file->value();
    ::close(number);
    const pid_t below = fork();
    if (below == 0) {
      dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), number);
      const auto read = Secret::from_descriptor(number);
      _exit(read && key(*read) == expected ? 0 : 1);
    }
    int status = 1;
    waitpid(below, &status, 0);
    _exit(status == 0 ? 0 : 1);
  }
  int status = 1;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
}

TEST(Secret, other_descriptors_hold_none) {
  const SecretFile file;
  const Descriptor other(open(file.path.c_str(), O_RDONLY | O_CLOEXEC));
  for (const int descriptor : {other.value(), 8191, -1}) {
    const auto read = Secret::from_descriptor(descriptor);
    ASSERT_FALSE(read);
    EXPECT_EQ(
        read.error().message,
        fmt::format("descriptor {} does not hold the job's secret, here or in a process above: programs "
                    "between gdx run and this rank have closed it; give the secret by GDX_SECRET_FILE",
                    descriptor));
  }
}

TEST(SecretFile, that_others_may_open_or_of_another_length_is_refused) {
  for (const mode_t mode : {0640, 0604, 0620, 0610}) {
    const SecretFile open_to_others(kSecretBytes, mode);
    EXPECT_THAT(Secret::from_file(open_to_others.path).error().message,
                HasSubstr("is open to others (mode 6"));
  }
  for (const std::size_t bytes : {0, 31, 33}) {
    const SecretFile odd(bytes);
    EXPECT_THAT(Secret::from_file(odd.path).error().message,
                HasSubstr(fmt::format("has {} bytes: it must be 32 random ones", bytes)));
  }
  EXPECT_THAT(Secret::from_file("/nonexistent/secret").error().message,
              HasSubstr("cannot be read from /nonexistent/secret: No such file"));
  EXPECT_THAT(Secret::from_file("/tmp").error().message, HasSubstr("is no regular file"));
  const std::string fifo = testing::TempDir() + "/gdx_secret_fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(Secret::from_file(fifo).error().message, HasSubstr("is no regular file"));
  unlink(fifo.c_str());
}

TEST(SecretFile, of_another_user_is_refused) {
  if (geteuid() != 0) GTEST_SKIP() << "SKIPPED: needs root, to give a file away";
  const SecretFile file;
  ASSERT_EQ(chown(file.path.c_str(), 65534, 65534), 0);
  EXPECT_THAT(Secret::from_file(file.path).error().message,
              HasSubstr("is user 65534's, and this is user 0's"));
}

class Admissions : public testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }
  static void clear() {
    for (const char* name : {kSecretFileVariable, kSecretDescriptorVariable, kInsecureVariable})
      unsetenv(name);
  }
};

TEST_F(Admissions, file_goes_before_what_the_program_gives_and_that_before_the_launchers) {
  const auto given = made();
  const auto launchers = made();
  const auto shared = launchers->share();
  ASSERT_TRUE(shared);
  setenv(kSecretDescriptorVariable, std::to_string(shared->value()).c_str(), 1);
  const auto by_launcher = choose_admission("127.0.0.1:5000");
  ASSERT_TRUE(by_launcher) << by_launcher.error().message;
  EXPECT_EQ(key(by_launcher->secret), key(launchers));
  EXPECT_THAT(by_launcher->text, HasSubstr("in descriptors of gdx run's ranks"));
  const auto by_program = choose_admission("unix:job", given, "a store has it");
  ASSERT_TRUE(by_program) << by_program.error().message;
  EXPECT_EQ(key(by_program->secret), key(given));
  EXPECT_EQ(by_program->text, "by the job's secret, over TLS 1.3; a store has it");
  const SecretFile file;
  const auto by_file = choose_admission("127.0.0.1:5000", given);
  ASSERT_TRUE(by_file) << by_file.error().message;
  EXPECT_EQ(key(by_file->secret), key(Secret::from_file(file.path).value()));
  EXPECT_THAT(by_file->text, HasSubstr("can read its file " + file.path));
}

TEST_F(Admissions, tcp_without_a_secret_is_refused_on_loopback_too_and_local_sockets_need_none) {
  for (const char* root : {"127.0.0.1:5000", "10.0.0.1:5000", "[::1]:5000"}) {
    const auto refused = choose_admission(root);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().status, Status::kUnsupported);
    EXPECT_EQ(
        refused.error().message,
        fmt::format("ranks that meet over TCP, at {}, need a secret: start them by gdx run; or make a file, "
                    "(umask 077; head -c 32 /dev/urandom >FILE), and give it to each by GDX_SECRET_FILE; or "
                    "let GDX_ROOT be unix:NAME, if all are on this host; or set GDX_INSECURE=1 where nobody "
                    "else reaches them",
                    root));
  }
  const auto local = choose_admission("unix:job");
  ASSERT_TRUE(local) << local.error().message;
  EXPECT_EQ(local->secret, nullptr);
  EXPECT_THAT(local->text, HasSubstr("by the user at the other end of a local socket"));
}

TEST_F(Admissions, who_wants_no_secret_has_none_and_may_not_name_one) {
  setenv(kInsecureVariable, "1", 1);
  const auto none = choose_admission("10.0.0.1:5000", made());
  ASSERT_TRUE(none) << none.error().message;
  EXPECT_EQ(none->secret, nullptr);
  EXPECT_THAT(none->text, HasSubstr("by nothing (GDX_INSECURE = 1)"));
  EXPECT_EQ(secret_to_hand_on().value(), nullptr);
  const SecretFile file;
  EXPECT_EQ(choose_admission("unix:job").error().message,
            "GDX_INSECURE = 1 and GDX_SECRET_FILE contradict each other: unset one of them");
  EXPECT_FALSE(secret_to_hand_on());
  setenv(kInsecureVariable, "2", 1);
  EXPECT_EQ(choose_admission("unix:job").error().message, "GDX_INSECURE = '2': use a number from 0 to 1");
}

TEST_F(Admissions, launcher_hands_on_the_users_file_or_a_new_secret_each_time) {
  EXPECT_NE(key(secret_to_hand_on().value()), key(secret_to_hand_on().value()));
  const SecretFile file;
  EXPECT_EQ(key(secret_to_hand_on().value()), key(Secret::from_file(file.path).value()));
}

}  // namespace secret_test
}  // namespace gdx::bootstrap
