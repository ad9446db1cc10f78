// RDMA netlink beside an open HCA.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "tests/abi/loopback.h"
#include "tests/abi/netlink.h"

namespace gdx::abi_tests {

class RdmaNetlink : public Loopback {
 protected:
  std::uint32_t summary(const char* name) {
    EXPECT_TRUE(netlink_.ask(RDMA_NLDEV_CMD_RES_GET, 0, {{RDMA_NLDEV_ATTR_DEV_INDEX, 0}}));
    const std::vector<std::byte> message = netlink_.receive();
    std::span<const std::byte> rest = Netlink::attributes_of(message).at(RDMA_NLDEV_ATTR_RES_SUMMARY);
    while (rest.size() >= sizeof(nlattr)) {
      nlattr header{};
      std::memcpy(&header, rest.data(), sizeof header);
      const NetlinkAttributes entry =
          netlink_attributes(rest.subspan(sizeof header, header.nla_len - sizeof header));
      const auto* const text =
          reinterpret_cast<const char*>(entry.at(RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_NAME).data());
      if (std::string_view(text) == name) {
        return static_cast<std::uint32_t>(
            Netlink::value<std::uint64_t>(entry, RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_CURR));
      }
      rest = rest.subspan(std::min<std::size_t>(NLA_ALIGN(header.nla_len), rest.size()));
    }
    ADD_FAILURE() << "no " << name << " in the summary";
    return 0;
  }

  Netlink netlink_;
};

}  // namespace gdx::abi_tests
