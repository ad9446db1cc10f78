// gdx_ranks: how many ranks fit into one process, and what each costs.
#include <fmt/format.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/command_line.h"
#include "base/output.h"
#include "tests/ranks/goal.h"
#include "tests/ranks/measure.h"
#include "tests/ranks/simulation.h"

namespace gdx::ranks {
namespace {

constexpr int kExitFailure = 1;
constexpr char kModelled[] = "modelled, virtual time";

// Returns the process's resident memory, fibers' stacks included.
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
  double build_s = 0;              // of the processor, because others use a machine too
  double run_s = 0;
};

double processor_s() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

Measured measure(const SimulationConfig& config) {
  Measured measured;
  const std::size_t before = heap_bytes();
  const std::size_t resident_before = resident_bytes();
  const double begin_s = processor_s();
  Simulation simulation(config);
  measured.heap_bytes = heap_bytes() - before;
  const double built_s = processor_s();
  measured.report = simulation.run();
  measured.resident_bytes = resident_bytes() - resident_before;
  measured.build_s = built_s - begin_s;
  measured.run_s = processor_s() - built_s;
  return measured;
}

nlohmann::json as_json(const SimulationConfig& config, const Measured& m) {
  const auto endpoints = static_cast<double>(m.report.endpoints);
  return {{"label",
           "modelled network, virtual time; build_ and run_ processor time, heap_ and resident_, measured"},
          {"ranks", config.ranks},
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
          {"looks", m.report.looks},
          {"build_us_per_endpoint", 1e6 * m.build_s / endpoints},
          {"run_us_per_message",
           1e6 * m.run_s / static_cast<double>(std::max<std::uint64_t>(1, m.report.messages))},
          {"heap_bytes_per_endpoint", static_cast<double>(m.heap_bytes) / endpoints},
          {"resident_bytes_per_endpoint", static_cast<double>(m.resident_bytes) / endpoints}};
}

struct Options {
  SimulationConfig simulation;
  std::string pattern = "exchange";
  std::string mode = "pull";
  double rate_gbps = 0;
  std::string goal_path;
  std::string path;
  unsigned generation = 0;
  std::string queues = "host";
  std::string doorbell = "blueflame";
  std::string record = "read";
  std::optional<std::uint32_t> order_ns;
  bool point = false;
  bool loggp = false;
  bool json = false;
};

void print_figures(const nlohmann::json& figures, bool json) {
  if (json) return print("{}\n", figures.dump(2));
  for (const auto& [name, value] : figures.items()) print("{:26} {}\n", name, value.dump());
}

int report_failures(const Report& report) {
  if (report.failed_endpoints == 0 && report.wrong_words == 0 && report.first_failure == Status::kOk)
    return 0;
  print_error(
      "./run ranks: {} endpoints failed ({}), {} words were wrong; --dead-rank, small port buffers and "
      "latencies "
      "near the ACK timeout of 1 ms do the first, only a bug does the second\n",
      report.failed_endpoints, status_name(report.first_failure), report.wrong_words);
  return kExitFailure;
}

int report_error(const Error& error) {
  print_error("./run ranks: {}\n", error.message);
  return error.status == Status::kInvalidArgument ? command_line::kExitUsage : kExitFailure;
}

int export_goal(const Options& options) {
  const auto cannot_write = [&options](Status status) {
    return report_error({status, fmt::format("--goal {}: cannot be written ({}); choose another place",
                                             options.goal_path, std::strerror(errno))});
  };
  // Opens without truncation, so that the old content stays until new content exists.
  if (!std::ofstream(options.goal_path, std::ios::app)) return cannot_write(Status::kInvalidArgument);
  const SimulationConfig& config = options.simulation;
  Simulation simulation(config);
  if (const int failed = report_failures(simulation.run()); failed != 0) return failed;
  std::ofstream out(options.goal_path);
  write_goal(config, simulation.actions(), out);
  out.close();
  return out ? 0 : cannot_write(Status::kSystem);
}

int simulate(const Options& options) {
  const Measured measured = measure(options.simulation);
  print_figures(as_json(options.simulation, measured), options.json);
  return report_failures(measured.report);
}

int print_loggp(const Options& options) {
  const Result<LogGp> p = measure_loggp(options.simulation);
  if (!p) return report_error(p.error());
  print_figures({{"label", kModelled},
                 {"L_ns", p->latency_ns},
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
  print_figures({{"label", kModelled},
                 {"mode", pcie::name(options.simulation.mode)},
                 {"doorbell", options.doorbell},
                 {"record", options.record},
                 {"path", options.path},
                 {"message_bytes", options.simulation.message_bytes},
                 {"delivered_ns", *delivered_ns},
                 {"bytes_per_s", rate->bytes_per_s},
                 {"endpoints", rate->lanes}},
                options.json);
  return 0;
}

void choose_bus(Options& options) {
  const auto path = path_class(options.path);
  if (!path) return;
  BusConfig bus;
  bus.path = *path;
  if (options.generation != 0)
    bus.platform.link.generation = static_cast<pcie::Generation>(options.generation);
  bus.record = record_use_of(options.record).value_or(bus.record);
  bus.queues = options.queues == "gpu" ? pcie::QueuePlacement::kGpu : pcie::QueuePlacement::kHost;
  options.simulation.bus = bus;
}

constexpr std::uint64_t kMaxNs = 1'000'000'000;

using OptionsByName = std::map<std::string, command_line::Option>;

OptionsByName add_simulation_options(command_line::Command app, SimulationConfig& config) {
  using command_line::whole;
  constexpr std::uint64_t kMax32 = std::numeric_limits<std::uint32_t>::max();
  OptionsByName added;
  const auto add = [&](const char* name, auto& value, std::uint64_t least, std::uint64_t most,
                       const char* what) {
    const auto option = app.add_option(name, value, fmt::format("{} ({})", what, value));
    added.emplace(name, option.check(whole(least, most)));
  };
  add("--ranks", config.ranks, 2, kMax32, "Ranks, each with an HCA");
  add("--endpoints-per-rank", config.endpoints_per_rank, 2, kMax32, "Endpoints of each rank, an even number");
  add("--message-bytes", config.message_bytes, 8, kMaxMessageBytes, "Length of a message, a multiple of 8");
  add("--messages", config.messages, 1, kMax32, "Messages of each endpoint");
  add("--post-ns", config.post_ns, 0, kMaxNs,
      "A kernel thread's time from one put to the next, beside its fences");
  add("--jitter-ns", config.jitter_ns, 0, kMaxNs, "At most so much more, another amount each time");
  add("--step-ns", config.step_ns, 1, kMaxNs, "Resolution of all times");
  add("--latency-ns", config.network.link.latency_ns, 0, kMaxNs, "Latency of each link");
  add("--port-buffer-bytes", config.network.port_buffer_bytes, 1, kMax32, "What a switch's port can hold");
  add("--slots", config.slots, 1, kMax32,
      "Slots of each rank, a power of two: 4 KiB of staging memory each, 64 KiB with bounce");
  added.emplace("--dead-rank",
                app.add_option("--dead-rank", config.dead_rank, "The HCA of this rank does nothing (none)")
                    .check(whole(0, kMax32)));
  app.add_option("--seed", config.seed, fmt::format("Of all that is random ({})", config.seed))
      .check(whole(0, std::numeric_limits<std::uint64_t>::max()));
  return added;
}

void add_options(command_line::Command app, Options& options) {
  using command_line::one_of;
  const OptionsByName simulation = add_simulation_options(app, options.simulation);
  const auto pattern = app.add_option("--pattern", options.pattern,
                                      "exchange, or stream: one end puts, the other does nothing (exchange)")
                           .check(one_of({"exchange", "stream"}));
  app.add_option("--mode", options.mode, "pull, push, inline or bounce (pull)")
      .check(one_of({"pull", "push", "inline", "bounce"}));
  app.add_option("--rate-gbps", options.rate_gbps,
                 fmt::format("Rate of each link in Gb/s ({})", options.rate_gbps))
      .check(command_line::real(0.001, 10'000));
  app.add_option(
         "--order-ns", options.order_ns,
         fmt::format("What a put's fences cost, at any scope ({} GPU, {} system)",
                     options.simulation.ordering.gpu_scope_ns, options.simulation.ordering.system_scope_ns))
      .check(command_line::whole(0, kMaxNs));
  const auto path = app.add_option("--path", options.path,
                                   "PCIe path between GPU and NIC: PIX, PXB, PHB, NODE or SYS (none)")
                        .check(one_of({"PIX", "PXB", "PHB", "NODE", "SYS"}));
  app.add_option("--gen", options.generation, "PCIe generation of the path, 3 to 6 (5)")
      .check(command_line::whole(3, 6))
      .needs(path);
  app.add_option("--queues", options.queues, "Where the rings lie: host or gpu; with --path (host)")
      .check(one_of({"host", "gpu"}))
      .needs(path);
  app.add_option("--doorbell", options.doorbell, "plain or blueflame; with --path (blueflame)")
      .check(one_of({"plain", "blueflame"}))
      .needs(path);
  app.add_option("--record", options.record,
                 "Doorbell records that a plain doorbell has read or unread; with --path (read)")
      .check(one_of({"read", "unread"}))
      .needs(path);
  const auto goal =
      app.add_option("--goal", options.goal_path,
                     "Run the exchange, and write what the ranks did into this file as a GOAL schedule");
  goal.check(command_line::not_empty("the name of a file"));
  const auto loggp = app.add_flag("--loggp", options.loggp, "Print LogGP parameters of an endpoint instead");
  const auto point = app.add_flag("--point", options.point,
                                  "Print latency and rate of one message size over --path instead");
  point.needs(path).excludes(loggp).excludes(goal);
  loggp.excludes(goal).excludes(pattern).excludes(simulation.at("--message-bytes"));
  point.excludes(pattern).excludes(simulation.at("--post-ns"));
  // Both watch one connection of their own, closely.
  for (const char* const overwritten :
       {"--ranks", "--endpoints-per-rank", "--messages", "--jitter-ns", "--step-ns", "--dead-rank"}) {
    loggp.excludes(simulation.at(overwritten));
    point.excludes(simulation.at(overwritten));
  }
  goal.excludes(app.add_flag("--json", options.json, "As JSON"));
}

int run_command_line(int argc, char** argv) {
  Options options;
  command_line::App app(
      "Ranks in virtual time: production device code, HCA and transport on a modelled network", "gdx_ranks");
  options.rate_gbps = options.simulation.network.link.bits_per_s / 1e9;
  add_options(app, options);
  if (const auto ends = app.parse("./run ranks", argc, argv)) return *ends;
  SimulationConfig& config = options.simulation;
  config.network.link.bits_per_s = options.rate_gbps * 1e9;
  config.pattern = options.pattern == "stream" ? Pattern::kStream : Pattern::kExchange;
  config.mode = pcie::mode_of(options.mode).value_or(pcie::Mode::kPull);
  config.doorbell = pcie::doorbell_kind_of(options.doorbell).value_or(config.doorbell);
  if (options.order_ns) config.ordering = {*options.order_ns, *options.order_ns};
  config.trace = !options.goal_path.empty();
  choose_bus(options);
  if (const auto checked = Simulation::check(config); !checked) return report_error(checked.error());
  if (!options.goal_path.empty()) {
    if (const auto checked = check_goal(config); !checked) return report_error(checked.error());
    return export_goal(options);
  }
  if (options.point) return print_point(options);
  return options.loggp ? print_loggp(options) : simulate(options);
}

}  // namespace
}  // namespace gdx::ranks

int main(int argc, char** argv) {
  return gdx::run_program("./run ranks", [&] { return gdx::ranks::run_command_line(argc, argv); });
}
