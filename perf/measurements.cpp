// gdx_measurements: samples of runner.sh as a table or JSON, with the statistics of gdx bench. Standard
// input has a line each, fields apart by '|': sample|ROUND|NAME|VALUE; value|UNIT|SCALE|NAME|WHAT|BAR, the
// median of NAME times SCALE; ratio|NAME|OTHER|WHAT|BAR, the median of the rounds' ratios. Bars are printed,
// never judged.
#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/command_line.h"
#include "base/commit.h"
#include "host/programs/bench/document.h"
#include "host/programs/bench/statistics.h"

namespace gdx::perf {
namespace {

using Json = nlohmann::ordered_json;
using Rounds = std::map<int, double>;

std::vector<std::string> fields_of(const std::string& line, std::size_t count) {
  std::vector<std::string> fields;
  for (std::size_t at = 0, end = 0; end != std::string::npos; at = end + 1) {
    end = line.find('|', at);
    fields.push_back(line.substr(at, end - at));
  }
  if (fields.size() != count) throw std::runtime_error(fmt::format("'{}': use {} fields", line, count));
  return fields;
}

const Rounds& rounds_of(const std::map<std::string, Rounds>& samples, const std::string& name) {
  const auto found = samples.find(name);
  if (found == samples.end()) throw std::runtime_error(fmt::format("'{}' was never sampled", name));
  return found->second;
}

Json value_row(const std::vector<std::string>& fields, const std::map<std::string, Rounds>& samples) {
  std::vector<double> values;
  for (const auto& [round, value] : rounds_of(samples, fields[3]))
    values.push_back(value * std::stod(fields[2]));
  const bench::Interval median = bench::median_interval(values);
  return {{"what", fields[4]},
          {"unit", fields[1]},
          {"median", bench::rounded(median.estimate)},
          {"low", bench::rounded(median.low)},
          {"high", bench::rounded(median.high)},
          {"level", bench::rounded(median.level)},
          {"rounds", values.size()},
          {"bar", fields[5]}};
}

Json ratio_row(const std::vector<std::string>& fields, const std::map<std::string, Rounds>& samples) {
  std::vector<double> mine;
  std::vector<double> others;
  const Rounds& other = rounds_of(samples, fields[2]);
  for (const auto& [round, value] : rounds_of(samples, fields[1])) {
    const auto same = other.find(round);
    if (same == other.end() || same->second <= 0) continue;
    mine.push_back(value);
    others.push_back(same->second);
  }
  if (mine.empty()) throw std::runtime_error(fmt::format("{} and {} share no round", fields[1], fields[2]));
  Json row = {{"what", fields[3]}};
  row.update(bench::ratio_json(bench::paired_ratio(mine, others)));
  row["rounds"] = mine.size();
  row["bar"] = fields[4];
  return row;
}

Json read_rows() {
  std::map<std::string, Rounds> samples;
  Json rows = Json::array();
  for (std::string line; std::getline(std::cin, line);) {
    if (line.starts_with("sample|")) {
      const auto fields = fields_of(line, 4);
      const bool first = samples[fields[2]].emplace(std::stoi(fields[1]), std::stod(fields[3])).second;
      if (!first) throw std::runtime_error(fmt::format("'{}' was sampled twice in a round", fields[2]));
    } else if (line.starts_with("value|")) {
      rows.push_back(value_row(fields_of(line, 6), samples));
    } else {
      rows.push_back(ratio_row(fields_of(line, 5), samples));
    }
  }
  return rows;
}

// One round has no interval, and few rounds have one of a lower level.
void print(const std::string& measured, const Json& rows) {
  double least = 1;
  for (const Json& row : rows) {
    const auto level = row.at("level").get<double>();
    if (level > 0) least = std::min(least, level);
  }
  fmt::print("measured: {}; gdx at {}; {}\n", measured, commit(),
             least < 1 ? fmt::format("intervals of level {:.4g}", least) : "one round, no intervals");
  fmt::print("{:<72} {:>10} {:>22}  {}\n", "", "median", "its interval", "bar");
  for (const Json& row : rows) {
    const bool ratio = row.contains("ratio");
    const auto what =
        row.at("what").get<std::string>() + (ratio ? "" : ", " + row.at("unit").get<std::string>());
    const std::string bounds =
        row.at("level") == 0
            ? "-"
            : fmt::format("[{:.4g}, {:.4g}]", row.at("low").get<double>(), row.at("high").get<double>());
    fmt::print("{:<72} {:>10.4g} {:>22}  {}\n", what, row.at(ratio ? "ratio" : "median").get<double>(),
               bounds, row.at("bar").get<std::string>());
  }
}

int run(int argc, char** argv) {
  command_line::App app("Reports what runner.sh sampled, from standard input");
  std::string measured;
  bool json = false;
  app.add_option("--measured", measured, "On what it was measured");
  app.add_flag("--json", json, "One JSON document instead of the table");
  if (const auto ends = app.parse("gdx_measurements", argc, argv)) return *ends;
  const Json rows = read_rows();
  if (json) {
    fmt::print("{}\n", Json({{"measured", measured}, {"commit", commit()}, {"rows", rows}}).dump(1));
  } else {
    print(measured, rows);
  }
  return 0;
}

}  // namespace
}  // namespace gdx::perf

int main(int argc, char** argv) {
  try {
    return gdx::perf::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "gdx_measurements: {}\n", error.what());
    return 1;
  }
}
