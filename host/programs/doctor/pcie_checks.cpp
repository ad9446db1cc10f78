// The way between a GPU and its NIC.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "host/gpu/relaxed_stores.h"
#include "host/programs/doctor/checks.h"
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
  const auto allowed = field(machine.read(kProcessStatus).value_or(""), "Cpus_allowed_list");
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
    findings.push_back(judge(pair.gpu, allowed && near ? std::optional(may) : std::nullopt,
                             {fmt::format("this process may run on NUMA node {}", node),
                              fmt::format("this process may not run on NUMA node {}", node),
                              "whether this process may run near it is not known"},
                             fmt::format("{}: Cpus_allowed_list: {}; {}", kProcessStatus,
                                         allowed.value_or("?"), machine.evidence(path)),
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

// The NVIDIA driver lets a GPU store relaxed where its parameters or a hypervisor say so, and then gdx does
// not push.
Finding judge_stores(const Machine& machine, const std::string& gpu) {
  constexpr int kMayBeAsked = 80;  // compute capability of GPUs that a hypervisor may ask
  const auto seen = see_gpu(machine, gpu);
  const RelaxedStores relaxed = relaxed_stores(gpu, seen ? seen->compute_capability : 0, machine.root);
  if (!relaxed.cause.empty())
    return {gpu, Verdict::kWarn,
            "may store out of order: a doorbell may pass the payload, so gdx does not push", relaxed.cause,
            relaxed.fix};
  const std::string of_unseen = seen ? "" : relaxed_stores(gpu, kMayBeAsked, machine.root).cause;
  if (!of_unseen.empty())
    return {gpu, Verdict::kUnknown, "whether it stores in order is not known",
            fmt::format("{}; {}", seen.error().message, of_unseen)};
  const bool known = machine.read(kNvidiaParameters).has_value();
  return judge(gpu, known ? std::optional(true) : std::nullopt,
               {"stores in order", "", "whether it stores in order is not known"},
               known ? fmt::format("{}: strict", kNvidiaParameters) : machine.evidence(kNvidiaParameters));
}

// On a NIC relaxed ordering is for payload that is registered so.
std::vector<Finding> check_relaxed_ordering(const Machine& machine) {
  constexpr unsigned kRelaxedOrdering = 1 << 4;
  std::vector<Finding> findings = each(mlx5_hcas(machine), [&](const HcaSeen& hca) {
    const auto control = device_control(machine, hca.bus_id);
    return judge(hca.bus_id, control ? std::optional((*control & kRelaxedOrdering) != 0) : std::nullopt,
                 {"may send with relaxed ordering", "may not send with relaxed ordering",
                  "RlxdOrd is for root to know"},
                 device_folder(hca.bus_id) + "/config: DevCtl RlxdOrd");
  });
  for (const PciDevice& gpu : machine.topology.gpus) {
    if (gpu.runs_cuda) findings.push_back(judge_stores(machine, gpu.bus_id));
  }
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

// Returns the number of a setting that mlxconfig prints as NAME(NUMBER).
std::string_view number_of(std::string_view setting) {
  setting.remove_prefix(std::min(setting.find('(') + 1, setting.size()));
  return setting.substr(0, setting.find(')'));
}

// With force_relax no key keeps the order of its writes, so a signal may pass its payload. Sources: NCCL
// issues 531 and 615, where per_mkey is required. In atomic mode 4 an atomic is one transaction on PCIe,
// which under a relaxed key passes WRITEs; gdx makes no such key. Sources: NCCL issue 2210, DeepEP issue
// 661. No source says what MAX_ACC_OUT_READ should be.
std::vector<Finding> check_settings(const Machine& machine) {
  constexpr std::string_view kForceRelax = "1";
  constexpr std::string_view kPcieAtomics = "4";
  return each(mlx5_hcas(machine), [&](const HcaSeen& hca) -> Finding {
    const auto text = machine.probes.run({"mlxconfig", "-d", hca.bus_id, "q"});
    const std::string evidence = text ? fmt::format("mlxconfig -d {} q", hca.bus_id) : text.error().message;
    const auto setting = [&](const char* name) {
      return text ? nic_setting(*text, name).value_or("?") : std::string("?");
    };
    const std::string reads = setting("MAX_ACC_OUT_READ");
    const std::string ordering = setting("PCI_WR_ORDERING");
    const std::string atomics = setting("PCI_ATOMIC_MODE");
    const std::string told =
        fmt::format("MAX_ACC_OUT_READ {}, PCI_WR_ORDERING {}, PCI_ATOMIC_MODE {}", reads, ordering, atomics);
    if (number_of(ordering) == kForceRelax)
      return {
          hca.name, Verdict::kFail,
          fmt::format("PCI_WR_ORDERING {}: a signal may pass its payload, which is then wrong", ordering),
          fmt::format("{}: {}", evidence, told),
          fmt::format("mlxconfig -d {} set PCI_WR_ORDERING=0 (per_mkey), then mlxfwreset -d {} reset, or a "
                      "cold reboot",
                      hca.bus_id, hca.bus_id)};
    const bool known = reads != "?" && ordering != "?" && atomics != "?";
    const bool passes = number_of(atomics) == kPcieAtomics;
    return judge(
        hca.name, known ? std::optional(true) : std::nullopt,
        {passes ? told + ": an atomic under a relaxed key may pass WRITEs; gdx makes no such key" : told, "",
         "not all is known: " + told},
        evidence);
  });
}

constexpr Check kPcieChecks[] = {
    {"acs", "ACS control of the bridges between a GPU and its NIC", check_acs},
    {"iommu", "/sys/kernel/iommu_groups, /proc/cmdline", check_iommu},
    {"path", "the PCI tree: PIX, PXB, PHB, NODE or SYS", check_path},
    {"affinity", "/proc/self/status, /sys/devices/system/node", check_affinity},
    {"relaxed-ordering", "Device Control of NICs, the NVIDIA driver's parameters, a hypervisor's requests",
     check_relaxed_ordering},
    {"read-request", "Device Control of NICs", tell_read_request},
    {"nic-settings", "mlxconfig: MAX_ACC_OUT_READ, PCI_WR_ORDERING, PCI_ATOMIC_MODE", check_settings},
};

}  // namespace

std::span<const Check> pcie_checks() { return kPcieChecks; }

}  // namespace gdx::doctor
