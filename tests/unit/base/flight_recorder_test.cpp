#include "base/flight_recorder.h"

#include <gtest/gtest.h>

#include <string>

namespace gdx {
namespace flight_recorder_test {

FlightEvent event_at(std::uint64_t time_ns) {
  return {.time_ns = time_ns, .kind = FlightKind::kFetch, .code = 8, .wqe = 5, .bytes = 64, .word = 1};
}

TEST(FlightRecorder, begins_empty) {
  const FlightRecorder<4> recorder;
  const FlightRecord record = recorder.read("nobody");
  EXPECT_EQ(record.source, "nobody");
  EXPECT_EQ(record.overwritten, 0u);
  EXPECT_TRUE(record.events.empty());
}

TEST(FlightRecorder, keeps_the_newest_in_order_and_counts_the_rest) {
  FlightRecorder<4> recorder;
  for (std::uint64_t recorded = 1; recorded <= 11; ++recorded) {
    recorder.record(recorded, event_at(recorded));
    const FlightRecord record = recorder.read("test");
    const std::uint64_t kept = std::min<std::uint64_t>(recorded, 4);
    ASSERT_EQ(record.events.size(), kept);
    EXPECT_EQ(record.overwritten, recorded - kept);
    std::string expected = "flight test " + std::to_string(recorded - kept) + "\n";
    for (std::uint64_t i = 0; i < kept; ++i)
      expected.append(std::to_string(recorded - kept + 1 + i)).append(" fetch 8 5 64 1\n");
    EXPECT_EQ(encode_flight(record), expected);
  }
}

TEST(FlightRecorder, what_an_event_leaves_out_is_zero) {
  FlightRecorder<4> recorder;
  recorder.record(7, {});
  EXPECT_EQ(encode_flight(recorder.read("test")), "flight test 0\n7 state 0 0 0 0\n");
}

TEST(FlightRecord, merges_by_time_and_keeps_the_order_of_equal_times) {
  FlightRecord record{"a", 2, {event_at(1), event_at(5), event_at(5)}};
  FlightEvent credit = event_at(5);
  credit.kind = FlightKind::kGrant;
  merge(record, {"b", 3, {event_at(0), credit, event_at(9)}});
  EXPECT_EQ(record.source, "a");
  EXPECT_EQ(record.overwritten, 5u);
  ASSERT_EQ(record.events.size(), 6u);
  const std::uint64_t times[] = {0, 1, 5, 5, 5, 9};
  for (std::size_t i = 0; i < record.events.size(); ++i) EXPECT_EQ(record.events[i].time_ns, times[i]);
  EXPECT_EQ(record.events[4].kind, FlightKind::kGrant);
}

TEST(FlightRecord, comes_back_from_its_text) {
  FlightRecord record{"test", ~std::uint64_t{0}, {}};
  for (std::size_t kind = 0; kind < kFlightKinds; ++kind)
    record.events.push_back({~std::uint64_t{0} - kind, static_cast<FlightKind>(kind), 255, 65535,
                             ~std::uint32_t{0}, ~std::uint64_t{0}});
  const auto parsed = parse_flight(encode_flight(record));
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(parsed->source, record.source);
  EXPECT_EQ(parsed->overwritten, record.overwritten);
  ASSERT_EQ(parsed->events.size(), record.events.size());
  for (std::size_t i = 0; i < record.events.size(); ++i) {
    EXPECT_EQ(parsed->events[i].time_ns, record.events[i].time_ns);
    EXPECT_EQ(parsed->events[i].kind, record.events[i].kind);
    EXPECT_EQ(parsed->events[i].code, record.events[i].code);
    EXPECT_EQ(parsed->events[i].wqe, record.events[i].wqe);
    EXPECT_EQ(parsed->events[i].bytes, record.events[i].bytes);
    EXPECT_EQ(parsed->events[i].word, record.events[i].word);
  }
}

TEST(FlightRecord, other_text_is_refused) {
  const std::string head = "flight test 0\n";
  EXPECT_TRUE(parse_flight(head));
  for (const char* const text : {"", "flight test", "record test 0\n"})
    EXPECT_FALSE(parse_flight(text)) << text;
  for (const char* const line : {"1 fetch 8 5 64", "1 nothing 8 5 64 1", "x fetch 8 5 64 1",
                                 "1 fetch 256 5 64 1", "1 fetch 8 65536 64 1"})
    EXPECT_EQ(parse_flight(head + "1 fetch 255 5 64 1\n\n" + line + "\n").error().message,
              "no event of a flight record: '" + std::string(line) + "'");
}

}  // namespace flight_recorder_test
}  // namespace gdx
