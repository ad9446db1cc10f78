// The kernels of device_test, and how its host side starts them. One source for both layers.
#pragma once

#include <cstdint>

#include "proto/gpu/memory.h"
#include "proto/gpu/queue.h"
#include "proto/status.h"

namespace gdx::gpu_tests {

// Message k of thread t goes from local + kBytes * i to remote + kBytes * i, where i = t * count + k.
inline constexpr std::uint64_t kBytes = 16;

struct Job {
  EndpointHandle handle;
  RemoteMemory remote;
  LocalMemory local;
  const std::uint64_t* signal;  // waits are on this word
  std::uint32_t count;          // messages of a thread
  std::uint32_t blocks;         // of the grid
  std::uint32_t threads;        // of a block
  Status* outcome;              // one for each thread
};

// Each runs a kernel to its end and returns what launch() does; what the calls returned is in job.outcome.
[[nodiscard]] Status put_by_thread(const Job& job);    // one thread, exclusive; then a flush
[[nodiscard]] Status put_by_warp(const Job& job);      // one warp, exclusive, 32 puts a call; then a flush
[[nodiscard]] Status put_and_signal(const Job& job);   // one thread; values 1, 2, ... to remote's last word
[[nodiscard]] Status put_shared(const Job& job);       // the whole grid, shared; then a flush
[[nodiscard]] Status wait_for_signal(const Job& job);  // one block of any size: until *signal >= count
[[nodiscard]] Status open_and_close(const Job& job);   // one thread

}  // namespace gdx::gpu_tests
