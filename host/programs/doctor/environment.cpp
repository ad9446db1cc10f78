#include "host/programs/doctor/environment.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <filesystem>
#include <iterator>
#include <set>
#include <sstream>
#include <string_view>

#include "host/programs/doctor/checks.h"
#include "host/topo/pci_sysfs.h"

namespace gdx::doctor {
namespace {

constexpr std::array kVariables = {"GDX_",  "IBV_",    "MLX5_",      "RDMAV_",
                                   "CUDA_", "NVIDIA_", "LD_PRELOAD", "LD_LIBRARY_PATH"};
constexpr std::array kLibraries = {"/libibverbs", "/libmlx5", "/librdmacm", "/libcuda", "/libgdx_"};
constexpr std::array kMachineFiles = {"/proc/version",
                                      "/proc/cmdline",
                                      "/proc/meminfo",
                                      "/proc/self/limits",
                                      "/proc/self/status",
                                      "/proc/self/cgroup",
                                      "/etc/os-release",
                                      "/sys/class/dmi/id/sys_vendor",
                                      "/sys/class/dmi/id/product_name",
                                      "/sys/class/dmi/id/bios_version",
                                      "/sys/module/mlx5_core/version",
                                      "/sys/module/mlx5_ib/version",
                                      "/sys/module/nvidia/version",
                                      "/sys/module/nvidia_peermem/version",
                                      "/sys/module/gdrdrv/version",
                                      "/proc/driver/nvidia/version",
                                      "/proc/driver/nvidia/params"};
constexpr std::array kHcaFiles = {"fw_ver",
                                  "hca_type",
                                  "board_id",
                                  "hw_rev",
                                  "node_guid",
                                  "device/vendor",
                                  "device/device",
                                  "device/subsystem_device",
                                  "device/revision",
                                  "device/numa_node",
                                  "device/current_link_speed",
                                  "device/current_link_width",
                                  "device/max_link_speed",
                                  "device/max_link_width",
                                  "ports/1/state",
                                  "ports/1/phys_state",
                                  "ports/1/rate",
                                  "ports/1/link_layer",
                                  "ports/1/lid",
                                  "ports/1/sm_lid"};

// The strings of a file in which each ends with a zero byte.
std::vector<std::string> strings_of(const std::string& text) {
  std::vector<std::string> strings;
  std::istringstream stream(text);
  for (std::string one; std::getline(stream, one, '\0');) strings.push_back(one);
  return strings;
}

std::vector<std::pair<std::string, std::string>> read_variables(const Machine& machine) {
  std::vector<std::pair<std::string, std::string>> variables;
  for (const std::string& one : strings_of(machine.read_all("/proc/self/environ").value_or(""))) {
    const bool wanted =
        std::ranges::any_of(kVariables, [&](const char* begin) { return one.starts_with(begin); });
    const std::size_t equals = one.find('=');
    if (wanted && equals != std::string::npos)
      variables.emplace_back(one.substr(0, equals), one.substr(equals + 1));
  }
  std::ranges::sort(variables);
  return variables;
}

std::vector<std::string> find_libraries(const Machine& machine) {
  std::set<std::string> paths;
  std::istringstream maps(machine.read_all("/proc/self/maps").value_or(""));
  for (std::string line; std::getline(maps, line);) {
    const std::size_t slash = line.find('/');
    const auto is_in = [&](const char* name) { return line.find(name, slash) != std::string::npos; };
    if (slash != std::string::npos && std::ranges::any_of(kLibraries, is_in))
      paths.insert(line.substr(slash));
  }
  return {paths.begin(), paths.end()};
}

std::vector<std::string> files_of(const Machine& machine, const HcaSeen& hca) {
  std::vector<std::string> paths;
  paths.reserve(std::size(kHcaFiles));
  for (const char* file : kHcaFiles) paths.push_back(hca.folder() + "/" + file);
  // An empty entry of the GID table has no type to read.
  for (const std::string& index : machine.names(hca.port() + "/gid_attrs/types")) {
    const std::string type = hca.port() + "/gid_attrs/types/" + index;
    if (!machine.read(type)) continue;
    paths.insert(paths.end(),
                 {type, hca.port() + "/gid_attrs/ndevs/" + index, hca.port() + "/gids/" + index});
  }
  if (!hca.interface.empty()) paths.push_back("/sys/class/net/" + hca.interface + "/mtu");
  return paths;
}

// The functions that the target of a link in sysfs names: a device, below the bridges above it.
void add_functions(const Machine& machine, const std::string& link, std::set<std::string>& functions) {
  std::error_code error;
  for (const auto& part : std::filesystem::read_symlink(machine.root + link, error)) {
    if (const auto bus_id = canonical_bus_id(part.string())) functions.insert(*bus_id);
  }
}

std::vector<PciFunction> read_functions(const Machine& machine) {
  std::set<std::string> functions;
  for (const HcaSeen& hca : machine.hcas) {
    if (!hca.bus_id.empty()) functions.insert(hca.bus_id);
    add_functions(machine, hca.folder(), functions);
  }
  for (const PciDevice& gpu : machine.topology.gpus) {
    functions.insert(gpu.bus_id);
    add_functions(machine, fmt::format("{}/{}", kPciDevices, gpu.bus_id), functions);
  }
  std::vector<PciFunction> read;
  for (const std::string& bus_id : functions) {
    const Finding iommu = judge_iommu(machine, bus_id);
    auto config = machine.read_all(fmt::format("{}/{}/config", kPciDevices, bus_id));
    if (config) config->resize(config->find_last_not_of('\0') + 1);
    read.push_back({bus_id, fmt::format("{} ({})", iommu.what, iommu.evidence), std::move(config)});
  }
  return read;
}

std::vector<std::string> read_kernel_log(const Machine& machine) {
  constexpr std::array kTopics = {"mlx5", "infiniband", "nvidia", "NVRM", "AER", "DMAR", "AMD-Vi", "iommu"};
  constexpr std::size_t kMostLines = 300;
  const auto log = machine.probes.run({"dmesg"});
  if (!log) return {log.error().message};
  std::vector<std::string> lines;
  std::istringstream stream(*log);
  for (std::string line; std::getline(stream, line);) {
    const auto is_on = [&](const char* topic) { return line.find(topic) != std::string::npos; };
    if (std::ranges::any_of(kTopics, is_on)) lines.push_back(line);
  }
  if (lines.size() > kMostLines) lines.erase(lines.begin(), lines.end() - kMostLines);
  return lines;
}

}  // namespace

Environment read_environment(const Machine& machine) {
  std::vector<std::string> paths(kMachineFiles.begin(), kMachineFiles.end());
  constexpr char kGpus[] = "/proc/driver/nvidia/gpus";
  for (const std::string& gpu : machine.names(kGpus))
    paths.push_back(fmt::format("{}/{}/information", kGpus, gpu));
  for (const HcaSeen& hca : machine.hcas)
    std::ranges::copy(files_of(machine, hca), std::back_inserter(paths));
  Environment environment;
  environment.host = machine.read("/proc/sys/kernel/hostname").value_or("");
  environment.time = fmt::format("{:%FT%TZ}", fmt::gmtime(std::time(nullptr)));
  environment.command_line = strings_of(machine.read_all("/proc/self/cmdline").value_or(""));
  environment.variables = read_variables(machine);
  environment.libraries = find_libraries(machine);
  for (const std::string& path : paths) environment.files.emplace_back(path, machine.read(path));
  environment.functions = read_functions(machine);
  environment.kernel_log = read_kernel_log(machine);
  return environment;
}

}  // namespace gdx::doctor
