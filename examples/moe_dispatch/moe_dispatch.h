// The kernel of moe_dispatch, as the host's file sees it.
#pragma once

#include <cstdint>

#include "proto/gpu/team.h"
#include "proto/status.h"

inline constexpr std::uint32_t kTokens = 16;                 // of each rank
inline constexpr std::uint32_t kHidden = 96;                 // floats of a token
inline constexpr std::uint32_t kChoices = 2;                 // experts of a token
inline constexpr std::uint32_t kExperts = 3;                 // of each rank; rank r has those from 3 r
inline constexpr std::uint32_t kSlots = kTokens * kChoices;  // most that one rank sends to another

// Memory of the symmetric heap.
struct Moe {
  float* x;                // tokens
  std::uint32_t* experts;  // by token and choice
  float* out;              // by token: sum of weight * expert(x)
  float* back;             // answers of experts, by token and choice
  // By the rank that sends, so that nobody else takes its slots.
  float* inbox;             // tokens, kSlots each
  std::uint64_t* labels;    // expert << 32 | token * kChoices + choice
  std::uint64_t* sent;      // tokens of this round, above round * (kSlots + 1)
  std::uint64_t* answered;  // rounds
  std::uint32_t* ranks;     // 0, 1, ...: who sends answered[i]
  gdx::Status* status;      // by block
};

// An expert's answer for one number of a token, and the weight of a choice in the sum.
constexpr float apply_expert(std::uint32_t expert, float x) { return x * static_cast<float>(expert + 1) + 3; }
constexpr float weight(std::uint32_t choice) { return choice == 0 ? 0.75f : 0.25f; }

// Runs all tokens through their experts. `round` counts from 1.
[[nodiscard]] gdx::Status run_moe(const gdx::TeamHandle& team, const Moe& moe, std::uint64_t round);
