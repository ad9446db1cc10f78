// A hostile program at the device node. It makes, changes, rings and destroys objects in any order, by
// requests with false attributes. Its packets return to itself.
#include <infiniband/verbs.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/mlx5-abi.h>
#include <rdma/mlx5_user_ioctl_cmds.h>
#include <rdma/mlx5_user_ioctl_verbs.h>
#include <sys/mman.h>

#include <array>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "driver-shim/softhca/engine/engine.h"
#include "driver-shim/softhca/uverbs/memory_objects.h"
#include "driver-shim/softhca/uverbs/real.h"
#include "proto/mlx5/doorbell.h"
#include "proto/mlx5/wqe.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/verbs_request.h"
#include "tests/fuzz/verbs_surroundings.h"

namespace gdx::softhca::uverbs {

constinit RealFunction<int(const char*, int, ...)> real_open("open");
constinit RealFunction<int(int)> real_close("close");

namespace {

constexpr std::size_t kObjectTypes = static_cast<std::size_t>(ObjectType::kDevx) + 1;
constexpr std::size_t kDeviceMemoryBytes = 16 * 1024;
constexpr std::size_t kMaxSteps = 120;
constexpr std::uint16_t kDriverSpace = 1u << UVERBS_ID_NS_SHIFT;

class Program {
 public:
  Program() : device_memory_(*DevicePages::create(kDeviceMemoryBytes)) {
    HcaConfig config;
    config.device_memory_bytes = kDeviceMemoryBytes;
    hca_ = std::make_unique<WatchedEngine>(
        [this](const void* at, std::uint64_t bytes, bool device_memory) {
          return owns(at, bytes, device_memory);
        },
        config, std::make_unique<EchoWire>(), device_memory_.memory(),
        [state = std::mt19937(1)]() mutable { return static_cast<std::uint32_t>(state()); });
    context_ = std::make_unique<Context>(*hca_, *PageFile::create(device_memory_), channels_);
    file_ = context_->pages.open(true)->fd;
    const std::uint8_t none = 0;
    Input honest(&none, 0);
    Request events(UVERBS_OBJECT_ASYNC_EVENT, UVERBS_METHOD_ASYNC_EVENT_ALLOC, honest);
    Request open(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT, honest);
    mlx5_ib_alloc_ucontext_req_v2 asked{};
    asked.flags = MLX5_IB_ALLOC_UCTX_DEVX;
    fuzz::expect(open.in(UVERBS_ATTR_UHW_IN, asked).run(*context_) == 0, "a context opens");
    fuzz::expect(events.handle(UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE, 0).run(*context_) == 0,
                 "events open");
    alloc_pd(honest);
    add_uar(honest);
  }
  ~Program() {
    context_.reset();
    fuzz::expect(leftovers() == 0, "a context that is gone leaves nothing in the HCA");
    for (std::byte* page : uar_pages_) munmap(page, kPageBytes);
    real_close(file_);
  }

  void step(Input& input) {
    switch (input.take<std::uint8_t>() % 23) {
      case 0: return alloc_pd(input);
      case 1: return reg_mr(input);
      case 2: return rereg_mr(input);
      case 3: return create_cq(input);
      case 4: return resize_cq(input);
      case 5: return create_srq(input);
      case 6: return modify_srq(input);
      case 7:
      case 8: return create_qp(input);
      case 9:
      case 10:
      case 11: return modify_qp(input);
      case 12: return query(input);
      case 13: return destroy(input);
      case 14: return device_memory(input);
      case 15: return add_uar(input);
      case 16: return anything(input);
      case 17: return scribble(input);
      case 18: return ring(input);
      case 19: return post(input);
      case 21: return window(input);
      case 22: return advise(input);
      default: hca_->progress(); return;
    }
  }

 private:
  [[nodiscard]] bool owns(const void* at, std::uint64_t bytes, bool device_memory) const {
    if (!device_memory) return arena_.holds(at, bytes);
    bool owned = false;
    context_->objects.visit([&](const Object& object) {
      if (object.type != ObjectType::kDm) return;
      const auto& memory = static_cast<const DeviceMemoryObject&>(object);
      const auto* const first = device_memory_.memory() + memory.first_page * kPageBytes;
      const std::uint64_t offset =
          reinterpret_cast<std::uintptr_t>(at) - reinterpret_cast<std::uintptr_t>(first);
      owned = owned || (offset <= memory.length_bytes && bytes <= memory.length_bytes - offset);
    });
    return owned;
  }
  // Numbers that the HCA still knows after everything is destroyed.
  int leftovers() {
    int left = 0;
    for (const std::uint32_t qpn : qpns_) left += hca_->query_qp(qpn) ? 1 : 0;
    for (const std::uint32_t cqn : cqns_) left += hca_->destroy_cq(cqn) == EINVAL ? 0 : 1;
    for (const std::uint32_t uar : uars_) left += hca_->remove_uar(uar) == EINVAL ? 0 : 1;
    return left;
  }
  // Returns mostly a handle of the requested kind.
  std::uint32_t handle(Input& input, ObjectType kind) const {
    const auto choice = input.take<std::uint8_t>();
    const auto found = handles_.find(kind);
    return found == handles_.end() || choice >= 240 ? choice : found->second[choice % found->second.size()];
  }
  static void keep(std::vector<std::uint32_t>& numbers, std::uint64_t number) {
    numbers.push_back(static_cast<std::uint32_t>(number));
  }
  template <typename Core, typename Driver = std::uint8_t>
  std::unique_ptr<Request> command(Input& input, std::uint64_t number, const Core& core, std::size_t response,
                                   const Driver* driver = nullptr) {
    auto request = std::make_unique<Request>(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE, input);
    request->in(UVERBS_ATTR_WRITE_CMD, number).in(UVERBS_ATTR_CORE_IN, core);
    if (response != 0) request->out(UVERBS_ATTR_CORE_OUT, response);
    if (driver != nullptr) request->in(UVERBS_ATTR_UHW_IN, *driver);
    return request;
  }

  void alloc_pd(Input& input) {
    auto request =
        command(input, IB_USER_VERBS_CMD_ALLOC_PD, ib_uverbs_alloc_pd{}, sizeof(ib_uverbs_alloc_pd_resp));
    if (request->run(*context_) == 0)
      keep(handles_[ObjectType::kPd], request->written(UVERBS_ATTR_CORE_OUT) & 0xffffffff);
  }
  void reg_mr(Input& input) {
    ib_uverbs_reg_mr core{};
    core.start = arena_.address(input);
    core.hca_va = core.start;
    core.length = input.take_amount();
    core.pd_handle = handle(input, ObjectType::kPd);
    core.access_flags = input.take<std::uint8_t>();
    auto request = command(input, IB_USER_VERBS_CMD_REG_MR, core, sizeof(ib_uverbs_reg_mr_resp));
    if (request->run(*context_) == 0)
      keep(handles_[ObjectType::kMr], request->written(UVERBS_ATTR_CORE_OUT) & 0xffffffff);
  }
  void window(Input& input) {
    ib_uverbs_alloc_mw core{};
    core.pd_handle = handle(input, ObjectType::kPd);
    core.mw_type = input.take<std::uint8_t>() % 4;
    auto request = command(input, IB_USER_VERBS_CMD_ALLOC_MW, core, sizeof(ib_uverbs_alloc_mw_resp));
    if (request->run(*context_) == 0)
      keep(handles_[ObjectType::kMw], request->written(UVERBS_ATTR_CORE_OUT) & 0xffffffff);
  }
  void advise(Input& input) {
    Request query(UVERBS_OBJECT_MR, UVERBS_METHOD_QUERY_MR, input);
    query.handle(UVERBS_ATTR_QUERY_MR_HANDLE, handle(input, ObjectType::kMr))
        .out(UVERBS_ATTR_QUERY_MR_RESP_LKEY, 4)
        .out(UVERBS_ATTR_QUERY_MR_RESP_RKEY, 4)
        .out(UVERBS_ATTR_QUERY_MR_RESP_LENGTH, 8)
        .out(UVERBS_ATTR_QUERY_MR_RESP_IOVA, 8);
    const std::uint64_t lkey = query.run(*context_) == 0 ? query.written(UVERBS_ATTR_QUERY_MR_RESP_LKEY) : 0;
    const ibv_sge range{arena_.address(input), input.take<std::uint16_t>(), static_cast<std::uint32_t>(lkey)};
    Request(UVERBS_OBJECT_MR, UVERBS_METHOD_ADVISE_MR, input)
        .handle(UVERBS_ATTR_ADVISE_MR_PD_HANDLE, handle(input, ObjectType::kPd))
        .in(UVERBS_ATTR_ADVISE_MR_ADVICE, std::uint64_t{input.take<std::uint8_t>()} % 4)
        .in(UVERBS_ATTR_ADVISE_MR_FLAGS, std::uint32_t{input.take<std::uint8_t>()} % 3)
        .in(UVERBS_ATTR_ADVISE_MR_SGE_LIST, range)
        .run(*context_);
  }
  void rereg_mr(Input& input) {
    ib_uverbs_rereg_mr core{};
    core.mr_handle = handle(input, ObjectType::kMr);
    core.flags = input.take<std::uint8_t>() % 10;
    core.start = arena_.address(input);
    core.hca_va = core.start;
    core.length = input.take_amount();
    core.pd_handle = handle(input, ObjectType::kPd);
    core.access_flags = input.take<std::uint8_t>();
    command(input, IB_USER_VERBS_CMD_REREG_MR, core, sizeof(ib_uverbs_rereg_mr_resp))->run(*context_);
  }
  void create_cq(Input& input) {
    mlx5_ib_create_cq driver{};
    driver.buf_addr = arena_.address(input);
    driver.db_addr = arena_.address(input);
    driver.cqe_size = input.take<std::uint8_t>() % 8 == 0 ? 128 : 64;
    Request request(UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_CREATE, input);
    request.handle(UVERBS_ATTR_CREATE_CQ_HANDLE, 0)
        .in(UVERBS_ATTR_CREATE_CQ_CQE, std::uint32_t{input.take<std::uint8_t>()})
        .in(UVERBS_ATTR_CREATE_CQ_USER_HANDLE, std::uint64_t{cqns_.size() + qpns_.size()})
        .in(UVERBS_ATTR_CREATE_CQ_COMP_VECTOR, std::uint32_t{0})
        .out(UVERBS_ATTR_CREATE_CQ_RESP_CQE, 4)
        .in(UVERBS_ATTR_UHW_IN, driver)
        .out(UVERBS_ATTR_UHW_OUT, sizeof(mlx5_ib_create_cq_resp));
    if (request.run(*context_) != 0) return;
    keep(handles_[ObjectType::kCq], request.written(UVERBS_ATTR_CREATE_CQ_HANDLE));
    keep(cqns_, request.written(UVERBS_ATTR_UHW_OUT) & 0xffffff);
  }
  void resize_cq(Input& input) {
    ib_uverbs_resize_cq core{};
    core.cq_handle = handle(input, ObjectType::kCq);
    core.cqe = input.take<std::uint8_t>();
    mlx5_ib_resize_cq driver{};
    driver.buf_addr = arena_.address(input);
    driver.cqe_size = input.take<std::uint8_t>() % 8 == 0 ? 128 : 64;
    command(input, IB_USER_VERBS_CMD_RESIZE_CQ, core, sizeof(ib_uverbs_resize_cq_resp), &driver)
        ->run(*context_);
  }
  void create_srq(Input& input) {
    mlx5_ib_create_srq driver{};
    driver.buf_addr = arena_.address(input);
    driver.db_addr = arena_.address(input);
    Request request(UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_CREATE, input);
    request.handle(UVERBS_ATTR_CREATE_SRQ_HANDLE, 0)
        .handle(UVERBS_ATTR_CREATE_SRQ_PD_HANDLE, handle(input, ObjectType::kPd))
        .in(UVERBS_ATTR_CREATE_SRQ_TYPE, std::uint64_t{IB_UVERBS_SRQT_BASIC})
        .in(UVERBS_ATTR_CREATE_SRQ_USER_HANDLE, std::uint64_t{cqns_.size() + qpns_.size()})
        .in(UVERBS_ATTR_CREATE_SRQ_MAX_WR, std::uint32_t{input.take<std::uint8_t>()})
        .in(UVERBS_ATTR_CREATE_SRQ_MAX_SGE, std::uint32_t{input.take<std::uint8_t>()} % 34)
        .out(UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR, 4)
        .out(UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE, 4)
        .in(UVERBS_ATTR_UHW_IN, driver)
        .out(UVERBS_ATTR_UHW_OUT, sizeof(mlx5_ib_create_srq_resp));
    if (request.run(*context_) == 0)
      keep(handles_[ObjectType::kSrq], request.written(UVERBS_ATTR_CREATE_SRQ_HANDLE));
  }
  void modify_srq(Input& input) {
    ib_uverbs_modify_srq core{};
    core.srq_handle = handle(input, ObjectType::kSrq);
    core.attr_mask = input.take<std::uint8_t>() % 4;
    core.srq_limit = input.take<std::uint8_t>();
    command(input, IB_USER_VERBS_CMD_MODIFY_SRQ, core, 0)->run(*context_);
  }
  void create_qp(Input& input) {
    mlx5_ib_create_qp driver{};
    driver.buf_addr = arena_.address(input);
    driver.db_addr = arena_.address(input);
    driver.sq_wqe_count = 1u << input.take<std::uint8_t>() % 8;
    driver.rq_wqe_count = 1u << input.take<std::uint8_t>() % 8;
    driver.rq_wqe_shift = 4 + input.take<std::uint8_t>() % 4;
    driver.flags = MLX5_QP_FLAG_UAR_PAGE_INDEX;
    driver.bfreg_index = uars_.empty() ? 0 : uars_[input.take<std::uint8_t>() % uars_.size()];
    Request request(UVERBS_OBJECT_QP, UVERBS_METHOD_QP_CREATE, input);
    constexpr std::array<std::uint64_t, 4> kTypes{IB_UVERBS_QPT_RC, IB_UVERBS_QPT_UC, IB_UVERBS_QPT_UD,
                                                  IB_UVERBS_QPT_RAW_PACKET};
    request.handle(UVERBS_ATTR_CREATE_QP_HANDLE, 0)
        .handle(UVERBS_ATTR_CREATE_QP_PD_HANDLE, handle(input, ObjectType::kPd))
        .handle(UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE, handle(input, ObjectType::kCq))
        .handle(UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE, handle(input, ObjectType::kCq))
        .in(UVERBS_ATTR_CREATE_QP_TYPE, kTypes[input.take<std::uint8_t>() % kTypes.size()])
        .in(UVERBS_ATTR_CREATE_QP_CAP, ib_uverbs_qp_cap{})
        .in(UVERBS_ATTR_CREATE_QP_USER_HANDLE, std::uint64_t{cqns_.size() + qpns_.size()})
        .out(UVERBS_ATTR_CREATE_QP_RESP_CAP, sizeof(ib_uverbs_qp_cap))
        .out(UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, 4)
        .in(UVERBS_ATTR_UHW_IN, driver)
        .out(UVERBS_ATTR_UHW_OUT, sizeof(mlx5_ib_create_qp_resp));
    if (input.take<std::uint8_t>() % 2 == 0)
      request.handle(UVERBS_ATTR_CREATE_QP_SRQ_HANDLE, handle(input, ObjectType::kSrq));
    if (request.run(*context_) != 0) return;
    keep(handles_[ObjectType::kQp], request.written(UVERBS_ATTR_CREATE_QP_HANDLE));
    queues_.emplace_back(driver.buf_addr + (std::uint64_t{driver.rq_wqe_count} << driver.rq_wqe_shift),
                         driver.db_addr);
    keep(qpns_, request.written(UVERBS_ATTR_CREATE_QP_RESP_QP_NUM) & 0xffffff);
  }
  void modify_qp(Input& input) {
    constexpr std::uint32_t kToInit = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
    constexpr std::uint32_t kToRtr =
        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    constexpr std::uint32_t kRcRtr = kToRtr | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    constexpr std::uint32_t kToRts = IBV_QP_STATE | IBV_QP_SQ_PSN;
    constexpr std::uint32_t kRcRts =
        kToRts | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    struct Step {
      std::uint8_t state;
      std::uint32_t mask;
    };
    constexpr std::array<Step, 10> kSteps{Step{IBV_QPS_INIT, kToInit | IBV_QP_ACCESS_FLAGS},
                                          Step{IBV_QPS_INIT, kToInit | IBV_QP_QKEY},
                                          Step{IBV_QPS_RTR, kToRtr},
                                          Step{IBV_QPS_RTR, kRcRtr},
                                          Step{IBV_QPS_RTR, IBV_QP_STATE},
                                          Step{IBV_QPS_RTS, kToRts},
                                          Step{IBV_QPS_RTS, kRcRts},
                                          Step{IBV_QPS_RTS, IBV_QP_STATE},
                                          Step{IBV_QPS_RESET, IBV_QP_STATE},
                                          Step{IBV_QPS_ERR, IBV_QP_STATE}};
    const Step& step = kSteps[input.take<std::uint8_t>() % kSteps.size()];
    ib_uverbs_modify_qp core{};
    core.qp_handle = handle(input, ObjectType::kQp);
    core.attr_mask =
        step.mask ^ (input.take<std::uint8_t>() % 16 == 15 ? 1u << input.take<std::uint8_t>() % 26 : 0u);
    core.qp_state = step.state;
    core.qp_access_flags = 0xf;
    core.port_num = 1;
    core.path_mtu = 1 + input.take<std::uint8_t>() % 6;
    core.timeout = input.take<std::uint8_t>() % 34;
    core.max_rd_atomic = input.take<std::uint8_t>();
    core.max_dest_rd_atomic = input.take<std::uint8_t>();
    core.dest.is_global = 1;
    core.dest.dgid[10] = core.dest.dgid[11] = 0xff;
    core.dest.dgid[12] = 127;
    core.dest.dgid[15] = 2;
    core.dest.sgid_index = input.take<std::uint8_t>() % 4;
    core.dest_qp_num = qpns_.empty() ? 0 : qpns_[input.take<std::uint8_t>() % qpns_.size()];
    command(input, IB_USER_VERBS_CMD_MODIFY_QP, core, 0)->run(*context_);
  }
  void query(Input& input) {
    ib_uverbs_query_qp qp{};
    qp.qp_handle = handle(input, ObjectType::kQp);
    command(input, IB_USER_VERBS_CMD_QUERY_QP, qp, sizeof(ib_uverbs_query_qp_resp))->run(*context_);
    ib_uverbs_query_srq srq{};
    srq.srq_handle = handle(input, ObjectType::kSrq);
    command(input, IB_USER_VERBS_CMD_QUERY_SRQ, srq, sizeof(ib_uverbs_query_srq_resp))->run(*context_);
  }
  void destroy(Input& input) {
    struct Destroy {
      std::uint16_t object, method, id;
      ObjectType kind;
    };
    constexpr std::array<Destroy, 9> kDestroys{
        Destroy{UVERBS_OBJECT_PD, UVERBS_METHOD_PD_DESTROY, UVERBS_ATTR_DESTROY_PD_HANDLE, ObjectType::kPd},
        Destroy{UVERBS_OBJECT_MR, UVERBS_METHOD_MR_DESTROY, UVERBS_ATTR_DESTROY_MR_HANDLE, ObjectType::kMr},
        Destroy{UVERBS_OBJECT_AH, UVERBS_METHOD_AH_DESTROY, UVERBS_ATTR_DESTROY_AH_HANDLE, ObjectType::kAh},
        Destroy{UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_DESTROY, UVERBS_ATTR_DESTROY_CQ_HANDLE, ObjectType::kCq},
        Destroy{UVERBS_OBJECT_QP, UVERBS_METHOD_QP_DESTROY, UVERBS_ATTR_DESTROY_QP_HANDLE, ObjectType::kQp},
        Destroy{UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_DESTROY, UVERBS_ATTR_DESTROY_SRQ_HANDLE,
                ObjectType::kSrq},
        Destroy{UVERBS_OBJECT_DM, UVERBS_METHOD_DM_FREE, UVERBS_ATTR_FREE_DM_HANDLE, ObjectType::kDm},
        Destroy{MLX5_IB_OBJECT_UAR, MLX5_IB_METHOD_UAR_OBJ_DESTROY, MLX5_IB_ATTR_UAR_OBJ_DESTROY_HANDLE,
                ObjectType::kUar},
        Destroy{UVERBS_OBJECT_MW, UVERBS_METHOD_MW_DESTROY, UVERBS_ATTR_DESTROY_MW_HANDLE, ObjectType::kMw}};
    const Destroy& chosen = kDestroys[input.take<std::uint8_t>() % kDestroys.size()];
    Request request(chosen.object, chosen.method, input);
    // One attribute id serves for the answers of CQ, QP and SRQ.
    static_assert(UVERBS_ATTR_DESTROY_CQ_RESP == 1 && UVERBS_ATTR_DESTROY_QP_RESP == 1);
    request.handle(chosen.id, handle(input, chosen.kind)).out(UVERBS_ATTR_DESTROY_CQ_RESP, 8).run(*context_);
  }
  void device_memory(Input& input) {
    Request request(UVERBS_OBJECT_DM, UVERBS_METHOD_DM_ALLOC, input);
    request.handle(UVERBS_ATTR_ALLOC_DM_HANDLE, 0)
        .in(UVERBS_ATTR_ALLOC_DM_LENGTH, input.take_amount())
        .in(UVERBS_ATTR_ALLOC_DM_ALIGNMENT, std::uint32_t{input.take<std::uint8_t>()} % 14)
        .out(MLX5_IB_ATTR_ALLOC_DM_RESP_START_OFFSET, 8)
        .out(MLX5_IB_ATTR_ALLOC_DM_RESP_PAGE_INDEX, 2);
    if (request.run(*context_) == 0)
      keep(handles_[ObjectType::kDm], request.written(UVERBS_ATTR_ALLOC_DM_HANDLE));
    Request region(UVERBS_OBJECT_MR, UVERBS_METHOD_DM_MR_REG, input);
    region.handle(UVERBS_ATTR_REG_DM_MR_HANDLE, 0)
        .handle(UVERBS_ATTR_REG_DM_MR_PD_HANDLE, handle(input, ObjectType::kPd))
        .handle(UVERBS_ATTR_REG_DM_MR_DM_HANDLE, handle(input, ObjectType::kDm))
        .in(UVERBS_ATTR_REG_DM_MR_OFFSET, input.take_amount())
        .in(UVERBS_ATTR_REG_DM_MR_LENGTH, input.take_amount())
        .in(UVERBS_ATTR_REG_DM_MR_ACCESS_FLAGS, std::uint32_t{0x2f})
        .out(UVERBS_ATTR_REG_DM_MR_RESP_LKEY, 4)
        .out(UVERBS_ATTR_REG_DM_MR_RESP_RKEY, 4);
    if (region.run(*context_) == 0)
      keep(handles_[ObjectType::kMr], region.written(UVERBS_ATTR_REG_DM_MR_HANDLE));
  }
  void add_uar(Input& input) {
    Request request(MLX5_IB_OBJECT_UAR, MLX5_IB_METHOD_UAR_OBJ_ALLOC, input);
    request.handle(MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE, 0)
        .in(MLX5_IB_ATTR_UAR_OBJ_ALLOC_TYPE, std::uint64_t{MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF})
        .out(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET, 8)
        .out(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH, 4)
        .out(MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID, 4);
    if (request.run(*context_) != 0) return;
    keep(handles_[ObjectType::kUar], request.written(MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE));
    keep(uars_, request.written(MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID) & 0xffffffff);
    void* const page = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_,
                            static_cast<off_t>(request.written(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET)));
    if (page != MAP_FAILED) uar_pages_.push_back(static_cast<std::byte*>(page));
  }
  // Any method at all, with attributes that mean nothing to it.
  void anything(Input& input) {
    Request request(input.take<std::uint8_t>() % 20 | (input.take<std::uint8_t>() % 2 ? kDriverSpace : 0),
                    input.take<std::uint8_t>() % 10 | (input.take<std::uint8_t>() % 2 ? kDriverSpace : 0),
                    input);
    for (std::uint16_t id = 0; id < 6; ++id) {
      const std::uint16_t space = input.take<std::uint8_t>() % 2 ? kDriverSpace : 0;
      switch (input.take<std::uint8_t>() % 3) {
        case 0:
          request.handle(id | space,
                         handle(input, static_cast<ObjectType>(input.take<std::uint8_t>() % kObjectTypes)));
          break;
        case 1: request.in(id | space, arena_.address(input)); break;
        default: request.out(id | space, input.take<std::uint8_t>()); break;
      }
    }
    request.run(*context_);
  }
  void scribble(Input& input) {
    const std::size_t at = input.take<std::uint16_t>() % kArenaBytes;
    const auto bytes = input.take_bytes(std::min<std::size_t>(input.take<std::uint8_t>(), kArenaBytes - at));
    std::copy(bytes.begin(), bytes.end(), arena_.data() + at);
  }
  // A control segment that its queue pair may take for its own, and the record that announces it.
  void post(Input& input) {
    const auto [ring, record] = queues_.empty() ? std::pair<std::uint64_t, std::uint64_t>{} : queues_.back();
    if (queues_.empty() || ring == 0x10 || record == 0x10) return;
    const auto index = input.take<std::uint8_t>() % 16u;
    mlx5::ControlSegment control{};
    control.opmod_index_opcode = index << 8 | input.take<std::uint8_t>();
    control.qpn_ds = qpns_.back() << 8 | input.take<std::uint8_t>() % 16u;
    control.fm_ce_se = input.take<std::uint8_t>();
    const std::uint64_t at = ring + index * mlx5::kWqeBasicBlockBytes;
    const std::uint64_t end = reinterpret_cast<std::uintptr_t>(arena_.data()) + kArenaBytes;
    if (at + sizeof control <= end) std::memcpy(reinterpret_cast<void*>(at), &control, sizeof control);
    const Be32 produced = index + 1;
    std::memcpy(reinterpret_cast<void*>(record + mlx5::kSendRecord * sizeof produced), &produced,
                sizeof produced);
  }
  void ring(Input& input) {
    if (uar_pages_.empty()) return;
    std::byte* const page = uar_pages_[input.take<std::uint8_t>() % uar_pages_.size()];
    const bool cq = input.take<std::uint8_t>() % 2 == 0;
    const auto& numbers = cq ? cqns_ : qpns_;
    const std::uint32_t number = numbers.empty() ? 0 : numbers[input.take<std::uint8_t>() % numbers.size()];
    const std::uint64_t value = std::uint64_t{byte_swap(cq ? number : number << 8)} << 32 | 1;
    std::memcpy(page + (cq ? mlx5::kUarCqDoorbell : mlx5::kUarBlueFlame), &value, sizeof value);
    hca_->progress();
  }

  Arena arena_;
  DevicePages device_memory_;
  Channels channels_;
  std::unique_ptr<Engine> hca_;
  std::unique_ptr<Context> context_;
  int file_ = -1;
  std::map<ObjectType, std::vector<std::uint32_t>> handles_;
  std::vector<std::uint32_t> uars_, qpns_, cqns_;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> queues_;  // send ring and record, as in qpns_
  std::vector<std::byte*> uar_pages_;
};

}  // namespace
}  // namespace gdx::softhca::uverbs

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  gdx::fuzz::Input input(data, size);
  gdx::softhca::uverbs::Program program;
  for (std::size_t step = 0; step < gdx::softhca::uverbs::kMaxSteps && !input.empty(); ++step)
    program.step(input);
  return 0;
}
