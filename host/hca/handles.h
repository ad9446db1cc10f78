// Owners of verbs and mlx5dv objects: unique_ptr with the library's own destroy function.
#pragma once

#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

#include <memory>
#include <type_traits>

namespace gdx {

// Warns that an object could not be destroyed, with errno, so that the HCA keeps it.
void warn_of_undestroyed();

template <auto Destroy>
struct CallDestroy {
  template <typename T>
  void operator()(T* object) const {
    if constexpr (std::is_void_v<decltype(Destroy(object))>) {
      Destroy(object);
    } else if (Destroy(object) != 0) {
      warn_of_undestroyed();
    }
  }
};

using ContextHandle = std::unique_ptr<ibv_context, CallDestroy<ibv_close_device>>;
using PdHandle = std::unique_ptr<ibv_pd, CallDestroy<ibv_dealloc_pd>>;
using MrHandle = std::unique_ptr<ibv_mr, CallDestroy<ibv_dereg_mr>>;
using AhHandle = std::unique_ptr<ibv_ah, CallDestroy<ibv_destroy_ah>>;
using UmemHandle = std::unique_ptr<mlx5dv_devx_umem, CallDestroy<mlx5dv_devx_umem_dereg>>;
using EventChannelHandle =
    std::unique_ptr<mlx5dv_devx_event_channel, CallDestroy<mlx5dv_devx_destroy_event_channel>>;
using UarHandle = std::unique_ptr<mlx5dv_devx_uar, CallDestroy<mlx5dv_devx_free_uar>>;
using DevxHandle = std::unique_ptr<mlx5dv_devx_obj, CallDestroy<mlx5dv_devx_obj_destroy>>;

}  // namespace gdx
