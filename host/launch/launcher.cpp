#include "host/launch/launcher.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string_view>
#include <system_error>

#include "base/environment.h"

namespace gdx::launch {
namespace {

constexpr char kTorchRunVariable[] = "TORCHELASTIC_RUN_ID";
constexpr char kTorchAddressVariable[] = "MASTER_ADDR";
constexpr char kOwnRoot[] = "set GDX_ROOT=HOST:PORT, where rank 0 is to listen";

// Variables of a launcher. `local_size` may list hosts, as "2(x3),1".
struct Row {
  const char* name;
  const char* command;  // line that gives each rank a software HCA
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
  const char* remedy;  // for ranks with no other way to meet
};

constexpr Row kTorchrun = {
    "torchrun",
    "`gdx run -- torchrun ...`",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_PORT is torchrun's own: set GDX_ROOT=HOST:PORT, the same for all ranks, with a "
    "free port of rank 0's host"};
// A step's variables, because a batch script has those of its allocation, too, and is one process.
constexpr Row kSrun = {
    "srun",
    "`srun ... gdx run -- PROGRAM`",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_LOCALID",
    "SLURM_STEP_TASKS_PER_NODE",
    "start it by srun --mpi=pmi2 or --mpi=pmix, or set GDX_ROOT=HOST:PORT, where rank 0 is to "
    "listen"};
constexpr Row kOpenMpi = {"mpirun of Open MPI",
                          "`mpirun ... gdx run -- PROGRAM`",
                          "OMPI_COMM_WORLD_RANK",
                          "OMPI_COMM_WORLD_SIZE",
                          "OMPI_COMM_WORLD_LOCAL_RANK",
                          "OMPI_COMM_WORLD_LOCAL_SIZE",
                          kOwnRoot};
constexpr Row kMvapich = {"mpirun of MVAPICH2",
                          "`mpirun ... gdx run -- PROGRAM`",
                          "MV2_COMM_WORLD_RANK",
                          "MV2_COMM_WORLD_SIZE",
                          "MV2_COMM_WORLD_LOCAL_RANK",
                          "MV2_COMM_WORLD_LOCAL_SIZE",
                          kOwnRoot};
constexpr Row kFlux = {"flux run",
                       "`flux run ... gdx run -- PROGRAM`",
                       "FLUX_TASK_RANK",
                       "FLUX_JOB_SIZE",
                       "FLUX_TASK_LOCAL_ID",
                       "FLUX_TASKS_PER_NODE",
                       kOwnRoot};
constexpr Row kHydra = {"mpiexec",
                        "`mpiexec ... gdx run -- PROGRAM`",
                        kPmiRankVariable,
                        kPmiSizeVariable,
                        "MPI_LOCALRANKID",
                        "MPI_LOCALNRANKS",
                        nullptr};

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

// Returns the largest of the counts "2(x3),1"; nullopt without one.
std::optional<std::uint32_t> largest_count(const char* text) {
  std::optional<std::uint32_t> largest;
  for (const char* at = text; at != nullptr; at = std::strchr(at, ',')) {
    if (*at == ',') ++at;
    std::uint32_t count = 0;
    if (std::from_chars(at, at + std::strlen(at), count).ec != std::errc{}) return std::nullopt;
    largest = std::max(largest.value_or(0), count);
  }
  return largest;
}

// Completes a launcher whose rank, and maybe size, are known.
Result<Launcher> with_local_place(Launcher launcher, const Row& row) {
  launcher.command = row.command;
  launcher.local_rank = GDX_TRY(number(row.local_rank, 0));
  launcher.local_size = largest_count(std::getenv(row.local_size));
  if (!launcher.size || *launcher.rank < *launcher.size) return launcher;
  return fail(Status::kInvalidArgument,
              fmt::format("{} says {}: start every rank by it, with its own variables", launcher.name,
                          place_text(*launcher.rank, launcher.size)));
}

Result<Launcher> read_row(const Row& row) {
  Launcher launcher{.way = Way::kVariables, .name = row.name, .remedy = row.remedy};
  launcher.rank = GDX_TRY(number(row.rank, 0));
  launcher.size = GDX_TRY(number(row.size, 1));
  if (!launcher.rank || !launcher.size)
    return half_set(launcher.rank ? row.size : row.rank, row.name,
                    fmt::format("{} and {}", row.rank, row.size));
  return with_local_place(launcher, row);
}

// Programs set MASTER_ADDR, RANK and WORLD_SIZE by hand, too.
Result<Launcher> find_torchrun() {
  const bool by_hand = is_set(kTorchAddressVariable) && (is_set(kTorchrun.rank) || is_set(kTorchrun.size));
  if (!is_set(kTorchRunVariable) && !by_hand) return Launcher{};
  auto launcher = GDX_TRY(read_row(kTorchrun));
  launcher.starts_jobs = is_set(kTorchRunVariable);
  return launcher;
}

// Returns srun's row, unless another launcher lies between.
const Row& starter(const Row& usual) {
  const bool by_srun = is_set(kSrun.size) && !is_set(kOpenMpi.size) && !is_set(kHydra.local_size);
  return by_srun ? kSrun : usual;
}

std::string command_word(const Row& row) {
  const std::string_view name = row.name;
  return std::string(name.substr(0, name.find(' ')));
}

Result<Launcher> find_pmix() {
  const bool has_space = is_set(kPmixNamespaceVariable);
  const bool has_rank = is_set(kPmixRankVariable);
  if (!has_space && !has_rank) return Launcher{};
  const Row& by = starter(kOpenMpi);
  Launcher launcher{.way = Way::kPmix, .name = fmt::format("PMIx of {}", command_word(by))};
  if (!has_space || !has_rank)
    return half_set(has_space ? kPmixRankVariable : kPmixNamespaceVariable, launcher.name,
                    fmt::format("{} and {}", kPmixNamespaceVariable, kPmixRankVariable));
  launcher.rank = GDX_TRY(number(kPmixRankVariable, 0));
  // Reads the size to find contradictions before anything is opened. Later the PMIx server's answer is used.
  launcher.size = GDX_TRY(number(by.size, 1));
  return with_local_place(launcher, by);
}

Result<Launcher> find_pmi() {
  const bool by_port = is_set(kPmiPortVariable);
  const bool by_descriptor = is_set(kPmiDescriptorVariable);
  const bool has_place = is_set(kPmiRankVariable) || is_set(kPmiSizeVariable);
  if (!by_port && !by_descriptor && !has_place) return Launcher{};
  const Row& by = starter(kHydra);
  Launcher launcher{.way = Way::kPmi, .name = fmt::format("PMI of {}", by.name)};
  if (by_port && !by_descriptor) {
    launcher.rank = GDX_TRY(number(kPmiIdVariable, 0));
    if (launcher.rank) return with_local_place(launcher, by);
    return half_set(kPmiIdVariable, launcher.name,
                    fmt::format("{} and {}", kPmiPortVariable, kPmiIdVariable));
  }
  launcher.rank = GDX_TRY(number(kPmiRankVariable, 0));
  launcher.size = GDX_TRY(number(kPmiSizeVariable, 1));
  const char* const missing = !launcher.rank   ? kPmiRankVariable
                              : !launcher.size ? kPmiSizeVariable
                              : !by_descriptor ? kPmiDescriptorVariable
                                               : nullptr;
  if (missing == nullptr) return with_local_place(launcher, by);
  return half_set(missing, launcher.name,
                  fmt::format("{}, {} and {}", kPmiRankVariable, kPmiSizeVariable, kPmiDescriptorVariable));
}

Result<Launcher> find_row() {
  if (is_set(kSrun.size)) return read_row(kSrun);
  for (const Row* const row : {&kOpenMpi, &kMvapich, &kFlux}) {
    if (is_set(row->rank) || is_set(row->size)) return read_row(*row);
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
