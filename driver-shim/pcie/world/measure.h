// Figures of a modelled world for one mode and one size. All results are modelled.
#pragma once

#include "driver-shim/pcie/world/world.h"

namespace gdx::pcie {

// One message, or one batch of them, in an idle world.
struct Latency {
  double delivered_ns = 0;  // from the first put to the last byte in the peer's GPU memory
  double completed_ns = 0;  // until the poster has polled the last completion
  Counters counters;        // on the sending side
};

// Many messages from `lanes` endpoints: what arrives between a quarter and three quarters of all.
struct Rate {
  double bytes_per_s = 0;
  double messages_per_s = 0;
};

// `config` has passed both checks of world_config.h, the second for this mode and size.
[[nodiscard]] Latency measure_latency(const WorldConfig& config, Mode mode, std::uint64_t message_bytes);
[[nodiscard]] Rate measure_rate(const WorldConfig& config, Mode mode, std::uint64_t message_bytes);

}  // namespace gdx::pcie
