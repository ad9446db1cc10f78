#include "host/bench/conditions.h"

#include <fmt/format.h>
#include <gdx_commit.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "host/calibration/choose_modes.h"

namespace gdx::bench {
namespace {

using Json = nlohmann::ordered_json;

Json first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line) || line.empty()) return nullptr;
  return line;
}

// The value of the first line "KEY : VALUE" of a file.
Json value_in(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    if (!line.starts_with(key) || colon == std::string::npos) continue;
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
    if (begin != std::string::npos) return line.substr(begin);
  }
  return nullptr;
}

// "rdma-core 44.0" of a loaded libmlx5.so.1.24.44.0: the last two numbers are rdma-core's version.
Json rdma_core_version() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const std::size_t at = line.find("/libmlx5.so.");
    if (at == std::string::npos) continue;
    const std::string version = line.substr(at + std::string("/libmlx5.so.").size());
    const std::size_t last = version.rfind('.');
    const std::size_t before = last == std::string::npos ? last : version.rfind('.', last - 1);
    return "rdma-core " + version.substr(before == std::string::npos ? 0 : before + 1);
  }
  return nullptr;
}

std::string host_name() {
  utsname names{};
  return uname(&names) == 0 ? names.nodename : "?";
}

std::string kernel() {
  utsname names{};
  return uname(&names) == 0 ? fmt::format("Linux {} {}", names.release, names.machine) : "?";
}

Json clocks() {
  const Json governor = first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  const Json mhz = value_in("/proc/cpuinfo", "cpu MHz");
  if (governor.is_null() && mhz.is_null()) return nullptr;
  return fmt::format("governor {}, cpu 0 at {} MHz",
                     governor.is_null() ? "unknown" : governor.get<std::string>(),
                     mhz.is_null() ? "?" : mhz.get<std::string>());
}

Json path_class_of(const Hca& hca, const Gpu* gpu) {
  ModeOptions options;
  options.kernels = gpu != nullptr ? Processor::kGpu : Processor::kCpu;
  if (gpu != nullptr) options.gpu = gpu->pci_bus_id();
  const auto site = site_of_kernels(hca.name(), options);
  if (!site || !site->path) return gpu == nullptr ? Json("none: kernels on a CPU") : Json(nullptr);
  return std::string(name(*site->path));
}

// Variables that change what gdx does: those of the launcher, and of logs, do not.
Json environment() {
  std::string text;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view one(*variable);
    const auto is = [one](std::string_view prefix) { return one.starts_with(prefix); };
    if (!is("GDX_") || is("GDX_RANK=") || is("GDX_WORLD_SIZE=") || is("GDX_ROOT=") || is("GDX_LOG="))
      continue;
    text += fmt::format("{}{}", text.empty() ? "" : " ", one);
  }
  return text.empty() ? Json("none") : Json(text);
}

}  // namespace

std::string measured_on(const Hca& hca, const Gpu* gpu) {
  return fmt::format("{}, kernels on {}", hca.is_software() ? "the software HCA" : "HCA " + hca.name(),
                     gpu == nullptr ? "the CPU layer" : gpu->name());
}

Json read_conditions(const Hca& hca, const Gpu* gpu) {
  const Json product = first_line("/sys/class/dmi/id/product_name");
  return {{"host", host_name()},
          {"machine", product},
          {"cpu", value_in("/proc/cpuinfo", "model name")},
          {"cores", std::thread::hardware_concurrency()},
          {"clocks", clocks()},
          {"kernel", kernel()},
          {"gpu", gpu == nullptr ? Json(nullptr) : Json(gpu->name())},
          {"gpu_driver", first_line("/proc/driver/nvidia/version")},
          {"hca", hca.name()},
          {"hca_is_software", hca.is_software()},
          {"firmware", hca.firmware()},
          {"address", hca.address_text()},
          {"path_mtu_bytes", hca.path_mtu_bytes()},
          {"rdma_core", rdma_core_version()},
          {"payload", "host memory"},
          {"path_class", path_class_of(hca, gpu)},
          {"environment", environment()},
          {"gdx_version", GDX_VERSION ", commit " GDX_COMMIT}};
}

}  // namespace gdx::bench
