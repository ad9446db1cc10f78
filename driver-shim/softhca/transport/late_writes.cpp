#include "driver-shim/softhca/transport/late_writes.h"

#include <utility>

namespace gdx::softhca::transport {

bool LateWrites::keep(std::uint64_t now_ns, const Write& write) {
  if (!permitted_ || writes_.size() == kMostLateWrites) return false;
  if (!std::bernoulli_distribution()(random_)) return false;
  if (writes_.empty())
    deadline_ns_ = now_ns + std::uniform_int_distribution<std::uint64_t>(1, kMostLateNs)(random_);
  writes_.push_back({write, {write.payload.begin(), write.payload.end()}});
  return true;
}

std::optional<ExtendedPsn> LateWrites::land(ResponderPort& port) {
  const std::vector<Kept> late = std::exchange(writes_, {});
  deadline_ns_ = kNever;
  std::optional<ExtendedPsn> refused;
  for (auto kept = late.rbegin(); kept != late.rend(); ++kept)
    if (!port.write(kept->write.rkey, kept->write.address, kept->payload)) refused = kept->write.psn;
  return refused;
}

}  // namespace gdx::softhca::transport
