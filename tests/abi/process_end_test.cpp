// Ends of a process with the device. Each case runs in a process of its own, made from the start.
#include <dlfcn.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "proto/softhca.h"
#include "tests/abi/open_device.h"

namespace gdx::abi_tests {
namespace process_end_test {

// A signal handler that ends the process, while the thread that it interrupts drives the device.
[[noreturn]] void exit_from_a_handler(suseconds_t after_us) {
  alarm(kHangSeconds);
  const Context context = open_device();
  const auto progress = reinterpret_cast<SofthcaProgress>(dlsym(RTLD_DEFAULT, kSofthcaProgressSymbol));
  if (context == nullptr || progress == nullptr) std::_Exit(2);
  std::signal(SIGVTALRM, [](int) { std::exit(0); });
  const itimerval once{{0, 0}, {0, after_us}};
  setitimer(ITIMER_VIRTUAL, &once, nullptr);
  for (;;) progress();
}

TEST(ProcessEndDeathTest, exit_in_a_handler_amid_progress_ends_the_process) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (suseconds_t after_us = 10'000; after_us < 18'000; after_us += 1'000) {
    EXPECT_EXIT(exit_from_a_handler(after_us), testing::ExitedWithCode(0), "");
  }
}

TEST(ProcessEndDeathTest, forked_after_listing_alone_the_child_opens_an_hca_of_its_own) {
  GTEST_FLAG_SET(death_test_style, "fast");
  alarm(kHangSeconds);
  ibv_device** const devices = ibv_get_device_list(nullptr);
  ASSERT_NE(devices, nullptr);
  EXPECT_EXIT(std::_Exit(open_device() == nullptr ? 1 : 0), testing::ExitedWithCode(0), "");
  EXPECT_NE(open_device(), nullptr);
  EXPECT_EXIT(std::_Exit(open_device() == nullptr ? 1 : 0), testing::ExitedWithCode(0), "");
  ibv_free_device_list(devices);
  alarm(0);
}

// Opens a device and asks it for many things, which the device copies in and out. Returns 0, or the first
// step that failed.
int use_a_device() {
  const Context context = open_device();
  if (context == nullptr) return 1;
  ibv_gid first{};
  if (ibv_query_gid(context.get(), 1, 1, &first) != 0) return 2;
  for (int i = 0; i < 300; ++i) {
    ibv_cq* const cq = ibv_create_cq(context.get(), 1 + i, nullptr, nullptr, 0);
    if (cq == nullptr) return 3;
    if (ibv_destroy_cq(cq) != 0) return 4;
    ibv_gid_entry entry{};
    if (ibv_query_gid_ex(context.get(), 1, 1, &entry, 0) != 0) return 5;
    if (std::memcmp(&entry.gid, &first, sizeof first) != 0 || entry.gid_type != IBV_GID_TYPE_ROCE_V2)
      return 6;
  }
  return 0;
}

bool ended_well(pid_t child) {
  int status = -1;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(ProcessEnd, children_forked_at_once_do_not_meet_in_what_fork_has_copied) {
  alarm(kHangSeconds);
  ASSERT_EQ(use_a_device(), 0);
  for (int round = 0; round < 10; ++round) {
    std::array<pid_t, 3> children{};
    for (pid_t& child : children) {
      child = fork();
      if (child == 0) std::_Exit(use_a_device());
    }
    EXPECT_EQ(use_a_device(), 0);
    for (const pid_t child : children) EXPECT_TRUE(ended_well(child)) << round;
  }
  alarm(0);
}

}  // namespace process_end_test
}  // namespace gdx::abi_tests
