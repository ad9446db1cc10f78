// Send and receive WQEs as a client may leave them in its rings.
#include <cstdlib>
#include <vector>

#include "driver-shim/softhca/engine/wqe_parser.h"
#include "proto/mlx5/wqe.h"
#include "tests/fuzz/input.h"

namespace gdx::softhca {
namespace {

constexpr std::uint32_t kQpn = 0x123456;

void check(const SendWqe& wqe, std::uint32_t available_blocks) {
  fuzz::expect(wqe.blocks >= 1 && wqe.blocks <= std::max(1u, available_blocks),
               "a WQE lies in what is posted");
  if (wqe.fault != mlx5::Syndrome::kNone) return fuzz::expect(wqe.reason != nullptr, "a fault has a reason");
  std::uint64_t total_bytes = 0;
  for (const DataPiece& piece : wqe.pieces) {
    total_bytes += piece.length_bytes;
    if (!piece.is_inline) continue;
    fuzz::expect(piece.address <= wqe.inline_bytes.size() &&
                     piece.length_bytes <= wqe.inline_bytes.size() - piece.address,
                 "inline data lies in the WQE");
  }
  const bool is_umr = wqe.request.opcode == mlx5::WqeOpcode::kUmr;
  fuzz::expect(is_umr == (wqe.umr != nullptr), "only a UMR WQE is one");
  const std::uint64_t expected_bytes =
      is_umr ? wqe.umr->translation_entries * sizeof(mlx5::DataSegment) : wqe.request.length_bytes;
  fuzz::expect(total_bytes == expected_bytes, "the pieces are the message, or the translation");
}

}  // namespace
}  // namespace gdx::softhca

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gdx;
  fuzz::Input input(data, size);
  const std::uint32_t blocks = 1u << (input.take<std::uint8_t>() % 6);
  const auto index = input.take<std::uint16_t>();
  const std::uint32_t available = 1 + input.take<std::uint8_t>() % blocks;
  std::vector<std::byte> ring(std::size_t{blocks} * mlx5::kWqeBasicBlockBytes);
  // The control segment is what the parser would otherwise refuse nearly always.
  const auto opcode = input.take<std::uint8_t>();
  const auto opmod = input.take<std::uint8_t>();
  const auto segments = input.take<std::uint8_t>();
  const std::size_t start = index % blocks * mlx5::kWqeBasicBlockBytes;
  const auto body = input.take_bytes(ring.size());
  for (std::size_t i = 0; i < body.size(); ++i) {
    ring[(start + sizeof(mlx5::ControlSegment) + i) % ring.size()] = static_cast<std::byte>(body[i]);
  }
  mlx5::ControlSegment control{};
  control.opmod_index_opcode = std::uint32_t{opmod} << 24 | std::uint32_t{index} << 8 | opcode;
  control.qpn_ds = softhca::kQpn << 8 | segments;
  std::memcpy(ring.data() + start, &control, sizeof control);

  using enum softhca::AddressVectorUse;
  for (const auto vectors : {kNone, kByGid, kByLid}) {
    softhca::SendWqe wqe;
    softhca::parse_send_wqe(ring, index, available, softhca::kQpn, vectors, wqe);
    softhca::check(wqe, available);
  }
  std::vector<softhca::DataPiece> pieces;
  softhca::parse_scatter_list(ring, pieces);
  return 0;
}
