// House style as a test: permitted includes, lengths of files and functions, forbidden text, and targets of
// links and references. Each rule also runs on a planted offence, so that none of them can pass by being
// blind.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
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

// Folder with the folders that it may include besides itself. A folder belongs to the longest row that holds
// it. Names are those of siblings or, without such a sibling, paths from the root.
struct Layer {
  std::string folder;
  std::set<std::string> below;
};

// Each row names only rows before it, so that includes run one way.
const std::vector<Layer>& layers() {
  static const std::vector<Layer> table = {
      {"proto", {}},
      {"base", {"proto"}},
      {"device/exec", {"proto"}},
      {"device/impl", {"device/options.h", "exec", "proto"}},
      {"device", {"device/impl", "device/exec", "proto"}},
      {"device/collectives", {"device", "exec", "proto"}},
      {"driver-shim/cuda", {"base", "proto"}},
      {"driver-shim/pcie", {"base", "proto"}},
      {"driver-shim/pcie/world", {"driver-shim/pcie", "base", "proto"}},
      {"driver-shim/pcie/model", {"world", "base"}},
      {"driver-shim/softhca/wire", {"base", "proto"}},
      {"driver-shim/softhca/transport", {"proto"}},
      {"driver-shim/softhca/engine", {"wire", "transport", "base", "proto"}},
      {"driver-shim/softhca/devx", {"engine", "wire", "base", "proto"}},
      {"driver-shim/softhca/cm", {"wire", "proto"}},
      {"driver-shim/softhca/uverbs", {"devx", "engine", "wire", "driver-shim/cuda", "base", "proto"}},
      {"driver-shim/softhca/rdma_cm", {"cm", "uverbs", "devx", "engine", "wire", "base", "proto"}},
      {"driver-shim/softhca/interpose", {"rdma_cm", "uverbs", "engine", "base"}},
      {"host/topo", {"base", "proto"}},
      {"host/launch", {"base", "proto"}},
      {"host/bootstrap", {"launch", "base", "proto"}},
      {"host/gpu", {"driver-shim/cuda", "base"}},
      {"host/ipc", {"bootstrap", "base", "proto"}},
      {"host/hca", {"ipc", "launch", "gpu", "topo", "base", "proto"}},
      {"host/calibration", {"gpu", "topo", "driver-shim/cuda", "base", "proto"}},
      {"host/memory", {"hca", "ipc", "gpu", "topo", "driver-shim/cuda", "base", "proto"}},
      {"host/staging", {"memory", "hca", "ipc", "gpu", "base", "proto"}},
      {"host/queue",
       {"staging", "memory", "calibration", "hca", "ipc", "gpu", "device/exec", "base", "proto"}},
      {"host/direct", {"memory", "gpu", "bootstrap", "driver-shim/cuda", "base", "proto"}},
      {"host/poster", {"staging", "base", "proto"}},
      {"host/team",
       {"poster", "direct", "queue", "staging", "memory", "hca", "ipc", "gpu", "bootstrap", "base", "proto"}},
      {"host/messaging", {"poster", "bootstrap", "base", "proto"}},
      {"host/plugins/nccl", {"host/messaging", "host/poster", "host/bootstrap", "base"}},
      {"host",
       {"host/team", "host/direct", "host/queue", "host/staging", "host/memory", "host/hca", "host/gpu",
        "host/bootstrap", "base"}},
      {"python",
       {"call.h", "kernels.h", "raise.h", "stream.h", "host", "device", "device/collectives", "base",
        "proto"}},
      {"host/programs/bench",
       {"host", "host/calibration", "host/hca", "host/gpu", "host/bootstrap", "device", "device/collectives",
        "base", "proto"}},
      {"host/programs/calibrate",
       {"bench", "host", "host/staging", "host/calibration", "host/hca", "host/gpu", "device", "device/impl",
        "base", "proto"}},
      {"host/programs/doctor",
       {"bench", "calibrate", "host/queue", "host/staging", "host/memory", "host/hca", "host/gpu",
        "host/bootstrap", "host/topo", "device", "device/exec", "device/impl", "base", "proto"}},
      {"host/programs/proxy", {"host/poster", "base", "proto"}},
      {"host/programs/cli",
       {"doctor", "bench", "host/team", "host/direct", "host/poster", "host/queue", "host/staging",
        "host/memory", "host/calibration", "host/hca", "host/ipc", "host/gpu", "host/bootstrap",
        "host/launch", "host/topo", "base", "proto"}},
      {"host/programs/daemon",
       {"cli", "host/queue", "host/staging", "host/memory", "host/hca", "host/ipc", "host/bootstrap", "base",
        "proto"}},
      {"demo", {"host", "device", "base", "proto"}},
      {"demo/own", {"put.h", "host", "device", "proto"}},
      {"examples",
       {"../example.h", "../hello_put/greetings.h", "greetings.h", "halo_exchange.h", "hello_put.h",
        "moe_dispatch.h", "own_allreduce.h", "ring_allreduce.h", "work_stealing.h", "host",
        "device/collectives", "device/exec", "device", "proto"}},
  };
  return table;
}

const Layer* find_layer(const std::vector<Layer>& table, const std::string& folder) {
  const auto found = std::ranges::find(table, folder, &Layer::folder);
  return found == table.end() ? nullptr : &*found;
}

// Returns the row of the file at `path`, or null without one.
const Layer* layer_of(const std::string& path) {
  for (fs::path folder = fs::path(path).parent_path(); !folder.empty(); folder = folder.parent_path()) {
    if (const Layer* const layer = find_layer(layers(), folder.string())) return layer;
  }
  return nullptr;
}

// Returns the row that `name` means in the row `layer`, or null for a single file.
const Layer* named_layer(const std::vector<Layer>& table, const Layer& layer, const std::string& name) {
  const fs::path sibling = fs::path(layer.folder).parent_path() / name;
  const Layer* const found = find_layer(table, sibling.string());
  return found != nullptr ? found : find_layer(table, name);
}

bool may_include(const Layer& layer, const std::string& included) {
  if (layer.below.contains(included)) return true;  // a single file
  const Layer* const below = layer_of(included);
  if (below == nullptr) return false;
  return below == &layer || std::ranges::any_of(layer.below, [&](const std::string& name) {
           return named_layer(layers(), layer, name) == below;
         });
}

// Lines as "path:number: what".
using Offences = std::vector<std::string>;

Offences include_offences(const Source& source) {
  Offences offences;
  if (source.path.starts_with("tests/") || source.path.starts_with("perf/")) return offences;
  const Layer* const layer = layer_of(source.path);
  static const std::regex include(R"re(^\s*#include "([^"]+)")re");
  for (std::size_t i = 0; i < source.lines.size(); ++i) {
    std::smatch match;
    if (!std::regex_search(source.lines[i], match, include)) continue;
    if (layer == nullptr) {
      offences.push_back(fmt::format("{}:{}: its folder has no row among the layers", source.path, i + 1));
    } else if (!may_include(*layer, match[1])) {
      offences.push_back(fmt::format("{}:{}: {} may not include this: {}", source.path, i + 1, layer->folder,
                                     source.lines[i]));
    }
  }
  return offences;
}

// Rows that name a row behind them or themselves, and names that no row and no header has.
Offences layer_offences(const std::vector<Layer>& table) {
  Offences offences;
  for (const Layer& layer : table) {
    for (const std::string& name : layer.below) {
      const Layer* const below = named_layer(table, layer, name);
      if (below == nullptr ? !name.ends_with(".h") : below >= &layer)
        offences.push_back(fmt::format("{}: {} is not below it", layer.folder, name));
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

// A comment begins with a noun or a verb: one that begins with a relative word is a clause without a main
// clause.
Offences headless_offences(const Source& source) {
  Offences offences;
  static const std::string relative = "(what|who|whom|whose|where|whether|how|when|why|which)\\b";
  static const std::regex line("^\\s*(//|#)(?!!|include|if|el|end|define|undef|pragma|error)");
  static const std::regex headless("^\\s*(//|#)\\s*" + relative, std::regex::icase);
  static const std::regex trailing("\\S\\s+(//|#) " + relative, std::regex::icase);
  bool continues = false;
  for (std::size_t i = 0; i < source.lines.size(); ++i) {
    const std::string& text = source.lines[i];
    const bool comment = std::regex_search(text, line);
    if (comment ? !continues && std::regex_search(text, headless) : std::regex_search(text, trailing)) {
      offences.push_back(
          fmt::format("{}:{}: begin the comment with a noun or a verb: {}", source.path, i + 1, text));
    }
    continues = comment;
  }
  return offences;
}

// `grep -q` ends at the first match; what writes into it then dies of SIGPIPE, and under pipefail the match
// is lost.
Offences early_end_offences(const Source& source) {
  Offences offences;
  static const std::regex early(R"((^|[^|])\|\s*grep\s+(-\w+\s+)*-\w*q)");
  for (std::size_t i = 0; i < source.lines.size(); ++i) {
    if (std::regex_search(source.lines[i], early))
      offences.push_back(fmt::format("{}:{}: use grep >/dev/null: {}", source.path, i + 1, source.lines[i]));
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

// The anchor that a page's reader (GitHub) makes of a heading: lower case, no punctuation, hyphens for
// blanks.
std::string anchor_of(const std::string& heading) {
  static const std::regex link(R"(\[([^\]]*)\]\([^)]*\))");
  std::string anchor;
  for (const char c : std::regex_replace(heading, link, "$1")) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x80 || std::isalnum(byte) || c == '-' || c == '_')
      anchor += static_cast<char>(std::tolower(byte));
    if (c == ' ') anchor += '-';
  }
  return anchor;
}

// Lines of a page outside its fenced code, with spans of code left out.
std::vector<std::string> prose(const Source& page) {
  static const std::regex span("`[^`]*`");
  std::vector<std::string> lines;
  bool fenced = false;
  for (const std::string& line : page.lines) {
    const bool fence = line.starts_with("```");
    if (fence) fenced = !fenced;
    lines.push_back(fence || fenced || line.starts_with("    ") ? "" : std::regex_replace(line, span, ""));
  }
  return lines;
}

std::set<std::string> anchors_of(const Source& page) {
  static const std::regex heading(R"(^#+ +(.*\S)\s*$)");
  std::set<std::string> anchors;
  bool fenced = false;
  for (const std::string& line : page.lines) {
    std::smatch match;
    if (line.starts_with("```")) fenced = !fenced;
    if (fenced || !std::regex_match(line, match, heading)) continue;
    const std::string anchor = anchor_of(match[1]);
    std::string unique = anchor;
    for (int i = 1; anchors.contains(unique); ++i) unique = fmt::format("{}-{}", anchor, i);
    anchors.insert(unique);
  }
  return anchors;
}

// "" if `target`, a link of the page at `path`, leads to a file and, in a page, to a heading; else the fault.
std::string broken_link(const Source& page, const std::string& target) {
  if (target.find(':') != std::string::npos) return "";  // a URL
  const std::string file = target.substr(0, target.find('#'));
  const std::string anchor = target.substr(std::min(target.size(), file.size() + 1));
  const fs::path root = GDX_SOURCE_DIR;
  const fs::path found = file.empty() ? root / page.path : (root / page.path).parent_path() / fs::path(file);
  if (!file.empty() && !fs::exists(found)) return "no such file";
  if (anchor.empty()) return "";
  if (found.extension() != ".md") return "an anchor outside a page";
  const std::set<std::string> anchors = anchors_of(file.empty() ? page : read(root, found));
  return anchors.contains(anchor) ? "" : "no such heading";
}

// [text](target), [text](target "title") and [name]: target.
Offences link_offences(const Source& page) {
  Offences offences;
  static const std::regex link(R"(\]\(([^)\s]+)[^)]*\)|^\[[^\]]+\]: *(\S+))");
  const std::vector<std::string> lines = prose(page);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    for (std::sregex_iterator match(lines[i].begin(), lines[i].end(), link), end; match != end; ++match) {
      const std::string target = (*match)[1].matched ? (*match)[1] : (*match)[2];
      const std::string fault = broken_link(page, target);
      if (!fault.empty()) offences.push_back(fmt::format("{}:{}: {}: {}", page.path, i + 1, fault, target));
    }
  }
  return offences;
}

// A comment names a page from the root, and a heading in quotes: docs/device.md, "Ordering".
Offences page_reference_offences(const Source& source) {
  Offences offences;
  static const std::regex reference(R"re(\b((?:docs|papers)/[\w./-]+\.md)(?:, "([^"]+)")?)re");
  const fs::path root = GDX_SOURCE_DIR;
  for (std::size_t i = 0; i < source.lines.size(); ++i) {
    const std::string& line = source.lines[i];
    if (line.find(".md") == std::string::npos) continue;
    for (std::sregex_iterator match(line.begin(), line.end(), reference), end; match != end; ++match) {
      const fs::path page = root / (*match)[1].str();
      const bool found = fs::exists(page) && (!(*match)[2].matched ||
                                              anchors_of(read(root, page)).contains(anchor_of((*match)[2])));
      if (!found)
        offences.push_back(fmt::format("{}:{}: no such page: {}", source.path, i + 1, match->str()));
    }
  }
  return offences;
}

std::vector<Source> read_all(const std::set<std::string>& extensions) {
  std::vector<Source> found;
  const fs::path root = GDX_SOURCE_DIR;
  for (const char* folder : {"base", "proto", "device", "driver-shim", "host", "demo", "examples", "tests",
                             "perf", "papers", "python", "cmake", "docs"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      const fs::path& file = entry.path();
      if (extensions.contains(file.extension().string()) || extensions.contains(file.filename().string()))
        found.push_back(read(root, file));
    }
  }
  return found;
}

const std::vector<Source>& all_sources() {
  static const std::vector<Source> sources = read_all({".h", ".cpp", ".cu"});
  return sources;
}

const std::vector<Source>& all_scripts() {
  static const std::vector<Source> scripts = read_all({".cmake", ".py", ".sh", "CMakeLists.txt"});
  return scripts;
}

std::vector<Source> all_pages() {
  const fs::path root = GDX_SOURCE_DIR;
  std::vector<Source> pages = read_all({".md"});
  for (const auto& entry : fs::directory_iterator(root)) {
    if (entry.path().extension() == ".md") pages.push_back(read(root, entry.path()));
  }
  return pages;
}

template <typename Rule>
Offences everywhere(Rule rule, const std::vector<Source>& sources = all_sources()) {
  Offences all;
  for (const Source& source : sources) {
    const Offences some = rule(source);
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

// A page names a case as `Suite.case`, or all of a suite as `Suite.*`.
Offences case_offences(const Source& page) {
  static const std::set<std::string> known = [] {
    std::set<std::string> names;
    const std::regex test(R"(^TEST(?:_F|_P)?\((\w+), (\w+)\))");
    for (const Source& source : all_sources()) {
      for (const std::string& line : source.lines) {
        std::smatch match;
        if (!std::regex_search(line, match, test)) continue;
        names.insert({match.str(1) + ".*", match.str(1) + "." + match.str(2)});
      }
    }
    return names;
  }();
  Offences offences;
  const std::regex named(R"(`([A-Z]\w*\.(?:\w+|\*))`)");
  for (std::size_t i = 0; i < page.lines.size(); ++i) {
    for (std::sregex_iterator match(page.lines[i].begin(), page.lines[i].end(), named), end; match != end;
         ++match)
      if (!known.contains(match->str(1)))
        offences.push_back(fmt::format("{}:{}: no such test: {}", page.path, i + 1, match->str(1)));
  }
  return offences;
}

std::string listed(const Offences& offences) { return fmt::format("{}", fmt::join(offences, "\n")); }

TEST(Tidy, tree_is_found) { EXPECT_GT(all_sources().size(), 50u); }

TEST(Tidy, includes_run_down_to_proto) {
  const Offences offences = everywhere(include_offences);
  EXPECT_TRUE(offences.empty()) << listed(offences);
}
TEST(Tidy, include_rule_planted_offence_is_found) {
  const auto offences = [](const std::string& path, const std::string& included) {
    return include_offences({path, {"#include \"" + included + "\""}}).size();
  };
  const std::string softhca = "driver-shim/softhca/";
  EXPECT_EQ(offences("host/a.h", softhca + "engine/hca.h"), 1u);
  EXPECT_EQ(offences("host/gpu/a.h", "driver-shim/pcie/time.h"), 1u);
  EXPECT_EQ(offences("driver-shim/cuda/fake/a.h", softhca + "engine/hca.h"), 1u);
  EXPECT_EQ(offences("device/a.h", "base/log.h"), 1u);
  EXPECT_EQ(offences("device/impl/a.h", "device/endpoint.h"), 1u);
  EXPECT_EQ(offences("device/a.h", "driver-shim/cuda/driver.h"), 1u);
  EXPECT_EQ(offences("proto/a.h", "sibling.h"), 1u);
  EXPECT_EQ(offences(softhca + "wire/a.cpp", softhca + "transport/psn.h"), 1u);
  EXPECT_EQ(offences(softhca + "engine/a.cpp", softhca + "devx/limits.h"), 1u);
  EXPECT_EQ(offences(softhca + "uverbs/a.cpp", softhca + "interpose/device.h"), 1u);
  EXPECT_EQ(offences(softhca + "rdma_cm/a.cpp", softhca + "interpose/tracked_files.h"), 1u);
  EXPECT_EQ(offences("host/queue/a.h", "host/gdx.h"), 1u);
  EXPECT_EQ(offences("host/calibration/a.cpp", "host/queue/endpoint.h"), 1u);
  EXPECT_EQ(offences(softhca + "newer/a.h", "proto/status.h"), 1u);
  EXPECT_EQ(offences("host/a.h", "host/team/team.h"), 0u);
  EXPECT_EQ(offences("host/gpu/a.h", "driver-shim/cuda/driver.h"), 0u);
  EXPECT_EQ(offences(softhca + "devx/a.h", softhca + "engine/hca.h"), 0u);
  EXPECT_EQ(offences("host/programs/bench/a.h", "host/gdx.h"), 0u);
  EXPECT_TRUE(include_offences({"host/queue/a.h", {"#include <vector>"}}).empty());
}

TEST(Tidy, layers_name_only_layers_below_them) {
  const Offences offences = layer_offences(layers());
  EXPECT_TRUE(offences.empty()) << listed(offences);
}
TEST(Tidy, layer_rule_planted_offence_is_found) {
  EXPECT_EQ(layer_offences({{"a/low", {"high"}}, {"a/high", {"low"}}}).size(), 1u);
  EXPECT_EQ(layer_offences({{"a", {"a"}}, {"b", {"nowhere"}}}).size(), 2u);
  EXPECT_TRUE(layer_offences({{"a/low", {}}, {"b", {"a/low", "own.h"}}, {"a/high", {"low", "b"}}}).empty());
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

TEST(Tidy, comments_begin_with_a_noun_or_a_verb) {
  EXPECT_GT(all_scripts().size(), 50u);
  const Offences offences = everywhere(headless_offences);
  EXPECT_TRUE(offences.empty()) << listed(offences);
  const Offences in_scripts = everywhere(headless_offences, all_scripts());
  EXPECT_TRUE(in_scripts.empty()) << listed(in_scripts);
}
TEST(Tidy, headless_rule_planted_offence_is_found) {
  const std::string mark = "//";
  const std::string hash = "#";
  EXPECT_EQ(headless_offences({"a.h", {mark + " What a word holds."}}).size(), 1u);
  EXPECT_EQ(headless_offences({"a.h", {"  " + mark + " Whether it holds.", mark + " How long."}}).size(), 1u);
  EXPECT_EQ(headless_offences({"a.h", {"int a;  " + mark + " where it is", "#if A", mark + " Who"}}).size(),
            2u);
  EXPECT_EQ(
      headless_offences({"a.cmake", {hash + " What is built.", "set(a b)  " + hash + " when it is"}}).size(),
      2u);
  EXPECT_TRUE(headless_offences({"a.h", {mark + " Holds a word,", mark + " which is read."}}).empty());
  EXPECT_TRUE(headless_offences({"a.h", {"// Whatever comes.", "#include <how>"}}).empty());
}

TEST(Tidy, pipes_are_read_to_their_end) {
  const Offences offences = everywhere(early_end_offences, all_scripts());
  EXPECT_TRUE(offences.empty()) << listed(offences);
}
TEST(Tidy, early_end_rule_planted_offence_is_found) {
  const std::string into = "| grep ";
  EXPECT_EQ(
      early_end_offences({"a.sh", {"a " + into + "-q x", into + "-i -Eq x", "a |& b " + into + "-qx y"}})
          .size(),
      3u);
  EXPECT_TRUE(
      early_end_offences({"a.sh", {"a || grep -q x b", "a | grep x >/dev/null", "a | grep -c q"}}).empty());
}

TEST(Tidy, device_code_leaves_the_machine_to_its_execution_layer) {
  const Offences offences = everywhere(execution_layer_offences);
  EXPECT_TRUE(offences.empty()) << listed(offences);
}
TEST(Tidy, execution_layer_rule_planted_offence_is_found) {
  EXPECT_EQ(execution_layer_offences({"device/a.h", {"#ifdef X", "asm volatile(\"\");"}}).size(), 2u);
  EXPECT_TRUE(execution_layer_offences({"device/exec/a.h", {"#ifdef X"}}).empty());
}

TEST(Tidy, links_of_pages_lead_somewhere) {
  EXPECT_GT(all_pages().size(), 40u);
  const Offences offences = everywhere(link_offences, all_pages());
  EXPECT_TRUE(offences.empty()) << listed(offences);
}
TEST(Tidy, link_rule_planted_offence_is_found) {
  EXPECT_EQ(link_offences({"demo/a.md", {"[a](nowhere.md)", "[b]: ../nowhere.h"}}).size(), 2u);
  EXPECT_EQ(link_offences({"demo/a.md", {"# One", "[a](#two)", "see [b](../README.md#nothing)"}}).size(), 2u);
  EXPECT_EQ(link_offences({"demo/a.md", {"[a](ADR.md) and [b](B.md)"}}).size(), 2u);
  EXPECT_TRUE(link_offences({"demo/a.md",
                             {"# A `put`, twice", "# A `put`, twice", "[a](#a-put-twice-1)", "`[b](no.md)`",
                              "```", "[c](no.md)", "```", "[d](../README.md#run-it)", "[e](https://x/#y)"}})
                  .empty());
}

TEST(Tidy, cases_that_hold_what_a_connectx_does_exist) {
  const Offences offences = case_offences(read(GDX_SOURCE_DIR, fs::path(GDX_SOURCE_DIR) / "docs/testing.md"));
  EXPECT_TRUE(offences.empty()) << listed(offences);
}
TEST(Tidy, case_rule_planted_offence_is_found) {
  EXPECT_EQ(case_offences({"a.md", {"`Tidy.nothing`, `Tidy.*`", "`Nothing.*`"}}).size(), 2u);
}

TEST(Tidy, comments_name_pages_and_sections_that_exist) {
  for (const auto& sources : {all_sources(), all_scripts(), read_all({".pml"})}) {
    const Offences offences = everywhere(page_reference_offences, sources);
    EXPECT_TRUE(offences.empty()) << listed(offences);
  }
}
TEST(Tidy, page_reference_rule_planted_offence_is_found) {
  const std::string folder = "docs/";
  EXPECT_EQ(page_reference_offences({"a.h", {"// Source: " + folder + "nowhere.md."}}).size(), 1u);
  EXPECT_EQ(page_reference_offences({"a.h", {"// " + folder + "device.md, \"Nothing\"."}}).size(), 1u);
  EXPECT_TRUE(page_reference_offences({"a.h", {"// " + folder + "device.md, \"Ordering\"."}}).empty());
}

}  // namespace
