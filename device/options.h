// Options of the calls of kernels, on endpoints and on teams.
#pragma once

#include <cstdint>

namespace gdx {

struct QueueState;

// Time of the doorbell: in the call itself, or in a later call on the endpoint. A later doorbell covers all
// WQEs before it; gdx_flush, gdx_wait and closing the endpoint ring too. Deferred WQEs share one plain
// doorbell, so the NIC reads the doorbell record and the WQEs from the queue. BlueFlame would have carried
// each WQE. They share its fences too, so a batch of pushes pays for system scope once. Each push of a batch
// holds a staging slot.
enum class Doorbell { kRing, kDefer };

// Path of the payload to the NIC.
//  - kPull: the NIC reads the source.
//  - kPush: the kernel stores payload into NIC memory.
//  - kInline: the payload lies in the work request, kMaxInlinePutBytes at most.
//  - kBounce: the kernel stores payload into host memory, and the NIC reads it there. Serves long paths,
//    because a GPU writes over them fast but is read slowly.
//  - kAuto: chooses by the size, from EndpointHandle::modes.
enum class Mode { kAuto, kPull, kPush, kInline, kBounce };

// Longest put of Mode::kInline; a longer one is kInvalidLength. On an endpoint that threads share it takes a
// work request for every 28 B, so that more would take many times as long as a pull.
inline constexpr std::uint32_t kMaxInlinePutBytes = 4096;

// Way in which a push or bounce fills its slot: 16 B stores of the scope, or bulk copies by TMA. The TMA
// copies from shared memory while the threads continue. kBulk is for endpoints of a block, and takes 8 KiB of
// shared memory. GPUs before sm_90 store. Nothing chooses kBulk by itself, because stores fill host memory
// faster: on an H200 4 KiB in 0.8 us by a block, 1.6 us by the TMA. CUDA does not document TMA writes to NIC
// memory, though other libraries depend on them.
enum class Copy { kStores, kBulk };

// Change of a signal word: the value replaces it, or is added atomically.
enum class SignalOp { kSet, kAdd };

// Comparison of a signal word, left, with a value, right. Both are unsigned.
enum class Compare { kEqual, kNotEqual, kGreaterEqual, kGreater, kLessEqual, kLess };

// A point among a team's operations towards one rank on one lane. Valid in any thread of the GPU or process,
// for 2^31 further operations there.
struct TeamMark {
  QueueState* state;  // null: nothing has been posted to a NIC
  std::uint32_t position;
  std::uint32_t rank;
  std::uint32_t whole;  // nonzero: a flush of the rank stands for it
};

}  // namespace gdx
