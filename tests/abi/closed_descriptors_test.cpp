// Programs that close descriptors which they have not opened, or have none where others have three. Each case
// runs in a process of its own.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <functional>

#include "proto/softhca.h"
#include "tests/abi/open_device.h"

namespace gdx::abi_tests {
namespace {

constexpr unsigned kLimitSeconds = 60;

// A socket of the program's own, which sends to itself.
class OwnSocket {
 public:
  OwnSocket() : fd_(socket(AF_INET, SOCK_DGRAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* const name = reinterpret_cast<sockaddr*>(&address);
    if (bind(fd_, name, length) != 0 || getsockname(fd_, name, &length) != 0) std::_Exit(10);
    if (connect(fd_, name, length) != 0) std::_Exit(10);
  }
  void say() const {
    if (send(fd_, "own", 3, 0) != 3) std::_Exit(11);
  }
  [[nodiscard]] bool hears() const {
    std::array<char, 8> heard{};
    return recv(fd_, heard.data(), heard.size(), MSG_DONTWAIT) == 3;
  }

 private:
  int fd_;
};

// The sockets come to the lowest numbers, where the HCA's were if those were closed.
[[noreturn]] void close_all_with(const std::function<void()>& close_all) {
  alarm(kLimitSeconds);
  const auto progress = reinterpret_cast<SofthcaProgress>(dlsym(RTLD_DEFAULT, kSofthcaProgressSymbol));
  ibv_context* const before = open_device().release();
  if (before == nullptr || progress == nullptr) std::_Exit(2);
  close_all();
  std::array<OwnSocket, 20> sockets;
  for (const OwnSocket& socket : sockets) {
    socket.say();
    for (int step = 0; step < 4; ++step) progress();
    if (!socket.hears()) std::_Exit(3);
  }
  std::_Exit(open_device() == nullptr ? 4 : 0);
}

class ClosedDescriptorsDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(ClosedDescriptorsDeathTest, close_range_leaves_own_sockets_alone_and_the_device_opens_again) {
  EXPECT_EXIT(close_all_with([] { close_range(3, ~0u, 0); }), testing::ExitedWithCode(0), "");
}

TEST_F(ClosedDescriptorsDeathTest, closefrom_leaves_own_sockets_alone_and_the_device_opens_again) {
  EXPECT_EXIT(close_all_with([] { closefrom(3); }), testing::ExitedWithCode(0), "");
}

TEST_F(ClosedDescriptorsDeathTest, closed_one_by_one_own_sockets_are_left_alone_and_the_device_opens_again) {
  EXPECT_EXIT(close_all_with([] {
                for (int fd = 3; fd < 8192; ++fd) close(fd);
              }),
              testing::ExitedWithCode(0), "");
}

TEST_F(ClosedDescriptorsDeathTest, closed_by_the_system_call_alone_the_device_opens_again) {
  EXPECT_EXIT(close_all_with([] { syscall(SYS_close_range, 3, ~0u, 0); }), testing::ExitedWithCode(0), "");
}

[[noreturn]] void open_without_standard_files() {
  alarm(kLimitSeconds);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) close(fd);
  const Context context = open_device();
  if (context == nullptr) std::_Exit(2);
  ibv_comp_channel* const channel = ibv_create_comp_channel(context.get());
  if (channel == nullptr) std::_Exit(3);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) >= 0) std::_Exit(4);
  }
  std::_Exit(0);
}

TEST_F(ClosedDescriptorsDeathTest, without_standard_files_no_descriptor_of_the_device_takes_their_place) {
  EXPECT_EXIT(open_without_standard_files(), testing::ExitedWithCode(0), "");
}

// Whoever asks for a thread is told that there is none.
bool refuse_threads() {
  std::array<sock_filter, 5> program = {{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAGAIN),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog filter{.len = program.size(), .filter = program.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

[[noreturn]] void open_without_threads() {
  alarm(kLimitSeconds);
  char folder[] = "/tmp/gdx-no-threads-XXXXXX";
  if (mkdtemp(folder) == nullptr || setenv("TMPDIR", folder, 1) != 0 || !refuse_threads()) std::_Exit(2);
  const bool opened = open_device() != nullptr;
  const bool left = !std::filesystem::is_empty(folder);
  std::filesystem::remove_all(folder);
  std::_Exit(opened ? 3 : left ? 4 : 0);
}

TEST_F(ClosedDescriptorsDeathTest, without_a_thread_there_is_no_device_and_a_line_says_why) {
  EXPECT_EXIT(open_without_threads(), testing::ExitedWithCode(0), "raise the limits on processes");
}

[[noreturn]] void open_as_another_user() {
  alarm(kLimitSeconds);
  constexpr uid_t kNobody = 65534;
  ibv_free_device_list(ibv_get_device_list(nullptr));
  if (setgroups(0, nullptr) != 0 || setresgid(kNobody, kNobody, kNobody) != 0) std::_Exit(2);
  if (setresuid(kNobody, kNobody, kNobody) != 0) std::_Exit(2);
  std::_Exit(open_device() == nullptr ? 3 : 0);
}

TEST_F(ClosedDescriptorsDeathTest, after_a_change_of_user_the_device_is_still_seen) {
  if (geteuid() != 0) GTEST_SKIP() << "SKIPPED: only root may change its user: run the tests as root";
  EXPECT_EXIT(open_as_another_user(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace gdx::abi_tests
