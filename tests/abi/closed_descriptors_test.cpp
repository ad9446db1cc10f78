// Programs that close descriptors which they have not opened, or have none where others have three. Each case
// runs in a process of its own.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/close_range.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "proto/softhca.h"
#include "tests/abi/loopback.h"
#include "tests/refused_calls.h"

namespace gdx::abi_tests {
namespace closed_descriptors_test {

bool is_open(int number) { return fcntl(number, F_GETFD) >= 0; }

// Gives a file of the program's own the number of one that is closed.
int placed_at(int number, int made) {
  if (number < 0) return made;
  if (dup2(made, number) != number) std::_Exit(12);
  close(made);
  return number;
}

// Returns the numbers that the HCA keeps, far above the program's.
std::vector<int> numbers_of_the_hca() {
  constexpr int kAbovePrograms = 100;
  std::vector<int> numbers;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int number = std::stoi(entry.path().filename());
    if (number > kAbovePrograms) numbers.push_back(number);
  }
  if (numbers.empty()) std::_Exit(9);
  return numbers;
}

// A socket of the program's own, which sends to itself.
class OwnSocket {
 public:
  explicit OwnSocket(int number) : fd_(placed_at(number, socket(AF_INET, SOCK_DGRAM, 0))) {
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
  [[nodiscard]] bool receives() const {
    std::array<char, 8> heard{};
    return recv(fd_, heard.data(), heard.size(), MSG_DONTWAIT) == 3;
  }

 private:
  int fd_;
};

// The sockets come to the lowest numbers, and to the HCA's where those were closed.
[[noreturn]] void close_all_with(const std::function<void()>& close_all) {
  constexpr int kRounds = 10;
  alarm(kHangSeconds);
  const auto progress = reinterpret_cast<SofthcaProgress>(dlsym(RTLD_DEFAULT, kSofthcaProgressSymbol));
  ibv_context* const before = open_device().release();
  if (before == nullptr || progress == nullptr) std::_Exit(2);
  const std::vector<int> numbers = numbers_of_the_hca();
  close_all();
  std::vector<OwnSocket> sockets;
  for (int low = 0; low < 4; ++low) sockets.emplace_back(-1);
  for (const int number : numbers) {
    if (!is_open(number)) sockets.emplace_back(number);
  }
  for (int round = 0; round < kRounds; ++round) {
    for (const OwnSocket& socket : sockets) {
      socket.say();
      for (int step = 0; step < 4; ++step) progress();
      if (!socket.receives()) std::_Exit(3);
    }
  }
  std::_Exit(open_device() == nullptr ? 4 : 0);
}

// Steps of a program on the device, from its opening to the event of a completion.
class Whole : public Loopback {
 public:
  [[nodiscard]] bool works() {
    SetUp();
    channel_ = ibv_create_comp_channel(context_.get());
    if (channel_ == nullptr) return false;
    cq_ = Cq(ibv_create_cq(context_.get(), 16, nullptr, channel_, 0));
    qp_ = make_qp(cq_.get());
    if (!cq_ || !qp_) return false;
    connect(qp_.get(), qp_->qp_num);
    return sends() && !HasFailure();
  }
  [[nodiscard]] ibv_context* context() const { return context_.get(); }

 private:
  void TestBody() override {}
  [[nodiscard]] bool sends() {
    ibv_cq* ready = nullptr;
    void* given = nullptr;
    if (ibv_req_notify_cq(cq_.get(), 0) != 0 || post_receive(qp_.get(), piece(0, 64)) != 0 ||
        post_send(qp_.get(), piece(4096, 64)) != 0 || !readable(channel_->fd) ||
        ibv_get_cq_event(channel_, &ready, &given) != 0)
      return false;
    ibv_ack_cq_events(ready, 1);
    const auto completion = await(cq_.get());
    return completion && completion->status == IBV_WC_SUCCESS;
  }

  ibv_comp_channel* channel_ = nullptr;
  Cq cq_;
  Qp qp_;
};

// The second opening of the device is given the numbers that the first one had.
[[noreturn]] void open_again_at_the_same_numbers() {
  alarm(kHangSeconds);
  if (!(new Whole)->works()) std::_Exit(2);
  const std::vector<int> before = numbers_of_the_hca();
  syscall(SYS_close_range, 3, ~0u, 0);
  if (!(new Whole)->works()) std::_Exit(3);
  const std::vector<int> after = numbers_of_the_hca();
  const bool same = std::ranges::all_of(
      after, [&](int number) { return std::ranges::find(before, number) != before.end(); });
  if (!same) std::_Exit(4);
  std::_Exit((new Whole)->works() ? 0 : 5);
}

// The program keeps its context, and has short files of its own where the HCA's were.
[[noreturn]] void go_on_without_the_hcas_descriptors() {
  constexpr off_t kBytes = 4096;
  alarm(kHangSeconds);
  auto* const before = new Whole;
  if (!before->works()) std::_Exit(2);
  const std::vector<int> numbers = numbers_of_the_hca();
  for (const int number : numbers) syscall(SYS_close, number);
  for (const int number : numbers) {
    if (ftruncate(placed_at(number, memfd_create("own", MFD_CLOEXEC)), kBytes) != 0) std::_Exit(10);
  }
  if (mlx5dv_devx_alloc_uar(before->context(), 0) != nullptr) std::_Exit(3);
  for (const int number : numbers) {
    std::array<char, kBytes> bytes{};
    if (pread(number, bytes.data(), bytes.size(), 0) != kBytes) std::_Exit(4);
    if (std::ranges::any_of(bytes, [](char byte) { return byte != 0; })) std::_Exit(5);
  }
  std::_Exit((new Whole)->works() ? 0 : 6);
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

TEST_F(ClosedDescriptorsDeathTest,
       closed_by_the_system_call_own_sockets_are_left_alone_and_the_device_opens_again) {
  EXPECT_EXIT(close_all_with([] { syscall(SYS_close_range, 3, ~0u, 0); }), testing::ExitedWithCode(0), "");
}

TEST_F(ClosedDescriptorsDeathTest,
       closed_by_the_system_call_and_opened_at_the_same_numbers_the_device_works) {
  EXPECT_EXIT(open_again_at_the_same_numbers(), testing::ExitedWithCode(0), "");
}

TEST_F(ClosedDescriptorsDeathTest,
       closed_by_the_system_call_the_programs_files_at_their_numbers_stay_as_they_are) {
  EXPECT_EXIT(go_on_without_the_hcas_descriptors(), testing::ExitedWithCode(0), "");
}

// Output without an open standard output must not reach memory of the device.
[[nodiscard]] bool keeps_its_memory_while_it_prints(ibv_context* context) {
  constexpr std::size_t kBytes = 64 << 10;
  constexpr int kLines = 300'000;
  ibv_alloc_dm_attr attributes{};
  attributes.length = kBytes;
  ibv_dm* const memory = ibv_alloc_dm(context, &attributes);
  const std::vector<char> written(kBytes, 'w');
  std::vector<char> read(kBytes);
  if (memory == nullptr || ibv_memcpy_to_dm(memory, 0, written.data(), kBytes) != 0) return false;
  for (int line = 0; line < kLines; ++line) std::printf("line %d of what the program has to say\n", line);
  std::fflush(stdout);
  return ibv_memcpy_from_dm(read.data(), memory, 0, kBytes) == 0 && read == written;
}

[[noreturn]] void open_without_standard_files() {
  alarm(kHangSeconds);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) close(fd);
  const Context context = open_device();
  if (context == nullptr) std::_Exit(2);
  if (!keeps_its_memory_while_it_prints(context.get())) std::_Exit(5);
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

// The error is the program's own.
[[noreturn]] void call_for_the_first_time_behind_an_error() {
  std::array<char, 1> byte{};
  iovec none{byte.data(), 0};
  dlsym(RTLD_DEFAULT, "gdx_no_such_function");
  const int copy = dup(STDERR_FILENO);
  if (copy < 0 || dup3(STDERR_FILENO, copy, O_CLOEXEC) != copy || writev(copy, &none, 1) != 0) std::_Exit(2);
  lgetxattr("/", "user.none", byte.data(), byte.size());
  std::_Exit(dlerror() == nullptr ? 3 : 0);
}

TEST_F(ClosedDescriptorsDeathTest, first_calls_leave_the_programs_error_of_dlsym_to_it) {
  EXPECT_EXIT(call_for_the_first_time_behind_an_error(), testing::ExitedWithCode(0), "");
}

[[noreturn]] void open_without_threads() {
  alarm(kHangSeconds);
  char folder[] = "/tmp/gdx-no-threads-XXXXXX";
  if (mkdtemp(folder) == nullptr || setenv("TMPDIR", folder, 1) != 0 || !test::refuse_threads())
    std::_Exit(2);
  const bool opened = open_device() != nullptr;
  const bool left = !std::filesystem::is_empty(folder);
  std::filesystem::remove_all(folder);
  std::_Exit(opened ? 3 : left ? 4 : 0);
}

TEST_F(ClosedDescriptorsDeathTest, without_a_thread_there_is_no_device_and_a_line_says_why) {
  EXPECT_EXIT(open_without_threads(), testing::ExitedWithCode(0), "raise the limits on processes");
}

// Above all numbers that the HCA takes.
constexpr int kHighestOfOurs = 4200;

// As where the kernel has no close_range(2). To close a number that nobody opened is the end.
[[noreturn]] void close_from_without_close_range() {
  constexpr int kFewer = kHighestOfOurs;
  alarm(kHangSeconds);
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0 || open_device() == nullptr) std::_Exit(2);
  const int own = fcntl(STDERR_FILENO, F_DUPFD, 50);
  std::array<sock_filter, 6> program = {{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_close, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)),
      BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, kFewer, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog filter{.len = program.size(), .filter = program.data()};
  if (!test::refuse_calls({SYS_close_range}, SECCOMP_RET_ERRNO | ENOSYS) ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
    std::_Exit(3);
  closefrom(3);
  if (is_open(own)) std::_Exit(4);
  std::_Exit(open_device() == nullptr ? 5 : 0);
}

TEST_F(ClosedDescriptorsDeathTest, closefrom_without_close_range_closes_what_is_open_and_no_more) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_max < 2 * kHighestOfOurs) {
    GTEST_SKIP() << "SKIPPED: the hard limit on open files is below 8400: raise it (ulimit -Hn)";
  }
  EXPECT_EXIT(close_from_without_close_range(), testing::ExitedWithCode(0), "");
}

void check(bool passed, int step) {
  if (!passed) std::_Exit(step);
}

// Puts files of the program's own beside the HCA's numbers, and closes them by ranges.
[[noreturn]] void close_ranges_around_the_hcas_numbers() {
  alarm(kHangSeconds);
  syscall(SYS_close_range, 3, ~0u, 0);  // inherited ones
  const Context context = open_device();
  check(context != nullptr, 2);
  const std::vector<int> kept = numbers_of_the_hca();
  const int first = *std::ranges::min_element(kept);
  const int last = *std::ranges::max_element(kept);
  const auto closes = [&](int from, int to, int flags) {
    for (const int own : {first - 1, last + 1}) check(dup2(STDERR_FILENO, own) == own, 3);
    errno = 0;
    return close_range(static_cast<unsigned>(from), static_cast<unsigned>(to), flags) == 0 ? 0 : errno;
  };
  check(closes(first - 1, first, 0) == 0 && !is_open(first - 1) && is_open(last + 1), 4);
  check(closes(last, last + 1, 0) == 0 && is_open(first - 1) && !is_open(last + 1), 5);
  check(closes(first - 1, last + 1, 0) == 0 && !is_open(first - 1) && !is_open(last + 1), 6);
  check(closes(first, last, 0) == 0 && is_open(first - 1) && is_open(last + 1), 7);
  check(closes(first - 1, last + 1, CLOSE_RANGE_CLOEXEC) == 0, 8);
  for (const int own : {first - 1, last + 1}) check(fcntl(own, F_GETFD) == FD_CLOEXEC, 9);
  check(closes(last + 1, first - 1, 0) == EINVAL, 10);
  check(closes(first - 1, last + 1, 1 << 9) == EINVAL && is_open(first - 1) && is_open(last + 1), 11);
  for (const int number : kept) check(is_open(number) && close(number) == -1 && errno == EBADF, 12);
  ibv_port_attr port{};
  check(ibv_query_port(context.get(), 1, &port) == 0 && open_device() != nullptr, 13);
  std::_Exit(0);
}

TEST_F(ClosedDescriptorsDeathTest, ranges_close_the_neighbours_of_the_hcas_numbers_alone) {
  EXPECT_EXIT(close_ranges_around_the_hcas_numbers(), testing::ExitedWithCode(0), "");
}

// Looks for the fewest open files with which the device is there.
[[noreturn]] void open_with_few_descriptors(const char* hcas) {
  alarm(kHangSeconds);
  setenv("GDX_SOFTHCA_HCAS", hcas, 1);
  const auto suffices = [](rlim_t limit) {
    const pid_t child = fork();
    if (child == 0) {
      const rlimit few{limit, limit};
      if (setrlimit(RLIMIT_NOFILE, &few) != 0) std::_Exit(2);
      std::_Exit(access("/sys/class/infiniband/gdx0", F_OK) == 0 ? 0 : 1);
    }
    int status = -1;
    check(waitpid(child, &status, 0) == child && WIFEXITED(status), 2);
    return WEXITSTATUS(status) == 0;
  };
  rlim_t few = 8;
  rlim_t enough = 264;
  check(!suffices(few) && suffices(enough), 3);
  while (enough - few > 1) {
    const rlim_t between = (few + enough) / 2;
    (suffices(between) ? enough : few) = between;
  }
  std::_Exit(0);
}

TEST_F(ClosedDescriptorsDeathTest, descriptors_that_lack_are_told_to_the_last) {
  for (const auto& [hcas, told] : {std::pair("1", "12 more open files are needed and 11 may be opened"),
                                   std::pair("16", "42 more open files are needed and 41 may be opened")}) {
    EXPECT_EXIT(open_with_few_descriptors(hcas), testing::ExitedWithCode(0),
                std::string(told) + " .Too many open files.: raise the limit .ulimit -n. by 1\n");
  }
}

[[noreturn]] void open_as_another_user(mode_t mask) {
  alarm(kHangSeconds);
  constexpr uid_t kNobody = 65534;
  umask(mask);
  ibv_free_device_list(ibv_get_device_list(nullptr));
  if (setgroups(0, nullptr) != 0 || setresgid(kNobody, kNobody, kNobody) != 0) std::_Exit(2);
  if (setresuid(kNobody, kNobody, kNobody) != 0) std::_Exit(2);
  std::_Exit(open_device() == nullptr ? 3 : 0);
}

TEST_F(ClosedDescriptorsDeathTest, after_a_change_of_user_the_device_is_still_seen) {
  if (geteuid() != 0) GTEST_SKIP() << "SKIPPED: only root may change its user: run the tests as root";
  for (const mode_t mask : {022u, 077u}) {
    EXPECT_EXIT(open_as_another_user(mask), testing::ExitedWithCode(0), "") << mask;
  }
}

}  // namespace closed_descriptors_test
}  // namespace gdx::abi_tests
