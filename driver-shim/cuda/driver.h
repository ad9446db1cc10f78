// The CUDA driver, loaded at run time, so that one binary serves machines with and without a GPU.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "driver-shim/cuda/api.h"

namespace gdx::cuda {

inline constexpr char kDriverLibrary[] = "libcuda.so.1";
// Oldest version that is used, because it is the first with cuDevicePrimaryCtxRelease_v2. It is counted as by
// cuDriverGetVersion: 1000 * major + 10 * minor.
inline constexpr int kMinDriverVersion = 11000;

struct Driver {
  Functions call;
  int version = 0;

  // "CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected)".
  [[nodiscard]] std::string describe(CUresult result) const;
  // Returns an error with the text "WHAT: describe(result)" and the status that fits.
  [[nodiscard]] Error error(CUresult result, std::string_view what) const;
};

// Returns the version as text, such as "12.4".
[[nodiscard]] std::string version_text(int version);

// Loads `library` and initializes it; it stays loaded. Errors, each with what to do: kNoDevice (no such
// library, the toolkit's stub, no GPU), kUnsupported (older than kMinDriverVersion, or a function is
// missing), kSystem. Threads: any.
[[nodiscard]] Result<Driver> load_driver(const std::string& library);

// Returns the process's driver, kDriverLibrary, loaded by the first call. Errors: those of load_driver,
// repeated by every later call. Threads: any.
[[nodiscard]] Result<const Driver*> driver();

// Returns the driver if this process has loaded it already, otherwise null: GPU memory cannot exist here.
// Threads: any.
[[nodiscard]] const Driver* loaded_driver();

}  // namespace gdx::cuda
