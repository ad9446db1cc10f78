// Faults of a fabricated machine, and their expected reports.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "host/programs/doctor/checks.h"
#include "tests/unit/doctor/fabricated.h"

namespace gdx::doctor {

using Spot = std::pair<std::string, std::string>;  // a check's name, and its subject

struct Expected {
  Spot spot;
  Verdict verdict;
  std::string fix;  // a part of it; empty: none is told
};

struct Fault {
  std::string name;
  std::function<void(Fabricated&)> apply;
  std::vector<Expected> expected = {};
  std::vector<Spot> hidden = {};  // findings that become unavailable
};

[[nodiscard]] const std::vector<Fault>& faults();
// Machines with which nothing is wrong.
[[nodiscard]] const std::vector<Fault>& good_variants();
// Machines that show more than one thing at once.
[[nodiscard]] const std::vector<Fault>& odd_machines();

inline constexpr char kLimits[] = "/proc/self/limits";
inline constexpr char kStatus[] = "/proc/self/status";
inline constexpr char kParameters[] = "/proc/driver/nvidia/params";

// Paths of files of a PCI function, of an HCA, and of its port.
[[nodiscard]] std::string pci(const std::string& bus_id, const std::string& file);
[[nodiscard]] std::string hca(const std::string& name, const std::string& file);
[[nodiscard]] std::string port(const std::string& name, const std::string& file);

void set(Fabricated& machine, const std::string& path, const std::string& text);
// Leaves the port one GID.
void set_gids(Fabricated& machine, const std::string& name, const std::string& type, const std::string& gid);
void make_infiniband(Fabricated& machine);
void make_virtual(Fabricated& machine);
// Leaves the capabilities of a container that asked for none, so not CAP_SYS_ADMIN.
void of_docker(Fabricated& machine);

}  // namespace gdx::doctor
