// RDMA netlink as libibverbs and `rdma` speak it: what a process has made is told, whatever is malformed is
// refused.
#include <fcntl.h>
#include <poll.h>

#include <cerrno>
#include <random>

#include "tests/abi/loopback.h"
#include "tests/abi/netlink.h"

namespace gdx::abi_tests {
namespace {

class RdmaNetlink : public Loopback {
 protected:
  std::uint32_t summary(const char* name) {
    EXPECT_TRUE(netlink_.ask(RDMA_NLDEV_CMD_RES_GET, 0, {{RDMA_NLDEV_ATTR_DEV_INDEX, 0}}));
    const std::vector<std::byte> message = netlink_.receive();
    std::span<const std::byte> rest = Netlink::attributes_of(message).at(RDMA_NLDEV_ATTR_RES_SUMMARY);
    while (rest.size() >= sizeof(nlattr)) {
      nlattr header{};
      std::memcpy(&header, rest.data(), sizeof header);
      const NetlinkAttributes entry =
          netlink_attributes(rest.subspan(sizeof header, header.nla_len - sizeof header));
      const auto* const text =
          reinterpret_cast<const char*>(entry.at(RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_NAME).data());
      if (std::string_view(text) == name) {
        return static_cast<std::uint32_t>(
            Netlink::value<std::uint64_t>(entry, RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_CURR));
      }
      rest = rest.subspan(std::min<std::size_t>(NLA_ALIGN(header.nla_len), rest.size()));
    }
    ADD_FAILURE() << "no " << name << " in the summary";
    return 0;
  }

  Netlink netlink_;
};

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
  EXPECT_EQ(Netlink::error_of(netlink_.receive()), EINVAL) << "a header cut short";
  errno = 0;
  EXPECT_FALSE(netlink_.send(std::string(1 << 20, '\0')));
  EXPECT_EQ(errno, EMSGSIZE);
  EXPECT_EQ(sendto(netlink_.fd(), reinterpret_cast<void*>(0x10), 64, 0, nullptr, 0), -1);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(netlink_.dump(RDMA_NLDEV_CMD_RES_MR_GET, RDMA_NLDEV_ATTR_RES_MR).size(), 1u);
}

TEST_F(RdmaNetlink, socket_has_a_port_and_hears_no_groups) {
  sockaddr_nl own{};
  socklen_t length = sizeof own;
  ASSERT_EQ(getsockname(netlink_.fd(), reinterpret_cast<sockaddr*>(&own), &length), 0);
  EXPECT_EQ(length, sizeof own);
  EXPECT_EQ(own.nl_family, AF_NETLINK);
  EXPECT_NE(own.nl_pid, 0u);
  own.nl_pid = 4711;
  ASSERT_EQ(bind(netlink_.fd(), reinterpret_cast<sockaddr*>(&own), sizeof own), 0);
  ASSERT_TRUE(netlink_.ask(RDMA_NLDEV_CMD_SYS_GET, NLM_F_ACK));
  EXPECT_EQ(Netlink::header_of(netlink_.receive()).nlmsg_pid, 4711u);
  EXPECT_EQ(Netlink::error_of(netlink_.receive()), 0) << "the acknowledgement";
  own.nl_groups = 1;
  EXPECT_EQ(bind(netlink_.fd(), reinterpret_cast<sockaddr*>(&own), sizeof own), -1);
  EXPECT_EQ(errno, EOPNOTSUPP);
  EXPECT_EQ(bind(netlink_.fd(), nullptr, 0), -1);
  EXPECT_EQ(errno, EINVAL);
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
