// Asynchronous events of an HCA that a program has opened itself: those after which nothing completes end
// kernels' waits at once, and name themselves.
#include <dlfcn.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <atomic>
#include <string>
#include <thread>

#include "device/endpoint.h"
#include "device/team.h"
#include "host/gdx.h"
#include "host/team/team.h"
#include "proto/softhca.h"
#include "tests/e2e/comes_true.h"
#include "tests/e2e/connected.h"
#include "tests/e2e/must.h"
#include "tests/e2e/stderr_file.h"
#include "tests/e2e/vain_wait.h"
#include "tests/e2e/wild_record.h"

namespace gdx {
namespace events_test {

constexpr std::size_t kPage = 4096;
// Nothing but an event may end a wait.
const EndpointOptions patient{.timeout_ns = kMaxWaitNs, .probe_after_ns = kMaxWaitNs - 1'000'000'000'000};

int raise(ibv_event_type event) {
  static const auto tell = reinterpret_cast<SofthcaRaise>(dlsym(RTLD_DEFAULT, kSofthcaRaiseSymbol));
  return tell(event);
}

// Two endpoints of one HCA, and a kernel that waits in vain on the first.
class Events : public ::testing::Test {
 protected:
  Events() {
    must(a_.connect(b_.address()));
    must(b_.connect(a_.address()));
  }
  // Returns how the wait ended that `cause` is to end.
  template <typename Cause>
  Status ended_by(Cause cause) {
    Status ended = Status::kPending;
    std::atomic<bool> waits{false};
    std::thread kernel([&] { ended = wait_in_vain(a_, memory_, waits); });
    while (!waits.load()) std::this_thread::yield();
    cause();
    kernel.join();
    return ended;
  }

  const Hca hca_ = must(Hca::open());
  Memory memory_ = must(allocate_memory(hca_, kPage));
  Endpoint a_ = must(Endpoint::create(hca_, {}, patient));
  Endpoint b_ = must(Endpoint::create(hca_, {}, patient));
};

TEST_F(Events, fatal_hca_ends_waits_of_all_its_endpoints_and_is_named) {
  EXPECT_EQ(ended_by([] { EXPECT_EQ(raise(IBV_EVENT_DEVICE_FATAL), 1); }), Status::kAborted);
  const std::string text = fmt::format(
      "HCA failed: local catastrophic error of HCA {}; open it again once it is back", hca_.name());
  EXPECT_EQ(a_.fault().status, Status::kHcaFailed);
  EXPECT_EQ(a_.describe_fault(), text);
  EXPECT_EQ(b_.describe_fault(), text);
  const Endpoint late = must(Endpoint::create(hca_, {}, patient));
  EXPECT_EQ(late.describe_fault(), text) << "its kernels need not wait either";
  const Hca opened_again = must(Hca::open());
  Connected again(opened_again);
  EXPECT_EQ(again.put(again.from.remote(), std::byte{1}), Status::kOk) << "on another context";
}

TEST_F(Events, fatal_queue_pair_ends_waits_of_its_endpoint_alone) {
  EXPECT_EQ(ended_by([this] { announce_beyond_the_ring(a_.handle()); }), Status::kAborted);
  EXPECT_EQ(a_.fault().status, Status::kQueueError);
  EXPECT_EQ(
      a_.describe_fault(),
      fmt::format("queue error: local work queue catastrophic error of QP {:#x} of HCA {}; make another "
                  "endpoint",
                  a_.address().qpn, hca_.name()));
  EXPECT_EQ(b_.describe_fault(), "ok");
}

// A link that is back before the retries are exceeded has lost nothing.
TEST_F(Events, port_that_goes_down_is_told_and_ends_nothing) {
  Connected pair(hca_);
  const StderrFile log;
  EXPECT_EQ(raise(IBV_EVENT_PORT_ERR), 1);
  EXPECT_EQ(raise(IBV_EVENT_PORT_ACTIVE), 1);
  EXPECT_TRUE(comes_true([&] { return log.text().find("port 1 of HCA gdx0 is up") != std::string::npos; }));
  EXPECT_THAT(log.text(),
              ::testing::HasSubstr("port 1 of HCA gdx0 is down: endpoints fail once their retries"));
  EXPECT_EQ(pair.put(pair.from.remote(), std::byte{1}), Status::kOk);
  EXPECT_EQ(pair.a.describe_fault(), "ok");
}

// A team's wait for any rank looks at no endpoint.
TEST_F(Events, fatal_hca_ends_waits_of_a_team_for_any_rank) {
  World world = must(World::join({}));
  TeamOptions options{.heap_bytes = 1 << 20};
  options.endpoint.timeout_ns = kMaxWaitNs;
  Team team = must(Team::create(hca_, world, {}, options));
  const std::uint64_t* const signal = must(team.allocate<std::uint64_t>(1));
  Status ended = Status::kPending;
  std::atomic<bool> waits{false};
  std::thread kernel([&] {
    const auto body = [&](const TeamHandle& handle) {
      waits.store(true);
      ended = gdx_wait(handle, signal, Compare::kEqual, 1);
    };
    EXPECT_EQ(exec::launch({}, body, team.handle()), Status::kOk);
  });
  while (!waits.load()) std::this_thread::yield();
  raise(IBV_EVENT_DEVICE_FATAL);
  kernel.join();
  EXPECT_EQ(ended, Status::kAborted);
}

}  // namespace events_test
}  // namespace gdx
