// Writes of clients to a BlueFlame register: a doorbell of 8 B alone, or together with its WQE. The HCA then
// need not read the WQE.
//
// A ConnectX gets such a WQE in one PCIe write, and reads the ring if the write was split. Here the register
// is memory. A client stores 8 B at a time and waits for nothing. The words read may be torn (later ones are
// in flight) or stale (of an earlier write). They carry no mark of either. So a copy counts only if it equals
// the WQE in the ring, whose stores the doorbell record orders.
// The ring decides which WQE is executed; the copy decides only whether hardware would have had to read it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "proto/mlx5/doorbell.h"

namespace gdx::softhca {

// Returns the second big-endian dword of a doorbell, which carries the queue's number in part.
[[nodiscard]] std::uint32_t second_dword(std::uint64_t doorbell);

// Doorbell registers of a page: two BlueFlame registers of two halves each.
inline constexpr std::array<std::size_t, 4> kSendDoorbells{
    mlx5::kUarBlueFlame, mlx5::kUarBlueFlame + mlx5::kBlueFlameBufferBytes,
    mlx5::kUarBlueFlame + mlx5::kBlueFlameRegisterBytes,
    mlx5::kUarBlueFlame + mlx5::kBlueFlameRegisterBytes + mlx5::kBlueFlameBufferBytes};

// One write to a register. Its first 8 B are those of the newest WQE's control segment.
class DoorbellWrite {
 public:
  // Takes the write to the half at `offset`, and empties it; nullopt without a doorbell.
  // Ordering: acquire, so that the record written before it is visible.
  static std::optional<DoorbellWrite> take(std::byte* page, std::size_t offset);

  [[nodiscard]] std::uint64_t value() const { return words_[0]; }
  [[nodiscard]] std::uint32_t qpn() const;
  // Returns the index behind the newest WQE that it announces. A client names the last WQE, with its length,
  // or the next one, with length 0. Source: rdma-core providers/mlx5/qp.c, post_send_db; DOCA GPUNetIO
  // dev_verbs_qp.cuh.
  [[nodiscard]] std::uint16_t end() const;
  // Returns the register of its page, as a bit.
  [[nodiscard]] std::uint32_t register_bit() const { return register_bit_; }
  // Returns whether more than the doorbell was found. If so, wqe() may be a WQE.
  [[nodiscard]] bool has_copy() const { return has_copy_; }
  // Leaves the doorbell and no copy; or a copy that came in parts, which is_copy_of() rejects.
  void drop_copy() { has_copy_ = false; }
  void tear() { torn_ = true; }
  // Returns as many bytes as the control segment counts; empty without a copy, or for a WQE too long for the
  // register.
  [[nodiscard]] std::span<const std::byte> wqe() const;
  // Returns whether the copy is whole and equals the WQE at `index` of `ring` (a power of two of WQEBBs).
  // Call it only for WQEs that the record has announced.
  [[nodiscard]] bool is_copy_of(std::span<const std::byte> ring, std::uint16_t index) const;

 private:
  static constexpr std::size_t kWords = mlx5::kBlueFlameBufferBytes / sizeof(std::uint64_t);

  [[nodiscard]] std::size_t wqe_bytes() const;

  std::array<std::uint64_t, kWords> words_{};
  std::uint32_t register_bit_ = 0;
  bool has_copy_ = false;
  bool torn_ = false;
};

}  // namespace gdx::softhca
