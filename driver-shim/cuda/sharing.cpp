#include "driver-shim/cuda/sharing.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "driver-shim/cuda/driver.h"

namespace gdx::cuda {

Result<SharingFunctions> load_sharing(const char* library) {
  void* const handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return fail(Status::kNoDevice, fmt::format("no CUDA driver here: {}", dlerror()));
  SharingFunctions found;
#define GDX_CUDA_RESOLVE(member, symbol)                                                                   \
  found.member = reinterpret_cast<decltype(found.member)>(dlsym(handle, #symbol));                         \
  if (found.member == nullptr) {                                                                           \
    return fail(                                                                                           \
        Status::kUnsupported,                                                                              \
        fmt::format("{} has no {}: install a newer NVIDIA driver to share GPU memory", library, #symbol)); \
  }
  GDX_CUDA_SHARING_FUNCTIONS(GDX_CUDA_RESOLVE)
#undef GDX_CUDA_RESOLVE
  return found;
}

Result<const SharingFunctions*> sharing() {
  static const Result<SharingFunctions> loaded = load_sharing(kDriverLibrary);
  if (!loaded) return tl::unexpected(loaded.error());
  return &*loaded;
}

}  // namespace gdx::cuda
