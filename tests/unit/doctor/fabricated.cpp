#include "tests/unit/doctor/fabricated.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>

namespace gdx::doctor {
namespace {

namespace fs = std::filesystem;

constexpr char kPci[] = "/sys/bus/pci/devices/";

// As mlnx_qos prints it: DSCPs 8 P to 8 P + 7 have priority P, and priority 3 has PFC.
std::string qos_output() {
  std::string text = "DCBX mode: OS controlled\nPriority trust state: dscp\ndscp2prio mapping:\n";
  for (int priority = 0; priority < 8; ++priority) {
    text += fmt::format("\tprio:{} dscp:", priority);
    for (int dscp = 7; dscp >= 0; --dscp) text += fmt::format("{:02},", 8 * priority + dscp);
    text += "\n";
  }
  return text +
         "PFC configuration:\n\tpriority    0   1   2   3   4   5   6   7\n"
         "\tenabled     0   0   0   1   0   0   0   0\n";
}

std::string config_output(int number) {
  return fmt::format(
      "Device #1:\n----------\n\nDevice type:    ConnectX7\n\nConfigurations:         Next Boot\n"
      "         MAX_ACC_OUT_READ                    {}\n         PCI_WR_ORDERING                     "
      "per_mkey(0)\n         PCI_ATOMIC_MODE                     PCI_ATOMIC_DISABLED_EXT_ATOMIC_ENABLED(0)\n"
      "         ROCE_CC_PRIO_MASK_P1                255\n         CNP_DSCP_P1                         "
      "{}\n",
      128 >> number, 48 + number);
}

std::string ethtool_output(int number) {
  return fmt::format(
      "NIC statistics:\n     rx_packets: 91234\n     rx_discards_phy: 0\n     tx_discards_phy: 0\n"
      "     rx_prio3_pause: {}\n     rx_prio3_discards: 0\n",
      12 + number);
}

void add_gpu(Fabricated& machine, const std::string& bus_id, int number) {
  const std::string folder = kPci + bus_id;
  machine.files[folder + "/config"] = config_space(0x2910);
  machine.files[folder + "/iommu_group"] = fmt::format("@../../../../kernel/iommu_groups/{}", 10 + number);
  machine.files[fmt::format("/sys/kernel/iommu_groups/{}/type", 10 + number)] = "identity";
  machine.files[fmt::format("/proc/driver/nvidia/gpus/{}/information", bus_id)] =
      fmt::format("Model: \t\t NVIDIA H100\nDevice Minor: \t {}", number);
  machine.files[fmt::format("/dev/nvidia{}", number)] = "";
  machine.gpus[bus_id] = {bus_id, true, true, false, 90};
  machine.topology.gpus.push_back({bus_id, "NVIDIA H100", "", number, true});
}

void add_system(Fabricated& machine) {
  auto& files = machine.files;
  files["/proc/driver/nvidia/version"] = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15";
  files["/proc/driver/nvidia/params"] =
      "ResmanDebugLevel: 4294967295\nEnableStreamMemOPs: 1\n"
      "EnablePCIERelaxedOrderingMode: 0\nRegistryDwords: \"PeerMappingOverride=1;\"\n";
  files["/proc/sys/kernel/osrelease"] = "6.8.0-52-generic";
  files["/proc/cmdline"] = "BOOT_IMAGE=/vmlinuz root=/dev/sda1 quiet";
  files["/proc/cpuinfo"] = "processor\t: 0\nflags\t\t: fpu sse2 nx\nbugs\t\t: mds\n";
  files["/proc/kallsyms"] = "0000000000000000 t ib_register_peer_memory_client\t[ib_core]\n";
  files["/proc/meminfo"] = "MemTotal: 2113446972 kB\nHugePages_Total:     640\n";
  files["/proc/self/status"] = "Name:\tgdx\nCapEff:\t000001ffffffffff\nCpus_allowed_list:\t0-95\n";
  files["/proc/self/cgroup"] = "0::/user.slice\n";
  files["/proc/self/limits"] =
      "Limit                     Soft Limit           Hard Limit           Units     \n"
      "Max stack size            8388608              unlimited            bytes     \n"
      "Max open files            1048576              1048576              files     \n"
      "Max locked memory         unlimited            unlimited            bytes     \n";
  // The limits of an HCA whose name begins like another's.
  files["/sys/fs/cgroup/user.slice/rdma.max"] =
      "mlx5_10 hca_handle=4 hca_object=92\nmlx5_0 hca_handle=max hca_object=max\n"
      "mlx5_1 hca_handle=max hca_object=max\n";
  files["/sys/fs/cgroup/user.slice/rdma.current"] =
      "mlx5_10 hca_handle=4 hca_object=92\nmlx5_0 hca_handle=2 hca_object=90\n"
      "mlx5_1 hca_handle=3 hca_object=91\n";
  files["/sys/devices/system/node/node0/cpulist"] = "0-47";
  files["/sys/devices/system/node/node1/cpulist"] = "48-95";
  int last_digit = 4;
  for (const char* module : {"mlx5_core", "mlx5_ib", "nvidia", "nvidia_peermem"}) {
    const std::string version = fmt::format("24.10-1.1.{}", last_digit++);
    files[fmt::format("/sys/module/{}/version", module)] = version;
    machine.programs[fmt::format("modinfo -F version {}", module)] = version + "\n";
  }
  files["/sys/module/gdrdrv/version"] = "2.5";
  for (const char* node : {"/dev/gdrdrv", "/dev/nvidiactl", "/dev/nvidia-uvm"}) files[node] = "";
}

Probes probes_of(const std::shared_ptr<const Fabricated>& told, const std::string& root) {
  Probes probes;
  const auto refusal = [told](const std::map<std::string, std::string>& refusals,
                              const std::string& key) -> Result<Refusal> {
    if (told->blind) return fail(Status::kSystem, "not tried");
    const auto found = refusals.find(key);
    return found == refusals.end() ? Refusal() : found->second;
  };
  const auto shown = [told](const std::string& gpu) { return told->gpus.contains(gpu); };
  probes.run = [told](const std::vector<std::string>& command) -> Result<std::string> {
    const std::string line = fmt::format("{}", fmt::join(command, " "));
    const auto found = told->programs.find(line);
    if (told->blind || found == told->programs.end())
      return fail(Status::kNotFound, line + ": No such file or directory");
    return found->second;
  };
  probes.open_device = [refusal, told, root](const std::string& path) {
    const auto tried = refusal(told->unopened, path);
    return tried && !fs::exists(root + path) ? Result<Refusal>(Refusal("No such file or directory")) : tried;
  };
  probes.open_devx = [told, refusal](const std::string& hca) { return refusal(told->unopened, hca); };
  probes.gpus = [told]() -> Result<std::vector<GpuSeen>> {
    if (told->blind || told->gpus.empty()) return fail(Status::kNoDevice, "no CUDA driver here");
    std::vector<GpuSeen> seen;
    for (const auto& [bus_id, gpu] : told->gpus) seen.push_back(gpu);
    return seen;
  };
  probes.map_uar = [told, refusal, shown](const std::string& hca, const std::string& gpu) -> Result<Refusal> {
    if (!shown(gpu)) return fail(Status::kNotFound, "CUDA does not show GPU " + gpu);
    return refusal(told->unmapped, gpu + " with " + hca);
  };
  probes.hca_imports_dmabuf = [told](const std::string& hca) -> Result<bool> {
    if (told->blind) return fail(Status::kSystem, "not tried");
    return !told->takes_no_dmabuf.contains(hca);
  };
  probes.register_page = [told, refusal, shown, peermem = fs::exists(root + "/sys/module/nvidia_peermem")](
                             const std::string& hca, const std::string& gpu,
                             RegistrationWay way) -> Result<Refusal> {
    if (way == RegistrationWay::kHostPages) return refusal(told->unregistered, hca);
    if (!shown(gpu)) return fail(Status::kNotFound, "CUDA does not show GPU " + gpu);
    const std::string pair = gpu + " with " + hca;
    if (way == RegistrationWay::kPeermem)
      return peermem ? refusal(told->unregistered, "peermem " + pair) : Refusal("nvidia_peermem: not loaded");
    const bool offered = told->gpus.at(gpu).exports_dmabuf && !told->takes_no_dmabuf.contains(hca);
    return offered ? refusal(told->unregistered, "dmabuf " + pair) : Refusal("dmabuf: not offered");
  };
  probes.put = [told, refusal](const std::string& from, const std::string& to) {
    return refusal(told->unreached, from + " with " + to);
  };
  probes.device_memory = [told](const std::string& hca) -> Result<DeviceMemory> {
    if (told->blind) return fail(Status::kSystem, "not tried");
    return told->device_memory.at(hca);
  };
  probes.data_direct = [told](const std::string& hca) -> Result<std::string> {
    if (told->blind) return fail(Status::kSystem, "not tried");
    const auto found = told->data_direct.find(hca);
    return found == told->data_direct.end() ? Result<std::string>(std::string()) : found->second;
  };
  return probes;
}

}  // namespace

std::string config_space(unsigned device_control, unsigned acs_control, std::size_t bytes) {
  std::string config(4096, '\0');
  const auto put = [&](std::size_t at, std::initializer_list<unsigned> values) {
    for (const unsigned value : values) config[at++] = static_cast<char>(value);
  };
  put(0x34, {0x40});
  put(0x40, {0x05, 0x60});  // MSI, before it
  put(0x60, {0x10, 0x00});
  put(0x68, {device_control & 0xff, device_control >> 8});
  put(0x100, {0x0d, 0x00, 0x01, 0x00, 0x7f, 0x00, acs_control, 0x00});
  return config.substr(0, bytes);
}

Fabricated::Fabricated() {
  add_system(*this);
  add_gpu(*this, kGpu0, 0);
  add_gpu(*this, kGpu1, 1);
  add_hca("mlx5_0", kNic0, 0);
  add_hca("mlx5_1", kNic1, 1);
  topology.pci_devices = 60;
  topology.paths = {{0, 0, PathClass::kPix, {"0000:17:00.0", "0000:17:01.0"}},
                    {0, 1, PathClass::kSys},
                    {1, 0, PathClass::kSys},
                    {1, 1, PathClass::kPix, {"0000:99:00.0", "0000:99:01.0"}}};
  for (const GpuNicPath& path : topology.paths) {
    for (const std::string& bridge : path.bridges) files[kPci + bridge + "/config"] = config_space(0x2910);
  }
}

void Fabricated::add_hca(const std::string& name, const std::string& bus_id, int number) {
  const std::string pci = kPci + bus_id;
  const std::string folder = "/sys/class/infiniband/" + name;
  const std::string port = folder + "/ports/1";
  const std::string interface = fmt::format("eth{}", number);
  topology.nics.push_back({bus_id, "ConnectX-7", name, number, false});
  files[pci + "/config"] = config_space(number == 0 ? 0x2910 : 0x5930);
  files[pci + "/vendor"] = "0x15b3";
  files[pci + "/device"] = "0x1021";
  files[pci + "/driver"] = "@../../../../bus/pci/drivers/mlx5_core";
  files[pci + "/iommu_group"] = fmt::format("@../../../../kernel/iommu_groups/{}", 20 + number);
  files[fmt::format("/sys/kernel/iommu_groups/{}/type", 20 + number)] = "identity";
  files[pci + "/net/" + interface] = "/";
  files[pci + fmt::format("/infiniband_verbs/uverbs{}", number)] = "/";
  files[pci + "/infiniband/" + name] = "/";
  files[fmt::format("/dev/infiniband/uverbs{}", number)] = "";
  files["/sys/class/net/" + interface + "/mtu"] = std::to_string(9000 + number);
  files[folder + "/device"] = "@../../../bus/pci/devices/" + bus_id;
  files[folder + "/fw_ver"] = "28.41.1000";
  files[folder + "/tc/1/traffic_class"] = "Global tclass=106";
  files[port + "/state"] = "4: ACTIVE";
  files[port + "/phys_state"] = "5: LinkUp";
  files[port + "/link_layer"] = "Ethernet";
  files[port + "/rate"] = "400 Gb/sec (4X NDR)";
  files[port + "/lid"] = "0x0";
  files[port + "/sm_lid"] = "0x0";
  const std::pair<const char*, std::string> gids[] = {
      {"IB/RoCE v1", "fe80:0000:0000:0000:a288:c2ff:fe12:3456"},
      {"RoCE v2", "fe80:0000:0000:0000:a288:c2ff:fe12:3456"},
      {"IB/RoCE v1", fmt::format("0000:0000:0000:0000:0000:ffff:0a00:000{}", number + 1)},
      {"RoCE v2", fmt::format("0000:0000:0000:0000:0000:ffff:0a00:000{}", number + 1)},
      {"/", "0000:0000:0000:0000:0000:0000:0000:0000"}};  // an entry that is empty has no type to read
  int index = 0;
  for (const auto& [type, gid] : gids) {
    files[fmt::format("{}/gid_attrs/types/{}", port, index)] = type;
    files[fmt::format("{}/gids/{}", port, index++)] = gid;
  }
  for (const char* counter :
       {"local_ack_timeout_err", "packet_seq_err", "out_of_sequence", "rnr_nak_retry_err"})
    files[port + "/hw_counters/" + counter] = "0";
  files[port + "/hw_counters/np_cnp_sent"] = std::to_string(4711 + number);
  files[port + "/counters/port_xmit_packets"] = std::to_string(123456789 + number);
  programs["mlnx_qos -i " + interface] = qos_output();
  programs["ethtool -S " + interface] = ethtool_output(number);
  programs["mlxconfig -d " + bus_id + " q"] = config_output(number);
  device_memory[name] = {256u << 10 << number, 128u << 10 >> number};
}

void Fabricated::replace(const std::string& path, const std::string& from, const std::string& to) {
  const auto file = files.find(path);
  if (file == files.end()) return;  // another fault has removed it
  const std::size_t at = file->second.find(from);
  ASSERT_NE(at, std::string::npos) << path << " has no " << from;
  file->second.replace(at, from.size(), to);
}

void Fabricated::replace_output(const std::string& command, const std::string& from, const std::string& to) {
  const auto program = programs.find(command);
  if (program == programs.end()) return;
  const std::size_t at = program->second.find(from);
  ASSERT_NE(at, std::string::npos) << command << " has no " << from;
  program->second.replace(at, from.size(), to);
}

void Fabricated::remove_all(const std::string& prefix) {
  std::erase_if(files, [&](const auto& file) { return file.first.starts_with(prefix); });
}

Disk::Disk() : root_(fs::path(::testing::TempDir()) / fmt::format("gdx_doctor_{}", getpid())) {}
Disk::~Disk() { fs::remove_all(root_); }

void Disk::write(const Fabricated& wanted) {
  for (auto there = there_.begin(); there != there_.end();) {
    const auto kept = wanted.files.find(there->first);
    if (kept != wanted.files.end() && kept->second == there->second) {
      ++there;
      continue;
    }
    fs::path at = root_ + there->first;
    fs::remove(at);
    std::error_code not_empty;
    for (at = at.parent_path(); at != fs::path(root_) && fs::remove(at, not_empty) && !not_empty;)
      at = at.parent_path();
    there = there_.erase(there);
  }
  for (const auto& [path, text] : wanted.files) {
    if (!there_.emplace(path, text).second) continue;
    const fs::path at = root_ + path;
    fs::create_directories(at.parent_path());
    if (text == "/") {
      fs::create_directory(at);
    } else if (text.starts_with("@")) {
      fs::create_symlink(text.substr(1), at);
    } else {
      std::ofstream(at, std::ios::binary) << text;
    }
  }
}

Machine Disk::machine(const Fabricated& wanted) {
  write(wanted);
  Machine machine;
  machine.root = root_;
  machine.topology = wanted.topology;
  machine.is_root = wanted.is_root;
  machine.shared_memory_bytes = wanted.shared_memory_bytes;
  machine.libmlx5 = wanted.libmlx5;
  machine.traffic_class = wanted.traffic_class;
  machine.probes = probes_of(std::make_shared<const Fabricated>(wanted), root_);
  return machine;
}

}  // namespace gdx::doctor
