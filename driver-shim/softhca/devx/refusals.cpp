#include "driver-shim/softhca/devx/refusals.h"

#include <functional>
#include <mutex>
#include <set>
#include <string>

#include "base/fork_mutex.h"

namespace gdx::softhca {
namespace {
constexpr std::size_t kMaxNames = 32;  // bound on the log's lines
}

void name_refusal(std::string_view what, log::Level level) {
  static ForkMutex mutex;
  static std::set<std::string, std::less<>> named;
  const std::scoped_lock lock(mutex);
  if (named.size() == kMaxNames || named.contains(what)) return;
  named.emplace(what);
  log::line(level, "the software HCA has no {}; the program was told so", what);
}

}  // namespace gdx::softhca
