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
       m.is_root = false;
       m.replace("/proc/driver/nvidia/params", "PeerMappingOverride=1;", "");
     }},
    {"a UAR page for a user, and no parameters",
     [](Fabricated& m) {
       m.is_root = false;
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
};

}  // namespace

const std::vector<Fault>& odd_machines() { return machines; }

}  // namespace gdx::doctor
