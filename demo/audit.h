// Text of the demo about the audit of staging memory.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>

namespace gdx::demo {

// `violations`: slots written without a credit, counted by all ranks' HCAs; nullopt if one of them has no
// counter, as hardware.
inline std::string audit_text(const std::optional<std::uint64_t>& violations) {
  return "slots written without a credit: " + (violations ? fmt::format("{}", *violations) : "not audited");
}

}  // namespace gdx::demo
