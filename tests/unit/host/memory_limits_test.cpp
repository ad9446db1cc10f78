// Limits of memory, read from files as the kernel writes them, and what ranks of a host may take together.
#include "host/memory/memory_limits.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "host/memory/memory.h"

namespace gdx {
namespace memory_limits_test {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr std::uint64_t kMib = 1 << 20;

// A folder with the given files, by path.
class Machine {
 public:
  explicit Machine(const std::map<std::string, std::string>& files) {
    EXPECT_NE(mkdtemp(folder_), nullptr);
    for (const auto& [path, text] : files) {
      fs::create_directories((fs::path(folder_) / path).parent_path());
      std::ofstream(fs::path(folder_) / path) << text;
    }
  }
  ~Machine() { fs::remove_all(folder_); }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  [[nodiscard]] std::vector<MemoryLimit> limits() const {
    return memory_limits({std::string(folder_) + "/proc", std::string(folder_) + "/cgroup"});
  }
  // "PATH: MiB" of each.
  [[nodiscard]] std::vector<std::string> texts() const {
    std::vector<std::string> all;
    for (const MemoryLimit& limit : limits()) {
      const auto at = limit.name.find(folder_);
      all.push_back(fmt::format("{}: {}", limit.name.substr(at + sizeof folder_), limit.left_bytes / kMib));
    }
    return all;
  }

 private:
  char folder_[27] = "/tmp/gdx_memory_testXXXXXX";
};

std::string mib(std::uint64_t count) { return std::to_string(count * kMib) + "\n"; }
std::string available(std::uint64_t count) {
  return "MemTotal:  99999999 kB\nMemAvailable:   " + std::to_string(count * 1024) + " kB\n";
}

using Texts = std::vector<std::string>;

TEST(MemoryLimits, are_those_of_the_cgroups_up_the_tree_and_the_machines) {
  EXPECT_EQ(Machine({}).texts(), Texts{}) << "nothing is known";
  EXPECT_EQ(Machine({{"proc/meminfo", available(700)}}).texts(), Texts{"proc/meminfo: 700"});
  const Machine second({{"proc/meminfo", available(700)},
                        {"proc/self/cgroup", "0::/a/b\n"},
                        {"cgroup/a/b/memory.max", "max\n"},
                        {"cgroup/a/b/memory.current", mib(1)},
                        {"cgroup/a/memory.max", mib(500)},
                        {"cgroup/a/memory.current", mib(450)},
                        {"cgroup/a/memory.stat", "anon 5\ninactive_file 10485760\nactive_file 20971520\n"},
                        {"cgroup/memory.max", mib(300)},
                        {"cgroup/memory.current", mib(310)}});
  EXPECT_EQ(second.texts(), (Texts{"cgroup/a/memory.max: 80", "cgroup/memory.max: 0", "proc/meminfo: 700"}));
  const Machine first(
      {{"proc/meminfo", available(700)},
       {"proc/self/cgroup", "5:cpu,memory:/a\n4:memoryless:/b\n0::/\n"},
       {"cgroup/memory/a/memory.limit_in_bytes", mib(600)},
       {"cgroup/memory/a/memory.usage_in_bytes", mib(100)},
       {"cgroup/memory/a/memory.stat", "inactive_file 1048576\ntotal_inactive_file 2097152\n"},
       {"cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"},
       {"cgroup/memory/memory.usage_in_bytes", mib(100)}});
  EXPECT_EQ(first.texts(), (Texts{"cgroup/memory/a/memory.limit_in_bytes: 502", "proc/meminfo: 700"}))
      << "without what the machine has not";
  const Machine container({{"proc/self/cgroup", "0::/elsewhere/../there\n"},
                           {"cgroup/memory.max", mib(300)},
                           {"cgroup/memory.current", mib(100)}});
  EXPECT_EQ(container.texts(), Texts{"cgroup/memory.max: 200"});
}

TEST(MemoryLimits, count_all_ranks_below_them) {
  const std::array<MemoryLimit, 2> here{
      {{7, 100 * kMib, "memory.max of a"}, {0, 160 * kMib, "MemAvailable"}}};
  const std::array<MemoryLimit, 1> beside{here[1]};
  const auto refusal = [&](std::uint64_t own, const std::vector<std::uint64_t>& below,
                           const std::vector<std::uint64_t>& other) {
    std::vector<MemoryNeed> needs{memory_need(own * kMib, here)};
    for (const std::uint64_t each : below) needs.push_back(memory_need(each * kMib, here));
    for (const std::uint64_t each : other) needs.push_back(memory_need(each * kMib, beside));
    const auto checked = check_memory(here, needs);
    return checked ? "" : std::string(status_name(checked.error().status)) + ": " + checked.error().message;
  };
  EXPECT_EQ(refusal(93, {}, {}), "");
  EXPECT_EQ(
      refusal(94, {}, {}),
      "out of memory: 1 process of this host would take 98566144 bytes of memory, and 98304000 can be had "
      "(memory.max of a): take less in each, or start fewer here");
  EXPECT_EQ(refusal(40, {40}, {60}), "");
  EXPECT_THAT(refusal(40, {54, 0}, {}), HasSubstr("2 processes of this host would take 98566144 bytes"));
  EXPECT_THAT(refusal(10, {10}, {131}),
              HasSubstr("3 processes of this host would take 158334976 bytes of memory, "
                        "and 157286400 can be had (MemAvailable)"));
}

}  // namespace memory_limits_test
}  // namespace gdx
