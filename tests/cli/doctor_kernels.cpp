// Stands in for gdx_doctor_cuda, with kernels of the CPU layer: they read the fake driver's GPU memory at
// addresses of their own.
#include <dlfcn.h>

#include <cstdint>

#include "host/programs/doctor/kernel_steps.h"

namespace {

std::byte* seen_by_kernels(std::byte* on_gpu) {
  using Seen = void* (*)(std::uintptr_t);
  const auto seen =
      reinterpret_cast<Seen>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "gdx_fake_cuda_seen_by_kernels"));
  return static_cast<std::byte*>(seen(reinterpret_cast<std::uintptr_t>(on_gpu)));
}

}  // namespace

int main(int argc, char** argv) { return gdx::doctor::run_kernel_program(argc, argv, seen_by_kernels); }
