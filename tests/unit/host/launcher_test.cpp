#include "host/programs/cli/launcher.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "host/bootstrap/admission.h"
#include "host/bootstrap/world.h"
#include "host/hca/hca.h"
#include "host/programs/cli/rank_place.h"
#include "host/staging/staging_pool.h"
#include "tests/open_files.h"
#include "tests/unit/host/secret_file.h"

namespace gdx {
namespace launcher_test {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

constexpr std::uint64_t kSecondNs = 1'000'000'000;

class Launcher : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv(kSofthcaLibraryVariable, EMPTY_PRELOAD, 1);
    std::signal(SIGINT, SIG_DFL);  // ignored below a shell that started the test in the background
  }
  void TearDown() override { unsetenv(kSofthcaLibraryVariable); }

  static LaunchOptions shell(const std::string& script, std::uint32_t ranks) {
    LaunchOptions options;
    options.command = {"sh", "-c", script};
    options.ranks = ranks;
    options.follow_ns = 100'000'000;
    return options;
  }
  static int status_of(const LaunchOptions& options) {
    const auto status = run_ranks(options);
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

// The port stays the launch's from before the ranks start until the last one has ended: no other user gets
// it, rank 0 listens there, whatever lies between the launcher and it.
TEST_F(Launcher, rank_0_may_listen_at_the_root_which_is_no_other_users) {
  const std::string listen =
      "import os, socket, sys\n"
      "os.setuid(int(os.environ['AS']))\n"
      "s = socket.socket()\n"
      "s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
      "s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(os.environ['SHARES']))\n"
      "host, port = os.environ['GDX_ROOT'].split(':')\n"
      "try:\n"
      "  s.bind((host, int(port)))\n"
      "  s.listen()\n"
      "except OSError as error:\n"
      "  sys.exit(error.errno)\n";
  if (system("python3 -c ''") != 0) GTEST_SKIP() << "SKIPPED: python3 is missing: install it";
  setenv("LISTEN", listen.c_str(), 1);
  const auto listens = [&](bool shares, uid_t user) {
    return status_of(shell(fmt::format("test $GDX_RANK = 1 && exit 0; SHARES={:d} AS={} LD_PRELOAD= "
                                       "python3 -c \"$LISTEN\"",
                                       shares, user),
                           2));
  };
  EXPECT_EQ(listens(true, geteuid()), 0);
  EXPECT_EQ(listens(false, geteuid()), EADDRINUSE);
  // Root can be another user.
  if (geteuid() == 0) {
    EXPECT_EQ(listens(true, 1001), EADDRINUSE);
  }
  unsetenv("LISTEN");
}

// Program of a rank in the test below.
TEST(LateRank, DISABLED_joins) {
  const auto world = World::join(WorldOptions::from_environment().value());
  ASSERT_FALSE(world);
  EXPECT_THAT(world.error().message, HasSubstr("ended with status 0 before this rank came"));
}

// With the secret that the launcher made, with the user's, and without one.
TEST_F(Launcher, rank_0_ends_well_before_it_listens_others_hear_it) {
  setenv("SELF", std::filesystem::read_symlink("/proc/self/exe").c_str(), 1);
  auto options = shell(
      "test $GDX_RANK = 0 && exit 0; exec \"$SELF\" --gtest_filter=LateRank.DISABLED_joins "
      "--gtest_also_run_disabled_tests >/dev/null",
      2);
  options.timeout_ns = 120 * kSecondNs;
  EXPECT_EQ(status_of(options), 0);
  {
    const test::SecretFile file;
    EXPECT_EQ(status_of(options), 0);
  }
  setenv(kInsecureVariable, "1", 1);
  EXPECT_EQ(status_of(options), 0);
  unsetenv(kInsecureVariable);
  unsetenv("SELF");
}

// Nobody sees it in arguments or environment: the variable has the number of a descriptor.
TEST_F(Launcher, ranks_inherit_a_secret_and_a_single_rank_does_not) {
  const std::string is_secret = "test $(wc -c </proc/self/fd/$GDX_SECRET_FD) = 32";
  EXPECT_EQ(status_of(shell(is_secret, 2)), 0);
  EXPECT_EQ(status_of(shell("test $GDX_SECRET_FD -ge 0 && test ${#GDX_SECRET_FD} -lt 5", 2)), 0);
  EXPECT_EQ(status_of(shell("test -z \"$GDX_SECRET_FD\"", 1)), 0);
  setenv(kInsecureVariable, "1", 1);
  EXPECT_EQ(status_of(shell("test -z \"$GDX_SECRET_FD\"", 2)), 0);
  unsetenv(kInsecureVariable);
  const test::SecretFile file;
  EXPECT_EQ(status_of(shell("cmp $GDX_SECRET_FILE /proc/self/fd/$GDX_SECRET_FD", 2)), 0);
  const test::SecretFile open_to_all(32, 0644);
  EXPECT_THAT(run_ranks(shell("exit 0", 2)).error().message, HasSubstr("is open to others"));
}

TEST_F(Launcher, single_rank_gets_no_rank_variables) {
  EXPECT_EQ(status_of(shell("test -z \"$GDX_RANK$GDX_ROOT\"", 1)), 0);
}

TEST_F(Launcher, ranks_block_no_signal_of_the_launcher) {
  auto options = shell("", 2);
  options.command = {"grep", "-q", "^SigBlk:[[:space:]]*0*$",
                     "/proc/self/status"};  // a shell clears its mask
  EXPECT_EQ(status_of(options), 0);
}

TEST_F(Launcher, what_the_user_preloads_comes_before_the_software_hca) {
  const char* const present = std::getenv("LD_PRELOAD");
  const std::string before = present == nullptr ? "" : present;
  setenv("LD_PRELOAD", "libm.so.6", 1);
  EXPECT_EQ(status_of(shell("case $LD_PRELOAD in *libm.so.6:*" EMPTY_PRELOAD ") ;; *) exit 1 ;; esac", 1)),
            0);
  if (present == nullptr) {
    unsetenv("LD_PRELOAD");
  } else {
    setenv("LD_PRELOAD", before.c_str(), 1);
  }
}

TEST_F(Launcher, software_hca_is_preloaded) {
  EXPECT_EQ(status_of(shell("grep -q " EMPTY_PRELOAD " /proc/self/maps", 1)), 0);
}

TEST_F(Launcher, ranks_ignore_sigterm_they_are_killed) {
  EXPECT_EQ(status_of(shell("trap '' TERM; test $GDX_RANK = 1 && exit 7; while :; do sleep 1; done", 2)), 7);
}

// With the time after SIGTERM in its place, the launch would end by its own time.
TEST_F(Launcher, time_after_a_failure_is_not_the_time_after_sigterm) {
  auto options = shell("test $GDX_RANK = 1 && exit 7; exec sleep 600", 2);
  options.grace_ns = 600 * kSecondNs;
  options.timeout_ns = 120 * kSecondNs;
  testing::internal::CaptureStderr();
  EXPECT_EQ(status_of(options), 7);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("0.1 s have passed since that failure"), Not(HasSubstr("still ran"))));
}

TEST_F(Launcher, time_is_up_ranks_are_ended_with_124) {
  auto options = shell("exec sleep 600", 2);
  options.timeout_ns = kSecondNs / 10;
  EXPECT_EQ(status_of(options), kExitTimeout);
}

TEST_F(Launcher, sigint_to_the_launcher_ends_the_ranks) {
  const auto script = "test $GDX_RANK = 0 && kill -INT $PPID; exec sleep 600";
  EXPECT_EQ(status_of(shell(script, 2)), 128 + SIGINT);
  // Further ones do not put off the end of ranks that ignore SIGTERM.
  EXPECT_EQ(status_of(shell("trap '' TERM; for i in $(seq 500); do kill -INT $PPID; sleep 0.2; done; "
                            "kill -KILL $PPID",
                            1)),
            128 + SIGINT);
}

// Status of a launch, and what it tells, without numbers of processes.
std::pair<int, std::string> told_by(const LaunchOptions& options) {
  testing::internal::CaptureStderr();
  const auto status = run_ranks(options);
  const std::string text = testing::internal::GetCapturedStderr();
  return {status.value_or(-1), std::regex_replace(text, std::regex("pid [0-9]+"), "pid N")};
}

// Anything later comes once the launcher has taken the failed rank's status: a process that nobody has
// waited for still exists.
TEST_F(Launcher, status_of_the_first_rank_to_fail_stays) {
  const std::string file = testing::TempDir() + "gdx_failed_rank_" + std::to_string(getpid());
  const std::string first = "gdx: rank 0 (pid N) of sh ended with status 7; 1 other rank has 600 s to end\n";
  for (const auto& [later, told] : std::vector<std::pair<std::string, std::string>>{
           {"kill -TERM $PPID; exec sleep 600", first + "gdx: Terminated: ending rank 1 (pid N)\n"},
           {"exit 9", first},
           {"kill -KILL $$", first},
           {"exit 0", first}}) {
    std::string script = "F=";
    script += file;
    script += "; test $GDX_RANK = 0 && { echo $$ >$F; exit 7; }; ";
    script += "until test -s $F && ! kill -0 $(cat $F) 2>/dev/null; do sleep 0.01; done; ";
    script += later;
    auto options = shell(script, 2);
    options.follow_ns = options.grace_ns = 600 * kSecondNs;
    EXPECT_EQ(told_by(options), std::pair(7, told)) << later;
    std::remove(file.c_str());
  }
}

// The status of a rank alone, or of one that explains itself, is told by that rank; no rank tells that it was
// killed.
TEST_F(Launcher, failure_that_no_rank_tells_is_told_with_what_follows) {
  const std::string ended = "gdx: 0.1 s have passed since that failure: ending rank 0 (pid N)\n";
  const struct {
    const char* end;
    std::uint32_t ranks;
    bool explain;
    int status;
    std::string told;
  } cases[] = {{"exit 3", 1, false, 3, ""},
               {"kill -KILL $$", 1, true, 128 + SIGKILL, "gdx: rank 0 (pid N) of sh was killed: Killed\n"},
               {"exit 3", 2, true, 3, ended},
               {"exit 3", 2, false, 3,
                "gdx: rank 1 (pid N) of sh ended with status 3; 1 other rank has 0.1 s to end\n" + ended},
               {"kill -TERM $$", 2, true, 128 + SIGTERM,
                "gdx: rank 1 (pid N) of sh was killed: Terminated; 1 other rank has 0.1 s to end\n" + ended}};
  for (const auto& one : cases) {
    auto options =
        shell(one.ranks == 1 ? one.end : std::string("test $GDX_RANK = 0 && exec sleep 600; ") + one.end,
              one.ranks);
    options.ranks_explain = one.explain;
    options.grace_ns = 600 * kSecondNs;
    EXPECT_EQ(told_by(options), std::pair(one.status, one.told)) << one.end << " " << one.ranks;
  }
}

// The launcher keeps the pipes of all labelled ranks, and none of its own limit shows in a rank.
TEST_F(Launcher, ranks_with_labels_have_the_users_limit_of_open_files) {
  const test::OpenFileLimit low(40);
  auto options = shell("test $(ulimit -n) = 40", 24);
  options.label = true;
  EXPECT_EQ(status_of(options), 0);
}

TEST_F(Launcher, program_does_not_exist_is_not_found) {
  auto options = shell("", 2);
  options.command = {"/nonexistent/program"};
  const auto status = run_ranks(options);
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
  EXPECT_THAT(refusal([](LaunchOptions& o) { o.ranks = 16385; }), HasSubstr("16384"));
  EXPECT_EQ(refusal([](LaunchOptions& o) { o.ranks = 1024; }), "accepted");
  EXPECT_THAT(refusal([](LaunchOptions& o) { o.softhca.address = "127.0.0.9"; }), HasSubstr("--addr"));
  EXPECT_THAT(refusal([](LaunchOptions& o) { o.softhca.congestion_control = "swift"; }),
              HasSubstr("--congestion-control: 'swift': use dcqcn or none"));
  EXPECT_EQ(refusal([](LaunchOptions& o) { o.softhca.congestion_control = "dcqcn"; }), "accepted");
  EXPECT_THAT(refusal([](LaunchOptions& o) { o.softhca.pcap = ""; }), HasSubstr("--pcap"));
  EXPECT_THAT(refusal([](LaunchOptions& o) { o.softhca.pcap = "/nonexistent/a.pcap"; }), HasSubstr("--pcap"));
  EXPECT_THAT(refusal([](LaunchOptions& o) { o.softhca.pcap = "/tmp"; }), HasSubstr("folder"));
  const auto accepts_address = [](const char* address) {
    auto options = shell("exit 0", 1);
    options.softhca.address = address;
    return check_launch_options(options).has_value();
  };
  for (const char* address :
       {"255.255.255.255", "224.0.0.0", "0.0.0.0", "0.1.2.3", "::", "ff02::1", "nowhere"})
    EXPECT_FALSE(accepts_address(address)) << address;
  for (const char* address : {"1.0.0.0", "223.255.255.255", "::1", "fe80::1"})
    EXPECT_TRUE(accepts_address(address)) << address;
}

// The values at both ends of each range, and those beyond them.
TEST_F(Launcher, ranges_of_softhca_options_hold_at_their_ends) {
  using Set = void (*)(SofthcaOptions&, double);
  const struct {
    const char* option;
    Set set;
    std::vector<double> good, bad;
    const char* wanted;
  } ranges[] = {
      {"--hcas",
       [](SofthcaOptions& o, double v) { o.hcas = static_cast<std::uint32_t>(v); },
       {1, 16},
       {0, 17},
       "use a whole number from 1 to 16"},
      {"--mtu",
       [](SofthcaOptions& o, double v) { o.mtu_bytes = static_cast<std::uint32_t>(v); },
       {256, 512, 1024, 2048, 4096},
       {0, 128, 255, 1500, 4095, 8192},
       "use 256, 512, 1024, 2048 or 4096"},
      {"--loss",
       [](SofthcaOptions& o, double v) { o.loss = v; },
       {0, 1},
       {-0.001, 1.001, NAN},
       "use a probability"},
      {"--corrupt",
       [](SofthcaOptions& o, double v) { o.corrupt = v; },
       {0, 1},
       {-0.001, 1.001},
       "use a probability"},
      {"--duplicate",
       [](SofthcaOptions& o, double v) { o.duplicate = v; },
       {0, 1},
       {-0.001, 1.001},
       "use a prob"},
      {"--reorder",
       [](SofthcaOptions& o, double v) { o.reorder = v; },
       {0, 1},
       {-0.001, 1.001},
       "use a probability"},
      {"--mark", [](SofthcaOptions& o, double v) { o.mark = v; }, {0, 1}, {-0.001, 1.001}, "from 0 to 1"},
      {"--death", [](SofthcaOptions& o, double v) { o.death = v; }, {0, 1}, {-0.001, 1.001}, "from 0 to 1"},
      {"--rate-gbps",
       [](SofthcaOptions& o, double v) { o.rate_gbps = v; },
       {0.001, 10'000},
       {0, 0.0009, 10'001, NAN},
       "use 0.001 to 10000"},
      {"--device-memory-bytes",
       [](SofthcaOptions& o, double v) { o.device_memory_bytes = static_cast<std::uint64_t>(v); },
       {0, 4096, 1 << 20},
       {100, 4095, 4097, (1 << 20) + 4096},
       "use a multiple of 4096 from 0 to 1048576"},
  };
  for (const auto& [option, set, good, bad, wanted] : ranges) {
    auto options = shell("exit 0", 2);
    for (const double value : good) {
      set(options.softhca, value);
      EXPECT_TRUE(check_launch_options(options)) << option << " " << value;
    }
    for (const double value : bad) {
      set(options.softhca, value);
      const auto checked = check_launch_options(options);
      ASSERT_FALSE(checked) << option << " " << value;
      EXPECT_THAT(checked.error().message, AllOf(StartsWith(std::string(option) + ": '"), HasSubstr(wanted)));
    }
  }
  for (const char* wire : {"udp", "shm", "auto", "rdma"}) {
    auto options = shell("exit 0", 2);
    options.softhca.wire = wire;
    EXPECT_EQ(check_launch_options(options).has_value(), wire != std::string("rdma")) << wire;
  }
}

// Names that begin as those that the launcher sets, or as which these begin, beside those themselves.
TEST_F(Launcher, variables_of_the_launcher_replace_those_of_their_own_names_alone) {
  const char* const names[] = {"GDX_RANK",  "GDX_RAN",   "GDX_RANKS", "GDX_WORLD_SIZ", "GDX_ROO",
                               "GDX_ROOT_", "LD_PRELOA", "GDX_DAEMO", "GDX_LAST"};
  for (const char* name : names) setenv(name, "mine", 1);
  EXPECT_EQ(status_of(shell(
                "test \"$GDX_RAN$GDX_RANKS$GDX_WORLD_SIZ$GDX_ROO$GDX_ROOT_$LD_PRELOA$GDX_DAEMO$GDX_LAST\" = "
                "minemineminemineminemineminemine && "
                "test \"$(tr '\\0' '\\n' </proc/$$/environ | grep '^GDX_RANK=')\" = GDX_RANK=$GDX_RANK && "
                "test $GDX_RANK -lt 2",
                2)),
            0);
  for (const char* name : names) unsetenv(name);
}

// Puts `file` in the place of a descriptor while `body` runs, and returns the status of that.
template <typename Body>
int with_output(int descriptor, const char* file, Body body) {
  std::fflush(nullptr);
  const int kept = ::dup(descriptor);
  const int opened = ::open(file, O_WRONLY | O_CLOEXEC);
  EXPECT_GE(opened, 0);
  ::dup2(opened, descriptor);
  ::close(opened);
  const int status = body();
  std::fflush(nullptr);
  ::dup2(kept, descriptor);
  ::close(kept);
  return status;
}

TEST_F(Launcher, full_stdout_is_a_loss_and_full_stderr_is_none) {
  auto options = shell("echo out; echo err >&2; echo more", 2);
  options.label = true;
  testing::internal::CaptureStdout();
  const auto run = [&options] { return status_of(options); };
  const int with_full_stderr = with_output(STDERR_FILENO, "/dev/full", run);
  std::istringstream lines(testing::internal::GetCapturedStdout());
  std::vector<std::string> all;
  for (std::string line; std::getline(lines, line);) all.push_back(line);
  EXPECT_EQ(with_full_stderr, 0);
  EXPECT_THAT(all, UnorderedElementsAre("0: out", "0: more", "1: out", "1: more"));
  // One rank that writes once: who writes after the loss meets a closed pipe.
  options.ranks = 1;
  options.command.back() = "echo x";
  testing::internal::CaptureStderr();
  const int with_full_stdout = with_output(STDOUT_FILENO, "/dev/full", run);
  EXPECT_THAT(
      testing::internal::GetCapturedStderr(),
      HasSubstr("gdx: what ranks printed was lost: No space left on device; give it another place than this "
                "stdout\n"));
  EXPECT_EQ(with_full_stdout, 1);
  options.command.back() = "echo x; exit 6";
  EXPECT_EQ(with_output(STDOUT_FILENO, "/dev/full", run), 6);
}

TEST_F(Launcher, softhca_options_become_variables) {
  auto options = shell("", 2);
  options.softhca = {.hcas = 2,
                     .address = "127.0.0.9",
                     .wire = "shm",
                     .mtu_bytes = 2048,
                     .loss = 0.01,
                     .corrupt = 0.02,
                     .duplicate = 0.03,
                     .reorder = 0.04,
                     .mark = 0.05,
                     .death = 0.06,
                     .rate_gbps = 12.5,
                     .congestion_control = "none",
                     .seed = 5,
                     .pcap = "out/run.pcap",
                     .device_memory_bytes = 8192};
  auto variables = launch_environment(options, 1);
  ASSERT_TRUE(variables);
  std::erase_if(*variables, [](const std::string& one) { return !one.starts_with("GDX_SOFTHCA_"); });
  EXPECT_THAT(*variables, UnorderedElementsAre(
                              "GDX_SOFTHCA_HCAS=2", "GDX_SOFTHCA_ADDR=127.0.0.9", "GDX_SOFTHCA_WIRE=shm",
                              "GDX_SOFTHCA_MTU=2048", "GDX_SOFTHCA_LOSS=0.01", "GDX_SOFTHCA_CORRUPT=0.02",
                              "GDX_SOFTHCA_DUPLICATE=0.03", "GDX_SOFTHCA_REORDER=0.04",
                              "GDX_SOFTHCA_MARK=0.05", "GDX_SOFTHCA_DEATH=0.06", "GDX_SOFTHCA_RATE_GBPS=12.5",
                              "GDX_SOFTHCA_CONGESTION_CONTROL=none", "GDX_SOFTHCA_SEED=6",
                              "GDX_SOFTHCA_PCAP=out/run.rank1.pcap", "GDX_SOFTHCA_DEVICE_MEMORY_BYTES=8192"));
}

// mpirun starts a `gdx run` for each rank, and each must have a file, a seed and a place of its own.
TEST_F(Launcher, single_rank_of_another_launcher_has_that_ones_number) {
  setenv("PMI_RANK", "3", 1);
  setenv("PMI_SIZE", "4", 1);
  setenv("PMI_FD", "900", 1);
  auto options = shell("exit 0", 1);
  options.softhca.seed = 5;
  options.softhca.pcap = "run.pcap";
  const auto alone = launch_environment(options, 0);
  options.ranks = 2;
  const auto of_two = launch_environment(options, 1);
  for (const char* const name : {"PMI_RANK", "PMI_SIZE", "PMI_FD"}) unsetenv(name);
  ASSERT_TRUE(alone && of_two);
  EXPECT_THAT(*alone, IsSupersetOf({"GDX_SOFTHCA_SEED=8", "GDX_SOFTHCA_PCAP=run.rank3.pcap"}));
  EXPECT_THAT(*of_two, IsSupersetOf({"GDX_SOFTHCA_SEED=6", "GDX_SOFTHCA_PCAP=run.rank1.pcap"}));
}

TEST_F(Launcher, hardware_gets_no_software_hca) {
  auto options = shell("test -z \"$LD_PRELOAD\"", 1);
  options.hardware = true;
  setenv(kSofthcaLibraryVariable, "/nonexistent.so", 1);
  const auto variables = launch_environment(options, 0);
  ASSERT_TRUE(variables) << variables.error().message;
  EXPECT_THAT(*variables, Each(Not(StartsWith("LD_PRELOAD"))));
  EXPECT_EQ(status_of(options), 0);
  options.softhca.loss = 0.01;
  const auto refused = check_launch_options(options);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("--hardware: options of the software HCA"));
}

TEST_F(Launcher, ranks_of_a_gdxd_that_is_asked_for_have_no_software_hca) {
  auto options = shell("", 2);
  EXPECT_THAT(launch_environment(options, 0).value(), Contains("GDX_DAEMON=off"));
  setenv("GDX_DAEMON", "unix:/nonexistent", 1);
  EXPECT_THAT(launch_environment(options, 1).value(), IsEmpty());
  EXPECT_TRUE(check_launch_options(options));
  options.softhca.seed = 1;
  EXPECT_EQ(check_launch_options(options).error().message,
            "options of the software HCA do nothing to gdxd's: give them to gdxd, or set GDX_DAEMON=off");
  unsetenv("GDX_DAEMON");
  // Nor is a library preloaded whose name the dynamic linker would take apart, or that is not there.
  const std::string named = testing::TempDir() + "a b" + std::to_string(getpid());
  ASSERT_EQ(symlink(EMPTY_PRELOAD, named.c_str()), 0);
  setenv(kSofthcaLibraryVariable, named.c_str(), 1);
  EXPECT_EQ(launch_environment(options, 0).error().message,
            "the path " + named + " cannot be preloaded: move gdx to one without spaces and colons");
  std::remove(named.c_str());
  unsetenv(kSofthcaLibraryVariable);
}

TEST_F(Launcher, named_library_is_none_the_program_is_not_run_without_it) {
  for (const char* library : {"", "/nonexistent.so", "/", "/etc/passwd"}) {
    setenv(kSofthcaLibraryVariable, library, 1);
    const auto status = run_ranks(shell("exit 0", 1));
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

}  // namespace launcher_test
}  // namespace gdx
