// The commands of the gdx executable. Each adds its subcommand; when chosen, that runs at parse time
// and leaves the process's exit status in `exit_status`.
#pragma once

#include <string>
#include <vector>

#include "base/command_line.h"
#include "base/result.h"
#include "host/cli/launcher.h"

namespace gdx {

inline constexpr int kExitFailure = 1;
inline constexpr int kExitNotFound = 127;

// Prints "gdx: MESSAGE" on stderr and returns the exit status that belongs to it.
[[nodiscard]] int report(const Error& error);

// `program`: what the command line has after "--".
void add_run_command(command_line::Command app, const std::vector<std::string>& program, int& exit_status);
void add_info_command(command_line::Command app, int& exit_status);
void add_demo_command(command_line::Command app, int& exit_status);
void add_model_command(command_line::Command app, int& exit_status);
void add_calibrate_command(command_line::Command app, int& exit_status);
void add_topo_command(command_line::Command app, int& exit_status);

// The path of a program that is installed beside this one; in a build tree it lies in `build_folder`,
// relative to this one's. Errors: kNotFound where it is at neither place.
[[nodiscard]] Result<std::string> sibling_program(const std::string& name, const std::string& build_folder);

// The options that `run` and `demo` share. `softhca` must outlive the parsing.
void add_softhca_options(command_line::Command command, SofthcaOptions& softhca);

}  // namespace gdx
