#include "host/programs/doctor/machine.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <infiniband/mlx5dv.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <sstream>

#include "base/descriptor.h"
#include "base/environment.h"
#include "host/queue/endpoint.h"

namespace gdx::doctor {
namespace {

namespace fs = std::filesystem;

constexpr char kSpace[] = " \t\r\n";

std::string trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(kSpace) - first + 1));
}

// As libibverbs and hwloc find it: a PCI function has a vendor, a virtual device none.
HcaSeen describe(const Machine& machine, const std::string& name) {
  HcaSeen hca;
  hca.name = name;
  const std::string device = hca.folder() + "/device";
  hca.driver = machine.link(device + "/driver");
  hca.bus_id = canonical_bus_id(machine.link(device)).value_or("");
  hca.device_id = machine.read(device + "/device").value_or("");
  const auto interfaces = machine.names(device + "/net");
  if (!interfaces.empty()) hca.interface = interfaces.front();
  for (const auto& counter : machine.names(hca.port() + "/hw_counters"))
    hca.software = hca.software || counter.starts_with("softhca_");
  hca.software = hca.software || !machine.exists(device + "/vendor");
  hca.link_layer = machine.read(hca.port() + "/link_layer").value_or("");
  return hca;
}

}  // namespace

// A read may fail after an open, as of an empty entry of a GID table, for which streams throw.
std::optional<std::string> Machine::read_all(const std::string& path) const {
  const Descriptor file(open((root + path).c_str(), O_RDONLY | O_CLOEXEC));
  std::string bytes;
  std::array<char, 4096> piece{};
  for (;;) {
    const ssize_t got = ::read(file.value(), piece.data(), piece.size());
    if (got < 0 && errno != EINTR) return std::nullopt;
    if (got == 0) return bytes;
    if (got > 0) bytes.append(piece.data(), static_cast<std::size_t>(got));
  }
}

std::optional<std::string> Machine::read(const std::string& path) const {
  const auto bytes = read_all(path);
  return bytes ? std::optional(trimmed(*bytes)) : std::nullopt;
}

std::vector<std::string> Machine::names(const std::string& folder) const {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(root + folder, error), end; !error && entry != end;
       entry.increment(error))
    names.push_back(entry->path().filename().string());
  std::ranges::sort(names);
  return names;
}

bool Machine::exists(const std::string& path) const {
  std::error_code error;
  return fs::exists(root + path, error);
}

std::string Machine::link(const std::string& path) const {
  std::error_code error;
  return fs::read_symlink(root + path, error).filename().string();
}

std::string Machine::evidence(const std::string& path) const {
  const auto text = read(path);
  return text ? fmt::format("{}: {}", path, first_line(*text)) : path + ": cannot be read";
}

Machine this_whole_machine() {
  Machine machine;
  machine.topology = this_machine();
  machine.is_root = geteuid() == 0;
  struct statvfs shared {};
  if (statvfs("/dev/shm", &shared) == 0)
    machine.shared_memory_bytes = std::uint64_t{shared.f_blocks} * shared.f_frsize;
  Dl_info loaded{};
  std::error_code error;
  if (dladdr(reinterpret_cast<void*>(&mlx5dv_open_device), &loaded) != 0)
    machine.libmlx5 = fs::canonical(loaded.dli_fname, error).string();
  machine.traffic_class = number_from_environment(kTrafficClassVariable, 0, UINT8_MAX);
  machine.probes = live_probes();
  return machine;
}

std::vector<HcaSeen> see_hcas(const Machine& machine) {
  std::vector<HcaSeen> hcas;
  for (const std::string& name : machine.names("/sys/class/infiniband"))
    hcas.push_back(describe(machine, name));
  return hcas;
}

std::vector<HcaSeen> mlx5_hcas(const Machine& machine) {
  std::vector<HcaSeen> hcas = machine.hcas;
  std::erase_if(hcas, [](const HcaSeen& hca) { return hca.software || hca.driver != "mlx5_core"; });
  return hcas;
}

Result<GpuSeen> see_gpu(const Machine& machine, const std::string& bus_id) {
  const auto seen = GDX_TRY(machine.probes.gpus());
  const auto gpu = std::ranges::find(seen, bus_id, &GpuSeen::bus_id);
  if (gpu == seen.end()) return fail(Status::kNotFound, "CUDA does not show the GPU");
  return *gpu;
}

std::vector<Pair> nearest_pairs(const Machine& machine) {
  const auto hcas = mlx5_hcas(machine);
  const auto hca_of = [&](const GpuNicPath& path) {
    return std::ranges::find(hcas, machine.topology.nics[path.nic].os_name, &HcaSeen::name);
  };
  Topology usable = machine.topology;
  std::erase_if(usable.paths, [&](const GpuNicPath& path) { return hca_of(path) == hcas.end(); });
  std::vector<Pair> pairs;
  for (const GpuNicPath& path : pair_by_distance(usable))
    pairs.push_back({usable.gpus[path.gpu].bus_id, *hca_of(path), path.path, path.bridges});
  return pairs;
}

std::optional<std::string> field(std::string_view text, std::string_view key) {
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    const std::string_view begun =
        std::string_view(line).substr(std::min(line.find_first_not_of(kSpace), line.size()));
    if (begun.starts_with(key) && begun.substr(key.size()).starts_with(':'))
      return trimmed(begun.substr(key.size() + 1));
  }
  return std::nullopt;
}

std::optional<bool> is_capable(const Machine& machine, unsigned capability) {
  const auto text = field(machine.read(kProcessStatus).value_or(""), "CapEff");
  if (!text) return std::nullopt;
  return (std::strtoull(text->c_str(), nullptr, 16) >> capability & 1) != 0;
}

std::string first_line(std::string_view text) { return std::string(text.substr(0, text.find('\n'))); }

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

std::optional<std::string> nic_setting(const std::string& text, const std::string& key) {
  const std::size_t at = text.find(key + " ");
  if (at == std::string::npos) return std::nullopt;
  const auto words = words_of(first_line(std::string_view(text).substr(at)));
  return words.size() < 2 ? std::nullopt : std::optional(words[1]);
}

std::vector<std::uint64_t> parse_ranges(std::string_view text) {
  std::vector<std::uint64_t> numbers;
  while (!text.empty()) {
    const std::string_view range = text.substr(0, text.find(','));
    text.remove_prefix(std::min(range.size() + 1, text.size()));
    std::uint32_t first = 0;
    const auto [dash, error] = std::from_chars(range.data(), range.data() + range.size(), first);
    if (error != std::errc{}) return numbers;
    std::uint32_t last = first;
    if (dash != range.data() + range.size()) std::from_chars(dash + 1, range.data() + range.size(), last);
    constexpr std::uint32_t kMost = 1 << 16;  // above any machine's number of processors or DSCPs
    for (std::uint64_t number = first; number <= std::min(last, kMost); ++number) numbers.push_back(number);
  }
  return numbers;
}

bool older(const std::string& version, const std::string& than) {
  const auto numbers = [](const std::string& text) {
    std::vector<unsigned> parts;
    std::istringstream stream(text);
    for (std::string part; std::getline(stream, part, '.');) {
      unsigned number = 0;
      std::from_chars(part.data(), part.data() + part.size(), number);
      parts.push_back(number);
    }
    return parts;
  };
  return numbers(version) < numbers(than);
}

}  // namespace gdx::doctor
