#include "host/topo/topology.h"

#include <fmt/format.h>
#include <hwloc.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <memory>
#include <utility>

namespace gdx {
namespace {

// PCI base classes and vendors. Source: PCI Code and ID Assignment Specification; pci.ids.
constexpr unsigned kClassNetwork = 0x02;
constexpr unsigned kClassDisplay = 0x03;
constexpr unsigned kClassAccelerator = 0x12;
constexpr unsigned kVendorNvidia = 0x10de;
constexpr unsigned kVendorAmd = 0x1002;
constexpr unsigned kVendorMellanox = 0x15b3;

using PciAttributes = hwloc_obj_attr_u::hwloc_pcidev_attr_s;

unsigned base_class(const PciAttributes& pci) { return pci.class_id >> 8; }

bool is_gpu(const PciAttributes& pci) {
  const bool computes = base_class(pci) == kClassDisplay || base_class(pci) == kClassAccelerator;
  return computes && (pci.vendor_id == kVendorNvidia || pci.vendor_id == kVendorAmd);
}

std::string rdma_name(hwloc_obj_t device) {
  for (hwloc_obj_t child = device->io_first_child; child != nullptr; child = child->next_sibling) {
    if (child->type == HWLOC_OBJ_OS_DEVICE && child->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS)
      return child->name;
  }
  return {};
}

bool is_nic(hwloc_obj_t device) {
  const PciAttributes& pci = device->attr->pcidev;
  if (!rdma_name(device).empty()) return true;
  return base_class(pci) == kClassNetwork && pci.vendor_id == kVendorMellanox;
}

// The processors and memory that the device's root complex belongs to.
hwloc_obj_t owner_of(hwloc_obj_t object) {
  while (hwloc_obj_type_is_io(object->type)) object = object->parent;
  return object;
}

bool is_host_bridge(hwloc_obj_t object) {
  return object->type == HWLOC_OBJ_BRIDGE && object->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_HOST;
}

std::string bus_id_of(const PciAttributes& pci) {
  return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", pci.domain, pci.bus, pci.dev, pci.func);
}

PciDevice describe(hwloc_obj_t device) {
  const PciAttributes& pci = device->attr->pcidev;
  PciDevice described;
  described.bus_id = bus_id_of(pci);
  const char* vendor = hwloc_obj_get_info_by_name(device, "PCIVendor");
  const char* model = hwloc_obj_get_info_by_name(device, "PCIDevice");
  described.name = model != nullptr ? fmt::format("{}{}{}", vendor ? vendor : "", vendor ? " " : "", model)
                                    : fmt::format("{:04x}:{:04x}", pci.vendor_id, pci.device_id);
  described.os_name = rdma_name(device);
  described.runs_cuda = is_gpu(pci) && pci.vendor_id == kVendorNvidia;
  const hwloc_obj_t owner = owner_of(device);
  for (int processor = -1; (processor = hwloc_bitmap_next(owner->cpuset, processor)) >= 0;)
    described.processors.push_back(processor);
  if (owner->nodeset != nullptr && hwloc_bitmap_weight(owner->nodeset) == 1)
    described.numa_node = hwloc_bitmap_first(owner->nodeset);
  return described;
}

std::vector<hwloc_obj_t> ancestors(hwloc_obj_t object) {
  std::vector<hwloc_obj_t> chain;
  for (hwloc_obj_t at = object->parent; at != nullptr; at = at->parent) chain.push_back(at);
  return chain;
}

// A switch shows as one bridge for its upstream port and one for each downstream port: below the bridge that
// two devices share, one downstream port each is one switch, more are several.
PathClass path_between(hwloc_obj_t a, hwloc_obj_t b) {
  const std::vector<hwloc_obj_t> of_a = ancestors(a);
  const std::vector<hwloc_obj_t> of_b = ancestors(b);
  const auto shared =
      std::find_first_of(of_a.begin(), of_a.end(), of_b.begin(), of_b.end());  // there is always the machine
  if (is_host_bridge(*shared)) return PathClass::kPhb;
  if ((*shared)->type == HWLOC_OBJ_BRIDGE || (*shared)->type == HWLOC_OBJ_PCI_DEVICE) {
    const auto below_a = shared - of_a.begin();
    const auto below_b = std::find(of_b.begin(), of_b.end(), *shared) - of_b.begin();
    return below_a <= 1 && below_b <= 1 ? PathClass::kPix : PathClass::kPxb;
  }
  const hwloc_obj_t owner_a = owner_of(a);
  const hwloc_obj_t owner_b = owner_of(b);
  return hwloc_bitmap_isequal(owner_a->nodeset, owner_b->nodeset) ? PathClass::kNode : PathClass::kSys;
}

// Returns the bridges below the common ones of two devices of one or several switches.
std::vector<std::string> bridges_between(hwloc_obj_t a, hwloc_obj_t b) {
  const std::vector<hwloc_obj_t> of_a = ancestors(a);
  const std::vector<hwloc_obj_t> of_b = ancestors(b);
  const auto shared = std::find_first_of(of_a.begin(), of_a.end(), of_b.begin(), of_b.end());
  std::vector<std::string> bridges;
  for (const std::vector<hwloc_obj_t>& chain : {of_a, of_b}) {
    for (hwloc_obj_t at : chain) {
      if (at == *shared) break;
      if (at->type == HWLOC_OBJ_BRIDGE && at->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI)
        bridges.push_back(bus_id_of(at->attr->bridge.upstream.pci));
    }
  }
  return bridges;
}

using Machine = std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)>;

Result<Machine> load(const std::string& xml_file) {
  if (!xml_file.empty() && access(xml_file.c_str(), R_OK) != 0)
    return fail(Status::kInvalidArgument,
                fmt::format("cannot read {}; write one with lstopo --of xml", xml_file));
  std::error_code error;
  if (!xml_file.empty() && !std::filesystem::is_regular_file(xml_file, error)) {
    return fail(Status::kInvalidArgument,
                fmt::format("{} is no file to read; write one with lstopo --of xml", xml_file));
  }
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0)
    return fail(Status::kSystem, "hwloc cannot make a topology; raise ulimit -v");
  Machine machine(raw, &hwloc_topology_destroy);
  // Every bridge counts: by default hwloc leaves out those it finds uninteresting.
  hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_ALL);
  // Disables plugins where they are installed: sysfs has the data of libpciaccess, which leaks, and others
  // start GPU libraries.
  for (const char* plugin : {"pci", "cuda", "nvml", "opencl", "rsmi", "levelzero", "gl"}) {
    hwloc_topology_set_components(raw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, plugin);
  }
  const bool from_file = !xml_file.empty();
  if ((from_file && hwloc_topology_set_xml(raw, xml_file.c_str()) != 0) || hwloc_topology_load(raw) != 0) {
    if (!from_file) return fail(Status::kSystem, "hwloc cannot read this machine's topology");
    return fail(Status::kInvalidArgument,
                fmt::format("{} is no topology that hwloc reads; write one with lstopo --of xml", xml_file));
  }
  return machine;
}

struct Found {
  PciDevice device;
  hwloc_obj_t object;
};

void sort_by_bus_id(std::vector<Found>& found) {
  std::ranges::sort(found, {}, [](const Found& one) { return one.device.bus_id; });
}

// Takes `least` to `most` hexadecimal digits, at most 8, off the front.
std::optional<unsigned> take_hex(std::string_view& text, std::size_t least, std::size_t most) {
  std::size_t digits = 0;
  while (digits < std::min(most, text.size()) && std::isxdigit(static_cast<unsigned char>(text[digits])) != 0)
    ++digits;
  if (digits < least) return std::nullopt;
  unsigned value = 0;
  std::from_chars(text.data(), text.data() + digits, value, 16);
  text.remove_prefix(digits);
  return value;
}

bool take(std::string_view& text, char wanted) {
  if (text.empty() || text.front() != wanted) return false;
  text.remove_prefix(1);
  return true;
}

}  // namespace

Result<Topology> read_topology(const std::string& xml_file) {
  auto machine = GDX_TRY(load(xml_file));
  Topology topology;
  std::vector<Found> gpus;
  std::vector<Found> nics;
  for (hwloc_obj_t device = nullptr; (device = hwloc_get_next_pcidev(machine.get(), device)) != nullptr;) {
    ++topology.pci_devices;
    if (is_gpu(device->attr->pcidev)) gpus.push_back({describe(device), device});
    if (is_nic(device)) nics.push_back({describe(device), device});
  }
  sort_by_bus_id(gpus);
  sort_by_bus_id(nics);
  for (const Found& nic : nics) topology.nics.push_back(nic.device);
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    topology.gpus.push_back(gpus[i].device);
    for (std::size_t j = 0; j < nics.size(); ++j) {
      GpuNicPath path{i, j, path_between(gpus[i].object, nics[j].object)};
      if (!crosses_root_complex(path.path)) path.bridges = bridges_between(gpus[i].object, nics[j].object);
      topology.paths.push_back(std::move(path));
    }
  }
  std::vector<Found> all = gpus;
  all.insert(all.end(), nics.begin(), nics.end());
  for (const Found& row : all) {
    std::vector<PathClass>& paths = topology.matrix.emplace_back();
    for (const Found& column : all) paths.push_back(path_between(row.object, column.object));
  }
  return topology;
}

const Topology& this_machine() {
  static const Topology machine = read_topology().value_or(Topology{});
  return machine;
}

std::vector<GpuNicPath> pair_by_distance(const Topology& topology) {
  std::vector<GpuNicPath> pairs;
  std::vector<std::size_t> gpus_of(topology.nics.size());
  for (std::size_t gpu = 0; gpu < topology.gpus.size(); ++gpu) {
    if (!topology.gpus[gpu].runs_cuda) continue;
    const GpuNicPath* nearest = nullptr;
    for (const GpuNicPath& path : topology.paths) {
      if (path.gpu != gpu) continue;
      const auto cost = [&](const GpuNicPath& one) { return std::pair(one.path, gpus_of[one.nic]); };
      if (nearest == nullptr || cost(path) < cost(*nearest)) nearest = &path;
    }
    if (nearest == nullptr) continue;
    ++gpus_of[nearest->nic];
    pairs.push_back(*nearest);
  }
  return pairs;
}

std::optional<std::string> canonical_bus_id(std::string_view text) {
  unsigned domain = 0;
  if (std::ranges::count(text, ':') == 2) {
    const auto given = take_hex(text, 4, 8);
    if (!given || !take(text, ':')) return std::nullopt;
    domain = *given;
  }
  const auto bus = take_hex(text, 2, 2);
  if (!bus || !take(text, ':')) return std::nullopt;
  const auto device = take_hex(text, 2, 2);
  if (!device || !take(text, '.')) return std::nullopt;
  const auto function = take_hex(text, 1, 1);
  if (!function || *function > 7 || !text.empty()) return std::nullopt;
  return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", domain, *bus, *device, *function);
}

std::vector<PathClass> paths_to(const Topology& topology, const std::string& nic,
                                const std::vector<std::string>& gpu_bus_ids) {
  std::vector<PathClass> found;
  for (const GpuNicPath& path : topology.paths) {
    const PciDevice& gpu = topology.gpus[path.gpu];
    if (!gpu.runs_cuda || topology.nics[path.nic].os_name != nic) continue;
    const bool wanted = std::ranges::any_of(
        gpu_bus_ids, [&](const std::string& one) { return canonical_bus_id(one) == gpu.bus_id; });
    if (wanted || gpu_bus_ids.empty()) found.push_back(path.path);
  }
  std::ranges::sort(found);
  return found;
}

}  // namespace gdx
