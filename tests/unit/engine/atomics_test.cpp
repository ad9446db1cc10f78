// Atomics of an HCA towards changes of the processor, between the HCA's load and its store. The word lies in
// a page that cannot be written, so the HCA's store faults. The fault's handler changes the word.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>

#include "base/page_size.h"
#include "tests/unit/engine/virtual_pair.h"

namespace gdx::softhca::test {
namespace atomics_test {

constexpr std::uint64_t kProcessors = 1000;
constexpr std::uint64_t kHcas = 7;

std::byte* guarded = nullptr;  // the page whose first word is changed
int changes = 0;

// Undoes the guard, so that the store is then repeated and succeeds.
void change_word(int, siginfo_t* fault, void*) {
  if (fault->si_addr != guarded || changes != 0 ||
      mprotect(guarded, page_bytes(), PROT_READ | PROT_WRITE) != 0) {
    std::signal(SIGSEGV, SIG_DFL);
    return;
  }
  ++changes;
  std::atomic_ref(*reinterpret_cast<std::uint64_t*>(guarded)).fetch_add(kProcessors);
}

class Atomics : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    struct sigaction handler {};
    handler.sa_sigaction = change_word;
    handler.sa_flags = SA_SIGINFO;
    ASSERT_EQ(sigaction(SIGSEGV, &handler, &before_), 0);
    changes = 0;
  }
  void TearDown() override { sigaction(SIGSEGV, &before_, nullptr); }

 private:
  struct sigaction before_ {};
};

// A NIC across PCIe reads, then writes; only within a processor's reach are both one step.
TEST_P(Atomics, change_of_the_processor_meanwhile_is_lost_to_a_strict_hca) {
  const bool strict = GetParam();
  VirtualPair hcas({}, {.strict = strict});
  const auto at = reinterpret_cast<std::uintptr_t>(hcas.b.memory.data());
  const std::size_t offset = (at + page_bytes() - 1) / page_bytes() * page_bytes() - at;
  guarded = hcas.b.memory.data() + offset;
  std::memset(guarded, 0, sizeof(std::uint64_t));
  hcas.a.post_fetch_add(hcas.a.local(0, 8), hcas.b.remote(offset), kHcas);
  ASSERT_EQ(mprotect(guarded, page_bytes(), PROT_READ), 0);
  hcas.a.ring();
  std::optional<Polled> polled;
  const bool completed = hcas.run([&] { return (polled = hcas.a.poll_send()).has_value(); });
  ASSERT_EQ(mprotect(guarded, page_bytes(), PROT_READ | PROT_WRITE), 0);
  ASSERT_TRUE(completed);
  EXPECT_EQ(polled->syndrome, mlx5::Syndrome::kNone);
  EXPECT_EQ(changes, 1);
  std::uint64_t value = 0;
  std::uint64_t original = 0;
  std::memcpy(&value, guarded, sizeof value);
  std::memcpy(&original, hcas.a.memory.data(), sizeof original);
  EXPECT_EQ(value, strict ? kHcas : kHcas + kProcessors);
  EXPECT_EQ(original, strict ? 0 : kProcessors);
}

INSTANTIATE_TEST_SUITE_P(Lenient, Atomics, testing::Values(false));
INSTANTIATE_TEST_SUITE_P(Strict, Atomics, testing::Values(true));

}  // namespace atomics_test
}  // namespace gdx::softhca::test
