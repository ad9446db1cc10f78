// Paths of an InfiniBand port, which lead by LID.
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <fstream>

#include "tests/abi/loopback.h"

namespace gdx::abi_tests {
namespace infiniband_test {

class InfiniBand : public Loopback {
 protected:
  void SetUp() override {
    Loopback::SetUp();
    ibv_port_attr port{};
    ASSERT_EQ(ibv_query_port(context_.get(), 1, &port), 0);
    ASSERT_EQ(port.link_layer, IBV_LINK_LAYER_INFINIBAND);
    path_.dlid = port.lid;
    path_.port_num = 1;
    cq_ = make_cq();
    ASSERT_NE(cq_, nullptr);
  }

  // With a GRH, whose destination is no port.
  ibv_ah_attr global_path() const {
    ibv_ah_attr path = path_;
    path.is_global = 1;
    path.grh.dgid = {.raw = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};
    path.grh.hop_limit = 1;
    return path;
  }

  int post_datagram(ibv_qp* qp, ibv_ah* to) {
    ibv_sge from = piece(4096, 8);
    ibv_send_wr request{};
    request.sg_list = &from;
    request.num_sge = 1;
    request.opcode = IBV_WR_SEND;
    request.wr.ud = {.ah = to, .remote_qpn = qp->qp_num, .remote_qkey = kQkey};
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(qp, &request, &bad);
  }

  ibv_ah_attr path_{};  // to this port
  Cq cq_;
};

TEST_F(InfiniBand, queue_pair_goes_by_lid_with_and_without_a_grh) {
  for (const ibv_ah_attr& path : {path_, global_path()}) {
    SCOPED_TRACE(static_cast<int>(path.is_global));
    const Qp qp = make_qp(cq_.get());
    ASSERT_EQ(to_init(qp.get()), 0);
    ASSERT_EQ(to_rtr(qp.get(), qp->qp_num, path), 0);
    ASSERT_EQ(to_rts(qp.get()), 0);
    ASSERT_EQ(post_receive(qp.get(), piece(0, 64)), 0);
    ASSERT_EQ(post_send(qp.get(), piece(4096, 64)), 0);
    for (int i = 0; i < 2; ++i) {
      const auto completion = await(cq_.get());
      ASSERT_TRUE(completion);
      EXPECT_EQ(completion->status, IBV_WC_SUCCESS);
    }
  }
}

TEST_F(InfiniBand, path_without_a_lid_is_refused) {
  for (ibv_ah_attr path : {path_, global_path()}) {
    path.dlid = 0;
    const Qp qp = make_qp(cq_.get());
    ASSERT_EQ(to_init(qp.get()), 0);
    EXPECT_EQ(to_rtr(qp.get(), qp->qp_num, path), EINVAL) << static_cast<int>(path.is_global);
  }
}

TEST_F(InfiniBand, datagram_says_whose_lid_it_came_from_and_can_be_answered) {
  const Qp qp = make_qp(cq_.get(), IBV_QPT_UD);
  connect(qp.get(), 0);
  ibv_ah_attr back{};
  for (const ibv_ah_attr& path : {path_, global_path()}) {
    SCOPED_TRACE(static_cast<int>(path.is_global));
    ibv_ah_attr attributes = path;
    const Ah ah(ibv_create_ah(pd_.get(), &attributes));
    ASSERT_NE(ah, nullptr);
    ASSERT_EQ(post_receive(qp.get(), piece(0, 64)), 0);
    ASSERT_EQ(post_datagram(qp.get(), ah.get()), 0);
    for (int i = 0; i < 2; ++i) {
      auto completion = await(cq_.get());
      ASSERT_TRUE(completion);
      EXPECT_EQ(completion->status, IBV_WC_SUCCESS);
      if (completion->opcode != IBV_WC_RECV) continue;
      EXPECT_EQ(completion->slid, path_.dlid);
      EXPECT_EQ(completion->src_qp, qp->qp_num);
      EXPECT_EQ((completion->wc_flags & IBV_WC_GRH) != 0, path.is_global != 0);
      // libibverbs reads the header's place in any case.
      auto* const header = reinterpret_cast<ibv_grh*>(memory_.data());
      ASSERT_EQ(ibv_init_ah_from_wc(context_.get(), 1, &*completion, header, &back), 0);
    }
    EXPECT_EQ(back.dlid, path_.dlid);
    EXPECT_EQ(back.is_global, path.is_global);
  }
}

TEST_F(InfiniBand, datagram_without_a_receive_is_counted) {
  const auto counted = [] {
    std::int64_t value = -1;
    std::ifstream("/sys/class/infiniband/gdx0/ports/1/hw_counters/out_of_buffer") >> value;
    return value;
  };
  const Qp qp = make_qp(cq_.get(), IBV_QPT_UD);
  connect(qp.get(), 0);
  ibv_ah_attr attributes = path_;
  const Ah ah(ibv_create_ah(pd_.get(), &attributes));
  ASSERT_NE(ah, nullptr);
  const std::int64_t before = counted();
  ASSERT_EQ(post_datagram(qp.get(), ah.get()), 0);
  ASSERT_TRUE(await(cq_.get()));
  const auto end = std::chrono::steady_clock::now() + kHang;
  while (counted() == before && std::chrono::steady_clock::now() < end) {
  }
  EXPECT_EQ(counted(), before + 1);
}

}  // namespace infiniband_test
}  // namespace gdx::abi_tests
