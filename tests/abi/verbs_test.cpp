// Plain verbs: device memory, address handles, registration errors, counters.
#include <dlfcn.h>
#include <fcntl.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/abi/open_device.h"

namespace gdx::abi_tests {
namespace verbs_test {

#ifdef __SANITIZE_ADDRESS__
using ToleratedLeaks = __lsan::ScopedDisabler;
#else
struct ToleratedLeaks {
  ToleratedLeaks() {}  // not trivial: an unused one is meant
};
#endif

class Verbs : public testing::Test {
 protected:
  void SetUp() override {
    context_ = open_device();
    ASSERT_NE(context_, nullptr) << "no software HCA: errno " << errno;
    pd_ = ibv_alloc_pd(context_.get());
    ASSERT_NE(pd_, nullptr);
  }
  void TearDown() override {
    if (pd_ != nullptr) {
      EXPECT_EQ(ibv_dealloc_pd(pd_), 0);
    }
  }

  Context context_;
  ibv_pd* pd_ = nullptr;
};

TEST_F(Verbs, device_memory_allocated_is_a_plain_pointer_and_ends_at_the_pool) {
  ibv_alloc_dm_attr whole{};
  whole.length = 128 * 1024;
  ibv_dm* const dm = ibv_alloc_dm(context_.get(), &whole);
  ASSERT_NE(dm, nullptr);
  mlx5dv_dm pointer{};
  mlx5dv_obj object{};
  object.dm = {dm, &pointer};
  ASSERT_EQ(mlx5dv_init_obj(&object, MLX5DV_OBJ_DM), 0);
  std::memset(pointer.buf, 0x5a, whole.length);
  std::array<std::uint8_t, 8> seen{};
  EXPECT_EQ(ibv_memcpy_from_dm(seen.data(), dm, whole.length - seen.size(), seen.size()), 0);
  EXPECT_EQ(seen, (std::array<std::uint8_t, 8>{0x5a, 0x5a, 0x5a, 0x5a, 0x5a, 0x5a, 0x5a, 0x5a}));

  ibv_alloc_dm_attr more{};
  more.length = 8;
  EXPECT_EQ(ibv_alloc_dm(context_.get(), &more), nullptr);
  EXPECT_EQ(errno, ENOMEM);

  ibv_mr* const mr = ibv_reg_dm_mr(pd_, dm, 64, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED);
  ASSERT_NE(mr, nullptr);
  EXPECT_EQ(ibv_reg_dm_mr(pd_, dm, 64, whole.length, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED),
            nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(ibv_free_dm(dm), EBUSY);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  EXPECT_EQ(ibv_free_dm(dm), 0);
  ibv_dm* const again = ibv_alloc_dm(context_.get(), &whole);
  ASSERT_NE(again, nullptr);
  std::vector<std::uint8_t> all(whole.length, 1);
  EXPECT_EQ(ibv_memcpy_from_dm(all.data(), again, 0, all.size()), 0);
  EXPECT_EQ(all, std::vector<std::uint8_t>(whole.length)) << "nothing of the former owner in any page";
  EXPECT_EQ(ibv_free_dm(again), 0);
}

TEST_F(Verbs, device_memory_registered_with_rights_it_cannot_have_answers_einval) {
  ibv_alloc_dm_attr page{};
  page.length = 4096;
  ibv_dm* const dm = ibv_alloc_dm(context_.get(), &page);
  ASSERT_NE(dm, nullptr);
  const auto try_access = [&](unsigned access) {
    ibv_mr* const mr = ibv_reg_dm_mr(pd_, dm, 0, page.length, access);
    return mr == nullptr ? errno : ibv_dereg_mr(mr);
  };
  constexpr unsigned kStores = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  constexpr unsigned kBase = IBV_ACCESS_ZERO_BASED;
  EXPECT_EQ(try_access(kBase), 0);
  EXPECT_EQ(try_access(kBase | IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | kStores), 0);
  EXPECT_EQ(try_access(IBV_ACCESS_LOCAL_WRITE), EINVAL);
  EXPECT_EQ(try_access(kBase | IBV_ACCESS_REMOTE_WRITE), EINVAL) << "remote stores need local ones";
  EXPECT_EQ(try_access(kBase | IBV_ACCESS_REMOTE_ATOMIC), EINVAL);
  EXPECT_EQ(try_access(kBase | IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND), EINVAL);
  EXPECT_EQ(try_access(kBase | IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_HUGETLB), EINVAL);
  EXPECT_EQ(ibv_free_dm(dm), 0);
}

TEST_F(Verbs, address_handle_created_carries_gid_and_mac) {
  ibv_ah_attr attributes{};
  attributes.is_global = 1;
  attributes.port_num = 1;
  attributes.grh.sgid_index = 1;
  ASSERT_EQ(ibv_query_gid(context_.get(), 1, 1, &attributes.grh.dgid), 0);
  ibv_ah* const ah = ibv_create_ah(pd_, &attributes);
  ASSERT_NE(ah, nullptr);
  mlx5dv_ah vector{};
  mlx5dv_obj object{};
  object.ah = {ah, &vector};
  ASSERT_EQ(mlx5dv_init_obj(&object, MLX5DV_OBJ_AH), 0);
  EXPECT_EQ(std::memcmp(vector.av->rgid, attributes.grh.dgid.raw, 16), 0);
  const std::array<std::uint8_t, 3> mac_start = {0x02, 0x67, 127};
  EXPECT_EQ(std::memcmp(vector.av->rmac, mac_start.data(), mac_start.size()), 0);
  EXPECT_EQ(ibv_destroy_ah(ah), 0);
}

TEST_F(Verbs, unmapped_memory_registered_answers_efault) {
  void* const pages = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  munmap(static_cast<char*>(pages) + 4096, 4096);
  EXPECT_EQ(ibv_reg_mr(pd_, pages, 8192, IBV_ACCESS_LOCAL_WRITE), nullptr);
  EXPECT_EQ(errno, EFAULT);
  munmap(pages, 4096);
}

TEST_F(Verbs, memory_without_the_rights_registered_answers_efault) {
  void* const pages = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  ASSERT_EQ(mprotect(static_cast<char*>(pages) + 4096, 4096, PROT_READ), 0);
  EXPECT_EQ(ibv_reg_mr(pd_, pages, 8192, IBV_ACCESS_LOCAL_WRITE), nullptr);
  EXPECT_EQ(errno, EFAULT);
  ibv_mr* const read_only = ibv_reg_mr(pd_, pages, 8192, IBV_ACCESS_REMOTE_READ);
  ASSERT_NE(read_only, nullptr);
  EXPECT_EQ(ibv_dereg_mr(read_only), 0);
  ASSERT_EQ(mprotect(static_cast<char*>(pages) + 4096, 4096, PROT_NONE), 0);
  EXPECT_EQ(ibv_reg_mr(pd_, pages, 8192, 0), nullptr);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(munmap(pages, 8192), 0);
}

TEST_F(Verbs, remote_write_without_local_write_registered_answers_einval) {
  std::array<char, 64> buffer{};
  EXPECT_EQ(ibv_reg_mr(pd_, buffer.data(), buffer.size(), IBV_ACCESS_REMOTE_WRITE), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

TEST_F(Verbs, domain_with_a_region_deallocated_answers_ebusy) {
  std::array<char, 64> buffer{};
  ibv_mr* const mr = ibv_reg_mr(pd_, buffer.data(), buffer.size(), IBV_ACCESS_LOCAL_WRITE);
  ASSERT_NE(mr, nullptr);
  EXPECT_EQ(ibv_dealloc_pd(pd_), EBUSY);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

TEST_F(Verbs, context_closed_with_objects_left_lets_the_next_one_open) {
  Context other = open_device();
  ASSERT_NE(other, nullptr);
  {
    const ToleratedLeaks libraries_own_structures;
    ASSERT_NE(ibv_alloc_pd(other.get()), nullptr);
    ASSERT_NE(ibv_create_cq(other.get(), 16, nullptr, nullptr, 0), nullptr);
  }
  other.reset();
  EXPECT_NE(open_device(), nullptr);
}

TEST_F(Verbs, device_opened_polls_through_the_software_hca) {
  int count = 0;
  ibv_device** const devices = ibv_get_device_list(&count);
  ASSERT_EQ(count, 1);
  const Context plain(ibv_open_device(devices[0]));
  ibv_free_device_list(devices);
  ASSERT_NE(plain, nullptr);
  Dl_info where{};
  ASSERT_NE(dladdr(reinterpret_cast<void*>(plain->ops.poll_cq), &where), 0);
  EXPECT_NE(std::string(where.dli_fname).find("gdx_softhca"), std::string::npos) << where.dli_fname;
  ibv_cq* const cq = ibv_create_cq(plain.get(), 16, nullptr, nullptr, 0);
  ASSERT_NE(cq, nullptr);
  ibv_wc completion{};
  EXPECT_EQ(ibv_poll_cq(cq, 1, &completion), 0);
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
}

// A wrapper must not read a path that is null, although libc declares it non-null. Kernels since 6.11 accept
// it.
TEST_F(Verbs, files_looked_at_by_no_path_are_the_kernels_to_refuse) {
  // By pointers, whose types declare nothing: sanitizers check calls of functions that do.
  int (*volatile statx_of)(int, const char*, int, unsigned, struct statx*) = statx;
  int (*volatile fstatat_of)(int, const char*, struct stat*, int) = fstatat;
  int (*volatile stat_of)(const char*, struct stat*) = stat;
  int (*volatile open_of)(const char*, int, ...) = open;
  int (*volatile access_of)(const char*, int) = access;
  struct statx found {};
  const int answer = statx_of(context_->cmd_fd, nullptr, AT_EMPTY_PATH, STATX_BASIC_STATS, &found);
  EXPECT_TRUE(answer == 0 ? S_ISCHR(found.stx_mode) : errno == EFAULT) << errno;
  struct stat other {};
  const int older = fstatat_of(context_->cmd_fd, nullptr, &other, AT_EMPTY_PATH);
  EXPECT_TRUE(older == 0 ? S_ISCHR(other.st_mode) : errno == EFAULT) << errno;
  EXPECT_EQ(stat_of(nullptr, &other), -1);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(open_of(nullptr, O_RDONLY), -1);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(access_of(nullptr, R_OK), -1);
  EXPECT_EQ(errno, EFAULT);
}

bool reads_a_number(const char* counter_name) {
  const std::string path = std::string("/sys/class/infiniband/gdx0/ports/1/hw_counters/") + counter_name;
  const std::unique_ptr<FILE, int (*)(FILE*)> counter(fopen(path.c_str(), "r"), &fclose);
  unsigned long long value = 0;
  return counter != nullptr && fscanf(counter.get(), "%llu", &value) == 1;
}

TEST_F(Verbs, counters_read_are_numbers) {
  for (const char* name :
       {"local_ack_timeout_err", "out_of_buffer", "softhca_packets_sent", "softhca_staging_violations"}) {
    EXPECT_TRUE(reads_a_number(name)) << name;
  }
}

// Each open replaces all counters of the process, this one first.
TEST_F(Verbs, counters_read_by_two_threads_are_numbers) {
  constexpr int kReads = 1000;
  std::atomic<int> failed{0};
  const auto read_all = [&failed] {
    for (int i = 0; i < kReads; ++i) failed += reads_a_number("local_ack_timeout_err") ? 0 : 1;
  };
  std::thread other(read_all);
  read_all();
  other.join();
  EXPECT_EQ(failed.load(), 0) << "of " << 2 * kReads << " reads";
}

TEST_F(Verbs, child_of_a_vfork_closing_the_device_leaves_the_parents_open) {
  const int fd = context_->cmd_fd;
  const pid_t child = vfork();
  if (child == 0) {
    close(fd);
    _exit(0);
  }
  ASSERT_GT(child, 0);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ibv_port_attr port{};
  EXPECT_EQ(ibv_query_port(context_.get(), 1, &port), 0);
}

TEST_F(Verbs, descriptor_replaced_behind_the_device_is_the_new_file) {
  Context other = open_device();
  ASSERT_NE(other, nullptr);
  const int fd = other->cmd_fd;
  const int copy = dup(fd);
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  ASSERT_EQ(dup2(null, fd), fd);
  struct stat found {};
  EXPECT_EQ(fstat(fd, &found), 0);
  EXPECT_EQ(found.st_rdev, makedev(1, 3)) << "/dev/null";
  EXPECT_EQ(ioctl(fd, RDMA_VERBS_IOCTL, nullptr), -1);
  EXPECT_EQ(errno, ENOTTY);
  EXPECT_EQ(close(copy), 0);
  EXPECT_EQ(close(null), 0);
  other.reset();
  ibv_port_attr port{};
  EXPECT_EQ(ibv_query_port(context_.get(), 1, &port), 0);
  const Context next = open_device();
  ASSERT_NE(next, nullptr);
  EXPECT_EQ(ibv_query_port(next.get(), 1, &port), 0);
}

TEST_F(Verbs, child_of_a_fork_has_a_device_of_its_own_and_no_use_of_the_parents) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ibv_device_attr attributes{};
    const bool refused = ibv_query_device(context_.get(), &attributes) == ENODEV;
    const Context own = open_device();
    const bool opened = own != nullptr && ibv_query_device(own.get(), &attributes) == 0;
    _exit(refused && opened && ibv_query_device(context_.get(), &attributes) == ENODEV ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  ibv_device_attr attributes{};
  EXPECT_EQ(ibv_query_device(context_.get(), &attributes), 0);
}

}  // namespace verbs_test
}  // namespace gdx::abi_tests
