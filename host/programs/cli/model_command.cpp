#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "host/programs/cli/commands.h"

namespace gdx {
namespace {

// The model stands in for hardware, so it is a program of its own, below which libgdx is not linked.
int run_model_program(const std::vector<std::string>& options) {
  const auto program = sibling_program("gdx_model", "../../../driver-shim/pcie/model");
  if (!program) return report(program.error());
  std::vector<std::string> arguments{*program};
  arguments.insert(arguments.end(), options.begin(), options.end());
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  execv(program->c_str(), pointers.data());
  return report({Status::kSystem, fmt::format("cannot run {}: {}; build the target gdx_model", *program,
                                              std::strerror(errno))});
}

}  // namespace

void add_model_command(command_line::Command app, int& exit_status) {
  const command_line::Command model = app.add_command(
      "model", "Modelled latency, rate and PCIe transactions of a put: gdx model --path SYS --gen 5 ...");
  model.leave_help_out();  // the program explains its options itself
  model.keep_unknown();
  model.when_chosen([model, &exit_status] { exit_status = run_model_program(model.unknown()); });
}

}  // namespace gdx
