// GDX_EXPORT_KERNEL, and what it makes of a kernel. On a GPU it is nothing, because kernels there are no
// functions of a shared object.
#pragma once

#if defined(__CUDACC__)
#define GDX_EXPORT_KERNEL(name, ...) static_assert(true)
#else

#include <cstddef>
#include <type_traits>
#include <utility>

#include "device/exec/exec.h"
#include "proto/gpu/exported_kernel.h"

namespace gdx::exec {

template <typename T>
constexpr KernelArgument kernel_argument() {
  using Value = std::remove_pointer_t<T>;
  static_assert(std::is_arithmetic_v<Value> || std::is_enum_v<Value>,
                "GDX_EXPORT_KERNEL takes numbers, enumerations, and pointers to those");
  static_assert(sizeof(Value) <= 8, "GDX_EXPORT_KERNEL takes numbers of up to 8 bytes");
  KernelValue value = std::is_signed_v<Value> ? KernelValue::kSigned : KernelValue::kUnsigned;
  if constexpr (std::is_enum_v<Value>) {
    value = std::is_signed_v<std::underlying_type_t<Value> > ? KernelValue::kSigned : KernelValue::kUnsigned;
  }
  if (std::is_floating_point_v<Value>) value = KernelValue::kFloat;
  if (std::is_same_v<std::remove_cv_t<Value>, bool>) value = KernelValue::kBool;
  return {value, sizeof(Value), std::is_pointer_v<T>, std::is_pointer_v<T> && std::is_const_v<Value>};
}

template <typename... Types>
struct KernelOf {
  using Function = void (*)(TeamHandle, Types...);
  // One more than there are, because an array has an element.
  static constexpr KernelArgument kArguments[] = {kernel_argument<Types>()..., KernelArgument{}};

  template <Function Kernel, std::size_t... I>
  static Status launch_with(const TeamHandle& team, const KernelLaunch& launch,
                            [[maybe_unused]] const void* const* values,
                            std::index_sequence<I...> /*unused*/) {
    LaunchConfig config;
    config.grid = {launch.blocks};
    config.block = {launch.threads};
    config.shared_bytes = launch.shared_bytes;
    config.progress = launch.progress;
    return exec::launch(config, Kernel, team, *static_cast<const Types*>(values[I])...);
  }

  template <Function Kernel>
  static Status launch(const TeamHandle& team, const KernelLaunch& launch, const void* const* values) {
    return launch_with<Kernel>(team, launch, values, std::index_sequence_for<Types...>());
  }

  template <Function Kernel>
  static constexpr ExportedKernel exported() {
    return {kExportedKernelVersion, kTeamLayoutVersion, sizeof...(Types), kArguments, launch<Kernel>};
  }
};

}  // namespace gdx::exec

// Exports the kernel `name(TeamHandle, types...)` of a shared object by its name. Stands behind the kernel,
// in no namespace. The types are numbers, enumerations and pointers to those. Nothing under nvcc.
#define GDX_EXPORT_KERNEL(name, ...)                                                   \
  extern "C" {                                                                         \
  [[gnu::visibility("default")]] extern const ::gdx::ExportedKernel gdx_kernel_##name; \
  const ::gdx::ExportedKernel gdx_kernel_##name =                                      \
      ::gdx::exec::KernelOf<__VA_ARGS__>::template exported<name>();                   \
  }                                                                                    \
  static_assert(true)

#endif
