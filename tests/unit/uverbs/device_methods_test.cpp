// Methods on the device: what they answer, whole, and what they refuse.
#include <unistd.h>

#include <algorithm>

#include "driver-shim/softhca/engine/memory_table.h"
#include "driver-shim/softhca/engine/paging.h"
#include "driver-shim/softhca/uverbs/newer_ids.h"
#include "driver-shim/softhca/wire/addressing.h"
#include "driver-shim/softhca/wire/interface.h"
#include "tests/unit/uverbs/device_node.h"

namespace gdx::softhca::uverbs {
namespace device_methods_test {

HcaConfig config_of(std::uint32_t mtu_bytes, bool infiniband) {
  HcaConfig config;
  config.mtu_bytes = mtu_bytes;
  config.infiniband = infiniband;
  return config;
}

// Not open yet.
class DeviceMethods : public DeviceNode {
 protected:
  DeviceMethods() : DeviceNode(config_of(1024, false)) {}
  void SetUp() override {}
  static mlx5_ib_alloc_ucontext_resp context_answer(std::uint8_t cqe_version) {
    mlx5_ib_alloc_ucontext_resp answer{};
    answer.qp_tab_size = 262144;
    answer.bf_reg_size = 512;
    answer.cache_line_size = 64;
    answer.max_sq_desc_sz = 1024;
    answer.max_rq_desc_sz = 512;
    answer.max_send_wqebb = 32768;
    answer.max_recv_wr = 32768;
    answer.max_srq_recv_wr = 32767;
    answer.num_ports = 1;
    answer.comp_mask = 2;  // the key of DUMP_FILL
    answer.response_length = sizeof answer;
    answer.cqe_version = cqe_version;
    answer.cmds_supp_uhw = 3;
    answer.eth_min_inline = 1;  // none
    answer.log_uar_size = 12;
    answer.num_uars_per_page = 1;
    answer.num_dyn_bfregs = 512;
    answer.dump_fill_mkey = MemoryTable::kNullMkey;
    return answer;
  }
  Errno get_context(const mlx5_ib_alloc_ucontext_req_v2& asked, std::size_t bytes = sizeof asked) {
    auto request = make(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT);
    request.in(UVERBS_ATTR_UHW_IN, asked).resize(UVERBS_ATTR_UHW_IN, bytes);
    return request.run(*context_);
  }
  template <typename Port>
  Request ask_port(std::uint16_t method, std::uint16_t id, Port port, std::uint16_t answer,
                   std::size_t bytes) {
    Request request(UVERBS_OBJECT_DEVICE, method, nothing_);
    request.in(id, port).out(answer, bytes);
    return request;
  }
  ib_uverbs_query_port_resp_ex port() {
    auto request = ask_port(UVERBS_METHOD_QUERY_PORT, UVERBS_ATTR_QUERY_PORT_PORT_NUM, std::uint64_t{1},
                            UVERBS_ATTR_QUERY_PORT_RESP, sizeof(ib_uverbs_query_port_resp_ex));
    EXPECT_EQ(request.run(*context_), 0);
    return request.answer<ib_uverbs_query_port_resp_ex>(UVERBS_ATTR_QUERY_PORT_RESP);
  }
};

class InfinibandMethods : public DeviceMethods {
 protected:
  explicit InfinibandMethods(const HcaConfig& config = config_of(4096, true)) {
    hca_ = std::make_unique<NotingEngine>(config, std::make_unique<EchoWire>(), device_memory_.memory(),
                                          [this] { return ++random_; });
    context_ = std::make_unique<Context>(*hca_, *PageFile::create(device_memory_), channels_);
    context_->opened = true;
  }
};

TEST_F(DeviceMethods, context_is_described_whole_and_to_none_twice) {
  for (std::uint8_t version = 0; version < 3; ++version) {
    context_->opened = false;
    mlx5_ib_alloc_ucontext_req_v2 asked{};
    asked.max_cqe_version = version;
    auto request = make(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT);
    request.in(UVERBS_ATTR_UHW_IN, asked)
        .out(UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, 4)
        .out(UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, 8)
        .out(UVERBS_ATTR_UHW_OUT, sizeof(mlx5_ib_alloc_ucontext_resp));
    ASSERT_EQ(request.run(*context_), 0);
    EXPECT_EQ(request.answer<std::uint32_t>(UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS), 1u);
    EXPECT_EQ(request.answer<std::uint64_t>(UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT), 1u);
    EXPECT_EQ(bytes_of(request.answer<mlx5_ib_alloc_ucontext_resp>(UVERBS_ATTR_UHW_OUT)),
              bytes_of(context_answer(std::min<std::uint8_t>(version, 1))));
    EXPECT_FALSE(context_->devx);
    EXPECT_EQ(request.run(*context_), EINVAL);
  }
  auto query = make(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_CONTEXT);
  query.out(UVERBS_ATTR_QUERY_CONTEXT_NUM_COMP_VECTORS, 4)
      .out(UVERBS_ATTR_QUERY_CONTEXT_CORE_SUPPORT, 8)
      .out(MLX5_IB_ATTR_QUERY_CONTEXT_RESP_UCTX, sizeof(mlx5_ib_alloc_ucontext_resp));
  ASSERT_EQ(query.run(*context_), 0);
  EXPECT_EQ(query.answer<std::uint32_t>(UVERBS_ATTR_QUERY_CONTEXT_NUM_COMP_VECTORS), 1u);
  EXPECT_EQ(query.answer<std::uint64_t>(UVERBS_ATTR_QUERY_CONTEXT_CORE_SUPPORT), 1u);
  EXPECT_EQ(bytes_of(query.answer<mlx5_ib_alloc_ucontext_resp>(MLX5_IB_ATTR_QUERY_CONTEXT_RESP_UCTX)),
            bytes_of(context_answer(1)));
}

TEST_F(DeviceMethods, context_of_unknown_wishes_or_unwritable_answers_is_refused_and_stays_closed) {
  mlx5_ib_alloc_ucontext_req_v2 asked{};
  EXPECT_EQ(make(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT).run(*context_), EINVAL);
  EXPECT_EQ(get_context(asked, 7), EINVAL);
  asked.comp_mask = 1;
  EXPECT_EQ(get_context(asked), EINVAL);
  asked.comp_mask = 0;
  asked.flags = 2;
  EXPECT_EQ(get_context(asked), EINVAL);
  asked.flags = MLX5_IB_ALLOC_UCTX_DEVX;
  for (const std::uint16_t id :
       std::initializer_list<std::uint16_t>{UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS,
                                            UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, UVERBS_ATTR_UHW_OUT}) {
    auto request = make(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT);
    request.in(UVERBS_ATTR_UHW_IN, asked).out(id, 4).redirect(id, kNowhere);
    EXPECT_EQ(request.run(*context_), EFAULT) << id;
  }
  EXPECT_FALSE(context_->opened);
  EXPECT_EQ(error_of(IB_USER_VERBS_CMD_ALLOC_PD, ib_uverbs_alloc_pd{}), EINVAL);
  EXPECT_EQ(make(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_CONTEXT).run(*context_), EINVAL);
  EXPECT_EQ(get_context(asked, sizeof(mlx5_ib_alloc_ucontext_req)), 0) << "as the oldest libmlx5 asks";
  EXPECT_FALSE(context_->devx);
}

TEST_F(DeviceMethods, port_is_described_whole) {
  open(0);
  ib_uverbs_query_port_resp_ex expected{};
  expected.legacy_resp.port_cap_flags = 1u << 16 | 1u << 26;
  expected.legacy_resp.max_msg_sz = 1u << 30;
  expected.legacy_resp.gid_tbl_len = 2;
  expected.legacy_resp.pkey_tbl_len = 1;
  expected.legacy_resp.lid = 2;  // of 127.0.0.2
  expected.legacy_resp.state = 4;
  expected.legacy_resp.max_mtu = 5;
  expected.legacy_resp.active_mtu = 3;
  expected.legacy_resp.max_vl_num = 1;
  expected.legacy_resp.active_width = 2;
  expected.legacy_resp.active_speed = 32;
  expected.legacy_resp.phys_state = 5;
  expected.legacy_resp.link_layer = 2;
  expected.legacy_resp.flags = 1;  // a GRH is required
  EXPECT_EQ(bytes_of(port()), bytes_of(expected));
  auto speed = ask_port(kMethodQueryPortSpeed, kAttrQueryPortSpeedPortNum, std::uint64_t{1},
                        kAttrQueryPortSpeedResp, 8);
  ASSERT_EQ(speed.run(*context_), 0);
  EXPECT_EQ(speed.answer<std::uint64_t>(kAttrQueryPortSpeedResp), 1000u);
  auto place = ask_port(MLX5_IB_METHOD_QUERY_PORT, MLX5_IB_ATTR_QUERY_PORT_PORT_NUM, std::uint32_t{1},
                        MLX5_IB_ATTR_QUERY_PORT, sizeof(mlx5_ib_uapi_query_port));
  ASSERT_EQ(place.run(*context_), 0);
  EXPECT_EQ(bytes_of(place.answer<mlx5_ib_uapi_query_port>(MLX5_IB_ATTR_QUERY_PORT)),
            bytes_of(mlx5_ib_uapi_query_port{}));
  EXPECT_NE(place.after(MLX5_IB_ATTR_QUERY_PORT).flags & UVERBS_ATTR_F_VALID_OUTPUT, 0);
}

TEST_F(DeviceMethods, data_direct_is_not_there) {
  open(0);
  Request request(UVERBS_OBJECT_DEVICE, kMethodGetDataDirectSysfsPath, nothing_);
  EXPECT_EQ(request.out(kAttrGetDataDirectSysfsPath, 64).run(*context_), ENODEV);
}

TEST_F(InfinibandMethods, port_has_a_subnet_manager_and_needs_no_grh) {
  const ib_uverbs_query_port_resp base = port().legacy_resp;
  EXPECT_EQ(base.active_mtu, 5);
  EXPECT_EQ(base.link_layer, 1);
  EXPECT_EQ(base.lid, 2);
  EXPECT_EQ(base.sm_lid, 1);
  EXPECT_EQ(base.flags, 0);
}

class VirtualFunctionMethods : public InfinibandMethods {
 protected:
  VirtualFunctionMethods() : InfinibandMethods(config()) {}
  static HcaConfig config() {
    HcaConfig made = config_of(4096, true);
    made.grh_required = true;
    made.pkeys = {0xffff, 0x8001, 0};
    return made;
  }
};

TEST_F(VirtualFunctionMethods, port_needs_a_grh_and_has_a_p_key_table) {
  const ib_uverbs_query_port_resp base = port().legacy_resp;
  EXPECT_EQ(base.link_layer, 1);
  EXPECT_EQ(base.flags, 1);
  EXPECT_EQ(base.pkey_tbl_len, 3);
  EXPECT_EQ(
      answer<ib_uverbs_query_device_resp>(IB_USER_VERBS_CMD_QUERY_DEVICE, ib_uverbs_query_device{}).max_pkeys,
      3);
}

TEST_F(DeviceMethods, port_that_is_not_there_is_refused_by_each_query) {
  open(0);
  for (const std::uint32_t number : {0u, 2u}) {
    const std::uint64_t wide = number;
    EXPECT_EQ(ask_port(UVERBS_METHOD_QUERY_PORT, UVERBS_ATTR_QUERY_PORT_PORT_NUM, wide, 90, 8).run(*context_),
              EPROTONOSUPPORT);
    EXPECT_EQ(ask_port(UVERBS_METHOD_QUERY_PORT, UVERBS_ATTR_QUERY_PORT_PORT_NUM, wide,
                       UVERBS_ATTR_QUERY_PORT_RESP, 8)
                  .run(*context_),
              EINVAL);
    EXPECT_EQ(ask_port(kMethodQueryPortSpeed, kAttrQueryPortSpeedPortNum, wide, kAttrQueryPortSpeedResp, 8)
                  .run(*context_),
              EINVAL);
    EXPECT_EQ(ask_port(MLX5_IB_METHOD_QUERY_PORT, MLX5_IB_ATTR_QUERY_PORT_PORT_NUM, number,
                       MLX5_IB_ATTR_QUERY_PORT, 8)
                  .run(*context_),
              EINVAL);
    auto gid = ask_port(UVERBS_METHOD_QUERY_GID_ENTRY, UVERBS_ATTR_QUERY_GID_ENTRY_PORT, wide,
                        UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY, sizeof(ib_uverbs_gid_entry));
    EXPECT_EQ(gid.in(UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX, std::uint64_t{1}).run(*context_), EINVAL);
  }
}

TEST_F(DeviceMethods, gids_are_the_ports_one_by_one_and_in_tables_of_any_step) {
  open(0);
  std::array<ib_uverbs_gid_entry, 2> entries{};
  for (std::uint32_t index = 0; index < 2; ++index) {
    const wire::Gid gid = wire::gid_of(hca_->address(), static_cast<std::uint8_t>(index));
    std::memcpy(entries[index].gid, gid.data(), gid.size());
    entries[index].gid_index = index;
    entries[index].port_num = 1;
    entries[index].gid_type = 2;  // RoCE v2
    entries[index].netdev_ifindex = wire::interface_of(hca_->address()).index;
  }
  const auto one = [this](std::uint64_t index, std::uint32_t flags) {
    auto request = make(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_GID_ENTRY);
    request.in(UVERBS_ATTR_QUERY_GID_ENTRY_PORT, std::uint64_t{1})
        .in(UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX, index)
        .in(UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS, flags)
        .out(UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY, sizeof(ib_uverbs_gid_entry));
    const Errno error = request.run(*context_);
    return std::pair(error,
                     bytes_of(request.answer<ib_uverbs_gid_entry>(UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY)));
  };
  EXPECT_EQ(one(0, 0), std::pair(0, bytes_of(entries[0])));
  EXPECT_EQ(one(1, 0), std::pair(0, bytes_of(entries[1])));
  EXPECT_EQ(one(2, 0).first, EINVAL);
  EXPECT_EQ(one(1, 1).first, EINVAL);
  using Table = std::array<std::uint8_t, 8192>;
  const auto table = [this](std::uint64_t step, std::size_t room, std::uint32_t flags) {
    auto request = make(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_GID_TABLE);
    request.in(UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE, step)
        .in(UVERBS_ATTR_QUERY_GID_TABLE_FLAGS, flags)
        .out(UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES, room)
        .out(UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES, 8);
    const Errno error = request.run(*context_);
    const auto told = request.answer<Table>(UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES);
    EXPECT_EQ(request.answer<std::uint64_t>(UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES),
              error == 0 ? 2 : 0);
    return std::pair(error, told);
  };
  for (const std::size_t step : {sizeof entries[0], sizeof entries[0] + 8, std::size_t{4096}}) {
    Table expected{};
    for (std::size_t i = 0; i < 2; ++i) std::memcpy(&expected[i * step], &entries[i], sizeof entries[i]);
    EXPECT_EQ(table(step, 2 * step, 0), std::pair(0, expected)) << step;
    EXPECT_EQ(table(step, 2 * step - 1, 0).first, EINVAL) << step;
  }
  EXPECT_EQ(table(sizeof entries[0] - 1, 8192, 0).first, EINVAL);
  EXPECT_EQ(table(4097, 9000, 0).first, EINVAL);
  EXPECT_EQ(table(32, 8192, 1).first, EINVAL);
}

TEST_F(DeviceMethods, device_is_described_whole_in_either_form) {
  open(0);
  ib_uverbs_query_device_resp expected{};
  expected.fw_ver = 28ull << 32;
  expected.node_guid = expected.sys_image_guid = __builtin_bswap64(wire::guid_of(hca_->address()));
  expected.max_mr_size = ~0ull;
  expected.page_size_cap = ~0xfffull;
  expected.vendor_id = 0x02c9;
  expected.vendor_part_id = 0x1021;
  expected.max_qp = expected.max_cq = expected.max_mr = expected.max_mw = expected.max_pd = 262144;
  expected.max_ah = expected.max_srq = 262144;
  expected.max_qp_wr = 32768;
  expected.device_cap_flags = 1u << 10 | 1u << 11 | 1u << 12 | 1u << 17 | 1u << 21 | 1u << 24;
  expected.max_sge = expected.max_sge_rd = 30;
  expected.max_cqe = 4194303;
  expected.max_qp_rd_atom = expected.max_qp_init_rd_atom = 16;
  expected.max_res_rd_atom = 262144 * 16;
  expected.atomic_cap = 1;
  expected.max_srq_wr = 32767;
  expected.max_srq_sge = 31;
  expected.max_pkeys = 1;
  expected.local_ca_ack_delay = 16;
  expected.phys_port_cnt = 1;
  const auto plain =
      answer<ib_uverbs_query_device_resp>(IB_USER_VERBS_CMD_QUERY_DEVICE, ib_uverbs_query_device{});
  EXPECT_EQ(bytes_of(plain), bytes_of(expected));

  constexpr std::uint64_t kExtended = IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_EX_CMD_QUERY_DEVICE;
  ib_uverbs_ex_query_device_resp more{};
  more.base = expected;
  more.device_cap_flags_ex = expected.device_cap_flags;
  more.max_dm_size = kDeviceMemoryBytes;
  if (can_page_in()) {
    more.odp_caps.general_caps = 3;
    more.odp_caps.per_transport_caps.rc_odp_caps = 0x3f;
    more.odp_caps.per_transport_caps.ud_odp_caps = 1;
  }
  mlx5_ib_query_device_resp driver{};
  driver.flags = MLX5_IB_QUERY_DEV_RESP_FLAGS_CQE_128B_PAD;
  for (const std::size_t less : {std::size_t{0}, std::size_t{8}}) {
    more.response_length = static_cast<std::uint32_t>(sizeof more - less);
    driver.response_length = static_cast<std::uint32_t>(sizeof driver - less);
    auto request = command(kExtended, ib_uverbs_ex_query_device{}, sizeof more - less);
    request.out(UVERBS_ATTR_UHW_OUT, sizeof driver - less);
    ASSERT_EQ(request.run(*context_), 0);
    if (less != 0) more.xrc_odp_caps = more.reserved = 0;
    EXPECT_EQ(bytes_of(request.answer<ib_uverbs_ex_query_device_resp>(UVERBS_ATTR_CORE_OUT)), bytes_of(more));
    EXPECT_EQ(bytes_of(request.answer<mlx5_ib_query_device_resp>(UVERBS_ATTR_UHW_OUT)), bytes_of(driver));
  }
  EXPECT_EQ(error_of(kExtended, ib_uverbs_ex_query_device{1, 0}, sizeof more), EINVAL);
  EXPECT_EQ(error_of(kExtended, ib_uverbs_ex_query_device{0, 1}, sizeof more), EINVAL);
  EXPECT_EQ(error_of(kExtended, ib_uverbs_ex_query_device{}, sizeof expected - 1), ENOSPC);
}

TEST_F(DeviceMethods, domain_has_its_number_and_lasts_while_something_stands_on_it) {
  open(0);
  auto request = command(IB_USER_VERBS_CMD_ALLOC_PD, ib_uverbs_alloc_pd{}, 4);
  ASSERT_EQ(request.out(UVERBS_ATTR_UHW_OUT, 4).run(*context_), 0);
  const auto pd = request.answer<std::uint32_t>(UVERBS_ATTR_CORE_OUT);
  EXPECT_EQ(request.answer<std::uint32_t>(UVERBS_ATTR_UHW_OUT), number_of(pd));
  auto query = make(UVERBS_OBJECT_PD, MLX5_IB_METHOD_PD_QUERY);
  query.handle(MLX5_IB_ATTR_QUERY_PD_HANDLE, pd).out(MLX5_IB_ATTR_QUERY_PD_RESP_PDN, 4);
  ASSERT_EQ(query.run(*context_), 0);
  EXPECT_EQ(query.answer<std::uint32_t>(MLX5_IB_ATTR_QUERY_PD_RESP_PDN), number_of(pd));
  for (const std::uint16_t id :
       std::initializer_list<std::uint16_t>{UVERBS_ATTR_CORE_OUT, UVERBS_ATTR_UHW_OUT}) {
    auto refused = command(IB_USER_VERBS_CMD_ALLOC_PD, ib_uverbs_alloc_pd{}, 4);
    refused.out(UVERBS_ATTR_UHW_OUT, 4).redirect(id, kNowhere);
    EXPECT_EQ(refused.run(*context_), EFAULT);
    EXPECT_EQ(objects(), 1u);
  }
  ib_uverbs_create_ah ah{};
  ah.pd_handle = pd;
  ah.attr.port_num = 1;
  ah.attr.is_global = 1;
  ah.attr.grh.sgid_index = 1;
  const wire::Gid gid = wire::gid_of(wire::Address::ipv4(0x7f010203), 1);
  std::copy(gid.begin(), gid.end(), ah.attr.grh.dgid);
  auto made = command(IB_USER_VERBS_CMD_CREATE_AH, ah, 4);
  ASSERT_EQ(made.out(UVERBS_ATTR_UHW_OUT, sizeof(mlx5_ib_create_ah_resp)).run(*context_), 0);
  const auto handle = made.answer<std::uint32_t>(UVERBS_ATTR_CORE_OUT);
  mlx5_ib_create_ah_resp driver{};
  driver.response_length = sizeof driver;
  constexpr std::array<std::uint8_t, 6> kMac{2, 0x67, 0x7f, 1, 2, 3};
  std::copy(kMac.begin(), kMac.end(), driver.dmac);
  EXPECT_EQ(bytes_of(made.answer<mlx5_ib_create_ah_resp>(UVERBS_ATTR_UHW_OUT)), bytes_of(driver));
  made.redirect(UVERBS_ATTR_UHW_OUT, kNowhere);
  EXPECT_EQ(made.run(*context_), EFAULT);
  EXPECT_EQ(objects(), 2u);
  EXPECT_EQ(destroy(UVERBS_OBJECT_PD, UVERBS_METHOD_PD_DESTROY, pd), EBUSY);
  const auto refused = [this, known = &ah](auto change) {
    ib_uverbs_create_ah wrong = *known;
    change(wrong);
    return error_of(IB_USER_VERBS_CMD_CREATE_AH, wrong);
  };
  EXPECT_EQ(refused([](auto& it) { it.attr.port_num = 2; }), EINVAL);
  EXPECT_EQ(refused([](auto& it) { it.attr.is_global = 0; }), EINVAL);
  EXPECT_EQ(refused([](auto& it) { it.attr.grh.sgid_index = 2; }), EINVAL);
  EXPECT_EQ(refused([](auto& it) { it.pd_handle = 99; }), EINVAL);
  EXPECT_EQ(destroy(UVERBS_OBJECT_AH, UVERBS_METHOD_AH_DESTROY, pd), EINVAL);
  EXPECT_EQ(destroy(UVERBS_OBJECT_AH, UVERBS_METHOD_AH_DESTROY, handle), 0);
  EXPECT_EQ(destroy(UVERBS_OBJECT_PD, UVERBS_METHOD_PD_DESTROY, pd), 0);
}

TEST_F(DeviceMethods, handle_that_is_missing_unknown_too_long_or_of_another_kind_is_refused_by_each_method) {
  open(MLX5_IB_ALLOC_UCTX_DEVX);
  const std::uint32_t pd = alloc_pd();
  const std::uint32_t number = add_uar();
  const std::uint32_t uar = pd + 1;
  ASSERT_EQ(number_of(uar), number);
  struct Method {
    std::uint16_t object, method, id;
  };
  constexpr Method kMethods[] = {
      {UVERBS_OBJECT_PD, UVERBS_METHOD_PD_DESTROY, UVERBS_ATTR_DESTROY_PD_HANDLE},
      {UVERBS_OBJECT_PD, MLX5_IB_METHOD_PD_QUERY, MLX5_IB_ATTR_QUERY_PD_HANDLE},
      {UVERBS_OBJECT_MR, UVERBS_METHOD_ADVISE_MR, UVERBS_ATTR_ADVISE_MR_PD_HANDLE},
      {UVERBS_OBJECT_MR, UVERBS_METHOD_MR_DESTROY, UVERBS_ATTR_DESTROY_MR_HANDLE},
      {UVERBS_OBJECT_MR, UVERBS_METHOD_QUERY_MR, UVERBS_ATTR_QUERY_MR_HANDLE},
      {UVERBS_OBJECT_MW, UVERBS_METHOD_MW_DESTROY, UVERBS_ATTR_DESTROY_MW_HANDLE},
      {UVERBS_OBJECT_DM, UVERBS_METHOD_DM_FREE, UVERBS_ATTR_FREE_DM_HANDLE},
      {UVERBS_OBJECT_DM, MLX5_IB_METHOD_DM_QUERY, MLX5_IB_ATTR_QUERY_DM_REQ_HANDLE},
      {UVERBS_OBJECT_AH, UVERBS_METHOD_AH_DESTROY, UVERBS_ATTR_DESTROY_AH_HANDLE},
      {UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_DESTROY, UVERBS_ATTR_DESTROY_CQ_HANDLE},
      {UVERBS_OBJECT_QP, UVERBS_METHOD_QP_DESTROY, UVERBS_ATTR_DESTROY_QP_HANDLE},
      {UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_DESTROY, UVERBS_ATTR_DESTROY_SRQ_HANDLE},
      {MLX5_IB_OBJECT_UAR, MLX5_IB_METHOD_UAR_OBJ_DESTROY, MLX5_IB_ATTR_UAR_OBJ_DESTROY_HANDLE},
      {MLX5_IB_OBJECT_DEVX_UMEM, MLX5_IB_METHOD_DEVX_UMEM_DEREG, MLX5_IB_ATTR_DEVX_UMEM_DEREG_HANDLE},
      {MLX5_IB_OBJECT_DEVX_OBJ, MLX5_IB_METHOD_DEVX_OBJ_DESTROY, MLX5_IB_ATTR_DEVX_OBJ_DESTROY_HANDLE}};
  for (const Method& method : kMethods) {
    const bool of_pds = &method - kMethods < 3;
    const std::uint32_t other = of_pds ? uar : pd;
    const auto run = [&](std::uint64_t handle) {
      return make(method.object, method.method).handle(method.id, handle).run(*context_);
    };
    EXPECT_EQ(make(method.object, method.method).run(*context_), EINVAL) << &method - kMethods;
    EXPECT_EQ(run(99), ENOENT) << &method - kMethods;
    EXPECT_EQ(run(other), EINVAL) << &method - kMethods;
    EXPECT_EQ(run(std::uint64_t{1} << 32 | (of_pds ? pd : uar)), EINVAL) << &method - kMethods;
    auto inside = make(method.object, method.method);
    EXPECT_EQ(inside.in(method.id, of_pds ? pd : uar).run(*context_), EINVAL) << "as a value";
  }
  EXPECT_EQ(objects(), 2u);
}

}  // namespace device_methods_test
}  // namespace gdx::softhca::uverbs
