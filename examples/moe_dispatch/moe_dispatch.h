// The kernel of moe_dispatch, as the host's file sees it. The shape is DeepEP's.
#pragma once

#include <cstdint>

#include "proto/gpu/team.h"
#include "proto/status.h"

inline constexpr std::uint32_t kHidden = 7168;  // numbers of a token, bfloat16
inline constexpr std::uint32_t kChoices = 8;    // experts of a token
inline constexpr std::uint32_t kExperts = 4;    // of each rank; rank r has those from 4 r

// Memory of the symmetric heap. A choice is numbered token * kChoices + choice of the token, of `choices`.
struct Moe {
  std::uint32_t choices;
  std::uint16_t* x;        // tokens
  std::uint32_t* experts;  // by choice
  float* out;              // by token: average of its experts' answers
  std::uint16_t* back;     // answers, by choice
  std::uint16_t* inbox;    // tokens, by the rank that sends and its choice
  std::uint64_t* labels;   // of these: round << 32 | expert
  std::uint64_t* rounds;   // by the rank that has sent; behind these by the rank that has answered
  gdx::Status* status;     // by block
};

// An expert's answer for one number of a token.
constexpr float apply_expert(std::uint32_t expert, float x) { return x * float(expert % 4 + 1) + 3; }

[[nodiscard]] gdx::Status run_moe(const gdx::TeamHandle& team, const Moe& moe, std::uint64_t round);
