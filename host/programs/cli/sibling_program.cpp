#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

#include "host/programs/cli/commands.h"

namespace gdx {

Result<std::string> sibling_program(const std::string& name, const std::string& build_folder) {
  std::error_code error;
  const std::filesystem::path here = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  for (const std::string& place : {name, fmt::format("{}/{}", build_folder, name)}) {
    if (std::filesystem::exists(here / place, error)) return (here / place).lexically_normal().string();
  }
  return fail(
      Status::kNotFound,
      fmt::format("no {} beside the executable in {}: build the target {}, or install the Debian package gdx",
                  name, here.string(), name));
}

int become_sibling(const std::string& name, const std::string& build_folder,
                   const std::vector<std::string>& options) {
  const auto program = sibling_program(name, build_folder);
  if (!program) return report(program.error());
  std::vector<std::string> arguments{*program};
  arguments.insert(arguments.end(), options.begin(), options.end());
  std::vector<char*> pointers;
  pointers.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  execv(program->c_str(), pointers.data());
  return report({Status::kSystem, fmt::format("cannot run {}: {}; build the target {}", *program,
                                              std::strerror(errno), name)});
}

}  // namespace gdx
