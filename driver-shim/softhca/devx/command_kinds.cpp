#include "driver-shim/softhca/devx/command_kinds.h"

#include <algorithm>
#include <span>

namespace gdx::softhca::devx {
namespace {

// Opcodes in order. They have no names here, because the device supports few of them.
constexpr std::uint16_t kGeneral[] = {0x100, 0x101, 0x10a, 0x750, 0x752, 0x754, 0x760, 0x762,
                                      0x76f, 0x770, 0x80a, 0x80d, 0x822, 0x824, 0x826, 0x842};
constexpr std::uint16_t kCreate[] = {0x200, 0x400, 0x500, 0x600, 0x700, 0x705, 0x710, 0x717, 0x771, 0x782,
                                     0x800, 0x806, 0x80e, 0x816, 0x827, 0x829, 0x900, 0x904, 0x908, 0x90c,
                                     0x912, 0x916, 0x930, 0x933, 0x936, 0x939, 0x93d, 0x940, 0xa00};
constexpr std::uint16_t kModify[] = {0x403, 0x502, 0x503, 0x504, 0x505, 0x506, 0x507, 0x50a, 0x50e, 0x703,
                                     0x708, 0x714, 0x71a, 0x726, 0x729, 0x72a, 0x785, 0x827, 0x829, 0x901,
                                     0x905, 0x909, 0x90d, 0x913, 0x917, 0x936, 0x93c, 0xa01};
constexpr std::uint16_t kQuery[] = {0x201, 0x402, 0x50b, 0x702, 0x707, 0x713, 0x719, 0x725, 0x727,
                                    0x773, 0x784, 0x82a, 0x903, 0x907, 0x90b, 0x90f, 0x915, 0x919,
                                    0x932, 0x935, 0x937, 0x93b, 0x93f, 0x942, 0xa02};
// Range of commands that were added to the interface later, all of which are general.
constexpr std::uint16_t kFirstNewGeneral = 0xb00;
constexpr std::uint16_t kEndNewGeneral = 0xd00;

}  // namespace

bool travels_as(CommandKind kind, std::uint16_t opcode) {
  const auto among = [opcode](std::span<const std::uint16_t> opcodes) {
    return std::find(opcodes.begin(), opcodes.end(), opcode) != opcodes.end();
  };
  switch (kind) {
    case CommandKind::kGeneral:
      return among(kGeneral) || (opcode >= kFirstNewGeneral && opcode < kEndNewGeneral);
    case CommandKind::kCreate: return among(kCreate);
    case CommandKind::kModify: return among(kModify);
    case CommandKind::kQuery: return among(kQuery);
  }
  return false;
}

}  // namespace gdx::softhca::devx
