// Parameters with which the NVIDIA kernel module was loaded.
#pragma once

#include <string>
#include <string_view>

namespace gdx {

inline constexpr char kNvidiaParameters[] = "/proc/driver/nvidia/params";
inline constexpr char kStrictOrderingFix[] =
    "options nvidia NVreg_EnablePCIERelaxedOrderingMode=0, and no RmSetPCIERelaxedOrdering in "
    "NVreg_RegistryDwords";

// Returns the parameter of `parameters`, with its value, that lets GPUs store out of order across PCIe; empty
// without one. Sources: open-gpu-kernel-modules, nv-reg.h (EnablePCIERelaxedOrderingMode), nvrm_registry.h
// (RmSetPCIERelaxedOrdering, of which 1 and 2 enable).
[[nodiscard]] std::string relaxed_ordering_in(std::string_view parameters);

}  // namespace gdx
