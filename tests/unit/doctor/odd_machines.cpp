#include <fmt/format.h>

#include "tests/unit/doctor/faults.h"

namespace gdx::doctor {
namespace {

// Machines with more than one trouble.
const std::vector<Fault> machines = {
    {"a ConnectX alone, without its driver",
     [](Fabricated& m) {
       m.topology.gpus.clear();
       m.topology.paths.clear();
       m.remove_all("/sys/class/infiniband");
       m.files["/sys/class/net/lo/mtu"] = "65536";
       m.topology.nics = {{"0000:5e:00.0", "ConnectX-7", "", 0, false}};
     }},
    {"no UAR page for any user",
     [](Fabricated& m) {
       m.gpus.erase(kGpu0);
       of_docker(m);
       m.replace("/proc/driver/nvidia/params", "PeerMappingOverride=1;", "");
     }},
    {"a UAR page for a user, and no parameters",
     [](Fabricated& m) {
       of_docker(m);
       m.files.erase("/proc/driver/nvidia/params");
     }},
    {"neither nvidia_peermem nor CUDA",
     [](Fabricated& m) {
       m.gpus.clear();
       m.remove_all("/sys/module/nvidia_peermem");
     }},
    {"an HCA that takes no dmabuf, and no nvidia_peermem",
     [](Fabricated& m) {
       m.takes_no_dmabuf.insert("mlx5_1");
       m.remove_all("/sys/module/nvidia_peermem");
     }},
    {"an interface without a node, and pauses of all kinds",
     [](Fabricated& m) {
       m.topology.gpus[1].numa_node = -1;
       m.programs["ethtool -S eth0"] =
           "  rx_pause_ctrl_phy: 7\n  tx_pause_ctrl_phy: 0\n  rx_prio3_pause: 8\n  rx_out_of_buffer: 9\n";
     }},
    {"addresses at index 10, beside such a one at 3 and alone, and two of IPv6",
     [](Fabricated& m) {
       for (const char* const name : {"mlx5_0", "mlx5_1"}) {
         const std::string port = fmt::format("/sys/class/infiniband/{}/ports/1/", name);
         m.files[port + "gid_attrs/types/10"] = "RoCE v2";
         m.files[port + "gids/10"] = "0000:0000:0000:0000:0000:ffff:0a00:0063";
       }
       m.add_hca("mlx5_2", "10000:5d:00.0", 2);
       const std::string ports[] = {"/sys/class/infiniband/mlx5_1/ports/1/gid_attrs/types/3",
                                    "/sys/class/infiniband/mlx5_2/ports/1/gid_attrs/types/3"};
       for (const std::string& type : ports) m.files[type] = "IB/RoCE v1";
       for (const char* const index : {"10", "5"}) {
         m.files[fmt::format("/sys/class/infiniband/mlx5_2/ports/1/gid_attrs/types/{}", index)] = "RoCE v2";
         m.files[fmt::format("/sys/class/infiniband/mlx5_2/ports/1/gids/{}", index)] =
             "2001:0db8::" + std::string(index);
       }
     }},
    {"capabilities of PCI up to the last byte, and one byte less",
     [](Fabricated& m) {
       m.files[fmt::format("/sys/bus/pci/devices/{}/config", kNic0)].resize(0x6a);
       m.files[fmt::format("/sys/bus/pci/devices/{}/config", kNic1)].resize(0x69);
     }},
    {"capabilities of PCI in a ring, and below the first place for them",
     [](Fabricated& m) {
       m.files[fmt::format("/sys/bus/pci/devices/{}/config", kNic0)][0x41] = 0x40;
       m.files[fmt::format("/sys/bus/pci/devices/{}/config", kNic1)][0x34] = 0x3f;
     }},
    {"limits of two control groups, one of them used up",
     [](Fabricated& m) {
       const std::string group = "/sys/fs/cgroup/user.slice/rdma.max";
       m.replace(group, "mlx5_0 hca_handle=max", "mlx5_0 hca_handle=3");
       m.files["/sys/fs/cgroup/rdma.max"] = "mlx5_0 hca_handle=9 hca_object=91\nmlx5_1 hca_handle=1\n";
       m.files["/sys/fs/cgroup/rdma.current"] = "mlx5_0 hca_handle=4 hca_object=93\n";
     }},
};

}  // namespace

const std::vector<Fault>& odd_machines() { return machines; }

}  // namespace gdx::doctor
