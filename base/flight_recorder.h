// A flight recorder: a ring of fixed size that keeps the newest events, and its text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "proto/flight_event.h"

namespace gdx {

// Recorded events, the oldest first.
struct FlightRecord {
  std::string source;             // one word: what has recorded it
  std::uint64_t overwritten = 0;  // older events that are lost
  std::vector<FlightEvent> events;
};

// Grows to kEvents events, and then writes over the oldest: most queue pairs of a large job record few.
// Threads: callers synchronise.
template <std::size_t kEvents>
class FlightRecorder {
  static_assert(kEvents != 0 && (kEvents & (kEvents - 1)) == 0, "a power of two");

 public:
  // Records `event` at another time than its own. Copies field by field, because a load of the whole would
  // stall behind the narrow stores that have just made it.
  void record(std::uint64_t time_ns, const FlightEvent& event) {
    if (events_.size() < kEvents) events_.emplace_back();
    FlightEvent& kept = events_[count_ & (kEvents - 1)];
    kept.time_ns = time_ns;
    kept.kind = event.kind;
    kept.code = event.code;
    kept.wqe = event.wqe;
    kept.bytes = event.bytes;
    kept.word = event.word;
    ++count_;
  }
  [[nodiscard]] FlightRecord read(std::string_view source) const {
    const std::size_t kept = events_.size();
    FlightRecord record{std::string(source), count_ - kept, std::vector<FlightEvent>(kept)};
    for (std::size_t i = 0; i < kept; ++i)
      record.events[i] = events_[(record.overwritten + i) & (kEvents - 1)];
    return record;
  }

 private:
  std::vector<FlightEvent> events_;
  std::uint64_t count_ = 0;  // of all events ever recorded
};

// Adds the events of `more`, in the order of time. Each of both is in that order.
void merge(FlightRecord& record, const FlightRecord& more);

// Text of a record for programs: a line about the whole, then for each event a line of its fields.
[[nodiscard]] std::string encode_flight(const FlightRecord& record);
// Errors: kInvalidArgument with the line.
[[nodiscard]] Result<FlightRecord> parse_flight(std::string_view text);

}  // namespace gdx
