// Tables of objects that a program creates, modifies and destroys.
#include <algorithm>
#include <bit>
#include <cassert>
#include <cerrno>

#include "base/counters.h"
#include "driver-shim/softhca/engine/dma.h"
#include "driver-shim/softhca/engine/engine.h"
#include "driver-shim/softhca/engine/paging.h"
#include "proto/mlx5/wqe.h"

namespace gdx::softhca {
namespace {

constexpr std::uint32_t kMaxQueueEntries = 1u << 15;  // the counters have 16 bits: twice that is ambiguous
constexpr std::uint32_t kMaxLogCqEntries = 22;        // the consumer index has 24 bits
constexpr std::uint32_t kSpecialNumbers = 2;  // 0 and 1: QP 0 and QP 1; the last of 24 bits is of multicast
// Largest UAR number. libmlx5 reads more than 16 bits as a kernel with MLX5_IB_ATTR_CREATE_CQ_UAR_INDEX.
constexpr std::uint32_t kUarMask = 0xffff;
constexpr std::size_t kMaxUars = kUarMask + 1 - kSpecialNumbers;

bool is_queue_size(std::uint32_t entries) {
  return std::has_single_bit(entries) && entries <= kMaxQueueEntries;
}

bool is_receive_ring(const std::byte* ring, std::uint32_t entries, std::uint32_t stride_bytes) {
  return ring != nullptr && is_queue_size(entries) && stride_bytes >= mlx5::kSegmentBytes &&
         stride_bytes % mlx5::kSegmentBytes == 0;
}

}  // namespace

template <typename Table, typename Draw>
std::uint32_t Engine::free_number(const Table& table, Draw draw) {
  for (;;) {
    const std::uint32_t number = draw();
    if (number >= kSpecialNumbers && number != roce::kQpnMask && !table.contains(number)) return number;
  }
}

template <typename Table>
std::uint32_t Engine::free_number(const Table& table) {
  assert(table.size() + kSpecialNumbers < roce::kQpnMask);
  return free_number(table, [this] { return numbers_.next(); });
}

ErrnoOr<std::uint32_t> Engine::alloc_pd() {
  const std::scoped_lock lock(mutex_);
  return *pds_.insert(free_number(pds_)).first;
}

Errno Engine::dealloc_pd(std::uint32_t pd) {
  const std::scoped_lock lock(mutex_);
  const bool used =
      parts_.memory.uses_pd(pd) ||
      std::any_of(qps_.begin(), qps_.end(), [pd](const auto& it) { return it.second->spec().pd == pd; }) ||
      std::any_of(srqs_.begin(), srqs_.end(), [pd](const auto& it) { return it.second.pd == pd; });
  if (used) return EBUSY;
  return pds_.erase(pd) == 1 ? 0 : EINVAL;
}

Errno Engine::check(const MemoryRegionSpec& spec) const {
  if (spec.umr) return pds_.contains(spec.pd) && spec.base == nullptr && spec.pieces.empty() ? 0 : EINVAL;
  const bool has_base = spec.base != nullptr || (spec.access & kOnDemand) != 0;
  const bool placed = has_base != !spec.pieces.empty();
  // Refuses zero length, as Linux does, except for device memory.
  if (!pds_.contains(spec.pd) || !placed || (spec.length_bytes == 0 && !spec.device_memory)) return EINVAL;
  if (spec.iova + spec.length_bytes < spec.iova) return EINVAL;
  if (!spec.device_memory) return 0;
  const std::byte* begin = parts_.device_memory;
  const std::size_t size = parts_.config.device_memory_bytes;
  const bool inside = spec.base >= begin && spec.base <= begin + size &&
                      spec.length_bytes <= static_cast<std::size_t>(begin + size - spec.base);
  return inside ? 0 : EINVAL;
}

ErrnoOr<std::uint32_t> Engine::register_memory(const MemoryRegionSpec& spec) {
  const std::scoped_lock lock(mutex_);
  if (const Errno error = check(spec)) return refuse(error);
  if (parts_.memory.full()) return refuse(ENOMEM);
  return parts_.memory.add(spec, random_);
}

Errno Engine::replace_memory(std::uint32_t mkey, const MemoryRegionSpec& spec) {
  const std::scoped_lock lock(mutex_);
  const MemoryRegionSpec* const region = parts_.memory.find(mkey);
  if (region == nullptr || region->device_memory || spec.device_memory || region->umr || spec.umr)
    return EINVAL;
  if (const Errno error = check(spec)) return error;
  parts_.late.land_all();
  parts_.memory.replace(mkey, spec);
  return 0;
}

Errno Engine::deregister_memory(std::uint32_t mkey) {
  const std::scoped_lock lock(mutex_);
  parts_.late.land_all();  // memory without a key may be the program's again
  return parts_.memory.remove(mkey) ? 0 : EINVAL;
}

// Prefetches outside the lock, because it may take gigabytes while the HCA continues.
Errno Engine::prefetch(std::uint32_t pd, std::uint32_t mkey, std::uint64_t address,
                       std::uint64_t length_bytes, Prefetch what) {
  const bool written = what == Prefetch::kForWriting;
  const auto place = [&] {
    const std::scoped_lock lock(mutex_);
    return parts_.memory.find_paged(mkey, pd, address, length_bytes, written);
  }();
  if (!place) return place.error();
  return what == Prefetch::kCheck || page_in(*place, length_bytes, written) ? 0 : EFAULT;
}

void Engine::add_foreign(const std::byte* first, std::size_t length_bytes,
                         std::shared_ptr<CopyEngine> copies) {
  const std::scoped_lock lock(mutex_);
  parts_.foreign.add(first, length_bytes, std::move(copies));
}

void Engine::remove_foreign(const std::byte* first, std::size_t length_bytes) {
  const std::scoped_lock lock(mutex_);
  parts_.foreign.remove(first, length_bytes);
}

ErrnoOr<std::uint32_t> Engine::add_uar(const UarSpec& spec) {
  const std::scoped_lock lock(mutex_);
  if (spec.page == nullptr || !is_aligned(spec.page, sizeof(std::uint64_t))) return refuse(EINVAL);
  if (uars_.size() == kMaxUars) return refuse(ENOMEM);
  const std::uint32_t number = free_number(uars_, [this] { return next_uar_++ & kUarMask; });
  uars_[number].page = spec.page;
  return number;
}

Errno Engine::remove_uar(std::uint32_t uar) {
  const std::scoped_lock lock(mutex_);
  const auto found = uars_.find(uar);
  if (found == uars_.end()) return EINVAL;
  if (!found->second.ringers.empty()) return EBUSY;
  uars_.erase(found);
  return 0;
}

ErrnoOr<std::uint32_t> Engine::create_cq(const CompletionQueueSpec& spec) {
  const std::scoped_lock lock(mutex_);
  const bool whole = spec.ring != nullptr && is_aligned(spec.ring, sizeof(std::uint64_t)) &&
                     spec.doorbell_record != nullptr && is_aligned(spec.doorbell_record, sizeof(Be32));
  const bool sized =
      (spec.entry_bytes == 64 || spec.entry_bytes == 128) && spec.log_entries <= kMaxLogCqEntries;
  if (!whole || !sized || (spec.uar && !uars_.contains(*spec.uar))) return refuse(EINVAL);
  const std::uint32_t number = free_number(cqs_);
  cqs_.emplace(number, std::make_unique<CompletionQueue>(spec, &parts_.foreign));
  return number;
}

Errno Engine::resize_cq(std::uint32_t cqn, std::byte* ring, std::uint32_t log_entries) {
  const std::scoped_lock lock(mutex_);
  const auto found = cqs_.find(cqn);
  const bool whole = ring != nullptr && is_aligned(ring, sizeof(std::uint64_t));
  if (found == cqs_.end() || !whole || log_entries > kMaxLogCqEntries) return EINVAL;
  return found->second->resize(ring, log_entries);
}

Errno Engine::destroy_cq(std::uint32_t cqn) {
  const std::scoped_lock lock(mutex_);
  poll_doorbells();  // a doorbell rung while the queue existed is no stray
  finish_step();
  const bool used = std::any_of(qps_.begin(), qps_.end(), [cqn](const auto& it) {
    return it.second->spec().send_cqn == cqn || it.second->spec().receive_cqn == cqn;
  });
  if (used) return EBUSY;
  return cqs_.erase(cqn) == 1 ? 0 : EINVAL;
}

ErrnoOr<std::uint32_t> Engine::create_srq(const SharedReceiveQueueSpec& spec) {
  const std::scoped_lock lock(mutex_);
  const bool room = spec.stride_bytes > sizeof(mlx5::SrqNextSegment);
  if (!pds_.contains(spec.pd) || spec.doorbell_record == nullptr || !room ||
      !is_receive_ring(spec.ring, spec.entries, spec.stride_bytes)) {
    return refuse(EINVAL);
  }
  if (is_foreign(spec.ring) || is_foreign(spec.doorbell_record)) return refuse(EOPNOTSUPP);
  const std::uint32_t number = free_number(srqs_);
  const ReceiveQueue::Layout layout{.ring = spec.ring,
                                    .entries = spec.entries,
                                    .stride_bytes = spec.stride_bytes,
                                    .record = spec.doorbell_record,
                                    .shared = true,
                                    .cyclic = spec.cyclic,
                                    .on_limit = [on_event = spec.on_event] {
                                      if (on_event) on_event(kEventSrqLimitReached);
                                    }};
  srqs_.emplace(number, SharedQueue{.pd = spec.pd, .queue = ReceiveQueue(layout)});
  return number;
}

Errno Engine::set_srq_limit(std::uint32_t srqn, std::uint32_t limit) {
  const std::scoped_lock lock(mutex_);
  const auto found = srqs_.find(srqn);
  if (found == srqs_.end() || limit >= found->second.queue.entries()) return EINVAL;
  found->second.queue.set_limit(limit);
  return 0;
}

ErrnoOr<std::uint32_t> Engine::srq_limit(std::uint32_t srqn) {
  const std::scoped_lock lock(mutex_);
  const auto found = srqs_.find(srqn);
  if (found == srqs_.end()) return refuse(EINVAL);
  return found->second.queue.limit();
}

Errno Engine::destroy_srq(std::uint32_t srqn) {
  const std::scoped_lock lock(mutex_);
  const bool used = std::any_of(qps_.begin(), qps_.end(),
                                [srqn](const auto& it) { return it.second->spec().srqn == srqn; });
  if (used) return EBUSY;
  return srqs_.erase(srqn) == 1 ? 0 : EINVAL;
}

Errno Engine::check(const QueuePairSpec& spec) const {
  if (!pds_.contains(spec.pd) || !uars_.contains(spec.uar) || !cqs_.contains(spec.send_cqn) ||
      !cqs_.contains(spec.receive_cqn) || spec.doorbell_record == nullptr) {
    return EINVAL;
  }
  if (spec.srqn != 0 && !srqs_.contains(spec.srqn)) return EINVAL;
  if (spec.send_blocks != 0 && (spec.send_ring == nullptr || !is_queue_size(spec.send_blocks))) return EINVAL;
  const bool receives = spec.srqn == 0 && spec.receive_entries != 0;
  if (receives && !is_receive_ring(spec.receive_ring, spec.receive_entries, spec.receive_stride_bytes)) {
    return EINVAL;
  }
  if (receives && (is_foreign(spec.receive_ring) || is_foreign(spec.doorbell_record))) return EOPNOTSUPP;
  return 0;
}

bool Engine::is_foreign(const void* at) const {
  return !parts_.foreign.empty() && parts_.foreign.find(static_cast<const std::byte*>(at)) != nullptr;
}

ErrnoOr<std::uint32_t> Engine::create_qp(const QueuePairSpec& spec) {
  const std::scoped_lock lock(mutex_);
  const Errno refused = check(spec);
  if (refused != 0) return refuse(refused);
  const std::uint32_t qpn = free_number(qps_);
  ReceiveQueue* shared = spec.srqn == 0 ? nullptr : &srqs_.at(spec.srqn).queue;
  auto qp = std::make_unique<QueuePair>(qpn, spec, parts_, *cqs_.at(spec.send_cqn),
                                        *cqs_.at(spec.receive_cqn), shared);
  uars_.at(spec.uar).ringers.push_back({qp.get()});
  qps_.emplace(qpn, std::move(qp));
  return qpn;
}

Errno Engine::modify_qp(std::uint32_t qpn, std::uint32_t mask, const QpAttributes& attributes) {
  const std::scoped_lock lock(mutex_);
  QueuePair* qp = find_qp(qpn);
  if (qp == nullptr) return EINVAL;
  parts_.now_ns = clock_();
  const Errno refused = qp->modify(mask, attributes);
  activate(*qp);
  finish_step();
  return refused;
}

ErrnoOr<QpAttributes> Engine::query_qp(std::uint32_t qpn) {
  const std::scoped_lock lock(mutex_);
  const QueuePair* qp = find_qp(qpn);
  if (qp == nullptr) return refuse(EINVAL);
  return qp->query();
}

ErrnoOr<FlightRecord> Engine::read_flight(std::uint32_t qpn) {
  const std::scoped_lock lock(mutex_);
  const QueuePair* qp = find_qp(qpn);
  if (qp == nullptr) return refuse(EINVAL);
  return qp->flight();
}

Errno Engine::destroy_qp(std::uint32_t qpn) {
  const std::scoped_lock lock(mutex_);
  QueuePair* qp = find_qp(qpn);
  if (qp == nullptr) return EINVAL;
  poll_doorbells();  // a doorbell rung while the queue existed is no stray
  finish_step();     // an ACK may be pending, and an arrived packet may name the queue pair
  add_counters(closed_, qp->counters());
  scheduler_.remove(*qp);
  std::erase_if(uars_.at(qp->spec().uar).ringers, [qp](const Ringer& ringer) { return ringer.qp == qp; });
  last_found_ = nullptr;
  qps_.erase(qpn);
  return 0;
}

}  // namespace gdx::softhca
