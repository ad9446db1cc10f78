// Posting of a benchmark's messages by whoever owns the endpoint: a kernel, or a thread of the host for it.
#pragma once

#include "device/endpoint.h"
#include "host/programs/bench/load.h"

namespace gdx::bench {

GDX_DEVICE Doorbell doorbell_of(const Load& load, std::uint64_t message) {
  const std::uint64_t in_window = message % load.depth + 1;
  return in_window % load.batch == 0 || in_window == load.depth ? Doorbell::kRing : Doorbell::kDefer;
}

// Posts by itself, on an endpoint that it owns or shares with other blocks.
template <Operation O, Mode M, Scope S, Sharing Q = Sharing::kExclusive>
class Poster {
 public:
  GDX_DEVICE Poster(const Lane& lane, const Load& load) : lane_(lane), load_(load), peer_(lane.endpoint) {}

  GDX_DEVICE Status status() const { return peer_.status(); }
  GDX_DEVICE bool leads() const { return peer_.is_leader(); }

  // Posts message number `message`, from 0.
  GDX_DEVICE Status post(std::uint64_t message) {
    const std::uint64_t place = message % load_.slots * load_.stride_bytes;
    if constexpr (O == Operation::kPut && Q == Sharing::kShared) {
      return gdx_put<M>(peer_, lane_.peer_sink + place, lane_.source + place, load_.bytes);
    } else if constexpr (O == Operation::kPut) {
      return gdx_put<M>(peer_, lane_.peer_sink + place, lane_.source + place, load_.bytes,
                        doorbell_of(load_, message));
    } else if constexpr (O == Operation::kPutSignal) {
      return gdx_put_signal<M>(peer_, lane_.peer_sink + place, lane_.source + place, load_.bytes,
                               lane_.peer_signals + 8 * kData, load_.first_sequence + message);
    } else if constexpr (O == Operation::kGet) {
      return gdx_get(peer_, lane_.sink + place, lane_.peer_source + place, load_.bytes,
                     doorbell_of(load_, message));
    } else {
      return gdx_fetch_add(peer_, lane_.original, lane_.peer_signals + 8 * kCounter, 1);
    }
  }
  GDX_DEVICE Status flush() { return gdx_flush(peer_); }
  GDX_DEVICE Status wait(SignalWord word, std::uint64_t value) {
    return gdx_wait(peer_, lane_.signals + word, Compare::kGreaterEqual, value);
  }
  // Lets the peer's kernel end.
  GDX_DEVICE Status finish() {
    const Status status = gdx_signal(peer_, lane_.peer_signals + 8 * kDone, load_.first_sequence);
    return status == Status::kOk ? flush() : status;
  }

 private:
  const Lane& lane_;
  const Load& load_;
  device::Endpoint<S, Placement::kHost, Q> peer_;
};

}  // namespace gdx::bench
