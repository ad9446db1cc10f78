#include "base/flight_recorder.h"

#include <fmt/format.h>

#include <iterator>
#include <sstream>

namespace gdx {
namespace {

constexpr char kHeader[] = "flight";

bool parse_event(const std::string& line, FlightEvent& event) {
  std::istringstream fields(line);
  std::string name;
  unsigned code = 0;
  if (!(fields >> event.time_ns >> name >> code >> event.wqe >> event.bytes >> event.word)) return false;
  const auto* const found = std::find(std::begin(kFlightKindNames), std::end(kFlightKindNames), name);
  if (found == std::end(kFlightKindNames) || code > 0xff) return false;
  event.kind = static_cast<FlightKind>(found - std::begin(kFlightKindNames));
  event.code = static_cast<std::uint8_t>(code);
  return true;
}

}  // namespace

void merge(FlightRecord& record, const FlightRecord& more) {
  const auto middle = static_cast<std::ptrdiff_t>(record.events.size());
  record.overwritten += more.overwritten;
  record.events.insert(record.events.end(), more.events.begin(), more.events.end());
  std::inplace_merge(record.events.begin(), record.events.begin() + middle, record.events.end(),
                     [](const FlightEvent& a, const FlightEvent& b) { return a.time_ns < b.time_ns; });
}

std::string encode_flight(const FlightRecord& record) {
  std::string text = fmt::format("{} {} {}\n", kHeader, record.source, record.overwritten);
  for (const FlightEvent& event : record.events) {
    fmt::format_to(std::back_inserter(text), "{} {} {} {} {} {}\n", event.time_ns,
                   kFlightKindNames[static_cast<std::size_t>(event.kind)], event.code, event.wqe, event.bytes,
                   event.word);
  }
  return text;
}

Result<FlightRecord> parse_flight(std::string_view text) {
  FlightRecord record;
  std::istringstream lines{std::string(text)};
  std::string line;
  std::string header;
  if (!(lines >> header >> record.source >> record.overwritten) || header != kHeader)
    return fail(Status::kInvalidArgument, "a flight record begins with another line than its own");
  std::getline(lines, line);
  record.events.reserve(static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')));
  while (std::getline(lines, line)) {
    if (line.empty()) continue;
    if (!parse_event(line, record.events.emplace_back()))
      return fail(Status::kInvalidArgument, fmt::format("no event of a flight record: '{}'", line));
  }
  return record;
}

}  // namespace gdx
