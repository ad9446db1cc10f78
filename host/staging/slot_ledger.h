// Who holds which staging slots: pure bookkeeping, no HCA.
#pragma once

#include <cstdint>
#include <map>

#include "base/result.h"

namespace gdx {

struct SlotRun {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

// Hands out disjoint runs of slots, first fit. The invariant is asserted after every change. Threads:
// externally synchronised.
class SlotLedger {
 public:
  explicit SlotLedger(std::uint32_t slot_count) : total_(slot_count) {}

  // Errors: kInvalidArgument (not a power of two, or more than the pool), kBusy (not enough
  // neighbouring slots are free now).
  [[nodiscard]] Result<SlotRun> take(std::uint32_t count);
  // Errors: kInvalidArgument when `run` is not exactly one that take() handed out.
  [[nodiscard]] Result<void> give_back(SlotRun run);

  [[nodiscard]] std::uint32_t total() const { return total_; }
  [[nodiscard]] std::uint32_t leased() const { return leased_; }
  [[nodiscard]] std::uint32_t free() const { return total_ - leased_; }

  // leased + free == total, and the runs are disjoint and inside the pool.
  [[nodiscard]] bool invariant_holds() const;

 private:
  std::uint32_t total_;
  std::uint32_t leased_ = 0;
  std::map<std::uint32_t, std::uint32_t> runs_;  // first -> count
};

}  // namespace gdx
