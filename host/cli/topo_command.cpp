#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "base/command_line.h"
#include "host/cli/commands.h"
#include "host/topo/topology.h"

namespace gdx {
namespace {

using Json = nlohmann::ordered_json;

std::string short_name(const PciDevice& device) {
  return device.os_name.empty() ? device.bus_id : fmt::format("{} {}", device.bus_id, device.os_name);
}

void print_devices(const char* kind, const std::vector<PciDevice>& devices) {
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const PciDevice& device = devices[i];
    const std::string node = device.numa_node < 0 ? "?" : fmt::format("{}", device.numa_node);
    fmt::print("{}{:<3} {:22} NUMA {:2} {}\n", kind, i, short_name(device), node, device.name);
  }
}

void print_text(const Topology& topology, const std::vector<GpuNicPath>& pairs) {
  if (topology.gpus.empty()) fmt::print("no GPU");
  if (topology.gpus.empty() && topology.nics.empty()) fmt::print(" and ");
  if (topology.nics.empty()) fmt::print("no RDMA NIC");
  if (topology.gpus.empty() || topology.nics.empty())
    fmt::print(" among the {} PCI devices of this machine: no path to classify\n", topology.pci_devices);
  print_devices("GPU", topology.gpus);
  print_devices("NIC", topology.nics);
  if (pairs.empty()) return;
  fmt::print("\n{:8}", "");
  for (std::size_t nic = 0; nic < topology.nics.size(); ++nic) fmt::print("{:>7}", fmt::format("NIC{}", nic));
  std::size_t row = topology.gpus.size();
  for (const GpuNicPath& path : topology.paths) {
    if (path.gpu != row) fmt::print("\n{:8}", fmt::format("GPU{}", path.gpu));
    row = path.gpu;
    fmt::print("{:>7}", name(path.path));
  }
  fmt::print("\n\n");
  for (const GpuNicPath& pair : pairs)
    fmt::print("GPU{} uses NIC{} ({})\n", pair.gpu, pair.nic, name(pair.path));
}

Json devices_json(const std::vector<PciDevice>& devices) {
  Json all = Json::array();
  for (const PciDevice& device : devices) {
    all.push_back({{"bus_id", device.bus_id},
                   {"name", device.name},
                   {"rdma_device", device.os_name},
                   {"numa_node", device.numa_node}});
  }
  return all;
}

Json paths_json(const Topology& topology, const std::vector<GpuNicPath>& paths) {
  Json all = Json::array();
  for (const GpuNicPath& path : paths) {
    all.push_back({{"gpu", topology.gpus[path.gpu].bus_id},
                   {"nic", topology.nics[path.nic].bus_id},
                   {"path", std::string(name(path.path))}});
  }
  return all;
}

int print_topology(const std::string& xml_file, bool as_json) {
  const auto topology = read_topology(xml_file);
  if (!topology) return report(topology.error());
  const std::vector<GpuNicPath> pairs = pair_by_distance(*topology);
  if (!as_json) {
    print_text(*topology, pairs);
    return 0;
  }
  const Json json = {{"gpus", devices_json(topology->gpus)},
                     {"nics", devices_json(topology->nics)},
                     {"paths", paths_json(*topology, topology->paths)},
                     {"pairs", paths_json(*topology, pairs)},
                     {"pci_devices", topology->pci_devices}};
  fmt::print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
  return 0;
}

}  // namespace

void add_topo_command(CLI::App& app, int& exit_status) {
  struct Chosen {
    std::string xml_file;
    bool as_json = false;
  };
  auto chosen = std::make_shared<Chosen>();
  CLI::App* topo = app.add_subcommand("topo", "How far each GPU is from each RDMA NIC, and which to pair");
  topo->add_option("--xml", chosen->xml_file, "A machine recorded by lstopo --of xml, not this one")
      ->check(command_line::not_empty("the name of a file"));
  topo->add_flag("--json", chosen->as_json, "As JSON");
  topo->callback([chosen, &exit_status] { exit_status = print_topology(chosen->xml_file, chosen->as_json); });
}

}  // namespace gdx
