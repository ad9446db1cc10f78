// Device code on the CPU layer, whatever runs the requesting kernel.
#include "demo/proxy.h"

#include "device/gdx.h"

namespace gdx::demo {
namespace {

// Waits for a request. kAborted: the kernel has ended.
Status wait_until_asked(const Exchange& x, std::uint64_t sequence) {
  while (exec::load_acquire(&x.proxy->asked) < sequence) {
    if (exec::load_acquire(&x.proxy->over) != 0) return Status::kAborted;
    exec::relax();
  }
  return Status::kOk;
}

Status post_messages(const Exchange& x, const Case& shape) {
  device::Endpoint<> endpoint(x.peer.endpoint);
  Status status = endpoint.status();
  for (std::uint32_t m = 0; m < shape.messages && status == Status::kOk; ++m) {
    const std::uint64_t sequence = shape.first_sequence + m;
    status = wait_until_asked(x, sequence);
    if (status == Status::kOk) {
      status = gdx_put_signal<Mode::kPull>(endpoint, x.remote, x.local, shape.bytes,
                                           x.remote_signals + 8 * kData, sequence);
    }
    if (status == Status::kOk) status = gdx_flush(endpoint);
    if (status == Status::kOk) exec::publish(&x.proxy->sent, sequence);
  }
  return status;
}

}  // namespace

Status post_for_kernel(const Exchange& exchange, const Case& shape, int (*progress)()) {
  Status status = Status::kOk;
  const Status launched =
      exec::run_grid({.progress = progress}, [&] { status = post_messages(exchange, shape); });
  if (status == Status::kOk) status = launched;
  if (status != Status::kOk) exec::publish(&exchange.proxy->failure, static_cast<std::uint64_t>(status));
  return status;
}

}  // namespace gdx::demo
