// Parts that the classes of one queue pair share: its states, memory, send queue, pacer and recorder.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/flight_recorder.h"
#include "driver-shim/softhca/engine/hca_parts.h"
#include "driver-shim/softhca/engine/memory_access.h"
#include "driver-shim/softhca/engine/pacer.h"
#include "driver-shim/softhca/engine/qp_state.h"
#include "driver-shim/softhca/engine/send_queue.h"

namespace gdx::softhca {

inline constexpr std::size_t kFlightEvents = 128;  // newest events that a queue pair's recorder keeps

// Events of a queue pair. Flushed WQEs may be more than the recorder holds, and would displace their cause.
// They are therefore one event, the newest until the queue pair leaves the state in which they were flushed.
class QpFlight {
 public:
  void note(std::uint64_t now_ns, const FlightEvent& event) { recorder_.record(now_ns, event); }
  void note_flushed(std::uint64_t now_ns, std::uint16_t wqe_counter) {
    flush_.time_ns = now_ns;
    flush_.wqe = wqe_counter;
    ++flush_.word;
  }
  // Gives the flushed WQEs so far their place before all later events.
  void end_flush() {
    if (flush_.word == 0) return;
    recorder_.record(flush_.time_ns, flush_);
    flush_.word = 0;
  }
  [[nodiscard]] FlightRecord read() const {
    FlightRecord record = recorder_.read("engine");
    if (flush_.word != 0) record.events.push_back(flush_);
    return record;
  }

 private:
  FlightRecorder<kFlightEvents> recorder_;
  FlightEvent flush_{.kind = FlightKind::kFlush};
};

struct QpParts {
  QpParts(std::uint32_t number, const QueuePairSpec& queue_pair, HcaParts& shared);

  [[nodiscard]] std::uint16_t pkey() const { return hca.config.pkeys[states.attributes().pkey_index]; }
  void note(const FlightEvent& event) { flight.note(hca.now_ns, event); }
  std::uint32_t qpn;
  QueuePairSpec spec;
  HcaParts& hca;
  QpStates states;
  MemoryAccess memory;
  SendQueue sends;  // a request's cookie is its slot's number
  Pacer pacer;
  QpFlight flight;
};

}  // namespace gdx::softhca
