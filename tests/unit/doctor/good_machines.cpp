#include <fmt/format.h>

#include "tests/unit/doctor/faults.h"

namespace gdx::doctor {
namespace {

// A machine whose command line alone tells what the IOMMU does.
std::function<void(Fabricated&)> of_iommu(const char* word) {
  return [word](Fabricated& m) {
    m.remove_all("/sys/kernel/iommu_groups");
    m.replace("/proc/cmdline", "quiet", word);
  };
}

const std::vector<Fault> variants = {
    {"RoCE v2 over IPv4", [](Fabricated&) {}},
    {"RoCE v2 over IPv6",
     [](Fabricated& m) {
       for (const char* name : {"mlx5_0", "mlx5_1"})
         set_gids(m, name, "RoCE v2", "2001:0db8:0000:0000:0000:0000:0000:0001");
     }},
    {"container",
     [](Fabricated& m) {
       set(m, "/.dockerenv", "");
       set(m, "/proc/self/cgroup", "0::/");
       m.remove_all("/sys/fs/cgroup/user.slice");
       set(m, "/sys/fs/cgroup/cgroup.procs", "1");
       of_docker(m);
       m.is_root = false;
     }},
    {"little locked memory and CAP_IPC_LOCK",
     [](Fabricated& m) {
       m.replace(kLimits, "Max locked memory         unlimited", "Max locked memory         8388608  ");
     }},
    {"dmabuf alone", [](Fabricated& m) { m.remove_all("/sys/module/nvidia_peermem"); }},
    {"no GDRCopy",
     [](Fabricated& m) {
       m.remove_all("/sys/module/gdrdrv");
       m.files.erase("/dev/gdrdrv");
     }},
    {"no IOMMU",
     [](Fabricated& m) {
       m.remove_all("/sys/kernel/iommu_groups");
       for (const char* device : {kGpu0, kGpu1, kNic0, kNic1}) m.files.erase(pci(device, "iommu_group"));
     }},
    {"IOMMU in passthrough by the command line", of_iommu("intel_iommu=on iommu=pt")},
    {"IOMMU off by the command line", of_iommu("intel_iommu=off")},
    {"the same of AMD", of_iommu("amd_iommu=off")},
    {"the same of any", of_iommu("iommu.passthrough=1")},
    {"traffic class for gdx alone",
     [](Fabricated& m) {
       for (const char* name : {"mlx5_0", "mlx5_1"}) m.remove_all(hca(name, "tc"));
     }},
    {"no stream operations on memory",
     [](Fabricated& m) { m.replace(kParameters, "EnableStreamMemOPs: 1", "EnableStreamMemOPs: 0"); }},
    {"a virtual machine",
     [](Fabricated& m) {
       make_virtual(m);
       for (auto& [bus_id, gpu] : m.gpus) m.files[pci(bus_id, "config")].resize(64);
     }},
    {"GPUs that a hypervisor may ask, and does not",
     [](Fabricated& m) {
       make_virtual(m);
       for (auto& [bus_id, gpu] : m.gpus) gpu.compute_capability = 80;
     }},
    {"GPUs that a hypervisor may ask, and none",
     [](Fabricated& m) {
       for (auto& [bus_id, gpu] : m.gpus) {
         gpu.compute_capability = 80;
         m.files[pci(bus_id, "config")].resize(64);
       }
     }},
    {"atomics as one transaction on PCIe",
     [](Fabricated& m) {
       for (const char* nic : {kNic0, kNic1})
         m.replace_output(fmt::format("mlxconfig -d {} q", nic), "PCI_ATOMIC_DISABLED_EXT_ATOMIC_ENABLED(0)",
                          "PCI_ATOMIC_ENABLED(4)");
     }},
    {"several switches", [](Fabricated& m) { m.topology.paths[0].path = PathClass::kPxb; }},
    {"one root complex",
     [](Fabricated& m) {
       m.topology.paths[0] = {0, 0, PathClass::kPhb};
     }},
    {"modules of the kernel's own",
     [](Fabricated& m) {
       set(m, "/sys/module/mlx5_core", "/");
       m.files.erase("/sys/module/mlx5_core/version");
       m.programs["modinfo -F version mlx5_core"] = "";
     }},
    {"ConnectX-8 without Data Direct",
     [](Fabricated& m) {
       for (const char* nic : {kNic0, kNic1}) set(m, pci(nic, "device"), "0x1023");
     }},
    {"ConnectX-8 with Data Direct",
     [](Fabricated& m) {
       for (const char* nic : {kNic0, kNic1}) set(m, pci(nic, "device"), "0x1023");
       m.data_direct["mlx5_0"] = "/sys/devices/pci0000:18/0000:18:01.0/0000:1b:00.0";
     }},
    {"a NIC of another vendor",
     [](Fabricated& m) {
       set(m, hca("bnxt_re0", "device/vendor"), "0x14e4");
       set(m, hca("bnxt_re0", "device/driver"), "@../../../../bus/pci/drivers/bnxt_en");
       set(m, port("bnxt_re0", "state"), "1: DOWN");
     }},
    {"EFA that writes",
     [](Fabricated& m) {
       set(m, hca("rdmap0", "device/vendor"), "0x1d0f");
       set(m, hca("rdmap0", "device/driver"), "@../../../../bus/pci/drivers/efa");
       set(m, port("rdmap0", "hw_counters/rdma_write_bytes"), "4096");
     }},
    {"a GPU of another vendor",
     [](Fabricated& m) {
       m.topology.gpus.push_back({"0000:c1:00.0", "Instinct", "", 1, false});
     }},
};

}  // namespace

const std::vector<Fault>& good_variants() { return variants; }

}  // namespace gdx::doctor
