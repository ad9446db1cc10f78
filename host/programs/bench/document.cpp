#include "host/programs/bench/document.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <utility>

#include "host/programs/bench/peers.h"

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
  std::vector<double> cpu_ns;  // by rank
  std::uint64_t stalls = 0;
  std::uint64_t retransmissions = 0;
  double pcie_reads = 0;
  double pcie_record_reads = 0;
  double pcie_writes = 0;
  bool has_pcie = true;
  std::uint64_t checked_bytes = 0;
  std::uint64_t bad_bytes = 0;
  Json occupancy = Json::array();  // of the last round: of each point ns, slots leased, blocks in flight
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
  const Json& cpu_ns = sample.at("cpu_ns");
  series.cpu_ns.resize(cpu_ns.size());
  for (std::size_t r = 0; r < cpu_ns.size(); ++r) series.cpu_ns[r] += cpu_ns[r].get<double>();
  series.stalls += sample.at("credit_stalls").get<std::uint64_t>();
  series.occupancy = sample.at("occupancy");
  series.retransmissions += sample.at("retransmissions").get<std::uint64_t>();
  series.has_pcie = series.has_pcie && sample.at("pcie_reads").is_number();
  if (series.has_pcie) {
    series.pcie_reads += sample.at("pcie_reads").get<double>();
    series.pcie_record_reads += sample.at("pcie_record_reads").get<double>();
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
  const auto quantile_us = [&](double q) -> Json {
    if (!has_quantile(series.histogram.count(), q)) return nullptr;
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

// Of the median round.
Json bus_json(const Bus& bus, const Json& latency) {
  const double gigabytes = static_cast<double>(bus.bytes) / latency.at("median").get<double>() / 1e3;
  return {{"bytes", bus.bytes},
          {"factor", rounded(bus.factor)},
          {"algbw_gigabytes_per_s", rounded(gigabytes)},
          {"busbw_gigabytes_per_s", rounded(gigabytes * bus.factor)}};
}

// Of one row of measured figures.
Json row_json(const Case& item, const Series& series, const std::string& label) {
  Json row = to_json(item);
  const bool latency = item.measure == Measure::kLatency;
  const auto posted = static_cast<double>(std::max<std::uint64_t>(1, series.posted));
  const Interval rate = median_interval(series.rates);
  const bool collective = is_collective(item.operation);
  const Bus bus = bus_of(item);
  const double gigabyte = 1e9 / static_cast<double>(collective ? bus.bytes : item.bytes);
  row["series"] = label;
  row["rounds"] = series.rounds.size();
  row["messages"] = series.messages;
  row["latency_of"] = latency ? Json(latency_of(item.operation)) : Json(nullptr);
  row["latency_us"] = latency ? latency_json(series) : Json(nullptr);
  row["messages_per_s"] = to_json(rate, 1);
  row["gigabytes_per_s"] = to_json(rate, gigabyte);
  row["gigabytes_per_s"]["most"] = rounded(*std::ranges::max_element(series.rates) / gigabyte);
  row["bus"] = collective ? bus_json(bus, row["latency_us"]) : Json(nullptr);
  for (std::size_t r = 0; r < series.cpu_ns.size(); ++r)
    row["cpu_us_per_message"][fmt::format("rank_{}", r)] = rounded(series.cpu_ns[r] / posted / kNsPerUs);
  row["credit_stalls"] = series.stalls;
  row["occupancy"] = {{"us", Json::array()}, {"leased_slots", Json::array()}, {"in_flight", Json::array()}};
  for (const Json& point : series.occupancy) {
    row["occupancy"]["us"].push_back(rounded(point.at(0).get<double>() / kNsPerUs));
    row["occupancy"]["leased_slots"].push_back(point.at(1));
    row["occupancy"]["in_flight"].push_back(point.at(2));
  }
  row["retransmissions"] = series.retransmissions;
  const bool counted = series.has_pcie;
  row["pcie_counted_by"] = counted ? Json("the software HCA") : Json(nullptr);
  row["pcie_reads_per_message"] = counted ? Json(rounded(series.pcie_reads / posted)) : Json(nullptr);
  row["pcie_record_reads_per_message"] =
      counted ? Json(rounded(series.pcie_record_reads / posted)) : Json(nullptr);
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

// Of each round a time, or for bandwidth a rate.
struct Figures {
  bool latency = false;
  std::vector<std::uint64_t> rounds;
  std::vector<double> values;
};

Figures figures_of(const Case& item, const Series& series) {
  const bool latency = item.measure == Measure::kLatency;
  return {latency, series.rounds, latency ? series.medians_ns : series.rates};
}

// The ratio of two that took turns in the same rounds; null where they did in none.
Json ratio_of_rounds(const Figures& mine, const Figures& baseline) {
  std::vector<double> a;
  std::vector<double> b;
  a.reserve(mine.rounds.size());
  b.reserve(mine.rounds.size());
  for (std::size_t i = 0; i < mine.rounds.size(); ++i) {
    const auto same = std::ranges::find(baseline.rounds, mine.rounds[i]);
    if (same == baseline.rounds.end()) continue;
    a.push_back(mine.values[i]);
    b.push_back(std::max(baseline.values[static_cast<std::size_t>(same - baseline.rounds.begin())], 1e-9));
  }
  return a.empty() ? Json(nullptr) : ratio_json(paired_ratio(a, b));
}

// The baseline of a case: the same by pull, or by the NIC alone, with the kernel posting.
bool is_baseline_of(const Case& other, Case item) {
  if (other.way != Way::kPull && other.way != Way::kNic) return false;
  item.way = other.way;
  return item == other;
}

// A journal's lines by the case or the peer that they are of.
class Journal {
 public:
  Journal(const Plan& plan, const std::vector<Case>& cases)
      : cases_(cases),
        series_(cases.size()),
        on_gpu_(plan.memory == kGpuMemory),
        dropped_(cases.size()),
        peers_(peer_runs(plan, cases)),
        peer_figures_(peers_.size()),
        peer_rounds_(peers_.size()) {}

  void add(const Json& line, Json& document) {
    if (line.contains("conditions")) {
      document["begun"] = line["begun"];
      document["conditions"] = line["conditions"];
      document["measured_on"] = line["measured_on"];
      hca_ = line["hca"].get<std::string>();
    }
    if (line.contains("failure")) failure = line["failure"].get<std::string>();
    if (line.contains("end")) document["staging_violations"] = line["staging_violations"];
    ended = ended || line.contains("end");
    if (line.contains("case")) add_sample(series_.at(line["case"].get<std::size_t>()), line);
    if (line.contains("peer")) {
      const auto index = line["peer"].get<std::size_t>();
      peer_figures_.at(index).push_back(peer_figures_from_json(line));
      peer_rounds_.at(index).push_back(line["round"].get<std::uint64_t>());
    }
    if (line.contains("no_figure"))
      document["without_figure"].push_back(key_of(cases_.at(line["no_figure"].get<std::size_t>())));
    if (line.contains("dropped"))
      dropped_.at(line["dropped"].get<std::size_t>()) += line["bad_bytes"].get<std::uint64_t>();
  }

  // Returns whether each case that was measured has all rounds.
  [[nodiscard]] bool has_all(std::uint64_t rounds) const {
    return std::ranges::all_of(
        series_, [&](const Series& one) { return one.rounds.empty() || one.rounds.size() >= rounds; });
  }

  // Wrong bytes of rounds and messages that warm up, of each case that has any.
  [[nodiscard]] Json dropped_damage() const {
    Json damage = Json::array();
    for (std::size_t i = 0; i < cases_.size(); ++i) {
      if (dropped_[i] != 0) damage.push_back({{"case", key_of(cases_[i])}, {"bad_bytes", dropped_[i]}});
    }
    return damage;
  }

  [[nodiscard]] Json rows(const Json& measured_on) const {
    const std::string label =
        "measured on " + (measured_on.is_string() ? measured_on.get<std::string>() : "?");
    Json rows = Json::array();
    for (std::size_t i = 0; i < cases_.size(); ++i) {
      if (series_[i].rounds.empty()) continue;
      Json row = row_json(cases_[i], series_[i], label);
      if (!is_baseline_of(cases_[i], cases_[i]))
        row["ratio_to_pull"] = ratio_of(cases_[i], figures_of(cases_[i], series_[i]));
      rows.push_back(std::move(row));
    }
    return rows;
  }

  [[nodiscard]] Json peer_rows() const {
    Json rows = Json::array();
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      if (peer_figures_[i].empty()) continue;
      Json row = peer_row(peers_[i], peer_figures_[i], hca_ + (on_gpu_ ? ", payload in host memory" : ""));
      Figures mine{peers_[i].item.measure == Measure::kLatency, peer_rounds_[i], {}};
      mine.values.resize(peer_figures_[i].size());
      std::ranges::transform(peer_figures_[i], mine.values.begin(), [&](const PeerFigures& one) {
        return mine.latency ? one.us * kNsPerUs : one.messages_per_s;
      });
      if (!on_gpu_ && !measures_otherwise(peers_[i])) row["ratio_to_pull"] = ratio_of(peers_[i].item, mine);
      rows.push_back(std::move(row));
    }
    return rows;
  }

  bool ended = false;
  std::string failure;

 private:
  [[nodiscard]] Json ratio_of(const Case& item, const Figures& figures) const {
    for (std::size_t i = 0; i < cases_.size(); ++i) {
      if (is_baseline_of(cases_[i], item)) return ratio_of_rounds(figures, figures_of(cases_[i], series_[i]));
    }
    return nullptr;
  }

  const std::vector<Case>& cases_;
  std::vector<Series> series_;
  bool on_gpu_;  // payload of the cases; that of peers is in host memory
  std::vector<std::uint64_t> dropped_;
  std::vector<PeerRun> peers_;
  std::vector<std::vector<PeerFigures>> peer_figures_;
  std::vector<std::vector<std::uint64_t>> peer_rounds_;
  std::string hca_;
};

Json ratios_of(const Json& document) {
  Json ratios = Json::array();
  for (const char* const list : {"rows", "peers"}) {
    for (const Json& row : document.at(list)) {
      if (!row.at("ratio_to_pull").is_null()) ratios.push_back(row["ratio_to_pull"]);
    }
  }
  return ratios;
}

// The mode of the least latency, and those whose intervals overlap its own: noise does not tell them apart.
struct Contender {
  std::string mode;
  double us;
  double low;
  double high;
  double level;
};
std::string fastest_of(const std::vector<Contender>& all) {
  const Contender& best = *std::ranges::min_element(all, {}, &Contender::us);
  std::string modes;
  for (const Contender& one : all) {
    if (one.low > best.high) continue;
    modes += (modes.empty() ? "" : " or ") + one.mode;
  }
  const bool unknown = all.size() > 1 &&
                       std::ranges::any_of(all, [](const Contender& one) { return one.level < kLeastLevel; });
  return unknown ? "too few rounds" : modes;
}

}  // namespace

double rounded(double value) {
  if (value == 0 || !std::isfinite(value)) return 0;
  return std::stod(fmt::format("{:.4g}", value));
}

Json ratio_json(const Interval& ratio) {
  return {{"ratio", rounded(ratio.estimate)},
          {"low", rounded(ratio.low)},
          {"high", rounded(ratio.high)},
          {"level", rounded(ratio.level)},
          {"differs", ratio.level < kLeastLevel ? Json(nullptr) : Json(differs(ratio))},
          {"says", describe_ratio(ratio)}};
}

Json count_verdicts(const Json& ratios) {
  std::size_t count = 0;
  std::size_t differing = 0;
  std::size_t unknown = 0;
  double by_chance = 0;
  for (const Json& ratio : ratios) {
    if (ratio.at("differs").is_null()) {
      ++unknown;
      continue;
    }
    ++count;
    differing += ratio.at("differs").get<bool>() ? 1 : 0;
    by_chance += 1 - ratio.at("level").get<double>();
  }
  return {{"count", count},
          {"differ", differing},
          {"by_chance", rounded(by_chance)},
          {"without_verdict", unknown}};
}

// Returns " blueflame", " host queues", both or nothing.
std::string variant_of(const Json& row) {
  const std::string standard(kDefault);
  const std::string doorbell = row.value("doorbell", standard);
  const std::string queues = row.value("queues", standard);
  return (doorbell == standard ? "" : " " + doorbell) +
         (queues == standard ? "" : fmt::format(" {} queues", queues));
}

std::string key_of_row(const Json& row) {
  const auto direction = row.at("direction").get<std::string>();
  const auto ranks = row.at("ranks").get<std::uint64_t>();
  const auto endpoints = row.at("endpoints").get<std::uint64_t>();
  const auto posters = row.value("posters", endpoints);
  return fmt::format("{} {} {} {} B {} x{} depth {} batch {}{}{}{}{}", row.at("operation").get<std::string>(),
                     row.at("measure").get<std::string>(), row.at("mode").get<std::string>(),
                     row.at("bytes").get<std::uint64_t>(),
                     row.at("scope").is_string() ? row["scope"].get<std::string>() : "CPU", endpoints,
                     row.at("depth").get<std::uint64_t>(), row.at("batch").get<std::uint64_t>(),
                     posters > endpoints ? fmt::format(" {} posters", posters) : "",
                     ranks == 2 ? "" : fmt::format(" {} ranks", ranks),
                     direction == "both ways" ? " both ways" : "", variant_of(row));
}

Json make_document(const Plan& plan, const std::vector<Case>& cases, const std::string& journal,
                   const std::string& command, const std::string& ended_by) {
  Json document = {{"gdx_bench", kDocumentVersion},
                   {"command", command},
                   {"begun", nullptr},
                   {"measured_on", nullptr},
                   {"whole", false},
                   {"ended_by", nullptr},
                   {"without_figure", Json::array()},
                   {"conditions", Json::array()},
                   {"staging_violations", nullptr},
                   {"plan", to_json(plan)},
                   {"baseline", kBaseline}};
  Journal read(plan, cases);
  std::istringstream lines(journal);
  for (std::string text; std::getline(lines, text);) {
    const Json line = Json::parse(text, nullptr, false);
    if (line.is_object()) read.add(line, document);  // else cut off by the end of its writer
  }
  document["whole"] = read.ended && document["without_figure"].empty() && read.has_all(plan.rounds);
  if (!read.ended)
    document["ended_by"] = read.failure.empty() ? ended_by : fmt::format("{}; {}", read.failure, ended_by);
  else if (!document["whole"].get<bool>())
    document["ended_by"] = "no time for all of its plan: allow more --seconds";
  document["dropped_damage"] = read.dropped_damage();
  document["rows"] = read.rows(document["measured_on"]);
  document["peers"] = read.peer_rows();
  document["modelled"] = Json::array();
  document["ratios"] = count_verdicts(ratios_of(document));
  add_fastest(document);
  return document;
}

void add_fastest(Json& document) {
  // By series and operation, then by size.
  std::map<std::pair<std::string, std::string>, std::map<std::uint64_t, std::vector<Contender>>> modes;
  const auto offer = [&modes](const Json& row, double us, double low, double high, double level) {
    auto& of_size = modes[{row.at("series").get<std::string>(), row.at("operation").get<std::string>()}];
    std::string mode = row.at("mode").get<std::string>() + variant_of(row);
    of_size[row.at("bytes").get<std::uint64_t>()].push_back({std::move(mode), us, low, high, level});
  };
  for (const Json& row : document.at("rows")) {
    const bool plain = row.at("endpoints") == 1 && row.at("scope") == document.at("rows")[0].at("scope");
    if (row.at("measure") != "lat" || !plain) continue;
    const Json& us = row.at("latency_us");
    offer(row, us.at("median").get<double>(), us.at("low").get<double>(), us.at("high").get<double>(),
          us.at("level").get<double>());
  }
  for (const Json& row : document.at("modelled")) {
    if (row.at("latency_of") == "completion" && row.at("endpoints") != 1) continue;
    const auto us = row.at("latency_us").get<double>();
    offer(row, us, us, us, 1);
  }
  Json ranges = Json::array();
  for (const auto& [which, sizes] : modes) {
    bool first = true;
    for (const auto& [bytes, contenders] : sizes) {
      const std::string fastest = fastest_of(contenders);
      if (first || ranges.back().at("mode") != fastest) {
        ranges.push_back({{"series", which.first},
                          {"operation", which.second},
                          {"mode", fastest},
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
