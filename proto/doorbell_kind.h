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

// Use that an HCA makes of the doorbell record for a doorbell that brings no work request: it reads it, or
// goes by the doorbell's own index. No publication states it.
enum class RecordUse : std::uint8_t { kRead, kUnread };

constexpr std::string_view name(RecordUse use) { return use == RecordUse::kRead ? "read" : "unread"; }

constexpr std::optional<RecordUse> record_use_of(std::string_view wanted) {
  for (const RecordUse use : {RecordUse::kRead, RecordUse::kUnread}) {
    if (name(use) == wanted) return use;
  }
  return std::nullopt;
}

}  // namespace gdx
