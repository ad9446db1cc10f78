// Checks on fabricated machines: good ones, and faults singly and in pairs. Nothing is missed, nothing
// invented.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "host/programs/doctor/checks.h"
#include "tests/expected_text.h"
#include "tests/unit/doctor/fabricated.h"
#include "tests/unit/doctor/faults.h"

namespace gdx::doctor {
namespace doctor_test {

using ::testing::IsEmpty;

std::string text_of(const Diagnosis& one) {
  return fmt::format("{} {} of {}: {} ({}) fix: {}", name(one.finding.verdict), one.check->name,
                     one.finding.subject, one.finding.what, one.finding.evidence, one.finding.fix);
}

// Returns the diagnoses that are not OK. Keeps one for each check and subject; of several, as of device
// nodes, the worst.
std::map<Spot, Diagnosis> troubles_of(const std::vector<Diagnosis>& all) {
  std::map<Spot, Diagnosis> troubles;
  for (const Diagnosis& one : all) {
    if (one.finding.verdict == Verdict::kOk) continue;
    const auto [at, is_new] = troubles.emplace(Spot(one.check->name, one.finding.subject), one);
    if (!is_new && one.finding.verdict > at->second.finding.verdict) at->second = one;
  }
  return troubles;
}

// Counts of troubles: present, reported as expected, and reported at all.
struct Score {
  std::size_t expected = 0;
  std::size_t right = 0;
  std::size_t reported = 0;

  [[nodiscard]] double precision() const {
    return static_cast<double>(right) / static_cast<double>(reported);
  }
  [[nodiscard]] double recall() const { return static_cast<double>(right) / static_cast<double>(expected); }
};

// Adds to `score`; tells what is wrong.
void compare(const std::vector<Expected>& expected, const std::vector<Diagnosis>& all,
             const std::string& which, Score& score) {
  auto troubles = troubles_of(all);
  score.expected += expected.size();
  score.reported += troubles.size();
  for (const Expected& wanted : expected) {
    const auto found = troubles.find(wanted.spot);
    if (found == troubles.end()) {
      ADD_FAILURE() << which << ": missed: " << wanted.spot.first << " of " << wanted.spot.second;
      continue;
    }
    const Finding& finding = found->second.finding;
    const bool same =
        finding.verdict == wanted.verdict && !finding.evidence.empty() &&
        (wanted.fix.empty() ? finding.fix.empty() : finding.fix.find(wanted.fix) != std::string::npos);
    if (same) ++score.right;
    EXPECT_TRUE(same) << which << ": wanted " << name(wanted.verdict) << " with fix '" << wanted.fix
                      << "', not: " << text_of(found->second);
    troubles.erase(found);
  }
  for (const auto& [spot, one] : troubles) ADD_FAILURE() << which << ": invented: " << text_of(one);
}

bool overlap(const std::vector<Spot>& a, const std::vector<Spot>& b) {
  return std::ranges::any_of(a, [&](const Spot& one) { return std::ranges::find(b, one) != b.end(); });
}

// Two faults exclude each other where one changes or hides what the other shows.
bool exclude(const Fault& a, const Fault& b) {
  const auto shown = [](const Fault& fault) {
    std::vector<Spot> spots;
    for (const Expected& one : fault.expected) spots.push_back(one.spot);
    return spots;
  };
  return overlap(shown(a), shown(b)) || overlap(a.hidden, shown(b)) || overlap(shown(a), b.hidden);
}

void print_score(const char* what, std::size_t machines, const Score& score) {
  fmt::print("{}: {} machines, {} troubles: precision {:.3f}, recall {:.3f}\n", what, machines,
             score.expected, score.precision(), score.recall());
  EXPECT_EQ(score.precision(), 1.0);
  EXPECT_EQ(score.recall(), 1.0);
}

TEST(Doctor, good_machines_are_all_ok) {
  Disk disk;
  for (const Fault& variant : good_variants()) {
    Fabricated machine;
    variant.apply(machine);
    Score score;
    const auto all = diagnose(disk.machine(machine));
    compare({}, all, variant.name, score);
    EXPECT_EQ(worst(all), Verdict::kOk) << variant.name;
    EXPECT_GT(all.size(), 40u) << variant.name << ": checks say nothing";
  }
}

std::string all_told(const Machine& machine) {
  std::string told;
  for (const Diagnosis& one : diagnose(machine)) told += text_of(one) + "\n";
  return told;
}

// Verdicts alone would hide a number that is another's.
TEST(Doctor, numbers_that_are_told_are_those_of_their_names) {
  Disk disk;
  const std::string told = all_told(disk.machine(Fabricated()));
  for (const char* words :
       {"gpu of 0000:18:00.0: CUDA shows it (cuDeviceGetCount: 2)",
        "mlx5_0/ports/1/state: 4: ACTIVE; phys_state: 5: LinkUp)",
        "/sys/class/net/eth0/mtu: 9000)",
        "/sys/class/net/eth1/mtu: 9001)",
        "mlx5_0/ports/1/gids/3: 0000:0000:0000:0000:0000:ffff:0a00:0001)",
        "mlx5_1/ports/1/gids/3: 0000:0000:0000:0000:0000:ffff:0a00:0002)",
        "gdx's DSCP 27 has priority 3, with PFC (mlnx_qos -i eth1; $GDX_TRAFFIC_CLASS: 110; of verbs",
        "mlx5_1/tc/1/traffic_class: Global tclass=106)",
        "0000:1a:00.0 q: ROCE_CC_PRIO_MASK_P1 255, CNP_DSCP_P1 48)",
        "0000:9c:00.0 q: ROCE_CC_PRIO_MASK_P1 255, CNP_DSCP_P1 49)",
        "mlx5_0/ports/1/hw_counters: np_cnp_sent 4711; port_xmit_packets 123456789)",
        "mlx5_1/ports/1/hw_counters: np_cnp_sent 4712; port_xmit_packets 123456790)",
        "eth0: discards:, pauses: rx_prio3_pause: 12)",
        "eth1: discards:, pauses: rx_prio3_pause: 13)",
        "mlx5_0: 131072 B at most in one piece (max_dm_size 262144; ibv_alloc_dm: 131072 B)",
        "mlx5_1: 65536 B at most in one piece (max_dm_size 524288; ibv_alloc_dm: 65536 B)",
        "may run on NUMA node 1 (/proc/self/status: Cpus_allowed_list: 0-95; ",
        "/sys/devices/system/node/node1/cpulist: 48-95)",
        "read-request of mlx5_0: MaxReadReq 512 B",
        "read-request of mlx5_1: MaxReadReq 4096 B",
        "mlx5_0: MAX_ACC_OUT_READ 128, PCI_WR_ORDERING per_mkey(0), PCI_ATOMIC_MODE PCI_ATOMIC_DISABLED_EXT",
        "mlx5_1: MAX_ACC_OUT_READ 64, PCI_WR_ORDERING per_mkey(0), PCI_ATOMIC_MODE PCI_ATOMIC_DISABLED_EXT",
        "mlx5_core: mlx5_core 24.10-1.1.4 (",
        "mlx5_ib: mlx5_ib 24.10-1.1.5 (",
        "nvidia: nvidia 24.10-1.1.6 (",
        "nvidia_peermem: nvidia_peermem 24.10-1.1.7 (",
        "rdma-core 44.0 (",
        "Max stack size: 8388608 (",
        "Max open files: 1048576 (",
        "(/dev/shm: 65536 MiB)",
        "640 huge pages (/proc/meminfo: HugePages_Total: 640)"})
    EXPECT_NE(told.find(words), std::string::npos) << words;
}

// Each word of all findings: of a good machine, and of others where they differ from that.
TEST(Doctor, findings_are_told_word_by_word) {
  Disk disk;
  std::set<std::string> good;
  std::string told;
  const auto add = [&](const Fault& machine) {
    Fabricated made;
    machine.apply(made);
    told += machine.name + "\n";
    for (const Diagnosis& one : diagnose(disk.machine(made))) {
      const std::string text = text_of(one);
      if (good.empty() || !good.contains(text)) told += fmt::format("  {}\n", text);
    }
  };
  add({"a good machine", [](Fabricated&) {}});
  for (const Diagnosis& one : diagnose(disk.machine(Fabricated()))) good.insert(text_of(one));
  for (const auto* const machines : {&good_variants(), &faults(), &odd_machines()}) {
    for (const Fault& machine : *machines) add(machine);
  }
  add({"InfiniBand", make_infiniband});
  expect_text("findings.txt", told);
}

TEST(Doctor, numbers_of_a_trouble_are_those_of_their_names) {
  Fabricated machine;
  const std::string port = "/sys/class/infiniband/mlx5_1/ports/1/";
  machine.files[port + "rate"] = "100 Gb/sec (4X EDR)";
  int count = 17;
  for (const char* counter :
       {"local_ack_timeout_err", "packet_seq_err", "out_of_sequence", "rnr_nak_retry_err"})
    machine.files[port + "hw_counters/" + counter] = std::to_string(count++);
  machine.replace_output("ethtool -S eth1", "rx_discards_phy: 0", "rx_discards_phy: 991");
  machine.replace_output("ethtool -S eth1", "tx_discards_phy: 0", "tx_discards_phy: 992");
  machine.replace("/proc/self/limits", "files            1048576", "files            1024   ");
  machine.replace("/sys/fs/cgroup/user.slice/rdma.max", "mlx5_1 hca_handle=max hca_object=max",
                  "mlx5_1 hca_handle=max hca_object=2000");
  Disk disk;
  const std::string told = all_told(disk.machine(machine));
  for (const char* words :
       {"slower than the 400 Gb/s of its like (", "mlx5_1/ports/1/rate: 100 Gb/sec (4X EDR))",
        "local_ack_timeout_err 17, packet_seq_err 18, out_of_sequence 19, rnr_nak_retry_err 20, np_cnp",
        "discards: rx_discards_phy: 991 tx_discards_phy: 992, pauses: rx_prio3_pause: 13)",
        "Max open files 1024)", "rdma.max: hca_object=2000, now 91)"})
    EXPECT_NE(told.find(words), std::string::npos) << words;
}

Verdict verdict_of(const Machine& machine, const Spot& spot) {
  const auto troubles = troubles_of(diagnose(machine));
  const auto found = troubles.find(spot);
  return found == troubles.end() ? Verdict::kOk : found->second.finding.verdict;
}

// The MTU of an interface must hold the headers too.
TEST(Doctor, least_values_are_enough_and_those_below_are_not) {
  using Change = void (*)(Fabricated&);
  static constexpr char kLimits[] = "/proc/self/limits";
  const std::pair<Spot, std::pair<Change, Change>> bounds[] = {
      {{"mtu", "mlx5_0"},
       {[](Fabricated& m) { m.files["/sys/class/net/eth0/mtu"] = "4200"; },
        [](Fabricated& m) { m.files["/sys/class/net/eth0/mtu"] = "4199"; }}},
      {{"stack", "machine"},
       {[](Fabricated&) {}, [](Fabricated& m) { m.replace(kLimits, "8388608", "8388607"); }}},
      {{"open-files", "machine"},
       {[](Fabricated& m) { m.replace(kLimits, "1048576", "4096   "); },
        [](Fabricated& m) { m.replace(kLimits, "1048576", "4095   "); }}},
      {{"shared-memory", "machine"},
       {[](Fabricated& m) { m.shared_memory_bytes = 1 << 30; },
        [](Fabricated& m) { m.shared_memory_bytes = (1 << 30) - 1; }}},
      {{"rdma-core", "machine"},
       {[](Fabricated&) {}, [](Fabricated& m) { m.libmlx5 = "/usr/lib/libmlx5.so.1.24.43.9"; }}}};
  Disk disk;
  for (const auto& [spot, changes] : bounds) {
    Fabricated enough;
    changes.first(enough);
    EXPECT_EQ(verdict_of(disk.machine(enough), spot), Verdict::kOk) << spot.first;
    Fabricated little;
    changes.second(little);
    EXPECT_EQ(verdict_of(disk.machine(little), spot), Verdict::kWarn) << spot.first;
  }
}

// Without a GPU no HCA is the nearest of one.
TEST(Doctor, only_port_of_a_machine_without_gpus_must_be_active) {
  Disk disk;
  Fabricated machine;
  machine.topology.gpus.clear();
  machine.topology.paths.clear();
  machine.files["/sys/class/infiniband/mlx5_0/ports/1/state"] = "1: DOWN";
  EXPECT_EQ(verdict_of(disk.machine(machine), {"port", "mlx5_0"}), Verdict::kWarn) << "one of two";
  machine.topology.nics.pop_back();
  machine.remove_all("/sys/class/infiniband/mlx5_1");
  EXPECT_EQ(verdict_of(disk.machine(machine), {"port", "mlx5_0"}), Verdict::kFail);
}

TEST(Doctor, every_fault_is_found_singly) {
  Disk disk;
  Score score;
  for (const Fault& fault : faults()) {
    Fabricated machine;
    fault.apply(machine);
    compare(fault.expected, diagnose(disk.machine(machine)), fault.name, score);
  }
  EXPECT_GE(faults().size(), 30u);
  print_score("single faults", faults().size(), score);
}

TEST(Doctor, every_pair_of_faults_is_found) {
  Disk disk;
  Score score;
  const Fabricated good;
  std::size_t pairs = 0;
  const auto& all = faults();
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = i + 1; j < all.size(); ++j) {
      if (exclude(all[i], all[j])) continue;
      Fabricated machine = good;
      all[i].apply(machine);
      all[j].apply(machine);
      std::vector<Expected> expected = all[i].expected;
      expected.insert(expected.end(), all[j].expected.begin(), all[j].expected.end());
      compare(expected, diagnose(disk.machine(machine)), all[i].name + " and " + all[j].name, score);
      ++pairs;
    }
  }
  EXPECT_GT(pairs, all.size() * all.size() / 3) << "most pairs exclude each other";
  print_score("pairs of faults", pairs, score);
}

// No check may be one that nothing can trip: reports alone are excepted, which can be UNKNOWN.
TEST(Doctor, every_check_is_tripped_by_a_fault) {
  std::set<std::string> tripped;
  for (const Fault& fault : faults()) {
    for (const Expected& one : fault.expected) tripped.insert(one.spot.first);
  }
  for (const auto checks : {gpu_checks(), port_checks(), pcie_checks(), system_checks()}) {
    for (const Check& check : checks) EXPECT_TRUE(tripped.contains(check.name)) << check.name;
  }
}

TEST(Doctor, what_cannot_be_read_is_never_ok) {
  Disk disk;
  const Fabricated good;
  for (const auto& [path, text] : good.files) {
    Fabricated machine;
    machine.files.erase(path);
    for (const Diagnosis& one : diagnose(disk.machine(machine))) {
      if (one.finding.verdict != Verdict::kOk) continue;
      EXPECT_EQ(one.finding.evidence.find(path + ": cannot be read"), std::string::npos)
          << "without " << path << ": " << text_of(one);
    }
  }
  Fabricated blind;
  blind.blind = true;
  const std::set<std::string> by_probe = {
      "gpu",     "uar-mapping", "dmabuf",         "registration",  "devx",
      "pfc",     "dcqcn",       "discards",       "device-memory", "nic-settings",
      "modules", "devices",     "write-ordering", "reachability"};
  for (const Diagnosis& one : diagnose(disk.machine(blind))) {
    EXPECT_FALSE(by_probe.contains(one.check->name) && one.finding.verdict == Verdict::kOk) << text_of(one);
  }
  Machine nothing = disk.machine(blind);
  nothing.root += "/no/such/folder";
  nothing.topology = {};
  nothing.shared_memory_bytes.reset();
  nothing.libmlx5.clear();
  for (const Diagnosis& one : diagnose(nothing))
    EXPECT_EQ(one.finding.verdict, Verdict::kUnknown) << text_of(one);
}

// A check of several subjects asks one program for each.
TEST(Doctor, check_whose_program_is_missing_is_not_all_ok) {
  Disk disk;
  const Fabricated good;
  std::size_t asked_in_vain = 0;
  for (const auto& [program, output] : good.programs) {
    Fabricated without = good;
    without.programs.erase(program);
    Machine machine = disk.machine(without);
    machine.hcas = see_hcas(machine);
    bool asked = false;
    machine.probes.run = [&asked, &program = program,
                          run = machine.probes.run](const std::vector<std::string>& line) {
      asked = asked || fmt::format("{}", fmt::join(line, " ")) == program;
      return run(line);
    };
    for (const auto checks : {gpu_checks(), port_checks(), pcie_checks(), system_checks()}) {
      for (const Check& check : checks) {
        asked = false;
        const auto findings = check.run(machine);
        if (!asked) continue;
        ++asked_in_vain;
        EXPECT_EQ(std::ranges::count(findings, Verdict::kUnknown, &Finding::verdict), 1)
            << check.name << " without " << program;
      }
    }
  }
  EXPECT_GT(asked_in_vain, good.programs.size()) << "mlnx_qos and mlxconfig serve two checks each";
}

// Other users than root get 64 B of configuration space, and mlxconfig fails.
TEST(Doctor, ordinary_user_is_told_what_is_for_root) {
  Disk disk;
  Fabricated machine;
  machine.is_root = false;
  for (auto& [path, text] : machine.files) {
    if (path.ends_with("/config")) text.resize(64);
  }
  std::erase_if(machine.programs, [](const auto& program) { return program.first.starts_with("mlxconfig"); });
  std::set<std::string> unknown;
  for (const Diagnosis& one : diagnose(disk.machine(machine))) {
    if (one.finding.verdict == Verdict::kOk) continue;
    EXPECT_EQ(one.finding.verdict, Verdict::kUnknown) << text_of(one);
    unknown.insert(one.check->name);
  }
  EXPECT_EQ(unknown,
            (std::set<std::string>{"acs", "relaxed-ordering", "read-request", "dcqcn", "nic-settings"}));
}

TEST(Doctor, software_hca_is_named_and_makes_nothing_ok) {
  Disk disk;
  Fabricated machine;
  machine.files["/sys/class/infiniband/mlx5_0/ports/1/hw_counters/softhca_wqes"] = "0";
  machine.files["/sys/class/infiniband/rxe0/ports/1/state"] = "4: ACTIVE";
  std::size_t named = 0;
  for (const Diagnosis& one : diagnose(disk.machine(machine))) {
    const std::string& subject = one.finding.subject;
    if (subject.find("mlx5_0") == std::string::npos && subject != kNic0 && subject != "rxe0") continue;
    EXPECT_NE(one.finding.verdict, Verdict::kOk) << text_of(one);
    if (one.finding.what == "software HCA: nothing here speaks of hardware") ++named;
  }
  EXPECT_EQ(named, 2u);
}

TEST(Doctor, infiniband_port_serves_with_a_lid_and_fails_without) {
  Disk disk;
  Score score;
  Fabricated machine;
  make_infiniband(machine);
  compare({}, diagnose(disk.machine(machine)), "InfiniBand", score);
  machine.files["/sys/class/infiniband/mlx5_1/ports/1/lid"] = "0x0";
  compare({{{"address", "mlx5_1"}, Verdict::kFail, ""}}, diagnose(disk.machine(machine)), "no LID", score);
}

TEST(Doctor, machine_without_devices_fails) {
  Disk disk;
  Fabricated machine;
  machine.topology = {};
  machine.topology.pci_devices = 12;
  machine.remove_all("/sys/class/infiniband");
  machine.files["/sys/class/net/eth9/mtu"] = "1500";
  const auto troubles = troubles_of(diagnose(disk.machine(machine)));
  EXPECT_EQ(troubles.at({"gpu", "machine"}).finding.verdict, Verdict::kFail);
  EXPECT_EQ(troubles.at({"hca", "machine"}).finding.verdict, Verdict::kFail);
  EXPECT_EQ(troubles.size(), 2u);
}

TEST(Doctor, exit_status_is_that_of_the_worst_verdict) {
  const Check* const check = &gpu_checks().front();
  std::vector<Diagnosis> all = {{check, {"machine", Verdict::kOk, "", ""}}};
  EXPECT_EQ(exit_status(worst(all)), 0);
  all.push_back({check, {"machine", Verdict::kUnknown, "", ""}});
  EXPECT_EQ(exit_status(worst(all)), 4);
  all.push_back({check, {"machine", Verdict::kWarn, "", ""}});
  EXPECT_EQ(exit_status(worst(all)), 3);
  all.insert(all.begin(), {check, {"machine", Verdict::kFail, "", ""}});
  EXPECT_EQ(exit_status(worst(all)), 1);
}

TEST(Doctor, ranges_and_versions_are_compared_by_number) {
  EXPECT_EQ(parse_ranges("0-3,8,10-11"), (std::vector<std::uint64_t>{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(parse_ranges("07,06,"), (std::vector<std::uint64_t>{7, 6}));
  EXPECT_THAT(parse_ranges("x"), IsEmpty());
  EXPECT_THAT(parse_ranges("5-4294967295").size(), ::testing::Lt(100'000u));
  EXPECT_TRUE(older("28.39.1002", "28.41.1000"));
  EXPECT_TRUE(older("6.1", "6.10"));
  EXPECT_FALSE(older("6.8.0-52-generic", "6.1"));
}

}  // namespace doctor_test
}  // namespace gdx::doctor
