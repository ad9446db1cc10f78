// Links over a real provider, for tests of this process with itself.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>

#include "host/messaging/link.h"
#include "host/poster/libfabric_port.h"

namespace gdx::messaging {

inline constexpr std::uint64_t kHangNs = 60'000'000'000;

inline std::unique_ptr<Link> link_of(End end) {
  auto port = open_libfabric_port({.provider = "tcp", .address = {}, .insecure = false});
  if (!port) std::abort();
  return Link::open(std::move(*port), end).value();
}

}  // namespace gdx::messaging
