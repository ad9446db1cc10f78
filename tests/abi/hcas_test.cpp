// Several software HCAs in one process.
#include <ifaddrs.h>
#include <net/if.h>
#include <rdma/rdma_cma.h>

#include <cstdlib>
#include <cstring>

#include "tests/abi/loopback.h"

namespace gdx::abi_tests {
namespace hcas_test {

constexpr int kHcas = 12;

class Hcas : public testing::Test {
 protected:
  // Runs before any lookup of devices.
  static void SetUpTestSuite() { setenv("GDX_SOFTHCA_HCAS", std::to_string(kHcas).c_str(), 1); }

  void SetUp() override {
    int count = 0;
    devices_.reset(ibv_get_device_list(&count));
    ASSERT_EQ(count, kHcas);
  }

  [[nodiscard]] ibv_device* device(int index) const { return devices_.get()[index]; }
  [[nodiscard]] Context open(int index) const { return Context(ibv_open_device(device(index))); }

  static ibv_gid gid_of(ibv_context* context) {
    ibv_gid gid{};
    EXPECT_EQ(ibv_query_gid(context, 1, 1, &gid), 0);
    return gid;
  }

  static sockaddr_in address_of(ibv_context* context, std::uint16_t port) {
    const ibv_gid gid = gid_of(context);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    std::memcpy(&address.sin_addr, gid.raw + 12, sizeof address.sin_addr);
    return address;
  }

  struct FreeList {
    void operator()(ibv_device** devices) const { ibv_free_device_list(devices); }
  };
  std::unique_ptr<ibv_device*, FreeList> devices_;
};

// A queue pair of one HCA, and all that it needs.
struct End {
  explicit End(Context opened) : context(std::move(opened)) {
    pd.reset(ibv_alloc_pd(context.get()));
    mr.reset(ibv_reg_mr(pd.get(), memory.data(), memory.size(), IBV_ACCESS_LOCAL_WRITE));
    cq.reset(ibv_create_cq(context.get(), 8, nullptr, nullptr, 0));
    ibv_qp_init_attr attributes{};
    attributes.qp_type = IBV_QPT_RC;
    attributes.send_cq = cq.get();
    attributes.recv_cq = cq.get();
    attributes.sq_sig_all = 1;
    attributes.cap = {
        .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 0};
    qp.reset(ibv_create_qp(pd.get(), &attributes));
  }

  void connect(const End& peer) const {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = 1;
    ASSERT_EQ(ibv_modify_qp(qp.get(), &attributes,
                            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
              0);
    attributes.qp_state = IBV_QPS_RTR;
    attributes.path_mtu = IBV_MTU_1024;
    attributes.dest_qp_num = peer.qp->qp_num;
    attributes.max_dest_rd_atomic = 1;
    attributes.min_rnr_timer = 1;
    attributes.ah_attr.is_global = 1;
    attributes.ah_attr.port_num = 1;
    attributes.ah_attr.grh.sgid_index = 1;
    attributes.ah_attr.grh.hop_limit = 64;
    ASSERT_EQ(ibv_query_gid(peer.context.get(), 1, 1, &attributes.ah_attr.grh.dgid), 0);
    ASSERT_EQ(ibv_modify_qp(qp.get(), &attributes,
                            IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
              0);
    attributes.qp_state = IBV_QPS_RTS;
    attributes.timeout = 21;  // 69 s for all tries: the other HCA's thread may stand still
    attributes.retry_cnt = 7;
    attributes.rnr_retry = 7;
    attributes.max_rd_atomic = 1;
    ASSERT_EQ(ibv_modify_qp(qp.get(), &attributes,
                            IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC),
              0);
  }

  [[nodiscard]] ibv_sge whole() {
    return {.addr = reinterpret_cast<std::uintptr_t>(memory.data()),
            .length = static_cast<std::uint32_t>(memory.size()),
            .lkey = mr->lkey};
  }
  int receive() {
    ibv_sge to = whole();
    ibv_recv_wr request{};
    request.sg_list = &to;
    request.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    return ibv_post_recv(qp.get(), &request, &bad);
  }
  int send() {
    ibv_sge from = whole();
    ibv_send_wr request{};
    request.sg_list = &from;
    request.num_sge = 1;
    request.opcode = IBV_WR_SEND;
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(qp.get(), &request, &bad);
  }
  [[nodiscard]] std::optional<ibv_wc> completion() const {
    ibv_wc found{};
    const auto end = std::chrono::steady_clock::now() + kHang;
    while (std::chrono::steady_clock::now() < end) {
      if (ibv_poll_cq(cq.get(), 1, &found) == 1) return found;
    }
    return std::nullopt;
  }

  std::array<std::byte, 8192> memory{};
  Context context;
  Pd pd;
  Mr mr;
  Cq cq;
  Qp qp;
};

void send_and_check(End& from, End& to, std::byte value) {
  from.memory.fill(value);
  to.memory.fill(std::byte{0});
  ASSERT_EQ(to.receive(), 0);
  ASSERT_EQ(from.send(), 0);
  const auto received = to.completion();
  ASSERT_TRUE(received);
  EXPECT_EQ(received->status, IBV_WC_SUCCESS);
  EXPECT_EQ(received->byte_len, to.memory.size());
  EXPECT_EQ(to.memory, from.memory);
  const auto sent = from.completion();
  ASSERT_TRUE(sent);
  EXPECT_EQ(sent->status, IBV_WC_SUCCESS);
}

TEST_F(Hcas, listed_are_in_order_with_addresses_that_follow_each_other) {
  std::uint32_t first = 0;
  for (int index = 0; index < kHcas; ++index) {
    EXPECT_EQ(ibv_get_device_name(device(index)), "gdx" + std::to_string(index));
    const Context context = open(index);
    ASSERT_NE(context, nullptr);
    const std::uint32_t address = ntohl(address_of(context.get(), 0).sin_addr.s_addr);
    if (index == 0) first = address;
    EXPECT_EQ(address, first + static_cast<std::uint32_t>(index));
  }
}

// A program that has a connection manager finds ports by the addresses of interfaces.
TEST_F(Hcas, interfaces_are_the_hosts_and_one_for_each_hca) {
  const Context context = open(0);
  sockaddr_in expected = address_of(context.get(), 0);
  ifaddrs* list = nullptr;
  ASSERT_EQ(getifaddrs(&list), 0);
  int index = 0;
  bool has_loopback = false;
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    has_loopback = has_loopback || (at->ifa_flags & IFF_LOOPBACK) != 0;
    if (at->ifa_name != "gdx" + std::to_string(index)) {
      EXPECT_EQ(index, 0) << at->ifa_name << " is behind an HCA";
      continue;
    }
    ++index;
    EXPECT_EQ(at->ifa_flags, unsigned{IFF_UP} | IFF_RUNNING);
    EXPECT_EQ(std::memcmp(at->ifa_addr, &expected, sizeof expected), 0) << at->ifa_name;
    sockaddr_in netmask{};
    netmask.sin_family = AF_INET;
    netmask.sin_addr.s_addr = htonl(IN_CLASSA_NET);
    EXPECT_EQ(std::memcmp(at->ifa_netmask, &netmask, sizeof netmask), 0);
    expected.sin_addr.s_addr = htonl(ntohl(expected.sin_addr.s_addr) + 1);
  }
  freeifaddrs(list);
  EXPECT_EQ(index, kHcas);
  EXPECT_TRUE(has_loopback);
}

TEST_F(Hcas, two_of_one_process_talk_to_each_other) {
  End left(open(0));
  End right(open(1));
  ASSERT_NO_FATAL_FAILURE(left.connect(right));
  ASSERT_NO_FATAL_FAILURE(right.connect(left));
  send_and_check(left, right, std::byte{0x5a});
  send_and_check(right, left, std::byte{0xa5});
}

TEST_F(Hcas, one_closed_and_opened_again_leaves_the_others_at_work) {
  End left(open(0));
  {
    End right(open(1));
    ASSERT_NO_FATAL_FAILURE(left.connect(right));
  }
  End again(open(1));
  End third(open(2));
  ASSERT_NO_FATAL_FAILURE(third.connect(again));
  ASSERT_NO_FATAL_FAILURE(again.connect(third));
  send_and_check(third, again, std::byte{0x3c});
  send_and_check(again, third, std::byte{0xc3});
}

TEST_F(Hcas, device_memory_is_each_ones_own) {
  constexpr std::size_t kBytes = 128 * 1024;  // all that one has
  ibv_alloc_dm_attr attributes{};
  attributes.length = kBytes;
  const Context left = open(0);
  const Context right = open(1);
  ibv_dm* const in_left = ibv_alloc_dm(left.get(), &attributes);
  ibv_dm* const in_right = ibv_alloc_dm(right.get(), &attributes);
  ASSERT_NE(in_left, nullptr);
  ASSERT_NE(in_right, nullptr);
  std::uint64_t word = 0x1111;
  EXPECT_EQ(ibv_memcpy_to_dm(in_left, 0, &word, sizeof word), 0);
  word = 0x2222;
  EXPECT_EQ(ibv_memcpy_to_dm(in_right, 0, &word, sizeof word), 0);
  EXPECT_EQ(ibv_memcpy_from_dm(&word, in_left, 0, sizeof word), 0);
  EXPECT_EQ(word, 0x1111u);
  EXPECT_EQ(ibv_free_dm(in_left), 0);
  EXPECT_EQ(ibv_free_dm(in_right), 0);
}

struct DestroyId {
  void operator()(rdma_cm_id* id) const { rdma_destroy_id(id); }
};
using Id = std::unique_ptr<rdma_cm_id, DestroyId>;

Id make_id() {
  rdma_cm_id* id = nullptr;
  EXPECT_EQ(rdma_create_id(nullptr, &id, nullptr, RDMA_PS_TCP), 0);
  return Id(id);
}

TEST_F(Hcas, rdma_cm_binds_to_the_one_whose_address_it_is) {
  for (const int index : {1, 0, kHcas - 1}) {
    const Context context = open(index);
    sockaddr_in address = address_of(context.get(), 0);
    const Id id = make_id();
    ASSERT_EQ(rdma_bind_addr(id.get(), reinterpret_cast<sockaddr*>(&address)), 0);
    ASSERT_NE(id->verbs, nullptr);
    EXPECT_STREQ(ibv_get_device_name(id->verbs->device), ibv_get_device_name(device(index)));
  }
}

TEST_F(Hcas, rdma_cm_leaves_by_the_one_whose_address_is_the_source) {
  const Context left = open(0);
  const Context right = open(1);
  sockaddr_in from = address_of(right.get(), 0);
  sockaddr_in to = address_of(left.get(), 7471);
  const Id id = make_id();
  constexpr int kLimitMs = 2000;
  ASSERT_EQ(rdma_resolve_addr(id.get(), reinterpret_cast<sockaddr*>(&from), reinterpret_cast<sockaddr*>(&to),
                              kLimitMs),
            0);
  EXPECT_STREQ(ibv_get_device_name(id->verbs->device), "gdx1");
}

}  // namespace hcas_test
}  // namespace gdx::abi_tests
