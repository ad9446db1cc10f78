// The kernels of the bring-up's steps 11, 12, 14, 15 and 16, for the CPU layer and for a GPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "host/programs/doctor/pattern.h"
#include "proto/gpu/memory.h"
#include "proto/gpu/queue.h"
#include "proto/status.h"

namespace gdx::doctor {

// Report of the kernels, in memory that both sides reach.
struct KernelReport {
  std::uint32_t status;  // a Status: of the device calls, or kTimeout and kQueueError of a completion
  std::uint32_t index;   // index of the WQE whose completion is wrong or did not come
  std::uint64_t at;      // the pair or message of it
  std::uint64_t cqe[8];  // the completion queue's entry at which the kernel looked last
  // Payloads that are wrong; pattern and bytes of the first.
  std::uint64_t wrong;
  std::uint64_t first_wrong;
  std::byte got[kPutBytes];
  std::uint64_t early;  // puts that went before their record
  // Between sender and receiver: the newest message that came, and whether no more will come.
  std::uint64_t seen;
  std::uint64_t ended;
};

struct PutJob {
  RemoteMemory to;
  LocalMemory from;
  std::uint64_t bytes;
  RemoteMemory signal;  // 1 is added to it for each put
  std::uint64_t puts;   // puts that each thread makes
};

// Puts with signals by plain doorbells: one thread on an exclusive endpoint.
[[nodiscard]] Status launch_puts(const EndpointHandle& endpoint, const PutJob& job, KernelReport* report,
                                 int (*progress)());
// The same by every thread of `warps` warps on one shared endpoint. Thread t puts the t-th `bytes` of memory.
using SharedPutKernel = Status(const EndpointHandle& endpoint, std::uint32_t warps, const PutJob& job,
                               KernelReport* report, int (*progress)());
[[nodiscard]] SharedPutKernel launch_shared_pulls;
[[nodiscard]] SharedPutKernel launch_shared_pushes;
[[nodiscard]] SharedPutKernel launch_shared_bounces;
// One push, by a warp's stores, or by a block's TMA (which stores on GPUs before sm_90).
using PushKernel = Status(const EndpointHandle& endpoint, const PutJob& job, KernelReport* report,
                          int (*progress)());
[[nodiscard]] PushKernel launch_push;
[[nodiscard]] PushKernel launch_bulk_push;

// Pairs of puts of kPutBytes. The newer one's doorbell comes first; that of the older at once, or when both
// are complete. The endpoint serves nothing else.
[[nodiscard]] Status launch_backwards(const EndpointHandle& endpoint, const RemoteMemory& to,
                                      const LocalMemory& from, std::uint32_t pairs, KernelReport* report,
                                      int (*progress)());

// WQE that a doorbell names: the last one, as libmlx5 does, or the one that comes next, as NVSHMEM and DOCA
// do.
enum class Named : std::uint8_t { kLast, kNext };

struct RingJob {
  RemoteMemory to;
  LocalMemory from;
  std::uint32_t first;  // WQE: as many as were posted before
  std::uint32_t puts;
  Named named;
  // Doorbells come so long before their record, or until the put is complete, and once more after it; 0: they
  // come after it.
  std::uint64_t record_late_ns;
};
// Puts of kPutBytes, each with a doorbell of its own and complete before the next. The endpoint serves
// nothing else.
[[nodiscard]] Status launch_rings(const EndpointHandle& endpoint, const RingJob& job, KernelReport* report,
                                  int (*progress)());

inline constexpr std::uint32_t kLanes = 32;  // threads of a warp
// A lane's endpoint, which serves nothing else, its puts and its report, where the GPU reads them.
struct Lane {
  EndpointHandle endpoint;
  RemoteMemory to;
  LocalMemory from;
  KernelReport* report;
};
// Rounds of puts of kPutBytes, of each lane of a warp one. The doorbells of a round are one step of the warp.
[[nodiscard]] Status launch_lanes(const Lane* lanes, std::uint32_t rounds, int (*progress)());

// Messages of payload and signal, numbered from 1 on: where the HCA writes both, and where kernels read them.
struct Messages {
  RemoteMemory payload;
  RemoteMemory signal;
  const std::byte* payload_here;
  const std::uint64_t* signal_here;
  LocalMemory from;  // kPutBytes, and a word for what adds return
  std::uint64_t first;
  std::uint64_t count;
  bool adds;  // the signal is an add of 1, to the number of the message before
};
// A block sends, and another sees each message before the next is sent. The endpoint serves nothing else, and
// the launches are of all messages in their order.
[[nodiscard]] Status launch_messages(const EndpointHandle& endpoint, const Messages& messages,
                                     KernelReport* report, int (*progress)());

}  // namespace gdx::doctor
