// Ways to map host pages to a GPU.
#pragma once

#include "base/result.h"
#include "host/gpu/pages.h"

namespace gdx {

inline constexpr char kGpuMappingVariable[] = "GDX_GPU_MAPPING";

enum class MappingChoice { kAuto, kPlain, kIoMemory };  // "auto", "plain", "iomemory"
enum class MappingWay { kPlain, kIoMemory };            // without and with CU_MEMHOSTREGISTER_IOMEMORY

// Chooses the way. A forced way is tried even where the driver will refuse it.
[[nodiscard]] constexpr MappingWay choose_mapping(PageKind pages, MappingChoice choice) {
  switch (choice) {
    case MappingChoice::kPlain: return MappingWay::kPlain;
    case MappingChoice::kIoMemory: return MappingWay::kIoMemory;
    case MappingChoice::kAuto: break;
  }
  return pages == PageKind::kDevice ? MappingWay::kIoMemory : MappingWay::kPlain;
}

[[nodiscard]] constexpr const char* mapping_name(MappingWay way) {
  return way == MappingWay::kPlain ? "plain registration" : "IoMemory registration";
}

// Reads $GDX_GPU_MAPPING; kAuto without it. Errors: kInvalidArgument naming its values.
[[nodiscard]] Result<MappingChoice> mapping_choice_from_environment();

}  // namespace gdx
