// The execution layer of simulated ranks, before device/exec/exec.h on the path of includes: the CPU layer,
// but with a bus. A word in host memory, which a GPU reads across the bus, is there when it would have been.
// Device code calls the inner namespace here `exec`, and what that does not say anew is the CPU layer's.
#pragma once

#include <cstdint>

#include "device/exec/cuda_names.h"
#include "tests/ranks/host_words.h"

namespace gdx::device::exec {

using namespace gdx::exec;

inline std::uint64_t load_acquire(const std::uint64_t* from) {
  ranks::carry_load(from, sizeof *from);
  return gdx::exec::load_acquire(from);
}
inline std::uint32_t load_flag(const std::uint32_t* from) {
  ranks::carry_load(from, sizeof *from);
  return gdx::exec::load_flag(from);
}

}  // namespace gdx::device::exec
