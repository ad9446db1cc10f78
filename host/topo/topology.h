// Which GPU is how far from which RDMA NIC, as hwloc sees the PCI tree of this or of a recorded machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "proto/path_class.h"

namespace gdx {

struct PciDevice {
  std::string bus_id;      // 0000:07:00.0
  std::string name;        // vendor and model, or the vendor and device number
  std::string os_name;     // of an RDMA device: mlx5_0; empty without a driver
  int numa_node = -1;      // -1: the machine does not say
  bool runs_cuda = false;  // a GPU of NVIDIA's
};

struct GpuNicPath {
  std::size_t gpu = 0;  // index into gpus
  std::size_t nic = 0;
  PathClass path = PathClass::kSys;
  // The bridges between a PIX or PXB pair, below the one that both share: if one of them redirects (ACS), the
  // path is through the root complex all the same.
  std::vector<std::string> bridges = {};
};

struct Topology {
  std::vector<PciDevice> gpus;  // by bus id
  std::vector<PciDevice> nics;
  std::vector<GpuNicPath> paths;  // every GPU with every NIC
  // Between any two, GPUs first, then NICs; of no account between one and itself.
  std::vector<std::vector<PathClass>> matrix;
  std::size_t pci_devices = 0;  // of any kind
};

// `xml_file`: what `lstopo --of xml` wrote; empty for this machine.
// A GPU is a display or 3D controller or an accelerator of a vendor of compute GPUs; a NIC is what has an
// RDMA device, or a ConnectX whose driver is not loaded.
// Errors: kInvalidArgument when the file cannot be read or is no topology, kSystem when hwloc cannot read
// this machine's.
[[nodiscard]] Result<Topology> read_topology(const std::string& xml_file = {});

// Of this machine, read once; empty where it cannot be read. Threads: any.
[[nodiscard]] const Topology& this_machine();

// For every GPU that runs CUDA its nearest NIC. Of equally near ones, that with the fewest GPUs so far.
[[nodiscard]] std::vector<GpuNicPath> pair_by_distance(const Topology& topology);

// "0000:3b:00.0" of "0000:3B:00.0", "00000000:3B:00.0" or "3b:00.0"; absent for what is no PCI bus id.
[[nodiscard]] std::optional<std::string> canonical_bus_id(std::string_view text);

// How far these GPUs, of all that run CUDA where none is given, are from the RDMA device `nic`: nearest
// first. GPUs and NICs that the topology does not show are left out.
[[nodiscard]] std::vector<PathClass> paths_to(const Topology& topology, const std::string& nic,
                                              const std::vector<std::string>& gpu_bus_ids = {});

}  // namespace gdx
