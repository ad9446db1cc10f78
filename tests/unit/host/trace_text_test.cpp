// Text and Perfetto trace of an answer of gdxd about newest events.
#include "host/programs/cli/trace_text.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

namespace gdx {
namespace trace_text_test {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

Json endpoint_of(const std::string& hca, const FlightRecord& record) {
  return {{"pid", 7},    {"program", "demo"}, {"hca", hca},
          {"qpn", 0x45}, {"peer", "QP 0x46"}, {"flight", encode_flight(record)}};
}

std::string answer_of(Json endpoints, int left_out = 0) {
  return Json{{"left_out", left_out}, {"flights", std::move(endpoints)}}.dump();
}

FlightEvent event_at(std::uint64_t time_ns, FlightKind kind, std::uint16_t wqe) {
  return {.time_ns = time_ns, .kind = kind, .code = 0x10, .wqe = wqe, .bytes = 64};
}

Trace parsed(const std::string& answer) {
  const auto trace = parse_trace(answer);
  EXPECT_TRUE(trace) << trace.error().message;
  return trace.value_or(Trace{});
}

TEST(TraceText, is_of_each_endpoint_or_says_why_not) {
  Json unreadable = endpoint_of("gdx1", {});
  unreadable.erase("flight");
  unreadable["error"] = "the queue is in GPU memory";
  const FlightRecord record{"engine", 3, {event_at(5, FlightKind::kFetch, 1)}};
  const Trace trace = parsed(answer_of({endpoint_of("gdx0", record), unreadable}, 2));
  EXPECT_EQ(
      trace_text(trace),
      "process 7 (demo), gdx0 QP 0x45 towards QP 0x46: 1 events of the engine, 3 older ones overwritten\n"
      "         0.000000005 fetch     WQE 1: RDMA READ of 64 B\n"
      "process 7 (demo), gdx1 QP 0x45 towards QP 0x46: no events: the queue is in GPU memory\n");
  EXPECT_EQ(left_out_text(trace), "2 more endpoints are left out: choose others by --pid or --qp\n");
  EXPECT_EQ(left_out_text(parsed(answer_of(Json::array()))), "");
}

TEST(TraceText, of_what_gdxd_does_not_answer_is_an_error) {
  Json without_hca = endpoint_of("gdx0", {});
  without_hca.erase("hca");
  Json no_record = endpoint_of("gdx0", {});
  no_record["flight"] = "nonsense";
  Json bad_number = endpoint_of("gdx0", {});
  bad_number["pid"] = "seven";
  for (const std::string& answer :
       {std::string(), std::string("[]"), std::string("{}"), std::string(R"({"flights": []})"),
        std::string(R"({"left_out": "many", "flights": []})"),
        std::string(R"({"left_out": 0, "flights": [1]})"), answer_of({without_hca}), answer_of({no_record}),
        answer_of({bad_number})}) {
    EXPECT_FALSE(parse_trace(answer)) << answer;
  }
}

// Of one process on two HCAs, with queue pairs of one number.
TEST(TraceEvents, of_two_endpoints_share_no_track_and_no_id) {
  const FlightRecord record{
      "engine", 0, {event_at(1000, FlightKind::kFetch, 1), event_at(3000, FlightKind::kCompletion, 1)}};
  const Json trace = Json::parse(
      trace_events(parsed(answer_of({endpoint_of("gdx0", record), endpoint_of("gdx1", record)}))));
  std::map<int, std::string> tracks;
  std::set<std::string> ids;
  int processes = 0;
  for (const Json& event : trace.at("traceEvents")) {
    EXPECT_EQ(event.at("pid"), 7);
    if (event.at("name") == "process_name") ++processes;
    if (event.at("name") == "thread_name") tracks[event.at("tid")] = event.at("args").at("name");
    if (event.at("ph") == "b") {
      EXPECT_TRUE(ids.insert(event.at("id")).second) << event;
    }
  }
  EXPECT_EQ(processes, 1);
  EXPECT_EQ(tracks, (std::map<int, std::string>{{1, "gdx0 QP 0x45 towards QP 0x46"},
                                                {2, "gdx1 QP 0x45 towards QP 0x46"}}));
  EXPECT_EQ(ids.size(), 2u);
}

// A previous lap's WQE whose end is lost, and one under way, end with the newest event at the latest.
TEST(TraceEvents, of_unfinished_wqes_end_and_say_so) {
  const FlightRecord record{
      "engine",
      0,
      {event_at(1000, FlightKind::kFetch, 1), event_at(2000, FlightKind::kFetch, 1),
       event_at(3000, FlightKind::kRetirement, 1), event_at(4000, FlightKind::kCompletion, 9),
       event_at(5000, FlightKind::kFetch, 2), event_at(6000, FlightKind::kResend, 0)}};
  const Json trace = Json::parse(trace_events(parsed(answer_of({endpoint_of("gdx0", record)}))));
  std::string phases;
  for (const Json& event : trace.at("traceEvents")) {
    phases += fmt::format("{}{}{} ", event.at("ph").get<std::string>(), event.at("ts").get<double>(),
                          event.value("args", Json::object()).contains("unfinished") ? "?" : "");
  }
  EXPECT_EQ(phases, "M0 M0 b1 e2? b2 e3 i4 i6 b5 e6? ");
}

TEST(TraceEvents, of_an_endpoint_without_events_are_its_name) {
  Json unreadable = endpoint_of("gdx1", {});
  unreadable["error"] = "no file";
  EXPECT_THAT(trace_events(parsed(answer_of({unreadable}))),
              HasSubstr("gdx1 QP 0x45 towards QP 0x46: no events: no file"));
  EXPECT_THAT(trace_events(parsed(answer_of({endpoint_of("gdx0", {"engine", 0, {}})}))),
              HasSubstr("gdx0 QP 0x45"));
}

}  // namespace trace_text_test
}  // namespace gdx
