// Time that goes by in steps of 1 us, one for each look at it. It orders no two threads.
#pragma once

#include <atomic>
#include <cstdint>

namespace gdx::device {

inline std::atomic<std::uint64_t> stepped_ns{0};

inline std::uint64_t step_time() { return stepped_ns.fetch_add(1'000, std::memory_order_relaxed) + 1'000; }

}  // namespace gdx::device
