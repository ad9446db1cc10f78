#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/command_line.h"
#include "base/output.h"
#include "host/programs/cli/commands.h"
#include "host/programs/cli/completion.h"

namespace gdx {

int report(const Error& error) {
  print_error("gdx: {}\n", error.message);
  switch (error.status) {
    case Status::kInvalidArgument: return command_line::kExitUsage;
    case Status::kNotFound: return kExitNotFound;
    default: return kExitFailure;
  }
}

namespace {

void add_completion_command(command_line::Command app) {
  const auto shell = std::make_shared<std::string>("bash");
  const command_line::Command completion =
      app.add_command("completion", "Print what makes a shell complete gdx's commands and options");
  completion.add_option("shell", *shell, "bash").check(command_line::one_of({"bash"}));
  completion.when_chosen([shell] { write_output(kBashCompletion); });
  completion.show_examples({"source <(gdx completion bash)",
                            "gdx completion bash >~/.local/share/bash-completion/completions/gdx"});
}

int run_command_line(std::vector<std::string> arguments) {
  // Passes the words after "--" to the program, unparsed.
  const auto dashes = std::find(arguments.begin(), arguments.end(), "--");
  std::vector<std::string> program;
  if (dashes != arguments.end()) {
    if (std::find(arguments.begin(), dashes, "run") == dashes) {
      return report({Status::kInvalidArgument,
                     "only gdx run takes -- and a program: use gdx run, or leave out the --"});
    }
    program.assign(dashes + 1, arguments.end());
  }
  arguments.erase(dashes, arguments.end());
  const std::string command_text = fmt::format("gdx {}", fmt::join(arguments, " "));

  command_line::App app("gdx: GPU-initiated RDMA", "gdx");
  app.add_version("gdx " GDX_VERSION);
  int exit_status = 0;
  add_run_command(app, program, exit_status);
  add_info_command(app, exit_status);
  add_demo_command(app, exit_status);
  add_bench_command(app, command_text, exit_status);
  add_model_command(app, exit_status);
  add_proxy_command(app, exit_status);
  add_calibrate_command(app, exit_status);
  add_topo_command(app, exit_status);
  add_doctor_command(app, exit_status);
  add_daemon_commands(app, exit_status);
  add_completion_command(app);
  app.require_command();
  app.show_examples({"gdx demo", "gdx run --ranks 2 -- ./put", "gdx help run"});
  return app.parse("gdx", std::move(arguments)).value_or(exit_status);
}

}  // namespace
}  // namespace gdx

int main(int argc, char** argv) {
  return gdx::run_program("gdx", [&] { return gdx::run_command_line({argv + 1, argv + argc}); });
}
