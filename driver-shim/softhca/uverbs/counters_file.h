// Counters of a process's HCAs in a file that outlives the process, for whoever has started it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "driver-shim/softhca/uverbs/adapter.h"

namespace gdx::softhca::uverbs {

// Has a line for each counter, "ADDRESS HCA NAME VALUE", by the names of their files in /sys. A file that
// cannot be written is told of once. Threads: the caller serialises.
class CountersFile {
 public:
  // An empty path: no file.
  explicit CountersFile(std::string path) : path_(std::move(path)) {}

  // Writes the file, if the last time was a while ago, so that a process that is killed leaves counters, too.
  void keep(const Adapters& adapters, std::uint64_t now_ns);
  // Writes the file by a rename, so that no reader finds half of it.
  void write(const Adapters& adapters);

 private:
  std::string path_;
  std::string written_;
  std::uint64_t kept_ns_ = 0;
};

}  // namespace gdx::softhca::uverbs
