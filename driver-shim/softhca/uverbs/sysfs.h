// The part of /sys and /dev that RDMA programs read, as ordinary files in a private directory:
//   ROOT/sys/class/infiniband, ROOT/sys/class/infiniband_verbs, ROOT/sys/devices/pci..., ROOT/dev/infiniband
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/descriptor.h"
#include "base/result.h"
#include "driver-shim/softhca/engine/hca.h"

namespace gdx::softhca::uverbs {

inline constexpr std::uint32_t kCharDeviceMajor = 231;  // major number of the kernel's uverbs devices
inline constexpr std::uint32_t kCharDeviceMinor = 192;
inline constexpr char kDeviceNodes[] = "/dev/infiniband/uverbs";  // prefix, which the HCA's index follows
inline constexpr std::uint32_t kConnectionsMajor = 10;            // a miscellaneous device
inline constexpr std::uint32_t kConnectionsMinor = 122;
inline constexpr char kConnectionsNode[] = "/dev/infiniband/rdma_cm";

// All of a port's, by the files' names beneath the port's folder. The names are mlx5's where it has one;
// those that no hardware has begin with softhca_.
std::vector<std::pair<const char*, std::uint64_t>> counter_values(const HcaCounters& counters);

// Folder of a device's files of events, one for each queue pair, by its number in hexadecimal. They are not
// in the tree: each open makes one.
inline constexpr char kFlightFolder[] = "/softhca_flight/";

// Returns the roots of the trees of this user's processes, its own too, where this process looks for a place.
// A process of one may have ended. Errors: none, fewer trees.
std::vector<std::string> user_trees();

class SysfsTree {
 public:
  // Removes trees that dead processes left, and makes one under TMPDIR. Without TMPDIR: in /dev/shm for root
  // and other system users, in /tmp for other users or without room. Errors: kSystem, naming the file.
  static Result<std::unique_ptr<SysfsTree>> create(const std::vector<Hca*>& hcas);
  // Removes the tree.
  ~SysfsTree();
  SysfsTree(const SysfsTree&) = delete;
  SysfsTree& operator=(const SysfsTree&) = delete;

  [[nodiscard]] const std::string& root() const { return root_; }
  // Writes the counters' files. Returns false if not all of them could be written.
  bool write_counters(const Hca& hca, const HcaCounters& counters) const;

 private:
  static Result<std::unique_ptr<SysfsTree>> create_in(const std::string& folder,
                                                      const std::vector<Hca*>& hcas);
  SysfsTree(std::string root, Descriptor lock) : root_(std::move(root)), lock_(std::move(lock)) {}

  std::string root_;
  Descriptor lock_;  // locked while this process lives: the proof against removal by others
};

}  // namespace gdx::softhca::uverbs
