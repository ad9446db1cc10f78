// The kernel of halo_exchange, as the host's file sees it.
#pragma once

#include <cstdint>

#include "proto/gpu/team.h"
#include "proto/status.h"

// Cells of each rank: a tile with an edge of one cell around it, which neighbours fill or stays 0.
inline constexpr std::uint32_t kWidth = 24;
inline constexpr std::uint32_t kHeight = 20;
inline constexpr std::uint32_t kStride = kWidth + 2;
inline constexpr std::uint32_t kCells = kStride * (kHeight + 2);
inline constexpr std::uint32_t kSides = 4;  // up, down, left, right; side ^ 1 is the opposite
inline constexpr std::uint32_t kNobody = ~std::uint32_t{0};

// Memory of the symmetric heap. Cells and edges are there twice, for even and odd steps.
struct Halo {
  float* cells;            // kCells
  float* sent;             // edges, packed: kSides of kWidth
  float* received;         // kSides of kWidth
  std::uint64_t* arrived;  // by side: steps whose edge is here
  gdx::Status* status;     // by side
  std::uint32_t neighbours[kSides];
};

// Returns the next value of a cell. Its factors are powers of 2, so that FMA changes no bit.
constexpr float next_value(const float* cells, std::uint32_t at, std::uint32_t stride) {
  return 0.5f * cells[at] +
         0.125f * ((cells[at - stride] + cells[at + stride]) + (cells[at - 1] + cells[at + 1]));
}

[[nodiscard]] gdx::Status run_steps(const gdx::TeamHandle& team, const Halo& halo, std::uint32_t steps);
