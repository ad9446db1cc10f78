#include "base/find_program.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>

namespace gdx {

std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const char* const path = std::getenv("PATH");
  // An empty folder is the current one, the last as well.
  std::istringstream folders((path == nullptr ? "/bin:/usr/bin" : std::string(path)) + ":");
  std::error_code error;
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::string candidate = (folder.empty() ? "." : folder) + "/" + name;
    if (std::filesystem::is_regular_file(candidate, error) && access(candidate.c_str(), X_OK) == 0)
      return candidate;
  }
  return {};
}

}  // namespace gdx
