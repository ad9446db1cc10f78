// The launcher that started this process, as its environment shows it. Nothing is opened here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"

namespace gdx::launch {

inline constexpr char kPmixRankVariable[] = "PMIX_RANK";
inline constexpr char kPmixNamespaceVariable[] = "PMIX_NAMESPACE";
inline constexpr char kPmiRankVariable[] = "PMI_RANK";
inline constexpr char kPmiSizeVariable[] = "PMI_SIZE";
inline constexpr char kPmiDescriptorVariable[] = "PMI_FD";
inline constexpr char kPmiPortVariable[] = "PMI_PORT";
inline constexpr char kPmiIdVariable[] = "PMI_ID";

// The way to the other ranks that a launcher offers.
enum class Way : std::uint8_t {
  kNone,       // no launcher
  kPmix,       // a server of PMIx
  kPmi,        // a server of PMI-1's wire, as hydra's and that of srun --mpi=pmi2
  kVariables,  // rank and size alone: ranks meet at GDX_ROOT
};

// Ways in the order of search, for people.
inline constexpr char kOrder[] =
    "GDX_ variables, torchrun, PMIx, PMI, variables of srun and of other launchers";

struct Launcher {
  Way way = Way::kNone;
  std::string name = {};     // "PMIx of mpirun", "torchrun"; empty without one
  std::string command = {};  // that gives each rank a software HCA; empty without one
  std::string remedy = {};   // advice of kVariables, for ranks without GDX_ROOT
  // Place that the variables tell. PMIx and PMI_PORT leave the size to the server.
  std::optional<std::uint32_t> rank = {};
  std::optional<std::uint32_t> size = {};
  // Place among the ranks of this host, and their count, at most where hosts differ.
  std::optional<std::uint32_t> local_rank = {};
  std::optional<std::uint32_t> local_size = {};
  bool starts_jobs = false;  // each process of an outer launcher may start a job of its own by it
};

// Finds the launcher, the first in the order of kOrder. Errors: kInvalidArgument naming the variable that is
// missing or impossible, or two launchers that contradict each other.
[[nodiscard]] Result<Launcher> find_launcher();

// Returns "rank 1 of 4", or "rank 1" without a size.
[[nodiscard]] std::string place_text(std::uint32_t rank, std::optional<std::uint32_t> size);

}  // namespace gdx::launch
