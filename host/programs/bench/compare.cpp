#include "host/programs/bench/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "host/programs/bench/document.h"
#include "host/programs/bench/statistics.h"

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

// Adds the names whose values differ, in objects `a` and `b`.
void add_changed(Json& changed, const std::string& of, const Json& a, const Json& b) {
  const auto value_in = [](const Json& object, const std::string& name) {
    return object.contains(name) ? object.at(name) : Json(nullptr);
  };
  Json names = a;
  names.update(b);
  for (const auto& [name, value] : names.items()) {
    if (name == "address" || value_in(a, name) == value_in(b, name))
      continue;  // addresses do from run to run
    changed.push_back({{"condition", of + name}, {"a", value_in(a, name)}, {"b", value_in(b, name)}});
  }
}

// Conditions that differ: those of each rank, and the plans.
Json changed_conditions(const Json& a, const Json& b) {
  Json changed = Json::array();
  const Json none = Json::object();
  const auto rank_in = [&](const Json& document, std::size_t rank) {
    const Json& ranks = document.at("conditions");
    return rank < ranks.size() ? ranks[rank] : none;
  };
  const std::size_t ranks = std::max(a.at("conditions").size(), b.at("conditions").size());
  for (std::size_t rank = 0; rank < ranks; ++rank)
    add_changed(changed, fmt::format("rank {}: ", rank), rank_in(a, rank), rank_in(b, rank));
  add_changed(changed, "plan: ", a.value("plan", none), b.value("plan", none));
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
                     {"partial_b", !b.value("whole", false)},    {"begun_a", a.value("begun", Json())},
                     {"begun_b", b.value("begun", Json())}};
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
    Json compared = {{"case", key},
                     {"of", latency ? "latency_us" : "messages_per_s"},
                     {"a", rounded(median_interval(samples_a).estimate)},
                     {"b", rounded(median_interval(samples_b).estimate)}};
    compared.update(ratio_json(ratio));
    compared["b_is"] = !differs(ratio) ? "" : faster ? "faster" : "slower";
    comparison["rows"].push_back(std::move(compared));
  }
  comparison["verdicts"] = count_verdicts(comparison["rows"]);
  return comparison;
}

std::string comparison_table(const Json& comparison) {
  std::string text = fmt::format("{:<44} {:>9} {:>9}  {}\n", "case (us, or messages a second)", "A", "B",
                                 "B / A [interval]");
  for (const Json& row : comparison.at("rows")) {
    std::string key = row.at("case").get<std::string>();
    if (key.size() > 44) key = key.substr(0, 43) + "~";
    const std::string b_is = row.at("b_is").get<std::string>();
    text += fmt::format("{:<44} {:>9.4g} {:>9.4g}  {}{}\n", key, row.at("a").get<double>(),
                        row.at("b").get<double>(), row.at("says").get<std::string>(),
                        b_is.empty() ? "" : " " + b_is);
  }
  const Json& verdicts = comparison.at("verdicts");
  text += fmt::format("\n{} of {} cases differ beyond noise; by chance alone about {:.3g} would\n",
                      verdicts.at("differ").get<std::size_t>(), verdicts.at("count").get<std::size_t>(),
                      verdicts.at("by_chance").get<double>());
  for (const Json& one : comparison.at("conditions")) {
    text += fmt::format("differs: {}: {} in A, {} in B\n", one.at("condition").get<std::string>(),
                        text_of(one.at("a")), text_of(one.at("b")));
  }
  for (const char* const side : {"a", "b"}) {
    const std::string name(1, static_cast<char>(*side - 'a' + 'A'));
    for (const Json& key : comparison.at(fmt::format("only_{}", side)))
      text += fmt::format("in {} alone: {}\n", name, key.get<std::string>());
    text += fmt::format("{} was begun {}\n", name, text_of(comparison.at(fmt::format("begun_{}", side))));
    if (comparison.at(fmt::format("partial_{}", side)).get<bool>())
      text += fmt::format("{} is a partial report\n", name);
  }
  return text;
}

}  // namespace gdx::bench
