#include "host/programs/bench/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <utility>
#include <vector>

#include "host/programs/bench/formats.h"
#include "host/programs/bench/page_script.h"
#include "host/programs/bench/page_style.h"

namespace gdx::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kChartFiles[] = {
    "/usr/share/javascript/chart.js/Chart.min.js",  "/usr/share/javascript/chart.js/chart.min.js",
    "/usr/share/javascript/chart.js/chart.umd.js",  "/usr/share/nodejs/chart.js/dist/chart.min.js",
    "/usr/share/nodejs/chart.js/dist/chart.umd.js", "/usr/local/lib/node_modules/chart.js/dist/chart.umd.js",
    "node_modules/chart.js/dist/chart.umd.js"};

// Reads a script; the end of a script element in one of its strings would end the page's.
std::string read_script(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  for (std::size_t at = 0; (at = text.find("</script", at)) != std::string::npos;) text.insert(at + 1, "\\");
  return text;
}

std::string escaped(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

// Text inside a script element, which "</script" and "<!--" would end or change.
std::string inside_script(std::string text) {
  for (std::size_t at = 0; (at = text.find('<', at)) != std::string::npos; at += 6)
    text.replace(at, 1, "\\u003c");
  return text;
}

std::string shown(const Json& value) {
  if (value.is_null()) return "unknown";
  return escaped(value.is_string() ? value.get<std::string>() : value.dump());
}

// One cell, with the figure's place in the document.
std::string cell(const Json& document, const std::string& pointer) {
  const Json::json_pointer place(pointer);
  if (!document.contains(place) || document.at(place).is_null()) return "<td></td>";
  const Json& value = document.at(place);
  std::string text = shown(value);
  if (value.is_number() && text.ends_with(".0")) text.resize(text.size() - 2);
  return fmt::format("<td{} data-at=\"{}\">{}</td>", value.is_string() ? " class=\"text\"" : "", pointer,
                     text);
}

struct Column {
  const char* title;
  const char* pointer;  // from the row on
};

// A table of all rows of `list`; `wanted` chooses among them.
template <typename Wanted>
std::string table_of(const Json& document, const std::string& list, const std::vector<Column>& columns,
                     Wanted wanted) {
  std::string text = "<div class=\"wide\" tabindex=\"0\"><table><thead><tr>";
  const Json& rows = document.at(list);
  for (const Column& column : columns) {
    const Json::json_pointer place(fmt::format("/{}", column.pointer));
    const bool words = std::ranges::any_of(
        rows, [&](const Json& row) { return row.contains(place) && row.at(place).is_string(); });
    text += fmt::format("<th scope=\"col\"{}>{}</th>", words ? " class=\"text\"" : "", column.title);
  }
  text += "</tr></thead><tbody>\n";
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!wanted(rows[i])) continue;
    text += "<tr>";
    for (const Column& column : columns)
      text += cell(document, fmt::format("/{}/{}/{}", list, i, column.pointer));
    text += "</tr>\n";
  }
  return text + "</tbody></table></div>\n";
}

std::string measured_tables(const Json& document) {
  std::vector<Column> latency = {{"operation", "operation"},
                                 {"mode", "mode"},
                                 {"bytes", "bytes"},
                                 {"scope", "scope"},
                                 {"endpoints", "endpoints"},
                                 {"median us", "latency_us/median"},
                                 {"low", "latency_us/low"},
                                 {"high", "latency_us/high"},
                                 {"level", "latency_us/level"},
                                 {"p99", "latency_us/p99"},
                                 {"p99.9", "latency_us/p99_9"},
                                 {"mean", "latency_us/mean"},
                                 {"stdev", "latency_us/stdev"},
                                 {"ranks", "ranks"},
                                 {"algbw GB/s", "bus/algbw_gigabytes_per_s"},
                                 {"busbw GB/s", "bus/busbw_gigabytes_per_s"}};
  std::vector<Column> bandwidth = {{"operation", "operation"},
                                   {"mode", "mode"},
                                   {"bytes", "bytes"},
                                   {"scope", "scope"},
                                   {"endpoints", "endpoints"},
                                   {"depth", "depth"},
                                   {"batch", "batch"},
                                   {"direction", "direction"},
                                   {"doorbell", "doorbell"},
                                   {"queues", "queues"},
                                   {"messages/s", "messages_per_s/median"},
                                   {"GB/s", "gigabytes_per_s/median"},
                                   {"low", "gigabytes_per_s/low"},
                                   {"high", "gigabytes_per_s/high"},
                                   {"level", "gigabytes_per_s/level"}};
  const std::vector<Column> common = {{"rounds", "rounds"},
                                      {"messages", "messages"},
                                      {"CPU us, rank 0", "cpu_us_per_message/rank_0"},
                                      {"rank 1", "cpu_us_per_message/rank_1"},
                                      {"stalls", "credit_stalls"},
                                      {"PCIe reads", "pcie_reads_per_message"},
                                      {"of records", "pcie_record_reads_per_message"},
                                      {"writes", "pcie_writes_per_message"},
                                      {"counted by", "pcie_counted_by"},
                                      {"bytes verified", "bytes_verified"},
                                      {"wrong", "bad_bytes"},
                                      {"ratio to pull", "ratio_to_pull/says"},
                                      {"series", "series"}};
  latency.insert(latency.end(), common.begin(), common.end());
  bandwidth.insert(bandwidth.end(), common.begin(), common.end());
  const auto of = [](const char* measure) {
    return [=](const Json& row) { return row.at("measure") == measure; };
  };
  return "<h2>Latency</h2>\n" + table_of(document, "rows", latency, of("lat")) +
         "<h2>Bandwidth and rate</h2>\n" + table_of(document, "rows", bandwidth, of("bw"));
}

std::string peers_table(const Json& document) {
  if (document.at("peers").empty()) return {};
  return "<h2>Standard benchmarks on the same HCA</h2>\n" + table_of(document, "peers",
                                                                     {{"program", "mode"},
                                                                      {"beside", "operation"},
                                                                      {"bytes", "bytes"},
                                                                      {"median us", "latency_us/median"},
                                                                      {"low", "latency_us/low"},
                                                                      {"high", "latency_us/high"},
                                                                      {"p99", "latency_us/p99"},
                                                                      {"messages/s", "messages_per_s/median"},
                                                                      {"GB/s", "gigabytes_per_s/median"},
                                                                      {"latency of", "latency_of"},
                                                                      {"rounds", "rounds"},
                                                                      {"messages", "messages"},
                                                                      {"ratio to pull", "ratio_to_pull/says"},
                                                                      {"endpoints", "endpoints"},
                                                                      {"depth", "depth"},
                                                                      {"batch", "batch"},
                                                                      {"direction", "direction"},
                                                                      {"doorbell", "doorbell"},
                                                                      {"queues", "queues"},
                                                                      {"series", "series"}},
                                                                     [](const Json&) { return true; });
}

std::string modelled_table(const Json& document) {
  if (document.at("modelled").empty()) return {};
  return "<h2>Modelled</h2>\n<p class=\"quiet\">By gdx model, not measured: another path class is another "
         "row.</p>\n" +
         table_of(document, "modelled",
                  {{"operation", "operation"},
                   {"mode", "mode"},
                   {"bytes", "bytes"},
                   {"latency us", "latency_us"},
                   {"messages/s", "messages_per_s"},
                   {"GB/s", "gigabytes_per_s"},
                   {"series", "series"}},
                  [](const Json&) { return true; }) +
         "<h2>Fastest mode by size</h2>\n" +
         table_of(document, "fastest",
                  {{"operation", "operation"},
                   {"from bytes", "from_bytes"},
                   {"to bytes", "to_bytes"},
                   {"mode", "mode"},
                   {"series", "series"}},
                  [](const Json&) { return true; });
}

std::string conditions(const Json& document) {
  std::string text = "<h2>Conditions</h2>\n";
  const Json& ranks = document.at("conditions");
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    text += fmt::format("<details{}><summary>rank {}</summary><dl>\n", i == 0 ? " open" : "", i);
    for (const auto& [name, value] : ranks[i].items())
      text += fmt::format("<dt>{}</dt><dd>{}</dd>\n", escaped(name), shown(value));
    text += "</dl></details>\n";
  }
  return text;
}

std::string chart(const ChartLibrary& library) {
  std::string text = "<h2>Chart</h2>\n<div class=\"controls\">";
  const std::pair<const char*, const char*> controls[] = {
      {"test", "benchmark"}, {"figure", "figure"}, {"axis", "over"}, {"model", "modelled path beside it"}};
  for (const auto& [id, label] : controls)
    text += fmt::format("<label for=\"{0}\">{1}<select id=\"{0}\"></select></label>", id, label);
  text += "</div>\n";
  if (library.script.empty()) {
    text += fmt::format("<p class=\"warn\">{}</p>\n", escaped(library.missing));
  } else {
    text +=
        "<div class=\"chart\"><canvas id=\"chart\" tabindex=\"0\" role=\"img\" aria-label=\"Chart of the "
        "points in "
        "the table below; arrow keys walk over them\"></canvas></div>\n"
        "<p id=\"spoken\" class=\"quiet\" aria-live=\"polite\"></p>\n";
  }
  return text +
         "<details><summary>Points</summary><div class=\"wide\" "
         "tabindex=\"0\"><table><thead><tr><th>line</th><th>x</th>"
         "<th>y</th><th>low</th><th>high</th><th>series</th></tr></thead><tbody "
         "id=\"plotted\"></tbody></table></div>"
         "</details>\n";
}

}  // namespace

Result<ChartLibrary> find_chart_library(const std::string& file) {
  const char* const variable = std::getenv(kChartVariable);
  const std::string named = !file.empty() ? file : variable != nullptr ? variable : "";
  if (!named.empty()) {
    std::string script = read_script(named);
    if (!script.empty()) return ChartLibrary{std::move(script), ""};
    return fail(Status::kNotFound,
                fmt::format("{}: no chart library can be read there: name a file of Chart.js", named));
  }
  for (const char* const candidate : kChartFiles) {
    std::string script = read_script(candidate);
    if (!script.empty()) return ChartLibrary{std::move(script), ""};
  }
  return ChartLibrary{
      "", fmt::format("There is no chart, because Chart.js was not found when this page was made: install "
                      "libjs-chart.js, or name its file by --chart-library or {}. The tables have "
                      "every figure.",
                      kChartVariable)};
}

std::string page(const Json& document, const ChartLibrary& library) {
  const std::string on = shown(document.at("measured_on"));
  std::string text = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>gdx bench: {0}</title>\n<style>{1}</style></head><body>\n<h1>gdx bench</h1>\n"
      "<p>Measured on {0}, begun {3}. Made again by <code>{2}</code></p>\n",
      on, kPageStyle, shown(document.at("command")), shown(document.at("begun")));
  for (const std::string& line : warnings(document))
    text += fmt::format("<p class=\"warn\">{}</p>\n", escaped(line));
  text += chart(library) + measured_tables(document) + peers_table(document) + modelled_table(document) +
          conditions(document);
  text += fmt::format("<script type=\"application/json\" id=\"data\">{}</script>\n",
                      inside_script(document.dump()));
  if (!library.script.empty()) text += fmt::format("<script>{}</script>\n", library.script);
  return text + fmt::format("<script>{}</script>\n</body></html>\n", kPageScript);
}

}  // namespace gdx::bench
