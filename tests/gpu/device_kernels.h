// The kernels of device_test, and how its host side starts them. One source for both layers.
#pragma once

#include <cstdint>

#include "device/exec/scope.h"
#include "device/options.h"
#include "proto/gpu/memory.h"
#include "proto/gpu/queue.h"
#include "proto/status.h"

namespace gdx::gpu_tests {

// Message k of thread t goes from local + kBytes * i to remote + kBytes * i, where i = t * count + k.
inline constexpr std::uint64_t kBytes = 16;

// Messages of put_pieces: message k is piece_bytes(k). Places cover every alignment, with a gap between one
// and the next.
inline constexpr std::uint32_t kPieces = 24;
constexpr std::uint32_t piece_bytes(std::uint32_t k) {
  constexpr std::uint32_t kLengths[kPieces] = {1,  3,  7,   8,   15,  16,  17,  28,  29,  31,   33,   64,
                                               92, 93, 156, 219, 220, 221, 511, 512, 513, 1000, 4096, 10'000};
  return kLengths[k];
}

inline constexpr std::uint32_t kReplays = 3;

struct Piece {
  std::uint64_t from;
  std::uint64_t to;
};
constexpr Piece piece_of(std::uint32_t k) {
  std::uint64_t begin = 0;
  for (std::uint32_t i = 0; i < k; ++i) begin += piece_bytes(i) + 32;
  return {begin + k % 16, begin + 5 * k % 16};
}
constexpr std::uint8_t piece_byte(std::uint32_t k, std::uint64_t i) {
  return static_cast<std::uint8_t>(37 * k + 11 * i + i / 256 + 1);
}

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
[[nodiscard]] Status put_by_thread(const Job& job);  // one thread, exclusive; then a flush
// The same kReplays times: on a GPU from one CUDA graph, on the CPU layer by as many launches.
[[nodiscard]] Status replay_put_by_thread(const Job& job);
[[nodiscard]] Status put_by_warp(const Job& job);      // one warp, exclusive, 32 puts a call; then a flush
[[nodiscard]] Status put_and_signal(const Job& job);   // one thread; values 1, 2, ... to remote's last word
[[nodiscard]] Status put_shared(const Job& job);       // the whole grid, shared; then a flush
[[nodiscard]] Status wait_for_signal(const Job& job);  // one block of any size: until *signal >= count
[[nodiscard]] Status open_and_close(const Job& job);   // one thread

// One thread, one warp or one block, exclusive: its threads write each piece, and put it; then a flush.
[[nodiscard]] Status put_pieces(const Job& job, Mode mode, Scope scope);
// Puts by a block, whose pushes and bounces are stored in bulk; kUnsupported for other modes.
[[nodiscard]] Status put_pieces_in_bulk(const Job& job, Mode mode);
// One thread: adds 5 to remote's first word, swaps the second if it is 7 for 9, and reads both; the originals
// and what was read land in local's first four words.
[[nodiscard]] Status get_and_atomics(const Job& job);

}  // namespace gdx::gpu_tests
