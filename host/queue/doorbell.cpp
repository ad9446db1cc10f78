#include "host/queue/doorbell.h"

#include <fmt/format.h>
#include <infiniband/mlx5_api.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "proto/mlx5/doorbell.h"

namespace gdx {

Result<void> check_doorbell(const Hca& hca, DoorbellKind kind, const ModeOptions& modes) {
  if (kind == DoorbellKind::kPlain || hca.is_software()) return {};
  return check_blueflame_probe(hca.name(), modes);
}

Result<DoorbellRegister> allocate_doorbell(const Hca& hca, DoorbellKind kind, bool shares_page) {
  const bool blueflame = kind == DoorbellKind::kBlueFlame && !shares_page;
  if (blueflame) {
    UarHandle uar(mlx5dv_devx_alloc_uar(hca.context(), MLX5DV_UAR_ALLOC_TYPE_BF));
    if (uar) return DoorbellRegister{std::move(uar), mlx5::kBlueFlameBufferBytes};
  }
  // A BlueFlame register takes 8 B as well. NVSHMEM falls back to it for plain doorbells, too.
  for (const std::uint32_t type : {kDedicatedDoorbellPage, std::uint32_t{MLX5DV_UAR_ALLOC_TYPE_BF},
                                   std::uint32_t{MLX5DV_UAR_ALLOC_TYPE_NC}}) {
    if (shares_page && type != MLX5DV_UAR_ALLOC_TYPE_NC) continue;
    UarHandle uar(mlx5dv_devx_alloc_uar(hca.context(), type));
    if (uar) return DoorbellRegister{std::move(uar), 0};
  }
  return fail(Status::kSystem,
              fmt::format("HCA {} gives no doorbell page: {}", hca.name(), std::strerror(errno)));
}

}  // namespace gdx
