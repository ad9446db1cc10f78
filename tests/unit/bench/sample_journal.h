// A journal as a rank writes it, with figures that a test knows.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "host/programs/bench/document.h"

namespace gdx::bench {

inline nlohmann::ordered_json sample_line(std::size_t index, int round, double median_ns, double rate) {
  const auto ns = static_cast<std::uint64_t>(median_ns);
  return {{"case", index},
          {"round", round},
          {"messages", 100},
          {"elapsed_ns", 100 * ns},
          {"messages_per_s", rate},
          {"median_ns", median_ns},
          {"mean_ns", median_ns},
          {"mean_square_ns2", median_ns * median_ns},
          {"least_ns", median_ns},
          {"most_ns", median_ns},
          {"histogram_ns", {{ns, 100}}},
          {"cpu_ns", {110'000, 220'000}},
          {"posted", 110},
          {"credit_stalls", 3},
          {"occupancy", {{0, 1, 0}, {50'000 * round, 16, 9}}},
          {"retransmissions", 1},
          {"pcie_reads", 220},
          {"pcie_record_reads", 110},
          {"pcie_writes", 330},
          {"checked_bytes", 4096},
          {"bad_bytes", 0}};
}

inline constexpr char kConditionsLine[] =
    R"({"begun":"2026-11-30T08:15:00Z",)"
    R"("conditions":[{"host":"a","address":"10.0.0.1","gpu":null},{"host":"a","address":"10.0.0.2","gpu":null}],)"
    R"("measured_on":"the software HCA, kernels on the CPU layer","hca":"the software HCA"})";

// put_lat and put_bw of 8 B and 4 KiB, by pull and by push, which takes half the time.
inline Plan sample_plan() {
  Plan plan;
  plan.tests = {"put_lat", "put_bw"};
  plan.ways = {"pull", "push"};
  plan.sizes_bytes = {8, 4096};
  return plan;
}

inline std::string sample_journal(int rounds, bool whole = true, double factor = 1) {
  const auto cases = *cases_of(sample_plan());
  std::string text = std::string(kConditionsLine) + "\n";
  for (int round = 1; round <= rounds; ++round) {
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const double scale = factor * (1 + 0.01 * round) / (cases[i].way == Way::kPush ? 2 : 1);
      text += sample_line(i, round, 2000 * scale, 1e6 / scale).dump() + "\n";
    }
  }
  if (whole)
    text += R"({"end":true,"staging_violations":0})"
            "\n";
  return text;
}

inline nlohmann::ordered_json document_of(const std::string& journal, const Plan& plan = sample_plan()) {
  return make_document(plan, *cases_of(plan), journal, "gdx bench", "signal 9: Killed");
}

inline nlohmann::ordered_json sample_document(int rounds = 7, bool whole = true, double factor = 1) {
  return document_of(sample_journal(rounds, whole, factor));
}

}  // namespace gdx::bench
