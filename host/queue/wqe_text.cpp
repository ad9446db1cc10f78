#include "host/queue/wqe_text.h"

#include <fmt/format.h>

#include <cstring>

namespace gdx {
namespace {

bool is_atomic(mlx5::WqeOpcode opcode) {
  return opcode == mlx5::WqeOpcode::kAtomicCompareSwap || opcode == mlx5::WqeOpcode::kAtomicFetchAdd;
}

}  // namespace

std::string opcode_name(mlx5::WqeOpcode opcode) {
  switch (opcode) {
    case mlx5::WqeOpcode::kNop: return "NOP";
    case mlx5::WqeOpcode::kRdmaWrite: return "RDMA WRITE";
    case mlx5::WqeOpcode::kRdmaRead: return "RDMA READ";
    case mlx5::WqeOpcode::kAtomicCompareSwap: return "atomic compare-and-swap";
    case mlx5::WqeOpcode::kAtomicFetchAdd: return "atomic fetch-and-add";
    default: return fmt::format("opcode {:#04x}", static_cast<unsigned>(opcode));
  }
}

mlx5::PutWqe read_wqe(const mlx5::WqeBasicBlock& block) {
  mlx5::PutWqe wqe = mlx5::read_put_wqe(block.bytes);
  // An atomic has its operands where others have their data.
  if (is_atomic(mlx5::wqe_opcode(wqe.control)))
    std::memcpy(&wqe.data, block.bytes + sizeof wqe, sizeof wqe.data);
  if (mlx5::wqe_segments(wqe.control) < mlx5::kPutSegments) wqe.data.byte_count = mlx5::kInlineFlag;
  return wqe;
}

std::optional<std::string> describe_wqe(const mlx5::WqeBasicBlock& block, std::uint16_t index,
                                        std::string_view peer) {
  const mlx5::PutWqe wqe = read_wqe(block);
  if (mlx5::wqe_index(wqe.control) != index) return std::nullopt;
  const std::uint32_t count = wqe.data.byte_count;
  // Calls of kernels name memory; a probe of a silent peer names none.
  if (mlx5::wqe_segments(wqe.control) < mlx5::kPutSegments && wqe.remote.address == 0 && wqe.remote.rkey == 0)
    return fmt::format("a probe of {}: look there for the cause", peer);
  std::string text = fmt::format("{} of {} B at {:#x} (rkey {:#x}) of {}",
                                 opcode_name(mlx5::wqe_opcode(wqe.control)), count & ~mlx5::kInlineFlag,
                                 std::uint64_t{wqe.remote.address}, std::uint32_t{wqe.remote.rkey}, peer);
  if ((count & mlx5::kInlineFlag) != 0) return text;
  return text + fmt::format(", local {:#x} (lkey {:#x})", std::uint64_t{wqe.data.address},
                            std::uint32_t{wqe.data.lkey});
}

}  // namespace gdx
