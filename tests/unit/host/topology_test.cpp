#include "host/topo/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

namespace gdx {
namespace topology_test {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Topology stored(const std::string& machine) {
  auto topology = read_topology(std::string(GDX_TOPOLOGIES) + "/" + machine);
  EXPECT_TRUE(topology) << topology.error().message;
  return topology ? *topology : Topology{};
}

std::string path_of(const Topology& topology, const std::string& gpu, const std::string& nic) {
  for (const GpuNicPath& path : topology.paths) {
    if (topology.gpus[path.gpu].bus_id == gpu && topology.nics[path.nic].bus_id == nic)
      return std::string(name(path.path));
  }
  return "none";
}

std::vector<std::string> pairs_of(const Topology& topology) {
  std::vector<std::string> pairs;
  for (const GpuNicPath& pair : pair_by_distance(topology)) {
    pairs.push_back(topology.gpus[pair.gpu].bus_id + " " + topology.nics[pair.nic].bus_id + " " +
                    std::string(name(pair.path)));
  }
  return pairs;
}

TEST(Topology, two_sockets_every_class_is_told) {
  const Topology topology = stored("two-sockets.xml");
  EXPECT_EQ(path_of(topology, "0000:03:00.0", "0000:05:00.0"), "PIX");   // one switch
  EXPECT_EQ(path_of(topology, "0000:03:00.0", "0000:10:00.0"), "PHB");   // another root port
  EXPECT_EQ(path_of(topology, "0000:03:00.0", "0000:21:00.0"), "NODE");  // another root complex
  EXPECT_EQ(path_of(topology, "0000:81:00.0", "0000:05:00.0"), "SYS");   // another socket
}

TEST(Topology, two_sockets_matrix_has_gpus_and_nics_both_ways) {
  const Topology topology = stored("two-sockets.xml");
  const std::size_t gpus = topology.gpus.size();
  ASSERT_EQ(topology.matrix.size(), gpus + topology.nics.size());
  EXPECT_EQ(topology.matrix[0][1], PathClass::kPix) << "two GPUs of one switch";
  EXPECT_EQ(topology.matrix[0][2], PathClass::kSys) << "two GPUs of two sockets";
  for (const GpuNicPath& path : topology.paths) {
    EXPECT_EQ(topology.matrix[path.gpu][gpus + path.nic], path.path);
    EXPECT_EQ(topology.matrix[gpus + path.nic][path.gpu], path.path);
  }
}

TEST(Topology, one_of_two_devices_behind_a_further_switch_is_several_switches_away) {
  const Topology topology = stored("further-switch.xml");
  ASSERT_EQ(topology.paths.size(), 4u);
  EXPECT_EQ(path_of(topology, "0000:03:00.0", "0000:04:00.0"), "PIX");
  EXPECT_EQ(path_of(topology, "0000:07:00.0", "0000:08:00.0"), "PIX");
  EXPECT_EQ(path_of(topology, "0000:03:00.0", "0000:08:00.0"), "PXB") << "the NIC is further down";
  EXPECT_EQ(path_of(topology, "0000:07:00.0", "0000:04:00.0"), "PXB") << "the GPU is";
}

// The same machine, where the GPU is behind one bridge of the further switch alone.
TEST(Topology, one_device_behind_a_single_further_bridge_is_several_switches_away) {
  std::ifstream file(std::string(GDX_TOPOLOGIES) + "/further-switch.xml");
  const std::string path = testing::TempDir() + "further-bridge" + std::to_string(getpid()) + ".xml";
  std::ofstream changed(path);
  int below = -1;  // lines below the bridge that is left out
  for (std::string line; std::getline(file, line);) {
    if (line.find("pci_busid=\"0000:06:00.0\"") != std::string::npos) below = 0;
    if (below != 0 && below != 2) changed << line << '\n';
    if (below >= 0) ++below;
  }
  changed.close();
  const auto topology = read_topology(path);
  std::remove(path.c_str());
  ASSERT_TRUE(topology) << topology.error().message;
  EXPECT_EQ(path_of(*topology, "0000:07:00.0", "0000:04:00.0"), "PXB");
  EXPECT_EQ(topology->matrix[2][1], PathClass::kPxb) << "from the NIC's end";
}

TEST(Topology, bridges_of_a_path_without_root_complex_are_named) {
  for (const char* machine : {"two-sockets.xml", "further-switch.xml", "dgx-a100.xml"}) {
    for (const GpuNicPath& path : stored(machine).paths) {
      SCOPED_TRACE(std::string(machine) + ": " + std::string(name(path.path)));
      switch (path.path) {
        case PathClass::kPix: EXPECT_EQ(path.bridges.size(), 2u) << "a downstream port each"; break;
        case PathClass::kPxb: EXPECT_GT(path.bridges.size(), 2u); break;
        default: EXPECT_THAT(path.bridges, IsEmpty());
      }
    }
  }
}

TEST(Topology, bridges_of_a_path_are_those_below_the_shared_one_from_either_end) {
  EXPECT_THAT(stored("two-sockets.xml").paths[0].bridges, ElementsAre("0000:02:00.0", "0000:02:02.0"));
  const Topology further = stored("further-switch.xml");
  EXPECT_THAT(further.paths[0].bridges, ElementsAre("0000:02:00.0", "0000:02:01.0"));
  EXPECT_THAT(further.paths[1].bridges,
              ElementsAre("0000:02:00.0", "0000:06:01.0", "0000:05:00.0", "0000:02:02.0"));
  EXPECT_THAT(further.paths[2].bridges,
              ElementsAre("0000:06:00.0", "0000:05:00.0", "0000:02:02.0", "0000:02:01.0"));
  EXPECT_THAT(further.paths[3].bridges, ElementsAre("0000:06:00.0", "0000:06:01.0"));
}

// The device at 0000:03:00.0 is another, of this PCI class, vendor and number.
TEST(Topology, devices_are_told_by_class_vendor_and_what_the_kernel_makes_of_them) {
  const std::string verbs = R"(<object type="OSDev" gp_index="99" name="irdma0" osdev_type="3"/>)";
  const std::string net = R"(<object type="OSDev" gp_index="99" name="eth0" osdev_type="2"/>)";
  const struct {
    const char* type;
    std::string inside;
    const char* told;  // kind, name, name of the RDMA device
  } cases[] = {{"0302 [10de:20b2]", "", "GPU 10de:20b2 cuda"},
               {"0300 [10de:1234]", "", "GPU 10de:1234 cuda"},
               {"1200 [1002:740c]", "", "GPU 1002:740c"},
               {"0380 [1002:7408]", "", "GPU 1002:7408"},
               {"0300 [1a03:2000]", "", ""},
               {"0403 [10de:1aef]", "", ""},
               {"0200 [15b3:101b]", net, "NIC 15b3:101b"},
               {"0200 [8086:1592]", net, ""},
               {"0200 [8086:1592]", net + verbs, "NIC 8086:1592 irdma0"},
               {"0c80 [15b3:101b]", "", ""},
               {"0207 [15b3:1]", R"(<info name="PCIDevice" value="ConnectX"/>)", "NIC ConnectX"},
               {"0207 [15b3:1]",
                R"(<info name="PCIVendor" value="Mellanox"/><info name="PCIDevice" value="ConnectX"/>)",
                "NIC Mellanox ConnectX"}};
  const std::string path = testing::TempDir() + "other-device" + std::to_string(getpid()) + ".xml";
  for (const auto& [type, inside, told] : cases) {
    std::ifstream file(std::string(GDX_TOPOLOGIES) + "/two-sockets.xml");
    std::string text(std::istreambuf_iterator<char>(file), {});
    const auto put = [&](const std::string& old, const std::string& with) {
      text.replace(text.find(old, text.find("\"0000:03:00.0\"")), old.size(), with);
    };
    put("0302 [10de:20b2]", type);
    put("></object>", ">" + inside + "</object>");
    std::ofstream(path) << text;
    const auto topology = read_topology(path);
    ASSERT_TRUE(topology) << topology.error().message;
    std::string found;
    const auto look = [&](const char* kind, const std::vector<PciDevice>& devices) {
      for (const PciDevice& device : devices) {
        if (device.bus_id != "0000:03:00.0") continue;
        found.append(kind).append(device.name).append(device.runs_cuda ? " cuda" : "");
        if (!device.os_name.empty()) found.append(" ").append(device.os_name);
      }
    };
    look("GPU ", topology->gpus);
    look("NIC ", topology->nics);
    EXPECT_EQ(found, told) << type;
  }
  std::remove(path.c_str());
}

TEST(Topology, two_sockets_display_controller_of_the_board_is_no_gpu) {
  EXPECT_EQ(stored("two-sockets.xml").gpus.size(), 3u);
}

TEST(Topology, two_sockets_connectx_without_driver_is_a_nic_without_name) {
  const Topology topology = stored("two-sockets.xml");
  ASSERT_EQ(topology.nics.size(), 3u);
  EXPECT_EQ(topology.nics[0].os_name, "mlx5_0");
  EXPECT_EQ(topology.nics[2].os_name, "");
}

TEST(Topology, two_sockets_each_gpu_gets_its_nearest_nic) {
  EXPECT_THAT(pairs_of(stored("two-sockets.xml")),
              ElementsAre("0000:03:00.0 0000:05:00.0 PIX", "0000:04:00.0 0000:05:00.0 PIX",
                          // Equally far from all: the first of those that no GPU uses yet.
                          "0000:81:00.0 0000:10:00.0 SYS"));
}

TEST(Topology, dgx_a100_gpu_reaches_its_boards_nics_by_switches_and_others_by_sockets) {
  const Topology topology = stored("dgx-a100.xml");
  ASSERT_EQ(topology.gpus.size(), 8u);
  ASSERT_EQ(topology.nics.size(), 8u);
  std::map<PathClass, int> classes;
  for (const GpuNicPath& path : topology.paths) ++classes[path.path];
  EXPECT_EQ(classes[PathClass::kPxb], 16);
  EXPECT_EQ(classes[PathClass::kSys], 48);
}

TEST(Topology, dgx_a100_every_gpu_has_a_nic_of_its_own) {
  std::map<std::size_t, int> gpus_of;
  for (const GpuNicPath& pair : pair_by_distance(stored("dgx-a100.xml"))) {
    EXPECT_EQ(pair.path, PathClass::kPxb);
    ++gpus_of[pair.nic];
  }
  EXPECT_EQ(gpus_of.size(), 8u);
}

TEST(Topology, dgx_a100_numa_nodes_are_told) {
  const Topology topology = stored("dgx-a100.xml");
  EXPECT_EQ(topology.gpus.front().numa_node, 1);
  EXPECT_EQ(topology.gpus.back().numa_node, 7);
}

// Without its packages the file's bridges belong to the machine, and so to both nodes.
TEST(Topology, device_near_several_numa_nodes_is_on_none) {
  std::ifstream file(std::string(GDX_TOPOLOGIES) + "/two-sockets.xml");
  const std::string path = testing::TempDir() + "no-packages.xml";
  std::ofstream changed(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(" <object type=\"Package\"") && line != " </object>") changed << line << '\n';
  }
  changed.close();
  const auto topology = read_topology(path);
  ASSERT_TRUE(topology) << topology.error().message;
  ASSERT_FALSE(topology->gpus.empty());
  for (const PciDevice& gpu : topology->gpus) EXPECT_EQ(gpu.numa_node, -1);
  for (const PciDevice& gpu : stored("two-sockets.xml").gpus) EXPECT_GE(gpu.numa_node, 0);
}

TEST(Topology, this_machine_is_read) { EXPECT_TRUE(read_topology()); }

TEST(Topology, file_missing_is_named) {
  const auto topology = read_topology("/nowhere.xml");
  ASSERT_FALSE(topology);
  EXPECT_EQ(topology.error().status, Status::kInvalidArgument);
  EXPECT_THAT(topology.error().message, HasSubstr("/nowhere.xml"));
}

TEST(Topology, file_that_never_ends_is_refused) {
  const auto topology = read_topology("/dev/zero");
  ASSERT_FALSE(topology);
  EXPECT_EQ(topology.error().status, Status::kInvalidArgument);
}

TEST(Topology, file_of_something_else_is_refused) {
  const auto topology = read_topology(std::string(GDX_TOPOLOGIES) + "/README.md");
  ASSERT_FALSE(topology);
  EXPECT_EQ(topology.error().status, Status::kInvalidArgument);
  EXPECT_THAT(topology.error().message, HasSubstr("no topology"));
}

Topology two_gpus_three_nics() {
  Topology topology;
  for (const char* bus_id : {"0000:3b:00.0", "0001:af:00.0"}) {
    topology.gpus.push_back({.bus_id = bus_id, .name = "a GPU", .os_name = "", .runs_cuda = true});
  }
  topology.nics.resize(3);
  for (std::size_t i = 0; i < 3; ++i) topology.nics[i].os_name = "mlx5_" + std::to_string(i);
  topology.paths = {
      {0, 0, PathClass::kSys}, {0, 1, PathClass::kNode}, {1, 0, PathClass::kPxb}, {1, 1, PathClass::kSys}};
  return topology;
}

TEST(Topology, paths_to_a_nic_are_told_nearest_first) {
  const Topology topology = two_gpus_three_nics();
  EXPECT_THAT(paths_to(topology, "mlx5_0"), ElementsAre(PathClass::kPxb, PathClass::kSys));
  EXPECT_THAT(paths_to(topology, "mlx5_1"), ElementsAre(PathClass::kNode, PathClass::kSys));
  EXPECT_THAT(paths_to(topology, "mlx5_2"), IsEmpty());
  EXPECT_THAT(paths_to(topology, "gdx0"), IsEmpty());
}

TEST(Topology, path_of_one_gpu_is_told_by_the_bus_id_that_cuda_gives_it) {
  const Topology topology = two_gpus_three_nics();
  EXPECT_THAT(paths_to(topology, "mlx5_0", {"0000:3B:00.0"}), ElementsAre(PathClass::kSys));
  EXPECT_THAT(paths_to(topology, "mlx5_0", {"0001:AF:00.0"}), ElementsAre(PathClass::kPxb));
  EXPECT_THAT(paths_to(topology, "mlx5_0", {"0000:AF:00.0"}), IsEmpty());
  EXPECT_THAT(paths_to(topology, "mlx5_0", {"rubbish"}), IsEmpty());
}

TEST(Topology, bus_ids_of_all_notations_are_one) {
  for (const char* text : {"0000:3B:00.0", "00000000:3b:00.0", "3b:00.0"})
    EXPECT_EQ(canonical_bus_id(text), "0000:3b:00.0") << text;
  EXPECT_EQ(canonical_bus_id("00010000:00:1f.7"), "10000:00:1f.7") << "as VMD numbers its domains";
  for (const char* text :
       {"", "0", "3b:00", "3b:00.8", "x3b:00.0", "3b:00.07", "3b:00.0 ", "0000:3b:00:0", "000000000:3b:00.0"})
    EXPECT_EQ(canonical_bus_id(text), std::nullopt) << text;
}

TEST(Topology, gpu_that_runs_no_cuda_is_shown_and_pairs_with_nothing) {
  Topology topology = two_gpus_three_nics();
  topology.gpus[1].runs_cuda = false;
  EXPECT_THAT(pairs_of(topology), ElementsAre("0000:3b:00.0  NODE"));
  EXPECT_THAT(paths_to(topology, "mlx5_0"), ElementsAre(PathClass::kSys));
  EXPECT_THAT(paths_to(topology, "mlx5_0", {"0001:af:00.0"}), IsEmpty());
}

}  // namespace topology_test
}  // namespace gdx
