#include <filesystem>

#include "host/cli/commands.h"

namespace gdx {

std::string sibling_program(const std::string& name, const std::string& build_folder) {
  const std::filesystem::path here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  for (const std::string& place : {name, build_folder + "/" + name}) {
    if (std::filesystem::exists(here / place)) return (here / place).lexically_normal().string();
  }
  return name;
}

}  // namespace gdx
