#include "host/programs/bench/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>

#include "base/size_text.h"
#include "host/programs/bench/chart.h"
#include "host/programs/bench/formats.h"
#include "host/programs/bench/statistics.h"

namespace gdx::bench {
namespace {

using Json = nlohmann::ordered_json;

std::string base64(std::string_view text) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((text.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < text.size(); i += 3) {
    std::uint32_t bits = 0;
    for (std::size_t k = 0; k < 3; ++k)
      bits = bits << 8 | (i + k < text.size() ? static_cast<unsigned char>(text[i + k]) : 0u);
    for (std::size_t k = 0; k < 4; ++k) out += i + k > text.size() ? '=' : kDigits[bits >> (18 - 6 * k) & 63];
  }
  return out;
}

// Returns the template with its names in double braces replaced.
std::string filled(std::string_view all, const std::map<std::string_view, std::string>& parts) {
  std::string text;
  for (std::size_t at = 0; (at = all.find("{{")) != std::string_view::npos;) {
    const std::size_t end = all.find("}}", at);
    text += all.substr(0, at);
    text += parts.at(all.substr(at + 2, end - at - 2));
    all.remove_prefix(end + 2);
  }
  return text.append(all);
}

const Json* find(const Json& row, const std::string& pointer) {
  const Json::json_pointer place(pointer);
  return row.contains(place) && !row.at(place).is_null() ? &row.at(place) : nullptr;
}

std::string shown(const Json& value) {
  if (value.is_null()) return "unknown";
  std::string text = escaped(value.is_string() ? value.get<std::string>() : value.dump());
  if (value.is_number() && text.ends_with(".0")) text.resize(text.size() - 2);
  return text;
}

// An element with a value of the document and its place there. Sizes are written as on the axes.
std::string element(const char* tag, const Json& document, const std::string& pointer,
                    const char* kind = "") {
  const Json* const value = find(document, pointer);
  if (value == nullptr) return fmt::format("<{0}></{0}>", tag);
  const std::string_view field = std::string_view(pointer).substr(pointer.rfind('/') + 1);
  const bool size = field == "bytes" || field == "from_bytes" || field == "to_bytes";
  return fmt::format("<{0}{1} data-at=\"{2}\">{3}</{0}>", tag, kind, pointer,
                     size ? size_text(value->get<std::uint64_t>()) : shown(*value));
}

struct Column {
  const char* title;
  const char* pointer;     // from the row on
  bool condition = false;  // above the table where all rows have the same
};

struct Rows {
  const Json& document;
  std::string list;  // "rows"
  std::vector<std::size_t> numbers;

  [[nodiscard]] const Json& at(std::size_t i) const { return document.at(list).at(numbers[i]); }
  [[nodiscard]] std::string place(std::size_t i, const std::string& pointer) const {
    return fmt::format("/{}/{}/{}", list, numbers[i], pointer);
  }
  [[nodiscard]] bool have(const Column& column) const {
    return std::ranges::any_of(numbers, [&](std::size_t i) {
      return find(document, fmt::format("/{}/{}/{}", list, i, column.pointer));
    });
  }
  [[nodiscard]] bool share(const Column& column) const {
    const Json* const first = find(document, place(0, column.pointer));
    for (std::size_t i = 1; i < numbers.size(); ++i) {
      const Json* const other = find(document, place(i, column.pointer));
      if ((first == nullptr) != (other == nullptr) || (first != nullptr && *first != *other)) return false;
    }
    return numbers.size() > 1;
  }
};

template <typename Wanted>
Rows rows_of(const Json& document, const std::string& list, Wanted wanted) {
  Rows rows{document, list, {}};
  for (std::size_t i = 0; i < document.at(list).size(); ++i) {
    if (wanted(document.at(list)[i])) rows.numbers.push_back(i);
  }
  return rows;
}

bool any(const Json&) { return true; }

// Columns that no row fills are left out, and conditions that all rows share stand above.
std::string table_of(const std::string& title, const Rows& rows, const std::vector<Column>& columns) {
  if (rows.numbers.empty()) return {};
  std::vector<Column> kept;
  std::string shared;
  for (const Column& column : columns) {
    if (!rows.have(column)) continue;
    if (column.condition && rows.share(column)) {
      shared += fmt::format("{}{} {}", shared.empty() ? "All rows: " : "; ", column.title,
                            element("span", rows.document, rows.place(0, column.pointer)));
    } else {
      kept.push_back(column);
    }
  }
  std::string text = fmt::format("<h3>{}</h3>\n", title);
  if (!shared.empty()) text += fmt::format("<p class=\"quiet\">{}</p>\n", shared);
  text += fmt::format(
      "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"{}\"><table><thead><tr>", title);
  const auto words = [&](const Column& column) {
    return std::ranges::any_of(rows.numbers, [&](std::size_t i) {
      const Json* const value = find(rows.document, fmt::format("/{}/{}/{}", rows.list, i, column.pointer));
      return value != nullptr && value->is_string();
    });
  };
  for (const Column& column : kept)
    text += fmt::format("<th scope=\"col\"{}>{}</th>", words(column) ? " class=\"text\"" : "", column.title);
  text += "</tr></thead><tbody>\n";
  for (std::size_t i = 0; i < rows.numbers.size(); ++i) {
    text += "<tr>";
    for (const Column& column : kept) {
      const std::string colour =
          std::string_view(column.pointer) == "mode" && rows.at(i).at("mode").is_string()
              ? fmt::format(" class=\"text key {}\"", colour_of(rows.at(i).at("mode").get<std::string>()))
          : words(column) ? " class=\"text\""
                          : "";
      text += element("td", rows.document, rows.place(i, column.pointer), colour.c_str());
    }
    text += "</tr>\n";
  }
  return text + "</tbody></table></div>\n";
}

const std::vector<Column> key_columns = {
    {"operation", "operation", true}, {"mode", "mode"}, {"size", "bytes"}};
const std::vector<Column> condition_columns = {
    {"scope", "scope", true},          {"ranks", "ranks", true},       {"endpoints", "endpoints", true},
    {"posters", "posters", true},      {"depth", "depth", true},       {"batch", "batch", true},
    {"direction", "direction", true},  {"doorbell", "doorbell", true}, {"queues", "queues", true},
    {"time of a", "latency_of", true}, {"series", "series", true}};
const std::vector<Column> latency_columns = {{"n (messages)", "messages"},
                                             {"rounds", "rounds"},
                                             {"median, us", "latency_us/median"},
                                             {"low", "latency_us/low"},
                                             {"high", "latency_us/high"},
                                             {"level", "latency_us/level", true},
                                             {"p99", "latency_us/p99"},
                                             {"p99.9", "latency_us/p99_9"},
                                             {"least", "latency_us/least"},
                                             {"most", "latency_us/most"},
                                             {"mean", "latency_us/mean"},
                                             {"stdev", "latency_us/stdev"},
                                             {"algbw, GB/s", "bus/algbw_gigabytes_per_s"},
                                             {"busbw, GB/s", "bus/busbw_gigabytes_per_s"},
                                             {"ratio to pull", "ratio_to_pull/says"}};
const std::vector<Column> bandwidth_columns = {{"n (messages)", "messages"},
                                               {"rounds", "rounds"},
                                               {"GB/s", "gigabytes_per_s/median"},
                                               {"low", "gigabytes_per_s/low"},
                                               {"high", "gigabytes_per_s/high"},
                                               {"level", "gigabytes_per_s/level", true},
                                               {"messages/s", "messages_per_s/median"},
                                               {"low", "messages_per_s/low"},
                                               {"high", "messages_per_s/high"},
                                               {"ratio to pull", "ratio_to_pull/says"}};
const std::vector<Column> cost_columns = {{"measure", "measure", true},
                                          {"CPU us, rank 0", "cpu_us_per_message/rank_0"},
                                          {"CPU us, rank 1", "cpu_us_per_message/rank_1"},
                                          {"stalls", "credit_stalls"},
                                          {"resent", "retransmissions"},
                                          {"PCIe reads", "pcie_reads_per_message"},
                                          {"of records", "pcie_record_reads_per_message"},
                                          {"PCIe writes", "pcie_writes_per_message"},
                                          {"counted by", "pcie_counted_by", true},
                                          {"bytes verified", "bytes_verified"},
                                          {"wrong", "bad_bytes", true}};

std::vector<Column> joined(std::initializer_list<const std::vector<Column>*> parts) {
  std::vector<Column> all;
  for (const auto* const part : parts) all.insert(all.end(), part->begin(), part->end());
  return all;
}

// The fields in which rows of one benchmark may differ, beside the mode.
constexpr std::array kFields = {"bytes", "endpoints", "posters",   "depth",    "batch",
                                "scope", "ranks",     "direction", "doorbell", "queues"};
constexpr std::size_t kAxes = 5;  // of those, which a chart may have across

// Rows of one benchmark, drawn in charts whose rows differ in the mode and along one axis alone.
class Benchmark {
 public:
  Benchmark(const Json& document, std::string operation, const std::string& measure)
      : document_(document),
        operation_(std::move(operation)),
        latency_(measure == "lat"),
        rows_(rows_of(document, "rows", [&](const Json& row) { return is_of(row); })),
        peers_(rows_of(document, "peers", [&](const Json& row) { return is_of(row); })) {
    std::size_t most = 1;
    for (std::size_t i = 0; i < kFields.size(); ++i) {
      std::vector<std::string> values;
      for (std::size_t r = 0; r < rows_.numbers.size(); ++r) values.push_back(value(rows_.at(r), kFields[i]));
      std::ranges::sort(values);
      const auto count = static_cast<std::size_t>(std::unique(values.begin(), values.end()) - values.begin());
      if (count > 1) differing_.emplace_back(kFields[i]);
      if (i < kAxes && count > most) {
        most = count;
        axis_ = kFields[i];
      }
    }
    std::erase(differing_, axis_);
  }

  [[nodiscard]] std::string charts() const {
    std::string text;
    std::vector<std::pair<std::string, std::vector<std::size_t>>> groups;
    for (std::size_t r = 0; r < rows_.numbers.size(); ++r) {
      const std::string name = group_of(rows_.at(r), true);
      auto group = std::ranges::find(groups, name, &std::pair<std::string, std::vector<std::size_t>>::first);
      if (group == groups.end()) group = groups.insert(groups.end(), {name, {}});
      group->second.push_back(r);
    }
    for (const auto& [name, rows] : groups) text += figure(name, rows);
    if (!latency_) text += over_time();
    return text;
  }

 private:
  [[nodiscard]] bool is_of(const Json& row) const {
    return row.at("operation") == operation_ && row.at("measure") == (latency_ ? "lat" : "bw");
  }
  static std::string value(const Json& row, const std::string& field) {
    const Json* const found = find(row, "/" + field);
    return found == nullptr ? "" : shown(*found);
  }
  // ", warp, 4 endpoints": what tells a chart from the others of the benchmark.
  [[nodiscard]] std::string group_of(const Json& row, bool with_scope) const {
    std::string name;
    for (const std::string& field : differing_) {
      if (field == "scope" && !with_scope) continue;
      name += field == "bytes" ? ", " + size_text(row.at(field).get<std::uint64_t>())
                               : fmt::format(", {} {}", field, value(row, field));
    }
    return name;
  }
  [[nodiscard]] std::string title() const {
    return operation_ + (find(document_, rows_.place(0, "bus")) != nullptr ? "" : latency_ ? "_lat" : "_bw");
  }

  void add(const Rows& rows, std::size_t r, std::vector<ChartLine>& lines) const {
    const Json& row = rows.at(r);
    const std::string of = latency_ ? "latency_us" : "gigabytes_per_s";
    const Json* const figures = find(row, "/" + of);
    if (figures == nullptr || !figures->at("median").is_number()) return;
    const auto mode = row.at("mode").get<std::string>();
    auto line = std::ranges::find(lines, mode, &ChartLine::name);
    if (line == lines.end()) line = lines.insert(lines.end(), {mode, mode, {}});
    const auto level = figures->at("level").get<double>();
    ChartPoint point{row.at(axis_).get<double>(), figures->at("median").get<double>(),
                     rows.place(r, of + "/median")};
    point.sure = level >= kLeastLevel;
    if (level > 0) point.interval = {figures->at("low").get<double>(), figures->at("high").get<double>()};
    line->points.push_back(std::move(point));
  }

  [[nodiscard]] std::string figure(const std::string& name, const std::vector<std::size_t>& members) const {
    Chart chart{.name = title() + name,
                .x_name = axis_ == "bytes" ? "size of a message" : axis_,
                .y_name = latency_ ? "median, us" : "median, GB/s",
                .sizes = axis_ == "bytes"};
    for (const std::size_t r : members) add(rows_, r, chart.lines);
    for (std::size_t p = 0; p < peers_.numbers.size(); ++p) {
      if (group_of(peers_.at(p), false) == group_of(rows_.at(members[0]), false)) add(peers_, p, chart.lines);
    }
    const auto by = [&](const char* field) {
      return [this, field](std::size_t r) { return rows_.at(r).at(field).get<std::uint64_t>(); };
    };
    const auto span = [&](std::size_t r, const char* field) {
      return element("span", document_, rows_.place(r, field));
    };
    const auto [few, many] = std::ranges::minmax(members, {}, by("messages"));
    const auto [short_, whole] = std::ranges::minmax(members, {}, by("rounds"));
    const auto sure = [&](std::size_t r) {
      return find(rows_.at(r), latency_ ? "/latency_us/level" : "/gigabytes_per_s/level")->get<double>() >=
             kLeastLevel;
    };
    const auto range = [&](const char* field, std::size_t least, std::size_t most) {
      return span(least, field) + (by(field)(least) == by(field)(most) ? "" : " to " + span(most, field));
    };
    std::string caption = fmt::format("Bars are intervals. n of a point: {} messages, in {} rounds.",
                                      range("messages", few, many), range("rounds", short_, whole));
    if (!std::ranges::all_of(members, sure)) caption += " Hollow: too few rounds for a verdict.";
    return framed(chart, caption);
  }

  // Slots leased and blocks in flight, of the longest messages.
  [[nodiscard]] std::string over_time() const {
    std::uint64_t most = 0;
    for (std::size_t r = 0; r < rows_.numbers.size(); ++r)
      most = std::max(most, rows_.at(r).at("bytes").get<std::uint64_t>());
    std::string text;
    for (const auto& [field, name] :
         {std::pair("leased_slots", "staging slots leased"), std::pair("in_flight", "WQEBBs in flight")}) {
      Chart chart{.name = fmt::format("{} of {}: {}", title(), size_text(most), name),
                  .x_name = "us since the first message that warms up",
                  .y_name = name,
                  .over_time = true};
      double top = 0;
      for (std::size_t r = 0; r < rows_.numbers.size(); ++r) {
        const Json& row = rows_.at(r);
        const auto mode = row.at("mode").get<std::string>();
        const Json& at_us = row.at("occupancy").at("us");
        const bool known = std::ranges::count(chart.lines, mode, &ChartLine::name) != 0;
        if (row.at("bytes") != most || at_us.empty() || known) continue;
        ChartLine line{mode, mode, {}};
        for (std::size_t i = 0; i < at_us.size(); ++i) {
          line.points.push_back({at_us[i].get<double>(), row.at("occupancy").at(field)[i].get<double>(), ""});
          top = std::max(top, line.points.back().y);
        }
        chart.lines.push_back(std::move(line));
      }
      if (top > 0) text += framed(chart, "While the messages pass that warm up the last round.");
    }
    return text;
  }

 public:
  // With its export, which has the colours in itself.
  static std::string framed(const Chart& chart, const std::string& caption) {
    const std::string svg = svg_of(chart);
    if (svg.empty()) return {};
    const std::string_view all = page_template();
    const std::string_view begin = "/*chart{*/";
    const std::size_t from = all.find(begin) + begin.size();
    std::string alone = svg;
    alone.insert(alone.find(">\n") + 1,
                 fmt::format("<style>{}</style>", all.substr(from, all.find("/*}chart*/") - from)));
    std::string file = chart.name;
    std::ranges::replace_if(
        file, [](char c) { return c == ' ' || c == ',' || c == ':' || c == '/'; }, '-');
    return fmt::format(
        "<figure>{}<figcaption>{} <a class=\"export\" download=\"{}.svg\" "
        "href=\"data:image/svg+xml;base64,{}\">SVG</a>"
        "</figcaption></figure>\n",
        svg, caption, escaped(file), base64(alone));
  }

 private:
  const Json& document_;
  std::string operation_;
  bool latency_;
  Rows rows_;
  Rows peers_;
  std::string axis_ = "bytes";
  std::vector<std::string> differing_;
};

std::string measured_section(const Json& document) {
  std::string charts;
  std::vector<std::pair<std::string, std::string>> done;
  for (const Json& row : document.at("rows")) {
    const std::pair test(row.at("operation").get<std::string>(), row.at("measure").get<std::string>());
    if (std::ranges::count(done, test) != 0) continue;
    done.push_back(test);
    charts += Benchmark(document, test.first, test.second).charts();
  }
  const auto of = [&](const char* measure) {
    return rows_of(document, "rows", [=](const Json& row) { return row.at("measure") == measure; });
  };
  const Rows all = rows_of(document, "rows", any);
  return fmt::format("<h2>Measured</h2>\n<div class=\"charts\">\n{}</div>\n", charts) +
         table_of("Latency", of("lat"), joined({&key_columns, &latency_columns, &condition_columns})) +
         table_of("Bandwidth and rate", of("bw"),
                  joined({&key_columns, &bandwidth_columns, &condition_columns})) +
         table_of("Costs of a message, and what was verified", all,
                  joined({&key_columns, &cost_columns, &condition_columns})) +
         table_of("Standard benchmarks on the same HCA", rows_of(document, "peers", any),
                  joined({&key_columns, &latency_columns, &bandwidth_columns, &condition_columns}));
}

// A chart for each series and operation.
std::string modelled_charts(const Json& rows) {
  struct Modelled {
    std::string operation;
    std::string series;
    Chart chart;
  };
  std::vector<Modelled> all;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto series = rows[i].at("series").get<std::string>();
    const auto operation = rows[i].at("operation").get<std::string>();
    auto one = std::ranges::find_if(
        all, [&](const Modelled& other) { return other.series == series && other.operation == operation; });
    if (one == all.end()) {
      const std::size_t path = series.find(": ") + 2;
      one = all.insert(all.end(), {operation, series, {}});
      one->chart = {
          .name = fmt::format("{}, modelled: {}", operation, series.substr(path, series.find(',') - path)),
          .x_name = "size of a message",
          .y_name = "latency, us",
          .sizes = true,
          .modelled = true};
    }
    const auto mode = rows[i].at("mode").get<std::string>();
    auto& lines = one->chart.lines;
    auto line = std::ranges::find(lines, mode, &ChartLine::name);
    if (line == lines.end()) line = lines.insert(lines.end(), {mode, mode, {}});
    line->points.push_back({rows[i].at("bytes").get<double>(), rows[i].at("latency_us").get<double>(),
                            fmt::format("/modelled/{}/latency_us", i)});
  }
  std::string text;
  for (const Modelled& one : all) text += Benchmark::framed(one.chart, escaped(one.series));
  return text;
}

std::string modelled_section(const Json& document) {
  if (document.at("modelled").empty()) return {};
  const std::string text =
      "<h2>Modelled</h2>\n<p class=\"quiet\">By gdx model, of hardware that nobody has measured here. These "
      "figures say nothing of those above.</p>\n<div class=\"charts\">\n" +
      modelled_charts(document.at("modelled"));
  return text + "</div>\n" +
         table_of("Modelled figures", rows_of(document, "modelled", any),
                  {{"operation", "operation", true},
                   {"mode", "mode"},
                   {"size", "bytes"},
                   {"latency, us", "latency_us"},
                   {"GB/s", "gigabytes_per_s"},
                   {"messages/s", "messages_per_s"},
                   {"time of a", "latency_of", true},
                   {"series", "series", true}}) +
         table_of("Fastest mode by size", rows_of(document, "fastest", any),
                  {{"operation", "operation", true},
                   {"from", "from_bytes"},
                   {"to", "to_bytes"},
                   {"mode", "mode"},
                   {"series", "series", true}});
}

std::string conditions(const Json& document) {
  std::string text;
  const Json& ranks = document.at("conditions");
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    text += fmt::format("<h3>{}</h3><dl>\n", i == 0 ? "The rank that reports" : "Another rank");
    for (const auto& [name, value] : ranks[i].items())
      text += fmt::format("<dt>{}</dt><dd>{}</dd>\n", escaped(name), shown(value));
    text += "</dl>\n";
  }
  return text;
}

// Numbers of ratios that differ, and of those without a verdict.
std::string verdicts(const Json& document) {
  const auto span = [&](const char* field) {
    return element("span", document, fmt::format("/ratios/{}", field));
  };
  return fmt::format(
      "{} of {} ratios to pull differ beyond noise; by chance alone about {} would. {} have no verdict, "
      "because "
      "their rounds are too few.",
      span("differ"), span("count"), span("by_chance"), span("without_verdict"));
}

}  // namespace

std::string page(const Json& document) {
  std::string warned;
  for (const std::string& line : warnings(document))
    warned += fmt::format("<p class=\"warn\">{}</p>\n", escaped(line));
  const std::string on = shown(document.at("measured_on"));
  return filled(page_template(), {{"title", on},
                                  {"on", on},
                                  {"begun", shown(document.at("begun"))},
                                  {"command", shown(document.at("command"))},
                                  {"warnings", warned},
                                  {"verdicts", verdicts(document)},
                                  {"json", base64(document.dump())},
                                  {"csv", base64(csv(document))},
                                  {"figures", measured_section(document) + modelled_section(document)},
                                  {"conditions", conditions(document)}});
}

}  // namespace gdx::bench
