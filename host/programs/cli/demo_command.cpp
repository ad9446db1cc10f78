#include <fmt/format.h>

#include <cstdlib>
#include <memory>
#include <utility>

#include "base/command_line.h"
#include "host/hca/hca.h"
#include "host/programs/cli/commands.h"
#include "host/programs/cli/launcher.h"

namespace gdx {
namespace {

using command_line::whole;

constexpr std::uint32_t kDemoRanks = 2;
constexpr std::uint64_t kDemoTimeoutNs = 240'000'000'000;
constexpr std::uint64_t kMaxMessageBytes = 1 << 30;
constexpr int kMaxModes = 16;  // most modes that one list may name

struct DemoOptions {
  LaunchOptions launch;
  bool on_gpu = false;
  std::vector<command_line::Option>
      passed_on;  // to both ranks; checked here, so that a fault is reported once
};

command_line::Option pass_on(command_line::Command demo, DemoOptions& options, const std::string& name,
                             const std::string& what) {
  return options.passed_on.emplace_back(demo.add_option(name, what));
}

void pass_on_flag(command_line::Command demo, DemoOptions& options, const std::string& name,
                  const std::string& what) {
  options.passed_on.push_back(demo.add_flag(name, what));
}

void add_rank_options(command_line::Command demo, DemoOptions& options) {
  pass_on(demo, options, "--modes", "A list of pull, push, inline, bounce and auto (the first four)")
      .list(',', kMaxModes)
      .check(command_line::one_of({"pull", "push", "inline", "bounce", "auto"}));
  pass_on(demo, options, "--min-bytes", "Smallest message, a multiple of 8 (8)")
      .check(whole(8, kMaxMessageBytes));
  pass_on(demo, options, "--max-bytes",
          "Largest message, inline 4096; sizes grow by a factor of 8 (16777216)")
      .check(whole(8, kMaxMessageBytes));
  pass_on(demo, options, "--messages", "Messages of each size that are timed (200 small, 20 large)")
      .check(whole(1, 1'000'000));
  pass_on(demo, options, "--slots", "Staging slots that an endpoint may hold at most (32)")
      .check(whole(0, kMaxDeviceMemoryBytes / 4096));
  pass_on(demo, options, "--hca", "HCA to use (the first)")
      .check(command_line::not_empty("the name of an HCA"));
  pass_on(demo, options, "--kill-rank", "Rank 0 or 1 kills itself in the largest message").check(whole(0, 1));
  pass_on(
      demo, options, "--direct",
      "on: loads and stores to the peer's memory, no NIC and no modes; auto: where they work, by $GDX_DIRECT "
      "(off)")
      .check(command_line::one_of({"auto", "on", "off"}));
  pass_on(demo, options, "--provider",
          "A thread of the host posts by this provider, such as tcp or ibverbs: no HCA and no modes")
      .check(command_line::not_empty("the name of a provider"));
  pass_on_flag(demo, options, "--adaptive-routing", "Data may land in any order, and signals wait for it");
  pass_on_flag(demo, options, "--break-memory", "Damage one byte at the target: the demo must fail");
  pass_on_flag(demo, options, "--json", "One JSON document instead of the table");
}

std::vector<std::string> rank_command(const std::string& program, const DemoOptions& options) {
  std::vector<std::string> command{program};
  for (const command_line::Option& option : options.passed_on) {
    if (!option.given()) continue;
    command.push_back(option.name());
    if (!option.is_flag()) command.push_back(fmt::format("{}", fmt::join(option.values(), ",")));
  }
  return command;
}

int run_demo(DemoOptions& options) {
  const auto program = sibling_program(options.on_gpu ? "gdx_demo_cuda" : "gdx_demo", "../../../demo");
  if (!program) return report(program.error());
  options.launch.ranks = kDemoRanks;
  options.launch.timeout_ns = kDemoTimeoutNs;
  options.launch.ranks_explain = true;
  options.launch.command = rank_command(*program, options);
  for (const command_line::Option& option : options.passed_on) {  // for the placement of ranks
    if (option.given() && option.name() == "--hca") setenv(kHcaVariable, option.values().front().c_str(), 1);
  }
  const auto status = run_ranks(options.launch);
  return status ? *status : report(status.error());
}

}  // namespace

void add_demo_command(command_line::Command app, int& exit_status) {
  auto options = std::make_shared<DemoOptions>();
  const command_line::Command demo =
      app.add_command("demo", "Two ranks put, signal and check messages of every size and mode");
  add_rank_options(demo, *options);
  demo.add_flag("--gpu", options->on_gpu,
                "Kernels run on this machine's GPU (needs a build of the cuda preset)");
  add_place_options(demo, options->launch);
  add_softhca_options(demo, options->launch.softhca);
  demo.show_examples({"gdx demo", "gdx demo --modes push,pull --max-bytes 65536 --json",
                      "gdx demo --loss 0.01 --pcap demo.pcap"});
  demo.when_chosen([options, &exit_status] { exit_status = run_demo(*options); });
}

}  // namespace gdx
