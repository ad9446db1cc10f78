#include "host/programs/doctor/step_kernels.h"

#include "device/endpoint.h"
#include "device/impl/wqe.h"
#include "proto/mlx5/cqe.h"

namespace gdx::doctor {
namespace {

using exec::Segment;

GDX_DEVICE void tell(KernelReport* report, Status status) {
  if (status != Status::kOk) exec::publish(&report->status, static_cast<std::uint32_t>(status));
}

template <Mode M, typename Endpoint>
GDX_DEVICE Status put_all(Endpoint& endpoint, const PutJob& job) {
  Status status = Status::kOk;
  for (std::uint64_t i = 0; i < job.puts && status == Status::kOk; ++i) {
    status = gdx_put_signal<M>(endpoint, job.to, job.from, job.bytes, job.signal, 1, SignalOp::kAdd);
  }
  return status == Status::kOk ? gdx_flush(endpoint) : status;
}

__global__ void put_alone(EndpointHandle handle, PutJob job, KernelReport* report) {
  device::Endpoint<> endpoint(handle);
  tell(report, put_all<Mode::kPull>(endpoint, job));
}

template <Mode M>
__global__ void put_shared(EndpointHandle handle, PutJob job, KernelReport* report) {
  device::SharedEndpoint<> endpoint(handle);
  const std::uint64_t at = (std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x) * job.bytes;
  job.to = job.to + at;
  job.from = job.from + at;
  tell(report, put_all<M>(endpoint, job));
}

template <Scope S, Copy C>
__global__ void push(EndpointHandle handle, PutJob job, KernelReport* report) {
  device::Endpoint<S> endpoint(handle);
  Status status = gdx_put<Mode::kPush, C>(endpoint, job.to, job.from, job.bytes);
  if (status == Status::kOk) status = gdx_flush(endpoint);
  tell(report, status);
}

// The rings of an endpoint, one by one and out of their order. Each WQE takes a block and asks for its
// completion. So its index is its block and its entry, too.
class Rings {
 public:
  GDX_DEVICE explicit Rings(const EndpointHandle& handle) : handle_(handle) { exec::watch_endpoint(handle); }

  GDX_DEVICE void write(std::uint32_t index, const RemoteMemory& to, const Segment& data,
                        std::uint32_t fence = 0) const {
    store(index, control(index, mlx5::WqeOpcode::kRdmaWrite, mlx5::kPutSegments, fence), to, data, {});
  }
  // Adds 1. The value before comes to `from`, in 8 B.
  GDX_DEVICE void add(std::uint32_t index, const RemoteMemory& to, const LocalMemory& from) const {
    store(index, control(index, mlx5::WqeOpcode::kAtomicFetchAdd, mlx5::kPutSegments + 1), to,
          device::impl::atomic_segment(1, 0),
          device::impl::data_segment(sizeof(std::uint64_t), from.lkey,
                                     reinterpret_cast<std::uint64_t>(from.address)));
  }
  // Announces all before `end`.
  GDX_DEVICE void publish(std::uint32_t end) const {
    exec::store_release<Placement::kHost>(handle_.send_record, device::impl::record_value(end));
  }
  GDX_DEVICE void ring(std::uint32_t index, Named named = Named::kLast) const {
    exec::ring<Placement::kHost>(handle_.doorbell, doorbell(index, named));
  }
  // Rings before the record of the WQE at `index` or behind its turn, which recorders of the CPU layer refuse
  // of exec::ring.
  GDX_DEVICE void ring_out_of_turn(std::uint32_t index, Named named = Named::kLast) const {
    exec::publish(handle_.doorbell, doorbell(index, named));
  }
  // Waits for the completion of the WQE at `index`, but no longer than that.
  [[nodiscard]] GDX_DEVICE bool completes_within(std::uint32_t index, std::uint64_t timeout_ns) const {
    const std::uint64_t began_ns = exec::now_ns();
    do {
      if (has_completed(index, exec::load_acquire(entry(index) + 7))) return true;
      exec::relax();
    } while (exec::now_ns() - began_ns < timeout_ns);
    return false;
  }
  // Waits for the completion of the WQE at `index`. Reports another one, or none.
  GDX_DEVICE bool await(std::uint32_t index, KernelReport* report,
                        mlx5::WqeOpcode opcode = mlx5::WqeOpcode::kRdmaWrite) const {
    if (!completes_within(index, handle_.timeout_ns)) return refuse(Status::kTimeout, index, report);
    if (is_of(index, opcode, exec::load_acquire(entry(index) + 7))) return true;
    return refuse(Status::kQueueError, index, report);
  }

 private:
  [[nodiscard]] GDX_DEVICE Segment control(std::uint32_t index,
                                           mlx5::WqeOpcode opcode = mlx5::WqeOpcode::kRdmaWrite,
                                           std::uint32_t segments = mlx5::kPutSegments,
                                           std::uint32_t fence = 0) const {
    return device::impl::control_segment(opcode, index, device::impl::queue_pair_word(handle_.qpn), segments,
                                         mlx5::kCompletionAlways | fence);
  }
  // The next WQE goes without opcode and length.
  [[nodiscard]] GDX_DEVICE std::uint64_t doorbell(std::uint32_t index, Named named) const {
    return device::impl::doorbell_value(named == Named::kLast ? control(index)
                                                              : control(index + 1, mlx5::WqeOpcode::kNop, 0));
  }
  GDX_DEVICE void store(std::uint32_t index, const Segment& first, const RemoteMemory& to,
                        const Segment& third, const Segment& fourth) const {
    std::byte* const block = handle_.send_queue[index & ((1u << handle_.log_send_queue) - 1)].bytes;
    exec::store_segment(block, first);
    exec::store_segment<16>(block, device::impl::address_segment(to.address, to.rkey));
    exec::store_segment<32>(block, third);
    exec::store_segment<48>(block, fourth);
  }
  [[nodiscard]] GDX_DEVICE const std::uint64_t* entry(std::uint32_t index) const {
    return reinterpret_cast<const std::uint64_t*>(
        &handle_.completion_queue[index & ((1u << handle_.log_completion_queue) - 1)]);
  }
  // Returns whether the entry with that last word is of the queue's lap.
  [[nodiscard]] GDX_DEVICE bool has_completed(std::uint32_t index, std::uint64_t tail) const {
    const auto op_own = static_cast<std::uint32_t>(tail >> 56);
    return op_own >> mlx5::kCqeOpcodeShift != static_cast<std::uint32_t>(mlx5::CqeOpcode::kInvalid) &&
           (op_own & mlx5::kCqeOwnerMask) == (index >> handle_.log_completion_queue & 1);
  }
  // Compares the entry's last word: opcode and queue pair, the WQE's index, and that it is no error.
  [[nodiscard]] GDX_DEVICE bool is_of(std::uint32_t index, mlx5::WqeOpcode opcode, std::uint64_t tail) const {
    const std::uint32_t wanted = static_cast<std::uint32_t>(opcode) << 24 | handle_.qpn;
    if (tail >> 56 >> mlx5::kCqeOpcodeShift != static_cast<std::uint64_t>(mlx5::CqeOpcode::kRequester))
      return false;
    return byte_swap(static_cast<std::uint32_t>(tail)) == wanted &&
           byte_swap(static_cast<std::uint16_t>(tail >> 32)) == (index & 0xffff);
  }
  GDX_DEVICE bool refuse(Status status, std::uint32_t index, KernelReport* report) const {
    for (int i = 0; i < 8; ++i) report->cqe[i] = exec::load_acquire(entry(index) + i);
    report->index = index;
    tell(report, status);
    return false;
  }

  const EndpointHandle& handle_;
};

GDX_DEVICE std::uint64_t pattern_word(std::uint32_t seed, std::uint32_t word) {
  std::uint64_t value = 0;
  for (std::uint32_t i = 0; i < 8; ++i) value |= std::uint64_t{pattern_byte(seed, 8 * word + i)} << 8 * i;
  return value;
}

constexpr std::uint32_t kPutWords = kPutBytes / sizeof(std::uint64_t);

GDX_DEVICE void fill(std::byte* bytes, std::uint32_t seed) {
  for (std::uint32_t i = 0; i < kPutWords; ++i)
    reinterpret_cast<std::uint64_t*>(bytes)[i] = pattern_word(seed, i);
}

// Compares what came with the pattern of `seed`. Counts what is wrong, and keeps the first of it.
GDX_DEVICE bool check(const std::byte* bytes, std::uint32_t seed, KernelReport* report) {
  const auto* const words = reinterpret_cast<const std::uint64_t*>(bytes);
  std::uint64_t got[kPutWords];
  bool right = true;
  for (std::uint32_t i = 0; i < kPutWords; ++i) got[i] = words[i];
  for (std::uint32_t i = 0; i < kPutWords; ++i) right &= got[i] == pattern_word(seed, i);
  if (right || report->wrong++ != 0) return right;
  report->first_wrong = seed;
  std::memcpy(report->got, got, sizeof got);
  return false;
}

GDX_DEVICE Segment gather(const LocalMemory& from) {
  return device::impl::data_segment(kPutBytes, from.lkey, reinterpret_cast<std::uint64_t>(from.address));
}

// A software HCA reads its registers by turns, and may miss a doorbell before the next pair's.
constexpr std::uint32_t kPausedPairs = 100;
constexpr std::uint64_t kPauseNs = 1'000'000;

__global__ void ring_backwards(EndpointHandle handle, RemoteMemory to, LocalMemory from, std::uint32_t pairs,
                               KernelReport* report) {
  const Rings rings(handle);
  for (std::uint32_t i = 0; i < pairs; ++i) {
    const std::uint32_t older = 2 * i;
    const std::uint32_t newer = older + 1;
    report->at = i;
    fill(from.address, i);
    rings.write(older, to, gather(from));
    rings.write(newer, to, gather(from));
    rings.publish(newer + 1);
    rings.ring(newer);
    if (i % 2 == 0) rings.ring_out_of_turn(older);
    if (!rings.await(older, report) || !rings.await(newer, report)) return;
    if (i % 2 != 0) {
      rings.ring_out_of_turn(older);
      const std::uint64_t began_ns = exec::now_ns();
      while (i < kPausedPairs && exec::now_ns() - began_ns < kPauseNs) exec::relax();
    }
    if (!check(reinterpret_cast<const std::byte*>(to.address), i, report)) return;
  }
}

__global__ void ring_one_by_one(EndpointHandle handle, RingJob job, KernelReport* report) {
  const Rings rings(handle);
  for (std::uint32_t i = job.first; i < job.first + job.puts; ++i) {
    report->at = i;
    fill(job.from.address, i);
    rings.write(i, job.to, gather(job.from));
    if (job.record_late_ns != 0) {
      rings.ring_out_of_turn(i, job.named);
      if (rings.completes_within(i, job.record_late_ns)) ++report->early;
    }
    rings.publish(i + 1);
    rings.ring(i, job.named);
    if (!rings.await(i, report)) return;
    if (!check(reinterpret_cast<const std::byte*>(job.to.address), i, report)) return;
  }
}

static_assert(kLanes == kWarpThreads);
__global__ void ring_by_lanes(const Lane* lanes, std::uint32_t rounds) {
  const Lane& lane = lanes[threadIdx.x];
  const Rings rings(lane.endpoint);
  for (std::uint32_t i = 0; i < rounds; ++i) {
    lane.report->at = i;
    fill(lane.from.address, i);
    rings.write(i, lane.to, gather(lane.from));
    rings.publish(i + 1);
    exec::sync<Scope::kWarp>();
    rings.ring(i);
    if (!rings.await(i, lane.report)) return;
    if (!check(reinterpret_cast<const std::byte*>(lane.to.address), i, lane.report)) return;
  }
}

// Waits until *word is `value`, or *ended is set, for at most `timeout_ns`.
GDX_DEVICE bool wait_until(const std::uint64_t* word, std::uint64_t value, const std::uint64_t* ended,
                           std::uint64_t timeout_ns) {
  const std::uint64_t began_ns = exec::now_ns();
  do {
    if (exec::load_acquire(word) == value) return true;
    exec::relax();
  } while (exec::load_acquire(ended) == 0 && exec::now_ns() - began_ns < timeout_ns);
  return false;
}

GDX_DEVICE void send(const EndpointHandle& handle, const Messages& messages, KernelReport* report) {
  const Rings rings(handle);
  for (std::uint64_t i = messages.first; i < messages.first + messages.count; ++i) {
    const auto payload = static_cast<std::uint32_t>(2 * (i - 1));
    const std::uint32_t signal = payload + 1;
    fill(messages.from.address, static_cast<std::uint32_t>(i));
    rings.write(payload, messages.payload, gather(messages.from));
    const auto opcode = messages.adds ? mlx5::WqeOpcode::kAtomicFetchAdd : mlx5::WqeOpcode::kRdmaWrite;
    if (messages.adds) {
      rings.add(signal, messages.signal, messages.from + kPutBytes);
    } else {
      rings.write(signal, messages.signal, device::impl::inline_value_segment(i, sizeof i),
                  handle.signal_fence);
    }
    rings.publish(signal + 1);
    rings.ring(signal);
    const bool completed = rings.await(payload, report) && rings.await(signal, report, opcode);
    const bool seen = wait_until(&report->seen, i, &report->ended, handle.timeout_ns);
    if (completed && seen) continue;
    report->at = i;
    break;
  }
  exec::publish(&report->ended, 1);
}

GDX_DEVICE void receive(const EndpointHandle& handle, const Messages& messages, KernelReport* report) {
  const std::uint64_t timeout_ns = 4 * handle.timeout_ns;  // the sender's waits for one message end before
  for (std::uint64_t i = messages.first; i < messages.first + messages.count; ++i) {
    if (!wait_until(messages.signal_here, i, &report->ended, timeout_ns)) return;
    static_cast<void>(check(messages.payload_here, static_cast<std::uint32_t>(i), report));
    exec::publish(&report->seen, i);
  }
}

// Two blocks, because those of one multiprocessor share a cache.
__global__ void exchange_messages(EndpointHandle handle, Messages messages, KernelReport* report) {
  if (blockIdx.x == 0) {
    send(handle, messages, report);
  } else {
    receive(handle, messages, report);
  }
}

}  // namespace

Status launch_puts(const EndpointHandle& endpoint, const PutJob& job, KernelReport* report,
                   int (*progress)()) {
  return exec::launch({.grid = {1}, .block = {1}, .progress = progress}, put_alone, endpoint, job, report);
}

template <Mode M>
Status launch_shared(const EndpointHandle& endpoint, std::uint32_t warps, const PutJob& job,
                     KernelReport* report, int (*progress)()) {
  return exec::launch({.grid = {warps}, .block = {kWarpThreads}, .progress = progress}, put_shared<M>,
                      endpoint, job, report);
}
Status launch_shared_pulls(const EndpointHandle& endpoint, std::uint32_t warps, const PutJob& job,
                           KernelReport* report, int (*progress)()) {
  return launch_shared<Mode::kPull>(endpoint, warps, job, report, progress);
}
Status launch_shared_pushes(const EndpointHandle& endpoint, std::uint32_t warps, const PutJob& job,
                            KernelReport* report, int (*progress)()) {
  return launch_shared<Mode::kPush>(endpoint, warps, job, report, progress);
}
Status launch_shared_bounces(const EndpointHandle& endpoint, std::uint32_t warps, const PutJob& job,
                             KernelReport* report, int (*progress)()) {
  return launch_shared<Mode::kBounce>(endpoint, warps, job, report, progress);
}

Status launch_push(const EndpointHandle& endpoint, const PutJob& job, KernelReport* report,
                   int (*progress)()) {
  return exec::launch({.grid = {1}, .block = {kWarpThreads}, .progress = progress},
                      push<Scope::kWarp, Copy::kStores>, endpoint, job, report);
}

Status launch_bulk_push(const EndpointHandle& endpoint, const PutJob& job, KernelReport* report,
                        int (*progress)()) {
  return exec::launch({.grid = {1}, .block = {4 * kWarpThreads}, .progress = progress},
                      push<Scope::kBlock, Copy::kBulk>, endpoint, job, report);
}

Status launch_backwards(const EndpointHandle& endpoint, const RemoteMemory& to, const LocalMemory& from,
                        std::uint32_t pairs, KernelReport* report, int (*progress)()) {
  return exec::launch({.grid = {1}, .block = {1}, .progress = progress}, ring_backwards, endpoint, to, from,
                      pairs, report);
}

Status launch_rings(const EndpointHandle& endpoint, const RingJob& job, KernelReport* report,
                    int (*progress)()) {
  return exec::launch({.grid = {1}, .block = {1}, .progress = progress}, ring_one_by_one, endpoint, job,
                      report);
}

Status launch_lanes(const Lane* lanes, std::uint32_t rounds, int (*progress)()) {
  return exec::launch({.grid = {1}, .block = {kWarpThreads}, .progress = progress}, ring_by_lanes, lanes,
                      rounds);
}

Status launch_messages(const EndpointHandle& endpoint, const Messages& messages, KernelReport* report,
                       int (*progress)()) {
  return exec::launch({.grid = {2}, .block = {1}, .cooperative = true, .progress = progress},
                      exchange_messages, endpoint, messages, report);
}

}  // namespace gdx::doctor
