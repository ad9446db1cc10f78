// The kernels of posting_bench: puts into queues that no NIC reads, stores to host memory, and requests to a
// host thread. A case posts no more than its queues hold, so it waits for no completion, and only posting is
// timed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "proto/gpu/queue.h"
#include "proto/status.h"

namespace gdx::posting {

enum class Poster {
  kThread,   // one put a call
  kWarp,     // 32 puts and one doorbell a call, gdx_put_warp
  kWarpPut,  // one put a call by a warp's endpoint, which is exclusive
};

// Queue i of a case lies at `arena + i * queue_bytes`, its parts where the handle has them in queue 0. Its
// state, in GPU memory as libgdx has it, is the i-th from the first.
struct Queues {
  EndpointHandle first;
  std::byte* arena;
  std::uint64_t queue_bytes;
};

struct PostCase {
  Queues queues;
  Sharing sharing;
  Poster poster;
  std::uint32_t posters;  // threads or warps; one queue each, if exclusive
  std::uint32_t posters_of_block;
  std::uint32_t puts;  // of a poster; a warp's are a multiple of 32
};

inline constexpr std::uint64_t kPutBytes = 64;
// Returns the address of put k of a poster. Lane l of a warp's call has k = 32 * call + l.
constexpr std::uint64_t put_address(std::uint64_t poster, std::uint64_t puts, std::uint64_t k) {
  return (poster * puts + k + 1) * kPutBytes;
}

struct Times {
  std::uint64_t start_ns;
  std::uint64_t end_ns;
  std::uint64_t cycles;  // of the SM; nanoseconds on the CPU layer
  Status status;
  std::uint32_t reserved;
};

// `times`: one for each poster, where kernels may write. Errors: as exec::launch.
[[nodiscard]] Status post(const PostCase& what, Times* times);

// Another library's puts into these queues, which must contain equal WQEs in the end; it rings plainly.
struct Peer {
  const char* name;
  Status (*post)(const PostCase& what, Times* times);
};
// Null where the program is built without one.
[[nodiscard]] const Peer* peer();

enum class Storer { kThread, kWarp, kBlock, kBulk };  // kBulk: TMA, cp.async.bulk, from sm_90 on

inline constexpr std::uint32_t kChunkBytes = 4096;  // a staging slot
inline constexpr std::uint32_t kBlockThreads = 256;

struct StoreCase {
  Storer storer;
  std::uint32_t blocks;  // of the grid; each fills `chunks` chunks of its own, from the one at `from`
  std::uint32_t chunks;
  std::uint32_t chunk_bytes;  // a multiple of 16, at most kChunkBytes
  bool one_at_a_time;         // each chunk is done before the next begins; else all are under way at once
  Placement released_for;     // scope at which a chunk is done: the GPU's (kGpu) or the system's (kHost)
  std::byte* to;
  const std::byte* from;
};

// The time of a block ends when its stores are done, not when they are issued. kUnsupported without TMA.
[[nodiscard]] Status store(const StoreCase& what, Times* times);

// Asks 1, 2, ..., `rounds` at `*question` and waits each time until `*answer` says the same: what a put costs
// at least that a thread of the host posts for a kernel. kTimeout, in times, if an answer takes a second.
struct AskCase {
  std::uint64_t* question;
  const std::uint64_t* answer;
  std::uint32_t rounds;
};
[[nodiscard]] Status ask(const AskCase& what, Times* times);

}  // namespace gdx::posting
