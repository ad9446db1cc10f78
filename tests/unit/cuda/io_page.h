#pragma once

#include <fstream>
#include <string>

namespace gdx::cuda {

inline constexpr char kNoIoPage[] = "this kernel maps no [vvar], so there is no I/O page to try";

// A page of this process that is a device's to the kernel (VM_IO, VM_PFNMAP): the clock's. Null: none.
inline void* io_page() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("[vvar]") != std::string::npos) {
      return reinterpret_cast<void*>(std::stoull(line.substr(0, line.find('-')), nullptr, 16));
    }
  }
  return nullptr;
}

}  // namespace gdx::cuda
