// Memory in which a put stages payload: of the NIC or of the host. One put works on either, because both are
// slots under credits. They differ in the place of an open endpoint's credits. Functions follow Credits.
#pragma once

#include <cstdint>

#include "device/impl/open_endpoint.h"
#include "device/options.h"

namespace gdx::device::impl {

// NIC memory. Its credits are in the registers of all threads, because small slots are taken often.
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

// Fills a slot. All threads call store(). The leader calls wait() before the slot's number is published.
// After wait() a release of the leader covers the stores of all threads. A slot is a multiple of 16 B, so
// stores beyond the message stay within it.
template <Copy C, Scope S>
class SlotWriter {
 public:
  GDX_DEVICE void store(std::byte* slot, const std::byte* from, std::uint32_t bytes) {
    exec::fill_slot<S>(slot, from, bytes);
  }
  GDX_DEVICE void wait() {}
};
template <Scope S>
class SlotWriter<Copy::kBulk, S> {
  static_assert(S == Scope::kBlock,
                "bulk stores are a block's: a warp's endpoint in a block of one warp does as well");

 public:
  GDX_DEVICE void store(std::byte* slot, const std::byte* from, std::uint32_t bytes) {
    stores_.store(slot, from, bytes);
  }
  GDX_DEVICE void wait() { stores_.wait(); }

 private:
  exec::BulkStores stores_;
};

}  // namespace gdx::device::impl
