// Which GPU is how far from which RDMA NIC, as hwloc sees the PCI tree of this or of a recorded machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "proto/path_class.h"

namespace gdx {

struct PciDevice {
  std::string bus_id;   // 0000:07:00.0
  std::string name;     // vendor and model, or the vendor and device number
  std::string os_name;  // of an RDMA device: mlx5_0; empty without a driver
  int numa_node = -1;   // -1: the machine does not say
};

struct GpuNicPath {
  std::size_t gpu = 0;  // index into gpus
  std::size_t nic = 0;
  PathClass path = PathClass::kSys;
};

struct Topology {
  std::vector<PciDevice> gpus;  // by bus id
  std::vector<PciDevice> nics;
  std::vector<GpuNicPath> paths;  // every GPU with every NIC
  std::size_t pci_devices = 0;    // of any kind
};

// `xml_file`: what `lstopo --of xml` wrote; empty for this machine.
// A GPU is a display or 3D controller of a vendor of compute GPUs; a NIC is what has an RDMA device, or a
// ConnectX whose driver is not loaded.
// Errors: kNotFound when the file cannot be read, kInvalidArgument when it is no file, kSystem when hwloc
// cannot make a topology of it.
[[nodiscard]] Result<Topology> read_topology(const std::string& xml_file = {});

// For every GPU its nearest NIC. Of equally near ones, that with the fewest GPUs so far.
[[nodiscard]] std::vector<GpuNicPath> pair_by_distance(const Topology& topology);

// How far the GPU nearest to the RDMA device `nic` is; absent without a GPU or that device.
[[nodiscard]] std::optional<PathClass> nearest_gpu(const Topology& topology, const std::string& nic);

}  // namespace gdx
