// What a put may stage its payload in: memory of the NIC, or of the host. One put works on either, because
// both are slots under credits; they differ in where the credits of an open endpoint are. Functions as of
// Credits.
#pragma once

#include <cstdint>

#include "device/endpoint.h"
#include "device/options.h"

namespace gdx::device::impl {

// The NIC's memory. Slots are small, so the credits are in the registers of all threads.
struct NicPool {
  GDX_DEVICE static const StagingHandle& of(const EndpointHandle& handle) { return handle.staging; }
  template <typename Ep>
  GDX_DEVICE static bool available(Ep& endpoint) {
    return endpoint.credits().available();
  }
  template <typename Ep>
  GDX_DEVICE static void stall(Ep& endpoint, std::uint64_t slots_wanted) {
    impl::stall(endpoint.handle().state, endpoint.credits().filled(), slots_wanted);
  }
  template <typename Ep>
  GDX_DEVICE static std::uint32_t next_slot(Ep& endpoint) {
    return endpoint.credits().next_slot();
  }
  template <typename Ep>
  GDX_DEVICE static void consume(Ep& endpoint) {
    endpoint.credits().consume();
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

// Host memory. A slot holds much, and the credits stay in the endpoint's memory, so that puts which do not
// bounce have no register the fewer. The leader changes them only while the scope waits for it.
struct HostPool {
  GDX_DEVICE static const StagingHandle& of(const EndpointHandle& handle) { return handle.bounce; }
  template <typename Ep>
  GDX_DEVICE static bool available(Ep& endpoint) {
    const StagingState& credits = endpoint.handle().state->bounce;
    if (credits.ready == credits.filled) endpoint.update_bounce(BounceStep::kLook);
    return credits.ready != credits.filled;
  }
  template <typename Ep>
  GDX_DEVICE static void stall(Ep& endpoint, std::uint64_t slots_wanted) {
    endpoint.update_bounce(BounceStep::kStall, slots_wanted);
  }
  template <typename Ep>
  GDX_DEVICE static std::uint32_t next_slot(Ep& endpoint) {
    return next(endpoint.handle()).slot;
  }
  template <typename Ep>
  GDX_DEVICE static void consume(Ep& /*endpoint*/) {}
  template <typename Ep>
  GDX_DEVICE static void bind(Ep& endpoint, std::uint32_t wqe_index) {
    next(endpoint.handle()).wqe_index = wqe_index;
    ++endpoint.handle().state->bounce.filled;
  }
  template <typename Ep>
  GDX_DEVICE static std::uint32_t held(Ep& endpoint) {
    const StagingState& credits = endpoint.handle().state->bounce;
    return credits.ready - credits.returned;
  }

 private:
  GDX_DEVICE static HeldSlot& next(const EndpointHandle& handle) {
    return handle.bounce.held[handle.state->bounce.filled & (handle.bounce.slot_count - 1)];
  }
};

// How a slot is filled. store(): all threads; settle(): the leader, before anybody is told of the slot: from
// there on a release of the leader covers what all threads have stored.
template <Copy C, Scope S>
class SlotWriter {
 public:
  GDX_DEVICE void store(std::byte* slot, const std::byte* from, std::uint32_t bytes) {
    exec::copy<S>(slot, from, bytes);
  }
  GDX_DEVICE void settle() {}
};
template <Scope S>
class SlotWriter<Copy::kBulk, S> {
  static_assert(S == Scope::kBlock,
                "bulk stores are a block's: a warp's endpoint in a block of one warp does as well");

 public:
  // A slot is a multiple of 16 B, so what is stored beyond the message is within it.
  GDX_DEVICE void store(std::byte* slot, const std::byte* from, std::uint32_t bytes) {
    stores_.store(slot, from, bytes);
  }
  GDX_DEVICE void settle() { stores_.wait(); }

 private:
  exec::BulkStores stores_;
};

}  // namespace gdx::device::impl
