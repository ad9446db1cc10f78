#include <fmt/format.h>
#include <netdb.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
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
#include "base/parse_number.h"
#include "host/bootstrap/world.h"
#include "host/hca/hca.h"
#include "host/programs/bench/compare.h"
#include "host/programs/bench/document.h"
#include "host/programs/bench/formats.h"
#include "host/programs/bench/modelled.h"
#include "host/programs/bench/page.h"
#include "host/programs/bench/plan.h"
#include "host/programs/cli/commands.h"
#include "host/programs/cli/launcher.h"
#include "host/programs/cli/signal_guard.h"
#include "host/programs/doctor/machine.h"
#include "host/queue/endpoint.h"
#include "proto/doorbell_kind.h"

namespace gdx {
namespace {

using bench::Plan;
using command_line::one_of;
using command_line::real;
using command_line::whole;

constexpr int kMaxWords = 32;  // of one list
constexpr char kDefaultSizes[] = "8:4M:8";
constexpr char kQuickSizes[] = "8:2M:64";
constexpr char kAllSizes[] = "1:64M";
constexpr char kTokenSizes[] = "7168,14336";  // of 7168 values in FP8 and in BF16
// Of 16 tokens of 8 heads of 128 values in BF16, and of 64 tokens of DeepSeek's 576 values in BF16.
constexpr char kBlockSizes[] = "32K,72K";
constexpr std::uint64_t kBlocks = 64;          // that are under way
constexpr std::uint32_t kDefaultPort = 18515;  // perftest's
constexpr std::uint32_t kMostPort = 65535;
constexpr char kPointToPointSizes[] = "8:16M";
constexpr double kQuickSeconds = 40;
constexpr std::uint32_t kQuickRounds = 6;

struct BenchOptions {
  LaunchOptions launch;
  Plan plan;
  std::string sizes = kDefaultSizes;
  std::string format = "gdx";
  std::string output;
  std::string report;
  std::string preset;
  std::vector<std::string> models;            // path classes
  std::vector<std::string> compared;          // two files
  std::string from;                           // a file
  std::vector<command_line::Option> options;  // that presets set unless they are given
  bool listens = false;
  bool dials = false;  // a HOST
  std::uint32_t port = kDefaultPort;
  std::optional<std::uint32_t> gid_index;
  bool on_gpu = false;
  bool quick = false;
  bool all_sizes = false;
  bool json = false;
  bool csv = false;
  std::string command;  // the command line
};

// Sets what a preset or --quick implies, unless the command line says otherwise.
template <typename T>
void imply(const BenchOptions& options, const char* name, T& value, const T& implied) {
  const auto given = [&](const command_line::Option& option) {
    return option.name() == name && option.given();
  };
  if (std::ranges::none_of(options.options, given)) value = implied;
}

void apply_presets(BenchOptions& options) {
  Plan& plan = options.plan;
  using Words = std::vector<std::string>;
  if (options.preset == "deepep") {
    if (plan.tests.empty()) plan.tests = bench::expert_tests();
    imply<std::string>(options, "--size", options.sizes, kTokenSizes);
  } else if (options.preset == "kv") {
    if (plan.tests.empty()) plan.tests = {"put_bw", "get_bw"};
    imply<std::string>(options, "--size", options.sizes, kBlockSizes);
    imply(options, "--depth", plan.depths, {kBlocks});
  } else if (options.preset == "nvshmem") {
    if (plan.tests.empty()) plan.tests = {"put_lat", "get_lat", "put_bw", "get_bw"};
    imply<std::string>(options, "--size", options.sizes, kPointToPointSizes);
    imply(options, "--scopes", plan.scopes, Words{"thread", "warp", "block"});
  }
  if (options.quick) {
    imply(options, "--rounds", plan.rounds, kQuickRounds);
    imply(options, "--seconds", plan.seconds, kQuickSeconds);
    if (options.preset.empty()) imply<std::string>(options, "--size", options.sizes, kQuickSizes);
  }
  const auto experts = [](const std::string& test) {
    return std::ranges::count(bench::expert_tests(), test) != 0;
  };
  if (!plan.tests.empty() && std::ranges::all_of(plan.tests, experts))
    imply<std::string>(options, "--size", options.sizes, kTokenSizes);
  if (options.all_sizes) imply<std::string>(options, "--size", options.sizes, kAllSizes);
}

bool has_address(const std::string& host) {
  addrinfo* list = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, nullptr, &list) != 0) return false;
  freeaddrinfo(list);
  return true;
}

// Returns whether a word names a host. Benchmarks of two ranks have a '_', which names of hosts have not;
// other words without a dot may be benchmarks' names, mistyped.
bool is_host(const std::string& word) {
  if (word.find_first_of(".:") != std::string::npos) return true;
  return word.find('_') == std::string::npos && std::ranges::count(bench::tests_of_ranks(), word) == 0 &&
         has_address(word);
}

// Tells where two nodes meet, and what to start at the other one.
Result<void> tell_meeting(const BenchOptions& options) {
  if (!options.listens && !options.dials) return {};
  const auto world = GDX_TRY(WorldOptions::from_environment());
  print_error("gdx bench: meets the other node at {} within {} s; start it there with the same options{}\n",
              world.root, world.timeout_ns / 1'000'000'000,
              options.listens ? " and this HOST, without --listen" : " and --listen, without a HOST");
  return {};
}

// Makes this process one of two ranks on two nodes: rank 0 with --listen, rank 1 with a host among the tests.
Result<void> choose_node(BenchOptions& options) {
  std::vector<std::string>& words = options.plan.tests;
  const auto host = std::ranges::find_if(words, is_host);
  if (host == words.end() && !options.listens) return {};
  if (host != words.end() && options.listens) {
    return fail(Status::kInvalidArgument,
                fmt::format("--listen: '{}' is the node that listens: leave out one of them", *host));
  }
  std::string root = "0.0.0.0";
  if (!options.listens) {
    const std::size_t colon = host->find(':');
    const bool has_port = colon != std::string::npos && colon == host->rfind(':');
    if (has_port) {
      const auto port = parse_unsigned(host->substr(colon + 1));
      if (!port || *port == 0 || *port > kMostPort)
        return fail(Status::kInvalidArgument, fmt::format("'{}': use HOST or HOST:PORT", *host));
      options.port = static_cast<std::uint32_t>(*port);
    }
    root = colon == std::string::npos || has_port ? host->substr(0, colon) : fmt::format("[{}]", *host);
    words.erase(host);
    options.dials = true;
  }
  setenv(kRankVariable, options.listens ? "0" : "1", 1);
  setenv(kWorldSizeVariable, "2", 1);
  setenv(kRootVariable, fmt::format("{}:{}", root, options.port).c_str(), 1);
  return {};
}

Result<void> complete_plan(BenchOptions& options) {
  GDX_TRY(choose_node(options));
  apply_presets(options);
  Plan& plan = options.plan;
  if (plan.peers && options.launch.softhca.address) {
    return fail(
        Status::kInvalidArgument,
        "--peers: --addr gives a rank's address to its standard benchmarks, too: leave out one of them");
  }
  if (plan.tests.empty()) plan.tests = plan.ranks == 2 ? bench::all_tests() : bench::collective_tests();
  auto sizes = bench::parse_sizes(options.sizes);
  if (!sizes) return fail(sizes.error().status, "--size: " + sizes.error().message);
  plan.sizes_bytes = std::move(*sizes);
  const auto cases = GDX_TRY(bench::cases_of(plan));
  // Sources that a processor of the host cannot read: an HCA can.
  const auto by_kernel = [](const bench::Case& item) {
    return item.way != bench::Way::kPull && item.way != bench::Way::kProxy && item.way != bench::Way::kNic;
  };
  if (plan.memory == bench::kGpuMemory && !options.on_gpu && std::ranges::any_of(cases, by_kernel)) {
    return fail(Status::kInvalidArgument,
                "--memory: 'gpu': kernels on the CPU layer cannot read it: add --gpu, or --modes pull,proxy");
  }
  const auto by_processor = [](const bench::Case& item) {
    return item.operation == bench::Operation::kAllToAll || item.operation == bench::Operation::kAllReduce;
  };
  if (plan.memory == bench::kGpuMemory && !options.on_gpu && std::ranges::any_of(cases, by_processor)) {
    return fail(Status::kInvalidArgument,
                "--memory: 'gpu': kernels on the CPU layer cannot copy or sum it: add --gpu, or leave out "
                "alltoall and allreduce");
  }
  const auto collective = [](const bench::Case& item) { return bench::is_collective(item.operation); };
  if (options.format == "perftest" && std::ranges::any_of(cases, collective)) {
    return fail(Status::kInvalidArgument,
                "--format: 'perftest' is a layout of two ranks: use gdx, nvshmem or nccl-tests");
  }
  if (plan.kill_rank >= static_cast<int>(plan.ranks)) {
    return fail(Status::kInvalidArgument, fmt::format("--kill-rank: '{}': use 0 to {}, or more --ranks",
                                                      plan.kill_rank, plan.ranks - 1));
  }
  if (std::ranges::count(plan.queues, "gpu") != 0 && !options.on_gpu) {
    return fail(Status::kInvalidArgument,
                "--queues: 'gpu': kernels on the CPU layer cannot use them: add --gpu, or --queues host");
  }
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

// Fails where `file` cannot be written, and changes nothing.
Result<void> try_file(const std::string& file) {
  if (file.empty()) return {};
  const bool there = ::access(file.c_str(), F_OK) == 0;
  const bool opens = std::ofstream(file, std::ios::app).is_open();
  const int error = errno;
  if (!there && opens) static_cast<void>(::unlink(file.c_str()));
  if (opens) return {};
  return fail(Status::kSystem,
              fmt::format("{}: cannot be written: {}; name another file", file, std::strerror(error)));
}

// Adds modelled series for each path class, of the plan's modes and sizes.
Result<void> add_models(const BenchOptions& options, nlohmann::ordered_json& document) {
  if (options.models.empty()) return {};
  const auto program = GDX_TRY(sibling_program("gdx_model", "../../../driver-shim/pcie/model"));
  const char* const doorbell = std::getenv(kDoorbellVariable);
  const std::string kind(doorbell == nullptr ? gdx::name(DoorbellKind::kPlain) : doorbell);
  const auto questions = bench::questions_of(document, options.plan, kind);
  const Progress progress;
  for (const std::string& path : options.models) {
    for (const bench::ModelQuestion& question : questions) {
      progress.show("modelling {}", path);
      std::vector<std::string> command = {program, "--path", path};
      command.insert(command.end(), question.options.begin(), question.options.end());
      const auto text = GDX_TRY(doctor::live_probes().run(command));
      bench::add_modelled(document, nlohmann::ordered_json::parse(text), question);
    }
  }
  return {};
}

Result<int> compare_files(const BenchOptions& options) {
  if (options.compared.size() != 2) {
    return fail(Status::kInvalidArgument,
                fmt::format("--compare: {} files: give two that --output has kept", options.compared.size()));
  }
  const auto a = GDX_TRY(bench::read_document(options.compared[0]));
  const auto b = GDX_TRY(bench::read_document(options.compared[1]));
  const auto comparison = bench::compare(a, b);
  write_output(options.json ? bench::to_text(comparison) : bench::comparison_table(comparison));
  return 0;
}

// Runs the ranks. Returns their status and leaves the document, null where nothing was measured here.
Result<int> measure(BenchOptions& options, nlohmann::ordered_json& document) {
  const auto program = GDX_TRY(sibling_program(options.on_gpu ? "gdx_bench_cuda" : "gdx_bench", "../bench"));
  // Without a name, so that nothing is left behind whatever ends this process. Ranks inherit it.
  const Descriptor journal(memfd_create("gdx bench", 0));
  if (journal.value() < 0)
    return fail(Status::kSystem, fmt::format("no memory for results: {}; free some", std::strerror(errno)));
  // Ranks of several nodes are started one by one, with their place in the environment.
  const char* const rank = std::getenv(kRankVariable);
  options.launch.ranks = rank == nullptr ? options.plan.ranks : 1;
  options.launch.ranks_explain = true;
  options.launch.command = {program, "--plan", to_json(options.plan).dump(), "--journal",
                            fmt::format("{}", journal.value())};
  if (rank != nullptr) options.launch.command.emplace_back("--alone");
  if (!options.plan.hca.empty()) setenv(kHcaVariable, options.plan.hca.c_str(), 1);
  if (options.gid_index) setenv(kGidIndexVariable, fmt::format("{}", *options.gid_index).c_str(), 1);
  const auto status = GDX_TRY(run_ranks(options.launch));
  const std::string text = read_journal(journal.value());
  if (text.find("\"conditions\"") == std::string::npos) return status;  // rank 1, or ended before it measured
  const auto cases = GDX_TRY(bench::cases_of(options.plan));
  document = bench::make_document(options.plan, cases, text, options.command, why_ended(status));
  return status;
}

Result<void> write_files(const BenchOptions& options, const nlohmann::ordered_json& document) {
  if (!options.output.empty()) {
    GDX_TRY(write_file(options.output, bench::to_text(document)));
  }
  return options.report.empty() ? Result<void>{} : write_file(options.report, bench::page(document));
}

// Writes files, adds modelled series, writes them again, and prints. A fault of models, or an end meanwhile,
// loses nothing that was measured.
Result<int> keep(BenchOptions& options, nlohmann::ordered_json& document, int status) {
  const auto note = [&status](const Result<void>& done) {
    if (done) return true;
    const int failed = report(done.error());
    if (status == 0) status = failed;
    return false;
  };
  const bool written = note(write_files(options, document));
  // The table would be all models.
  const bool all_models = options.models.empty() && !options.report.empty();
  const bool first = all_models && !options.json && !options.csv;
  if (all_models) options.models = {"PIX", "PXB", "PHB", "NODE", "SYS"};
  if (first) {
    print_document(options, document);
    flush_output();
  }
  // Whoever ended the run waits for no models.
  if (!document["whole"].get<bool>()) options.models.clear();
  note(add_models(options, document));
  if (written && !options.models.empty()) note(write_files(options, document));
  if (!first) print_document(options, document);
  return status;
}

// Prints a kept document anew, measures and models nothing.
Result<int> reprint(const BenchOptions& options) {
  if (!options.compared.empty())
    return fail(Status::kInvalidArgument, "--from and --compare: give one of them");
  GDX_TRY(try_file(options.report));
  const auto document = GDX_TRY(bench::read_document(options.from));
  try {
    GDX_TRY(write_files(options, document));
    print_document(options, document);
  } catch (const nlohmann::json::exception& error) {
    return fail(Status::kInvalidArgument,
                fmt::format("{}: no result of gdx bench ({}): make one by gdx bench --output", options.from,
                            error.what()));
  }
  return 0;
}

Result<int> run_bench(BenchOptions& options) {
  // Before anything is measured, so that a fault here costs no time.
  for (const std::string& file : {options.output, options.report}) GDX_TRY(try_file(file));
  GDX_TRY(tell_meeting(options));
  nlohmann::ordered_json document;
  const auto status = GDX_TRY(measure(options, document));
  if (document.is_null()) return status;
  return keep(options, document, status);
}

void add_plan_options(command_line::Command command, BenchOptions& options) {
  Plan& plan = options.plan;
  const auto keep = [&](const command_line::Option& option) { options.options.push_back(option); };
  command.add_option(
      "tests", plan.tests,
      fmt::format("Benchmarks: {} (all of these), or {} between --ranks, and the HOST[:PORT] that listens",
                  fmt::join(bench::all_tests(), ", "), fmt::join(bench::tests_of_ranks(), ", ")));
  command.add_option("--ranks", plan.ranks, "Ranks of alltoall, incast, allreduce, dispatch and combine (2)")
      .check(whole(2, bench::kMostRanks));
  command
      .add_option("--modes", plan.ways,
                  fmt::format("A list of {} (the first four)", fmt::join(bench::all_ways(), ", ")))
      .list(',', kMaxWords)
      .check(one_of(bench::all_ways()));
  command
      .add_option("-n,--iters", plan.messages,
                  "Messages of each endpoint in a sample, whatever --seconds says (as many as fit into it)")
      .check(whole(1, bench::kMaxMessages));
  command
      .add_option("-q,--endpoints", plan.endpoints,
                  "A list of numbers of endpoints, each with a block of its own (1)")
      .list(',', kMaxWords)
      .check(whole(1, bench::kMaxEndpoints));
  command
      .add_option("--posters", plan.posters,
                  "A list of numbers of blocks, which share endpoints where they are more: put_lat, put_bw "
                  "(--endpoints)")
      .list(',', kMaxWords)
      .check(whole(1, bench::kMaxPosters));
  keep(command
           .add_option("-t,--depth", plan.depths, "A list of messages between two flushes, of bandwidth (16)")
           .list(',', kMaxWords)
           .check(whole(1, bench::kMaxDepth)));
  command.add_option("--batch", plan.batches, "A list of messages of one doorbell, of put_bw and get_bw (1)")
      .list(',', kMaxWords)
      .check(whole(1, bench::kMaxDepth));
  keep(command
           .add_option("--scopes", plan.scopes, "A list of thread, warp and block: who calls together (warp)")
           .list(',', kMaxWords)
           .check(one_of({"thread", "warp", "block"})));
  command
      .add_option("--doorbells", plan.doorbells,
                  "A list of plain and blueflame: how warps and blocks ring ($GDX_DOORBELL, or plain)")
      .list(',', kMaxWords)
      .check(one_of({"plain", "blueflame"}));
  command
      .add_option("--queues", plan.queues,
                  "A list of gpu and host: memory of the queues, with --gpu (a GPU's, if the HCA takes it)")
      .list(',', kMaxWords)
      .check(one_of({"gpu", "host"}));
  command.add_option("--memory", plan.memory, "Memory of the payload: host, or gpu for GPUDirect RDMA (host)")
      .check(one_of({"host", bench::kGpuMemory}));
  command
      .add_option("--workers", plan.workers,
                  "Threads that run the blocks of a kernel on the CPU layer (half of the cores)")
      .check(whole(1, bench::kMaxWorkers));
  command.add_flag("-b,--bidirectional", plan.both_ways, "Both ranks send, of bandwidth");
  command.add_flag("--adaptive-routing", plan.adaptive_routing,
                   "Data may land in any order, and set signals wait for it");
  command.add_option("-d,--hca", plan.hca, "HCA to use (the first)")
      .check(command_line::not_empty("the name of an HCA"));
  command
      .add_option("-x,--gid-index", options.gid_index,
                  fmt::format("Entry of the HCA's GID table (${}, or by its address)", kGidIndexVariable))
      .check(whole(0, 255));
}

void add_fault_options(command_line::Command command, Plan& plan) {
  command
      .add_option("--kill-rank", plan.kill_rank,
                  "This rank kills itself half-way: the report must be partial")
      .check(whole(0, bench::kMostRanks - 1));
  command.add_flag("--break-memory", plan.break_memory,
                   "Damage one byte before it is checked: the run must fail");
}

void add_output_options(command_line::Command command, BenchOptions& options) {
  command
      .add_option("--format", options.format, "gdx, or the layout of perftest, nvshmem or nccl-tests (gdx)")
      .check(one_of({"gdx", "perftest", "nvshmem", "nccl-tests"}));
  const auto json = command.add_flag("--json", options.json, "One JSON document instead of the table");
  command.add_flag("--csv", options.csv, "Lines of CSV instead of the table").excludes(json);
  command
      .add_option("--output", options.output,
                  "Keep the JSON document in this file, too; also of a partial run")
      .check(command_line::not_empty("the name of a file"));
  command.add_option("--report", options.report, "Write a page with charts to this file (.html)")
      .check(command_line::not_empty("the name of a file"));
  command
      .add_option("--model", options.models,
                  "Modelled series beside it: a list of path classes (a page has all)")
      .list(',', kMaxWords)
      .check(one_of({"PIX", "PXB", "PHB", "NODE", "SYS"}));
  command.add_option("--compare", options.compared,
                     "Two files of --output: what differs beyond noise; nothing is run");
  command.add_option("--from", options.from, "A file of --output to print or --report anew; nothing is run")
      .check(command_line::not_empty("the name of a file"));
}

}  // namespace

void add_bench_command(command_line::Command app, const std::string& command_text, int& exit_status) {
  auto options = std::make_shared<BenchOptions>();
  options->command = command_text;
  const command_line::Command command =
      app.add_command("bench", "Measure latency, rate and bandwidth of kernels' RDMA, mode beside mode");
  const auto keep = [&](const command_line::Option& option) { options->options.push_back(option); };
  keep(command
           .add_option("-s,--size", options->sizes,
                       fmt::format("LEAST:MOST[:FACTOR], or a list; K and M are binary ({})", kDefaultSizes))
           .check(command_line::not_empty("sizes, such as 8:1M")));
  command.add_flag("-a,--all", options->all_sizes, fmt::format("All powers of two, {}", kAllSizes));
  keep(command
           .add_option("--rounds", options->plan.rounds,
                       "Rounds, in which modes take turns; the median counts (7)")
           .check(whole(1, bench::kMaxRounds)));
  keep(command.add_option("-D,--seconds", options->plan.seconds, "Time for all samples, about (60)")
           .check(real(0.1, 1e6)));
  command.add_flag("--quick", options->quick,
                   fmt::format("Sizes {}, {} rounds, about a minute", kQuickSizes, kQuickRounds));
  command
      .add_option(
          "--preset", options->preset,
          "deepep: dispatch and combine of 128 tokens of 7168 values to 8 experts each, between --ranks; kv: "
          "blocks of a KV cache; nvshmem: its point-to-point sizes and scopes")
      .check(one_of({"deepep", "kv", "nvshmem"}));
  add_plan_options(command, *options);
  add_fault_options(command, options->plan);
  add_output_options(command, *options);
  command.add_flag("--peers", options->plan.peers,
                   "Standard benchmarks (perftest, UCX, libfabric) take turns on the same HCA");
  command.add_flag("--gpu", options->on_gpu,
                   "Kernels run on this machine's GPU (needs a build of the cuda preset)");
  command.add_flag(
      "--listen", options->listens,
      "Wait for a second node, which is started with this one as HOST; the report is printed here");
  command.add_option("-p,--port", options->port, "TCP port at which the nodes meet (18515)")
      .check(whole(1, kMostPort));
  add_place_options(command, options->launch);
  add_softhca_options(command, options->launch.softhca);
  command.show_examples({"gdx bench --quick", "gdx bench put_bw -s 8:1M -n 1000 -q 4",
                         "gdx bench put_lat get_lat --modes pull,push,proxy --output a.json",
                         "gdx bench put_bw --depth 1,16,64 --format perftest",
                         "gdx bench --quick --report bench.html", "gdx bench --from a.json --report a.html",
                         "gdx bench --compare a.json b.json"});
  command.when_chosen([=, &exit_status] {
    if (!options->compared.empty() || !options->from.empty()) {
      const auto done = options->from.empty() ? compare_files(*options) : reprint(*options);
      if (!done) static_cast<void>(report(done.error()));
      exit_status = done ? *done : command_line::kExitUsage;
      return;
    }
    if (const auto done = complete_plan(*options); !done) {
      exit_status = report(done.error());
      return;
    }
    const auto status = run_bench(*options);
    exit_status = status ? *status : report(status.error());
  });
}

}  // namespace gdx
