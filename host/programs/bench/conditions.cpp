#include "host/programs/bench/conditions.h"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "base/commit.h"
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

// "0-3,8": processors that this process may run on, as taskset or a launcher left them.
Json processors() { return value_in("/proc/self/status", "Cpus_allowed_list"); }

// "MT4129 GDX0000000001": the model of the chip and that of the board.
Json part_of(const Hca& hca) {
  const std::string folder = "/sys/class/infiniband/" + hca.name();
  const Json chip = first_line(folder + "/hca_type");
  const Json board = first_line(folder + "/board_id");
  if (chip.is_null() || board.is_null()) return nullptr;
  return chip.get<std::string>() + " " + board.get<std::string>();
}

// "at most 1980 MHz": how fast multiprocessors run at the moment, only a profiler can read.
Json gpu_clock(const Gpu& gpu) {
  return gpu.most_mhz() == 0 ? Json(nullptr) : Json(fmt::format("at most {} MHz", gpu.most_mhz()));
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
    if (!is("GDX_") || is("GDX_RANK=") || is("GDX_WORLD_SIZE=") || is("GDX_ROOT=") || is("GDX_SECRET_") ||
        is("GDX_LOG="))
      continue;
    text += fmt::format("{}{}", text.empty() ? "" : " ", one);
  }
  return text.empty() ? Json("none") : Json(text);
}

}  // namespace

std::string hca_text(const Hca& hca) { return hca.is_software() ? "the software HCA" : "HCA " + hca.name(); }

std::string measured_on(const Hca& hca, const Gpus& gpus) {
  return fmt::format("{}, kernels on {}{}", hca_text(hca),
                     gpus.kernels == nullptr ? "the CPU layer" : gpus.kernels->name(),
                     gpus.payload == nullptr ? "" : ", payload in GPU memory");
}

Json read_conditions(const Rank& rank, const Gpus& gpus) {
  const Hca& hca = rank.hca();
  const Gpu* const gpu = gpus.kernels != nullptr ? gpus.kernels : gpus.payload;
  const Json product = first_line("/sys/class/dmi/id/product_name");
  Json conditions = {
      {"host", host_name()},
      {"machine", product},
      {"cpu", value_in("/proc/cpuinfo", "model name")},
      {"cores", std::thread::hardware_concurrency()},
      {"kernel_threads", gpus.kernels == nullptr ? Json(rank.workers()) : Json(nullptr)},
      {"processors", processors()},
      {"clocks", clocks()},
      {"kernel", kernel()},
      {"gpu", gpu == nullptr ? Json(nullptr) : Json(gpu->name())},
      {"gpu_clock", gpu == nullptr ? Json(nullptr) : gpu_clock(*gpu)},
      {"gpu_sharing", gpu == nullptr ? Json(nullptr) : Json(gpu->shared_by_mps() ? "MPS" : "time slices")},
      {"gpu_driver", first_line("/proc/driver/nvidia/version")},
      {"cuda", gpu == nullptr ? Json(nullptr) : Json(gpu->cuda_version())},
      {"hca", hca.name()},
      {"hca_part", part_of(hca)},
      {"hca_is_software", hca.is_software()},
      {"firmware", hca.firmware()},
      {"address", hca.address_text()},
      {"path_mtu_bytes", hca.path_mtu_bytes()},
      {"rdma_core", rdma_core_version()},
      {"payload", rank.payload_place()},
      {"queues", rank.queues_place()},
      {"signals", rank.signals().empty() ? Json(nullptr) : Json(rank.signals())},
      {"path_class", path_class_of(hca, gpu)},
      {"environment", environment()},
      {"gdx_version", fmt::format("{}, commit {}", GDX_VERSION, commit())}};
  if (!rank.push_refusal().empty()) conditions["push"] = "not measured: " + rank.push_refusal();
  return conditions;
}

}  // namespace gdx::bench
