// The software HCA through the distribution's libibverbs and libmlx5, linked behind gdx_softhca.
#pragma once

#include <gtest/gtest.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

#include <chrono>
#include <memory>

namespace gdx::abi_tests {

// Bound on waits for what must come. It only ends a hang.
inline constexpr unsigned kHangSeconds = 100;
inline constexpr std::chrono::seconds kHang{kHangSeconds};

struct CloseDevice {
  void operator()(ibv_context* context) const { ibv_close_device(context); }
};
using Context = std::unique_ptr<ibv_context, CloseDevice>;

inline Context open_device() {
  int count = 0;
  ibv_device** const devices = ibv_get_device_list(&count);
  if (devices == nullptr || count == 0) return nullptr;
  mlx5dv_context_attr attributes{};
  attributes.flags = MLX5DV_CONTEXT_FLAGS_DEVX;
  Context context(mlx5dv_open_device(devices[0], &attributes));
  ibv_free_device_list(devices);
  return context;
}

}  // namespace gdx::abi_tests
