// Memory that goes away below the HCA: each access ends with an answer, and a fault of anybody else is
// theirs.
#include "driver-shim/softhca/engine/guarded_access.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csetjmp>
#include <cstring>
#include <thread>

#include "base/descriptor.h"
#include "driver-shim/softhca/engine/completion_queue.h"
#include "driver-shim/softhca/engine/dma.h"
#include "driver-shim/softhca/engine/receive_queue.h"
#include "driver-shim/softhca/engine/wqe_parser.h"
#include "proto/mlx5/doorbell.h"
#include "proto/mlx5/wqe.h"

namespace gdx::softhca {
namespace guarded_access_test {

constexpr std::size_t kPageBytes = 4096;

// Two pages, of which the second goes as a test says.
class GuardedAccess : public testing::Test {
 protected:
  void SetUp() override {
    install_fault_guard(::sigaction, ::pthread_sigmask);
    pages_ = static_cast<std::byte*>(
        mmap(nullptr, 2 * kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(pages_, MAP_FAILED);
  }
  void TearDown() override { munmap(pages_, 2 * kPageBytes); }
  void forbid(int rights) { ASSERT_EQ(mprotect(pages_ + kPageBytes, kPageBytes, rights), 0); }
  Be32& gone_record() { return *reinterpret_cast<Be32*>(pages_ + kPageBytes); }

  std::byte* pages_ = nullptr;
  std::array<std::byte, 2 * kPageBytes> own_{};
};

TEST_F(GuardedAccess, copy_that_meets_a_page_without_the_right_ends_with_false_on_any_thread) {
  const auto each = [this](bool loads, bool stores) {
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{8}, std::size_t{64}, kPageBytes}) {
      const std::size_t at = bytes == 1 ? kPageBytes : kPageBytes - bytes / 2;
      EXPECT_EQ(dma_load(own_.data(), pages_ + at, bytes), loads) << bytes;
      EXPECT_EQ(dma_store(pages_ + at, own_.data(), bytes), stores) << bytes;
    }
  };
  each(true, true);
  forbid(PROT_READ);
  each(true, false);
  forbid(PROT_NONE);
  each(false, false);
  std::thread other(each, false, false);
  other.join();
  munmap(pages_ + kPageBytes, kPageBytes);
  each(false, false);
  EXPECT_TRUE(dma_store(pages_, own_.data(), kPageBytes));
}

TEST_F(GuardedAccess, file_that_became_shorter_ends_with_false) {
  const Descriptor file(memfd_create("short", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(file.value(), kPageBytes), 0);
  void* const mapped =
      mmap(pages_ + kPageBytes, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file.value(), 0);
  ASSERT_EQ(mapped, pages_ + kPageBytes);
  EXPECT_TRUE(dma_store(pages_ + kPageBytes, own_.data(), 64));
  ASSERT_EQ(ftruncate(file.value(), 0), 0);
  EXPECT_FALSE(dma_store(pages_ + kPageBytes, own_.data(), 64));
}

TEST_F(GuardedAccess, rings_and_records_that_are_gone_hold_nothing_and_lose_what_is_written) {
  forbid(PROT_NONE);
  EXPECT_EQ(load_record(gone_record(), 7), 7u);

  SendWqe wqe;
  parse_send_wqe({pages_, 2 * kPageBytes}, kPageBytes / mlx5::kWqeBasicBlockBytes, 4, 0xabcdef,
                 AddressVectorUse::kNone, wqe);
  EXPECT_EQ(wqe.fault, mlx5::Syndrome::kLocalQpOperation);
  EXPECT_EQ(wqe.blocks, 1u);

  Be32 posted{1};
  ReceiveWqe taken;
  EXPECT_FALSE(
      ReceiveQueue({.ring = pages_ + kPageBytes, .entries = 4, .stride_bytes = 64, .record = &posted})
          .take(taken));
  ReceiveQueue unposted({.ring = pages_, .entries = 4, .stride_bytes = 64, .record = &gone_record()});
  EXPECT_EQ(unposted.posted(), 0);

  std::array<Be32, 2> record{};
  CompletionQueueSpec spec;
  spec.ring = pages_ + kPageBytes;
  spec.log_entries = 2;
  spec.doorbell_record = record.data();
  CompletionQueue completions(spec);
  EXPECT_TRUE(completions.write({}));
  spec.doorbell_record = &gone_record();
  CompletionQueue unread(spec);
  unread.check_arm();
  EXPECT_TRUE(unread.write({}));
}

sigjmp_buf jumped;
volatile sig_atomic_t handled = 0;

TEST_F(GuardedAccess, fault_of_the_program_is_the_programs_with_its_mask_and_once_if_it_said_so) {
  forbid(PROT_NONE);
  volatile std::byte* const gone = pages_ + kPageBytes;
  struct sigaction action {};
  action.sa_flags = SA_RESETHAND;
  sigaddset(&action.sa_mask, SIGUSR1);
  action.sa_handler = [](int signal) {
    sigset_t blocked;
    pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
    handled = sigismember(&blocked, SIGUSR1) == 1 && sigismember(&blocked, signal) == 1 ? 1 : 2;
    siglongjmp(jumped, 1);
  };
  struct sigaction before {};
  exchange_fault_action(SIGSEGV, &action, &before);
  if (sigsetjmp(jumped, 1) == 0) *gone = std::byte{1};
  EXPECT_EQ(handled, 1);
  EXPECT_FALSE(dma_store(pages_ + kPageBytes, own_.data(), 8)) << "and the guard is still there";
  struct sigaction after {};
  exchange_fault_action(SIGSEGV, &before, &after);
  EXPECT_EQ(after.sa_handler, SIG_DFL);
}

TEST(GuardedAccessDeathTest, fault_that_nobody_handles_ends_the_process_as_ever) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto die = [](auto by) {
    install_fault_guard(::sigaction, ::pthread_sigmask);
    struct sigaction fatal {};
    fatal.sa_handler = SIG_DFL;
    exchange_fault_action(SIGSEGV, &fatal, nullptr);
    by();
  };
  EXPECT_EXIT(die([] { *reinterpret_cast<volatile int*>(8) = 1; }), testing::KilledBySignal(SIGSEGV), "");
  EXPECT_EXIT(die([] { kill(getpid(), SIGSEGV); }), testing::KilledBySignal(SIGSEGV), "");
}

}  // namespace guarded_access_test
}  // namespace gdx::softhca
