// The kernel of hello_put, as the host's file sees it.
#pragma once

#include <cstdint>
#include <optional>

#include "proto/gpu/team.h"
#include "proto/status.h"

inline constexpr std::uint32_t kTextBytes = 64;

// For TeamOptions: the GPU if nvcc compiled the kernels, none on the CPU layer.
[[nodiscard]] std::optional<int> gpu_of_kernels();

// Runs the kernel to its end. Its own status goes to `*status`.
[[nodiscard]] gdx::Status run_greet(const gdx::TeamHandle& team, char* inbox, const char* outbox,
                                    std::uint64_t* arrived, gdx::Status* status);
