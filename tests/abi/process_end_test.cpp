// Ends of a process with the device. Each case runs in a process of its own, made from the start.
#include <dlfcn.h>
#include <sys/time.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

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

}  // namespace process_end_test
}  // namespace gdx::abi_tests
