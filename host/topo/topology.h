// Distances between GPUs and RDMA NICs, from hwloc's PCI tree of this machine or a recorded one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "proto/path_class.h"

namespace gdx {

// A GPU or a NIC of the machine.
struct PciDevice {
  std::string bus_id;                // 0000:07:00.0
  std::string name;                  // vendor and model, or the vendor and device number
  std::string os_name;               // name of its RDMA device, such as mlx5_0; empty without a driver
  int numa_node = -1;                // -1: unknown
  bool runs_cuda = false;            // a GPU of NVIDIA's
  std::vector<int> processors = {};  // near its root complex, by the system's numbers, in order
};

// The distance of one GPU from one NIC.
struct GpuNicPath {
  std::size_t gpu = 0;  // index into gpus
  std::size_t nic = 0;
  PathClass path = PathClass::kSys;
  // Bridges between a PIX or PXB pair, below their common one. If one of them redirects (ACS), the path
  // crosses the root complex nevertheless.
  std::vector<std::string> bridges = {};
};

// The GPUs and NICs of a machine, and their distances.
struct Topology {
  std::vector<PciDevice> gpus;  // by bus id
  std::vector<PciDevice> nics;
  std::vector<GpuNicPath> paths;  // every GPU with every NIC
  // Distance between any two devices, GPUs first, then NICs; undefined between one and itself.
  std::vector<std::vector<PathClass>> matrix;
  std::size_t pci_devices = 0;  // number of PCI devices of any kind
};

// Reads the topology. `xml_file`: output of `lstopo --of xml`; empty for this machine. A GPU is a display or
// 3D controller or an accelerator of a vendor of compute GPUs. A NIC is a device with an RDMA device, or a
// ConnectX without a loaded driver.
// Errors: kInvalidArgument when the file cannot be read or is no topology, kSystem when hwloc cannot read
// this machine.
[[nodiscard]] Result<Topology> read_topology(const std::string& xml_file = {});

// Topology of this machine, read once; empty if it cannot be read. Threads: any.
[[nodiscard]] const Topology& this_machine();

// Returns the nearest NIC of every GPU that runs CUDA. Among equally near NICs it takes the one with the
// fewest GPUs so far.
[[nodiscard]] std::vector<GpuNicPath> pair_by_distance(const Topology& topology);

// Returns "0000:3b:00.0" for "0000:3B:00.0", "00000000:3B:00.0" or "3b:00.0"; nullopt for other text.
[[nodiscard]] std::optional<std::string> canonical_bus_id(std::string_view text);

// Returns the distances of these GPUs from the RDMA device `nic`, nearest first. Without ids it takes all
// GPUs that run CUDA. GPUs and NICs outside the topology are left out.
[[nodiscard]] std::vector<PathClass> paths_to(const Topology& topology, const std::string& nic,
                                              const std::vector<std::string>& gpu_bus_ids = {});

}  // namespace gdx
