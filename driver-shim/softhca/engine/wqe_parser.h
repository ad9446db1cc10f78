// Send and receive WQEs, from bytes to values. Pure; what a client wrote is never trusted.
// Source: rdma-core providers/mlx5/qp.c (how WQEs are built); proto/mlx5/wqe.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "driver-shim/softhca/engine/umr.h"
#include "driver-shim/softhca/transport/rc.h"
#include "driver-shim/softhca/wire/wire.h"
#include "proto/mlx5/cqe.h"

namespace gdx::softhca {

// One stretch of a gather or scatter list.
struct DataPiece {
  std::uint32_t lkey = 0;
  std::uint32_t length_bytes = 0;
  std::uint64_t address = 0;  // under lkey, or the offset into the WQE's inline bytes
  bool is_inline = false;

  bool operator==(const DataPiece&) const = default;
};

// Part of a send WQE that is kept until it completes, apart from its work request.
struct SendBody {
  std::uint32_t blocks = 1;  // WQEBBs that it occupies
  // Error of a WQE that cannot be executed, reported in its turn; else kNone.
  mlx5::Syndrome fault = mlx5::Syndrome::kNone;
  std::vector<DataPiece> pieces;
  std::vector<std::byte> inline_bytes;
  wire::Address destination;        // UD
  bool global = true;               // UD: the packet has a GRH
  std::unique_ptr<UmrRequest> umr;  // request of a UMR WQE without fault; its translation is in `pieces`
  // Part of the 8 B to return. An atomic on 4 B travels as one on the 8 B around it.
  enum class AtomicPart : std::uint8_t { kWhole, kLowHalf, kHighHalf } atomic_part = AtomicPart::kWhole;
};

struct SendWqe : SendBody {
  transport::WorkRequest request;
  const char* reason = nullptr;  // reason for its fault
};

enum class AddressVectorUse {
  kNone,
  kByGid,
  kByLid
};  // all but kNone: UD, whose WQEs name their destination

// Parses the WQE at `index` of the ring (a power of two of WQEBBs), of which `available_blocks` are posted.
// For any bytes, `out` is a work request that can be queued.
void parse_send_wqe(std::span<const std::byte> ring, std::uint16_t index, std::uint32_t available_blocks,
                    std::uint32_t qpn, AddressVectorUse vectors, SendWqe& out);
// Parses a WQE that does not wrap, of which `wqe` is the whole.
void parse_linear_wqe(std::span<const std::byte> wqe, std::uint16_t index, std::uint32_t available_blocks,
                      std::uint32_t qpn, AddressVectorUse vectors, SendWqe& out);

// The scatter list of a receive WQE, up to the end mark. Returns its capacity in bytes.
std::uint64_t parse_scatter_list(std::span<const std::byte> segments, std::vector<DataPiece>& out);

}  // namespace gdx::softhca
