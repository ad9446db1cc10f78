#include "driver-shim/cuda/driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace gdx::cuda {
namespace {

constexpr char kCpuAdvice[] = "or run kernels on the CPU layer";

template <typename Function>
bool find(void* library, const char* symbol, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, symbol));
  return function != nullptr;
}

Result<void> resolve(void* library, const std::string& name, Functions& call) {
#define GDX_CUDA_RESOLVE(member, symbol)                                                                 \
  if (!find(library, #symbol, call.member)) {                                                            \
    return fail(Status::kUnsupported,                                                                    \
                fmt::format("{} has no {}: it is no NVIDIA driver of CUDA {} or later; install one, {}", \
                            name, #symbol, version_text(kMinDriverVersion), kCpuAdvice));                \
  }
#define GDX_CUDA_RESOLVE_OPTIONAL(member, symbol) find(library, #symbol, call.member);
  GDX_CUDA_FUNCTIONS(GDX_CUDA_RESOLVE)
  GDX_CUDA_OPTIONAL_FUNCTIONS(GDX_CUDA_RESOLVE_OPTIONAL)
#undef GDX_CUDA_RESOLVE
#undef GDX_CUDA_RESOLVE_OPTIONAL
  return {};
}

Error initialization_error(const Driver& driver, const std::string& library, CUresult result) {
  const std::string what = driver.describe(result);
  switch (result) {
    case CUDA_ERROR_STUB_LIBRARY:
      return {Status::kNoDevice,
              fmt::format("{} is the CUDA Toolkit's stub, no driver: take its folder out of the "
                          "library path, {}",
                          library, kCpuAdvice)};
    case CUDA_ERROR_NO_DEVICE:
      return {Status::kNoDevice, fmt::format("the NVIDIA driver shows no GPU: {}; check nvidia-smi and "
                                             "CUDA_VISIBLE_DEVICES, {}",
                                             what, kCpuAdvice)};
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
      return {Status::kSystem,
              fmt::format("{} does not belong to the loaded kernel module: {}; reboot, or reload "
                          "the nvidia modules",
                          library, what)};
    default:
      return {Status::kSystem,
              fmt::format("the NVIDIA driver does not start: {}; check nvidia-smi and dmesg, {}", what,
                          kCpuAdvice)};
  }
}

}  // namespace

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

std::string Driver::describe(CUresult result) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (call.get_error_name(result, &name) != CUDA_SUCCESS || name == nullptr ||
      call.get_error_string(result, &text) != CUDA_SUCCESS || text == nullptr) {
    return fmt::format("CUDA error {}", static_cast<int>(result));
  }
  return fmt::format("{} ({})", name, text);
}

Error Driver::error(CUresult result, std::string_view what) const {
  Status status = Status::kSystem;
  if (result == CUDA_ERROR_OUT_OF_MEMORY) status = Status::kNoMemory;
  if (result == CUDA_ERROR_NOT_SUPPORTED) status = Status::kUnsupported;
  if (result == CUDA_ERROR_INVALID_DEVICE) status = Status::kNotFound;
  return {status, fmt::format("{}: {}", what, describe(result))};
}

Result<Driver> load_driver(const std::string& library) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return fail(Status::kNoDevice,
                fmt::format("no CUDA driver here: {}; install the NVIDIA driver, {}", dlerror(), kCpuAdvice));
  }
  Driver driver;
  GDX_TRY(resolve(handle, library, driver.call));
  if (const CUresult result = driver.call.driver_get_version(&driver.version); result != CUDA_SUCCESS) {
    return tl::unexpected(initialization_error(driver, library, result));
  }
  if (driver.version < kMinDriverVersion) {
    return fail(Status::kUnsupported,
                fmt::format("the NVIDIA driver here speaks CUDA {}, gdx needs {}: install a newer one, {}",
                            version_text(driver.version), version_text(kMinDriverVersion), kCpuAdvice));
  }
  if (const CUresult result = driver.call.init(0); result != CUDA_SUCCESS) {
    return tl::unexpected(initialization_error(driver, library, result));
  }
  return driver;
}

Result<const Driver*> driver() {
  static const Result<Driver> loaded = load_driver(kDriverLibrary);
  if (!loaded) return tl::unexpected(loaded.error());
  return &*loaded;
}

const Driver* loaded_driver() {
  void* const handle = dlopen(kDriverLibrary, RTLD_NOW | RTLD_NOLOAD);
  if (handle == nullptr) return nullptr;
  dlclose(handle);  // it was opened only to test for it
  const auto loaded = driver();
  return loaded ? *loaded : nullptr;
}

}  // namespace gdx::cuda
