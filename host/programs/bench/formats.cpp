#include "host/programs/bench/formats.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/size_text.h"
#include "host/programs/bench/document.h"

namespace gdx::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kColumns = 100;
constexpr double kMebi = 1 << 20;  // perftest's MB

// A figure in few characters: 12.3, 4567, 0.0123.
std::string figure(double value) {
  if (value >= 1000 && value < 1e6) return fmt::format("{:.0f}", value);
  return fmt::format("{:.4g}", value);
}

std::string figure(const Json& value) { return value.is_number() ? figure(value.get<double>()) : "-"; }

// One round has no interval.
std::string bounds(const Json& interval) {
  if (interval.at("level") == 0) return "-";
  return fmt::format("[{}, {}]", figure(interval.at("low")), figure(interval.at("high")));
}

std::string text_of(const Json& row, const char* field) { return row.at(field).get<std::string>(); }

// ", blueflame doorbells, queues in host memory", where rows differ in it.
std::string variant_of(const Json& row) {
  const std::string doorbell = text_of(row, "doorbell");
  const std::string queues = text_of(row, "queues");
  return (doorbell == kDefault ? "" : fmt::format(", {} doorbells", doorbell)) +
         (queues == kDefault ? "" : fmt::format(", queues in {} memory", queues));
}

bool shares(const Json& row) {
  return row.at("posters").get<std::uint64_t>() > row.at("endpoints").get<std::uint64_t>();
}
// ", 132 posters", where they share endpoints.
std::string posters_of(const Json& row) {
  return shares(row) ? fmt::format(", {} posters", row.at("posters").get<std::uint64_t>()) : "";
}

bool is_latency(const Json& row) { return row.at("measure") == "lat"; }
bool is_collective(const Json& row) { return !row.at("bus").is_null(); }

// The conditions that rows of one table share.
std::string heading_of(const Json& row) {
  const auto endpoints = row.at("endpoints").get<std::uint64_t>();
  const std::string which = fmt::format("{} scope, {} endpoint{}{}{}", text_of(row, "scope"), endpoints,
                                        endpoints == 1 ? "" : "s", posters_of(row), variant_of(row));
  if (is_collective(row))
    return fmt::format("time of a round, us: {} ranks, {} scope{}", row.at("ranks").get<std::uint64_t>(),
                       text_of(row, "scope"), variant_of(row));
  if (is_latency(row)) return fmt::format("latency of a {}, us: {}", text_of(row, "latency_of"), which);
  return fmt::format("bandwidth: {}, {} messages between two flushes, {} of a doorbell, {}", which,
                     row.at("depth").get<std::uint64_t>(), row.at("batch").get<std::uint64_t>(),
                     text_of(row, "direction"));
}

// Groups of rows that fit under one heading, in order of first appearance.
std::vector<std::pair<std::string, std::vector<const Json*>>> groups_of(const Json& rows,
                                                                        std::string (*heading)(const Json&)) {
  std::vector<std::pair<std::string, std::vector<const Json*>>> groups;
  for (const Json& row : rows) {
    const std::string title = heading(row);
    auto group = std::ranges::find(groups, title, &std::pair<std::string, std::vector<const Json*>>::first);
    if (group == groups.end()) group = groups.insert(groups.end(), {title, {}});
    group->second.push_back(&row);
  }
  return groups;
}

// Of a collective busbw and algbw stand in the columns of p99.9 and of the longest time.
constexpr char kLatencyLine[] = "{:<10} {:<6} {:>7} {:>8} {:>7} {:>18} {:>7} {:>7} {:>7} {:>7} {:>6}\n";
constexpr char kPeerLine[] = "{:<13} {:<10} {:>8} {:>8} {:>9} {:>20} {:>10}{}\n";
constexpr char kBandwidthLine[] = "{:<10} {:<6} {:>8} {:>8} {:>10} {:>9} {:>20} {:>9} {:>9}\n";

std::string size_of(const Json& row) { return size_text(row.at("bytes").get<std::uint64_t>()); }

std::string latency_line(const Json& row) {
  const Json& us = row.at("latency_us");
  const Json& bus = row.at("bus");
  return fmt::format(
      kLatencyLine, text_of(row, "operation"), text_of(row, "mode"), size_of(row),
      row.at("messages").get<std::uint64_t>(), figure(us.at("median")), bounds(us), figure(us.at("p99")),
      figure(bus.is_null() ? us.at("p99_9") : bus.at("algbw_gigabytes_per_s")),
      figure(bus.is_null() ? us.at("most") : bus.at("busbw_gigabytes_per_s")),
      figure(row.at("cpu_us_per_message").at("rank_0")), row.at("credit_stalls").get<std::uint64_t>());
}

std::string bandwidth_line(const Json& row) {
  const Json& gigabytes = row.at("gigabytes_per_s");
  return fmt::format(kBandwidthLine, text_of(row, "operation"), text_of(row, "mode"), size_of(row),
                     row.at("messages").get<std::uint64_t>(), figure(row.at("messages_per_s").at("median")),
                     figure(gigabytes.at("median")), bounds(gigabytes),
                     figure(row.at("cpu_us_per_message").at("rank_0")),
                     row.at("credit_stalls").get<std::uint64_t>());
}

std::string tables(const Json& rows) {
  std::string text;
  for (const auto& [heading, group] : groups_of(rows, heading_of)) {
    const bool latency = is_latency(*group.front());
    const bool collective = is_collective(*group.front());
    text += fmt::format("\n{}\n", heading);
    text += latency ? fmt::format(kLatencyLine, "operation", "mode", "size", "messages", "median",
                                  "its interval", "p99", collective ? "algbw" : "p99.9",
                                  collective ? "busbw" : "most", "CPU us", "stalls")
                    : fmt::format(kBandwidthLine, "operation", "mode", "size", "messages", "messages/s",
                                  "GB/s", "its interval", "CPU us", "stalls");
    for (const Json* row : group) text += latency ? latency_line(*row) : bandwidth_line(*row);
  }
  return text;
}

// A line for each row whose ratio has a verdict, and one for those of too few rounds.
std::string ratios(const Json& document) {
  std::string text;
  std::size_t unknown = 0;
  for (const char* const list : {"rows", "peers"}) {
    for (const Json& row : document.at(list)) {
      const Json& ratio = row.at("ratio_to_pull");
      if (!ratio.is_null() && ratio.at("differs").is_null()) ++unknown;
      if (ratio.is_null() || ratio.at("differs").is_null()) continue;
      std::string what = key_of_row(row);
      if (what.size() > kColumns - 40) what.resize(kColumns - 40);
      text += fmt::format("  {:<{}} {}\n", what, kColumns - 40, text_of(ratio, "says"));
    }
  }
  const std::string without =
      unknown == 0 ? "" : fmt::format("{} ratios to pull have no verdict: too few rounds\n", unknown);
  if (text.empty()) return without.empty() ? without : "\n" + without;
  const Json& all = document.at("ratios");
  return "\nratio to pull in the same rounds (latency: below 1 is faster; bandwidth: above 1 is faster)\n" +
         text + without +
         fmt::format("{} of {} ratios differ beyond noise; by chance alone about {} would\n",
                     all.at("differ").get<std::uint64_t>(), all.at("count").get<std::uint64_t>(),
                     figure(all.at("by_chance")));
}

// Latencies and rates stand apart, so that each interval is below the head of its own figure.
std::string peers(const Json& rows) {
  if (rows.empty()) return {};
  std::string text = "\nstandard benchmarks on the same HCA, in turns with the rows above; posted by a CPU\n";
  for (const auto& [measure, group] :
       groups_of(rows, [](const Json& row) { return row.at("measure").get<std::string>(); })) {
    const bool latency = is_latency(*group.front());
    text += fmt::format(kPeerLine, "program", "beside", "size", "messages", latency ? "median us" : "GB/s",
                        "its interval", latency ? "p99" : "messages/s", "");
    for (const Json* const row : group) {
      const Json& figures = row->at(latency ? "latency_us" : "gigabytes_per_s");
      const std::string of = latency ? text_of(*row, "latency_of") : "";
      const std::size_t remark = of.find(", ");  // "half round trip, mean, send/recv"
      text +=
          fmt::format(kPeerLine, text_of(*row, "mode"), text_of(*row, "operation"), size_of(*row),
                      row->at("messages").get<std::uint64_t>(), figure(figures.at("median")), bounds(figures),
                      figure(latency ? figures.at("p99") : row->at("messages_per_s").at("median")),
                      remark == std::string::npos ? "" : of.substr(remark + 1));
    }
  }
  return text;
}

std::string modelled(const Json& rows) {
  std::string text;
  for (const auto& [series, group] :
       groups_of(rows, [](const Json& row) { return row.at("series").get<std::string>(); })) {
    text += fmt::format("\n{}\n{:<10} {:<6} {:>8} {:>12} {:>12} {:>10}\n", series, "operation", "mode",
                        "size", "latency us", "messages/s", "GB/s");
    for (const Json* row : group) {
      text += fmt::format("{:<10} {:<6} {:>8} {:>12} {:>12} {:>10}\n", text_of(*row, "operation"),
                          text_of(*row, "mode"), size_text(row->at("bytes").get<std::uint64_t>()),
                          figure(row->at("latency_us")), figure(row->at("messages_per_s")),
                          figure(row->at("gigabytes_per_s")));
    }
  }
  return text;
}

// "7 of 7 rounds, of 100 messages or more; intervals of level 0.9844", by the rows that have the fewest.
std::string rounds_line(const Json& document) {
  const Json& rows = document.at("rows");
  const auto rounds_of = [](const Json& row) { return row.at("rounds").get<std::uint64_t>(); };
  const auto sample_of = [&](const Json& row) {
    return row.at("messages").get<std::uint64_t>() / rounds_of(row);
  };
  const Json& least = *std::ranges::min_element(rows, {}, rounds_of);
  return fmt::format("{} of {} rounds, of {} messages or more; intervals of level {}", rounds_of(least),
                     document.at("plan").at("rounds").get<std::uint64_t>(),
                     sample_of(*std::ranges::min_element(rows, {}, sample_of)),
                     figure(least.at("messages_per_s").at("level")));
}

// Lines above the figures: what was measured, when, and under which conditions.
std::vector<std::string> head_lines(const Json& document) {
  const Json& on = document.at("measured_on");
  std::vector<std::string> lines = condition_lines(document);
  lines.insert(lines.begin(), on.is_null() ? "measured on nothing"
                                           : fmt::format("measured on {}; begun {}", on.get<std::string>(),
                                                         text_of(document, "begun")));
  if (!document.at("rows").empty()) lines.push_back(rounds_line(document));
  return lines;
}

std::string verdict(const Json& document) {
  std::uint64_t good = 0;
  for (const Json& row : document.at("rows")) good += row.at("bytes_verified").get<std::uint64_t>();
  std::string text;
  const std::vector<std::string> wrong = warnings(document);
  const auto damage = [](const std::string& line) { return line.starts_with("DAMAGED"); };
  if (std::ranges::none_of(wrong, damage))
    text += good == 0 ? "nothing verified\n" : fmt::format("{} bytes verified, every one right\n", good);
  const Json& violations = document.at("staging_violations");
  text += fmt::format("slots written without a credit: {}\n",
                      violations.is_number() ? violations.dump() : "not audited");
  for (const std::string& line : wrong) text += line + "\n";
  return text;
}

// The same as comments, for layouts of others.
std::string comments(const Json& document) {
  std::string text;
  for (const auto& lines : {head_lines(document), warnings(document)}) {
    for (const std::string& line : lines) text += fmt::format("# {}\n", line);
  }
  return text;
}

// Messages of each row, where a layout has no column for them.
std::string messages_comment(const std::vector<const Json*>& rows) {
  std::vector<std::uint64_t> messages(rows.size());
  std::ranges::transform(rows, messages.begin(),
                         [](const Json* row) { return row->at("messages").get<std::uint64_t>(); });
  return fmt::format("# messages of each row: {}\n", fmt::join(messages, ", "));
}

// One title for each operation and mode, as peers print a table for each of their programs.
std::string title_of(const Json& row) {
  const std::string measure = is_collective(row) ? "" : "_" + text_of(row, "measure");
  return fmt::format("{}{} {}", text_of(row, "operation"), measure, text_of(row, "mode"));
}

// The name of a test of NVSHMEM's, of rows that differ in size and scope alone: "gdx_put_bw_push_x4_depth16".
std::string job_of(const Json& row) {
  std::string job = "gdx_" + title_of(row);
  std::ranges::replace(job, ' ', '_');
  const auto add = [&](const char* name, const char* field) {
    job += fmt::format("_{}{}", name, row.at(field).get<std::uint64_t>());
  };
  if (is_collective(row)) add("ranks", "ranks");
  if (row.at("endpoints") != 1) add("x", "endpoints");
  if (shares(row)) add("posters", "posters");
  if (!is_latency(row)) add("depth", "depth");
  if (row.at("batch") != 1) add("batch", "batch");
  if (row.at("doorbell") != kDefault) job += "_" + text_of(row, "doorbell");
  if (row.at("queues") != kDefault) job += fmt::format("_{}_queues", text_of(row, "queues"));
  return job + (row.at("direction") == "both ways" ? "_both" : "");
}

// Describes the rows that peers' layouts have no columns for. NVSHMEM's has one for the scope.
std::string comment_without_scope(const Json& row) {
  return fmt::format("gdx {}: {}, {} endpoints{}, depth {}, batch {}, {}", title_of(row),
                     text_of(row, "series"), row.at("endpoints").get<std::uint64_t>(), posters_of(row),
                     row.at("depth").get<std::uint64_t>(), row.at("batch").get<std::uint64_t>(),
                     text_of(row, "direction")) +
         (is_collective(row) ? fmt::format(", {} ranks", row.at("ranks").get<std::uint64_t>()) : "") +
         variant_of(row) + (is_latency(row) ? fmt::format(", of a {}", text_of(row, "latency_of")) : "");
}
std::string comment(const Json& row) {
  return fmt::format("{}, {} scope", comment_without_scope(row), text_of(row, "scope"));
}

}  // namespace

std::vector<std::string> condition_lines(const Json& document) {
  std::vector<std::string> lines;
  const Json& ranks = document.at("conditions");
  std::string together;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    std::string line;
    for (const auto& [name, value] : ranks[i].items()) {
      // Of ranks on one machine only the address differs.
      if (i != 0 && (value == ranks[0].at(name))) continue;
      line += fmt::format("{}{}: {}", line.empty() ? "" : "; ", name,
                          value.is_null()     ? "unknown"
                          : value.is_string() ? value.get<std::string>()
                                              : value.dump());
    }
    if (line.empty()) continue;
    lines.push_back(fmt::format("rank {}{}: {}", i, i == 0 ? "" : ", where it differs", line));
  }
  return lines;
}

std::vector<std::string> warnings(const Json& document) {
  std::vector<std::string> lines;
  for (const Json& row : document.at("rows")) {
    if (row.at("bad_bytes") != 0)
      lines.push_back(fmt::format("DAMAGED: {}: {} B wrong", key_of_row(row), row.at("bad_bytes").dump()));
  }
  for (const Json& one : document.at("dropped_damage")) {
    lines.push_back(fmt::format("DAMAGED: {}: {} B wrong in a round that warms up", text_of(one, "case"),
                                one.at("bad_bytes").dump()));
  }
  const Json& without = document.at("without_figure");
  if (!without.empty())
    lines.push_back(fmt::format("no figure, because {} messages a sample do not fit into the time:",
                                kLeastTimedMessages));
  for (const Json& key : without) lines.push_back("  " + key.get<std::string>());
  const Json& violations = document.at("staging_violations");
  if (violations.is_number() && violations != 0)
    lines.push_back(fmt::format("DAMAGED: {} slots written without a credit", violations.dump()));
  if (!document.at("whole").get<bool>())
    lines.push_back(fmt::format("PARTIAL: the run ended early: {}", text_of(document, "ended_by")));
  return lines;
}

std::string table(const Json& document) {
  std::string text;
  for (std::string line : head_lines(document)) {
    while (line.size() > kColumns) {
      const std::size_t at = line.rfind("; ", kColumns - 1);
      const std::size_t cut = at == std::string::npos ? kColumns : at + 1;
      text += line.substr(0, cut) + "\n";
      line = "  " + line.substr(cut == kColumns ? cut : cut + 1);
    }
    text += line + "\n";
  }
  text += tables(document.at("rows")) + ratios(document) + peers(document.at("peers")) +
          modelled(document.at("modelled")) + "\n";
  return text + verdict(document);
}

std::string csv(const Json& document) {
  static const std::vector<std::string> figures = {"/rounds",
                                                   "/messages",
                                                   "/latency_us/median",
                                                   "/latency_us/low",
                                                   "/latency_us/high",
                                                   "/latency_us/p50",
                                                   "/latency_us/p99",
                                                   "/latency_us/p99_9",
                                                   "/latency_us/mean",
                                                   "/latency_us/stdev",
                                                   "/messages_per_s/median",
                                                   "/messages_per_s/low",
                                                   "/messages_per_s/high",
                                                   "/messages_per_s/level",
                                                   "/gigabytes_per_s/median",
                                                   "/gigabytes_per_s/low",
                                                   "/gigabytes_per_s/high",
                                                   "/bus/bytes",
                                                   "/bus/algbw_gigabytes_per_s",
                                                   "/bus/busbw_gigabytes_per_s",
                                                   "/cpu_us_per_message/rank_0",
                                                   "/cpu_us_per_message/rank_1",
                                                   "/credit_stalls",
                                                   "/retransmissions",
                                                   "/pcie_reads_per_message",
                                                   "/pcie_record_reads_per_message",
                                                   "/pcie_writes_per_message",
                                                   "/pcie_counted_by",
                                                   "/bytes_verified",
                                                   "/bad_bytes",
                                                   "/ratio_to_pull/ratio",
                                                   "/ratio_to_pull/low",
                                                   "/ratio_to_pull/high",
                                                   "/ratio_to_pull/differs"};
  static const std::vector<std::string> names = {"series", "operation", "measure",  "mode",   "bytes",
                                                 "scope",  "endpoints", "posters",  "depth",  "batch",
                                                 "ranks",  "direction", "doorbell", "queues", "latency_of"};
  std::string text = comments(document) + fmt::format("{}", fmt::join(names, ","));
  for (std::string path : figures) {
    std::ranges::replace(path, '/', '_');
    text += "," + path.substr(1);
  }
  text += "\n";
  const auto cell = [](const Json& value) {
    if (value.is_null() || value.is_object()) return std::string();
    return value.is_string() ? fmt::format("\"{}\"", value.get<std::string>()) : value.dump();
  };
  const auto add = [&](const Json& row, const std::vector<std::string>& paths) {
    std::string line;
    for (const std::string& field : names) line += (row.contains(field) ? cell(row[field]) : "") + ",";
    for (const std::string& path : paths) {
      const Json::json_pointer pointer(path);
      line += (row.contains(pointer) ? cell(row.at(pointer)) : "") + ",";
    }
    line.back() = '\n';
    text += line;
  };
  for (const char* const list : {"rows", "peers"}) {
    for (const Json& row : document.at(list)) add(row, figures);
  }
  // A model gives one figure where a measurement gives an interval.
  std::vector<std::string> plain = figures;
  for (std::string& path : plain) {
    if (path.ends_with("/median")) path.resize(path.size() - std::string_view("/median").size());
  }
  for (const Json& row : document.at("modelled")) add(row, plain);
  return text;
}

std::string perftest(const Json& document) {
  const std::string rule(87, '-');
  std::string text = comments(document);
  for (const auto& [title, group] : groups_of(document.at("rows"), comment)) {
    const bool latency = is_latency(*group.front());
    text += fmt::format("{}\n                    {}\n{}\n", rule, title, rule);
    text += latency ? " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    "
                      "t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] \n"
                    : " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n";
    for (const Json* row : group) {
      const auto bytes = row->at("bytes").get<std::uint64_t>();
      const auto messages = row->at("messages").get<std::uint64_t>();
      if (latency) {
        const auto us = [row = row](const char* which) {
          const Json& value = row->at("latency_us").at(which);
          // A quantile of too few messages: readers of the layout take "nan" for a number.
          return value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
        };
        text += fmt::format(
            " {:<7} {:<10} {:<14.2f} {:<14.2f} {:<16.2f} {:<14.2f} {:<14.2f} {:<20.2f} {:.2f}\n", bytes,
            messages, us("least"), us("most"), us("median"), us("mean"), us("stdev"), us("p99"), us("p99_9"));
      } else {
        const auto mebibytes = [row = row](const char* which) {
          return row->at("gigabytes_per_s").at(which).get<double>() * 1e9 / kMebi;
        };
        text += fmt::format(" {:<10} {:<15} {:<18.2f} {:<20.2f} {:.6f}\n", bytes, messages, mebibytes("most"),
                            mebibytes("median"), row->at("messages_per_s").at("median").get<double>() / 1e6);
      }
    }
    text += rule + "\n";
  }
  return text;
}

std::string nvshmem(const Json& document, bool machine_readable) {
  std::string text = comments(document);
  for (const auto& [job, group] : groups_of(document.at("rows"), job_of)) {
    const bool latency = is_latency(*group.front());
    text += messages_comment(group);
    if (machine_readable) {
      text += fmt::format("# {}\n{}\n", comment_without_scope(*group.front()), job);
    } else {
      text += fmt::format("# {}\n#{:>10}\n{:<10}  {:<8}  {:<16}\n", comment_without_scope(*group.front()),
                          job, "size(B)", "scope", latency ? "latency(us)" : "BW (GB/sec)");
    }
    for (const Json* row : group) {
      const auto bytes = row->at("bytes").get<std::uint64_t>();
      const auto value =
          (latency ? row->at("latency_us") : row->at("gigabytes_per_s")).at("median").get<double>();
      const std::string scope = text_of(*row, "scope");
      text += machine_readable
                  ? fmt::format("&&&& PERF {}___{}___size__{}___{} {:.6f} {}\n", job, scope, bytes,
                                latency ? "latency" : "BW", value, latency ? "-us" : "+GB/sec")
                  : fmt::format("{:<10}  {:<8}  {:<16.6f}\n", bytes, scope, value);
    }
  }
  return text;
}

// Two decimals, and fewer where `width` has no room for them.
std::string fixed(double value, std::size_t width) {
  std::string text;
  for (int decimals = 2; decimals >= 0; --decimals) {
    text = fmt::format("{:.{}f}", value, decimals);
    if (text.size() <= width) break;
  }
  return text;
}

std::string nccl_tests(const Json& document) {
  std::string text = comments(document);
  double bus_sum = 0;
  std::uint64_t wrong = 0;
  for (const auto& [title, group] : groups_of(document.at("rows"), comment)) {
    text += fmt::format("# {}\n{}#\n", title, messages_comment(group));
    text += fmt::format("#{:>52}{:>31}\n", "out-of-place", "in-place");
    text += fmt::format("#{:>11} {:>13} {:>9} {:>7} {:>7} {:>8} {:>7} {:>7} {:>6} {:>8} {:>7} {:>7} {:>6}\n",
                        "size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "time",
                        "algbw", "busbw", "#wrong");
    text += fmt::format("#{:>11} {:>13} {:>9} {:>7} {:>7} {:>8} {:>7} {:>7} {:>6} {:>8} {:>7} {:>7}\n", "(B)",
                        "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)");
    for (const Json* row : group) {
      const auto bytes = row->at("bytes").get<std::uint64_t>();
      const double rate = row->at("messages_per_s").at("median").get<double>();
      const double us = is_latency(*row) ? row->at("latency_us").at("median").get<double>() : 1e6 / rate;
      double gigabytes = static_cast<double>(bytes) / us / 1e3;  // algbw: the size over the time
      double bus_gigabytes = gigabytes;
      auto size = bytes;
      auto count = bytes;
      const bool sums = row->at("operation") == "allreduce";
      if (const Json& bus = row->at("bus"); !bus.is_null()) {
        size = bus.at("bytes").get<std::uint64_t>();
        count = sums ? bytes / sizeof(float) : bytes;
        gigabytes = bus.at("algbw_gigabytes_per_s").get<double>();
        bus_gigabytes = bus.at("busbw_gigabytes_per_s").get<double>();
      }
      text += fmt::format("{:>12} {:>13} {:>9} {:>7} {:>7} {:>8} {:>7} {:>7} {:>6} {:>8} {:>7} {:>7} {:>6}\n",
                          size, count, sums ? "float" : "uint8", sums ? "sum" : "none",
                          row->at("operation") == "incast" ? 0 : -1, fixed(us, 8), fixed(gigabytes, 7),
                          fixed(bus_gigabytes, 7), row->at("bad_bytes").get<std::uint64_t>(), "N/A", "N/A",
                          "N/A", "N/A");
      bus_sum += bus_gigabytes;
      wrong += row->at("bad_bytes").get<std::uint64_t>();
    }
  }
  const std::size_t rows = document.at("rows").size();
  return text + fmt::format("# Out of bounds values : {} {}\n# Avg bus bandwidth    : {:g}\n", wrong,
                            wrong == 0 ? "OK" : "FAILED",
                            rows == 0 ? 0 : bus_sum / static_cast<double>(rows));
}

}  // namespace gdx::bench
