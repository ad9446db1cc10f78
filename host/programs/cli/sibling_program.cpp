#include <fmt/format.h>

#include <filesystem>

#include "host/programs/cli/commands.h"

namespace gdx {

Result<std::string> sibling_program(const std::string& name, const std::string& build_folder) {
  std::error_code error;
  const std::filesystem::path here = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  for (const std::string& place : {name, build_folder + "/" + name}) {
    if (std::filesystem::exists(here / place, error)) return (here / place).lexically_normal().string();
  }
  return fail(Status::kNotFound, fmt::format("no {} beside the executable in {}: build the target {}", name,
                                             here.string(), name));
}

}  // namespace gdx
