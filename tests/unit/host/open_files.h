// Number of this process's open files, which shows leaks.
#pragma once

#include <cstddef>
#include <filesystem>
#include <iterator>

namespace gdx::test {

inline std::size_t open_files() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

}  // namespace gdx::test
