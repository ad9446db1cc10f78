#include "host/cli/launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

namespace gdx {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

constexpr std::uint64_t kSecondNs = 1'000'000'000;

class Launcher : public ::testing::Test {
 protected:
  void SetUp() override { setenv(kSofthcaLibraryVariable, EMPTY_PRELOAD, 1); }
  void TearDown() override { unsetenv(kSofthcaLibraryVariable); }

  static LaunchOptions shell(const std::string& script, std::uint32_t ranks) {
    LaunchOptions options;
    options.command = {"sh", "-c", script};
    options.ranks = ranks;
    options.grace_ns = 100'000'000;
    return options;
  }
  static int status_of(const LaunchOptions& options) {
    const auto status = launch(options);
    EXPECT_TRUE(status) << status.error().message;
    return status.value_or(-1);
  }
};

TEST_F(Launcher, all_ranks_succeed_status_is_0) { EXPECT_EQ(status_of(shell("exit 0", 3)), 0); }

TEST_F(Launcher, every_rank_knows_its_place) {
  EXPECT_EQ(status_of(shell("test $GDX_WORLD_SIZE = 3 && test $GDX_RANK -lt 3 && test -n \"$GDX_ROOT\"", 3)),
            0);
  EXPECT_EQ(status_of(shell("test $GDX_RANK = 1 && exit 41; exit 0", 3)), 41);
}

TEST_F(Launcher, rank_0_inherits_the_listening_socket_others_do_not) {
  EXPECT_EQ(status_of(shell("if test $GDX_RANK = 0; then test -S /proc/self/fd/$GDX_ROOT_FD; else "
                            "test -z \"$GDX_ROOT_FD\"; fi",
                            2)),
            0);
}

TEST_F(Launcher, single_rank_gets_no_rank_variables) {
  EXPECT_EQ(status_of(shell("test -z \"$GDX_RANK$GDX_ROOT\"", 1)), 0);
}

TEST_F(Launcher, software_hca_is_preloaded) {
  EXPECT_EQ(status_of(shell("grep -q " EMPTY_PRELOAD " /proc/self/maps", 1)), 0);
}

TEST_F(Launcher, one_rank_fails_the_others_are_ended_and_its_status_is_relayed) {
  EXPECT_EQ(status_of(shell("test $GDX_RANK = 1 && exit 7; exec sleep 600", 3)), 7);
}

TEST_F(Launcher, one_rank_is_killed_status_is_128_plus_the_signal) {
  EXPECT_EQ(status_of(shell("test $GDX_RANK = 1 && kill -KILL $$; exec sleep 600", 2)), 128 + SIGKILL);
}

TEST_F(Launcher, ranks_ignore_sigterm_they_are_killed) {
  EXPECT_EQ(status_of(shell("trap '' TERM; test $GDX_RANK = 1 && exit 7; while :; do sleep 1; done", 2)), 7);
}

TEST_F(Launcher, time_is_up_ranks_are_ended_with_124) {
  auto options = shell("exec sleep 600", 2);
  options.timeout_ns = kSecondNs / 10;
  EXPECT_EQ(status_of(options), kExitTimeout);
}

TEST_F(Launcher, sigint_to_the_launcher_ends_the_ranks) {
  const auto script = "test $GDX_RANK = 0 && kill -INT $PPID; exec sleep 600";
  EXPECT_EQ(status_of(shell(script, 2)), 128 + SIGINT);
}

TEST_F(Launcher, program_does_not_exist_is_not_found) {
  auto options = shell("", 2);
  options.command = {"/nonexistent/program"};
  const auto status = launch(options);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().status, Status::kNotFound);
  EXPECT_THAT(status.error().message, HasSubstr("/nonexistent/program"));
}

TEST_F(Launcher, impossible_options_are_refused_by_name) {
  const auto refusal = [](void (*spoil)(LaunchOptions&)) {
    auto options = shell("exit 0", 2);
    spoil(options);
    const auto checked = check_launch_options(options);
    return checked ? std::string("accepted") : checked.error().message;
  };
  EXPECT_EQ(refusal([](LaunchOptions&) {}), "accepted");
  EXPECT_THAT(refusal([](LaunchOptions& o) { o.command.clear(); }), HasSubstr("no program"));
  EXPECT_THAT(refusal([](LaunchOptions& o) { o.ranks = 0; }), HasSubstr("--ranks"));
  EXPECT_THAT(refusal([](LaunchOptions& o) { o.ranks = 1025; }), HasSubstr("1024"));
  EXPECT_THAT(refusal([](LaunchOptions& o) { o.softhca.address = "127.0.0.9"; }), HasSubstr("--addr"));
  EXPECT_THAT(refusal([](LaunchOptions& o) { o.softhca.hcas = 0; }), HasSubstr("--hcas 0: use 1 to 16"));
  EXPECT_THAT(refusal([](LaunchOptions& o) { o.softhca.hcas = 17; }), HasSubstr("--hcas"));
  EXPECT_THAT(refusal([](LaunchOptions& o) { o.softhca.mtu_bytes = 1500; }), HasSubstr("--mtu"));
  EXPECT_THAT(refusal([](LaunchOptions& o) { o.softhca.loss = 1.5; }), HasSubstr("--loss"));
  EXPECT_THAT(refusal([](LaunchOptions& o) { o.softhca.reorder = -0.1; }), HasSubstr("--reorder"));
  EXPECT_THAT(refusal([](LaunchOptions& o) { o.softhca.mark = 2; }), HasSubstr("--mark"));
  EXPECT_THAT(refusal([](LaunchOptions& o) { o.softhca.rate_gbps = 0; }), HasSubstr("--rate-gbps"));
  EXPECT_THAT(refusal([](LaunchOptions& o) { o.softhca.rate_gbps = NAN; }), HasSubstr("--rate-gbps"));
  EXPECT_THAT(refusal([](LaunchOptions& o) { o.softhca.congestion_control = "swift"; }),
              HasSubstr("--congestion-control swift: use dcqcn or none"));
  EXPECT_THAT(refusal([](LaunchOptions& o) { o.softhca.pcap = ""; }), HasSubstr("--pcap"));
  EXPECT_THAT(refusal([](LaunchOptions& o) { o.softhca.device_memory_bytes = 100; }), HasSubstr("4096"));
  EXPECT_THAT(refusal([](LaunchOptions& o) { o.softhca.device_memory_bytes = 2 << 20; }),
              HasSubstr("1048576"));
  EXPECT_EQ(refusal([](LaunchOptions& o) { o.softhca.device_memory_bytes = 0; }), "accepted");
  EXPECT_THAT(refusal([](LaunchOptions& o) { o.softhca.pcap = "/nonexistent/a.pcap"; }), HasSubstr("--pcap"));
  EXPECT_THAT(refusal([](LaunchOptions& o) { o.softhca.pcap = "/tmp"; }), HasSubstr("folder"));
  for (const char* address : {"255.255.255.255", "224.0.0.1", "0.0.0.0", "::", "ff02::1", "nowhere"}) {
    auto options = shell("exit 0", 1);
    options.softhca.address = address;
    EXPECT_FALSE(check_launch_options(options)) << address;
  }
}

TEST_F(Launcher, softhca_options_become_variables) {
  auto options = shell("", 2);
  options.softhca.hcas = 2;
  options.softhca.loss = 0.01;
  options.softhca.seed = 5;
  options.softhca.rate_gbps = 12.5;
  options.softhca.congestion_control = "none";
  options.softhca.pcap = "out/run.pcap";
  const auto variables = launch_environment(options, 1);
  ASSERT_TRUE(variables);
  EXPECT_THAT(*variables, Contains("GDX_SOFTHCA_HCAS=2"));
  EXPECT_THAT(*variables, Contains("GDX_SOFTHCA_LOSS=0.01"));
  EXPECT_THAT(*variables, Contains("GDX_SOFTHCA_SEED=6"));
  EXPECT_THAT(*variables, Contains("GDX_SOFTHCA_RATE_GBPS=12.5"));
  EXPECT_THAT(*variables, Contains("GDX_SOFTHCA_CONGESTION_CONTROL=none"));
  EXPECT_THAT(*variables, Contains("GDX_SOFTHCA_PCAP=out/run.rank1.pcap"));
}

TEST_F(Launcher, named_library_is_none_the_program_is_not_run_without_it) {
  for (const char* library : {"", "/nonexistent.so", "/", "/etc/passwd"}) {
    setenv(kSofthcaLibraryVariable, library, 1);
    const auto status = launch(shell("exit 0", 1));
    ASSERT_FALSE(status) << library;
    EXPECT_THAT(status.error().message, HasSubstr(kSofthcaLibraryVariable));
  }
}

TEST_F(Launcher, capture_of_any_rank_that_cannot_be_written_is_named_before_the_start) {
  const std::string folder = testing::TempDir() + "capture" + std::to_string(getpid()) + ".rank1.pcap";
  ASSERT_EQ(mkdir(folder.c_str(), 0700), 0);
  auto options = shell("exit 0", 2);
  options.softhca.pcap = testing::TempDir() + "capture" + std::to_string(getpid()) + ".pcap";
  const auto refused = check_launch_options(options);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, AllOf(HasSubstr(folder), HasSubstr("give a file name")));
  options.ranks = 1;
  EXPECT_TRUE(check_launch_options(options));
  EXPECT_EQ(rmdir(folder.c_str()), 0);
}

TEST(PcapPath, rank_goes_before_the_extension) {
  EXPECT_EQ(pcap_path("a.pcap", 0), "a.pcap");
  EXPECT_EQ(pcap_path("a.pcap", 3), "a.rank3.pcap");
  EXPECT_EQ(pcap_path("/tmp/b.c/run", 2), "/tmp/b.c/run.rank2");
}

}  // namespace
}  // namespace gdx
