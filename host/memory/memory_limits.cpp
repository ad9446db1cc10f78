#include "host/memory/memory_limits.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

namespace gdx {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kBytesPerKib = 1024;
constexpr std::uint64_t kSparePart = 16;  // 1/16 of what is left

// Files of one version of cgroups.
struct Files {
  const char* most;
  const char* taken;
  const char* inactive;  // keys of memory.stat
  const char* active;
};
constexpr Files kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file",
                          "total_active_file"};
constexpr Files kVersion2{"memory.max", "memory.current", "inactive_file", "active_file"};

// Returns the number in the file; none for "max".
std::optional<std::uint64_t> number_in(const fs::path& file) {
  std::uint64_t value = 0;
  std::ifstream text(file);
  return text >> value ? std::optional(value) : std::nullopt;
}

// Returns the number after `key` in a file of such pairs.
std::optional<std::uint64_t> number_after(const fs::path& file, const std::string& key) {
  std::ifstream text(file);
  std::string line;
  while (std::getline(text, line)) {
    std::istringstream words(line);
    std::string name;
    std::uint64_t value = 0;
    if (words >> name >> value && name == key) return value;
  }
  return std::nullopt;
}

std::optional<MemoryLimit> limit_of(const fs::path& folder, const Files& files) {
  const auto most = number_in(folder / files.most);
  const auto taken = number_in(folder / files.taken);
  struct stat facts {};
  if (!most || !taken || stat(folder.c_str(), &facts) != 0) return std::nullopt;
  const std::uint64_t of_files = number_after(folder / "memory.stat", files.inactive).value_or(0) +
                                 number_after(folder / "memory.stat", files.active).value_or(0);
  const std::uint64_t held = *taken - std::min(*taken, of_files);
  return MemoryLimit{facts.st_ino, *most - std::min(*most, held), (folder / files.most).string()};
}

// Adds the limits from `path` up to `root`. A container may see the root alone, under a path that is not
// there.
void add_limits(std::vector<MemoryLimit>& limits, const fs::path& root, const std::string& path,
                const Files& files) {
  fs::path below = fs::path(path).lexically_normal().relative_path();
  for (;; below = below.parent_path()) {
    if (auto limit = limit_of((root / below).lexically_normal(), files)) limits.push_back(std::move(*limit));
    if (below.empty()) return;
  }
}

}  // namespace

// A line is "0::/path" of version 2, and "4:cpu,memory:/path" of version 1.
std::vector<MemoryLimit> memory_limits(const MemoryPlaces& places) {
  std::vector<MemoryLimit> limits;
  std::ifstream groups(places.proc + "/self/cgroup");
  std::string line;
  while (std::getline(groups, line)) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (controllers == ",,") add_limits(limits, places.cgroups, path, kVersion2);
    if (controllers.find(",memory,") != std::string::npos)
      add_limits(limits, fs::path(places.cgroups) / "memory", path, kVersion1);
  }
  const std::string machine = places.proc + "/meminfo";
  if (const auto kib = number_after(machine, "MemAvailable:")) {
    const std::uint64_t left_bytes = *kib * kBytesPerKib;
    std::erase_if(limits, [&](const MemoryLimit& limit) { return limit.left_bytes >= left_bytes; });
    limits.push_back({0, left_bytes, "MemAvailable in " + machine});
  }
  if (limits.size() > kMaxKnownLimits)
    limits.erase(limits.begin(), limits.end() - static_cast<std::ptrdiff_t>(kMaxKnownLimits));
  return limits;
}

MemoryNeed memory_need(std::uint64_t bytes, std::span<const MemoryLimit> limits) {
  MemoryNeed need{.bytes = bytes, .limits = static_cast<std::uint32_t>(limits.size())};
  std::ranges::transform(limits, need.ids.begin(), &MemoryLimit::id);
  return need;
}

Result<void> check_memory(std::span<const MemoryLimit> limits, std::span<const MemoryNeed> needs) {
  for (const MemoryLimit& limit : limits) {
    std::uint64_t bytes = 0;
    std::uint32_t processes = 0;
    for (const MemoryNeed& need : needs) {
      const auto known = std::span(need.ids).first(std::min<std::size_t>(need.limits, kMaxKnownLimits));
      if (need.bytes == 0 || std::ranges::find(known, limit.id) == known.end()) continue;
      bytes += need.bytes;
      ++processes;
    }
    const std::uint64_t most = limit.left_bytes - limit.left_bytes / kSparePart;
    if (bytes <= most) continue;
    return fail(Status::kNoMemory,
                fmt::format("{} process{} of this host would take {} bytes of memory, and {} can be had "
                            "({}): take less in each, or start fewer here",
                            processes, processes == 1 ? "" : "es", bytes, most, limit.name));
  }
  return {};
}

}  // namespace gdx
