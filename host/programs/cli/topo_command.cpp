#include <fmt/format.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/command_line.h"
#include "base/output.h"
#include "host/gpu/gpu.h"
#include "host/programs/cli/commands.h"
#include "host/programs/cli/topology_json.h"
#include "host/topo/pci_sysfs.h"
#include "host/topo/topology.h"

namespace gdx {
namespace {

using Json = nlohmann::ordered_json;

// Facts beyond the tree, about the running machine.
struct Live {
  std::map<std::string, int> cuda_ordinals;   // by bus id; as $CUDA_VISIBLE_DEVICES leaves them
  std::string no_cuda;                        // reason for their absence
  std::map<std::string, PciLinkState> links;  // by bus id
  std::map<std::string, AcsState> acs;        // state of each bridge between a GPU and a NIC
};

Live look_at_this_machine(const Topology& topology) {
  Live live;
  if (!topology.gpus.empty()) {
    const auto count = Gpu::count();
    if (!count) live.no_cuda = count.error().message;
    for (int ordinal = 0; ordinal < count.value_or(0); ++ordinal) {
      const auto gpu = Gpu::open(ordinal);
      const auto bus_id = gpu ? canonical_bus_id(gpu->pci_bus_id()) : std::nullopt;
      if (bus_id) live.cuda_ordinals[*bus_id] = ordinal;
    }
  }
  for (const auto* devices : {&topology.gpus, &topology.nics}) {
    for (const PciDevice& device : *devices) {
      if (const auto link = read_link(device.bus_id)) live.links[device.bus_id] = *link;
    }
  }
  for (const GpuNicPath& path : topology.paths) {
    for (const std::string& bridge : path.bridges) live.acs.try_emplace(bridge, read_acs(bridge));
  }
  return live;
}

std::string short_name(const PciDevice& device) {
  return device.os_name.empty() ? device.bus_id : fmt::format("{} {}", device.bus_id, device.os_name);
}

// "CUDA 0"; "no CUDA" for another vendor's; "hidden" for one that the driver does not show this process.
std::string cuda_text(const PciDevice& gpu, const Live& live) {
  if (!gpu.runs_cuda) return "no CUDA";
  if (live.cuda_ordinals.empty()) return "";
  const auto found = live.cuda_ordinals.find(gpu.bus_id);
  return found == live.cuda_ordinals.end() ? "hidden" : fmt::format("CUDA {}", found->second);
}

std::string link_text(const PciDevice& device, const Live& live) {
  const auto found = live.links.find(device.bus_id);
  if (found == live.links.end()) return "link ?";
  const auto& [now, most] = found->second;
  return now == most ? describe(now) : fmt::format("{} of {}", describe(now), describe(most));
}

void print_devices(const char* kind, const std::vector<PciDevice>& devices, const Live* live) {
  const bool gpus = std::string_view(kind) == "GPU";
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const PciDevice& device = devices[i];
    const std::string node = device.numa_node < 0 ? "?" : fmt::format("{}", device.numa_node);
    print("{}{:<3} {:22} NUMA {:2} {:8}", kind, i, short_name(device), node,
          gpus ? cuda_text(device, live != nullptr ? *live : Live{}) : "");
    if (live != nullptr) print(" {:27}", link_text(device, *live));
    print(" {}\n", device.name);
  }
}

// As `nvidia-smi topo -m` lays it out, without NVLink, which the PCI tree does not show.
void print_matrix(const Topology& topology) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < topology.gpus.size(); ++i) names.push_back(fmt::format("GPU{}", i));
  for (std::size_t i = 0; i < topology.nics.size(); ++i) names.push_back(fmt::format("NIC{}", i));
  print("\n{:8}", "");
  for (const std::string& title : names) print("{:>7}", title);
  for (std::size_t row = 0; row < names.size(); ++row) {
    print("\n{:8}", names[row]);
    for (std::size_t column = 0; column < names.size(); ++column)
      print("{:>7}", row == column ? "X" : name(topology.matrix[row][column]));
  }
  print("\n\n");
}

// Prints properties that make a pair's path longer than in the tree.
void print_acs(const Topology& topology, const Live& live) {
  bool unknown = false;
  for (const GpuNicPath& path : topology.paths) {
    for (const std::string& bridge : path.bridges) {
      const AcsState state = live.acs.at(bridge);
      unknown = unknown || state == AcsState::kUnknown;
      if (state != AcsState::kRedirects) continue;
      print(
          "warning: GPU{} to NIC{} is {}, but bridge {} redirects (ACS) to the root complex: turn ACS off in "
          "the "
          "firmware, or by setpci, unless virtual machines need it\n",
          path.gpu, path.nic, name(path.path), bridge);
    }
  }
  if (unknown) print("whether bridges redirect (ACS) is for root to know: run gdx topo as root\n");
}

void print_text(const Topology& topology, const std::vector<GpuNicPath>& pairs, const Live* live) {
  if (topology.gpus.empty()) print("no GPU");
  if (topology.gpus.empty() && topology.nics.empty()) print(" and ");
  if (topology.nics.empty()) print("no RDMA NIC");
  if (topology.gpus.empty() || topology.nics.empty())
    print(" among the {} PCI devices of this machine: no path to classify\n", topology.pci_devices);
  print_devices("GPU", topology.gpus, live);
  print_devices("NIC", topology.nics, live);
  if (topology.matrix.size() > 1) print_matrix(topology);
  for (const GpuNicPath& pair : pairs) print("GPU{} uses NIC{} ({})\n", pair.gpu, pair.nic, name(pair.path));
  if (live == nullptr) return;
  if (!live->no_cuda.empty()) print("GPUs are numbered by PCI address alone: {}\n", live->no_cuda);
  print_acs(topology, *live);
}

Json link_json(const PciLink& link) {
  return {{"gigatransfers_per_second", link.gigatransfers}, {"lanes", link.lanes}};
}

Json devices_json(const std::vector<PciDevice>& devices, const Live* live) {
  Json all = Json::array();
  for (const PciDevice& device : devices) {
    Json& one = all.emplace_back(Json{{"bus_id", device.bus_id},
                                      {"name", device.name},
                                      {"rdma_device", device.os_name},
                                      {"runs_cuda", device.runs_cuda},
                                      {"numa_node", device.numa_node}});
    if (live == nullptr) continue;
    const auto ordinal = live->cuda_ordinals.find(device.bus_id);
    if (ordinal != live->cuda_ordinals.end()) one["cuda_ordinal"] = ordinal->second;
    const auto link = live->links.find(device.bus_id);
    if (link == live->links.end()) continue;
    one["link"] = link_json(link->second.now);
    one["most_link"] = link_json(link->second.most);
  }
  return all;
}

Json matrix_json(const Topology& topology) {
  Json rows = Json::array();
  for (std::size_t row = 0; row < topology.matrix.size(); ++row) {
    Json& cells = rows.emplace_back(Json::array());
    for (std::size_t column = 0; column < topology.matrix.size(); ++column)
      cells.push_back(row == column ? "X" : name(topology.matrix[row][column]));
  }
  return rows;
}

Json acs_json(const Live* live) {
  Json bridges = Json::object();
  if (live == nullptr) return bridges;
  for (const auto& [bridge, state] : live->acs) {
    bridges[bridge] = state == AcsState::kUnknown ? Json(nullptr) : Json(state == AcsState::kRedirects);
  }
  return bridges;
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
  const bool running = xml_file.empty();
  if (as_json) {
    print("{}\n", topology_json(*topology, running).dump(2, ' ', false, Json::error_handler_t::replace));
    return 0;
  }
  std::optional<Live> live;
  if (running) live = look_at_this_machine(*topology);
  print_text(*topology, pair_by_distance(*topology), live ? &*live : nullptr);
  return 0;
}

}  // namespace

Json topology_json(const Topology& topology, bool running) {
  std::optional<Live> found;
  if (running) found = look_at_this_machine(topology);
  const Live* const live = found ? &*found : nullptr;
  return {{"gpus", devices_json(topology.gpus, live)},
          {"nics", devices_json(topology.nics, live)},
          {"paths", paths_json(topology, topology.paths)},
          {"pairs", paths_json(topology, pair_by_distance(topology))},
          {"matrix", matrix_json(topology)},
          {"bridge_redirects", acs_json(live)},
          {"pci_devices", topology.pci_devices}};
}

void add_topo_command(command_line::Command app, int& exit_status) {
  struct Chosen {
    std::string xml_file;
    bool as_json = false;
  };
  auto chosen = std::make_shared<Chosen>();
  const command_line::Command topo =
      app.add_command("topo", "How far each GPU is from each RDMA NIC, and which to pair");
  topo.add_option("--xml", chosen->xml_file, "A machine recorded by lstopo --of xml, not this one")
      .check(command_line::not_empty("the name of a file"));
  topo.add_flag("--json", chosen->as_json, "As JSON");
  topo.show_examples({"gdx topo", "gdx topo --json", "gdx topo --xml other-machine.xml"});
  topo.when_chosen(
      [chosen, &exit_status] { exit_status = print_topology(chosen->xml_file, chosen->as_json); });
}

}  // namespace gdx
