// How a call on an endpoint is to be made.
#pragma once

namespace gdx {

// When the NIC is told: at once, or with a later call on the same endpoint (its doorbell covers all
// WQEs before it; gdx_flush, gdx_wait and closing the endpoint ring too).
enum class Doorbell { kRing, kDefer };

// How payload reaches the NIC. kAuto: inline up to 28 B, push up to one staging slot, pull above.
enum class Mode { kAuto, kPull, kPush, kInline };

enum class SignalOp { kSet, kAdd };

enum class Compare { kEqual, kNotEqual, kGreaterEqual, kGreater, kLessEqual, kLess };

}  // namespace gdx
