#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/environment.h"
#include "base/log.h"
#include "base/node.h"
#include "host/bootstrap/world.h"
#include "host/launch/launcher.h"
#include "host/launch/meeting.h"

namespace gdx {
namespace {

constexpr std::uint64_t kNsPerSecond = 1'000'000'000;
constexpr std::uint64_t kMaxTimeoutSeconds = 24 * 3600;
constexpr std::size_t kToldBytes = 1024;  // room of what rank 0 tells by a program's allgather

using launch::Launcher;
using launch::place_text;
using launch::Way;

// Values of gdx's own variables. Without a rank among them, the launcher's rank and size are used.
struct Given {
  std::optional<std::uint32_t> rank;
  std::uint32_t size = 1;
  std::string root;
};

Result<Given> read_given() {
  const auto size = GDX_TRY(number_from_environment(kWorldSizeVariable, 1, bootstrap::kMaxRanks));
  const auto rank = GDX_TRY(number_from_environment(kRankVariable, 0, bootstrap::kMaxRanks - 1));
  const char* const root = std::getenv(kRootVariable);
  Given given{.rank = {}, .size = 1, .root = root == nullptr ? "" : root};
  if (!size && !rank) return given;
  const char* missing = !size ? kWorldSizeVariable : !rank ? kRankVariable : nullptr;
  if (missing == nullptr && *size > 1 && root == nullptr) missing = kRootVariable;
  if (missing != nullptr) {
    return fail(Status::kInvalidArgument, fmt::format("{} is not set: {}, {} and {} go together", missing,
                                                      kRankVariable, kWorldSizeVariable, kRootVariable));
  }
  given.rank = static_cast<std::uint32_t>(*rank);
  given.size = static_cast<std::uint32_t>(*size);
  return given;
}

// Compares the variables of gdx with a launcher's. One that starts single ranks, or whose processes may each
// start a job, contradicts nothing.
Result<void> compare(const Given& given, const Launcher& launcher) {
  const bool is_srun = launcher.way == Way::kVariables && launcher.name == "srun";
  if (launcher.way == Way::kNone || is_srun || launcher.size == 1u) return {};
  if (launcher.rank == given.rank && launcher.size.value_or(given.size) == given.size) return {};
  return fail(
      Status::kInvalidArgument,
      fmt::format("{} and {} say {}, {} says {}: start ranks by one of them, under a launcher by `gdx run` "
                  "without --ranks",
                  kRankVariable, kWorldSizeVariable, place_text(*given.rank, given.size), launcher.name,
                  place_text(launcher.rank.value_or(0), launcher.size)));
}

// `tells`: the program can tell the ranks of a launcher that gives rank and size alone where they meet.
Result<Launcher> find_launcher(const Given& given, bool tells) {
  auto launcher = launch::find_launcher();
  if (given.rank) {
    // Variables of gdx that are whole count, so that they help where a launcher does not.
    if (launcher) GDX_TRY(compare(given, *launcher));
    return Launcher{};
  }
  GDX_TRY(launcher);
  if (launcher->way == Way::kNone && !given.root.empty())
    return fail(Status::kInvalidArgument,
                fmt::format("{} is not set: {}, {} and {} go together", kWorldSizeVariable, kRankVariable,
                            kWorldSizeVariable, kRootVariable));
  const bool alone = launcher->size.value_or(0) == 1u;
  if (launcher->way == Way::kVariables && given.root.empty() && !alone && !tells) {
    return fail(Status::kUnsupported,
                fmt::format("{} started this as {}: {}", launcher->name,
                            place_text(*launcher->rank, launcher->size), launcher->remedy));
  }
  return launcher;
}

std::string way_text(const Given& given, const Launcher& launcher) {
  if (given.rank) return fmt::format("{} by GDX_ variables", place_text(*given.rank, given.size));
  if (launcher.way == Way::kNone) return "a world of one rank, because no launcher is seen";
  return fmt::format("{} by {}{}", place_text(launcher.rank.value_or(0), launcher.size), launcher.name,
                     given.root.empty() ? "" : fmt::format(", meeting at {}", kRootVariable));
}

Result<std::uint64_t> read_timeout_ns() {
  const auto timeout_s = GDX_TRY(number_from_environment(kBootstrapTimeoutVariable, 1, kMaxTimeoutSeconds));
  return timeout_s ? *timeout_s * kNsPerSecond : WorldOptions{}.timeout_ns;
}

// Connects to a launcher that carries what rank 0 tells.
Result<void> meet(WorldOptions& options, const Launcher& launcher) {
  const auto meeting = GDX_TRY(launch::meet_by(launcher, monotonic_ns() + options.timeout_ns));
  options.rank = meeting->rank();
  options.size = meeting->size();
  options.one_host = meeting->one_host();
  if (!options.root.empty()) return {};
  options.secret_readers = fmt::format(
      "{} has carried it: its servers can read it, and whoever reads what they send between hosts",
      launcher.name);
  options.tell_root = [meeting](const std::string& mine, std::uint64_t deadline_ns) {
    return meeting->exchange(mine, deadline_ns);
  };
  return {};
}

}  // namespace

Result<WorldOptions> WorldOptions::from_environment(Tell tell) {
  WorldOptions options;
  options.timeout_ns = GDX_TRY(read_timeout_ns());
  const auto given = GDX_TRY(read_given());
  const auto launcher = GDX_TRY(find_launcher(given, tell != nullptr));
  log::info("bootstrap: {}; looked for, in this order: {}", way_text(given, launcher), launch::kOrder);
  options.root = given.root;
  options.rank = given.rank.value_or(launcher.rank.value_or(0));
  options.size = given.rank ? given.size : launcher.size.value_or(1);
  if (launcher.way == Way::kPmix || launcher.way == Way::kPmi) GDX_TRY(meet(options, launcher));
  if (launcher.way != Way::kVariables || !options.root.empty()) return options;
  options.one_host = launcher.local_size == launcher.size;
  options.secret_readers = "the program has carried it: whoever reads its words can read it";
  options.tell_root = std::move(tell);
  return options;
}

Result<WorldOptions> WorldOptions::by_allgather(std::uint32_t rank, std::uint32_t size, Allgather allgather) {
  WorldOptions options{.rank = rank, .size = size};
  options.timeout_ns = GDX_TRY(read_timeout_ns());
  if (size == 0 || size > bootstrap::kMaxRanks || rank >= size)
    return fail(Status::kInvalidArgument, fmt::format("{} is impossible: use 1 to {} ranks, from rank 0",
                                                      place_text(rank, size), bootstrap::kMaxRanks));
  const auto gather = [size, allgather = std::move(allgather)](const auto& mine) {
    std::vector<std::remove_cvref_t<decltype(mine)>> all(size);
    if (!allgather(&mine, all.data(), sizeof mine)) all.clear();
    return all;
  };
  static constexpr char kFailed[] = "the program's allgather failed: see what it says";
  const peer::NodeIdentity node = node_identity().value_or(peer::NodeIdentity{});
  const auto nodes = gather(node);
  if (nodes.empty()) return fail(Status::kInvalidArgument, kFailed);
  options.one_host = node.boot_id[0] != 0 && std::ranges::count(nodes, node) == std::ssize(nodes);
  options.secret_readers = "the program's allgather has carried it: whoever reads that can read it";
  options.tell_root = [gather](const std::string& mine, std::uint64_t) -> Result<std::string> {
    std::array<char, kToldBytes> told{};
    std::ranges::copy(mine.substr(0, kToldBytes - 1), told.begin());
    const auto all = gather(told);
    if (all.empty()) return fail(Status::kInvalidArgument, kFailed);
    return std::string(all.front().data(), strnlen(all.front().data(), kToldBytes));
  };
  return options;
}

std::string describe_launch(Status* refusal) {
  const auto found = []() -> Result<std::string> {
    GDX_TRY(read_timeout_ns());
    const auto given = GDX_TRY(read_given());
    return way_text(given, GDX_TRY(find_launcher(given, false)));
  }();
  if (refusal != nullptr) *refusal = found ? Status::kOk : found.error().status;
  return fmt::format("{} (order: {})", found ? *found : fmt::format("refused: {}", found.error().message),
                     launch::kOrder);
}

}  // namespace gdx
