#include "driver-shim/softhca/uverbs/counters_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/log.h"
#include "driver-shim/softhca/uverbs/sysfs.h"

namespace gdx::softhca::uverbs {
namespace {

constexpr std::uint64_t kEveryNs = 100'000'000;

}  // namespace

void CountersFile::keep(const Adapters& adapters, std::uint64_t now_ns) {
  if (path_.empty() || now_ns - kept_ns_ < kEveryNs) return;
  kept_ns_ = now_ns;
  write(adapters);
}

void CountersFile::write(const Adapters& adapters) {
  if (path_.empty()) return;
  std::string text;
  for (const auto& adapter : adapters) {
    Hca& hca = *adapter->hca;
    for (const auto& [name, value] : counter_values(hca.counters())) {
      text += fmt::format("{} {} {} {}\n", hca.address().text(), hca.config().name,
                          std::strrchr(name, '/') + 1, value);
    }
  }
  if (text == written_) return;
  const std::string next = path_ + ".next";
  std::ofstream file(next, std::ios::trunc);
  file << text;
  file.close();
  if (file && std::rename(next.c_str(), path_.c_str()) == 0) {
    written_ = std::move(text);
    return;
  }
  log::warn(
      "the HCAs' counters cannot be kept in {}: {}; set GDX_SOFTHCA_COUNTERS to a file in a folder with room",
      path_, std::strerror(errno));
  path_.clear();
}

}  // namespace gdx::softhca::uverbs
