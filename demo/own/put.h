// The two kernels, as the host's file sees them.
#pragma once

#include <cstdint>

#include "proto/gpu/memory.h"
#include "proto/gpu/queue.h"
#include "proto/status.h"

inline constexpr char kMessage[] = "put by a kernel";
inline constexpr std::uint64_t kSignalAt = 1024;  // in the memory that both ranks register

// False on the CPU layer.
[[nodiscard]] bool kernels_run_on_gpu();

// Run a kernel to its end. Its own status goes to `*result`, which it can write. `progress`: gdx::progress.
[[nodiscard]] gdx::Status run_send(const gdx::EndpointHandle& handle, gdx::LocalMemory from,
                                   gdx::RemoteMemory to, gdx::Status* result, int (*progress)());
[[nodiscard]] gdx::Status run_receive(const gdx::EndpointHandle& handle, const std::uint64_t* signal,
                                      gdx::Status* result, int (*progress)());
