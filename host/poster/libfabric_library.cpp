#include "host/poster/libfabric_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>

namespace gdx::libfabric {
namespace {

constexpr const char* kName = "libfabric.so.1";
constexpr const char* kCacheVariable = "FI_MR_CACHE_MONITOR";  // read at libfabric's first call

template <typename Function>
bool find(void* handle, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(handle, name));
  return function != nullptr;
}

// Does without libfabric's cache of registrations, in which memory stays writable by peers after its end. Its
// hooks, too, overwrite functions of libc whenever the first domain opens and the last one closes: a thread
// in one of them, such as madvise() below free(), comes back into the middle of an instruction.
Result<Library> load() {
  setenv(kCacheVariable, "disabled", 0);
  void* const handle = dlopen(kName, RTLD_NOW | RTLD_LOCAL);
  Library found{};
  if (handle != nullptr && find(handle, "fi_getinfo", found.getinfo) &&
      find(handle, "fi_freeinfo", found.freeinfo) && find(handle, "fi_dupinfo", found.dupinfo) &&
      find(handle, "fi_fabric", found.fabric) && find(handle, "fi_strerror", found.strerror))
    return found;
  const char* const why = dlerror();
  return fail(Status::kUnsupported, fmt::format("no libfabric here ({}): apt-get install libfabric1",
                                                why == nullptr ? kName : why));
}

const Result<Library>& loaded() {
  static const Result<Library> once = load();
  return once;
}

}  // namespace

Result<const Library*> load_library() {
  if (!loaded()) return tl::unexpected(loaded().error());
  return &*loaded();
}

const Library& library() { return *loaded(); }

}  // namespace gdx::libfabric
