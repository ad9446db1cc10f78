#include <memory>
#include <utility>
#include <vector>

#include "host/programs/cli/commands.h"
#include "host/programs/cli/launcher.h"

namespace gdx {
namespace {

constexpr char kBuildFolder[] = "../calibrate";

// It runs kernels, so it is a program of its own, as the demo is.
int run_calibrate_program(const std::vector<std::string>& options, bool on_gpu, bool on_softhca) {
  const char* const name = on_gpu ? "gdx_calibrate_cuda" : "gdx_calibrate";
  if (!on_softhca) return become_sibling(name, kBuildFolder, options);
  const auto program = sibling_program(name, kBuildFolder);
  if (!program) return report(program.error());
  LaunchOptions launched;
  launched.command = {*program};
  launched.command.insert(launched.command.end(), options.begin(), options.end());
  return report(run_in_place(launched));
}

}  // namespace

void add_calibrate_command(command_line::Command app, int& exit_status) {
  struct Chosen {
    bool on_gpu = false;
    bool on_softhca = false;
  };
  auto chosen = std::make_shared<Chosen>();
  const command_line::Command calibrate = app.add_command(
      "calibrate",
      "Measure pull, push, inline and bounce on this machine, for auto to go by: gdx calibrate [--gpu] "
      "[--softhca]");
  calibrate.leave_help_out();  // the program explains its options itself
  calibrate.add_flag("--gpu", chosen->on_gpu,
                     "For kernels on this machine's GPU (needs a build of the cuda preset)");
  calibrate.add_flag("--softhca", chosen->on_softhca, "On the software HCA");
  calibrate.keep_unknown();
  calibrate.when_chosen([calibrate, chosen, &exit_status] {
    exit_status = run_calibrate_program(calibrate.unknown(), chosen->on_gpu, chosen->on_softhca);
  });
}

}  // namespace gdx
