// The kernel of hello_put, as the host's file sees it.
#pragma once

#include <cstdint>

#include "proto/gpu/team.h"
#include "proto/status.h"

inline constexpr std::uint32_t kTextBytes = 64;

// Runs the kernel to its end. Its own status goes to `*status`.
[[nodiscard]] gdx::Status run_greet(const gdx::TeamHandle& team, char* inbox, const char* outbox,
                                    std::uint64_t* arrived, gdx::Status* status);
