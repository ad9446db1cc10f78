// An endpoint whose queue pair is gdxd's, as its process has it: calls on it, its end, and that of gdxd.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <future>
#include <string>
#include <tuple>
#include <utility>

#include "base/page_size.h"
#include "host/hca/hca.h"
#include "host/memory/memory.h"
#include "host/queue/endpoint.h"
#include "host/staging/progress.h"
#include "host/staging/staging_pool.h"
#include "proto/mlx5/prm.h"
#include "tests/unit/host/own_gdxd.h"

namespace gdx {
namespace endpoint_gdxd_test {

template <typename T>
T must(Result<T> result) {
  if (!result) ADD_FAILURE() << result.error().message;
  return std::move(result).take();
}

class OfGdxd : public ::testing::Test {
 protected:
  Result<Endpoint> create(const EndpointOptions& options) {
    return Endpoint::create(hca_, {&nic_, &host_}, options);
  }
  // Returns whether an idle pass tells of endpoints that are served elsewhere, within a few passes.
  static bool serves_elsewhere() {
    for (int pass = 0; pass < 1'000; ++pass) {
      if (progress() < 0) return true;
    }
    return false;
  }

  test::OwnGdxd gdxd_;
  Hca hca_ = must(Hca::open());
  StagingPool nic_ = must(StagingPool::create(hca_, {.pool_bytes = 65536, .minimum_slots = 2}));
  StagingPool host_ = must(StagingPool::create(hca_, StagingOptions::in_host_memory()));
};

TEST_F(OfGdxd, hca_is_described_as_its_own_process_has_it) {
  const Hca own = must(Hca::open({.in_this_process = true}));
  const auto all_of = [](const Hca& hca) {
    return std::tuple(hca.name(), hca.firmware(), hca.address_text(), hca.gid_index(), hca.lid(),
                      hca.path_mtu_bytes(), hca.device_memory_bytes(), hca.is_software());
  };
  EXPECT_EQ(all_of(hca_), all_of(own));
  EXPECT_TRUE(hca_.daemon() && !own.daemon());
  const auto without_port = Hca::open({.gid_index = 9, .without_port = true});
  ASSERT_TRUE(without_port) << without_port.error().message;
  EXPECT_EQ(without_port->path_mtu_bytes(), 0u);
  EXPECT_EQ(hca_.counter("local_ack_timeout_err").value(), 0u);
  EXPECT_EQ(hca_.counter("no_such_counter").error().status, Status::kNotFound);
}

TEST_F(OfGdxd, memory_has_the_rights_the_length_and_the_keys_that_gdxd_gave) {
  const auto memory = allocate_memory(hca_, 10'000, Access::kLocalWrite | Access::kRemoteRead);
  ASSERT_TRUE(memory) << memory.error().message;
  EXPECT_EQ(memory->bytes(), 10'000u);
  EXPECT_EQ(memory->access(), Access::kLocalWrite | Access::kRemoteRead);
  EXPECT_EQ(memory->registered_by(), RegistrationWay::kHostPages);
  EXPECT_TRUE(memory->lkey() != 0 && memory->rkey() != 0);
  int own = 0;
  const auto refused = register_memory(hca_, &own, sizeof own);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message,
              testing::EndsWith("because no file holds them: use allocate_memory, or set GDX_DAEMON=off"));
}

TEST_F(OfGdxd, calls_on_an_endpoint_reach_gdxd) {
  const auto refused = create({.slot_count = 4, .unsafe_push_without_credits = true});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, Status::kUnsupported);
  EXPECT_EQ(refused.error().message,
            "unsafe_push_without_credits would damage other processes' payload in gdxd's pool: set "
            "GDX_DAEMON=off");
  EXPECT_EQ(
      create({.shares_doorbell_page = true}).error().message,
      "shares_doorbell_page would show this process a page of gdxd's other clients: set GDX_DAEMON=off");
  EXPECT_FALSE(serves_elsewhere());
  {
    auto first = create({.slot_count = 4, .bounce_slot_count = 4});
    auto second = create({.slot_count = 4});
    ASSERT_TRUE(first && second) << (first ? second : first).error().message;
    EXPECT_EQ(nic_.leased_slots(), 4u);
    EXPECT_EQ(nic_.leased_slots() + nic_.free_slots(), nic_.slot_count());
    EXPECT_EQ(nic_.bad_returns(), 0u);
    EXPECT_EQ(nic_.bytes(), 65536u);
    EXPECT_NE(nic_.lkey(), 0u);
    EXPECT_NE(nic_.lkey(), host_.lkey());
    EXPECT_NE(nic_.daemon_number(), host_.daemon_number());
    EXPECT_EQ(host_.memory(), StagingMemory::kHost);
    ASSERT_TRUE(first->connect(second->address()));
    const auto answer = first->query_queue_pair();
    ASSERT_TRUE(answer) << answer.error().message;
    namespace prm = mlx5::prm;
    EXPECT_EQ(prm::get(*answer, prm::qp::kState), std::uint64_t{prm::qp::kRts});
    EXPECT_EQ(prm::get(*answer, prm::qp::kRemoteQpn), second->address().qpn);
    EXPECT_THAT(first->newest_events().value(), testing::HasSubstr("state     RTS"));
    EXPECT_EQ(first->queues_registered_by(), RegistrationWay::kHostPages);
    first->abort();
    const EndpointHandle handle = first->handle();
    EXPECT_EQ(*handle.abort, 1u);
    for (const StagingHandle& pool : {handle.staging, handle.bounce}) EXPECT_EQ(limit_of(*pool.grants), 0u);
    EXPECT_EQ(*second->handle().abort, 0u);
    EXPECT_EQ(limit_of(*second->handle().staging.grants), 2u);
    EXPECT_TRUE(serves_elsewhere());
  }
  EXPECT_FALSE(serves_elsewhere());
  EXPECT_EQ(nic_.leased_slots(), 0u);
}

// The pages of an endpoint that has ended may be anybody's.
TEST_F(OfGdxd, loss_of_gdxd_aborts_endpoints_that_are_there_and_writes_to_no_other) {
  auto living = create({});
  ASSERT_TRUE(living) << living.error().message;
  const std::uint32_t* freed = nullptr;
  void* page = MAP_FAILED;
  for (int tries = 0; tries < 10 && page == MAP_FAILED; ++tries) {
    auto ended = create({});
    ASSERT_TRUE(ended) << ended.error().message;
    freed = ended->handle().abort;
    ended = fail(Status::kNotFound, "it has ended");
    void* const first =
        reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(freed) & ~(page_bytes() - 1));
    page = mmap(first, page_bytes(), PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  }
  ASSERT_NE(page, MAP_FAILED);
  std::promise<void> lost;
  (void)hca_.daemon()->on_loss([&] { lost.set_value(); });
  gdxd_.stop();
  lost.get_future().wait();
  EXPECT_EQ(*living->handle().abort, 1u);
  EXPECT_EQ(*freed, 0u);
  EXPECT_EQ(munmap(page, page_bytes()), 0);
}

}  // namespace endpoint_gdxd_test
}  // namespace gdx
