#include "host/launch/launcher.h"

#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <limits>
#include <string_view>
#include <vector>

#include "base/environment.h"

namespace gdx::launch {
namespace {

constexpr char kStepSizeVariable[] = "SLURM_STEP_NUM_TASKS";
constexpr char kStepNodesVariable[] = "SLURM_STEP_NUM_NODES";
constexpr char kTorchRunVariable[] = "TORCHELASTIC_RUN_ID";
constexpr char kTorchAddressVariable[] = "MASTER_ADDR";
constexpr char kOwnRoot[] = "set GDX_ROOT=HOST:PORT, where rank 0 is to listen";

// A launcher that shows rank and size, and no way to meet.
struct Row {
  const char* name;
  const char* rank;
  const char* size;
  const char* local_size;
  const char* remedy;
};

constexpr Row kTorchrun = {
    "torchrun", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
    "MASTER_PORT is torchrun's own: set GDX_ROOT=HOST:PORT, the same for all ranks, with a "
    "free port of rank 0's host"};

// srun's variables of a step, because a batch script has those of its allocation, too, and is one process.
constexpr std::array kRows = {
    Row{"srun", "SLURM_PROCID", kStepSizeVariable, nullptr,
        "start it by srun --mpi=pmi2 or --mpi=pmix, or set GDX_ROOT=HOST:PORT, where rank 0 is to listen"},
    Row{"mpirun of Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
        kOwnRoot},
    Row{"mpirun of MVAPICH2", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE",
        kOwnRoot},
    Row{"flux run", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", nullptr, kOwnRoot},
};

bool is_set(const char* variable) { return std::getenv(variable) != nullptr; }

Result<std::optional<std::uint32_t>> number(const char* variable, std::uint64_t least) {
  const auto value =
      GDX_TRY(number_from_environment(variable, least, std::numeric_limits<std::uint32_t>::max() - 2));
  return value ? std::optional(static_cast<std::uint32_t>(*value)) : std::nullopt;
}

tl::unexpected<Error> half_set(const char* missing, const std::string& launcher, const std::string& all) {
  return fail(
      Status::kInvalidArgument,
      fmt::format("{} is not set, and this process has other variables of {}: {} go together; hand them "
                  "on, or set GDX_RANK, GDX_WORLD_SIZE and GDX_ROOT",
                  missing, launcher, all));
}

Result<void> check_rank(const Launcher& launcher) {
  if (!launcher.rank || !launcher.size || *launcher.rank < *launcher.size) return {};
  return fail(Status::kInvalidArgument,
              fmt::format("{} says {}: start every rank by it, with its own variables", launcher.name,
                          place_text(*launcher.rank, launcher.size)));
}

Result<Launcher> read_row(const Row& row, const std::string& command) {
  Launcher launcher{.way = Way::kVariables, .name = row.name, .command = command, .remedy = row.remedy};
  launcher.rank = GDX_TRY(number(row.rank, 0));
  launcher.size = GDX_TRY(number(row.size, 1));
  if (!launcher.rank || !launcher.size)
    return half_set(launcher.rank ? row.size : row.rank, row.name,
                    fmt::format("{} and {}", row.rank, row.size));
  if (row.local_size != nullptr) launcher.one_host = GDX_TRY(number(row.local_size, 1)) == launcher.size;
  GDX_TRY(check_rank(launcher));
  return launcher;
}

std::string ranks_command(std::string_view launcher) {
  return fmt::format("`{} ... gdx run -- PROGRAM`", launcher);
}

// Programs set MASTER_ADDR, RANK and WORLD_SIZE by hand, too.
Result<Launcher> find_torchrun() {
  const bool by_hand = is_set(kTorchAddressVariable) && (is_set(kTorchrun.rank) || is_set(kTorchrun.size));
  if (!is_set(kTorchRunVariable) && !by_hand) return Launcher{};
  auto launcher = GDX_TRY(read_row(kTorchrun, "`gdx run -- torchrun ...`"));
  launcher.starts_jobs = is_set(kTorchRunVariable);
  return launcher;
}

// Returns the command whose steps have the variables of srun, unless mpirun lies between.
const char* starter(const char* usual) {
  return is_set(kStepSizeVariable) && !is_set("OMPI_COMM_WORLD_SIZE") && !is_set("MPI_LOCALNRANKS") ? "srun"
                                                                                                    : usual;
}

Result<Launcher> find_pmix() {
  const bool has_space = is_set(kPmixNamespaceVariable);
  const bool has_rank = is_set(kPmixRankVariable);
  if (!has_space && !has_rank) return Launcher{};
  const char* const by = starter("mpirun");
  Launcher launcher{.way = Way::kPmix, .name = fmt::format("PMIx of {}", by), .command = ranks_command(by)};
  if (!has_space || !has_rank)
    return half_set(has_space ? kPmixRankVariable : kPmixNamespaceVariable, launcher.name,
                    fmt::format("{} and {}", kPmixNamespaceVariable, kPmixRankVariable));
  launcher.rank = GDX_TRY(number(kPmixRankVariable, 0));
  // The server's answer counts. These find contradictions before anything is opened.
  const bool by_slurm = std::string_view(by) == "srun";
  launcher.size = GDX_TRY(number(by_slurm ? kStepSizeVariable : "OMPI_COMM_WORLD_SIZE", 1));
  GDX_TRY(check_rank(launcher));
  return launcher;
}

Result<Launcher> find_pmi() {
  const bool by_port = is_set(kPmiPortVariable);
  const bool by_descriptor = is_set(kPmiDescriptorVariable);
  const bool has_place = is_set(kPmiRankVariable) || is_set(kPmiSizeVariable);
  if (!by_port && !by_descriptor && !has_place) return Launcher{};
  const char* const by = starter("mpiexec");
  Launcher launcher{.way = Way::kPmi, .name = fmt::format("PMI of {}", by), .command = ranks_command(by)};
  if (by_port && !by_descriptor) {
    launcher.rank = GDX_TRY(number(kPmiIdVariable, 0));
    if (launcher.rank) return launcher;
    return half_set(kPmiIdVariable, launcher.name,
                    fmt::format("{} and {}", kPmiPortVariable, kPmiIdVariable));
  }
  launcher.rank = GDX_TRY(number(kPmiRankVariable, 0));
  launcher.size = GDX_TRY(number(kPmiSizeVariable, 1));
  const char* const missing = !launcher.rank   ? kPmiRankVariable
                              : !launcher.size ? kPmiSizeVariable
                              : !by_descriptor ? kPmiDescriptorVariable
                                               : nullptr;
  if (missing != nullptr)
    return half_set(missing, launcher.name,
                    fmt::format("{}, {} and {}", kPmiRankVariable, kPmiSizeVariable, kPmiDescriptorVariable));
  const bool by_slurm = std::string_view(by) == "srun";
  const auto here = GDX_TRY(number(by_slurm ? kStepNodesVariable : "MPI_LOCALNRANKS", 1));
  launcher.one_host = by_slurm ? here == 1u : here == launcher.size;
  GDX_TRY(check_rank(launcher));
  return launcher;
}

Result<Launcher> find_row() {
  for (const Row& row : kRows) {
    const bool step = std::string_view(row.size) == kStepSizeVariable;
    if (!is_set(row.size) && (step || !is_set(row.rank))) continue;
    const std::string_view name = row.name;
    auto launcher = GDX_TRY(read_row(row, ranks_command(name.substr(0, name.find(' ')))));
    if (step) launcher.one_host = GDX_TRY(number(kStepNodesVariable, 1)) == 1u;
    return launcher;
  }
  return Launcher{};
}

}  // namespace

std::string place_text(std::uint32_t rank, std::optional<std::uint32_t> size) {
  return size ? fmt::format("rank {} of {}", rank, *size) : fmt::format("rank {}", rank);
}

Result<Launcher> find_launcher() {
  const auto torchrun = GDX_TRY(find_torchrun());
  if (torchrun.starts_jobs) return torchrun;
  const auto pmix = GDX_TRY(find_pmix());
  const auto pmi = GDX_TRY(find_pmi());
  if (pmix.way != Way::kNone && pmi.way != Way::kNone) {
    const bool sizes_differ = pmix.size && pmi.size && pmix.size != pmi.size;
    if (pmix.rank != pmi.rank || sizes_differ)
      return fail(
          Status::kInvalidArgument,
          fmt::format(
              "{} says {} and {} says {}: one has started the other; unset the variables of the outer",
              pmix.name, place_text(*pmix.rank, pmix.size), pmi.name, place_text(*pmi.rank, pmi.size)));
  }
  if (pmix.way != Way::kNone) return pmix;
  if (pmi.way != Way::kNone) return pmi;
  if (torchrun.way != Way::kNone) return torchrun;
  return find_row();
}

}  // namespace gdx::launch
