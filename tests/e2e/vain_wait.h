// A kernel that waits in vain, until something else ends it.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>

#include "device/endpoint.h"
#include "host/gdx.h"

namespace gdx {

// Waits on a word of `memory` that nobody changes; `waits` is set once the kernel runs. Returns how the wait
// ended.
inline Status wait_in_vain(const Endpoint& endpoint, Memory& memory, std::atomic<bool>& waits) {
  Status ended = Status::kPending;
  const auto body = [&](const EndpointHandle& handle, const std::uint64_t* signal) {
    device::Endpoint<Scope::kThread> open(handle);
    waits.store(true);
    ended = gdx_wait(open, signal, Compare::kEqual, 1);
  };
  EXPECT_EQ(exec::launch({}, body, endpoint.handle(), reinterpret_cast<std::uint64_t*>(memory.data())),
            Status::kOk);
  return ended;
}

}  // namespace gdx
