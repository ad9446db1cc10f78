// Work of one launch of a benchmark's kernels, in the form that kernels take. C++17.
#pragma once

#include <cstddef>
#include <cstdint>

#include "proto/gpu/memory.h"
#include "proto/gpu/queue.h"
#include "proto/gpu/team.h"
#include "proto/status.h"

namespace gdx::bench {

// From kAllToAll on they are collectives: all ranks take part in each message, which is a round.
enum class Operation : std::uint8_t {
  kPut,
  kPutSignal,
  kGet,
  kFetchAdd,
  kAllToAll,
  kIncast,
  kAllReduce,
  kDispatch,
  kCombine
};
constexpr bool is_collective(Operation operation) { return operation >= Operation::kAllToAll; }
// Returns whether a round sends tokens to experts or back.
constexpr bool is_of_experts(Operation operation) { return operation >= Operation::kDispatch; }

// Most ranks of a benchmark: sums stay exact in floats.
inline constexpr std::uint32_t kMostRanks = 16;
// Way of the payload; kProxy: a pull that a thread of the host posts. Operations without payload of their own
// have kNic.
enum class Way : std::uint8_t { kPull, kPush, kInline, kBounce, kAuto, kProxy, kNic };
enum class Threads : std::uint8_t { kThread, kWarp, kBlock };

// Words between a kernel and the thread that posts for it, in memory of both.
struct ProxyWords {
  std::uint64_t asked;    // the kernel: that many messages are to be posted
  std::uint64_t sent;     // the thread: that many are complete
  std::uint64_t failure;  // the thread: a Status, of why there will be no more
  std::uint64_t over;     // nonzero: the kernel has ended and requests nothing more
};

// Signal words of a lane, at either rank.
enum SignalWord : std::uint32_t { kData = 0, kDone = 1, kCounter = 2, kSignalWords = 8 };

// An endpoint and memory: what a block of the kernel works on. A collective has the times alone.
struct Lane {
  EndpointHandle endpoint;
  LocalMemory source;  // of puts, and of the peer's gets
  LocalMemory sink;    // of the peer's puts, and of gets
  RemoteMemory peer_source;
  RemoteMemory peer_sink;
  std::uint64_t* signals;
  RemoteMemory peer_signals;
  LocalMemory original;  // 8 B for the results of atomics
  ProxyWords* proxy;
  std::uint32_t* latencies;  // of each message, in ticks of exec::now_cycles()
};

// Team of a collective, and memory in its windows.
struct Round {
  TeamHandle team;
  std::byte* to;                       // a piece of each rank, or the sums
  const std::byte* from;               // a piece for each rank, or one for all
  std::uint64_t* words;                // of incast and experts: a signal of each rank, in the heap
  std::uint32_t messages[kMostRanks];  // to each rank, of experts
};

struct Load {
  Operation operation;
  Way way;
  Threads scope;
  bool latency;      // one message at a time, each timed; a put with a signal is answered by the peer
  bool sends;        // else this rank answers, or waits for the peer's end
  bool awaits_peer;  // after its own end; both ranks send
  std::uint32_t endpoints;
  std::uint32_t posters;  // blocks, one a lane; where they are more than the endpoints, these are shared
  std::uint32_t workers;  // threads that run the blocks, on the CPU layer
  std::uint32_t depth;    // messages between two flushes
  std::uint32_t batch;    // messages of one doorbell
  std::uint64_t bytes;
  std::uint64_t messages;
  std::uint32_t rank;
  std::uint32_t ranks;
  std::uint64_t slots;         // places that messages take turns in
  std::uint64_t stride_bytes;  // from one place to the next
  std::uint64_t first_sequence;
  Round round;
};

// Of one block.
struct LaneOutcome {
  Status status;
  std::uint64_t messages;  // done
  std::uint64_t begin_ns;  // of the first
  std::uint64_t end_ns;    // of the last flush
  // The same moments by exec::now_cycles(), whose resolution is finer than that of a GPU's ns. Of latency.
  std::uint64_t begin_ticks;
  std::uint64_t end_ticks;
  // Processor time of the process when the block began and ended; 0 on a GPU.
  std::uint64_t begin_cpu_ns;
  std::uint64_t end_cpu_ns;
};

// Returns the length of a tick, as the lane's whole time gives it; 1 where that is too short for its clocks.
constexpr double ns_per_tick(const LaneOutcome& outcome) {
  const std::uint64_t ns = outcome.end_ns - outcome.begin_ns;
  const std::uint64_t ticks = outcome.end_ticks - outcome.begin_ticks;
  return ns == 0 || ticks == 0 ? 1 : static_cast<double>(ns) / static_cast<double>(ticks);
}

}  // namespace gdx::bench
