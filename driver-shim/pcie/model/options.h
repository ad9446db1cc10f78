// Command line of the model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "driver-shim/pcie/world/world_config.h"

namespace gdx::pcie {

inline constexpr std::uint64_t kLargestBytes = 16 << 20;  // largest message

struct ModelOptions {
  std::string platform = "generic";
  std::string path = "PIX";
  unsigned generation = 0;  // 0: the platform's own
  unsigned lanes = 0;
  std::string modes = "all";
  std::vector<std::uint64_t> sizes_bytes;  // empty: 8 B to 16 MiB
  std::string queues = "host";
  std::string doorbell = "blueflame";
  std::string record = "read";
  double wire_gbps = 400;
  unsigned wire_latency_ns = 0;  // 0: the model's own
  unsigned store_bytes = 0;
  unsigned mps_bytes = 0;
  unsigned mrrs_bytes = 0;
  unsigned rcb_bytes = 0;
  unsigned peer_read_lines = 0;
  double socket_gbps = 0;
  unsigned mtu_bytes = 0;
  unsigned tags = 0;
  std::uint64_t pool_bytes = 0;
  unsigned slot_bytes = 0;
  int order_ns = -1;  // -1: by scope
  unsigned endpoints = 0;
  unsigned batch = 1;
  bool as_json = false;
  std::string plot;
};

struct ModelRequest {
  WorldConfig world;
  std::vector<Mode> modes;
  std::vector<std::uint64_t> sizes_bytes;
};

// Errors: kInvalidArgument naming the option.
[[nodiscard]] Result<ModelRequest> to_request(const ModelOptions& options);

}  // namespace gdx::pcie
