// Settings that let a GPU store out of order across PCIe, so that a doorbell may pass the payload before it.
#pragma once

#include <string>
#include <string_view>

namespace gdx {

// Parameters with which the NVIDIA kernel module was loaded.
inline constexpr char kNvidiaParameters[] = "/proc/driver/nvidia/params";

struct RelaxedStores {
  std::string cause;  // the setting and its place; empty: the GPU stores in order
  std::string fix;
};

// Returns the setting that lets a GPU store out of order, from files below `root`: a parameter of the driver,
// or the hypervisor. On GA100 to GA107 (`compute_capability` 80 and 86) the driver does what the hypervisor's
// emulated configuration space asks for. Others than root cannot read that, so in what may be a virtual
// machine it counts as asked. Sources: open-gpu-kernel-modules, nv-reg.h (EnablePCIERelaxedOrderingMode),
// nvrm_registry.h (RmSetPCIERelaxedOrdering), kernel_bif.c (kbifStatePostLoad), kernel_bif_ga100.c,
// g_kernel_bif_nvoc.c.
[[nodiscard]] RelaxedStores relaxed_stores(const std::string& pci_bus_id, int compute_capability,
                                           const std::string& root = "");

// Returns the parameter of `parameters`, with its value, that lets GPUs store out of order; empty without
// one.
[[nodiscard]] std::string relaxed_ordering_in(std::string_view parameters);

// Returns whether `processors`, the text of /proc/cpuinfo, may be a virtual machine's. Linux tells it on x86
// alone, in the line "flags"; without that line, as on Arm, it may be. Source: Linux, arch/x86,
// X86_FEATURE_HYPERVISOR.
[[nodiscard]] bool may_be_virtual_machine(std::string_view processors);

}  // namespace gdx
