// Input of checks: files below a root folder, the PCI tree, and probes of facts that no file contains. A test
// gives all three, so a check is one function on this machine and on a fabricated one.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "host/memory/gpu_registration.h"
#include "host/topo/topology.h"

namespace gdx::doctor {

inline constexpr char kProcessStatus[] = "/proc/self/status";

// The outcome of something that was tried: empty where it worked, else why not, as the kernel or driver says.
using Refusal = std::string;

struct GpuSeen {  // GPU as the CUDA driver shows it
  std::string bus_id;
  bool exports_dmabuf = false;
  bool orders_writes = false;  // those of an HCA, for kernels that run: the attribute
  bool over_c2c = false;       // joined to the processor by it
  int compute_capability = 0;  // 90 for sm_90
};

struct DeviceMemory {  // MEMIC
  std::uint64_t bytes = 0;
  std::uint64_t largest_bytes = 0;  // largest single allocation now
};

// Errors of each: why it could not be tried, which makes a finding UNKNOWN. HCAs go by name, GPUs by bus id.
struct Probes {
  // Runs a program with no shell and returns its stdout. Errors: not installed, or it failed.
  std::function<Result<std::string>(const std::vector<std::string>& command)> run;
  std::function<Result<Refusal>(const std::string& path)> open_device;  // to read and write
  std::function<Result<Refusal>(const std::string& hca)> open_devx;
  std::function<Result<std::vector<GpuSeen>>()> gpus;
  std::function<Result<Refusal>(const std::string& hca, const std::string& gpu)> map_uar;
  std::function<Result<bool>(const std::string& hca)> hca_imports_dmabuf;
  // One page: of the host for kHostPages, where `gpu` is of no account, else of the GPU.
  std::function<Result<Refusal>(const std::string& hca, const std::string& gpu, RegistrationWay way)>
      register_page;
  // A put of 64 B from the first HCA to the second.
  std::function<Result<Refusal>(const std::string& from, const std::string& to)> put;
  std::function<Result<DeviceMemory>(const std::string& hca)> device_memory;
  // The sysfs folder of the HCA's Data Direct function; empty without one.
  std::function<Result<std::string>(const std::string& hca)> data_direct;
};

// Probes of this machine, by system calls. Threads: one at a time.
[[nodiscard]] Probes live_probes();

struct HcaSeen {  // HCA as sysfs shows it
  std::string name;
  std::string driver;      // "mlx5_core"; empty: cannot be read
  std::string bus_id;      // empty: on no PCI bus
  std::string device_id;   // "0x1021"
  std::string interface;   // its network interface; empty: none, or in another network namespace
  std::string link_layer;  // "Ethernet" or "InfiniBand"; empty: cannot be read
  bool software = false;

  [[nodiscard]] std::string folder() const { return "/sys/class/infiniband/" + name; }
  [[nodiscard]] std::string port() const { return folder() + "/ports/1"; }  // the one that gdx uses
};

struct Machine {
  std::string root;  // prefix of all paths; empty for this machine
  Topology topology;
  bool is_root = false;                              // the effective user
  std::optional<std::uint64_t> shared_memory_bytes;  // the size of /dev/shm
  std::string libmlx5;                               // the file that is loaded: libmlx5.so.1.24.44.0
  // $GDX_TRAFFIC_CLASS, nothing where it is not set. Errors: gdx refuses it.
  Result<std::optional<std::uint64_t>> traffic_class = std::optional<std::uint64_t>();
  Probes probes;
  std::vector<HcaSeen> hcas = {};  // result of see_hcas(), for checks

  // Paths are those of the machine, without the root. A file's text, without space at its ends; absent where
  // it cannot be read.
  [[nodiscard]] std::optional<std::string> read(const std::string& path) const;
  // Returns the text as read() does, with the white space at its end.
  [[nodiscard]] std::optional<std::string> read_all(const std::string& path) const;
  // The names in a folder, sorted; none where it cannot be read.
  [[nodiscard]] std::vector<std::string> names(const std::string& folder) const;
  [[nodiscard]] bool exists(const std::string& path) const;
  // The last component of what a symbolic link points to; empty where there is none.
  [[nodiscard]] std::string link(const std::string& path) const;
  // "PATH: VALUE", the first line of it, or "PATH: cannot be read".
  [[nodiscard]] std::string evidence(const std::string& path) const;
};

[[nodiscard]] Machine this_whole_machine();

// The RDMA devices, by name.
[[nodiscard]] std::vector<HcaSeen> see_hcas(const Machine& machine);
// Those of `machine.hcas` that are hardware and mlx5, which gdx drives.
[[nodiscard]] std::vector<HcaSeen> mlx5_hcas(const Machine& machine);

// Returns the GPU as CUDA shows it. Errors: those of the probe; kNotFound.
[[nodiscard]] Result<GpuSeen> see_gpu(const Machine& machine, const std::string& bus_id);

struct Pair {
  std::string gpu;  // bus id
  HcaSeen hca;
  PathClass path;
  std::vector<std::string> bridges;
};
// Returns each CUDA GPU with the nearest of the machine's HCAs.
[[nodiscard]] std::vector<Pair> nearest_pairs(const Machine& machine);

// The value behind the first "KEY:" at the beginning of a line of `text`.
[[nodiscard]] std::optional<std::string> field(std::string_view text, std::string_view key);
[[nodiscard]] std::string first_line(std::string_view text);
// Returns whether this process has a capability of linux/capability.h. Absent: its status cannot be read.
[[nodiscard]] std::optional<bool> is_capable(const Machine& machine, unsigned capability);
[[nodiscard]] std::vector<std::string> words_of(const std::string& text);
// Returns one setting from mlxconfig's output: "  CNP_DSCP_P1      48".
[[nodiscard]] std::optional<std::string> nic_setting(const std::string& text, const std::string& key);
// "0-3,8" as 0, 1, 2, 3, 8.
[[nodiscard]] std::vector<std::uint64_t> parse_ranges(std::string_view text);
// Compares dotted numbers: "28.39.1002" is older than "28.41.1000".
[[nodiscard]] bool older(const std::string& version, const std::string& than);

}  // namespace gdx::doctor
