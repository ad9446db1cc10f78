// What the kernel's RDMA netlink family answers: devices, ports, counters and resources, as `rdma` and
// libibverbs ask. Pure: a request in, replies out. Source: Linux include/uapi/rdma/rdma_netlink.h,
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

// Who asks: the socket's port, and the process whose resources are told.
struct NetlinkAsker {
  std::uint32_t port = 0;
  std::uint32_t process = 0;
};

// The datagrams that answer one of requests. What is malformed, or not offered, is answered with an error.
// `inventory` is asked for once at most.
std::vector<std::string> answer_netlink(std::span<const std::byte> datagram, const NetlinkAsker& asker,
                                        const std::function<std::vector<HcaInventory>()>& inventory);

}  // namespace gdx::softhca::uverbs
