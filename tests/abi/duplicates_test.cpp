// Lifetime of an open of the device node: as long as any descriptor of it, in every order of closes.
#include <dlfcn.h>
#include <fcntl.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/mlx5-abi.h>
#include <rdma/mlx5_user_ioctl_cmds.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <thread>
#include <vector>

#include "proto/softhca.h"
#include "tests/abi/open_device.h"
#include "tests/abi/request.h"

namespace gdx::abi_tests {
namespace duplicates_test {

constexpr char kNode[] = "/dev/infiniband/uverbs0";

int take_context(int fd) {
  mlx5_ib_alloc_ucontext_req_v2 asked{};
  mlx5_ib_alloc_ucontext_resp answer{};
  std::uint32_t vectors = 0;
  std::uint64_t support = 0;
  Request request(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT);
  request.attribute(UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, 4, reinterpret_cast<std::uintptr_t>(&vectors))
      .attribute(UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, 8, reinterpret_cast<std::uintptr_t>(&support))
      .attribute(UVERBS_ATTR_UHW_IN, sizeof asked, reinterpret_cast<std::uintptr_t>(&asked))
      .attribute(UVERBS_ATTR_UHW_OUT, sizeof answer, reinterpret_cast<std::uintptr_t>(&answer));
  return request.send(fd);
}

// Takes all device memory, so that another allocation shows whether this open has ended.
int take_device_memory(int fd, std::uint64_t length_bytes) {
  std::uint64_t offset = 0;
  std::uint16_t page = 0;
  Request request(UVERBS_OBJECT_DM, UVERBS_METHOD_DM_ALLOC);
  request.attribute(UVERBS_ATTR_ALLOC_DM_HANDLE, 0, 0)
      .attribute(UVERBS_ATTR_ALLOC_DM_LENGTH, 8, length_bytes)
      .attribute(UVERBS_ATTR_ALLOC_DM_ALIGNMENT, 4, 0)
      .attribute(MLX5_IB_ATTR_ALLOC_DM_RESP_START_OFFSET, 8, reinterpret_cast<std::uintptr_t>(&offset))
      .attribute(MLX5_IB_ATTR_ALLOC_DM_RESP_PAGE_INDEX, 2, reinterpret_cast<std::uintptr_t>(&page));
  return request.send(fd);
}

class Duplicates : public testing::Test {
 protected:
  void SetUp() override {
    watcher_ = open_device();
    ASSERT_NE(watcher_, nullptr) << "no software HCA: errno " << errno;
    ibv_device_attr_ex device{};
    ASSERT_EQ(ibv_query_device_ex(watcher_.get(), nullptr, &device), 0);
    device_memory_bytes_ = device.max_dm_size;
    ASSERT_GT(device_memory_bytes_, 0u);
  }

  // An open of the node that has all of the device memory.
  int open_holder() const {
    const int fd = open(kNode, O_RDWR | O_CLOEXEC);
    EXPECT_GE(fd, 0);
    EXPECT_EQ(take_context(fd), 0);
    EXPECT_EQ(take_device_memory(fd, device_memory_bytes_), 0);
    return fd;
  }
  // Through a context that stays open: to open or close one might be what ends the other.
  bool device_memory_is_free() const {
    ibv_alloc_dm_attr all{};
    all.length = device_memory_bytes_;
    ibv_dm* const dm = ibv_alloc_dm(watcher_.get(), &all);
    if (dm != nullptr) {
      EXPECT_EQ(ibv_free_dm(dm), 0);
    }
    return dm != nullptr;
  }
  bool becomes_free() const {
    const auto limit = std::chrono::steady_clock::now() + kHang;
    while (!device_memory_is_free()) {
      if (std::chrono::steady_clock::now() > limit) return false;
      std::this_thread::yield();
    }
    return true;
  }
  static bool is_alive(int fd) {
    struct stat status {};
    return fstat(fd, &status) == 0 && S_ISCHR(status.st_mode) && take_context(fd) == EINVAL;  // it has one
  }

  Context watcher_;
  std::uint64_t device_memory_bytes_ = 0;
};

TEST_F(Duplicates, the_last_two_closed_at_once_the_open_ends) {
  constexpr int kRounds = 300;
  for (int round = 0; round < kRounds; ++round) {
    const int first = open_holder();
    const int second = dup(first);
    ASSERT_TRUE(is_alive(second));
    ASSERT_FALSE(device_memory_is_free());
    std::barrier together(2);
    std::thread other([&] {
      together.arrive_and_wait();
      close(second);
    });
    together.arrive_and_wait();
    close(first);
    other.join();
    ASSERT_TRUE(device_memory_is_free()) << "round " << round;
  }
}

TEST_F(Duplicates, moved_while_others_are_opened_and_closed_the_open_lives) {
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(null, 0);
  std::array<int, 200> between{};
  const int low = dup(null);
  for (int& fd : between) fd = dup(null);
  const int high = open_holder();
  std::atomic<bool> over{false};
  std::thread others([&over] {
    constexpr int kOpens = 2'000;
    for (int i = 0; i < kOpens; ++i) close(open(kNode, O_RDWR | O_CLOEXEC));
    over.store(true);
  });
  while (!over.load()) {
    dup2(high, low);
    dup2(null, high);
    dup2(low, high);
    dup2(null, low);
  }
  others.join();
  EXPECT_TRUE(is_alive(high));
  EXPECT_FALSE(device_memory_is_free());
  EXPECT_EQ(close(high), 0);
  EXPECT_TRUE(device_memory_is_free());
  for (const int fd : between) close(fd);
  for (const int fd : {null, low}) close(fd);
}

TEST_F(Duplicates, closed_behind_the_librarys_back_the_open_ends_all_the_same) {
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  const int replaced = open_holder();
  ASSERT_EQ(dup2(null, replaced), replaced);
  EXPECT_TRUE(becomes_free());
  const int first = open_holder();
  const int unseen = dup(first);
  EXPECT_EQ(close(first), 0);
  EXPECT_FALSE(device_memory_is_free());
  EXPECT_EQ(close(unseen), 0);
  EXPECT_TRUE(becomes_free());
  for (const int fd : {null, replaced}) close(fd);
}

// A duplicate stands for the lock of a stranger, which keeps an open alive, too.
TEST_F(Duplicates, of_a_file_that_strangers_have_one_close_ends_the_open) {
  const auto share = reinterpret_cast<SofthcaShare>(dlsym(RTLD_DEFAULT, kSofthcaShareSymbol));
  ASSERT_NE(share, nullptr);
  const int fd = open_holder();
  const int other = open(kNode, O_RDWR | O_CLOEXEC);
  ASSERT_EQ(take_context(other), 0);
  share(fd);
  share(-1);
  const int copies[] = {dup(fd), dup(other)};
  close(dup(fd));
  EXPECT_FALSE(device_memory_is_free());
  for (const int number : {fd, other}) EXPECT_EQ(close(number), 0);
  EXPECT_TRUE(device_memory_is_free());
  EXPECT_TRUE(is_alive(copies[1]));
  EXPECT_FALSE(is_alive(copies[0]));
  for (const int copy : copies) close(copy);
}

TEST_F(Duplicates, put_at_the_number_of_another_open_is_not_that_one) {
  const int holder = open_holder();
  const int without_context = open(kNode, O_RDWR | O_CLOEXEC);
  ASSERT_GE(without_context, 0);
  ASSERT_EQ(dup2(without_context, holder), holder);
  EXPECT_EQ(take_device_memory(holder, 4096), EINVAL);
  EXPECT_TRUE(becomes_free());
  for (const int fd : {holder, without_context}) EXPECT_EQ(close(fd), 0);
}

}  // namespace duplicates_test
}  // namespace gdx::abi_tests
