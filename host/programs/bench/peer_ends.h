// The two ends of standard benchmarks, run by the two ranks in turns with their own samples.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "host/bootstrap/world.h"
#include "host/programs/bench/peers.h"

namespace gdx::bench {

inline constexpr std::uint32_t kReportingRank = 0;  // sends, too
inline constexpr std::uint64_t kExchangeTimeoutNs = 120'000'000'000;

class PeerEnds {
 public:
  // `caller`, for messages: "gdx bench". `nic`: this rank's. Collective. Tells once, at the reporting rank,
  // which programs are missing.
  [[nodiscard]] static Result<PeerEnds> find(World& world, const std::string& caller,
                                             std::vector<PeerRun> runs, Nic nic);

  [[nodiscard]] const std::vector<PeerRun>& runs() const { return runs_; }
  // Runs number `index` once, its client at the reporting rank. Returns what that printed; nullopt at the
  // other rank, for a program that is missing, and for a run that gave no figures. Such a run is not
  // repeated, and after two of them no other of that program either. Collective. Errors: those of the world,
  // and kInvalidArgument for an address that is none.
  [[nodiscard]] Result<std::optional<PeerFigures>> run(World& world, std::size_t index);

 private:
  std::string caller_;
  std::vector<PeerRun> runs_;
  // Those of all ranks are equal.
  std::vector<bool> runs_here_;          // of each run
  std::map<std::string, int> failures_;  // of each program
  Nic nic_;
};

}  // namespace gdx::bench
