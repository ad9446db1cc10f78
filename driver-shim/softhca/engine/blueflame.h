// What clients write to a BlueFlame register: a doorbell of 8 B, or with it the WQE, which then need not be
// fetched.
//
// A ConnectX gets such a WQE in one PCIe write, and where a write was cut to pieces it fetches from the ring.
// Here the register is memory, stored to 8 B at a time by a client that waits for nobody. What is read may be
// torn (the later words are on their way), stale (they are an earlier write's) or both, and the words do not
// tell. So a copy counts only where it equals the WQE in the ring, whose stores the doorbell record orders:
// the ring decides what is executed, the copy only whether hardware would have had to fetch it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "proto/mlx5/doorbell.h"

namespace gdx::softhca {

// Where clients ring: two BlueFlame registers a page, of two halves each.
inline constexpr std::array<std::size_t, 4> kSendDoorbells{
    mlx5::kUarBlueFlame, mlx5::kUarBlueFlame + mlx5::kBlueFlameBufferBytes,
    mlx5::kUarBlueFlame + mlx5::kBlueFlameRegisterBytes,
    mlx5::kUarBlueFlame + mlx5::kBlueFlameRegisterBytes + mlx5::kBlueFlameBufferBytes};

// One write to a register. Its first 8 B are those of the newest WQE's control segment.
class DoorbellWrite {
 public:
  // Takes what was written to the half at `offset`, and empties it; nullopt where nobody rang.
  // Ordering: acquire, so that the record written before it is visible.
  static std::optional<DoorbellWrite> take(std::byte* page, std::size_t offset);

  [[nodiscard]] std::uint64_t value() const { return words_[0]; }
  [[nodiscard]] std::uint32_t qpn() const;
  // Whether more than the doorbell was found. If so, wqe() may be a WQE.
  [[nodiscard]] bool has_copy() const { return has_copy_; }
  // As long as the control segment says; empty without a copy, or for a WQE too long for the register.
  [[nodiscard]] std::span<const std::byte> wqe() const;
  // Whether the copy is of the WQE at `index` of `ring` (a power of two of WQEBBs) and is whole.
  // Call it only for WQEs that the record has announced.
  [[nodiscard]] bool is_copy_of(std::span<const std::byte> ring, std::uint16_t index) const;

 private:
  static constexpr std::size_t kWords = mlx5::kBlueFlameBufferBytes / sizeof(std::uint64_t);

  [[nodiscard]] std::size_t wqe_bytes() const;

  std::array<std::uint64_t, kWords> words_{};
  bool has_copy_ = false;
};

}  // namespace gdx::softhca
