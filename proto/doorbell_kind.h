// Ways to announce work requests to an HCA, under the names of command lines and variables.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace gdx {

// Doorbells of a batch of work requests: one of 8 B for all, or each request in a doorbell of its own. The
// latter carries requests of one block; a batch with a longer one is rung by the former.
enum class DoorbellKind : std::uint8_t { kPlain, kBlueFlame };

constexpr std::string_view name(DoorbellKind kind) {
  return kind == DoorbellKind::kPlain ? "plain" : "blueflame";
}

constexpr std::optional<DoorbellKind> doorbell_kind_of(std::string_view wanted) {
  for (const DoorbellKind kind : {DoorbellKind::kPlain, DoorbellKind::kBlueFlame}) {
    if (name(kind) == wanted) return kind;
  }
  return std::nullopt;
}

}  // namespace gdx
