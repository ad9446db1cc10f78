// Threads of a program that are cancelled, or fork, while the software HCA is at work.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/netlink.h>
#include <pthread.h>
#include <rdma/rdma_user_cm.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <semaphore>
#include <thread>
#include <vector>

#include "tests/abi/open_device.h"

extern "C" int gdx_softhca_progress();  // proto/softhca.h says what they do
extern "C" int gdx_softhca_raise(int event);

namespace gdx::abi_tests {
namespace threads_test {

constexpr std::uint16_t kTcp = 0x0106;  // RDMA_PS_TCP of librdmacm

struct Cancelled {
  std::binary_semaphore may_begin{0};
  ibv_context* context = nullptr;
  bool went_through = false;
};

// Everything here sends, receives, opens or logs somewhere below, which are points of cancellation.
void* use_the_hca(void* given) {
  auto& state = *static_cast<Cancelled*>(given);
  state.may_begin.acquire();
  constexpr int kSteps = 1000;
  for (int i = 0; i < kSteps; ++i) gdx_softhca_progress();
  if (ibv_pd* const pd = ibv_alloc_pd(state.context); pd != nullptr) ibv_dealloc_pd(pd);
  state.went_through = true;
  pthread_testcancel();
  return nullptr;
}

TEST(Threads, cancelled_inside_the_hca_go_on_to_a_cancellation_point_of_their_own) {
  const Context context = open_device();
  ASSERT_NE(context, nullptr);
  Cancelled state;
  state.context = context.get();
  pthread_t thread{};
  ASSERT_EQ(pthread_create(&thread, nullptr, use_the_hca, &state), 0);
  ASSERT_EQ(pthread_cancel(thread), 0);
  state.may_begin.release();
  void* result = nullptr;
  ASSERT_EQ(pthread_join(thread, &result), 0);
  EXPECT_EQ(result, PTHREAD_CANCELED);
  EXPECT_TRUE(state.went_through);
}

void make_and_destroy_an_id(int fd) {
  rdma_ucm_create_id_resp made{};
  struct {
    rdma_ucm_cmd_hdr header;
    rdma_ucm_create_id body;
  } create{{RDMA_USER_CM_CMD_CREATE_ID, sizeof create.body, sizeof made},
           {.uid = 1,
            .response = reinterpret_cast<std::uintptr_t>(&made),
            .ps = kTcp,
            .qp_type = 0,
            .reserved = {}}};
  ASSERT_EQ(write(fd, &create, sizeof create), static_cast<ssize_t>(sizeof create));
  rdma_ucm_destroy_id_resp destroyed{};
  struct {
    rdma_ucm_cmd_hdr header;
    rdma_ucm_destroy_id body;
  } destroy{{RDMA_USER_CM_CMD_DESTROY_ID, sizeof destroy.body, sizeof destroyed},
            {.response = reinterpret_cast<std::uintptr_t>(&destroyed), .id = made.id, .reserved = 0}};
  ASSERT_EQ(write(fd, &destroy, sizeof destroy), static_cast<ssize_t>(sizeof destroy));
}

// Returns what waitpid(2) says. A child that has not ended in time is killed.
int status_of_end(pid_t child) {
  const auto limit = std::chrono::steady_clock::now() + kHang;
  while (std::chrono::steady_clock::now() < limit) {
    int status = 0;
    if (waitpid(child, &status, WNOHANG) == child) return status;
    std::this_thread::yield();
  }
  kill(child, SIGKILL);
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

TEST(Threads, one_forks_while_another_is_in_a_command_the_child_lives) {
  const int fd = open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  std::atomic<bool> over{false};
  std::thread commands([&] {
    while (!over.load() && !testing::Test::HasFatalFailure()) make_and_destroy_an_id(fd);
  });
  constexpr int kForks = 100;
  for (int i = 0; i < kForks; ++i) {
    const pid_t child = fork();
    if (child == 0) _exit(0);
    if (status_of_end(child) != 0) {
      ADD_FAILURE() << "child " << i << " hangs";
      break;
    }
  }
  over.store(true);
  commands.join();
  close(fd);
}

// Does what a child may do at once. Returns 0, or the first step that failed.
int do_all() {
  struct sigaction action {};
  if (sigaction(SIGSEGV, nullptr, &action) != 0) return 1;
  const int netlink = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_RDMA);
  if (netlink < 0 || close(netlink) != 0) return 2;
  int count = 0;
  ibv_device** const devices = ibv_get_device_list(&count);
  if (devices == nullptr || count == 0) return 3;
  const Context context(ibv_open_device(devices[0]));
  ibv_free_device_list(devices);
  if (context == nullptr) return 4;
  ibv_xrcd_init_attr refused{};
  refused.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
  refused.fd = -1;
  refused.oflags = O_CREAT;
  return ibv_open_xrcd(context.get(), &refused) == nullptr ? 0 : 5;
}

TEST(Threads, one_forks_while_others_do_what_the_child_does_too) {
  const Context context = open_device();
  ASSERT_NE(context, nullptr);
  std::atomic<bool> over{false};
  std::vector<std::thread> others;
  const auto repeat = [&](auto step) {
    others.emplace_back([&over, step] {
      while (!over.load()) step();
    });
  };
  repeat([] {
    struct sigaction action {};
    sigaction(SIGSEGV, nullptr, &action);
  });
  repeat([] { close(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_RDMA)); });
  repeat([] { gdx_softhca_raise(IBV_EVENT_GID_CHANGE); });
  constexpr int kForks = 20;
  for (int i = 0; i < kForks && !HasFailure(); ++i) {
    const pid_t child = fork();
    if (child == 0) _exit(do_all());
    EXPECT_EQ(status_of_end(child), 0) << "child " << i;
  }
  over.store(true);
  for (std::thread& other : others) other.join();
}

}  // namespace threads_test
}  // namespace gdx::abi_tests
