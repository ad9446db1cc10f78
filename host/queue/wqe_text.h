// Text about work requests, for messages.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "proto/mlx5/wqe.h"

namespace gdx {

// Describes the WQE that begins with `block`: opcode, length, addresses and keys. `peer` is the text of the
// remote queue pair. Returns nullopt if the block holds another WQE than that of `index`.
[[nodiscard]] std::optional<std::string> describe_wqe(const mlx5::WqeBasicBlock& block, std::uint16_t index,
                                                      std::string_view peer);

}  // namespace gdx
