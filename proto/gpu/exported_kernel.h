// Description of a kernel, left in a shared object by GDX_EXPORT_KERNEL (device/export_kernel.h) for whoever
// launches it by its name.
#pragma once

#include <cstdint>

#include "proto/gpu/team.h"
#include "proto/status.h"

namespace gdx {

// Rises with any change of the types below.
inline constexpr std::uint32_t kExportedKernelVersion = 1;

enum class KernelValue : std::uint8_t { kBool, kSigned, kUnsigned, kFloat };

// Type of an argument: a number, or a pointer to numbers.
struct KernelArgument {
  KernelValue value;
  std::uint8_t bytes;  // of one number
  bool is_pointer;
  bool is_constant;  // the kernel reads through the pointer only
};

// Size of a launch on the CPU layer, along x.
struct KernelLaunch {
  std::uint32_t blocks;
  std::uint32_t threads;       // of a block
  std::uint32_t shared_bytes;  // of gdx_dynamic_shared(), for each block
  int (*progress)();           // exec::LaunchConfig::progress
};

struct ExportedKernel {
  std::uint32_t version;  // kExportedKernelVersion of its build; what follows is not read where it differs
  std::uint32_t team_layout;
  std::uint32_t argument_count;
  const KernelArgument* arguments;  // behind the team
  // Runs the kernel on this thread. values[i] points to argument i. Errors: exec::run_grid's.
  Status (*launch)(const TeamHandle& team, const KernelLaunch& launch, const void* const* values);
};

}  // namespace gdx
