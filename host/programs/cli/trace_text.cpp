#include "host/programs/cli/trace_text.h"

#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "host/queue/flight.h"
#include "host/queue/wqe_text.h"

namespace gdx {
namespace {

using Json = nlohmann::ordered_json;

std::string name_of(const EndpointTrace& one) {
  return fmt::format("{} QP {:#x}{}{}", one.hca, one.qpn, one.peer.empty() ? "" : " towards ", one.peer);
}

// The events of one endpoint, appended to those of the trace.
class EndpointTracks {
 public:
  EndpointTracks(const EndpointTrace& endpoint, std::size_t number, Json& events)
      : endpoint_(endpoint), number_(number), events_(events) {}

  void append() {
    add("M", 0, "thread_name")["args"] = {
        {"name", endpoint_.error.empty()
                     ? name_of(endpoint_)
                     : fmt::format("{}: no events: {}", name_of(endpoint_), endpoint_.error)}};
    for (const FlightEvent& event : endpoint_.record.events) append_one(event);
    // The rest is under way still, or its completion has no entry yet.
    while (!under_way_.empty()) end_slice(under_way_.begin()->first, endpoint_.record.events.back(), true);
  }

 private:
  void append_one(const FlightEvent& event) {
    const bool ends = event.kind == FlightKind::kCompletion || event.kind == FlightKind::kRetirement;
    if (event.kind == FlightKind::kFetch) {
      if (under_way_.contains(event.wqe)) end_slice(event.wqe, event, true);  // of the lap before
      under_way_.emplace(event.wqe, event);
    } else if (ends && under_way_.contains(event.wqe)) {
      end_slice(event.wqe, event, false);
    } else {
      Json& instant = add("i", event.time_ns, event_name(event));
      instant["s"] = "t";
      instant["args"] = {{"text", event_text(event)}};
    }
  }

  void end_slice(std::uint16_t wqe, const FlightEvent& end, bool unfinished) {
    const FlightEvent begin = under_way_.extract(wqe).mapped();
    const std::string name = fmt::format("{} QP {:#x} {}", endpoint_.hca, endpoint_.qpn,
                                         opcode_name(static_cast<mlx5::WqeOpcode>(begin.code)));
    const auto id = fmt::format("{}.{}", number_, ++slices_);
    const auto half = [&](const char* phase, std::uint64_t time_ns) -> Json& {
      Json& event = add(phase, time_ns, name);
      event["cat"] = "wqe";
      event["id"] = id;
      return event;
    };
    half("b", begin.time_ns)["args"] = {{"wqe", wqe}, {"bytes", begin.bytes}};
    half("e", end.time_ns)["args"] = unfinished ? Json{{"unfinished", true}} : Json{{"syndrome", end.code}};
  }

  // Adds an event. The format wants its time in microseconds.
  Json& add(const char* phase, std::uint64_t time_ns, const std::string& name) {
    return events_.emplace_back(Json{{"ph", phase},
                                     {"ts", static_cast<double>(time_ns) / 1e3},
                                     {"pid", endpoint_.process},
                                     {"tid", number_},
                                     {"name", name}});
  }

  const EndpointTrace& endpoint_;
  std::size_t number_;  // in the trace: queue pairs of two HCAs may have one number
  Json& events_;
  std::map<std::uint16_t, FlightEvent> under_way_;  // fetched, by their index
  std::uint64_t slices_ = 0;
};

}  // namespace

Result<Trace> parse_trace(const std::string& answer) {
  Trace trace;
  try {
    const Json all = Json::parse(answer);
    trace.left_out = all.at("left_out").get<std::uint64_t>();
    const Json& flights = all.at("flights");
    trace.endpoints.reserve(flights.size());
    for (const Json& one : flights) {
      EndpointTrace& endpoint = trace.endpoints.emplace_back();
      endpoint.process = one.at("pid").get<std::uint64_t>();
      endpoint.program = one.at("program").get<std::string>();
      endpoint.hca = one.at("hca").get<std::string>();
      endpoint.qpn = one.at("qpn").get<std::uint64_t>();
      endpoint.peer = one.at("peer").get<std::string>();
      endpoint.error = one.value("error", "");
      if (endpoint.error.empty())
        endpoint.record = GDX_TRY(parse_flight(one.at("flight").get<std::string>()));
    }
  } catch (const Json::exception& error) {
    return fail(Status::kSystem, fmt::format("gdxd's answer is no list of events: {}", error.what()));
  }
  return trace;
}

std::string trace_text(const Trace& trace) {
  std::string text;
  for (const EndpointTrace& one : trace.endpoints) {
    text += fmt::format("process {} ({}), {}: ", one.process, one.program, name_of(one));
    if (one.error.empty()) {
      text += fmt::format("{} events of the {}, {} older ones overwritten\n{}", one.record.events.size(),
                          one.record.source, one.record.overwritten, flight_text(one.record));
    } else {
      text += fmt::format("no events: {}\n", one.error);
    }
  }
  return text;
}

std::string left_out_text(const Trace& trace) {
  if (trace.left_out == 0) return {};
  return fmt::format("{} more endpoints are left out: choose others by --pid or --qp\n", trace.left_out);
}

std::string trace_events(const Trace& trace) {
  Json events = Json::array();
  std::set<std::uint64_t> processes;
  for (std::size_t i = 0; i < trace.endpoints.size(); ++i) {
    const EndpointTrace& one = trace.endpoints[i];
    if (processes.insert(one.process).second)
      events.push_back({{"ph", "M"},
                        {"ts", 0},
                        {"pid", one.process},
                        {"tid", 0},
                        {"name", "process_name"},
                        {"args", {{"name", one.program}}}});
    EndpointTracks(one, i + 1, events).append();
  }
  const Json document{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ns"}};
  return document.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace gdx
