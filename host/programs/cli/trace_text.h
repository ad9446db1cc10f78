// The answer of gdxd about the newest events of endpoints, for readers and for Perfetto.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/flight_recorder.h"
#include "base/result.h"

namespace gdx {

struct EndpointTrace {
  std::uint64_t process = 0;
  std::string program;
  std::string hca;
  std::uint64_t qpn = 0;
  std::string peer;   // empty: not connected
  std::string error;  // reason why there is no record; empty: there is one
  FlightRecord record;
};
struct Trace {
  std::vector<EndpointTrace> endpoints;
  std::uint64_t left_out = 0;  // endpoints beyond those that gdxd shows at once
};

// Errors: kSystem for an answer that gdxd does not give; those of parse_flight.
[[nodiscard]] Result<Trace> parse_trace(const std::string& answer);

// Returns the trace as text for people.
[[nodiscard]] std::string trace_text(const Trace& trace);
// Returns a line about the endpoints that are left out; empty: none.
[[nodiscard]] std::string left_out_text(const Trace& trace);

// Trace in the Trace Event Format, which ui.perfetto.dev opens: a process for each client; for each endpoint
// a track of instants, and tracks of its WQEs from fetch until completion, by operation. WQEs overlap, so
// they are asynchronous slices.
[[nodiscard]] std::string trace_events(const Trace& trace);

}  // namespace gdx
