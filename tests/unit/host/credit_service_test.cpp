// Runs of a pool's scheduler: by the service's thread, by a waiting thread, and by each call on it. No check
// depends on timing; an action of a thread is awaited with a generous bound.
#include "host/staging/credit_service.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "host/staging/progress.h"

namespace gdx {
namespace credit_service_test {

constexpr std::uint32_t kSlots = 8;
constexpr std::chrono::seconds kGenerous{120};

// An endpoint's words. The test's thread is its kernel.
struct Client {
  std::uint64_t grants = 0;
  CreditRequests requests{};
  std::uint32_t granted_slots[kSlots]{};
  std::uint32_t returned_slots[kSlots]{};

  CreditChannel channel() { return {&grants, granted_slots, &requests, returned_slots}; }
  std::uint64_t told() const {
    return std::atomic_ref(const_cast<std::uint64_t&>(grants)).load(std::memory_order_acquire);
  }
  std::uint32_t granted() const { return granted_of(told()); }
  std::uint32_t limit() const { return limit_of(told()); }
  void want(std::uint32_t slots) {
    std::atomic_ref(requests.wanted).store(granted() + slots, std::memory_order_release);
  }
  // The slot that was granted at `position`.
  void give_back(std::uint32_t position) {
    const std::uint32_t returned = requests.returned;
    returned_slots[returned % kSlots] = granted_slots[position % kSlots];
    std::atomic_ref(requests.returned).store(returned + 1, std::memory_order_release);
  }
};

template <typename Condition>
bool comes_true(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + kGenerous;
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::yield();
  }
  return true;
}

class Service : public ::testing::Test {
 protected:
  CreditService make(std::uint32_t minimum_slots) { return {{kSlots, minimum_slots, 10'000}, "a test"}; }
};

TEST_F(Service, open_returns_with_the_minimum_and_destroy_takes_all_home) {
  CreditService service = make(2);
  Client client;
  const auto endpoint = service.open(client.channel(), kSlots);
  ASSERT_TRUE(endpoint);
  EXPECT_EQ(client.granted(), 2u);
  EXPECT_EQ(client.limit(), 2u);
  EXPECT_EQ(service.leased_slots(), 2u);
  service.destroy(*endpoint);
  EXPECT_EQ(service.free_slots(), kSlots);
}

TEST_F(Service, want_is_granted_by_the_thread_alone_also_after_it_was_helped) {
  CreditService service = make(1);
  for (int round = 0; round < 3; ++round) {  // in between no endpoint is open
    Client client;
    const auto endpoint = service.open(client.channel(), kSlots);
    ASSERT_TRUE(endpoint);
    for (int i = 0; i < 10 * round; ++i) (void)service.progress();  // and then no more
    client.want(2);
    EXPECT_TRUE(comes_true([&] { return client.granted() == 3; })) << round;
    service.destroy(*endpoint);
  }
}

// The pools' threads are there too, and may be faster: then the next round tells.
TEST_F(Service, progress_serves_each_pool_that_there_is) {
  CreditService first = make(1);
  CreditService second = make(1);
  { CreditService gone = make(1); }
  for (CreditService* service : {&first, &second}) {
    Client client;
    const auto endpoint = service->open(client.channel(), kSlots);
    ASSERT_TRUE(endpoint);
    EXPECT_TRUE(comes_true([&] {
      const std::uint32_t before = client.granted();
      client.want(1);
      if (progress() > 0) return true;
      EXPECT_TRUE(comes_true([&] { return client.granted() == before + 1; }));
      client.give_back(before);
      EXPECT_TRUE(comes_true([&] { return service->leased_slots() == 1; }));
      return false;
    }));
    service->destroy(*endpoint);
  }
}

TEST_F(Service, retired_endpoint_is_told_at_once_to_keep_nothing_and_is_granted_nothing) {
  CreditService service = make(2);
  Client client;
  const auto endpoint = service.open(client.channel(), kSlots);
  ASSERT_TRUE(endpoint);
  service.retire(*endpoint);
  EXPECT_EQ(client.limit(), 0u);
  client.want(1);
  (void)service.progress();
  EXPECT_EQ(client.granted(), 2u);
  EXPECT_EQ(service.leased_slots(), 2u) << "its queue pair may still send";
  service.destroy(*endpoint);
  EXPECT_EQ(service.free_slots(), kSlots);
}

// The first endpoint has grown into what the second one is to have.
TEST_F(Service, open_waits_for_who_gives_back_and_fails_without_a_trace_if_nobody_does) {
  CreditService service = make(4);
  Client greedy;
  const auto holder = service.open(greedy.channel(), kSlots);
  ASSERT_TRUE(holder);
  greedy.want(4);
  ASSERT_TRUE(comes_true([&] { return greedy.granted() == kSlots; }));

  for (const std::uint32_t position : {4u, 5u}) greedy.give_back(position);
  Client late;
  const auto refused = service.open(late.channel(), kSlots);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, Status::kBusy);
  EXPECT_EQ(refused.error().message,
            "the staging slots reserved for another endpoint have not come back within 100 ms: their holders "
            "compute, or their peers do not answer; try again");
  EXPECT_EQ(late.granted(), 2u);
  EXPECT_EQ(greedy.limit(), 4u) << "it was asked";
  EXPECT_EQ(service.free_slots(), 2u) << "the refused one holds none";

  for (std::uint32_t position = 6; position < kSlots; ++position) greedy.give_back(position);
  Client again;
  const auto admitted = service.open(again.channel(), kSlots);
  ASSERT_TRUE(admitted) << admitted.error().message;
  EXPECT_EQ(again.granted(), 4u);
  EXPECT_EQ(service.bad_returns(), 0u);
}

TEST_F(Service, bad_return_is_counted) {
  CreditService service = make(1);
  Client client;
  ASSERT_TRUE(service.open(client.channel(), kSlots));
  client.returned_slots[0] = client.granted_slots[0] ^ 1;
  std::atomic_ref(client.requests.returned).store(1, std::memory_order_release);
  EXPECT_TRUE(comes_true([&] { return service.bad_returns() == 1; }));
  EXPECT_EQ(service.leased_slots(), 1u);
}

}  // namespace credit_service_test
}  // namespace gdx
