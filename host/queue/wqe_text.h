// Text about work requests, for messages.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "proto/mlx5/wqe.h"

namespace gdx {

[[nodiscard]] std::string opcode_name(mlx5::WqeOpcode opcode);

// Reads the WQE that begins with `block`, with its local memory in `data`. One without has 0 bytes inline.
[[nodiscard]] mlx5::PutWqe read_wqe(const mlx5::WqeBasicBlock& block);

// Describes the WQE that begins with `block`: opcode, length, addresses and keys. `peer` is the text of the
// remote queue pair. Returns nullopt if the block holds another WQE than that of `index`.
[[nodiscard]] std::optional<std::string> describe_wqe(const mlx5::WqeBasicBlock& block, std::uint16_t index,
                                                      std::string_view peer);

}  // namespace gdx
