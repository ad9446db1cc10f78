// Records stores of kernels on the CPU layer to a NIC, because memory here accepts what NIC memory rejects. A
// launch records where GDX_STRICT is set, as in all tests. An offence ends the launch with kSystem and a line
// on stderr. Rules:
//  - Staging memory takes aligned words of 4 B. Source: rdma-core, mlx5_access_dm in providers/mlx5/mlx5.c.
//  - Doorbells of a queue never go backwards, because a NIC may use the index in them.
//    Source: DOCA GPUNetIO, doca_gpu_dev_verbs_prepare_db.
//  - What is stored to staging memory and to rings is released before the record that announces it, and that
//    before the doorbell. Memory of the host and of the NIC needs a release of host scope, because one of
//    GPU scope orders nothing for other agents. Source: PTX ISA, "Memory Consistency Model", Scope.
//  - The mark of a post on a shared endpoint announces it too, because another thread publishes it then.
// A gather or a barrier passes the stores of a scope to its first thread, whose release covers them. Tests
// under ThreadSanitizer run without it, because the recorder's lock would order what they are to watch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "device/exec/cpu_scheduler.h"
#include "proto/gpu/queue.h"

namespace gdx::exec {

inline constexpr char kStrictVariable[] = "GDX_STRICT";

// Threads: any thread may call any method.
class NicStores {
 public:
  // Of [base, base + bytes), from now on.
  enum class Memory { kNic, kHost, kGpu, kMarks };
  void watch(const void* base, std::uint64_t bytes, Memory memory);
  // A thread is an address of its own, whatever lies there.
  void stored(const void* thread, const void* to, std::uint64_t bytes);
  // The thread's release of host scope, or of GPU scope.
  void released(const void* thread, Placement observed);
  void handed_over(const void* thread, const void* to_thread);
  // The record itself is a store that the next doorbell needs released.
  void recorded(const void* thread, const void* record);
  // `value` in a counter; 0 takes a mark away.
  void counted(const void* thread, const std::uint32_t* counter, std::uint32_t value);
  // `value` as a NIC reads it: bytes 1 and 2 are the WQE's index, 4 to 6 the queue pair's number.
  void rang(const void* thread, const std::uint64_t* doorbell, std::uint64_t value);
  // Returns how many releases of that scope all threads have made.
  [[nodiscard]] std::uint64_t releases(Placement observed) const;
  // Describes the first offence and counts all; empty: none.
  [[nodiscard]] std::string report() const;

 private:
  struct Range {
    std::uint64_t bytes;
    Memory memory;
  };
  // Stores that a thread has not released, by the scope that releases them.
  struct Unreleased {
    bool for_gpu = false;
    bool for_host = false;
  };

  void offend(std::string what);
  const std::pair<const std::uintptr_t, Range>* find(const void* at) const;
  void announce(const void* thread, const char* how);

  mutable std::mutex mutex_;
  std::map<std::uintptr_t, Range> watched_;  // by where they begin; none overlaps another
  std::unordered_map<const void*, Unreleased> unreleased_;
  std::map<std::pair<std::uintptr_t, std::uint32_t>, std::uint16_t>
      rung_;  // newest index, by register and queue
  std::string first_;
  std::uint64_t offences_ = 0;
  std::uint64_t releases_of_host_ = 0;
  std::uint64_t releases_of_gpu_ = 0;
};

// Recorder of the launch that runs on this host thread; null without one.
inline thread_local NicStores* nic_stores = nullptr;

// The rest is for the threads of that launch.
inline void watch_endpoint(const EndpointHandle& handle) {
  if (nic_stores == nullptr) return;
  using Memory = NicStores::Memory;
  const Memory queues = handle.placement == Placement::kGpu ? Memory::kGpu : Memory::kHost;
  const auto pool_bytes = [](const StagingHandle& pool) {
    return std::uint64_t{pool.slot_count} * pool.slot_bytes;
  };
  nic_stores->watch(handle.staging.base, pool_bytes(handle.staging), Memory::kNic);
  nic_stores->watch(handle.bounce.base, pool_bytes(handle.bounce), Memory::kHost);
  nic_stores->watch(handle.send_queue, sizeof *handle.send_queue << handle.log_send_queue, queues);
  nic_stores->watch(handle.send_record, sizeof *handle.send_record, queues);
  nic_stores->watch(handle.state->shared.marks, sizeof handle.state->shared.marks, Memory::kMarks);
}
inline void note_store(const void* to, std::uint64_t bytes) {
  if (nic_stores != nullptr) nic_stores->stored(&current_thread(), to, bytes);
}
inline void note_release(Placement observed) {
  if (nic_stores != nullptr) nic_stores->released(&current_thread(), observed);
}
inline void note_gather(Scope scope) {
  if (nic_stores != nullptr) nic_stores->handed_over(&current_thread(), &first_thread(scope));
}
inline void note_record(const void* record) {
  if (nic_stores != nullptr) nic_stores->recorded(&current_thread(), record);
}
inline void note_counter(const std::uint32_t* counter, std::uint32_t value) {
  if (nic_stores != nullptr) nic_stores->counted(&current_thread(), counter, value);
}
inline void note_doorbell(const std::uint64_t* doorbell, std::uint64_t value) {
  if (nic_stores != nullptr) nic_stores->rang(&current_thread(), doorbell, value);
}

}  // namespace gdx::exec
