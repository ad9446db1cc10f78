#include "host/plugins/nccl/calls.h"

namespace gdx::nccl {

Outcome init(void** context, Logger logger) {
  return guarded([&] {
    set_logger(logger);
    const auto found = devices();
    if (!found) return told(found.error());
    for (const Device& device : **found)
      info(fmt::format("device {} by {}{}{}, {}; host memory", device.name, device.traits.provider,
                       device.door.port.address.empty() ? "" : " at ", device.door.port.address,
                       way_of(device.traits)));
    *context = begin_context();
    return Outcome::kSuccess;
  });
}

Outcome count_devices(int* count) {
  return guarded([&] {
    const auto found = devices();
    if (!found) return told(found.error());
    *count = static_cast<int>((*found)->size());
    return Outcome::kSuccess;
  });
}

Outcome finalize(void* context) {
  return guarded([&] {
    end_context(context);
    return Outcome::kSuccess;
  });
}

}  // namespace gdx::nccl
