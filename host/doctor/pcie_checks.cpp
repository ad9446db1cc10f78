// The way between a GPU and its NIC.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "host/doctor/checks.h"
#include "host/gpu/driver_parameters.h"
#include "host/topo/pci_sysfs.h"

namespace gdx::doctor {
namespace {

constexpr std::size_t kPublicConfigBytes = 64;  // readable without root

std::string device_folder(const std::string& bus_id) { return fmt::format("{}/{}", kPciDevices, bus_id); }

// Source: NCCL troubleshooting/gpu_troubleshooting.rst.
std::vector<Finding> check_acs(const Machine& machine) {
  std::set<std::string> bridges;
  for (const Pair& pair : nearest_pairs(machine)) bridges.insert(pair.bridges.begin(), pair.bridges.end());
  return each(bridges, [&](const std::string& bridge) {
    const AcsState state = read_acs(bridge, machine.root + kPciDevices);
    return judge(bridge,
                 state == AcsState::kUnknown ? std::nullopt : std::optional(state == AcsState::kDirect),
                 {"does not redirect", "redirects between GPU and NIC (ACS)", "ACS is for root to know"},
                 device_folder(bridge) + "/config: ACS control",
                 fmt::format("setpci -s {} ECAP_ACS+0x6.w=0000", bridge));
  });
}

}  // namespace

// The type of a group is what the kernel does, the command line what it was told.
Finding judge_iommu(const Machine& machine, const std::string& bus_id) {
  const std::string group = machine.link(device_folder(bus_id) + "/iommu_group");
  if (group.empty())
    return judge(bus_id, machine.exists(device_folder(bus_id)) ? std::optional(true) : std::nullopt,
                 {"no IOMMU", "", "the IOMMU is not known"}, device_folder(bus_id) + "/iommu_group: absent");
  const std::string path = fmt::format("/sys/kernel/iommu_groups/{}/type", group);
  const auto type = machine.read(path);
  const auto words = words_of(machine.read("/proc/cmdline").value_or(""));
  const bool told_off = std::ranges::any_of(words, [](const std::string& word) {
    return word == "iommu=pt" || word == "iommu.passthrough=1" || word == "intel_iommu=off" ||
           word == "amd_iommu=off";
  });
  const auto passes = type       ? std::optional(*type == "identity")
                      : told_off ? std::optional(true)
                                 : std::nullopt;
  return judge(bus_id, passes,
               {"the IOMMU passes it through", "the IOMMU translates what it sends",
                "what the IOMMU does is not known"},
               machine.evidence(path) + (type ? ""
                                              : "; /proc/cmdline: iommu=pt or the like is " +
                                                    std::string(told_off ? "there" : "not there")),
               "VT-d off, or passthrough: iommu=pt");
}

namespace {

std::vector<Finding> check_iommu(const Machine& machine) {
  std::set<std::string> devices;
  for (const Pair& pair : nearest_pairs(machine)) devices.insert({pair.gpu, pair.hca.bus_id});
  return each(devices, [&](const std::string& device) { return judge_iommu(machine, device); });
}

std::vector<Finding> check_path(const Machine& machine) {
  return each(nearest_pairs(machine), [&](const Pair& pair) {
    const std::string what = fmt::format("{} to {}, its nearest", name(pair.path), pair.hca.name);
    return judge(pair.gpu, pair.path != PathClass::kNode && pair.path != PathClass::kSys, {what, what, ""},
                 fmt::format("{}: {} and {}", kPciDevices, pair.gpu, pair.hca.bus_id),
                 "move the rank to a GPU near a NIC, or use another NIC");
  });
}

// May this process, and so a rank that is started like it, run near its GPU?
std::vector<Finding> check_affinity(const Machine& machine) {
  constexpr char kStatus[] = "/proc/self/status";
  const auto allowed = field(machine.read(kStatus).value_or(""), "Cpus_allowed_list");
  std::vector<Finding> findings;
  for (const Pair& pair : nearest_pairs(machine)) {
    const int node = std::ranges::find(machine.topology.gpus, pair.gpu, &PciDevice::bus_id)->numa_node;
    if (node < 0) continue;
    const std::string path = fmt::format("/sys/devices/system/node/node{}/cpulist", node);
    const auto near = machine.read(path);
    const auto processors = parse_ranges(near.value_or(""));
    const bool may = std::ranges::any_of(parse_ranges(allowed.value_or("")), [&](std::uint64_t one) {
      return std::ranges::find(processors, one) != processors.end();
    });
    findings.push_back(judge(
        pair.gpu, allowed && near ? std::optional(may) : std::nullopt,
        {fmt::format("this process may run on NUMA node {}", node),
         fmt::format("this process may not run on NUMA node {}", node),
         "whether this process may run near it is not known"},
        fmt::format("{}: Cpus_allowed_list: {}; {}", kStatus, allowed.value_or("?"), machine.evidence(path)),
        fmt::format("move the rank to NUMA node {}", node)));
  }
  return findings;
}

// Device Control of a function. Absent: more of its configuration space is for root alone.
// Source: PCI Express Base Specification, 7.5.3.4; linux/pci_regs.h, PCI_EXP_DEVCTL.
std::optional<unsigned> device_control(const Machine& machine, const std::string& bus_id) {
  constexpr std::size_t kCapabilityPointer = 0x34;
  constexpr unsigned char kPciExpress = 0x10;
  const std::string text = machine.read_all(device_folder(bus_id) + "/config").value_or("");
  const std::vector<unsigned char> config(text.begin(), text.end());
  if (config.size() <= kPublicConfigBytes) return std::nullopt;
  std::size_t at = config[kCapabilityPointer];
  for (int left = 48; left != 0 && at >= kPublicConfigBytes && at + 10 <= config.size(); --left) {
    if (config[at] == kPciExpress) return config[at + 8] | unsigned{config[at + 9]} << 8;
    at = config[at + 1];
  }
  return std::nullopt;
}

// The NVIDIA driver lets its GPUs send relaxed where its parameters say so, and then gdx does not push. On a
// NIC it is for payload that is registered so.
std::vector<Finding> check_relaxed_ordering(const Machine& machine) {
  constexpr unsigned kRelaxedOrdering = 1 << 4;
  std::vector<Finding> findings = each(mlx5_hcas(machine), [&](const HcaSeen& hca) {
    const auto control = device_control(machine, hca.bus_id);
    return judge(hca.bus_id, control ? std::optional((*control & kRelaxedOrdering) != 0) : std::nullopt,
                 {"may send with relaxed ordering", "may not send with relaxed ordering",
                  "RlxdOrd is for root to know"},
                 device_folder(hca.bus_id) + "/config: DevCtl RlxdOrd");
  });
  if (std::ranges::none_of(machine.topology.gpus, &PciDevice::runs_cuda)) return findings;
  const auto parameters = machine.read(kNvidiaParameters);
  const std::string relaxed = relaxed_ordering_in(parameters.value_or(""));
  findings.push_back(judge(
      "GPUs", parameters ? std::optional(relaxed.empty()) : std::nullopt,
      {"store in order", "may store out of order: a doorbell may pass the payload, so gdx does not push",
       "whether they store in order is not known"},
      parameters ? fmt::format("{}: {}", kNvidiaParameters, relaxed.empty() ? "strict" : relaxed)
                 : machine.evidence(kNvidiaParameters),
      kStrictOrderingFix));
  return findings;
}

// No source says what this should be: it is told, and nothing is advised.
std::vector<Finding> tell_read_request(const Machine& machine) {
  return each(mlx5_hcas(machine), [&](const HcaSeen& hca) {
    const auto control = device_control(machine, hca.bus_id);
    return judge(hca.name, control ? std::optional(true) : std::nullopt,
                 {fmt::format("MaxReadReq {} B", 128 << (control.value_or(0) >> 12 & 7)), "",
                  "MaxReadReq is for root to know"},
                 device_folder(hca.bus_id) + "/config: DevCtl MaxReadReq");
  });
}

// No source says what these settings should be: they are told, and nothing is advised.
std::vector<Finding> tell_settings(const Machine& machine) {
  return each(mlx5_hcas(machine), [&](const HcaSeen& hca) {
    const auto text = machine.probes.run({"mlxconfig", "-d", hca.bus_id, "q"});
    const auto reads = text ? nic_setting(*text, "MAX_ACC_OUT_READ") : std::nullopt;
    const auto ordering = text ? nic_setting(*text, "PCI_WR_ORDERING") : std::nullopt;
    return judge(
        hca.name, reads && ordering ? std::optional(true) : std::nullopt,
        {fmt::format("MAX_ACC_OUT_READ {}, PCI_WR_ORDERING {}", reads.value_or("?"), ordering.value_or("?")),
         "", "MAX_ACC_OUT_READ and PCI_WR_ORDERING are not known"},
        text ? fmt::format("mlxconfig -d {} q", hca.bus_id) : text.error().message);
  });
}

constexpr Check kPcieChecks[] = {
    {"acs", "ACS control of the bridges between a GPU and its NIC", check_acs},
    {"iommu", "/sys/kernel/iommu_groups, /proc/cmdline", check_iommu},
    {"path", "the PCI tree: PIX, PXB, PHB, NODE or SYS", check_path},
    {"affinity", "/proc/self/status, /sys/devices/system/node", check_affinity},
    {"relaxed-ordering", "Device Control of NICs, the NVIDIA driver's parameters", check_relaxed_ordering},
    {"read-request", "Device Control of NICs", tell_read_request},
    {"nic-settings", "mlxconfig: MAX_ACC_OUT_READ, PCI_WR_ORDERING", tell_settings},
};

}  // namespace

std::span<const Check> pcie_checks() { return kPcieChecks; }

}  // namespace gdx::doctor
