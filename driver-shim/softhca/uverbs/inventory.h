// Objects that processes have made on HCAs, for queries by netlink.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "driver-shim/softhca/engine/hca.h"

namespace gdx::softhca::uverbs {

struct Context;
class InventoryFile;

enum class ResourceKind : std::uint8_t { kContext, kPd, kCq, kQp, kMr, kSrq };

// An object of a process, whether it was made by verbs or by DevX.
struct Resource {
  ResourceKind kind = ResourceKind::kContext;
  std::uint32_t process = 0;
  std::uint32_t number = 0;   // number; for a region its key
  std::uint32_t context = 0;  // number of the open of the device
  std::uint32_t pd = 0;       // 0: not known
  std::uint32_t users = 0;    // objects of verbs that stand on it
  std::uint64_t extent = 0;   // entries of a completion queue, bytes of a region
  std::uint64_t iova = 0;
  QpType type = QpType::kRc;
  QpAttributes attributes;  // attributes of a queue pair
};

struct HcaInventory {
  std::string name;
  wire::Address address;
  std::vector<std::pair<const char*, std::uint64_t>> counters;
  std::vector<Resource> resources;
};

// Appends what the open `number` of a node holds. Threads: the device lock.
void append_resources(std::uint32_t number, const Context& context, std::vector<Resource>& resources);
// Shows in `file` what a request may have made or changed. Threads: the device lock.
void show_touched(InventoryFile& file, std::uint8_t hca, std::uint32_t number, Context& context) noexcept;

// Appends what other live processes of this user hold, to the HCA of the same index. Names once what lies on
// HCAs that `hcas` lacks.
void append_neighbours(std::vector<HcaInventory>& hcas);

}  // namespace gdx::softhca::uverbs
