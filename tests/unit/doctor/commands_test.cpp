// Output of gdx doctor, gdx topo and gdx info, whole: on machines made of text, and on the software HCA.
// GDX_SOFTHCA_FAULT, which holds for a process, chooses the cases.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/commit.h"
#include "base/output.h"
#include "host/programs/cli/commands.h"
#include "host/programs/cli/doctor_report.h"
#include "host/topo/pci_sysfs.h"
#include "tests/expected_text.h"
#include "tests/unit/doctor/fabricated.h"

namespace {

std::unique_ptr<gdx::doctor::Disk> disk;
gdx::doctor::Fabricated fabricated;

std::string devices_of(const std::string& devices) {
  return devices == gdx::kPciDevices ? disk->machine(fabricated).root + devices : devices;
}

}  // namespace

// The linker gives gdx's own code these (--wrap): a machine made of text in place of this one.
gdx::doctor::Machine fabricated_machine() asm("__wrap__ZN3gdx6doctor18this_whole_machineEv");
gdx::doctor::Machine fabricated_machine() { return disk->machine(fabricated); }
#define GDX_OF_TWO_TEXTS "ERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEES7_"
std::optional<gdx::PciLinkState> real_link(const std::string& bus_id, const std::string& devices) asm(
    "__real__ZN3gdx9read_link" GDX_OF_TWO_TEXTS);
std::optional<gdx::PciLinkState> wrapped_link(const std::string& bus_id, const std::string& devices) asm(
    "__wrap__ZN3gdx9read_link" GDX_OF_TWO_TEXTS);
std::optional<gdx::PciLinkState> wrapped_link(const std::string& bus_id, const std::string& devices) {
  return real_link(bus_id, devices_of(devices));
}
gdx::AcsState real_acs(const std::string& bus_id,
                       const std::string& devices) asm("__real__ZN3gdx8read_acs" GDX_OF_TWO_TEXTS);
gdx::AcsState wrapped_acs(const std::string& bus_id,
                          const std::string& devices) asm("__wrap__ZN3gdx8read_acs" GDX_OF_TWO_TEXTS);
gdx::AcsState wrapped_acs(const std::string& bus_id, const std::string& devices) {
  return real_acs(bus_id, devices_of(devices));
}

namespace gdx {

int report(const Error& error) {
  print_error("gdx: {}\n", error.message);
  return kExitFailure;
}

namespace {

using doctor::Fabricated;
using Json = nlohmann::ordered_json;

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Without what is the run's, the build's or the machine's.
std::string without_varying(std::string text) {
  const std::pair<const char*, const char*> varying[] = {
      {"(started\": )\"[-0-9]+T[0-9:]+Z\"", "$1\"T\""},
      {"(seconds\": )[-0-9.e]+", "$1S"},
      {"kernel [^,]*, pages of [0-9]+ B", "kernel K, pages of P B"},
      {"(page_bytes\",\n *\"value\": )[0-9]+", "$1P"},
      {"page 0x[0-9a-f]+", "page 0xU"},
      {"(syndrome[\": ]*)0x[0-9a-f]{8}", "$010xS"},
      {"(put\": \"[0-9a-f]{8})[0-9a-f]*", "$1..."},
      {"(address[\": ]+)[0-9.]+", "$1A.D.D.R"},
      {"(GID +|gid\": \")[0-9a-f:.]+", "$1G"},
      {"gdx\\[[0-9]+\\]", "gdx[PID]"},
      // Broken where the machine's own words end.
      {"(1 machine|4 devx) +[^\n]*(\n {34}(?!advice:)[^\n]*)*", "$1 ..."},
      {"NC_DEDICATED [^;\"]+", "NC_DEDICATED N"},
      {"\\(index [0-9]+\\)", "(index I)"}};
  return masked(replaced(std::move(text), fmt::format("\"{}\"", commit()), "\"COMMIT\""), varying);
}

class Commands : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    disk = std::make_unique<doctor::Disk>();
    write_topology();
  }
  static void TearDownTestSuite() {
    std::filesystem::remove(xml());
    disk.reset();
  }
  void SetUp() override { fabricated = Fabricated(); }
  static std::string xml() { return fmt::format("{}gdx_commands_{}.xml", ::testing::TempDir(), getpid()); }
  // This machine is the recorded one, with the fake driver's GPUs, and a root complex of no NUMA node.
  static void write_topology() {
    std::string text = read_file(GDX_TOPOLOGIES "/two-sockets.xml");
    const auto put = [&](const std::string& old, const std::string& with) {
      text.replace(text.find(old), old.size(), with);
    };
    put("0000:81:00.0", "0000:f0:00.0");
    put("0000:03:00.0", "0000:f1:00.0");
    put("mlx5_0", "gdx0");
    put("0300 [1a03:2000]", "1200 [1002:740c]");
    const std::string bridge = "   <object type=\"Bridge\" gp_index=\"28\"";
    put(bridge, " </object>\n" + bridge);
    put("   </object>\n </object>\n</object>", "   </object>\n</object>");
    std::ofstream(xml()) << text;
    setenv("HWLOC_XMLFILE", xml().c_str(), 1);
    setenv("HWLOC_THISSYSTEM", "1", 1);
  }
  // Output of a command, and its status.
  static std::string run(const std::vector<std::string>& arguments) {
    command_line::App app("gdx", "gdx");
    int status = 0;
    add_doctor_command(app, status);
    add_topo_command(app, status);
    add_info_command(app, status);
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    const auto ended = app.parse("gdx", arguments);
    flush_output();
    const std::string output = ::testing::internal::GetCapturedStdout();
    const std::string errors = ::testing::internal::GetCapturedStderr();
    return fmt::format("$ gdx {}\n{}{}status {}\n", fmt::join(arguments, " "), output, errors,
                       ended.value_or(status));
  }
  // One after another: some warnings are told once in a process.
  static std::string run_all(const std::vector<std::vector<std::string>>& commands) {
    std::string text;
    for (const std::vector<std::string>& arguments : commands) text += run(arguments);
    return text;
  }
};

// One line holds 73 characters of what a finding says.
void break_lines(Fabricated& machine) {
  const std::string port = "/sys/class/infiniband/mlx5_0/ports/1/";
  machine.unopened["mlx5_0"] = std::string(27, 'x');
  machine.unopened["mlx5_1"] = std::string(28, 'y');
  machine.files["/sys/class/net/eth0/mtu"] = "1500";
  machine.files["/sys/class/net/eth1/mtu"] = "1500";
  machine.files[port + "hw_counters/packet_seq_err"] = std::string(80, '7');
  machine.files.erase(port + "rate");
  machine.replace("/proc/self/limits", "8388608    ", "1048576    ");
  machine.programs.erase("ethtool -S eth1");
}

void of_an_ordinary_user(Fabricated& machine) {
  machine.is_root = false;
  for (auto& [path, text] : machine.files) {
    if (path.ends_with("/config")) text.resize(64);
  }
}

TEST_F(Commands, doctor_prints_findings_by_subject_then_fixes_and_counts) {
  const std::string good = run({"doctor"});
  std::string text = good;
  of_an_ordinary_user(fabricated);
  text += beyond(good, run({"doctor"}));
  fabricated = Fabricated();
  fabricated.files["/sys/class/net/eth1/mtu"] = "1500";
  text += beyond(good, run({"doctor"}));
  break_lines(fabricated);
  text += beyond(good, run({"doctor"}));
  fabricated.topology = {};
  fabricated.remove_all("/sys/");
  text += run({"doctor"});
  ::testing::internal::CaptureStdout();
  for (const char* const words : {"", "a", "aaa bbb ccc", "aaa bbbb ccc", "aaa bbbbb ccc", "aaaaaaaaaa b",
                                  "aaa bbbbbbbbbb cc", "aaa  b", "aaaa bbb", "aaaa bb ", "aaaaaaa"})
    print_wrapped("  head", words, kReportColumns - 7);
  flush_output();
  expect_text("doctor.txt", text + ::testing::internal::GetCapturedStdout());
}

// On a machine with few findings, and one of each verdict: doctor.txt has the text of many.
TEST_F(Commands, doctor_writes_the_json_that_it_prints) {
  break_lines(fabricated);
  fabricated.topology = {};
  fabricated.remove_all("/sys/");
  fabricated.unopened["/dev/nvidia-uvm"] = "Operation not permitted";
  const std::string path = fmt::format("{}gdx_report_{}", ::testing::TempDir(), getpid());
  const std::string printed = run({"doctor", "--json", "--output", path});
  EXPECT_THAT(printed, ::testing::HasSubstr(read_file(path) + "status 1\n"));
  EXPECT_FALSE(std::filesystem::exists(path + ".part"));
  EXPECT_EQ(run({"doctor"}), replaced(run({"doctor", "--output", path}), " --output " + path, ""));
  std::string text = replaced(printed, path, "FILE");
  // A link stays one, and what is no folder is told.
  std::filesystem::remove(path);
  std::filesystem::create_symlink("/dev/full", path);
  const std::string told = run({"doctor"});
  text += beyond(told, replaced(run({"doctor", "--output", path}), path, "FILE"));
  EXPECT_TRUE(std::filesystem::is_symlink(path));
  std::filesystem::remove(path);
  for (const char* const hardware : {"", "--hardware"}) {
    std::vector<std::string> words{"doctor", "--output", "/dev/null/none"};
    if (*hardware != '\0') words.emplace_back(hardware);
    text += beyond(told, run(words));
  }
  expect_text("doctor_json.txt", text);
}

// Links and ACS of what the topology names.
void describe_devices(Fabricated& machine) {
  const auto link = [&](const std::string& bus_id, const char* speed, const char* width) {
    const std::string folder = "/sys/bus/pci/devices/0000:" + bus_id + "/";
    machine.files[folder + "current_link_speed"] = speed;
    machine.files[folder + "current_link_width"] = width;
    machine.files[folder + "max_link_speed"] = "16.0 GT/s PCIe";
    machine.files[folder + "max_link_width"] = "16";
  };
  link("f0:00.0", "16.0 GT/s PCIe", "16");
  link("f1:00.0", "16.0 GT/s PCIe", "8");
  link("05:00.0", "2.5 GT/s PCIe", "16");
  link("10:00.0", "Unknown", "0");
  const std::string devices = "/sys/bus/pci/devices/0000:02:0";
  machine.files[devices + "0.0/config"] = doctor::config_space(0, 0x1d);
  machine.files[devices + "1.0/config"] = doctor::config_space(0, 0);
  machine.files[devices + "2.0/config"] = doctor::config_space(0, 0);
}

TEST_F(Commands, topo_tells_devices_distances_pairs_and_bridges) {
  describe_devices(fabricated);
  const std::string whole = run_all({{"topo"}, {"topo", "--json"}});
  fabricated.files["/sys/bus/pci/devices/0000:02:02.0/config"].resize(64);
  expect_text("topo.txt", whole + beyond(whole, run_all({{"topo"}, {"topo", "--json"}})));
}

TEST_F(Commands, info_tells_the_hca_and_its_gpus) {
  const std::string text = run_all({{"info"}, {"info", "--json"}, {"info", "--hca", "gdx9"}});
  expect_text("info.txt", without_varying(text));
}

class CommandsWithFault : public Commands {};

constexpr char kFindings[] = "  \"findings\": [\n";

// Returns the findings of a JSON report, which it takes out of `text`.
std::string take_findings(std::string& text) {
  const std::size_t begin = text.rfind(kFindings) + sizeof kFindings - 1;
  const std::size_t end = text.find("\n  ]", begin);
  std::string findings = text.substr(begin, end - begin);
  text.erase(begin, end - begin);
  return findings;
}

// Two HCAs whose ports are down, beside a driver that does not start.
TEST_F(CommandsWithFault, port_down_leaves_what_needs_no_port) {
  fabricated.files["/proc/sys/kernel/hostname"] = "fabricated";
  fabricated.files["/proc/self/cmdline"] = std::string("gdx\0doctor\0", 11);
  fabricated.files["/proc/self/environ"] = std::string("GDX_X=1\0HOME=/\0", 15);
  fabricated.files["/proc/self/maps"] = "7f00-7f01 r-xp 00000000 08:01 9    /usr/lib/libmlx5.so.1\n";
  fabricated.programs["dmesg"] = "[ 1.0] eth0: up\n[ 2.0] mlx5_core: link\n";
  std::string text = run_all({{"info"},
                              {"info", "--json"},
                              {"info", "--hca", "gdx1"},
                              {"topo"},
                              {"doctor", "--hardware", "--short"}});
  fabricated.files["/sys/class/net/eth1/mtu"] = "1500";
  text += run_all({{"doctor", "--hardware", "--hca", "gdx1"}, {"doctor", "--hardware", "--json"}});
  std::string findings = run({"doctor", "--json"});
  EXPECT_EQ(take_findings(text), take_findings(findings));
  expect_text("commands_port_down.txt", without_varying(text));
}

}  // namespace
}  // namespace gdx
