// Fields that a command must leave zero. Source: PRM, command return status 0x03 (BAD_PARAM: "reserved not
// equal 0"); for the fields, those that neither Linux include/linux/mlx5/mlx5_ifc.h nor UCX ib_mlx5_ifc.h has
// a name for. Bits 0x10 to 0x1f are no such field: they hold the uid, and Linux devx.c puts there that of the
// open device file, whatever the client wrote. Firmware keeps files apart by it.
// Sources: Linux drivers/infiniband/hw/mlx5/devx.c; its commits a8b92ca1b0e5 ("the firmware manages the
// isolation between processes' resources") and, for UARs, d2c8a1554c10.
#include <algorithm>
#include <array>
#include <span>

#include "driver-shim/softhca/devx/commands.h"

namespace gdx::softhca::devx {
namespace prm = mlx5::prm;
using prm::PrmField;
namespace {

constexpr std::array kHeader{PrmField{0x20, 16}, PrmField{0x60, 32}};

// Reserved fields of the CQ context.
constexpr std::array kCompletionQueue{
    PrmField{0x07, 1},  PrmField{0x0c, 1},  PrmField{0x18, 1},  PrmField{0x40, 20},
    PrmField{0x5a, 2},  PrmField{0x60, 3},  PrmField{0x80, 4},  PrmField{0xa0, 24},
    PrmField{0xc0, 3},  PrmField{0xc8, 24}, PrmField{0xe0, 32}, PrmField{0x100, 8},
    PrmField{0x120, 8}, PrmField{0x140, 8}, PrmField{0x160, 8}, PrmField{0x1a0, 32}};

// Reserved fields of the QP context.
constexpr std::array kQueuePair{
    PrmField{0x1e, 2},   PrmField{0x24, 1},   PrmField{0x48, 1},   PrmField{0x82, 1},   PrmField{0xa0, 3},
    PrmField{0x384, 4},  PrmField{0x38b, 2},  PrmField{0x393, 1},  PrmField{0x39b, 5},  PrmField{0x3a0, 32},
    PrmField{0x3c0, 8},  PrmField{0x420, 32}, PrmField{0x440, 8},  PrmField{0x460, 8},  PrmField{0x480, 8},
    PrmField{0x48b, 1},  PrmField{0x493, 1},  PrmField{0x4a0, 3},  PrmField{0x4c0, 8},  PrmField{0x4e0, 8},
    PrmField{0x560, 5},  PrmField{0x580, 8},  PrmField{0x600, 32}, PrmField{0x620, 15}, PrmField{0x680, 3},
    PrmField{0x684, 28}, PrmField{0x6a0, 32}, PrmField{0x6c0, 32}, PrmField{0x6e0, 32}, PrmField{0x700, 32}};

// Reserved fields of the address path.
constexpr std::array kPath{PrmField{0x02, 14}, PrmField{0x45, 3}, PrmField{0x60, 4}, PrmField{0x100, 4},
                           PrmField{0x106, 1}};

struct NamedField {
  prm::Opcode command;
  PrmField field;
  Named kind;
};
constexpr std::array kNamedObjects{NamedField{prm::Opcode::kCreateCq, prm::cq::kUarPage, Named::kUar},
                                   NamedField{prm::Opcode::kCreateQp, prm::qp::kPd, Named::kPd},
                                   NamedField{prm::Opcode::kCreateQp, prm::qp::kUarPage, Named::kUar},
                                   NamedField{prm::Opcode::kCreateQp, prm::qp::kSendCqn, Named::kCq},
                                   NamedField{prm::Opcode::kCreateQp, prm::qp::kReceiveCqn, Named::kCq},
                                   NamedField{prm::Opcode::kCreateQp, prm::qp::kSrqn, Named::kRmp},
                                   NamedField{prm::Opcode::kCreateRmp, prm::rmp::kPd, Named::kPd},
                                   NamedField{prm::Opcode::kCreateMkey, prm::mkey::kPd, Named::kPd}};

bool all_zero(Input in, std::uint32_t base, std::span<const PrmField> fields) {
  return std::ranges::all_of(fields, [=](PrmField field) {
    return prm::get(in, {base + field.bit_offset, field.bit_width}) == 0;
  });
}

}  // namespace

Outcome check_reserved(prm::Opcode opcode, Input in) {
  const bool of_cq = opcode == prm::Opcode::kCreateCq;
  const bool zero = all_zero(in, 0, kHeader) && (of_cq ? all_zero(in, prm::cq::kContext, kCompletionQueue)
                                                       : all_zero(in, prm::qp::kContext, kQueuePair) &&
                                                             all_zero(in, prm::qp::kPath, kPath));
  return zero ? Outcome{} : refuse_with(prm::CommandStatus::kBadParameter, Syndrome::kReservedField);
}

Outcome check_owned(prm::Opcode opcode, Input in, const Owns& owns) {
  for (const NamedField& named : kNamedObjects) {
    if (named.command != opcode || in.size() < prm::end_byte(named.field)) continue;
    const std::uint32_t number = prm::get32(in, named.field);
    if (number != 0 && !owns(named.kind, number))
      return refuse_with(prm::CommandStatus::kBadResource, Syndrome::kNoSuchObject);
  }
  return {};
}

}  // namespace gdx::softhca::devx
