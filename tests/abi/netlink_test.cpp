// RDMA netlink as libibverbs and `rdma` use it: a process's objects are reported, malformed requests are
// refused.
#include <fcntl.h>
#include <poll.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>

#include <cerrno>
#include <cstdlib>
#include <new>
#include <random>

#include "tests/abi/rdma_netlink.h"

namespace {
thread_local long allocations_left = -1;  // of this thread, until one fails; below 0: none does

void* allocate(std::size_t bytes) {
  if (allocations_left == 0) return nullptr;
  if (allocations_left > 0) --allocations_left;
  return std::malloc(bytes);
}
}  // namespace

// The library's allocations come here as well.
void* operator new(std::size_t bytes) {
  if (void* const found = allocate(bytes)) return found;
  throw std::bad_alloc();
}
void operator delete(void* at) noexcept { std::free(at); }
void operator delete(void* at, std::size_t) noexcept { std::free(at); }

namespace gdx::abi_tests {
namespace {

using testing::HasSubstr;

// Such a child shares its parent's memory, not its descriptors.
TEST_F(RdmaNetlink, vfork_child_duplicates_one_over_another_both_still_answer_the_parent) {
  Netlink other;
  const pid_t child = vfork();
  if (child == 0) _exit(dup2(netlink_.fd(), other.fd()) == other.fd() ? 0 : 1);
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  for (Netlink* const asked : {&netlink_, &other}) {
    ASSERT_TRUE(asked->ask(RDMA_NLDEV_CMD_GET, 0, {{RDMA_NLDEV_ATTR_DEV_INDEX, 0}}));
    EXPECT_TRUE(Netlink::attributes_of(asked->receive()).contains(RDMA_NLDEV_ATTR_DEV_NAME));
  }
}

TEST_F(RdmaNetlink, queue_pair_is_told_with_its_peer_and_state) {
  const Cq cq = make_cq();
  const Qp qp = make_qp(cq.get());
  const auto find = [&] {
    return netlink_.find(RDMA_NLDEV_CMD_RES_QP_GET, RDMA_NLDEV_ATTR_RES_QP, RDMA_NLDEV_ATTR_RES_LQPN,
                         qp->qp_num);
  };
  const auto fresh = find();
  ASSERT_TRUE(fresh);
  EXPECT_EQ(Netlink::value<std::uint8_t>(fresh->attributes(), RDMA_NLDEV_ATTR_RES_STATE), IBV_QPS_RESET);
  EXPECT_FALSE(fresh->attributes().contains(RDMA_NLDEV_ATTR_PORT_INDEX));

  connect(qp.get(), qp->qp_num);
  const auto connected = find();
  ASSERT_TRUE(connected);
  const NetlinkAttributes told = connected->attributes();
  EXPECT_EQ(Netlink::value<std::uint8_t>(told, RDMA_NLDEV_ATTR_RES_STATE), IBV_QPS_RTS);
  EXPECT_EQ(Netlink::value<std::uint8_t>(told, RDMA_NLDEV_ATTR_RES_TYPE), IBV_QPT_RC);
  EXPECT_EQ(Netlink::value(told, RDMA_NLDEV_ATTR_PORT_INDEX), 1u);
  EXPECT_EQ(Netlink::value(told, RDMA_NLDEV_ATTR_RES_RQPN), qp->qp_num);
  EXPECT_EQ(Netlink::value(told, RDMA_NLDEV_ATTR_RES_RQ_PSN), kPsn);
  EXPECT_EQ(Netlink::value(told, RDMA_NLDEV_ATTR_RES_PID), static_cast<std::uint32_t>(getpid()));
}

// The last step happens within the HCA, without a call of the program's.
TEST_F(RdmaNetlink, another_process_sees_each_state_of_a_queue_pair) {
  const Cq cq = make_cq();
  const Qp qp = make_qp(cq.get());
  const auto shown = [&](const std::string& state) {
    return HasSubstr("lqpn " + std::to_string(qp->qp_num) + " rqpn " + (state == "RESET" ? "0" : "1193046") +
                     " type RC state " + state);
  };
  const std::string fresh = Netlink::lines_of_rdma("qp");
  if (fresh == Netlink::kNoRdma) GTEST_SKIP() << fresh;
  EXPECT_THAT(fresh, shown("RESET"));
  connect(qp.get(), 0x123456, kHasty);  // a queue pair that is not there
  EXPECT_THAT(Netlink::lines_of_rdma("qp"), shown("RTS"));
  ASSERT_EQ(post_send(qp.get(), piece(0, 8)), 0);
  const std::optional<ibv_wc> completion = await(cq.get());
  ASSERT_TRUE(completion);
  EXPECT_EQ(completion->status, IBV_WC_RETRY_EXC_ERR);
  const auto end = std::chrono::steady_clock::now() + kHang;
  std::string failed;
  do {
    failed = Netlink::lines_of_rdma("qp");
  } while (failed.find(" state ERR ") == std::string::npos && std::chrono::steady_clock::now() < end);
  EXPECT_THAT(failed, shown("ERR"));
}

TEST_F(RdmaNetlink, another_process_sees_a_region_that_has_moved_and_who_uses_its_domain) {
  const Pd younger(ibv_alloc_pd(context_.get()));
  const auto number_of = [&](const std::string& users) -> std::string {
    const std::string domains = Netlink::lines_of_rdma("pd users " + users);
    const std::size_t at = domains.find("pdn ");
    return at == std::string::npos ? domains : domains.substr(at, domains.find(' ', at + 4) - at);
  };
  const std::string before = number_of("1");
  if (before == Netlink::kNoRdma) GTEST_SKIP() << before;
  EXPECT_THAT(Netlink::lines_of_rdma("mr"), HasSubstr(before + ' '));
  ASSERT_EQ(ibv_rereg_mr(mr_.get(), IBV_REREG_MR_CHANGE_PD, younger.get(), nullptr, 0, 0), 0);
  const std::string after = number_of("1");
  EXPECT_NE(after, before);
  EXPECT_EQ(number_of("0"), before);
  EXPECT_THAT(Netlink::lines_of_rdma("mr"), HasSubstr(after + ' '));
  ASSERT_EQ(ibv_rereg_mr(mr_.get(), IBV_REREG_MR_CHANGE_PD, pd_.get(), nullptr, 0, 0), 0);
}

TEST_F(RdmaNetlink, completion_queue_region_and_domain_are_told) {
  const Cq cq = make_cq(100);
  const auto queues = netlink_.dump(RDMA_NLDEV_CMD_RES_CQ_GET, RDMA_NLDEV_ATTR_RES_CQ);
  ASSERT_EQ(queues.size(), 1u);
  EXPECT_EQ(Netlink::value(queues[0].attributes(), RDMA_NLDEV_ATTR_RES_CQE),
            static_cast<std::uint32_t>(cq->cqe));
  ASSERT_EQ(ibv_resize_cq(cq.get(), 1000), 0);
  const auto resized = netlink_.dump(RDMA_NLDEV_CMD_RES_CQ_GET, RDMA_NLDEV_ATTR_RES_CQ);
  ASSERT_EQ(resized.size(), 1u);
  EXPECT_EQ(Netlink::value(resized[0].attributes(), RDMA_NLDEV_ATTR_RES_CQE),
            static_cast<std::uint32_t>(cq->cqe));

  const auto region =
      netlink_.find(RDMA_NLDEV_CMD_RES_MR_GET, RDMA_NLDEV_ATTR_RES_MR, RDMA_NLDEV_ATTR_RES_LKEY, mr_->lkey);
  ASSERT_TRUE(region);
  EXPECT_EQ(Netlink::value<std::uint64_t>(region->attributes(), RDMA_NLDEV_ATTR_RES_MRLEN), memory_.size());
  const auto domains = netlink_.dump(RDMA_NLDEV_CMD_RES_PD_GET, RDMA_NLDEV_ATTR_RES_PD);
  ASSERT_EQ(domains.size(), 1u);
  EXPECT_EQ(Netlink::value(domains[0].attributes(), RDMA_NLDEV_ATTR_RES_PDN),
            Netlink::value(region->attributes(), RDMA_NLDEV_ATTR_RES_PDN));
  EXPECT_EQ(Netlink::value<std::uint64_t>(domains[0].attributes(), RDMA_NLDEV_ATTR_RES_USECNT), 1u);
}

TEST_F(RdmaNetlink, region_moved_to_a_younger_domain_is_told_there) {
  Mr moved(ibv_reg_mr(pd_.get(), memory_.data(), 64, IBV_ACCESS_LOCAL_WRITE));
  const Pd younger(ibv_alloc_pd(context_.get()));
  ASSERT_NE(younger, nullptr);
  ASSERT_EQ(ibv_rereg_mr(moved.get(), IBV_REREG_MR_CHANGE_PD, younger.get(), nullptr, 0, 0), 0);
  const auto region =
      netlink_.find(RDMA_NLDEV_CMD_RES_MR_GET, RDMA_NLDEV_ATTR_RES_MR, RDMA_NLDEV_ATTR_RES_LKEY, moved->lkey);
  const auto other =
      netlink_.find(RDMA_NLDEV_CMD_RES_MR_GET, RDMA_NLDEV_ATTR_RES_MR, RDMA_NLDEV_ATTR_RES_LKEY, mr_->lkey);
  ASSERT_TRUE(region && other);
  EXPECT_NE(Netlink::value(region->attributes(), RDMA_NLDEV_ATTR_RES_PDN),
            Netlink::value(other->attributes(), RDMA_NLDEV_ATTR_RES_PDN));
  moved.reset();
}

// Far more than a socket holds.
TEST_F(RdmaNetlink, many_regions_are_all_told_and_counted) {
  constexpr std::uint32_t kRegions = 6000;
  std::vector<Mr> regions;
  for (std::uint32_t i = 0; i < kRegions; ++i) {
    regions.emplace_back(ibv_reg_mr(pd_.get(), memory_.data(), 64, IBV_ACCESS_LOCAL_WRITE));
    ASSERT_NE(regions.back(), nullptr);
  }
  EXPECT_EQ(summary("mr"), kRegions + 1);
  EXPECT_EQ(netlink_.dump(RDMA_NLDEV_CMD_RES_MR_GET, RDMA_NLDEV_ATTR_RES_MR).size(), kRegions + 1);
  regions.clear();
  EXPECT_EQ(summary("mr"), 1u);
  EXPECT_EQ(summary("pd"), 1u);
}

TEST_F(RdmaNetlink, one_resource_is_told_by_its_number) {
  const auto ask = [&](std::uint32_t number) {
    EXPECT_TRUE(netlink_.ask(RDMA_NLDEV_CMD_RES_MR_GET, 0,
                             {{RDMA_NLDEV_ATTR_DEV_INDEX, 0}, {RDMA_NLDEV_ATTR_RES_MRN, number}}));
    return netlink_.receive();
  };
  EXPECT_EQ(Netlink::value(Netlink::attributes_of(ask(mr_->lkey)), RDMA_NLDEV_ATTR_RES_RKEY), mr_->rkey);
  EXPECT_EQ(Netlink::error_of(ask(mr_->lkey + 1)), ENOENT);
}

TEST_F(RdmaNetlink, requests_that_name_nothing_are_refused) {
  const auto error = [&](std::uint16_t command, std::uint16_t flags, Netlink::Numbers numbers) {
    EXPECT_TRUE(netlink_.ask(command, flags, numbers));
    return Netlink::error_of(netlink_.receive());
  };
  EXPECT_EQ(error(RDMA_NLDEV_CMD_GET, 0, {}), EINVAL);
  EXPECT_EQ(error(RDMA_NLDEV_CMD_GET, 0, {{RDMA_NLDEV_ATTR_DEV_INDEX, 1}}), EINVAL);
  EXPECT_EQ(
      error(RDMA_NLDEV_CMD_PORT_GET, 0, {{RDMA_NLDEV_ATTR_DEV_INDEX, 0}, {RDMA_NLDEV_ATTR_PORT_INDEX, 2}}),
      EINVAL);
  EXPECT_EQ(error(RDMA_NLDEV_CMD_RES_QP_GET, NLM_F_DUMP, {}), EINVAL);
  EXPECT_EQ(error(RDMA_NLDEV_CMD_SET, 0, {{RDMA_NLDEV_ATTR_DEV_INDEX, 0}}), EOPNOTSUPP);
  EXPECT_EQ(error(RDMA_NLDEV_CMD_RES_CM_ID_GET, NLM_F_DUMP, {{RDMA_NLDEV_ATTR_DEV_INDEX, 0}}), EOPNOTSUPP);
  EXPECT_EQ(error(RDMA_NLDEV_CMD_GET_CHARDEV, 0, {}), EINVAL);
  constexpr std::array<std::uint16_t, 3> kUnknown{0, 8, 63};
  for (const std::uint16_t unknown : kUnknown) EXPECT_EQ(error(unknown, 0, {}), EINVAL) << unknown;
}

// Bytes of all kinds, from a seed: each datagram is answered or passed over, and the next request is
// answered.
TEST_F(RdmaNetlink, malformed_datagrams_do_no_harm) {
  constexpr std::uint32_t kSeed = 20260;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  const auto number = [&random](std::uint32_t below) { return static_cast<std::uint32_t>(random() % below); };
  ASSERT_EQ(fcntl(netlink_.fd(), F_SETFL, O_NONBLOCK), 0);
  for (int round = 0; round < 5000; ++round) {
    NetlinkMessage request(Netlink::type_of(number(32)), static_cast<std::uint16_t>(number(1 << 16)),
                           number(100), number(100));
    for (std::uint32_t i = number(4); i > 0; --i)
      request.put(static_cast<std::uint16_t>(number(100)), number(3));
    std::string datagram = request.finish();
    if (number(2) == 0) datagram[random() % datagram.size()] = static_cast<char>(number(256));
    if (number(4) == 0) datagram.resize(random() % datagram.size());
    ASSERT_TRUE(netlink_.send(datagram)) << errno;
    std::array<char, 8192> reply{};
    while (recv(netlink_.fd(), reply.data(), reply.size(), 0) > 0) {
    }
  }
  std::string half(8, '\0');
  ASSERT_TRUE(netlink_.send(half));
  char none = 0;
  EXPECT_EQ(recv(netlink_.fd(), &none, 1, 0), -1) << "a header cut short has no answer";
  EXPECT_EQ(errno, EAGAIN);
  errno = 0;
  EXPECT_FALSE(netlink_.send(std::string(1 << 20, '\0')));
  EXPECT_EQ(errno, EMSGSIZE);
  EXPECT_EQ(sendto(netlink_.fd(), reinterpret_cast<void*>(0x10), 64, 0, nullptr, 0), -1);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(netlink_.dump(RDMA_NLDEV_CMD_RES_MR_GET, RDMA_NLDEV_ATTR_RES_MR).size(), 1u);
}

TEST_F(RdmaNetlink, second_dump_waits_for_the_end_of_the_first) {
  std::vector<Mr> regions;
  for (int i = 0; i < 6000; ++i) {
    regions.emplace_back(ibv_reg_mr(pd_.get(), memory_.data(), 64, IBV_ACCESS_LOCAL_WRITE));
  }
  const auto ask = [&] {
    return netlink_.ask(RDMA_NLDEV_CMD_RES_MR_GET, NLM_F_DUMP, {{RDMA_NLDEV_ATTR_DEV_INDEX, 0}});
  };
  ASSERT_TRUE(ask());
  ASSERT_TRUE(ask());
  int busy = 0;
  for (int ends = 0; ends < 2;) {
    const std::optional<int> error = Netlink::error_of(netlink_.receive());
    ends += error ? 1 : 0;
    busy += error == EBUSY ? 1 : 0;
  }
  EXPECT_EQ(busy, 1);
}

// A caller in C cannot catch.
TEST_F(RdmaNetlink, lack_of_memory_is_an_errno) {
  NetlinkMessage message(Netlink::type_of(RDMA_NLDEV_CMD_SYS_GET), NLM_F_REQUEST, Netlink::kSequence, 0);
  const std::string request = message.finish();
  bool failed = false;
  for (long spared = 0;; ++spared) {
    allocations_left = spared;
    const ssize_t sent = send(netlink_.fd(), request.data(), request.size(), 0);
    const int error = errno;
    allocations_left = -1;
    if (sent > 0) break;
    ASSERT_EQ(error, ENOBUFS) << spared;
    failed = true;
  }
  EXPECT_TRUE(failed) << "no allocation of the library's was made to fail";
}

TEST_F(RdmaNetlink, descriptor_closed_is_an_ordinary_one_again) {
  int number = -1;
  {
    const Netlink closed;
    number = closed.fd();
  }
  const int file = open("/dev/null", O_RDWR | O_CLOEXEC);
  EXPECT_EQ(file, number);
  EXPECT_EQ(sendto(file, "x", 1, 0, nullptr, 0), -1);
  EXPECT_EQ(errno, ENOTSOCK);
  close(file);
}

}  // namespace
}  // namespace gdx::abi_tests
