// Kernels that are launched by their names, from a shared object: Python's Team.launch.
//
//   __global__ void scale(TeamHandle team, float* x, std::uint64_t n, float by) { ... }
//   GDX_EXPORT_KERNEL(scale, float*, std::uint64_t, float);
//
// The macro stands behind the kernel, in no namespace. The types are those behind the team: numbers,
// enumerations, and pointers to those.
#pragma once

#include "device/exec/export_kernel.h"
#include "device/team.h"
