#include "host/bench/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "host/bench/document.h"
#include "host/bench/statistics.h"

namespace gdx::bench {
namespace {

using Json = nlohmann::ordered_json;

std::map<std::string, const Json*> rows_of(const Json& document) {
  std::map<std::string, const Json*> rows;
  for (const Json& row : document.at("rows")) rows[key_of_row(row)] = &row;
  return rows;
}

// Cases of `some` that `others` lacks.
Json only_in(const std::map<std::string, const Json*>& some,
             const std::map<std::string, const Json*>& others) {
  Json keys = Json::array();
  for (const auto& [key, row] : some) {
    if (!others.contains(key)) keys.push_back(key);
  }
  return keys;
}

// Conditions of rank 0 that differ; addresses do from run to run.
Json changed_conditions(const Json& a, const Json& b) {
  Json changed = Json::array();
  const Json none = Json::object();
  const Json& before = a.at("conditions").empty() ? none : a.at("conditions")[0];
  const Json& after = b.at("conditions").empty() ? none : b.at("conditions")[0];
  for (const auto& [name, value] : before.items()) {
    if (name == "address" || (after.contains(name) && after[name] == value)) continue;
    changed.push_back(
        {{"condition", name}, {"a", value}, {"b", after.contains(name) ? after[name] : Json(nullptr)}});
  }
  return changed;
}

std::string text_of(const Json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

}  // namespace

Json compare(const Json& a, const Json& b) {
  const auto before = rows_of(a);
  const auto after = rows_of(b);
  Json comparison = {{"gdx_bench_comparison", kDocumentVersion}, {"rows", Json::array()},
                     {"conditions", changed_conditions(a, b)},   {"only_a", only_in(before, after)},
                     {"only_b", only_in(after, before)},         {"partial_a", !a.value("whole", false)},
                     {"partial_b", !b.value("whole", false)}};
  for (const Json& row : a.at("rows")) {
    const std::string key = key_of_row(row);
    const auto other = after.find(key);
    if (other == after.end()) continue;
    const auto samples_a = row.at("samples").get<std::vector<double>>();
    const auto samples_b = other->second->at("samples").get<std::vector<double>>();
    if (std::ranges::count(samples_a, 0.0) != 0) continue;
    const Interval ratio = unpaired_ratio(samples_b, samples_a);
    const bool latency = row.at("measure") == "lat";
    const bool faster = latency ? ratio.high < 1 : ratio.low > 1;
    comparison["rows"].push_back({{"case", key},
                                  {"of", latency ? "latency_us" : "messages_per_s"},
                                  {"a", rounded(median_interval(samples_a).estimate)},
                                  {"b", rounded(median_interval(samples_b).estimate)},
                                  {"ratio", rounded(ratio.estimate)},
                                  {"low", rounded(ratio.low)},
                                  {"high", rounded(ratio.high)},
                                  {"level", rounded(ratio.level)},
                                  {"says", describe_ratio(ratio)},
                                  {"b_is", !differs(ratio) ? ""
                                           : faster        ? "faster"
                                                           : "slower"}});
  }
  return comparison;
}

std::string comparison_table(const Json& comparison) {
  std::string text = fmt::format("{:<44} {:>9} {:>9}  {}\n", "case (us, or messages a second)", "A", "B",
                                 "B / A [interval]");
  std::size_t changed = 0;
  for (const Json& row : comparison.at("rows")) {
    std::string key = row.at("case").get<std::string>();
    if (key.size() > 44) key = key.substr(0, 43) + "~";
    const std::string b_is = row.at("b_is").get<std::string>();
    changed += b_is.empty() ? 0 : 1;
    text += fmt::format("{:<44} {:>9.4g} {:>9.4g}  {}{}\n", key, row.at("a").get<double>(),
                        row.at("b").get<double>(), row.at("says").get<std::string>(),
                        b_is.empty() ? "" : " " + b_is);
  }
  text += fmt::format("\n{} of {} cases differ beyond noise\n", changed, comparison.at("rows").size());
  for (const Json& one : comparison.at("conditions")) {
    text += fmt::format("differs: {}: {} in A, {} in B\n", one.at("condition").get<std::string>(),
                        text_of(one.at("a")), text_of(one.at("b")));
  }
  for (const char* const side : {"a", "b"}) {
    const std::string name(1, static_cast<char>(*side - 'a' + 'A'));
    for (const Json& key : comparison.at(fmt::format("only_{}", side)))
      text += fmt::format("in {} alone: {}\n", name, key.get<std::string>());
    if (comparison.at(fmt::format("partial_{}", side)).get<bool>())
      text += fmt::format("{} is a partial report\n", name);
  }
  return text;
}

}  // namespace gdx::bench
