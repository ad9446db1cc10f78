// Without memory, functions through which a program uses the device fail as libc's would: no exception passes
// through the C frames of their callers. Each case runs in a process of its own.
#include <dirent.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <linux/netlink.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <functional>
#include <new>

#include "tests/abi/open_device.h"

namespace {
// Number of allocations of this thread that succeed before one fails; negative: all do.
thread_local long until_failure = -1;

void* allocate(std::size_t bytes) {
  if (until_failure == 0) {
    until_failure = -1;
    throw std::bad_alloc();
  }
  if (until_failure > 0) --until_failure;
  void* const made = std::malloc(bytes == 0 ? 1 : bytes);
  if (made == nullptr) throw std::bad_alloc();
  return made;
}
}  // namespace

// The library's, too: the dynamic linker finds these first.
void* operator new(std::size_t bytes) { return allocate(bytes); }
void* operator new[](std::size_t bytes) { return allocate(bytes); }
void operator delete(void* made) noexcept { std::free(made); }
void operator delete[](void* made) noexcept { std::free(made); }
void operator delete(void* made, std::size_t) noexcept { std::free(made); }
void operator delete[](void* made, std::size_t) noexcept { std::free(made); }

namespace gdx::abi_tests {
namespace {

constexpr char kCounter[] = "/sys/class/infiniband/gdx0/ports/1/hw_counters/softhca_wqes";

// One call of a program, and whether it succeeded.
struct Call {
  const char* name;
  std::function<bool()> succeeds;
};

bool closes(int fd) { return fd >= 0 && close(fd) == 0; }

const std::vector<Call>& calls() {
  static const std::vector<Call> all = {
      {"open", [] { return closes(open("/dev/infiniband/uverbs0", O_RDWR | O_CLOEXEC)); }},
      {"open connections", [] { return closes(open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC)); }},
      {"open a counter", [] { return closes(open(kCounter, O_RDONLY)); }},
      {"access", [] { return access(kCounter, R_OK) == 0; }},
      {"stat",
       [] {
         struct stat status {};
         return stat("/sys/class/infiniband/gdx0", &status) == 0;
       }},
      {"opendir",
       [] {
         DIR* const folder = opendir("/sys/class/infiniband");
         return folder != nullptr && closedir(folder) == 0;
       }},
      {"socket", [] { return closes(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_RDMA)); }},
      {"getifaddrs",
       [] {
         ifaddrs* list = nullptr;
         if (getifaddrs(&list) != 0) return false;
         freeifaddrs(list);
         return true;
       }},
  };
  return all;
}

// Every allocation of the call fails once, the device being there.
[[noreturn]] void fail_each_allocation_of(const Call& call) {
  constexpr long kMost = 100'000;
  alarm(kHangSeconds);
  const Context device = open_device();
  if (device == nullptr || !call.succeeds()) std::_Exit(2);
  for (long allocation = 0; allocation < kMost; ++allocation) {
    errno = 0;
    until_failure = allocation;
    const bool succeeded = call.succeeds();
    const int error = errno;
    const bool all_were_had = until_failure >= 0;
    until_failure = -1;
    if (all_were_had) std::_Exit(succeeded ? 0 : 3);
    if (!succeeded && error != ENOMEM) std::_Exit(4);
  }
  std::_Exit(5);
}

// One allocation fails while the device is made. It is there or not.
[[noreturn]] void fail_while_it_is_made(long allocation) {
  alarm(kHangSeconds);
  until_failure = allocation;
  static_cast<void>(access(kCounter, R_OK));
  const bool all_were_had = until_failure >= 0;
  until_failure = -1;
  static_cast<void>(open_device());
  std::_Exit(all_were_had ? 1 : 0);
}

TEST(NoMemoryDeathTest, calls_fail_with_enomem) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const Call& call : calls()) {
    EXPECT_EXIT(fail_each_allocation_of(call), testing::ExitedWithCode(0), "") << call.name;
  }
}

TEST(NoMemoryDeathTest, device_that_cannot_be_made_is_none) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const long allocation : {0, 1, 2, 5, 10, 30, 100, 300}) {
    EXPECT_EXIT(fail_while_it_is_made(allocation), testing::ExitedWithCode(0), "") << allocation;
  }
}

}  // namespace
}  // namespace gdx::abi_tests
