#include <memory>
#include <utility>

#include "host/cli/commands.h"
#include "host/cli/launcher.h"

namespace gdx {
namespace {

constexpr std::uint32_t kDemoRanks = 2;
constexpr std::uint64_t kDemoTimeoutNs = 240'000'000'000;

}  // namespace

void add_demo_command(CLI::App& app, int& exit_status) {
  auto options = std::make_shared<LaunchOptions>();
  CLI::App* demo =
      app.add_subcommand("demo", "Two ranks put, signal and check messages of every size and mode");
  add_softhca_options(*demo, options->softhca);
  auto on_gpu = std::make_shared<bool>(false);
  demo->add_flag("--gpu", *on_gpu, "Kernels run on this machine's GPU (needs a build of the cuda preset)");
  demo->allow_extras();
  demo->footer(
      "Further options: --break-memory, --kill-rank R, --modes LIST, --min-bytes N, --max-bytes N, "
      "--messages N, --slots N, --hca NAME, --json");
  demo->callback([demo, options, on_gpu, &exit_status] {
    options->ranks = kDemoRanks;
    options->timeout_ns = kDemoTimeoutNs;
    options->command = demo->remaining();
    options->command.insert(options->command.begin(),
                            sibling_program(*on_gpu ? "gdx_demo_cuda" : "gdx_demo", "../../demo"));
    const auto status = launch(*options);
    exit_status = status ? *status : report(status.error());
  });
}

}  // namespace gdx
