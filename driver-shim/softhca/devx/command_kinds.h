// Commands that each DevX ioctl may carry. The driver refuses the others itself, with EINVAL. The device
// refuses, with a status, commands that the driver passes on.
// Source: Linux drivers/infiniband/hw/mlx5/devx.c, the devx_is_*_cmd() predicates; opcodes from
// include/linux/mlx5/mlx5_ifc.h.
#pragma once

#include <cstdint>

namespace gdx::softhca::devx {

enum class CommandKind : std::uint8_t { kGeneral, kCreate, kModify, kQuery };

[[nodiscard]] bool travels_as(CommandKind kind, std::uint16_t opcode);

}  // namespace gdx::softhca::devx
