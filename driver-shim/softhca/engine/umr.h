// A decoded UMR WQE: its changes to its key.
#pragma once

#include <cstdint>

namespace gdx::softhca {

struct UmrRequest {
  // Conditions that must hold before any change.
  bool check_free = false;
  bool check_qpn = false;
  std::uint64_t mask = 0;  // mlx5::kMkeyMask*: the following fields to apply
  bool free = false;
  std::uint8_t tag = 0;
  std::uint32_t qpn = 0;
  std::uint32_t access = 0;  // enum Access
  std::uint64_t start_address = 0;
  std::uint64_t length_bytes = 0;
  std::uint32_t translation_entries = 0;  // 16 B each; 0: the key keeps its translation
};

}  // namespace gdx::softhca
