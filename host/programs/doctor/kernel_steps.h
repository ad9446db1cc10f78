// Steps of the bring-up that run kernels: on a GPU, in a program whose kernels nvcc compiled; else on the CPU
// layer.
#pragma once

#include <span>
#include <string_view>

#include "host/gpu/gpu.h"
#include "host/hca/hca.h"
#include "host/programs/doctor/step_result.h"

namespace gdx::doctor {

inline constexpr char kKernelProgram[] = "gdx_doctor_cuda";

struct KernelBench {
  const Hca& hca;
  const Gpu* gpu;  // GPU that runs the kernels, and whose memory and pages are used; null: none
  const StepSizes& sizes;
  void (*alive)();  // called now and then
  // Returns the address at which kernels read GPU memory; another than the HCA's in tests alone.
  std::byte* (*seen_by_kernels)(std::byte* on_gpu) = [](std::byte* on_gpu) { return on_gpu; };
};

// A step by its name in bring_up.h. OK where its kernels did all as they should.
struct KernelStep {
  std::string_view name;
  StepResult (*run)(const KernelBench& bench);
};
[[nodiscard]] std::span<const KernelStep> kernel_steps();

// Returns the result of a step of the CPU layer: UNKNOWN in place of OK, because that its kernels do as they
// should says nothing of a GPU.
[[nodiscard]] StepResult on_cpu_layer(StepResult result);
// Returns the result of a step: by which GPU's kernels it is, or on_cpu_layer().
[[nodiscard]] StepResult run_kernel_step(const KernelStep& step, const KernelBench& bench);

// Runs gdx_doctor_cuda. `seen_by_kernels`: null, or as in KernelBench.
[[nodiscard]] int run_kernel_program(int argc, char** argv, std::byte* (*seen_by_kernels)(std::byte*));

}  // namespace gdx::doctor
