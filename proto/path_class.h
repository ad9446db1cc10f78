// Distance between a GPU and a NIC, under the names of nvidia-smi topo.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace gdx {

enum class PathClass : std::uint8_t {
  kPix,   // at most one switch between them
  kPxb,   // several switches, no root complex
  kPhb,   // one root complex
  kNode,  // two root complexes of one NUMA node
  kSys,   // two sockets
};
inline constexpr std::array<PathClass, 5> kPathClasses = {PathClass::kPix, PathClass::kPxb, PathClass::kPhb,
                                                          PathClass::kNode, PathClass::kSys};

constexpr std::string_view name(PathClass path) {
  constexpr std::array<std::string_view, 5> kNames = {"PIX", "PXB", "PHB", "NODE", "SYS"};
  return kNames[static_cast<std::size_t>(path)];
}

constexpr std::optional<PathClass> path_class(std::string_view wanted) {
  for (const PathClass path : kPathClasses) {
    if (name(path) == wanted) return path;
  }
  return std::nullopt;
}

// Returns whether a transfer crosses a root complex, which slows or refuses peer reads.
constexpr bool crosses_root_complex(PathClass path) { return path >= PathClass::kPhb; }

}  // namespace gdx
