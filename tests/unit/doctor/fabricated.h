// A machine made of text: what its files say, what its programs print and what its probes find. It is good at
// first, with two GPUs, each with a ConnectX-7 on its switch; a test breaks it. Numbers that a check could
// take for each other differ.
#pragma once

#include <map>
#include <set>
#include <string>

#include "host/programs/doctor/machine.h"

namespace gdx::doctor {

inline constexpr char kGpu0[] = "0000:18:00.0";
inline constexpr char kGpu1[] = "0000:9a:00.0";
inline constexpr char kNic0[] = "0000:1a:00.0";
inline constexpr char kNic1[] = "0000:9c:00.0";
inline constexpr char kPair0[] = "0000:18:00.0 with mlx5_0";
inline constexpr char kPair1[] = "0000:9a:00.0 with mlx5_1";

// A configuration space with DevCtl at 0x60 + 8 and, where it is `bytes` long enough, ACS control at 0x100
// + 6.
[[nodiscard]] std::string config_space(unsigned device_control, unsigned acs_control = 0,
                                       std::size_t bytes = 4096);

struct Fabricated {
  Fabricated();  // a good one

  // By path. What begins with '@' is a symbolic link to what follows, and "/" an empty folder.
  std::map<std::string, std::string> files;
  std::map<std::string, std::string> programs;  // stdout by command line; others are not installed
  Topology topology;
  bool is_root = true;
  std::uint64_t shared_memory_bytes = 64ull << 30;
  Result<std::optional<std::uint64_t>> traffic_class = std::optional<std::uint64_t>(110);  // DSCP 27
  std::string libmlx5 = "/usr/lib/x86_64-linux-gnu/libmlx5.so.1.24.44.0";

  // Of the probes. "KEY" is an HCA's name, a GPU's bus id, a path, or "GPU with HCA".
  std::map<std::string, GpuSeen> gpus;  // by bus id
  std::set<std::string> takes_no_dmabuf;
  std::map<std::string, std::string> unmapped;      // by pair: what the driver says
  std::map<std::string, std::string> unregistered;  // by HCA, "dmabuf PAIR" or "peermem PAIR"
  std::map<std::string, std::string> unreached;     // by "HCA with HCA"
  std::map<std::string, std::string> unopened;      // by path or HCA
  std::map<std::string, DeviceMemory> device_memory;
  std::map<std::string, Result<std::string>> data_direct;
  bool blind = false;  // nothing can be tried

  void replace(const std::string& path, const std::string& from, const std::string& to);
  void replace_output(const std::string& command, const std::string& from, const std::string& to);
  void remove_all(const std::string& prefix);
  void add_hca(const std::string& name, const std::string& bus_id, int number);
};

// Keeps files below a folder as a Fabricated says, by writing what differs.
class Disk {
 public:
  Disk();
  ~Disk();
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;

  [[nodiscard]] Machine machine(const Fabricated& wanted);

 private:
  void write(const Fabricated& wanted);

  std::string root_;
  std::map<std::string, std::string> there_;
};

}  // namespace gdx::doctor
