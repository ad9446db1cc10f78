// WRITEs of a queue pair whose data may land in any order, which have been executed and have not landed. A
// NIC that places packets as they come keeps no order between two WRITEs. It keeps that of a WRITE and of
// what follows by an acknowledgement, a SEND, immediate data or an atomic. Source: IBA 1.4, o9-20; ordering
// tier OOO_RW of mlx5 (Linux mlx5_ifc.h, dp_ordering_ooo_rw_rc).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "driver-shim/softhca/transport/psn.h"
#include "driver-shim/softhca/transport/rc_types.h"

namespace gdx::softhca::transport {

inline constexpr std::uint64_t kMostLateNs = 200'000;
inline constexpr std::size_t kMostLateWrites = 64;

class LateWrites {
 public:
  // `seed` decides which WRITEs are late, and for how long; 0: none is.
  explicit LateWrites(std::uint64_t seed)
      : permitted_(seed != 0), random_(static_cast<std::minstd_rand::result_type>(seed ^ seed >> 32)) {}

  [[nodiscard]] bool empty() const { return writes_.empty(); }
  // Returns the time by which the oldest must land; kNever without one.
  [[nodiscard]] std::uint64_t deadline_ns() const { return deadline_ns_; }
  struct Write {
    ExtendedPsn psn;
    std::uint32_t rkey;
    std::uint64_t address;
    std::span<const std::byte> payload;
  };
  // Keeps a copy of the WRITE, or returns false: it is to land now.
  [[nodiscard]] bool keep(std::uint64_t now_ns, const Write& write);
  // Lets all land, the newest first. Returns the PSN of the oldest whose key no longer permits it.
  [[nodiscard]] std::optional<ExtendedPsn> land(ResponderPort& port);

 private:
  struct Kept {
    Write write;
    std::vector<std::byte> payload;
  };

  bool permitted_;
  std::minstd_rand random_;
  std::vector<Kept> writes_;
  std::uint64_t deadline_ns_ = kNever;
};

}  // namespace gdx::softhca::transport
