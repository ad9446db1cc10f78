// How a call on an endpoint is to be made.
#pragma once

namespace gdx {

// When the NIC is told: at once, or with a later call on the same endpoint (its doorbell covers all
// WQEs before it; gdx_flush, gdx_wait and closing the endpoint ring too). What is deferred shares one plain
// doorbell, so the NIC reads the doorbell record and those WQEs, where BlueFlame would have brought each.
enum class Doorbell { kRing, kDefer };

// How payload reaches the NIC: it fetches it (pull), the kernel stores it into the NIC's memory (push) or
// into the work request (inline), or the kernel stores it into host memory, from which the NIC fetches
// (bounce): for long paths, where a GPU writes fast and is read slowly. kAuto goes by the size and
// EndpointHandle::modes.
enum class Mode { kAuto, kPull, kPush, kInline, kBounce };

// How a push or bounce gets into its slot: by the scope's 16 B stores, or in bulk by TMA, which takes it out
// of shared memory while the threads go on (endpoints of a block only; 8 KiB of shared memory; GPUs before
// sm_90 store). Which is faster is not measured yet, and CUDA does not say that TMA may write to a NIC's
// memory, though libraries do so: never chosen by itself.
enum class Copy { kStores, kBulk };

enum class SignalOp { kSet, kAdd };

enum class Compare { kEqual, kNotEqual, kGreaterEqual, kGreater, kLessEqual, kLess };

}  // namespace gdx
