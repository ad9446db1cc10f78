// The commands of the gdx executable. Each adds its subcommand; when chosen, that runs at parse time
// and leaves the process's exit status in `exit_status`.
#pragma once

#include <string>
#include <vector>

#include "base/command_line.h"
#include "base/result.h"
#include "host/programs/cli/launcher.h"

namespace gdx {

inline constexpr int kExitFailure = 1;
inline constexpr int kExitNotFound = 127;

// Prints "gdx: MESSAGE" on stderr and returns the exit status of the error.
[[nodiscard]] int report(const Error& error);

// Adds `run`. `program`: the words of the command line after "--".
void add_run_command(command_line::Command app, const std::vector<std::string>& program, int& exit_status);
void add_info_command(command_line::Command app, int& exit_status);
// Adds `bench`. `command_text`: the command line, for the report.
void add_bench_command(command_line::Command app, const std::string& command_text, int& exit_status);
void add_demo_command(command_line::Command app, int& exit_status);
void add_model_command(command_line::Command app, int& exit_status);
void add_proxy_command(command_line::Command app, int& exit_status);
void add_calibrate_command(command_line::Command app, int& exit_status);
void add_topo_command(command_line::Command app, int& exit_status);
void add_doctor_command(command_line::Command app, int& exit_status);
// Adds `stat`, `top`, `trace`, `kick` and `drain`.
void add_daemon_commands(command_line::Command app, int& exit_status);

// Returns the path of a program installed beside this one. In a build tree it lies in `build_folder`,
// relative to this program's folder. Errors: kNotFound if it is at neither place.
[[nodiscard]] Result<std::string> sibling_program(const std::string& name, const std::string& build_folder);

// Turns this process into that program, which explains its options itself. Returns only after a failure,
// which it has reported: the exit status.
[[nodiscard]] int become_sibling(const std::string& name, const std::string& build_folder,
                                 const std::vector<std::string>& options);

// The options that `run` and `demo` share. `launch` and `softhca` must outlive the parsing.
void add_place_options(command_line::Command command, LaunchOptions& launch);
void add_softhca_options(command_line::Command command, SofthcaOptions& softhca);

}  // namespace gdx
