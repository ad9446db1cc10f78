// House style as a test: who may include whom, how long a file and a function may be, what text may not
// appear. Each rule also runs on a planted offence, so that none of them can pass by being blind.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxFileLines = 600;
constexpr std::size_t kMaxFunctionLines = 70;
constexpr std::size_t kMaxLineColumns = 120;

struct Source {
  std::string path;  // from the repository's root
  std::vector<std::string> lines;
};

// A file obeys the longest folder here that it lies in, and may include what lies in the folders listed.
const std::map<std::string, std::set<std::string>>& permitted_includes() {
  static const std::map<std::string, std::set<std::string>> table = {
      {"proto", {"proto"}},
      {"base", {"base", "proto"}},
      {"device", {"device", "proto"}},
      {"driver-shim", {"driver-shim", "base", "proto"}},
      {"driver-shim/cuda", {"driver-shim/cuda", "base", "proto"}},
      {"host", {"host", "device", "driver-shim/cuda", "base", "proto"}},
      {"demo", {"demo", "host", "device", "base", "proto"}},
  };
  return table;
}

// The longest folder of the table that holds `path`, or "".
std::string ruled_folder(const std::string& path) {
  for (fs::path folder = fs::path(path).parent_path(); !folder.empty(); folder = folder.parent_path()) {
    if (permitted_includes().contains(folder.string())) return folder.string();
  }
  return "";
}

bool lies_in_one_of(const std::string& path, const std::set<std::string>& folders) {
  return std::any_of(folders.begin(), folders.end(),
                     [&](const std::string& folder) { return path.starts_with(folder + "/"); });
}

// Lines as "path:number: what".
using Offences = std::vector<std::string>;

Offences include_offences(const Source& source) {
  Offences offences;
  const std::string folder = ruled_folder(source.path);
  if (folder.empty()) return offences;
  static const std::regex include(R"re(^\s*#include "([^"]+)")re");
  for (std::size_t i = 0; i < source.lines.size(); ++i) {
    std::smatch match;
    if (!std::regex_search(source.lines[i], match, include)) continue;
    if (!lies_in_one_of(match[1], permitted_includes().at(folder))) {
      offences.push_back(
          fmt::format("{}:{}: {} may not include this: {}", source.path, i + 1, folder, source.lines[i]));
    }
  }
  return offences;
}

Offences length_offences(const Source& source) {
  Offences offences;
  if (source.lines.size() > kMaxFileLines) {
    offences.push_back(
        fmt::format("{}: {} lines, at most {}", source.path, source.lines.size(), kMaxFileLines));
  }
  for (std::size_t i = 0; i < source.lines.size(); ++i) {
    if (source.lines[i].size() > kMaxLineColumns) {
      offences.push_back(fmt::format("{}:{}: {} columns", source.path, i + 1, source.lines[i].size()));
    }
  }
  return offences;
}

// Formatted code closes a function with a brace in the column of its first line.
Offences function_offences(const Source& source) {
  Offences offences;
  static const std::regex opening(
      R"(^(\s*)[A-Za-z~\[].*\)[^;=]*\{$|^(\s*)[^\s#/}].*\)( const)?( noexcept)?( override)? \{$)");
  static const std::regex not_function(
      R"(^\s*(if|for|while|switch|else|do|namespace|struct|class|enum|\} else)\b)");
  for (std::size_t i = 0; i < source.lines.size(); ++i) {
    const std::string& line = source.lines[i];
    if (!std::regex_search(line, opening) || std::regex_search(line, not_function)) continue;
    // Parameters and a constructor's initializers stand deeper than the brace that ends the function.
    std::size_t first = i;
    while (first > 0 && source.lines[first - 1].ends_with(',')) --first;
    const std::string& start = source.lines[first];
    std::string indent = start.substr(0, start.find_first_not_of(' '));
    if (start[indent.size()] == ':') indent.resize(indent.size() - 4);
    for (std::size_t j = i + 1; j < source.lines.size(); ++j) {
      if (!source.lines[j].starts_with(indent + "}")) continue;
      if (j - i + 1 > kMaxFunctionLines) {
        offences.push_back(fmt::format("{}:{}: a function of {} lines, at most {}", source.path, i + 1,
                                       j - i + 1, kMaxFunctionLines));
      }
      break;
    }
  }
  return offences;
}

Offences unfinished_offences(const Source& source) {
  Offences offences;
  static const std::regex unfinished(R"(\b(TO)(DO)\b|\bFIX(ME)\b|\bX(XX)\b|\bHA(CK)\b)");
  for (std::size_t i = 0; i < source.lines.size(); ++i) {
    if (std::regex_search(source.lines[i], unfinished)) {
      offences.push_back(fmt::format("{}:{}: {}", source.path, i + 1, source.lines[i]));
    }
  }
  return offences;
}

// Inside device code #ifdef, fences and PTX belong to the execution layer alone.
Offences execution_layer_offences(const Source& source) {
  Offences offences;
  if (!source.path.starts_with("device/") || source.path.starts_with("device/exec/")) return offences;
  static const std::regex forbidden(R"(^\s*#if|\basm\b|__threadfence|atomic_thread_fence|__CUDA)");
  for (std::size_t i = 0; i < source.lines.size(); ++i) {
    if (std::regex_search(source.lines[i], forbidden)) {
      offences.push_back(
          fmt::format("{}:{}: belongs to device/exec: {}", source.path, i + 1, source.lines[i]));
    }
  }
  return offences;
}

Source read(const fs::path& root, const fs::path& file) {
  Source source{fs::relative(file, root).string(), {}};
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) source.lines.push_back(line);
  return source;
}

const std::vector<Source>& all_sources() {
  static const std::vector<Source> sources = [] {
    std::vector<Source> found;
    const fs::path root = GDX_SOURCE_DIR;
    for (const char* folder : {"base", "proto", "device", "driver-shim", "host", "demo", "tests", "perf"}) {
      for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
        const std::string extension = entry.path().extension().string();
        if (extension == ".h" || extension == ".cpp" || extension == ".cu")
          found.push_back(read(root, entry.path()));
      }
    }
    return found;
  }();
  return sources;
}

template <typename Rule>
Offences everywhere(Rule rule) {
  Offences all;
  for (const Source& source : all_sources()) {
    const Offences some = rule(source);
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

std::string listed(const Offences& offences) { return fmt::format("{}", fmt::join(offences, "\n")); }

TEST(Tidy, tree_is_found) { EXPECT_GT(all_sources().size(), 50u); }

TEST(Tidy, includes_run_down_to_proto) {
  const Offences offences = everywhere(include_offences);
  EXPECT_TRUE(offences.empty()) << listed(offences);
}
TEST(Tidy, include_rule_planted_offence_is_found) {
  EXPECT_EQ(include_offences({"host/a.h", {"#include \"driver-shim/softhca/engine/hca.h\""}}).size(), 1u);
  EXPECT_EQ(include_offences({"host/gpu/a.h", {"#include \"driver-shim/pcie/time.h\""}}).size(), 1u);
  EXPECT_EQ(include_offences({"driver-shim/cuda/fake/a.h", {"#include \"driver-shim/softhca/engine/hca.h\""}})
                .size(),
            1u);
  EXPECT_EQ(include_offences({"device/a.h", {"#include \"base/log.h\""}}).size(), 1u);
  EXPECT_EQ(include_offences({"device/a.h", {"#include \"driver-shim/cuda/driver.h\""}}).size(), 1u);
  EXPECT_EQ(include_offences({"proto/a.h", {"#include \"sibling.h\""}}).size(), 1u);
  EXPECT_TRUE(include_offences({"host/a.h", {"#include \"proto/status.h\"", "#include <vector>"}}).empty());
  EXPECT_TRUE(include_offences({"host/gpu/a.h", {"#include \"driver-shim/cuda/driver.h\""}}).empty());
}

TEST(Tidy, files_and_lines_are_short) {
  const Offences offences = everywhere(length_offences);
  EXPECT_TRUE(offences.empty()) << listed(offences);
}
TEST(Tidy, length_rule_planted_offence_is_found) {
  EXPECT_EQ(length_offences({"a.h", std::vector<std::string>(kMaxFileLines + 1, "x")}).size(), 1u);
  EXPECT_EQ(length_offences({"a.h", {std::string(kMaxLineColumns + 1, 'x')}}).size(), 1u);
}

TEST(Tidy, functions_are_short) {
  const Offences offences = everywhere(function_offences);
  EXPECT_TRUE(offences.empty()) << listed(offences);
}
TEST(Tidy, function_rule_planted_offence_is_found) {
  for (const char* opening : {"int f(int a) {", "    : a_(a) {", "  void g() const override {",
                              "Result<int> Hca::open(const X& x) {", "    : a_(a),\n      b_(b) {",
                              "int f(int a,\n      int b) {"}) {
    std::vector<std::string> lines(kMaxFunctionLines + 1, "    x();");
    const std::string_view text = opening;
    const std::size_t end = text.find('\n');
    lines.front() = text.substr(0, end);
    if (end != std::string_view::npos) lines.insert(lines.begin() + 1, std::string(text.substr(end + 1)));
    lines.push_back(std::string(opening).starts_with("  v") ? "  }" : "}");
    EXPECT_EQ(function_offences({"a.cpp", lines}).size(), 1u) << opening;
  }
}

TEST(Tidy, nothing_is_marked_unfinished) {
  const Offences offences = everywhere(unfinished_offences);
  EXPECT_TRUE(offences.empty()) << listed(offences);
}
TEST(Tidy, unfinished_rule_planted_offence_is_found) {
  EXPECT_EQ(unfinished_offences({"a.cpp", {std::string("// TO") + "DO: later"}}).size(), 1u);
}

TEST(Tidy, device_code_leaves_the_machine_to_its_execution_layer) {
  const Offences offences = everywhere(execution_layer_offences);
  EXPECT_TRUE(offences.empty()) << listed(offences);
}
TEST(Tidy, execution_layer_rule_planted_offence_is_found) {
  EXPECT_EQ(execution_layer_offences({"device/a.h", {"#ifdef X", "asm volatile(\"\");"}}).size(), 2u);
  EXPECT_TRUE(execution_layer_offences({"device/exec/a.h", {"#ifdef X"}}).empty());
}

}  // namespace
