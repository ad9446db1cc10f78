// Parts of the bring-up that need no HCA, on fabricated machines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <string>
#include <vector>

#include "host/programs/doctor/bring_up.h"
#include "host/programs/doctor/loopback.h"
#include "tests/expected_text.h"
#include "tests/unit/doctor/fabricated.h"

namespace gdx::doctor {
namespace bring_up_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

TEST(BringUp, lag_is_told_as_far_as_the_hca_said) {
  EXPECT_EQ(describe_lag({}), "LAG unknown");
  EXPECT_EQ(describe_lag({.has_lag = false}), "no LAG");
  EXPECT_EQ(describe_lag({.has_lag = true}), "a LAG whose port no queue pair may choose");
  EXPECT_EQ(describe_lag({.has_lag = true, .lag_ports = 2}), "a LAG of 2 ports");
}

TEST(BringUp, puts_below_half_of_perftest_fail_on_hardware) {
  EXPECT_EQ(judge_bandwidth(5.0, 10.0, false).verdict, Verdict::kOk);
  const StepResult slow = judge_bandwidth(4.9, 10.0, false);
  EXPECT_EQ(slow.verdict, Verdict::kFail);
  EXPECT_THAT(slow.value, HasSubstr("4.9 GB/s; ib_write_bw: 10 GB/s"));
  EXPECT_EQ(judge_bandwidth(4.9, 10.0, true).verdict, Verdict::kOk) << "one processor does all";
  const StepResult alone = judge_bandwidth(4.9, 0, false);
  EXPECT_EQ(alone.verdict, Verdict::kUnknown);
  EXPECT_THAT(alone.value, HasSubstr("install perftest on both hosts"));
}

TEST(BringUp, steps_are_short_where_asked_for_alone) {
  Bench bench{{}};
  bench.wants_short = true;
  EXPECT_TRUE(is_short(bench));
}

std::string text_of(const WorkRequest& request) {
  const std::vector<std::byte> wqe = request.encode(0x1234, 0xabcdef);
  std::string text = fmt::format("{} blocks", request.blocks());
  for (std::size_t i = 0; i < wqe.size(); ++i)
    text += fmt::format("{}{:02x}",
                        i % 16 == 0  ? "\n  "
                        : i % 4 == 0 ? " "
                                     : "",
                        static_cast<unsigned>(wqe[i]));
  return text + "\n";
}

TEST(BringUp, requests_of_each_kind_are_encoded_to_whole_blocks) {
  using mlx5::WqeOpcode;
  std::array<std::byte, 128> payload{};
  fill_pattern(payload, 9);
  std::string text = "no-op, unsignalled: " + text_of(WorkRequest(WqeOpcode::kNop, 0));
  text += "put: " + text_of(WorkRequest(WqeOpcode::kRdmaWrite)
                                .remote(0x0102030405060708, 0x11121314)
                                .gather(0x2122232425262728, 0x31323334, 0x41424344));
  text +=
      "add: " +
      text_of(
          WorkRequest(WqeOpcode::kAtomicFetchAdd).remote(1, 2).operand(0x5152535455565758).gather(3, 4, 8));
  for (const std::size_t bytes : {0u, 1u, 12u, 13u, 28u, 29u, 76u, 92u, 93u}) {
    WorkRequest request(WqeOpcode::kRdmaWrite);
    request.remote(5, 6).inlined(std::span(payload).first(bytes));
    text += fmt::format("{} B inline: ", bytes) + text_of(request);
  }
  expect_text("requests.txt", text);
}

TEST(BringUp, completions_and_wrong_bytes_are_told_word_by_word) {
  mlx5::ErrorCqe error{};
  error.vendor_error_syndrome = 0x51;
  error.syndrome = 0x13;
  auto cqe = std::bit_cast<mlx5::Cqe64>(error);
  cqe.send_opcode_qpn = 0x08abcdef;
  cqe.wqe_counter = 0x1234;
  std::string text;
  for (const unsigned op_own : {0x00u, 0x01u, 0xd0u, 0xe1u, 0xf0u}) {
    cqe.op_own = static_cast<std::uint8_t>(op_own);
    const Completed completed{cqe};
    text += fmt::format("{}\n{}\n", completed.text(), completed.bytes());
    for (const auto wanted : {mlx5::Syndrome::kNone, mlx5::Syndrome::kFlushed})
      text += describe_wrong(completed, 77, mlx5::WqeOpcode::kAtomicFetchAdd, 0x99, wanted) + "\n";
  }
  std::array<std::byte, 64> bytes{};
  for (const std::uint32_t seed : {0u, 1u, 2u, 4u}) {
    fill_pattern(bytes, 1);
    text += fmt::format("{}: '{}'\n", seed, first_mismatch(bytes.data(), bytes.size(), seed));
  }
  bytes.back() = std::byte{0};
  for (const std::size_t count : {0u, 63u, 64u}) text += first_mismatch(bytes.data(), count, 1) + "\n";
  expect_text("completions.txt", text);
}

class BringUpEnvironment : public ::testing::Test {
 protected:
  BringUpEnvironment() {
    using std::string_literals::operator""s;
    auto& files = machine_.files;
    files["/proc/self/cmdline"] = "gdx\0doctor\0--output\0a file\0"s;
    files["/proc/self/environ"] =
        "HOME=/root\0SECRET_GDX_KEY=1\0LD_PRELOAD=/x.so\0GDX_LOG=a=b\0CUDA_VISIBLE_DEVICES=\0"s;
    files["/proc/self/maps"] =
        "7f00-7f01 r-xp 00000000 08:01 9    /usr/lib/libmlx5.so.1.24.44.0\n"
        "7f01-7f02 r--p 00001000 08:01 9    /usr/lib/libmlx5.so.1.24.44.0\n"
        "7f03-7f04 r-xp 00000000 08:01 7    /usr/lib/libc.so.6\n7f05-7f06 rw-p 00000000 00:00 0 \n";
    // The last HCA is known by its link alone, below a root port.
    files["/sys/class/infiniband/mlx5_9"] =
        "@../../devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0/infiniband/mlx5_9";
    files["/sys/bus/pci/devices/0000:3a:01.0/config"] = config_space(0x2910);
    files.erase("/sys/bus/pci/devices/" + std::string(kNic1) + "/config");
  }
  [[nodiscard]] Environment read() {
    Machine machine = disk_.machine(machine_);
    machine.hcas = see_hcas(machine);
    return read_environment(machine);
  }
  Disk disk_;
  Fabricated machine_;
};

TEST_F(BringUpEnvironment, is_how_the_program_was_called) {
  const Environment told = read();
  EXPECT_THAT(told.command_line, ElementsAre("gdx", "doctor", "--output", "a file"));
  EXPECT_THAT(told.variables, ElementsAre(Pair("CUDA_VISIBLE_DEVICES", ""), Pair("GDX_LOG", "a=b"),
                                          Pair("LD_PRELOAD", "/x.so")));
  EXPECT_THAT(told.libraries, ElementsAre("/usr/lib/libmlx5.so.1.24.44.0"));
}

TEST_F(BringUpEnvironment, has_the_text_of_files_and_none_of_what_cannot_be_read) {
  const Environment told = read();
  const auto text_of = [&](const std::string& path) {
    const auto found = std::ranges::find(told.files, path, &decltype(told.files)::value_type::first);
    return found == told.files.end() ? "not looked at" : found->second.value_or("cannot be read");
  };
  EXPECT_EQ(text_of("/sys/class/infiniband/mlx5_0/fw_ver"), "28.41.1000");
  EXPECT_EQ(text_of("/sys/class/infiniband/mlx5_0/device/device"), "0x1021");
  EXPECT_EQ(text_of("/sys/class/infiniband/mlx5_1/ports/1/gid_attrs/types/3"), "RoCE v2");
  EXPECT_EQ(text_of("/sys/class/infiniband/mlx5_1/ports/1/gids/3"),
            "0000:0000:0000:0000:0000:ffff:0a00:0002");
  EXPECT_EQ(text_of("/sys/class/infiniband/mlx5_9/ports/1/state"), "cannot be read");
  EXPECT_EQ(text_of("/sys/class/net/eth1/mtu"), "9001");
  EXPECT_THAT(text_of("/proc/driver/nvidia/version"), HasSubstr("570.86.15"));
  EXPECT_THAT(text_of("/proc/driver/nvidia/gpus/0000:9a:00.0/information"), HasSubstr("NVIDIA H100"));
  EXPECT_EQ(text_of("/sys/module/gdrdrv/version"), "2.5");
  EXPECT_EQ(text_of("/sys/class/dmi/id/sys_vendor"), "cannot be read");
}

TEST_F(BringUpEnvironment, has_each_pci_function_with_the_bridges_above_it) {
  const Environment told = read();
  std::vector<std::string> functions;
  for (const PciFunction& one : told.functions) functions.push_back(one.bus_id);
  EXPECT_THAT(functions, ElementsAre(kGpu0, kNic0, "0000:3a:01.0", "0000:3b:00.0", kGpu1, kNic1));
  EXPECT_EQ(told.functions[0].iommu,
            "the IOMMU passes it through (/sys/kernel/iommu_groups/10/type: identity)");
  ASSERT_TRUE(told.functions[2].config);
  EXPECT_EQ(told.functions[2].config->size(), 0x105u) << "of ACS the capability's last byte is 0x7f";
  EXPECT_EQ(config_space(0x2910).substr(0, 0x105), *told.functions[2].config);
  EXPECT_EQ(told.functions[5].config, std::nullopt);
}

TEST_F(BringUpEnvironment, has_what_the_kernel_logged_of_rdma_or_why_not) {
  EXPECT_THAT(read().kernel_log, ElementsAre("dmesg: No such file or directory"));
  std::string& log = machine_.programs["dmesg"];
  log = "[ 1.0] eth0: up\n[ 2.0] mlx5_core 0000:1a:00.0: oldest\n";
  for (int i = 0; i < 299; ++i) log += "[ 3.0] NVRM: Xid\n";
  EXPECT_EQ(read().kernel_log.size(), 300u);
  EXPECT_EQ(read().kernel_log.front(), "[ 2.0] mlx5_core 0000:1a:00.0: oldest");
  log += "[ 4.0] pcieport 0000:17:00.0: AER: Corrected error\n";
  EXPECT_EQ(read().kernel_log.size(), 300u);
  EXPECT_EQ(read().kernel_log.front(), "[ 3.0] NVRM: Xid");
  EXPECT_EQ(read().kernel_log.back(), "[ 4.0] pcieport 0000:17:00.0: AER: Corrected error");
}

}  // namespace bring_up_test
}  // namespace gdx::doctor
