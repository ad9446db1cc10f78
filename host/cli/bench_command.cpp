#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <utility>

#include "base/command_line.h"
#include "base/descriptor.h"
#include "base/output.h"
#include "host/bench/document.h"
#include "host/bench/formats.h"
#include "host/bench/plan.h"
#include "host/bootstrap/world.h"
#include "host/cli/commands.h"
#include "host/cli/launcher.h"
#include "host/cli/signal_guard.h"
#include "host/hca/hca.h"

namespace gdx {
namespace {

using bench::Plan;
using command_line::one_of;
using command_line::real;
using command_line::whole;

constexpr std::uint32_t kRanks = 2;
constexpr int kMaxWords = 32;  // of one list
constexpr char kDefaultSizes[] = "8:4M:8";
constexpr char kQuickSizes[] = "8:2M:64";
constexpr char kAllSizes[] = "1:64M";
constexpr double kQuickSeconds = 40;
constexpr std::uint32_t kQuickRounds = 6;

struct BenchOptions {
  LaunchOptions launch;
  Plan plan;
  std::string sizes = kDefaultSizes;
  std::string format = "gdx";
  std::string output;
  bool on_gpu = false;
  bool quick = false;
  bool all_sizes = false;
  bool json = false;
  bool csv = false;
  std::string command;  // the command line
};

Result<void> complete_plan(BenchOptions& options, bool sizes_given, bool rounds_given, bool seconds_given) {
  Plan& plan = options.plan;
  if (plan.tests.empty()) plan.tests = bench::all_tests();
  if (options.quick) {
    if (!rounds_given) plan.rounds = kQuickRounds;
    if (!seconds_given) plan.seconds = kQuickSeconds;
    if (!sizes_given) options.sizes = kQuickSizes;
  }
  if (options.all_sizes && !sizes_given) options.sizes = kAllSizes;
  auto sizes = bench::parse_sizes(options.sizes);
  if (!sizes) return fail(sizes.error().status, "--size: " + sizes.error().message);
  plan.sizes_bytes = std::move(*sizes);
  const auto cases = GDX_TRY(bench::cases_of(plan));
  if (cases.empty()) return fail(Status::kInvalidArgument, "nothing to measure: name a benchmark and a mode");
  return {};
}

// Returns what the ranks wrote so far.
std::string read_journal(int descriptor) {
  std::string text;
  char part[65536];
  for (ssize_t got = 0; (got = ::pread(descriptor, part, sizeof part, static_cast<off_t>(text.size()))) > 0;)
    text.append(part, static_cast<std::size_t>(got));
  return text;
}

std::string why_ended(int status) {
  if (status == kExitTimeout) return "its time was up";
  if (status > kSignalBase)
    return fmt::format("signal {}: {}", status - kSignalBase, strsignal(status - kSignalBase));
  return fmt::format("a rank ended with status {}", status);
}

void print_document(const BenchOptions& options, const nlohmann::ordered_json& document) {
  const char* const readable = std::getenv("NVSHMEM_MACHINE_READABLE_OUTPUT");
  if (options.json) {
    write_output(bench::to_text(document));
  } else if (options.csv) {
    write_output(bench::csv(document));
  } else if (options.format == "perftest") {
    write_output(bench::perftest(document));
  } else if (options.format == "nvshmem") {
    write_output(bench::nvshmem(document, readable != nullptr && std::atoi(readable) != 0));
  } else if (options.format == "nccl-tests") {
    write_output(bench::nccl_tests(document));
  } else {
    write_output(bench::table(document));
  }
}

Result<void> write_file(const std::string& file, const std::string& text) {
  std::ofstream stream(file, std::ios::binary);
  stream << text;
  stream.close();
  if (stream) return {};
  return fail(Status::kSystem,
              fmt::format("{}: cannot be written: {}; name another file", file, std::strerror(errno)));
}

Result<int> run_bench(BenchOptions& options) {
  const auto program = GDX_TRY(sibling_program(options.on_gpu ? "gdx_bench_cuda" : "gdx_bench", "../bench"));
  // Without a name, so that nothing is left behind whatever ends this process. Ranks inherit it.
  const Descriptor journal(memfd_create("gdx bench", 0));
  if (journal.value() < 0)
    return fail(Status::kSystem, fmt::format("no memory for results: {}; free some", std::strerror(errno)));
  // Ranks of several nodes are started one by one, with their place in the environment.
  const char* const rank = std::getenv(kRankVariable);
  options.launch.ranks = rank == nullptr ? kRanks : 1;
  options.launch.ranks_explain = true;
  options.launch.command = {program, "--plan", to_json(options.plan).dump(), "--journal",
                            fmt::format("{}", journal.value())};
  if (!options.plan.hca.empty()) setenv(kHcaVariable, options.plan.hca.c_str(), 1);
  const auto status = GDX_TRY(launch(options.launch));
  const std::string text = read_journal(journal.value());
  if (text.find("\"conditions\"") == std::string::npos) return status;  // rank 1, or ended before it measured
  const auto cases = GDX_TRY(bench::cases_of(options.plan));
  const auto document = bench::make_document(options.plan, cases, text, options.command, why_ended(status));
  print_document(options, document);
  if (!options.output.empty()) {
    GDX_TRY(write_file(options.output, bench::to_text(document)));
  }
  return status == 0 && !document["whole"].get<bool>() ? kExitFailure : status;
}

void add_plan_options(command_line::Command command, BenchOptions& options) {
  Plan& plan = options.plan;
  command.add_option("tests", plan.tests,
                     fmt::format("Benchmarks: {} (all)", fmt::join(bench::all_tests(), ", ")));
  command
      .add_option("--modes", plan.ways,
                  fmt::format("A list of {} (the first four)", fmt::join(bench::all_ways(), ", ")))
      .list(',', kMaxWords)
      .check(one_of(bench::all_ways()));
  command.add_option("-n,--iters", plan.messages, "Messages of each sample (as many as fit into the time)")
      .check(whole(1, bench::kMaxMessages));
  command
      .add_option("-q,--endpoints", plan.endpoints,
                  "A list of numbers of endpoints, each with a block of its own (1)")
      .list(',', kMaxWords)
      .check(whole(1, bench::kMaxEndpoints));
  command.add_option("-t,--depth", plan.depths, "A list of messages between two flushes, of bandwidth (16)")
      .list(',', kMaxWords)
      .check(whole(1, bench::kMaxDepth));
  command.add_option("--batch", plan.batches, "A list of messages of one doorbell, of put_bw and get_bw (1)")
      .list(',', kMaxWords)
      .check(whole(1, bench::kMaxDepth));
  command.add_option("--scopes", plan.scopes, "A list of thread, warp and block: who calls together (warp)")
      .list(',', kMaxWords)
      .check(one_of({"thread", "warp", "block"}));
  command.add_flag("-b,--bidirectional", plan.both_ways, "Both ranks send, of bandwidth");
  command.add_option("-d,--hca", plan.hca, "HCA to use (the first)")
      .check(command_line::not_empty("the name of an HCA"));
  command
      .add_option("--kill-rank", plan.kill_rank,
                  "Rank 0 or 1 kills itself half-way: the report must be partial")
      .check(whole(0, 1));
  command.add_flag("--break-memory", plan.break_memory,
                   "Damage one byte before it is checked: the run must fail");
}

}  // namespace

void add_bench_command(command_line::Command app, const std::string& command_text, int& exit_status) {
  auto options = std::make_shared<BenchOptions>();
  options->command = command_text;
  const command_line::Command command =
      app.add_command("bench", "Measure latency, rate and bandwidth of kernels' RDMA, mode beside mode");
  const auto sizes =
      command
          .add_option("-s,--size", options->sizes,
                      fmt::format("LEAST:MOST[:FACTOR], or a list; K and M are binary ({})", kDefaultSizes))
          .check(command_line::not_empty("sizes, such as 8:1M"));
  command.add_flag("-a,--all", options->all_sizes, fmt::format("All powers of two, {}", kAllSizes));
  const auto rounds = command
                          .add_option("--rounds", options->plan.rounds,
                                      "Rounds, in which modes take turns; the median counts (7)")
                          .check(whole(1, bench::kMaxRounds));
  const auto seconds =
      command.add_option("--seconds", options->plan.seconds, "Time for all samples, about (60)")
          .check(real(0.1, 1e6));
  command.add_flag("--quick", options->quick,
                   fmt::format("Sizes {}, {} rounds, about a minute", kQuickSizes, kQuickRounds));
  add_plan_options(command, *options);
  command
      .add_option("--format", options->format, "gdx, or the layout of perftest, nvshmem or nccl-tests (gdx)")
      .check(one_of({"gdx", "perftest", "nvshmem", "nccl-tests"}));
  const auto json = command.add_flag("--json", options->json, "One JSON document instead of the table");
  command.add_flag("--csv", options->csv, "Lines of CSV instead of the table").excludes(json);
  command.add_option("--output", options->output, "Keep the JSON document in this file, too")
      .check(command_line::not_empty("the name of a file"));
  command.add_flag("--gpu", options->on_gpu,
                   "Kernels run on this machine's GPU (needs a build of the cuda preset)");
  add_hardware_option(command, options->launch);
  add_softhca_options(command, options->launch.softhca);
  command.show_examples({"gdx bench --quick", "gdx bench put_bw -s 8:1M -n 1000 -q 4",
                         "gdx bench put_lat get_lat --modes pull,push,proxy --output a.json",
                         "gdx bench put_bw --depth 1,16,64 --format perftest"});
  command.when_chosen([=, &exit_status] {
    auto done = complete_plan(*options, sizes.given(), rounds.given(), seconds.given());
    if (!done) {
      exit_status = report(done.error());
      return;
    }
    const auto status = run_bench(*options);
    exit_status = status ? *status : report(status.error());
  });
}

}  // namespace gdx
