// The kernel that gpu_kernels_test.py launches.
#include "device/team.h"

extern "C" __global__ void send_right(const gdx::TeamHandle* team, double* to, const double* x,
                                      std::uint64_t n, std::uint64_t* arrived, gdx::Status* result) {
  gdx::Status status =
      gdx_put_signal(*team, to, x, 8 * n, arrived, 1, gdx::SignalOp::kAdd, (team->rank + 1) % team->size);
  if (status == gdx::Status::kOk) status = gdx_wait(*team, arrived, gdx::Compare::kEqual, 1);
  *result = status;
}
