#include "host/staging/slot_ledger.h"

#include <fmt/format.h>

#include <bit>
#include <cassert>

namespace gdx {

Result<SlotRun> SlotLedger::take(std::uint32_t count) {
  if (!std::has_single_bit(count)) {
    return fail(Status::kInvalidArgument,
                fmt::format("cannot lease {} staging slots: the count must be a power of two", count));
  }
  if (count > total_) {
    return fail(Status::kInvalidArgument,
                fmt::format("cannot lease {} staging slots: the pool has {}", count, total_));
  }
  std::uint32_t first = 0;
  for (const auto& [begin, length] : runs_) {
    if (begin - first >= count) break;
    first = begin + length;
  }
  if (total_ - first < count) {
    return fail(Status::kBusy,
                fmt::format("cannot lease {} staging slots in a row: {} of {} are free; close an endpoint "
                            "or lease fewer",
                            count, free(), total_));
  }
  runs_.emplace(first, count);
  leased_ += count;
  assert(invariant_holds());
  return SlotRun{first, count};
}

Result<void> SlotLedger::give_back(SlotRun run) {
  const auto found = runs_.find(run.first);
  if (found == runs_.end() || found->second != run.count) {
    return fail(Status::kInvalidArgument, fmt::format("staging slots {}..{} are not on lease as one run",
                                                      run.first, std::uint64_t{run.first} + run.count));
  }
  runs_.erase(found);
  leased_ -= run.count;
  assert(invariant_holds());
  return {};
}

bool SlotLedger::invariant_holds() const {
  std::uint32_t sum = 0;
  std::uint32_t end = 0;
  for (const auto& [begin, length] : runs_) {
    if (begin < end) return false;
    end = begin + length;
    sum += length;
  }
  return end <= total_ && sum == leased_ && leased_ + free() == total_;
}

}  // namespace gdx
