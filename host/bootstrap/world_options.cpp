#include <fmt/format.h>

#include <cstdlib>
#include <optional>

#include "base/environment.h"
#include "host/bootstrap/world.h"

namespace gdx {
namespace {

constexpr std::uint64_t kNsPerSecond = 1'000'000'000;
constexpr std::uint64_t kMaxTimeoutSeconds = 24 * 3600;

}  // namespace

Result<WorldOptions> WorldOptions::from_environment() {
  WorldOptions options;
  const auto timeout_s = GDX_TRY(number_from_environment(kBootstrapTimeoutVariable, 1, kMaxTimeoutSeconds));
  if (timeout_s) options.timeout_ns = *timeout_s * kNsPerSecond;
  const auto size = GDX_TRY(number_from_environment(kWorldSizeVariable, 1, bootstrap::kMaxRanks));
  const auto rank = GDX_TRY(number_from_environment(kRankVariable, 0, bootstrap::kMaxRanks - 1));
  const char* root = std::getenv(kRootVariable);
  if (root != nullptr) options.root = root;
  if (!size && !rank && root == nullptr) return options;

  const char* missing = !size ? kWorldSizeVariable : !rank ? kRankVariable : nullptr;
  if (missing == nullptr && *size > 1 && root == nullptr) missing = kRootVariable;
  if (missing != nullptr) {
    return fail(Status::kInvalidArgument, fmt::format("{} is not set: {}, {} and {} go together", missing,
                                                      kRankVariable, kWorldSizeVariable, kRootVariable));
  }
  options.size = static_cast<std::uint32_t>(*size);
  options.rank = static_cast<std::uint32_t>(*rank);
  return options;
}

}  // namespace gdx
