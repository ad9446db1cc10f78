// HCAs and their ports: are they there, have they an address, may packets get lost.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <sstream>

#include "base/parse_number.h"
#include "host/programs/doctor/checks.h"
#include "host/queue/endpoint.h"

namespace gdx::doctor {
namespace {

constexpr char kClass[] = "/sys/class/infiniband";
constexpr char kConnectX8[] = "0x1023";
constexpr unsigned kTrafficClassOfDscp = 4;  // the two bits below are ECN's

std::string or_unknown(const std::optional<std::string>& text) { return text.value_or("?"); }

// Returns the HCAs on Ethernet, because PFC and what belongs to it exist there alone.
std::vector<HcaSeen> roce_hcas(const Machine& machine) {
  auto hcas = mlx5_hcas(machine);
  std::erase_if(hcas, [](const HcaSeen& hca) { return hca.link_layer != "Ethernet"; });
  return hcas;
}

std::vector<Finding> check_present(const Machine& machine) {
  std::vector<Finding> findings;
  std::size_t hardware = 0;
  for (const HcaSeen& hca : machine.hcas) {
    const std::string driver =
        fmt::format("{}/device/driver: {}", hca.folder(), hca.driver.empty() ? "none" : hca.driver);
    if (hca.software) {
      findings.push_back(
          {hca.name, Verdict::kUnknown, "software HCA: nothing here speaks of hardware", driver});
    } else if (hca.driver.empty()) {
      findings.push_back({hca.name, Verdict::kUnknown, "its driver is not known", driver});
    } else if (hca.driver != "mlx5_core") {
      findings.push_back({hca.name, Verdict::kOk, "not an mlx5 device: gdx leaves it alone", driver});
    } else {
      ++hardware;
      findings.push_back({hca.name, Verdict::kOk, fmt::format("ConnectX at {}", hca.bus_id), driver});
    }
  }
  for (const PciDevice& nic : machine.topology.nics) {
    if (nic.os_name.empty() && !machine.exists("/sys/bus/pci/devices/" + nic.bus_id + "/infiniband"))
      findings.push_back({nic.bus_id, hardware == 0 ? Verdict::kFail : Verdict::kWarn,
                          "a ConnectX without an RDMA device that shows here",
                          "/sys/module/mlx5_ib: " +
                              std::string(machine.exists("/sys/module/mlx5_ib") ? "loaded" : "absent")});
  }
  if (hardware == 0) {
    const bool blind = !machine.exists("/sys/class");
    findings.push_back(
        {"machine", blind ? Verdict::kUnknown : Verdict::kFail, "no ConnectX that gdx could drive",
         machine.exists(kClass) ? fmt::format("{}: none of mlx5", kClass) : fmt::format("{}: absent", kClass),
         blind ? ""
               : "with a ConnectX: lspci -d 15b3: shows it, modprobe mlx5_ib, /dev/infiniband in the "
                 "container; without one: gdx run -- PROGRAM, which gives it a software HCA"});
  }
  return findings;
}

std::vector<Finding> check_devx(const Machine& machine) {
  return each(mlx5_hcas(machine), [&](const HcaSeen& hca) {
    return judge(hca.name, machine.probes.open_devx(hca.name),
                 {"opens with DevX", "does not open with DevX", "was not opened"}, "mlx5dv_open_device");
  });
}

std::optional<bool> is_active(const Machine& machine, const HcaSeen& hca) {
  const auto state = machine.read(hca.port() + "/state");
  return state ? std::optional(state->find("ACTIVE") != std::string::npos) : std::nullopt;
}

// Last of the table, because a put that does not arrive counts as losses. Rails may be disjoint on purpose.
// Only ports of one link layer can reach each other. Source: nccl issue 2203.
std::vector<Finding> check_reachability(const Machine& machine) {
  auto hcas = mlx5_hcas(machine);
  std::erase_if(hcas, [&](const HcaSeen& hca) { return !is_active(machine, hca).value_or(false); });
  std::vector<Finding> findings;
  for (auto from = hcas.begin(); from != hcas.end(); ++from) {
    for (auto to = from + 1; to != hcas.end(); ++to) {
      if (from->link_layer != to->link_layer) continue;
      const auto tried = machine.probes.put(from->name, to->name);
      const std::string told = !tried ? tried.error().message : tried->empty() ? "done" : *tried;
      findings.push_back(judge(fmt::format("{} with {}", from->name, to->name),
                               tried ? std::optional(tried->empty()) : std::nullopt,
                               {"a put arrives", "a put does not arrive", "no put was tried"},
                               fmt::format("RDMA WRITE of 64 B: {}", told),
                               "NCCL_CROSS_NIC=0 where rails are disjoint"));
    }
  }
  return findings;
}

// A port that no GPU would use may be unplugged.
std::vector<Finding> check_state(const Machine& machine) {
  std::vector<Finding> findings;
  const auto hcas = mlx5_hcas(machine);
  const auto pairs = nearest_pairs(machine);
  for (const HcaSeen& hca : hcas) {
    const auto is_its = [&](const Pair& pair) { return pair.hca.name == hca.name; };
    const bool needed = hcas.size() == 1 || std::ranges::any_of(pairs, is_its);
    findings.push_back(
        judge(hca.name, is_active(machine, hca),
              {"active, " + hca.link_layer, "the port is not active", "the port's state is not known"},
              machine.evidence(hca.port() + "/state") +
                  "; phys_state: " + or_unknown(machine.read(hca.port() + "/phys_state")),
              "", needed ? Verdict::kFail : Verdict::kWarn));
  }
  return findings;
}

// Ports of one model train to one rate.
std::vector<Finding> check_rate(const Machine& machine) {
  std::vector<HcaSeen> hcas = mlx5_hcas(machine);
  std::erase_if(hcas, [&](const HcaSeen& hca) { return is_active(machine, hca) == false; });
  const auto gbps_of = [&](const HcaSeen& hca) {
    return parse_unsigned(words_of(machine.read(hca.port() + "/rate").value_or("") + " ?").front());
  };
  std::map<std::string, std::uint64_t> fastest;
  for (const HcaSeen& hca : hcas)
    fastest[hca.device_id] = std::max(fastest[hca.device_id], gbps_of(hca).value_or(0));
  return each(hcas, [&](const HcaSeen& hca) {
    const auto gbps = gbps_of(hca);
    const std::uint64_t most = fastest[hca.device_id];
    return judge(hca.name, gbps ? std::optional(*gbps == most) : std::nullopt,
                 {fmt::format("{} Gb/s", most), fmt::format("slower than the {} Gb/s of its like", most),
                  "the rate is not known"},
                 machine.evidence(hca.port() + "/rate"));
  });
}

// A path MTU of 4096 B needs the headers of RoCE v2 besides.
std::vector<Finding> check_mtu(const Machine& machine) {
  constexpr std::uint64_t kLeastBytes = 4096 + 104;
  return each(roce_hcas(machine), [&](const HcaSeen& hca) {
    const std::string path = "/sys/class/net/" + (hca.interface.empty() ? "?" : hca.interface) + "/mtu";
    const auto bytes = parse_unsigned(machine.read(path).value_or("?"));
    return judge(hca.name, bytes ? std::optional(*bytes >= kLeastBytes) : std::nullopt,
                 {"a path MTU of 4096 B fits", "too small for a path MTU of 4096 B",
                  "the interface's MTU is not known"},
                 machine.evidence(path));
  });
}

// Rank of an address, as in Hca::open: IPv4, another routable one, link-local; 0: never.
int worth_of(const std::string& gid) {
  if (gid.find_first_not_of("0:") == std::string::npos) return 0;
  if (gid.starts_with("0000:0000:0000:0000:0000:ffff:")) return 3;
  return gid.starts_with("fe80:") ? 1 : 2;
}

// Returns false for a GID whose interface is known to be in another network namespace, where Hca::open takes
// it only if it is named.
bool is_of_this_namespace(const Machine& machine, const HcaSeen& hca, const std::string& index) {
  const auto interface = machine.read(fmt::format("{}/gid_attrs/ndevs/{}", hca.port(), index));
  const auto here = machine.names("/sys/class/net");
  return !interface || here.empty() || std::ranges::find(here, *interface) != here.end();
}

Finding judge_gids(const Machine& machine, const HcaSeen& hca) {
  const std::string folder = hca.port() + "/gid_attrs/types";
  auto indices = machine.names(folder);
  // As Hca::open, which takes the first of equals. As text, "10" is before "2".
  std::ranges::sort(indices, {}, [](const std::string& index) { return parse_unsigned(index); });
  if (indices.empty())
    return {hca.name, Verdict::kUnknown, "the GIDs are not known", machine.evidence(folder)};
  int best = 0;
  std::string best_path;
  bool known = false;
  for (const std::string& index : indices) {
    const std::string path = fmt::format("{}/gids/{}", hca.port(), index);
    const auto gid = machine.read(path);
    const auto type = machine.read(fmt::format("{}/{}", folder, index));  // of an empty entry: an error
    const int worth = worth_of(gid.value_or(""));
    known = known || (gid && (worth == 0 || type));
    if (type != "RoCE v2" || worth <= best || !is_of_this_namespace(machine, hca, index)) continue;
    best_path = path;
    best = worth;
  }
  return judge(hca.name, best != 0 || known ? std::optional(best > 1) : std::nullopt,
               {best == 3 ? "RoCE v2 over IPv4" : "RoCE v2 over IPv6",
                best == 1 ? "link-local GIDs alone: no router takes them" : "no GID of RoCE v2",
                "the GIDs are not known"},
               best != 0 ? machine.evidence(best_path) : folder + ": none is RoCE v2",
               "give its network interface an IP address, and choose the index of that GID", Verdict::kFail);
}

// An InfiniBand port is addressed by the LID that a subnet manager gives it.
std::vector<Finding> check_address(const Machine& machine) {
  return each(mlx5_hcas(machine), [&](const HcaSeen& hca) {
    if (hca.link_layer == "Ethernet") return judge_gids(machine, hca);
    const std::string path = hca.port() + "/lid";
    const auto lid = hca.link_layer == "InfiniBand" ? machine.read(path) : std::nullopt;
    return judge(hca.name, lid ? std::optional(*lid != "0x0" && *lid != "0") : std::nullopt,
                 {"InfiniBand, with a LID", "the port is InfiniBand and has no LID: no subnet manager runs",
                  "the address is not known"},
                 machine.evidence(path), "", Verdict::kFail);
  });
}

// Output of mlnx_qos.
struct Qos {
  std::string trust;
  std::vector<std::string> enabled;  // "1" for each priority with PFC
  std::map<std::uint64_t, std::size_t> priority_of_dscp;

  [[nodiscard]] std::optional<std::size_t> priority_of(std::uint64_t dscp) const {
    const auto mapped = priority_of_dscp.find(dscp);
    return mapped == priority_of_dscp.end() ? std::nullopt : std::optional(mapped->second);
  }
  // Returns whether PFC keeps the priority lossless; nullopt for an unknown priority.
  [[nodiscard]] std::optional<bool> lossless(std::optional<std::size_t> priority) const {
    if (!priority) return std::nullopt;
    return *priority < enabled.size() && enabled[*priority] == "1";
  }
  [[nodiscard]] bool any() const { return std::ranges::count(enabled, "1") != 0; }
};
Result<std::string> run_on_interface(const Machine& machine, const HcaSeen& hca,
                                     std::vector<std::string> command) {
  if (hca.interface.empty()) return fail(Status::kNotFound, hca.folder() + "/device/net: absent");
  command.push_back(hca.interface);
  return machine.probes.run(command);
}

Result<Qos> read_qos(const Machine& machine, const HcaSeen& hca) {
  const auto text = GDX_TRY(run_on_interface(machine, hca, {"mlnx_qos", "-i"}));
  Qos qos;
  qos.trust = field(text, "Priority trust state").value_or("");
  std::string_view left = text;
  while (!left.empty()) {
    const std::string line = first_line(left);
    left.remove_prefix(std::min(line.size() + 1, left.size()));
    auto words = words_of(line);
    if (words.size() == 9 && words[0] == "enabled") qos.enabled.assign(words.begin() + 1, words.end());
    if (words.size() != 2 || !words[0].starts_with("prio:") || !words[1].starts_with("dscp:")) continue;
    const auto priority = parse_unsigned(words[0].substr(5));
    for (const std::uint64_t dscp : parse_ranges(words[1].substr(5)))
      qos.priority_of_dscp[dscp] = priority.value_or(0);
  }
  if (qos.trust.empty() || qos.enabled.empty())
    return fail(Status::kUnsupported,
                fmt::format("mlnx_qos -i {} tells no trust state or no PFC", hca.interface));
  return qos;
}

std::string forced_class_path(const HcaSeen& hca) { return hca.folder() + "/tc/1/traffic_class"; }

// Returns the traffic class that the driver forces on queue pairs of verbs. It affects none of DevX, hence
// none of gdx, which sets its own. Source: NVIDIA/nccl issue 2383, NVIDIA/nvshmem pull request 25.
std::optional<std::uint64_t> forced_class(const Machine& machine, const HcaSeen& hca) {
  const std::string line = first_line(machine.read(forced_class_path(hca)).value_or(""));
  const std::size_t at = line.find('=');  // "Global tclass=106"
  return at == std::string::npos ? std::nullopt : parse_unsigned(line.substr(at + 1));
}

Finding judge_qos(const Machine& machine, const HcaSeen& hca, const Qos& qos) {
  const std::string command = "mlnx_qos -i " + hca.interface;
  if (qos.trust != "dscp")
    return {hca.name, Verdict::kWarn, "the port does not trust DSCP",
            fmt::format("{}: trust state {}", command, qos.trust), command + " --trust dscp"};
  if (!qos.any())
    return {hca.name, Verdict::kWarn, "no priority has PFC: packets may be lost", command + ": PFC on none",
            command + " --pfc 0,0,0,1,0,0,0,0, and PFC on the same queue of the switch"};
  const std::uint64_t dscp = machine.traffic_class->value_or(0) / kTrafficClassOfDscp;
  const auto priority = qos.priority_of(dscp);
  std::string evidence =
      fmt::format("{}; ${}: {}", command, kTrafficClassVariable,
                  *machine.traffic_class ? fmt::format("{}", **machine.traffic_class) : "not set");
  const auto covered = std::ranges::find(qos.enabled, "1") - qos.enabled.begin();
  std::string fix =
      fmt::format("{} --dscp2prio set,{},{}, and the same on the switch", command, dscp, covered);
  if (const auto forced = forced_class(machine, hca); forced) {
    evidence += "; of verbs " + machine.evidence(forced_class_path(hca));
    if (qos.lossless(qos.priority_of(*forced / kTrafficClassOfDscp)).value_or(false))
      fix = fmt::format("{}={}, as of verbs", kTrafficClassVariable, *forced);
  }
  const std::string which =
      fmt::format("gdx's DSCP {} has priority {}", dscp, priority ? fmt::format("{}", *priority) : "?");
  return judge(hca.name, qos.lossless(priority),
               {which + ", with PFC", which + ", without PFC", "the priority of gdx's DSCP is not known"},
               evidence, fix);
}

std::vector<Finding> check_qos(const Machine& machine) {
  return each(roce_hcas(machine), [&](const HcaSeen& hca) -> Finding {
    if (!machine.traffic_class)
      return {hca.name, Verdict::kFail, "gdx refuses the traffic class",
              machine.traffic_class.error().message};
    const auto qos = read_qos(machine, hca);
    if (qos) return judge_qos(machine, hca, *qos);
    return {hca.name, Verdict::kUnknown, "PFC and DSCP are not known", qos.error().message};
  });
}

std::vector<Finding> check_congestion(const Machine& machine) {
  return each(roce_hcas(machine), [&](const HcaSeen& hca) {
    const std::string command = fmt::format("mlxconfig -d {} q", hca.bus_id);
    const auto text = machine.probes.run({"mlxconfig", "-d", hca.bus_id, "q"});
    const auto mask = text ? nic_setting(*text, "ROCE_CC_PRIO_MASK_P1") : std::nullopt;
    const auto cnp = text ? nic_setting(*text, "CNP_DSCP_P1") : std::nullopt;
    const std::string evidence = text ? fmt::format("{}: ROCE_CC_PRIO_MASK_P1 {}, CNP_DSCP_P1 {}", command,
                                                    or_unknown(mask), or_unknown(cnp))
                                      : text.error().message;
    if (!mask || *mask == "0")
      return judge(hca.name, mask ? std::optional(false) : std::nullopt,
                   {"", "DCQCN is off on every priority", "DCQCN is not known"}, evidence,
                   fmt::format("mlxconfig -d {} set ROCE_CC_PRIO_MASK_P1=255", hca.bus_id));
    const auto qos = read_qos(machine, hca);
    const auto dscp = cnp ? parse_unsigned(*cnp) : std::nullopt;
    const auto paused = qos && dscp ? qos->lossless(qos->priority_of(*dscp)) : std::nullopt;
    return judge(hca.name, paused ? std::optional(!*paused) : std::nullopt,
                 {"DCQCN is on", "CNPs share a priority with PFC: pauses delay them",
                  "DCQCN is on; whether pauses delay CNPs is not known"},
                 qos ? evidence : fmt::format("{}; {}", evidence, qos.error().message));
  });
}

// Counts since the driver was loaded. Counters that only mark congestion (CNPs) are no loss.
std::vector<Finding> check_losses(const Machine& machine) {
  constexpr std::array kCounters = {"local_ack_timeout_err", "packet_seq_err", "out_of_sequence",
                                    "rnr_nak_retry_err"};
  return each(mlx5_hcas(machine), [&](const HcaSeen& hca) {
    const std::string folder = hca.port() + "/hw_counters";
    std::string counted;
    bool known = true;
    for (const char* counter : kCounters) {
      const auto text = machine.read(folder + "/" + counter);
      known = known && text;
      if (text && *text != "0") counted += fmt::format("{} {}, ", counter, *text);
    }
    return judge(hca.name,
                 !counted.empty() ? std::optional(false)
                 : known          ? std::optional(true)
                                  : std::nullopt,
                 {"no packet was lost", "packets were lost or late", "losses are not known"},
                 fmt::format("{}: {}np_cnp_sent {}; port_xmit_packets {}", folder, counted,
                             or_unknown(machine.read(folder + "/np_cnp_sent")),
                             or_unknown(machine.read(hca.port() + "/counters/port_xmit_packets"))),
                 "check links and fabric");
  });
}

std::vector<Finding> check_discards(const Machine& machine) {
  return each(roce_hcas(machine), [&](const HcaSeen& hca) {
    const auto text = run_on_interface(machine, hca, {"ethtool", "-S"});
    std::string discards;
    std::string pauses;
    std::istringstream lines(text ? *text : "");
    for (std::string line; std::getline(lines, line);) {
      const auto words = words_of(line);
      if (words.size() != 2 || words[1] == "0") continue;
      if (words[0].find("discard") != std::string::npos)
        discards += fmt::format(" {} {}", words[0], words[1]);
      if (words[0].ends_with("_pause:") || words[0].ends_with("_pause_ctrl_phy:"))
        pauses += fmt::format(" {} {}", words[0], words[1]);
    }
    return judge(hca.name, text ? std::optional(discards.empty()) : std::nullopt,
                 {"the port discarded nothing", "the port discarded packets", "discards are not known"},
                 text ? fmt::format("ethtool -S {}: discards:{}, pauses:{}", hca.interface, discards, pauses)
                      : text.error().message,
                 "PFC on the queue of the traffic's DSCP, on switch and NIC");
  });
}

std::vector<Finding> check_firmware(const Machine& machine) {
  const auto hcas = mlx5_hcas(machine);
  std::map<std::string, std::string> newest;
  const auto version_of = [&](const HcaSeen& hca) { return machine.read(hca.folder() + "/fw_ver"); };
  for (const HcaSeen& hca : hcas) {
    const std::string version = version_of(hca).value_or("");
    if (older(newest[hca.device_id], version)) newest[hca.device_id] = version;
  }
  return each(hcas, [&](const HcaSeen& hca) {
    const auto version = version_of(hca);
    const std::string& most = newest[hca.device_id];
    return judge(hca.name, version ? std::optional(!older(*version, most)) : std::nullopt,
                 {"as new as its like", fmt::format("older than the {} of its like", most),
                  "the firmware is not known"},
                 machine.evidence(hca.folder() + "/fw_ver"), "upgrade the firmware");
  });
}

std::vector<Finding> check_device_memory(const Machine& machine) {
  return each(mlx5_hcas(machine), [&](const HcaSeen& hca) {
    const auto memory = machine.probes.device_memory(hca.name);
    const DeviceMemory told = memory.value_or(DeviceMemory{});
    return judge(
        hca.name, memory ? std::optional(told.largest_bytes != 0) : std::nullopt,
        {fmt::format("{} B at most in one piece", told.largest_bytes),
         told.bytes == 0 ? "none: nothing can be pushed" : "none is left", "device memory is not known"},
        memory ? fmt::format("max_dm_size {}; ibv_alloc_dm: {} B", told.bytes, told.largest_bytes)
               : memory.error().message);
  });
}

// Programs, and no setting of the machine, decide its use: it is told, and nothing is advised.
std::vector<Finding> tell_data_direct(const Machine& machine) {
  std::vector<Finding> findings;
  for (const HcaSeen& hca : mlx5_hcas(machine)) {
    if (hca.device_id != kConnectX8) continue;
    const auto path = machine.probes.data_direct(hca.name);
    const bool has_none = path && path->empty();
    const bool lacks_verb = !path && path.error().status == Status::kUnsupported;
    findings.push_back(
        judge(hca.name, path || lacks_verb ? std::optional(!lacks_verb) : std::nullopt,
              {has_none ? "no Data Direct function" : "Data Direct serves GPU memory that the HCA only reads",
               "libmlx5 cannot use Data Direct", "Data Direct is not known"},
              "mlx5dv_get_data_direct_sysfs_path: " + (!path      ? path.error().message
                                                       : has_none ? "none"
                                                                  : *path),
              "rdma-core 54 or later"));
  }
  return findings;
}

// Source: nixl issue 1656.
std::vector<Finding> check_efa(const Machine& machine) {
  std::vector<Finding> findings;
  for (const HcaSeen& hca : machine.hcas) {
    if (hca.driver != "efa") continue;
    const std::string path = hca.port() + "/hw_counters/rdma_write_bytes";
    const auto value = machine.read(path);
    findings.push_back(
        judge(hca.name, value ? std::optional(*value != "0") : std::nullopt,
              {"RDMA writes go out", "no RDMA write has gone out", "RDMA writes are not known"},
              machine.evidence(path), "use the efa-direct fabric"));
  }
  return findings;
}

constexpr Check kPortChecks[] = {
    {"hca", "/sys/class/infiniband, drivers, the PCI tree", check_present},
    {"devx", "mlx5dv_open_device with DevX", check_devx},
    {"port", "ports/1/state, phys_state, link_layer", check_state},
    {"rate", "ports/1/rate of HCAs of one model", check_rate},
    {"mtu", "/sys/class/net/INTERFACE/mtu", check_mtu},
    {"address", "link_layer, gids and gid_attrs/types, or lid", check_address},
    {"pfc", "mlnx_qos -i INTERFACE, $GDX_TRAFFIC_CLASS, tc/1/traffic_class", check_qos},
    {"dcqcn", "mlxconfig: ROCE_CC_PRIO_MASK_P1, CNP_DSCP_P1", check_congestion},
    {"losses", "hw_counters: timeouts, sequence errors, RNR NAKs", check_losses},
    {"discards", "ethtool -S INTERFACE: discards and pauses", check_discards},
    {"firmware", "fw_ver of HCAs of one model", check_firmware},
    {"device-memory", "max_dm_size, and the largest ibv_alloc_dm", check_device_memory},
    {"data-direct", "mlx5dv_get_data_direct_sysfs_path", tell_data_direct},
    {"efa", "hw_counters/rdma_write_bytes", check_efa},
    {"reachability", "a put between each two ports", check_reachability},
};

}  // namespace

std::span<const Check> port_checks() { return kPortChecks; }

}  // namespace gdx::doctor
