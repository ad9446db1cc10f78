#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <string>

#include "driver-shim/cuda/fake/state.h"

namespace gdx::fake_cuda {

// Reads the kind as the driver gets it from the Linux kernel. get_user_pages fails for an area with VM_IO or
// VM_PFNMAP, and registering I/O memory requires one.
HostPages host_pages(std::uintptr_t first, std::size_t bytes) {
  std::ifstream maps("/proc/self/smaps");
  std::uintptr_t at = first;  // everything below is known
  const std::uintptr_t end = first + bytes;
  bool within = false;
  std::uintptr_t area_end = 0;
  HostPages found = HostPages::kNone;
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t low = 0;
    std::uintptr_t high = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " ", &low, &high) == 2) {
      within = low <= at && at < high;
      area_end = high;
    } else if (within && line.rfind("VmFlags:", 0) == 0) {
      const bool io = line.find(" io") != std::string::npos || line.find(" pf") != std::string::npos;
      const HostPages kind = io ? HostPages::kIo : HostPages::kOrdinary;
      if (found != HostPages::kNone && found != kind) return HostPages::kNone;
      found = kind;
      at = area_end;
      if (at >= end) return found;
    }
  }
  return HostPages::kNone;
}

bool of_software_hca(std::uintptr_t first) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t low = 0;
    std::uintptr_t high = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " ", &low, &high) != 2) continue;
    if (low <= first && first < high) return line.find("/memfd:gdx-softhca ") != std::string::npos;
  }
  return false;
}

}  // namespace gdx::fake_cuda
