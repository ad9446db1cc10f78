#include "host/bench/document.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <utility>

namespace gdx::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kNsPerUs = 1e3;
constexpr char kBaseline[] = "pull";

// All rounds of one case.
struct Series {
  std::vector<double> medians_ns;
  std::vector<double> rates;
  std::vector<std::uint64_t> rounds;
  Histogram histogram;
  std::uint64_t messages = 0;
  std::uint64_t posted = 0;
  double sum_ns = 0;
  double sum_squares_ns2 = 0;
  double least_ns = 0;
  double most_ns = 0;
  double cpu_ns[2] = {};
  std::uint64_t stalls = 0;
  std::uint64_t retransmissions = 0;
  double pcie_reads = 0;
  double pcie_writes = 0;
  bool has_pcie = true;
  std::uint64_t checked_bytes = 0;
  std::uint64_t bad_bytes = 0;
};

void add_sample(Series& series, const Json& sample) {
  const bool first = series.rounds.empty();
  const auto messages = sample.at("messages").get<std::uint64_t>();
  series.rounds.push_back(sample.at("round").get<std::uint64_t>());
  series.medians_ns.push_back(sample.at("median_ns").get<double>());
  series.rates.push_back(sample.at("messages_per_s").get<double>());
  for (const Json& bucket : sample.at("histogram_ns"))
    series.histogram.add(bucket.at(0).get<std::uint64_t>(), bucket.at(1).get<std::uint64_t>());
  const auto least_ns = sample.at("least_ns").get<double>();
  series.least_ns = first ? least_ns : std::min(series.least_ns, least_ns);
  series.most_ns = std::max(series.most_ns, sample.at("most_ns").get<double>());
  series.messages += messages;
  series.posted += sample.at("posted").get<std::uint64_t>();
  series.sum_ns += sample.at("mean_ns").get<double>() * static_cast<double>(messages);
  series.sum_squares_ns2 += sample.at("mean_square_ns2").get<double>() * static_cast<double>(messages);
  for (std::size_t r = 0; r < 2; ++r) series.cpu_ns[r] += sample.at("cpu_ns").at(r).get<double>();
  series.stalls += sample.at("credit_stalls").get<std::uint64_t>();
  series.retransmissions += sample.at("retransmissions").get<std::uint64_t>();
  series.has_pcie = series.has_pcie && sample.at("pcie_reads").is_number();
  if (series.has_pcie) {
    series.pcie_reads += sample.at("pcie_reads").get<double>();
    series.pcie_writes += sample.at("pcie_writes").get<double>();
  }
  series.checked_bytes += sample.at("checked_bytes").get<std::uint64_t>();
  series.bad_bytes += sample.at("bad_bytes").get<std::uint64_t>();
}

Json to_json(const Interval& interval, double unit) {
  return {{"median", rounded(interval.estimate / unit)},
          {"low", rounded(interval.low / unit)},
          {"high", rounded(interval.high / unit)},
          {"level", rounded(interval.level)}};
}

Json latency_json(const Series& series) {
  Json json = to_json(median_interval(series.medians_ns), kNsPerUs);
  const auto quantile_us = [&](double q) {
    const double ns = std::clamp(series.histogram.quantile(q), series.least_ns, series.most_ns);
    return rounded(ns / kNsPerUs);
  };
  const auto count = static_cast<double>(std::max<std::uint64_t>(1, series.messages));
  const double mean_ns = series.sum_ns / count;
  const double variance = std::max(0.0, series.sum_squares_ns2 / count - mean_ns * mean_ns);
  json["least"] = rounded(series.least_ns / kNsPerUs);
  json["p50"] = quantile_us(0.5);
  json["p99"] = quantile_us(0.99);
  json["p99_9"] = quantile_us(0.999);
  json["most"] = rounded(series.most_ns / kNsPerUs);
  json["mean"] = rounded(mean_ns / kNsPerUs);
  json["stdev"] = rounded(std::sqrt(variance) / kNsPerUs);
  return json;
}

// Of one row of measured figures.
Json row_json(const Case& item, const Series& series, const std::string& label) {
  Json row = to_json(item);
  const bool latency = item.measure == Measure::kLatency;
  const auto posted = static_cast<double>(std::max<std::uint64_t>(1, series.posted));
  const Interval rate = median_interval(series.rates);
  const double gigabyte = 1e9 / static_cast<double>(item.bytes);
  row["series"] = label;
  row["rounds"] = series.rounds.size();
  row["messages"] = series.messages;
  row["latency_of"] = latency ? Json(latency_of(item.operation)) : Json(nullptr);
  row["latency_us"] = latency ? latency_json(series) : Json(nullptr);
  row["messages_per_s"] = to_json(rate, 1);
  row["gigabytes_per_s"] = to_json(rate, gigabyte);
  row["gigabytes_per_s"]["most"] = rounded(*std::ranges::max_element(series.rates) / gigabyte);
  row["cpu_us_per_message"] = {{"rank_0", rounded(series.cpu_ns[0] / posted / kNsPerUs)},
                               {"rank_1", rounded(series.cpu_ns[1] / posted / kNsPerUs)}};
  row["credit_stalls"] = series.stalls;
  row["retransmissions"] = series.retransmissions;
  const bool counted = series.has_pcie;
  row["pcie_reads_per_message"] = counted ? Json(rounded(series.pcie_reads / posted)) : Json(nullptr);
  row["pcie_writes_per_message"] = counted ? Json(rounded(series.pcie_writes / posted)) : Json(nullptr);
  row["bytes_verified"] = series.checked_bytes - series.bad_bytes;
  row["bad_bytes"] = series.bad_bytes;
  row["ratio_to_pull"] = nullptr;
  // Of each round: a time in us, or messages a second.
  row["samples"] = Json::array();
  for (const double value : latency ? series.medians_ns : series.rates)
    row["samples"].push_back(rounded(latency ? value / kNsPerUs : value));
  row["histogram_ns"] = Json::array();
  for (const auto& [value, count] : series.histogram.buckets()) row["histogram_ns"].push_back({value, count});
  return row;
}

// Adds the ratio of two ways that took turns in the same rounds: times, or for bandwidth rates.
void add_ratio(Json& row, const Case& item, const Series& mine, const Series& baseline) {
  const bool latency = item.measure == Measure::kLatency;
  std::vector<double> a;
  std::vector<double> b;
  a.reserve(mine.rounds.size());
  b.reserve(mine.rounds.size());
  for (std::size_t i = 0; i < mine.rounds.size(); ++i) {
    const auto same = std::ranges::find(baseline.rounds, mine.rounds[i]);
    if (same == baseline.rounds.end()) continue;
    const auto j = static_cast<std::size_t>(same - baseline.rounds.begin());
    a.push_back(latency ? mine.medians_ns[i] : mine.rates[i]);
    b.push_back(std::max(latency ? baseline.medians_ns[j] : baseline.rates[j], 1e-9));
  }
  if (a.empty()) return;
  const Interval ratio = paired_ratio(a, b);
  row["ratio_to_pull"] = {{"ratio", rounded(ratio.estimate)},
                          {"low", rounded(ratio.low)},
                          {"high", rounded(ratio.high)},
                          {"level", rounded(ratio.level)},
                          {"says", describe_ratio(ratio)}};
}

// The baseline of a case: the same by pull, or by the NIC alone, with the kernel posting.
bool is_baseline_of(const Case& other, Case item) {
  if (other.way != Way::kPull && other.way != Way::kNic) return false;
  item.way = other.way;
  return item == other;
}

}  // namespace

double rounded(double value) {
  if (value == 0 || !std::isfinite(value)) return 0;
  return std::stod(fmt::format("{:.4g}", value));
}

std::string key_of_row(const Json& row) {
  const auto direction = row.at("direction").get<std::string>();
  return fmt::format("{} {} {} {} B {} x{} depth {} batch {}{}", row.at("operation").get<std::string>(),
                     row.at("measure").get<std::string>(), row.at("mode").get<std::string>(),
                     row.at("bytes").get<std::uint64_t>(), row.at("scope").get<std::string>(),
                     row.at("endpoints").get<std::uint64_t>(), row.at("depth").get<std::uint64_t>(),
                     row.at("batch").get<std::uint64_t>(), direction == "both ways" ? " both ways" : "");
}

Json make_document(const Plan& plan, const std::vector<Case>& cases, const std::string& journal,
                   const std::string& command, const std::string& ended_by) {
  Json document = {{"gdx_bench", kDocumentVersion}, {"command", command},
                   {"measured_on", nullptr},        {"whole", false},
                   {"ended_by", nullptr},           {"conditions", Json::array()},
                   {"staging_violations", nullptr}, {"plan", to_json(plan)},
                   {"baseline", kBaseline}};
  std::vector<Series> series(cases.size());
  std::istringstream lines(journal);
  std::string failure;
  bool ended = false;
  for (std::string text; std::getline(lines, text);) {
    const Json line = Json::parse(text, nullptr, false);
    if (!line.is_object()) continue;  // cut off by the end of its writer
    if (line.contains("conditions")) {
      document["conditions"] = line["conditions"];
      document["measured_on"] = line["measured_on"];
    }
    if (line.contains("failure")) failure = line["failure"].get<std::string>();
    if (line.contains("end")) document["staging_violations"] = line["staging_violations"];
    ended = ended || line.contains("end");
    if (line.contains("case")) add_sample(series.at(line["case"].get<std::size_t>()), line);
  }
  document["whole"] = ended;
  if (!ended) document["ended_by"] = failure.empty() ? ended_by : failure;
  const std::string label =
      "measured on " +
      (document["measured_on"].is_string() ? document["measured_on"].get<std::string>() : "?");
  Json rows = Json::array();
  for (std::size_t i = 0; i < cases.size(); ++i) {
    if (series[i].rounds.empty()) continue;
    Json row = row_json(cases[i], series[i], label);
    for (std::size_t j = 0; j < cases.size(); ++j) {
      if (i != j && is_baseline_of(cases[j], cases[i])) add_ratio(row, cases[i], series[i], series[j]);
    }
    rows.push_back(std::move(row));
  }
  document["rows"] = std::move(rows);
  document["peers"] = Json::array();
  document["modelled"] = Json::array();
  add_fastest(document);
  return document;
}

void add_modelled(Json& document, const Json& model) {
  const std::string label =
      fmt::format("modelled by gdx model: {}, PCIe {} x{}, {} platform", model.at("path").get<std::string>(),
                  model.at("generation").get<int>(), model.at("lanes").get<int>(),
                  model.at("platform").get<std::string>());
  for (const Json& row : model.at("rows")) {
    document["modelled"].push_back({{"series", label},
                                    {"operation", "put"},
                                    {"mode", row.at("mode")},
                                    {"bytes", row.at("size_bytes")},
                                    {"latency_of", "completion"},
                                    {"latency_us", rounded(row.at("completed_ns").get<double>() / kNsPerUs)},
                                    {"messages_per_s", rounded(row.at("messages_per_s").get<double>())},
                                    {"gigabytes_per_s", rounded(row.at("messages_per_s").get<double>() *
                                                                row.at("size_bytes").get<double>() / 1e9)}});
  }
  add_fastest(document);
}

void add_fastest(Json& document) {
  // By series and operation, then by size: the mode of the least latency.
  std::map<std::pair<std::string, std::string>, std::map<std::uint64_t, std::pair<double, std::string>>> best;
  const auto offer = [&best](const Json& row, double us) {
    auto& of_size = best[{row.at("series").get<std::string>(), row.at("operation").get<std::string>()}];
    const auto bytes = row.at("bytes").get<std::uint64_t>();
    const auto found = of_size.find(bytes);
    if (found == of_size.end() || us < found->second.first)
      of_size[bytes] = {us, row.at("mode").get<std::string>()};
  };
  for (const Json& row : document.at("rows")) {
    const bool plain = row.at("endpoints") == 1 && row.at("scope") == document.at("rows")[0].at("scope");
    if (row.at("measure") == "lat" && plain) offer(row, row.at("latency_us").at("median").get<double>());
  }
  for (const Json& row : document.at("modelled")) offer(row, row.at("latency_us").get<double>());
  Json ranges = Json::array();
  for (const auto& [which, sizes] : best) {
    bool first = true;
    for (const auto& [bytes, fastest] : sizes) {
      if (first || ranges.back().at("mode") != fastest.second) {
        ranges.push_back({{"series", which.first},
                          {"operation", which.second},
                          {"mode", fastest.second},
                          {"from_bytes", bytes},
                          {"to_bytes", bytes}});
      }
      ranges.back()["to_bytes"] = bytes;
      first = false;
    }
  }
  document["fastest"] = std::move(ranges);
}

std::string to_text(const Json& document) {
  std::string text;
  for (const auto& [name, value] : document.items()) {
    text += fmt::format("{}\n\"{}\": ", text.empty() ? "{" : ",", name);
    if (!value.is_array()) {
      text += value.dump();
      continue;
    }
    std::vector<std::string> elements(value.size());
    std::ranges::transform(value, elements.begin(), [](const Json& element) { return element.dump(); });
    text += fmt::format("[{}]", fmt::join(elements, ",\n "));
  }
  return text + "\n}\n";
}

Result<Json> read_document(const std::string& file) {
  std::ifstream stream(file);
  if (!stream)
    return fail(Status::kNotFound, fmt::format("{}: cannot be read: name a file of gdx bench", file));
  const Json document = Json::parse(stream, nullptr, false);
  if (!document.is_object() || !document.contains("gdx_bench") || !document.contains("rows")) {
    return fail(Status::kInvalidArgument,
                fmt::format("{}: no result of gdx bench: make one by gdx bench --output", file));
  }
  if (document["gdx_bench"] != kDocumentVersion) {
    return fail(Status::kInvalidArgument,
                fmt::format("{}: of version {}, this gdx reads version {}: measure again", file,
                            document["gdx_bench"].dump(), kDocumentVersion));
  }
  try {
    for (const Json& row : document["rows"]) {
      (void)key_of_row(row);
      for (const Json& sample : row.at("samples")) (void)sample.get<double>();
    }
  } catch (const nlohmann::json::exception& error) {
    return fail(
        Status::kInvalidArgument,
        fmt::format("{}: no result of gdx bench ({}): make one by gdx bench --output", file, error.what()));
  }
  return document;
}

}  // namespace gdx::bench
