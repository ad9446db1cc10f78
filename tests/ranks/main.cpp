// gdx_ranks: how many ranks fit into one process, and what each costs.
#include <fmt/format.h>
#include <malloc.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/ranks/goal.h"
#include "tests/ranks/measure.h"
#include "tests/ranks/simulation.h"

namespace gdx::ranks {
namespace {

constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;

// Of the process, fibers' stacks and all.
std::size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::size_t pages = 0;
  std::size_t resident_pages = 0;
  statm >> pages >> resident_pages;
  return resident_pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

std::size_t heap_bytes() {
  const struct mallinfo2 heap = mallinfo2();
  return heap.uordblks + heap.hblkhd;
}

struct Measured {
  Report report;
  std::size_t heap_bytes = 0;      // of ranks at rest
  std::size_t resident_bytes = 0;  // after the run: stacks' pages have gone back, packets' have not
  double build_s = 0;
  double run_s = 0;
};

Measured measure(const SimulationConfig& config) {
  using clock = std::chrono::steady_clock;
  Measured measured;
  const std::size_t before = heap_bytes();
  const std::size_t resident_before = resident_bytes();
  const auto begin = clock::now();
  Simulation simulation(config);
  measured.heap_bytes = heap_bytes() - before;
  const auto built = clock::now();
  measured.report = simulation.run();
  measured.resident_bytes = resident_bytes() - resident_before;
  measured.build_s = std::chrono::duration<double>(built - begin).count();
  measured.run_s = std::chrono::duration<double>(clock::now() - built).count();
  return measured;
}

nlohmann::json as_json(const SimulationConfig& config, const Measured& m) {
  const auto endpoints = static_cast<double>(m.report.endpoints);
  return {{"ranks", config.ranks},
          {"endpoints", m.report.endpoints},
          {"message_bytes", config.message_bytes},
          {"messages", m.report.messages},
          {"wrong_words", m.report.wrong_words},
          {"failed_endpoints", m.report.failed_endpoints},
          {"packets", m.report.network.packets},
          {"dropped_packets", m.report.network.dropped},
          {"retransmitted_packets", m.report.retransmitted_packets},
          {"virtual_us", static_cast<double>(m.report.virtual_ns) / 1e3},
          {"rounds", m.report.rounds},
          {"build_us_per_endpoint", 1e6 * m.build_s / endpoints},
          {"run_us_per_message",
           1e6 * m.run_s / static_cast<double>(std::max<std::uint64_t>(1, m.report.messages))},
          {"heap_bytes_per_endpoint", static_cast<double>(m.heap_bytes) / endpoints},
          {"resident_bytes_per_endpoint", static_cast<double>(m.resident_bytes) / endpoints}};
}

struct Options {
  SimulationConfig simulation;
  std::string goal_path;
  std::string path;
  unsigned generation = 0;
  std::string queues = "host";
  bool point = false;
  bool loggp = false;
  bool json = false;
};

void print(const nlohmann::json& figures, bool json) {
  if (json) return fmt::print("{}\n", figures.dump(2));
  for (const auto& [name, value] : figures.items()) fmt::print("{:26} {}\n", name, value.dump());
}

int export_goal(const Options& options) {
  std::ofstream out(options.goal_path);
  write_goal(options.simulation, out);
  out.close();
  if (out) return 0;
  fmt::print(stderr, "gdx_ranks: cannot write {}: choose a place that can be written\n", options.goal_path);
  return kExitFailure;
}

int simulate(const Options& options) {
  const Measured measured = measure(options.simulation);
  print(as_json(options.simulation, measured), options.json);
  const Report& report = measured.report;
  if (report.failed_endpoints == 0 && report.wrong_words == 0 && report.first_failure == Status::kOk)
    return 0;
  fmt::print(stderr,
             "gdx_ranks: {} endpoints failed ({}), {} words were wrong; --dead-rank, small port buffers and "
             "latencies "
             "near the ACK timeout of 1 ms do the first, only a bug does the second\n",
             report.failed_endpoints, status_name(report.first_failure), report.wrong_words);
  return kExitFailure;
}

int report_error(const Error& error) {
  fmt::print(stderr, "gdx_ranks: {}\n", error.message);
  return error.status == Status::kInvalidArgument ? kExitUsage : kExitFailure;
}

int print_loggp(const Options& options) {
  const Result<LogGp> p = measure_loggp(options.simulation);
  if (!p) return report_error(p.error());
  print({{"L_ns", p->latency_ns},
         {"o_ns", p->overhead_ns},
         {"g_ns", p->gap_ns},
         {"G_ns_per_byte", p->gap_per_byte_ns}},
        options.json);
  return 0;
}

int print_point(const Options& options) {
  const Result<std::uint64_t> delivered_ns = measure_delivery(options.simulation);
  if (!delivered_ns) return report_error(delivered_ns.error());
  const Result<Rate> rate = measure_rate(options.simulation);
  if (!rate) return report_error(rate.error());
  print({{"mode", pcie::name(options.simulation.mode)},
         {"path", options.path},
         {"message_bytes", options.simulation.message_bytes},
         {"delivered_ns", *delivered_ns},
         {"bytes_per_s", rate->bytes_per_s},
         {"lanes", rate->lanes}},
        options.json);
  return 0;
}

// Errors: kInvalidArgument naming the option.
Result<void> choose_bus(Options& options) {
  if (options.path.empty()) {
    if (options.point) return fail(Status::kInvalidArgument, "--point needs a --path");
    return {};
  }
  BusConfig bus;
  const auto path = path_class(options.path);
  if (!path)
    return fail(Status::kInvalidArgument,
                fmt::format("--path is '{}': use PIX, PXB, PHB, NODE or SYS", options.path));
  bus.path = *path;
  if (options.generation != 0)
    bus.platform.link.generation = static_cast<pcie::Generation>(options.generation);
  bus.queues = options.queues == "gpu" ? pcie::QueuePlacement::kGpu : pcie::QueuePlacement::kHost;
  options.simulation.bus = bus;
  return {};
}

void add_options(CLI::App& app, Options& options) {
  SimulationConfig& config = options.simulation;
  const std::map<std::string, Pattern> patterns{{"exchange", Pattern::kExchange},
                                                {"stream", Pattern::kStream}};
  std::map<std::string, pcie::Mode> modes;
  for (const pcie::Mode mode : pcie::kModes) modes.emplace(pcie::name(mode), mode);
  app.add_option("--ranks", config.ranks)->capture_default_str();
  app.add_option("--endpoints-per-rank", config.endpoints_per_rank)->capture_default_str();
  app.add_option("--message-bytes", config.message_bytes)->capture_default_str();
  app.add_option("--messages", config.messages, "of each endpoint")->capture_default_str();
  app.add_option("--pattern", config.pattern)->transform(CLI::CheckedTransformer(patterns));
  app.add_option("--mode", config.mode, "pull, push, push-bf, inline or gpu-bounce")
      ->transform(CLI::CheckedTransformer(modes));
  app.add_option("--post-ns", config.post_ns)->capture_default_str();
  app.add_option("--jitter-ns", config.jitter_ns)->capture_default_str();
  app.add_option("--step-ns", config.step_ns)->capture_default_str();
  app.add_option("--latency-ns", config.network.link.latency_ns)->capture_default_str();
  app.add_option("--port-buffer-bytes", config.network.port_buffer_bytes)->capture_default_str();
  app.add_option("--slots", config.slots, "of staging memory, of each rank")->capture_default_str();
  app.add_option("--dead-rank", config.dead_rank, "the HCA of this rank does nothing");
  app.add_option("--seed", config.seed)->capture_default_str();
  app.add_option("--path", options.path, "PCIe path between GPU and NIC: PIX, PXB, PHB, NODE or SYS (none)");
  app.add_option("--gen", options.generation, "PCIe generation")->check(CLI::Range(3, 6));
  app.add_option("--queues", options.queues, "host or gpu")->check(CLI::IsMember({"host", "gpu"}));
  app.add_option("--goal", options.goal_path, "write the exchange as a GOAL schedule into this file instead");
  app.add_flag("--loggp", options.loggp, "print LogGP parameters of an endpoint instead");
  app.add_flag("--point", options.point, "print latency and rate of one message size over --path instead");
  app.add_flag("--json", options.json);
}

int run_command_line(int argc, char** argv) {
  Options options;
  CLI::App app("Ranks in virtual time: production device code, HCA and transport on a modelled network",
               "gdx_ranks");
  add_options(app, options);
  double rate_gbps = options.simulation.network.link.bits_per_s / 1e9;
  app.add_option("--rate-gbps", rate_gbps, "of each link")->check(CLI::PositiveNumber)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  options.simulation.network.link.bits_per_s = rate_gbps * 1e9;
  auto checked = choose_bus(options);
  if (checked) checked = Simulation::check(options.simulation);
  if (!checked) return report_error(checked.error());
  if (!options.goal_path.empty()) return export_goal(options);
  if (options.point) return print_point(options);
  return options.loggp ? print_loggp(options) : simulate(options);
}

}  // namespace
}  // namespace gdx::ranks

int main(int argc, char** argv) { return gdx::ranks::run_command_line(argc, argv); }
