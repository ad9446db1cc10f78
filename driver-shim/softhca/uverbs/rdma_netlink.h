// Answers of the kernel's RDMA netlink family: devices, ports, counters and resources, as `rdma` and
// libibverbs request them. Pure: a request in, replies out. Source: Linux include/uapi/rdma/rdma_netlink.h,
// drivers/infiniband/core/netlink.c and nldev.c.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "driver-shim/softhca/uverbs/inventory.h"

namespace gdx::softhca::uverbs {

// Origin of a request.
struct NetlinkAsker {
  std::uint32_t port = 0;
  bool dumping = false;  // a dump has not been received to its end: EBUSY for another
};

// Returns the datagrams that answer one of requests. An unsupported request gets an error, a malformed one no
// answer. Calls `inventory` once, and once more with true for the first request of resources: they are then
// those of all processes.
std::vector<std::string> answer_netlink(std::span<const std::byte> datagram, NetlinkAsker asker,
                                        const std::function<std::vector<HcaInventory>(bool)>& inventory);

}  // namespace gdx::softhca::uverbs
