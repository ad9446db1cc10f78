// Memory in which a put stages payload: of the NIC or of the host. One put works on either, because both are
// slots under credits. Of an exclusive endpoint they differ in the place of the credits, and functions follow
// Credits. A shared endpoint has credits() and books() of either in its QueueState (impl/shared_credits.h).
#pragma once

#include <cstdint>

#include "device/impl/wait.h"
#include "proto/gpu/queue.h"
#include "proto/gpu/staging.h"

namespace gdx::device::impl {

// NIC memory. Its credits are in the registers of all threads, because small slots are taken often.
struct NicPool {
  GDX_DEVICE static const StagingHandle& of(const EndpointHandle& handle) { return handle.staging; }
  GDX_DEVICE static SharedCredits& credits(QueueState& state) { return state.shared.staging; }
  GDX_DEVICE static StagingState& books(QueueState& state) { return state.staging; }
  template <typename Ep>
  GDX_DEVICE static bool available(Ep& endpoint) {
    return endpoint.credits().available();
  }
  template <typename Ep>
  GDX_DEVICE static void stall(Ep& endpoint, std::uint64_t slots_wanted) {
    impl::stall(endpoint.handle().state, endpoint.credits().filled(), slots_wanted);
  }
  template <typename Ep>
  GDX_DEVICE static std::uint32_t ready(Ep& endpoint) {
    return endpoint.credits().ready();
  }
  template <typename Ep>
  GDX_DEVICE static std::uint32_t next_slot(Ep& endpoint, std::uint32_t behind) {
    return endpoint.credits().next_slot(behind);
  }
  template <typename Ep>
  GDX_DEVICE static void consume(Ep& endpoint, std::uint32_t count) {
    endpoint.credits().consume(count);
  }
  template <typename Ep>
  GDX_DEVICE static void bind(Ep& endpoint, std::uint32_t wqe_index) {
    endpoint.credits().bind(wqe_index);
  }
  template <typename Ep>
  GDX_DEVICE static std::uint32_t held(Ep& endpoint) {
    return endpoint.credits().held();
  }
};

// Host memory. Its credits stay in the endpoint's memory, so puts that do not bounce keep their registers.
// Only the leader changes them, while the scope waits for it.
struct HostPool {
  GDX_DEVICE static const StagingHandle& of(const EndpointHandle& handle) { return handle.bounce; }
  GDX_DEVICE static SharedCredits& credits(QueueState& state) { return state.shared.bounce; }
  GDX_DEVICE static StagingState& books(QueueState& state) { return state.bounce; }
  template <typename Ep>
  GDX_DEVICE static bool available(Ep& endpoint) {
    const StagingState& credits = endpoint.handle().state->bounce;
    if (credits.ready == credits.filled) endpoint.update_bounce(BounceStep::kPoll);
    return credits.ready != credits.filled;
  }
  template <typename Ep>
  GDX_DEVICE static void stall(Ep& endpoint, std::uint64_t slots_wanted) {
    endpoint.update_bounce(BounceStep::kStall, slots_wanted);
  }
  template <typename Ep>
  GDX_DEVICE static std::uint32_t ready(Ep& endpoint) {
    const StagingState& credits = endpoint.handle().state->bounce;
    return credits.ready - credits.filled;
  }
  template <typename Ep>
  GDX_DEVICE static std::uint32_t next_slot(Ep& endpoint, std::uint32_t behind) {
    return next(endpoint.handle(), behind).slot;
  }
  template <typename Ep>
  GDX_DEVICE static void consume(Ep& /*endpoint*/, std::uint32_t /*count*/) {}
  template <typename Ep>
  GDX_DEVICE static void bind(Ep& endpoint, std::uint32_t wqe_index) {
    next(endpoint.handle(), 0).wqe_index = wqe_index;
    ++endpoint.handle().state->bounce.filled;
  }
  template <typename Ep>
  GDX_DEVICE static std::uint32_t held(Ep& endpoint) {
    const StagingState& credits = endpoint.handle().state->bounce;
    return credits.ready - credits.returned;
  }

 private:
  GDX_DEVICE static HeldSlot& next(const EndpointHandle& handle, std::uint32_t behind) {
    return handle.bounce.held[(handle.state->bounce.filled + behind) & (handle.bounce.slot_count - 1)];
  }
};

}  // namespace gdx::device::impl
