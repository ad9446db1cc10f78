// Two endpoints of one HCA, and puts over them.
#pragma once

#include <gtest/gtest.h>

#include <cstring>

#include "device/endpoint.h"
#include "host/gdx.h"
#include "tests/e2e/must.h"

namespace gdx {

// Two endpoints that are connected to each other.
struct Connected {
  explicit Connected(const Hca& hca)
      : from(must(allocate_memory(hca, kBytes))),
        a(must(Endpoint::create(hca, {}, {}))),
        b(must(Endpoint::create(hca, {}, {}))) {
    must(a.connect(b.address()));
    must(b.connect(a.address()));
  }
  // Puts kBytes of `value`. Returns how it ended.
  Status put(RemoteMemory to, std::byte value) {
    std::memset(from.data(), static_cast<int>(value), from.bytes());
    Status ended = Status::kPending;
    const auto body = [&](const EndpointHandle& handle, RemoteMemory target, LocalMemory source) {
      device::Endpoint<Scope::kThread> endpoint(handle);
      ended = gdx_put<Mode::kPull>(endpoint, target, source, kBytes);
      if (ended == Status::kOk) ended = gdx_flush(endpoint);
    };
    EXPECT_EQ(exec::launch({.progress = progress}, body, a.handle(), to, from.local()), Status::kOk);
    return ended;
  }
  static constexpr std::size_t kBytes = 4096;

  Memory from;
  Endpoint a;
  Endpoint b;
};

}  // namespace gdx
