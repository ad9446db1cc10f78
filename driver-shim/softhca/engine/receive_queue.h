// Receive WQEs in a ring of a queue pair's own (RQ) or in one that several share (SRQ).
// Source: rdma-core providers/mlx5/{qp.c,srq.c}.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "driver-shim/softhca/engine/hca.h"
#include "driver-shim/softhca/engine/wqe_parser.h"
#include "driver-shim/softhca/transport/ring.h"

namespace gdx::softhca {

struct ReceiveWqe {
  std::uint16_t wqe_counter = 0;
  std::uint64_t capacity_bytes = 0;
  std::vector<DataPiece> pieces;
};

class ReceiveQueue {
 public:
  struct Layout {
    std::byte* ring = nullptr;
    std::uint32_t entries = 0;  // a power of two, or 0: no queue
    std::uint32_t stride_bytes = 0;
    Be32* record = nullptr;
    bool shared = false;  // WQEs begin with a next segment and are taken along that chain
    bool cyclic = false;  // shared, but taken in ring order: the next segment is unused
    std::function<void()> on_limit = {};
  };
  explicit ReceiveQueue(const Layout& layout)
      : layout_(layout), wqe_(layout.entries != 0 ? layout.stride_bytes : 0) {}

  // Takes the oldest posted WQE. False: none is posted, or the ring has gone.
  bool take(ReceiveWqe& out);
  // Returns the number of WQEs that take() would find.
  [[nodiscard]] std::uint16_t posted() const;
  // Calls on_limit once when fewer than `limit` WQEs are posted, at once if that holds; 0: never.
  void set_limit(std::uint32_t limit);
  // Returns the limit that still waits, 0 for none.
  [[nodiscard]] std::uint32_t limit() const { return limit_; }
  [[nodiscard]] std::uint32_t entries() const { return layout_.entries; }
  // Returns the first broken invariant of a queue that is not shared; nullptr: all hold. `under_way`: its
  // WQEs that were taken and have not completed, oldest first.
  [[nodiscard]] const char* check_invariants(const transport::Ring<std::uint16_t>& under_way) const;
  // Clears the count of taken WQEs, as a reset of the queue pair does.
  void reset();

 private:
  void check_limit();

  Layout layout_;
  std::vector<std::byte> wqe_;  // the one that is taken, because the ring may go meanwhile
  std::uint32_t limit_ = 0;
  std::uint16_t taken_ = 0;       // cumulative
  std::uint16_t next_index_ = 0;  // SRQ: the head of the chain
};

}  // namespace gdx::softhca
