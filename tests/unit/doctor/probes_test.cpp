// The probes of this machine, on the software HCA and the fake CUDA driver: each is seen to work and to fail.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "host/programs/doctor/checks.h"
#include "host/queue/endpoint.h"

namespace gdx::doctor {
namespace probes_test {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr char kHca[] = "gdx0";

class DoctorProbes : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto gpus = probes_.gpus();
    ASSERT_TRUE(gpus) << gpus.error().message;
    ASSERT_THAT(*gpus, Not(IsEmpty()));
    gpu_ = gpus->front().bus_id;
    EXPECT_EQ(canonical_bus_id(gpu_), gpu_);
  }
  Probes probes_ = live_probes();
  std::string gpu_;
};

TEST_F(DoctorProbes, programs_are_run_without_a_shell) {
  const auto echoed = probes_.run({"echo", "$HOME;", "x"});
  ASSERT_TRUE(echoed) << echoed.error().message;
  EXPECT_EQ(*echoed, "$HOME; x\n");
  const auto absent = probes_.run({"/no/such/program", "-x"});
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().message, "/no/such/program -x: No such file or directory");
  const auto failed = probes_.run({"false"});
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().message, "false: exit status 1");
  const auto killed = probes_.run({"sh", "-c", "kill -9 $$"});
  ASSERT_FALSE(killed);
  EXPECT_EQ(killed.error().message, "sh -c kill -9 $$: killed by signal 9");
  EXPECT_EQ(probes_.run({"cat"}).value(), "") << "of an empty input";
  EXPECT_EQ(probes_.run({"sh", "-c", "echo x; echo y >&2"}).value(), "x\n");
  EXPECT_EQ(probes_.run({"seq", "5000"}).value().size(), 23'893u) << "more than one piece";
  const std::vector<std::string> another_each_time = {"cat", "/proc/sys/kernel/random/uuid"};
  EXPECT_EQ(probes_.run(another_each_time).value(), probes_.run(another_each_time).value()) << "run once";
  EXPECT_NE(live_probes().run(another_each_time).value(), probes_.run(another_each_time).value());
}

TEST_F(DoctorProbes, devices_are_opened) {
  const auto opened = probes_.open_device("/dev/null");
  ASSERT_TRUE(opened);
  EXPECT_EQ(*opened, "");
  const auto absent = probes_.open_device("/dev/no_such_device");
  ASSERT_TRUE(absent);
  EXPECT_EQ(*absent, "No such file or directory");
  EXPECT_EQ(probes_.open_device("/dev").value(), "Is a directory") << "to read and write";
  const auto devx = probes_.open_devx(kHca);
  ASSERT_TRUE(devx) << devx.error().message;
  EXPECT_EQ(*devx, "");
  EXPECT_FALSE(probes_.open_devx("mlx5_77"));
}

TEST_F(DoctorProbes, uar_page_is_mapped) {
  const auto mapped = probes_.map_uar(kHca, gpu_);
  ASSERT_TRUE(mapped) << mapped.error().message;
  EXPECT_EQ(*mapped, "");
  EXPECT_FALSE(probes_.map_uar(kHca, "0000:ff:1f.7")) << "no such GPU";
  EXPECT_FALSE(probes_.map_uar("mlx5_77", gpu_)) << "no such HCA";
}

TEST_F(DoctorProbes, pages_are_registered_each_way) {
  for (const auto way : {RegistrationWay::kHostPages, RegistrationWay::kDmabuf, RegistrationWay::kPeermem}) {
    const auto registered = probes_.register_page(kHca, gpu_, way);
    ASSERT_TRUE(registered) << registration_name(way) << ": " << registered.error().message;
    EXPECT_EQ(*registered, "") << registration_name(way);
  }
  EXPECT_FALSE(probes_.register_page(kHca, "0000:ff:1f.7", RegistrationWay::kDmabuf)) << "no such GPU";
  const auto imports = probes_.hca_imports_dmabuf(kHca);
  ASSERT_TRUE(imports);
  EXPECT_TRUE(*imports);
}

TEST_F(DoctorProbes, order_of_writes_is_asked_of_each_gpu) {
  constexpr char kOrdering[] = "GDX_FAKE_CUDA_WRITES_ORDERING";
  EXPECT_TRUE(probes_.gpus()->front().orders_writes);
  ASSERT_EQ(setenv(kOrdering, "0", 1), 0);
  EXPECT_FALSE(probes_.gpus()->front().orders_writes);
  ASSERT_EQ(unsetenv(kOrdering), 0);
}

// Each probe tells what the driver says, of the GPU that it was asked for.
TEST_F(DoctorProbes, refusals_and_attributes_are_those_of_the_driver) {
  EXPECT_TRUE(probes_.gpus()->front().exports_dmabuf);
  EXPECT_FALSE(probes_.gpus()->front().over_c2c);
  for (const char* const variable : {"GDX_FAKE_CUDA_DMABUF", "GDX_FAKE_CUDA_PEER_MAPPING"})
    ASSERT_EQ(setenv(variable, "0", 1), 0);
  ASSERT_EQ(setenv("GDX_FAKE_CUDA_HOST_ATOMICS", "1", 1), 0);
  EXPECT_FALSE(probes_.gpus()->front().exports_dmabuf);
  EXPECT_TRUE(probes_.gpus()->front().over_c2c);
  const auto told = [](const Result<Refusal>& tried) { return tried ? *tried : "not tried"; };
  EXPECT_THAT(told(probes_.map_uar(kHca, gpu_)), HasSubstr("PeerMappingOverride"));
  EXPECT_THAT(told(probes_.register_page(kHca, gpu_, RegistrationWay::kDmabuf)), HasSubstr("dmabuf"));
  EXPECT_EQ(told(probes_.register_page(kHca, gpu_, RegistrationWay::kPeermem)), "");
  EXPECT_EQ(told(probes_.register_page(kHca, "", RegistrationWay::kHostPages)), "");
  for (const char* const variable :
       {"GDX_FAKE_CUDA_DMABUF", "GDX_FAKE_CUDA_PEER_MAPPING", "GDX_FAKE_CUDA_HOST_ATOMICS"})
    unsetenv(variable);
}

TEST_F(DoctorProbes, device_memory_is_told_with_its_largest_piece) {
  const auto memory = probes_.device_memory(kHca);
  ASSERT_TRUE(memory) << memory.error().message;
  EXPECT_GT(memory->bytes, 0u);
  EXPECT_GT(memory->largest_bytes, 0u);
  EXPECT_LE(memory->largest_bytes, memory->bytes);
}

// rdma-core before 54 cannot tell; the software HCA has no such function.
TEST_F(DoctorProbes, data_direct_is_asked_for) {
  const auto path = probes_.data_direct(kHca);
  EXPECT_THAT(path ? "mlx5dv_get_data_direct_sysfs_path" + *path : path.error().message,
              HasSubstr("mlx5dv_get_data_direct_sysfs_path"));
}

TEST_F(DoctorProbes, traffic_class_is_that_of_the_environment) {
  const std::pair<const char*, std::optional<std::uint64_t>> values[] = {{"106", 106}, {"0", 0}};
  for (const auto& [text, value] : values) {
    ASSERT_EQ(setenv(kTrafficClassVariable, text, 1), 0);
    const auto told = this_whole_machine().traffic_class;
    ASSERT_TRUE(told) << told.error().message;
    EXPECT_EQ(*told, value);
  }
  ASSERT_EQ(setenv(kTrafficClassVariable, "256", 1), 0);
  EXPECT_FALSE(this_whole_machine().traffic_class);
  ASSERT_EQ(unsetenv(kTrafficClassVariable), 0);
  const auto told = this_whole_machine().traffic_class;
  ASSERT_TRUE(told) << told.error().message;
  EXPECT_EQ(*told, std::nullopt);
}

// All of it at once, where nothing is hardware.
TEST_F(DoctorProbes, software_hca_makes_no_hardware_check_ok) {
  std::size_t named = 0;
  for (const Diagnosis& one : diagnose(this_whole_machine())) {
    if (one.finding.subject.find(kHca) == std::string::npos) continue;
    ++named;
    EXPECT_EQ(one.finding.what, "software HCA: nothing here speaks of hardware");
    EXPECT_EQ(one.finding.verdict, Verdict::kUnknown);
  }
  EXPECT_EQ(named, 1u);
}

}  // namespace probes_test
}  // namespace gdx::doctor
