// Links and ACS, by folders as sysfs has them.
#include "host/topo/pci_sysfs.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <string>

namespace gdx {
namespace pci_sysfs_test {

namespace fs = std::filesystem;

constexpr char kDevice[] = "0000:3b:00.0";

class PciSysfs : public ::testing::Test {
 protected:
  PciSysfs() : devices_(fs::path(::testing::TempDir()) / ("gdx_pci_" + std::to_string(getpid()))) {
    fs::create_directories(devices_ / kDevice);
  }
  ~PciSysfs() override { fs::remove_all(devices_); }
  void write(const char* name, const std::string& text) const {
    std::ofstream(devices_ / kDevice / name, std::ios::binary) << text;
  }
  void write_link(const char* speed, const char* width, const char* most_speed,
                  const char* most_width) const {
    write("current_link_speed", speed);
    write("current_link_width", width);
    write("max_link_speed", most_speed);
    write("max_link_width", most_width);
  }

  fs::path devices_;
};

TEST_F(PciSysfs, link_is_read_as_the_kernel_writes_it) {
  write_link("8.0 GT/s PCIe\n", "8\n", "32.0 GT/s PCIe\n", "16\n");
  const auto link = read_link(kDevice, devices_);
  ASSERT_TRUE(link);
  EXPECT_EQ(link->now, (PciLink{8, 8}));
  EXPECT_EQ(link->most, (PciLink{32, 16}));
  EXPECT_EQ(describe(link->now), "8 GT/s x8");
  EXPECT_EQ(describe(PciLink{2.5, 1}), "2.5 GT/s x1");
}

TEST_F(PciSysfs, link_that_the_kernel_does_not_know_is_absent) {
  EXPECT_FALSE(read_link(kDevice, devices_));
  write_link("Unknown\n", "0\n", "Unknown\n", "255\n");
  EXPECT_FALSE(read_link(kDevice, devices_));
  write_link("8.0 GT/s PCIe\n", "0\n", "8.0 GT/s PCIe\n", "16\n");
  EXPECT_FALSE(read_link(kDevice, devices_));
}

// A configuration space whose extended capabilities are AER (1) at 0x100 and, at 0x148, `id` with `control`.
std::string config_with(unsigned char id, unsigned char control, std::size_t bytes = 4096) {
  std::string config(4096, '\0');
  const auto put = [&](std::size_t at, std::initializer_list<int> values) {
    for (const int value : values) config[at++] = static_cast<char>(value);
  };
  put(0x100, {0x01, 0x00, 0x82, 0x14});
  put(0x148, {id, 0x00, 0x01, 0x00, 0x7f, 0x00, control, 0x00});
  return config.substr(0, bytes);
}

TEST_F(PciSysfs, acs_redirection_is_told_by_the_control_register) {
  const std::array<std::pair<unsigned char, AcsState>, 5> cases = {{{0x00, AcsState::kDirect},
                                                                    {0x04, AcsState::kRedirects},
                                                                    {0x08, AcsState::kRedirects},
                                                                    {0x1d, AcsState::kRedirects},
                                                                    {0x11, AcsState::kDirect}}};
  for (const auto& [control, state] : cases) {
    write("config", config_with(0x0d, control));
    EXPECT_EQ(read_acs(kDevice, devices_), state) << int{control};
  }
  write("config", config_with(0x0e, 0x1d));  // another capability
  EXPECT_EQ(read_acs(kDevice, devices_), AcsState::kDirect);
}

TEST_F(PciSysfs, acs_without_extended_space_is_unknown_where_root_would_see_more) {
  EXPECT_EQ(read_acs(kDevice, devices_), AcsState::kUnknown);
  write("config", config_with(0x0d, 0x1d, 64));
  EXPECT_EQ(read_acs(kDevice, devices_), AcsState::kUnknown);
  write("config", config_with(0x0d, 0x1d, 256));
  EXPECT_EQ(read_acs(kDevice, devices_), AcsState::kDirect) << "conventional PCI: there is none";
}

TEST_F(PciSysfs, broken_lists_of_capabilities_end) {
  std::string ring = config_with(0x0e, 0);
  ring[0x14a] = static_cast<char>(0x01);
  ring[0x14b] = static_cast<char>(0x10);  // back to 0x100
  write("config", ring);
  EXPECT_EQ(read_acs(kDevice, devices_), AcsState::kDirect);
  std::string beyond = config_with(0x0e, 0);
  beyond[0x14b] = static_cast<char>(0xff);
  write("config", beyond);
  EXPECT_EQ(read_acs(kDevice, devices_), AcsState::kDirect);
  write("config", config_with(0x0d, 0x1d, 0x14c));  // cut off within
  EXPECT_EQ(read_acs(kDevice, devices_), AcsState::kDirect);
}

}  // namespace pci_sysfs_test
}  // namespace gdx
