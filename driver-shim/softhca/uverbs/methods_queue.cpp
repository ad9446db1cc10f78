#include <fmt/format.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/mlx5-abi.h>
#include <rdma/mlx5_user_ioctl_cmds.h>

#include <bit>
#include <cerrno>

#include "driver-shim/softhca/devx/limits.h"
#include "driver-shim/softhca/devx/refusals.h"
#include "driver-shim/softhca/uverbs/methods.h"
#include "driver-shim/softhca/uverbs/queue_objects.h"
#include "driver-shim/softhca/uverbs/user_memory.h"
#include "proto/mlx5/wqe.h"

namespace gdx::softhca::uverbs {
namespace {

constexpr std::uint64_t kDoorbellRecordBytes = 8;
constexpr std::uint32_t kSrqWqeOverheadBytes = sizeof(mlx5::SrqNextSegment);
// MLX5_IB_ATTR_CREATE_CQ_UAR_INDEX, which the headers of Debian 12 lack.
constexpr std::uint16_t kCreateCqUarIndex = (1u << UVERBS_ID_NS_SHIFT) + 2;

std::byte* pointer(std::uint64_t address) { return reinterpret_cast<std::byte*>(address); }

// A queue's memory, as the kernel would pin it. `use`: of the record.
Errno check_queue_memory(std::uint64_t ring, std::uint64_t ring_bytes, std::uint64_t record,
                         Use use = Use::kRead) {
  if (ring_bytes != 0) {
    if (const Errno error = check_access(ring, ring_bytes, Use::kReadWrite)) return error;
  }
  if (record % alignof(Be32) != 0) return EINVAL;
  return check_access(record, kDoorbellRecordBytes, use);
}

// The asynchronous event channel that the request names, or the context's first one.
ErrnoOr<std::shared_ptr<EventChannel>> event_channel(Context& context, const Attributes& request,
                                                     std::uint16_t id) {
  if (!request.has(id)) return context.asyncs;
  const ErrnoOr<std::uint32_t> fd = request.handle(id);
  if (!fd) return refuse(fd.error());
  return context.channels.find_channel(static_cast<int>(*fd));
}

// Source: Linux drivers/infiniband/hw/mlx5/cq.c, create_cq_user(): the attribute counts where both are there.
ErrnoOr<std::optional<std::uint32_t>> cq_uar(const Attributes& request, const mlx5_ib_create_cq& driver) {
  if (request.has(kCreateCqUarIndex)) {
    const ErrnoOr<std::uint32_t> uar = request.value<std::uint32_t>(kCreateCqUarIndex);
    if (!uar) return refuse(uar.error());
    return *uar;
  }
  if ((driver.flags & MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX) != 0) return driver.uar_page_index;
  return std::nullopt;
}

ErrnoOr<CompletionQueueSpec> cq_spec(const Attributes& request, const mlx5_ib_create_cq& driver) {
  const ErrnoOr<std::uint32_t> entries = request.value<std::uint32_t>(UVERBS_ATTR_CREATE_CQ_CQE);
  if (!entries) return refuse(entries.error());
  if (*entries == 0 || *entries >= 1u << devx::kLogMaxCqEntries) return refuse(EINVAL);
  constexpr std::uint32_t kKnownDriverFlags =
      MLX5_IB_CREATE_CQ_FLAGS_CQE_128B_PAD | MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX;
  if (driver.cqe_size != 64 && driver.cqe_size != 128) return refuse(EINVAL);
  if (driver.cqe_comp_en != 0) return refuse(unsupported("compressed completions"));
  if ((driver.flags & MLX5_IB_CREATE_CQ_FLAGS_REAL_TIME_TS) != 0)
    return refuse(unsupported("times in completions"));
  if ((driver.flags & ~kKnownDriverFlags) != 0) return refuse(EINVAL);
  if ((driver.flags & MLX5_IB_CREATE_CQ_FLAGS_CQE_128B_PAD) != 0 && driver.cqe_size != 128)
    return refuse(unsupported("padding of completions that have 64 B"));
  CompletionQueueSpec spec;
  spec.log_entries = static_cast<std::uint32_t>(std::bit_width(*entries));  // log2 of entries + 1, rounded up
  spec.entry_bytes = driver.cqe_size;
  spec.ring = pointer(driver.buf_addr);
  spec.doorbell_record = reinterpret_cast<Be32*>(driver.db_addr);
  const auto uar = cq_uar(request, driver);
  if (!uar) return refuse(uar.error());
  spec.uar = *uar;
  if (request.has(UVERBS_ATTR_CREATE_CQ_FLAGS)) {
    const ErrnoOr<std::uint32_t> flags = request.value<std::uint32_t>(UVERBS_ATTR_CREATE_CQ_FLAGS);
    if (!flags) return refuse(flags.error());
    constexpr std::uint32_t kKnown =
        IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN | IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION;
    if ((*flags & ~kKnown) != 0) return refuse(EINVAL);
    // A CQE's time is not that of a clock which programs could read: completion_timestamp_mask is 0.
    if ((*flags & IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION) != 0) {
      return refuse(unsupported("times in completions"));
    }
    spec.ignore_overrun = (*flags & IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN) != 0;
  }
  const std::uint64_t ring_bytes = std::uint64_t{spec.entry_bytes} << spec.log_entries;
  // The engine disarms a new queue in its record.
  if (const Errno error = check_queue_memory(driver.buf_addr, ring_bytes, driver.db_addr, Use::kReadWrite))
    return refuse(error);
  return spec;
}

Errno create_cq(Context& context, Attributes& request) {
  mlx5_ib_create_cq driver{};
  constexpr std::size_t kOldest = offsetof(mlx5_ib_create_cq, cqe_comp_en);
  if (const Errno error = request.read_bytes(UVERBS_ATTR_UHW_IN, &driver, sizeof driver, kOldest)) {
    return error == ENOENT ? EINVAL : error;
  }
  ErrnoOr<CompletionQueueSpec> spec = cq_spec(request, driver);
  if (!spec) return spec.error();
  const ErrnoOr<std::uint64_t> user_handle = request.value<std::uint64_t>(UVERBS_ATTR_CREATE_CQ_USER_HANDLE);
  const ErrnoOr<std::uint32_t> vector = request.value<std::uint32_t>(UVERBS_ATTR_CREATE_CQ_COMP_VECTOR);
  if (!user_handle || !vector || *vector >= devx::kCompletionVectors) return EINVAL;

  auto object = std::make_unique<CompletionQueueObject>();
  object->type = ObjectType::kCq;
  object->user_handle = *user_handle;
  object->entry_bytes = spec->entry_bytes;
  object->entries = (1u << spec->log_entries) - 1;
  ErrnoOr<std::shared_ptr<EventChannel>> asyncs =
      event_channel(context, request, UVERBS_ATTR_CREATE_CQ_EVENT_FD);
  if (!asyncs) return asyncs.error();
  object->asyncs = *asyncs;
  if (*asyncs != nullptr) {
    spec->on_overrun = [channel = *asyncs, owner = *user_handle] {
      channel->push_async(owner, static_cast<std::uint32_t>(kEventCqError));
    };
  }
  if (request.has(UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL)) {
    ErrnoOr<std::shared_ptr<EventChannel>> completions =
        event_channel(context, request, UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL);
    if (!completions) return completions.error();
    object->completions = *completions;
    spec->on_event = [channel = *completions, owner = *user_handle] { channel->push_completion(owner); };
  }
  const ErrnoOr<std::uint32_t> cqn = context.hca.create_cq(*spec);
  if (!cqn) return cqn.error();
  object->number = *cqn;
  object->release = [&hca = context.hca, number = *cqn] { return hca.destroy_cq(number); };

  Errno error = request.write(UVERBS_ATTR_CREATE_CQ_RESP_CQE, object->entries);
  if (error == 0) error = request.write(UVERBS_ATTR_UHW_OUT, mlx5_ib_create_cq_resp{*cqn, 0});
  if (error != 0) {
    static_cast<void>(object->release());
    return error;
  }
  return publish(context, request, UVERBS_ATTR_CREATE_CQ_HANDLE, std::move(object));
}

// Removes the object in attribute `id` and counts which of its events the program has read: libibverbs
// waits until it has acknowledged as many.
struct ReadEvents {
  std::uint32_t completions = 0;
  std::uint32_t asyncs = 0;
};

ErrnoOr<ReadEvents> destroy_queue(Context& context, const Attributes& request, std::uint16_t id,
                                  ObjectType type) {
  const ErrnoOr<std::uint32_t> handle = request.handle(id);
  if (!handle) return refuse(handle.error());
  const ErrnoOr<Object*> found = context.objects.find(*handle, type);
  if (!found) return refuse(found.error());
  const std::shared_ptr<EventChannel> completions = (*found)->completions;
  const std::shared_ptr<EventChannel> asyncs = (*found)->asyncs;
  const std::uint64_t owner = (*found)->user_handle;
  if (const Errno error = context.objects.remove(**found)) return refuse(error);
  ReadEvents events;
  if (completions != nullptr) events.completions = completions->forget(owner);
  if (asyncs != nullptr) events.asyncs = asyncs->forget(owner);
  return events;
}

Errno destroy_cq(Context& context, Attributes& request) {
  const ErrnoOr<ReadEvents> events =
      destroy_queue(context, request, UVERBS_ATTR_DESTROY_CQ_HANDLE, ObjectType::kCq);
  if (!events) return events.error();
  return request.write(UVERBS_ATTR_DESTROY_CQ_RESP,
                       ib_uverbs_destroy_cq_resp{events->completions, events->asyncs});
}

ErrnoOr<QpType> qp_type(std::uint64_t type) {
  switch (type) {
    case IB_UVERBS_QPT_RC: return QpType::kRc;
    case IB_UVERBS_QPT_UC: return QpType::kUc;
    case IB_UVERBS_QPT_UD: return QpType::kUd;
    // Logs at info, because UCX makes one only to test for support.
    case IB_UVERBS_QPT_DRIVER: return refuse(unsupported("DC queue pairs", log::Level::kInfo));
    default: return refuse(unsupported(fmt::format("queue pairs of the verbs type {:#x}", type)));
  }
}

// Source: Linux drivers/infiniband/hw/mlx5/qp.c, process_vendor_flags(): scattering to CQEs is forgiven where
// a device lacks it. All else that is not known of this type of queue pair is refused.
Errno check_driver_flags(std::uint32_t flags) {
  constexpr std::uint32_t kNotOffered =
      MLX5_QP_FLAG_SIGNATURE | MLX5_QP_FLAG_TYPE_DCT | MLX5_QP_FLAG_TYPE_DCI;
  constexpr std::uint32_t kHarmless = MLX5_QP_FLAG_SCATTER_CQE | MLX5_QP_FLAG_ALLOW_SCATTER_CQE |
                                      MLX5_QP_FLAG_BFREG_INDEX | MLX5_QP_FLAG_UAR_PAGE_INDEX;
  if ((flags & kNotOffered) != 0) return unsupported("DC queue pairs and signatures of WQEs");
  if ((flags & ~(kNotOffered | kHarmless)) != 0) return EINVAL;
  if ((flags & MLX5_QP_FLAG_UAR_PAGE_INDEX) != 0) return 0;
  return unsupported("doorbell registers that belong to a context");
}

// Rings and sizes. mlx5 puts the receive queue first in the buffer and the send queue behind it.
Errno lay_out_rings(const mlx5_ib_create_qp& driver, QueuePairSpec& spec) {
  if (const Errno error = check_driver_flags(driver.flags)) return error;
  if (driver.sq_wqe_count > 1u << devx::kLogMaxSendBlocks ||
      driver.rq_wqe_count > 1u << devx::kLogMaxSendBlocks || driver.rq_wqe_shift > 16) {
    return EINVAL;
  }
  if (driver.sq_wqe_count != 0 && !std::has_single_bit(driver.sq_wqe_count)) return EINVAL;
  if (driver.rq_wqe_count != 0 && !std::has_single_bit(driver.rq_wqe_count)) return EINVAL;
  const std::uint64_t receive_bytes = std::uint64_t{driver.rq_wqe_count} << driver.rq_wqe_shift;
  const std::uint64_t send_bytes = std::uint64_t{driver.sq_wqe_count} * mlx5::kWqeBasicBlockBytes;
  if (const Errno error = check_queue_memory(driver.buf_addr, receive_bytes + send_bytes, driver.db_addr)) {
    return error;
  }
  spec.receive_entries = driver.rq_wqe_count;
  spec.receive_stride_bytes = 1u << driver.rq_wqe_shift;
  spec.send_blocks = driver.sq_wqe_count;
  if (spec.receive_entries != 0) spec.receive_ring = pointer(driver.buf_addr);
  if (spec.send_blocks != 0) spec.send_ring = pointer(driver.buf_addr) + receive_bytes;
  spec.doorbell_record = reinterpret_cast<Be32*>(driver.db_addr);
  spec.user_index = driver.uidx;
  spec.uar = driver.bfreg_index;
  return 0;
}

// Puts the number of the object in attribute `id` into `number` and makes `object` stand on it.
Errno stand_on(Context& context, const Attributes& request, std::uint16_t id, ObjectType type, Object& object,
               std::uint32_t& number) {
  const ErrnoOr<std::uint32_t> handle = request.handle(id);
  if (!handle) return handle.error();
  const ErrnoOr<Object*> below = context.objects.find(*handle, type);
  if (!below) return below.error();
  object.stands_on.push_back(*handle);
  number = (*below)->number;
  return 0;
}

Errno collect_qp(Context& context, const Attributes& request, QueuePairSpec& spec, QueuePairObject& object) {
  mlx5_ib_create_qp driver{};
  constexpr std::size_t kOldest = offsetof(mlx5_ib_create_qp, sq_buf_addr);
  Errno error = request.read_bytes(UVERBS_ATTR_UHW_IN, &driver, sizeof driver, kOldest);
  if (error != 0) return error == ENOENT ? EINVAL : error;
  const ErrnoOr<std::uint64_t> type = request.constant(UVERBS_ATTR_CREATE_QP_TYPE);
  if (!type) return type.error();
  const ErrnoOr<QpType> known = qp_type(*type);
  if (!known) return known.error();
  spec.type = *known;
  error = stand_on(context, request, UVERBS_ATTR_CREATE_QP_PD_HANDLE, ObjectType::kPd, object, spec.pd);
  if (error != 0) return error;
  error = stand_on(context, request, UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE, ObjectType::kCq, object,
                   spec.send_cqn);
  if (error != 0) return error;
  error = stand_on(context, request, UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE, ObjectType::kCq, object,
                   spec.receive_cqn);
  if (error != 0) return error;
  if (request.has(UVERBS_ATTR_CREATE_QP_SRQ_HANDLE)) {
    error = stand_on(context, request, UVERBS_ATTR_CREATE_QP_SRQ_HANDLE, ObjectType::kSrq, object, spec.srqn);
    if (error != 0) return error;
  }
  const ErrnoOr<ib_uverbs_qp_cap> capacity = request.value<ib_uverbs_qp_cap>(UVERBS_ATTR_CREATE_QP_CAP);
  const ErrnoOr<std::uint64_t> user_handle = request.value<std::uint64_t>(UVERBS_ATTR_CREATE_QP_USER_HANDLE);
  if (!capacity || !user_handle) return EINVAL;
  if (request.has(UVERBS_ATTR_CREATE_QP_FLAGS)) {
    const ErrnoOr<std::uint32_t> flags = request.value<std::uint32_t>(UVERBS_ATTR_CREATE_QP_FLAGS);
    if (!flags) return flags.error();
    // Accepts the flag, because without multicast nothing is looped back either.
    constexpr std::uint32_t kKnown =
        IB_UVERBS_QP_CREATE_SQ_SIG_ALL | IB_UVERBS_QP_CREATE_BLOCK_MULTICAST_LOOPBACK;
    const std::uint32_t unknown = *flags & ~kKnown;
    if (unknown != 0) return unsupported(fmt::format("queue pairs with the creation flags {:#x}", unknown));
    object.all_signaled = (*flags & IB_UVERBS_QP_CREATE_SQ_SIG_ALL) != 0;
  }
  object.capacity = *capacity;
  // Reports as many receives as fit into the rings; libmlx5 computes the sends itself.
  object.capacity.max_recv_wr = driver.rq_wqe_count;
  if (driver.rq_wqe_count != 0 && driver.rq_wqe_shift < 32) {
    object.capacity.max_recv_sge =
        static_cast<std::uint32_t>((1u << driver.rq_wqe_shift) / sizeof(mlx5::DataSegment));
  }
  object.user_handle = *user_handle;
  object.qp_type = *known;
  return lay_out_rings(driver, spec);
}

Errno create_qp(Context& context, Attributes& request) {
  QueuePairSpec spec;
  auto object = std::make_unique<QueuePairObject>();
  object->type = ObjectType::kQp;
  if (const Errno error = collect_qp(context, request, spec, *object)) return error;
  ErrnoOr<std::shared_ptr<EventChannel>> asyncs =
      event_channel(context, request, UVERBS_ATTR_CREATE_QP_EVENT_FD);
  if (!asyncs) return asyncs.error();
  object->asyncs = *asyncs;
  if (*asyncs != nullptr) {
    spec.on_event = [channel = *asyncs, owner = object->user_handle](int event_type) {
      channel->push_async(owner, static_cast<std::uint32_t>(event_type));
    };
  }
  const ErrnoOr<std::uint32_t> qpn = context.hca.create_qp(spec);
  if (!qpn) return qpn.error();
  object->number = *qpn;
  object->release = [&hca = context.hca, number = *qpn] { return hca.destroy_qp(number); };

  Errno error = request.write(UVERBS_ATTR_CREATE_QP_RESP_CAP, object->capacity);
  if (error == 0) error = request.write(UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, *qpn);
  if (error == 0) error = request.write(UVERBS_ATTR_UHW_OUT, mlx5_ib_create_qp_resp{});
  if (error != 0) {
    static_cast<void>(object->release());
    return error;
  }
  return publish(context, request, UVERBS_ATTR_CREATE_QP_HANDLE, std::move(object));
}

Errno destroy_qp(Context& context, Attributes& request) {
  const ErrnoOr<ReadEvents> events =
      destroy_queue(context, request, UVERBS_ATTR_DESTROY_QP_HANDLE, ObjectType::kQp);
  if (!events) return events.error();
  return request.write(UVERBS_ATTR_DESTROY_QP_RESP, ib_uverbs_destroy_qp_resp{events->asyncs});
}

// mlx5 sizes the stride itself from max_sge: the next segment and the scatter list, a power of two.
std::uint32_t srq_stride_bytes(std::uint32_t max_sge) {
  const auto bytes = static_cast<std::uint32_t>(kSrqWqeOverheadBytes + max_sge * sizeof(mlx5::DataSegment));
  return std::max(32u, std::bit_ceil(bytes));
}

Errno create_srq(Context& context, Attributes& request) {
  mlx5_ib_create_srq driver{};
  constexpr std::size_t kOldest = offsetof(mlx5_ib_create_srq, uidx);
  Errno error = request.read_bytes(UVERBS_ATTR_UHW_IN, &driver, sizeof driver, kOldest);
  if (error != 0) return error == ENOENT ? EINVAL : error;
  const ErrnoOr<std::uint64_t> type = request.constant(UVERBS_ATTR_CREATE_SRQ_TYPE);
  const ErrnoOr<std::uint64_t> user_handle = request.value<std::uint64_t>(UVERBS_ATTR_CREATE_SRQ_USER_HANDLE);
  const ErrnoOr<std::uint32_t> max_wr = request.value<std::uint32_t>(UVERBS_ATTR_CREATE_SRQ_MAX_WR);
  const ErrnoOr<std::uint32_t> max_sge = request.value<std::uint32_t>(UVERBS_ATTR_CREATE_SRQ_MAX_SGE);
  if (!type || !user_handle || !max_wr || !max_sge) return EINVAL;
  if (*type != IB_UVERBS_SRQT_BASIC || driver.flags != 0) {
    return unsupported(fmt::format("shared receive queues of type {} with flags {:#x}", *type, driver.flags));
  }
  if (*max_wr >= 1u << devx::kLogMaxSrqEntries || *max_sge > 31) return EINVAL;

  auto object = std::make_unique<SharedReceiveQueueObject>();
  object->type = ObjectType::kSrq;
  object->user_handle = *user_handle;
  object->max_wr = *max_wr;
  object->max_sge = *max_sge;
  SharedReceiveQueueSpec spec;
  error = stand_on(context, request, UVERBS_ATTR_CREATE_SRQ_PD_HANDLE, ObjectType::kPd, *object, spec.pd);
  if (error != 0) return error;
  spec.entries = std::bit_ceil(*max_wr + 1);
  spec.stride_bytes = srq_stride_bytes(*max_sge);
  error =
      check_queue_memory(driver.buf_addr, std::uint64_t{spec.entries} * spec.stride_bytes, driver.db_addr);
  if (error != 0) return error;
  spec.ring = pointer(driver.buf_addr);
  spec.doorbell_record = reinterpret_cast<Be32*>(driver.db_addr);
  spec.user_index = driver.uidx;
  ErrnoOr<std::shared_ptr<EventChannel>> asyncs =
      event_channel(context, request, UVERBS_ATTR_CREATE_SRQ_EVENT_FD);
  if (!asyncs) return asyncs.error();
  object->asyncs = *asyncs;
  if (*asyncs != nullptr) {
    spec.on_event = [channel = *asyncs, owner = object->user_handle](int event_type) {
      channel->push_async(owner, static_cast<std::uint32_t>(event_type));
    };
  }
  const ErrnoOr<std::uint32_t> srqn = context.hca.create_srq(spec);
  if (!srqn) return srqn.error();
  object->number = *srqn;
  object->release = [&hca = context.hca, number = *srqn] { return hca.destroy_srq(number); };

  error = request.write(UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR, *max_wr);
  if (error == 0) error = request.write(UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE, *max_sge);
  if (error == 0) error = request.write(UVERBS_ATTR_UHW_OUT, mlx5_ib_create_srq_resp{*srqn, 0});
  if (error != 0) {
    static_cast<void>(object->release());
    return error;
  }
  return publish(context, request, UVERBS_ATTR_CREATE_SRQ_HANDLE, std::move(object));
}

Errno destroy_srq(Context& context, Attributes& request) {
  const ErrnoOr<ReadEvents> events =
      destroy_queue(context, request, UVERBS_ATTR_DESTROY_SRQ_HANDLE, ObjectType::kSrq);
  if (!events) return events.error();
  return request.write(UVERBS_ATTR_DESTROY_SRQ_RESP, ib_uverbs_destroy_srq_resp{events->asyncs});
}

constexpr Method kMethods[] = {
    {UVERBS_OBJECT_CQ,
     UVERBS_METHOD_CQ_CREATE,
     false,
     create_cq,
     {UVERBS_ATTR_CREATE_CQ_HANDLE, UVERBS_ATTR_CREATE_CQ_CQE, UVERBS_ATTR_CREATE_CQ_USER_HANDLE,
      UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL, UVERBS_ATTR_CREATE_CQ_COMP_VECTOR, UVERBS_ATTR_CREATE_CQ_FLAGS,
      UVERBS_ATTR_CREATE_CQ_RESP_CQE, UVERBS_ATTR_CREATE_CQ_EVENT_FD, UVERBS_ATTR_UHW_IN, UVERBS_ATTR_UHW_OUT,
      kCreateCqUarIndex}},
    {UVERBS_OBJECT_CQ,
     UVERBS_METHOD_CQ_DESTROY,
     false,
     destroy_cq,
     {UVERBS_ATTR_DESTROY_CQ_HANDLE, UVERBS_ATTR_DESTROY_CQ_RESP}},
    {UVERBS_OBJECT_QP,
     UVERBS_METHOD_QP_CREATE,
     false,
     create_qp,
     {UVERBS_ATTR_CREATE_QP_HANDLE, UVERBS_ATTR_CREATE_QP_PD_HANDLE, UVERBS_ATTR_CREATE_QP_SRQ_HANDLE,
      UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE, UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE,
      UVERBS_ATTR_CREATE_QP_USER_HANDLE, UVERBS_ATTR_CREATE_QP_CAP, UVERBS_ATTR_CREATE_QP_TYPE,
      UVERBS_ATTR_CREATE_QP_FLAGS, UVERBS_ATTR_CREATE_QP_EVENT_FD, UVERBS_ATTR_CREATE_QP_RESP_CAP,
      UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, UVERBS_ATTR_UHW_IN, UVERBS_ATTR_UHW_OUT}},
    {UVERBS_OBJECT_QP,
     UVERBS_METHOD_QP_DESTROY,
     false,
     destroy_qp,
     {UVERBS_ATTR_DESTROY_QP_HANDLE, UVERBS_ATTR_DESTROY_QP_RESP}},
    {UVERBS_OBJECT_SRQ,
     UVERBS_METHOD_SRQ_CREATE,
     false,
     create_srq,
     {UVERBS_ATTR_CREATE_SRQ_HANDLE, UVERBS_ATTR_CREATE_SRQ_PD_HANDLE, UVERBS_ATTR_CREATE_SRQ_USER_HANDLE,
      UVERBS_ATTR_CREATE_SRQ_MAX_WR, UVERBS_ATTR_CREATE_SRQ_MAX_SGE, UVERBS_ATTR_CREATE_SRQ_LIMIT,
      UVERBS_ATTR_CREATE_SRQ_TYPE, UVERBS_ATTR_CREATE_SRQ_EVENT_FD, UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR,
      UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE, UVERBS_ATTR_UHW_IN, UVERBS_ATTR_UHW_OUT}},
    {UVERBS_OBJECT_SRQ,
     UVERBS_METHOD_SRQ_DESTROY,
     false,
     destroy_srq,
     {UVERBS_ATTR_DESTROY_SRQ_HANDLE, UVERBS_ATTR_DESTROY_SRQ_RESP}},
};

}  // namespace

std::span<const Method> queue_methods() { return kMethods; }

}  // namespace gdx::softhca::uverbs
