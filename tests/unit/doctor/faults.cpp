#include "tests/unit/doctor/faults.h"

#include <fmt/format.h>

namespace gdx::doctor {

std::string pci(const std::string& bus_id, const std::string& file) {
  return "/sys/bus/pci/devices/" + bus_id + "/" + file;
}
std::string hca(const std::string& name, const std::string& file) {
  return "/sys/class/infiniband/" + name + "/" + file;
}
std::string port(const std::string& name, const std::string& file) { return hca(name, "ports/1/" + file); }

void set(Fabricated& machine, const std::string& path, const std::string& text) {
  machine.files[path] = text;
}
void set_gids(Fabricated& machine, const std::string& name, const std::string& type, const std::string& gid) {
  machine.remove_all(port(name, "gid"));
  set(machine, port(name, "gid_attrs/types/0"), type);
  set(machine, port(name, "gids/0"), gid);
}
void of_docker(Fabricated& machine) { machine.replace(kStatus, "000001ffffffffff", "00000000a80425fb"); }
void make_virtual(Fabricated& machine) { machine.replace("/proc/cpuinfo", " nx", " nx hypervisor"); }

namespace {

constexpr auto kWarn = Verdict::kWarn;
constexpr auto kFail = Verdict::kFail;
constexpr auto kUnknown = Verdict::kUnknown;
constexpr char kMappingKey[] = "NVreg_RegistryDwords=\"PeerMappingOverride=1;\"";
constexpr char kPorts[] = "mlx5_0 with mlx5_1";

void no_program(Fabricated& machine, const std::string& name) {
  std::erase_if(machine.programs, [&](const auto& program) { return program.first.starts_with(name + " "); });
}
void bound_to_node_0(Fabricated& machine) { machine.replace(kStatus, "0-95", "0-47"); }

std::vector<Expected> both(const char* check, const char* first, const char* second, Verdict verdict,
                           const std::string& fix = "") {
  return {{{check, first}, verdict, fix}, {{check, second}, verdict, fix}};
}
std::vector<Expected> joined(std::initializer_list<std::vector<Expected>> parts) {
  std::vector<Expected> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

const std::vector<Fault> kGpuFaults = {
    {"driver not loaded",
     [](Fabricated& m) {
       m.files.erase("/proc/driver/nvidia/version");
       m.gpus.clear();
     },
     joined({both("gpu", kGpu0, kGpu1, kFail), both("uar-mapping", kPair0, kPair1, kUnknown),
             both("dmabuf", kPair0, kPair1, kUnknown), both("registration", kPair0, kPair1, kUnknown),
             both("write-ordering", kGpu0, kGpu1, kUnknown)})},
    {"CUDA does not start", [](Fabricated& m) { m.gpus.clear(); },
     joined({both("gpu", kGpu0, kGpu1, kFail), both("uar-mapping", kPair0, kPair1, kUnknown),
             both("dmabuf", kPair0, kPair1, kUnknown), both("registration", kPair0, kPair1, kUnknown),
             both("write-ordering", kGpu0, kGpu1, kUnknown)})},
    {"CUDA does not start, and the kernel is old",
     [](Fabricated& m) {
       m.gpus.clear();
       set(m, "/proc/sys/kernel/osrelease", "5.4.0-216-generic");
     },
     joined({both("gpu", kGpu0, kGpu1, kFail), both("uar-mapping", kPair0, kPair1, kUnknown),
             both("dmabuf", kPair0, kPair1, kWarn, "a newer kernel"),
             both("registration", kPair0, kPair1, kUnknown),
             both("write-ordering", kGpu0, kGpu1, kUnknown)})},
    {"GPU hidden",
     [](Fabricated& m) { m.gpus.erase(kGpu1); },
     {{{"gpu", kGpu1}, kWarn, ""},
      {{"uar-mapping", kPair1}, kUnknown, ""},
      {{"dmabuf", kPair1}, kUnknown, ""},
      {{"registration", kPair1}, kUnknown, ""},
      {{"write-ordering", kGpu1}, kUnknown, ""}}},
    {"UAR mapping not permitted",
     [](Fabricated& m) { m.unmapped[kPair0] = "operation not permitted (CUDA error 800)"; },
     {{{"uar-mapping", kPair0}, kFail, kMappingKey}}},
    {"no PeerMappingOverride", [](Fabricated& m) { m.replace(kParameters, "PeerMappingOverride=1;", ""); },
     both("uar-mapping", kPair0, kPair1, kWarn, kMappingKey)},
    {"no PeerMappingOverride, and root of a container",
     [](Fabricated& m) {
       m.replace(kParameters, "PeerMappingOverride=1;", "");
       of_docker(m);
       for (const char* pair : {kPair0, kPair1})
         m.unmapped[pair] = "operation not permitted (CUDA error 800)";
     },
     both("uar-mapping", kPair0, kPair1, kFail, "--cap-add=SYS_ADMIN")},
    {"no PeerMappingOverride, and CAP_SYS_ADMIN without root",
     [](Fabricated& m) {
       m.replace(kParameters, "PeerMappingOverride=1;", "");
       m.is_root = false;
     },
     both("uar-mapping", kPair0, kPair1, kWarn, kMappingKey)},
    {"driver's parameters unreadable", [](Fabricated& m) { m.files.erase(kParameters); },
     joined(
         {both("uar-mapping", kPair0, kPair1, kUnknown), both("relaxed-ordering", kGpu0, kGpu1, kUnknown)})},
    {"GPU exports no dmabuf",
     [](Fabricated& m) { m.gpus[kGpu0].exports_dmabuf = false; },
     {{{"dmabuf", kPair0}, kWarn, "the open GPU driver"}}},
    {"HCA takes no dmabuf",
     [](Fabricated& m) { m.takes_no_dmabuf.insert("mlx5_1"); },
     {{{"dmabuf", kPair1}, kWarn, "a newer kernel"}}},
    {"neither dmabuf nor nvidia_peermem",
     [](Fabricated& m) {
       for (auto& [bus_id, gpu] : m.gpus) gpu.exports_dmabuf = false;
       m.remove_all("/sys/module/nvidia_peermem");
     },
     joined({both("dmabuf", kPair0, kPair1, kWarn, "the open GPU driver"),
             {{{"peermem", "machine"}, kWarn, "modprobe nvidia-peermem"}},
             both("registration", kPair0, kPair1, kFail, "modprobe nvidia-peermem")}),
     {{"modules", "nvidia_peermem"}}},
    {"neither dmabuf nor nvidia_peermem, nor its calls in the kernel",
     [](Fabricated& m) {
       for (auto& [bus_id, gpu] : m.gpus) gpu.exports_dmabuf = false;
       m.remove_all("/sys/module/nvidia_peermem");
       set(m, "/proc/kallsyms", "0000000000000000 t ib_register_client\t[ib_core]\n");
     },
     joined({both("dmabuf", kPair0, kPair1, kWarn, "the open GPU driver"),
             {{{"peermem", "machine"}, kWarn, "nvidia-peermem does not load"}},
             both("registration", kPair0, kPair1, kFail, "nvidia-peermem does not load")}),
     {{"modules", "nvidia_peermem"}}},
    {"driver that attaches no HCA to a dmabuf",
     [](Fabricated& m) {
       m.unregistered[fmt::format("dmabuf {}", kPair0)] = "does not attach HCA mlx5_0 (ENOTSUPP)";
     },
     {{{"registration", kPair0}, kWarn, "NVreg_GrdmaPciTopoCheckOverride=1"}},
     {{"dmabuf", kPair0}}},
    {"driver that attaches no HCA to a dmabuf, and no nvidia_peermem",
     [](Fabricated& m) {
       for (const char* pair : {kPair0, kPair1})
         m.unregistered[fmt::format("dmabuf {}", pair)] = "does not attach the HCA (ENOTSUPP)";
       m.remove_all("/sys/module/nvidia_peermem");
     },
     both("registration", kPair0, kPair1, kFail, "NVreg_GrdmaPciTopoCheckOverride=1"),
     {{"dmabuf", kPair0}, {"dmabuf", kPair1}, {"peermem", "machine"}, {"modules", "nvidia_peermem"}}},
    {"nv_peer_mem loaded",
     [](Fabricated& m) { set(m, "/sys/module/nv_peer_mem/version", "1.3-0"); },
     {{{"peermem", "machine"}, kWarn, "rmmod nv_peer_mem"}}},
    {"nv_peer_mem registered",
     [](Fabricated& m) { set(m, "/sys/kernel/mm/memory_peers/nv_mem/version", "1.3-0"); },
     {{{"peermem", "machine"}, kWarn, "rmmod nv_peer_mem"}}},
    {"dmabuf offered and refused",
     [](Fabricated& m) { m.unregistered[fmt::format("dmabuf {}", kPair0)] = "Cannot allocate memory"; },
     {{{"registration", kPair0}, kWarn, ""}},
     {{"dmabuf", kPair0}}},
    {"GPU memory refused each way",
     [](Fabricated& m) {
       m.unregistered[fmt::format("dmabuf {}", kPair1)] = "Bad address";
       m.unregistered[fmt::format("peermem {}", kPair1)] = "Bad address";
     },
     {{{"registration", kPair1}, kFail, "the open GPU driver"}}},
    {"HCA's writes unordered for kernels",
     [](Fabricated& m) { m.gpus[kGpu1].orders_writes = false; },
     {{{"write-ordering", kGpu1}, kWarn, "in host memory"}}},
    {"GPU over C2C with its NIC on a switch",
     [](Fabricated& m) { m.gpus[kGpu0].over_c2c = true; },
     {{{"write-ordering", kGpu0}, kWarn, "in host memory"}}},
    {"host memory refused",
     [](Fabricated& m) { m.unregistered["mlx5_0"] = "Cannot allocate memory"; },
     {{{"registration", "mlx5_0"}, kFail, ""}}},
    {"GDRCopy too old",
     [](Fabricated& m) { set(m, "/sys/module/gdrdrv/version", "2.4.1"); },
     {{{"gdrcopy", "machine"}, kWarn, "2.5 or later"}}},
    {"GDRCopy without its device",
     [](Fabricated& m) { m.files.erase("/dev/gdrdrv"); },
     {{{"gdrcopy", "machine"}, kWarn, "2.5 or later"}}},
    {"GDRCopy of unknown version",
     [](Fabricated& m) {
       m.remove_all("/sys/module/gdrdrv");
       set(m, "/sys/module/gdrdrv", "/");
     },
     {{{"gdrcopy", "machine"}, kUnknown, ""}}},
};

const std::vector<Fault> kPortFaults = {
    {"ConnectX without driver",
     [](Fabricated& m) {
       m.topology.nics.push_back({"0000:5e:00.0", "ConnectX-7", "", 0, false});
       set(m, pci("0000:5e:00.0", "vendor"), "0x15b3");
     },
     {{{"hca", "0000:5e:00.0"}, kWarn, ""}}},
    {"no DevX",
     [](Fabricated& m) { m.unopened["mlx5_1"] = "Operation not supported"; },
     {{{"devx", "mlx5_1"}, kFail, ""}}},
    {"port down",
     [](Fabricated& m) { set(m, port("mlx5_0", "state"), "1: DOWN"); },
     {{{"port", "mlx5_0"}, kFail, ""}},
     {{"rate", "mlx5_0"}, {"rate", "mlx5_1"}, {"reachability", kPorts}}},
    {"port not set up",
     [](Fabricated& m) { set(m, port("mlx5_1", "state"), "2: INIT"); },
     {{{"port", "mlx5_1"}, kFail, ""}},
     {{"rate", "mlx5_1"}, {"reachability", kPorts}}},
    {"port's state unreadable",
     [](Fabricated& m) { m.files.erase(port("mlx5_1", "state")); },
     {{{"port", "mlx5_1"}, kUnknown, ""}},
     {{"reachability", kPorts}}},
    {"spare port unplugged",
     [](Fabricated& m) {
       m.add_hca("mlx5_2", "0000:5d:00.0", 2);
       m.topology.paths.push_back({0, 2, PathClass::kSys});
       m.topology.paths.push_back({1, 2, PathClass::kSys});
       set(m, port("mlx5_2", "state"), "1: DOWN");
     },
     {{{"port", "mlx5_2"}, kWarn, ""}},
     // A failure of all HCAs would include this one.
     {{"pfc", "mlx5_0"},
      {"discards", "mlx5_0"},
      {"dcqcn", "mlx5_0"},
      {"cgroup", "machine"},
      {"path", kGpu1}}},
    {"ports that do not reach each other",
     [](Fabricated& m) { m.unreached[kPorts] = "the completion is opcode 13, syndrome 0x15"; },
     {{{"reachability", kPorts}, kWarn, "NCCL_CROSS_NIC=0"}}},
    {"slow port",
     [](Fabricated& m) { set(m, port("mlx5_1", "rate"), "100 Gb/sec (4X EDR)"); },
     {{{"rate", "mlx5_1"}, kWarn, ""}}},
    {"rate unreadable",
     [](Fabricated& m) { m.files.erase(port("mlx5_0", "rate")); },
     {{{"rate", "mlx5_0"}, kUnknown, ""}},
     {{"rate", "mlx5_1"}}},
    {"small MTU",
     [](Fabricated& m) { set(m, "/sys/class/net/eth0/mtu", "1500"); },
     {{{"mtu", "mlx5_0"}, kWarn, ""}}},
    {"interface in another namespace",
     [](Fabricated& m) { m.remove_all(pci(kNic1, "net")); },
     {{{"mtu", "mlx5_1"}, kUnknown, ""},
      {{"pfc", "mlx5_1"}, kUnknown, ""},
      {{"dcqcn", "mlx5_1"}, kUnknown, ""},
      {{"discards", "mlx5_1"}, kUnknown, ""}}},
    {"link-local GIDs alone",
     [](Fabricated& m) { set_gids(m, "mlx5_0", "RoCE v2", "fe80:0000:0000:0000:a288:c2ff:fe12:3456"); },
     {{{"address", "mlx5_0"}, kFail, "choose the index"}}},
    {"routable GID of an interface in another namespace",
     [](Fabricated& m) { set(m, port("mlx5_1", "gid_attrs/ndevs/3"), "eth7"); },
     {{{"address", "mlx5_1"}, kFail, "choose the index"}}},
    {"RoCE v1 alone",
     [](Fabricated& m) { set_gids(m, "mlx5_1", "IB/RoCE v1", "0000:0000:0000:0000:0000:ffff:0a00:0002"); },
     {{{"address", "mlx5_1"}, kFail, "an IP address"}}},
    {"no GID",
     [](Fabricated& m) { set_gids(m, "mlx5_1", "/", "0000:0000:0000:0000:0000:0000:0000:0000"); },
     {{{"address", "mlx5_1"}, kFail, "an IP address"}}},
    {"GID table unreadable",
     [](Fabricated& m) { m.remove_all(port("mlx5_0", "gid")); },
     {{{"address", "mlx5_0"}, kUnknown, ""}}},
    {"GIDs' types unreadable",
     [](Fabricated& m) {
       for (int i = 0; i < 5; ++i) {
         m.files.erase(port("mlx5_0", fmt::format("gid_attrs/types/{}", i)));
         set(m, port("mlx5_0", fmt::format("gid_attrs/types/{}/unreadable", i)), "/");
         if (i == 4) m.files.erase(port("mlx5_0", "gids/4"));
       }
     },
     {{{"address", "mlx5_0"}, kUnknown, ""}}},
    {"link layer unreadable",
     [](Fabricated& m) { m.files.erase(port("mlx5_0", "link_layer")); },
     {{{"address", "mlx5_0"}, kUnknown, ""}},
     {{"mtu", "mlx5_0"},
      {"pfc", "mlx5_0"},
      {"dcqcn", "mlx5_0"},
      {"discards", "mlx5_0"},
      {"reachability", kPorts}}},
    {"an HCA's driver unreadable",
     [](Fabricated& m) { set(m, hca("bnxt_re0", "device/vendor"), "0x14e4"); },
     {{{"hca", "bnxt_re0"}, kUnknown, ""}}},
    {"losses: timeouts",
     [](Fabricated& m) { set(m, port("mlx5_0", "hw_counters/local_ack_timeout_err"), "17"); },
     {{{"losses", "mlx5_0"}, kWarn, "links and fabric"}}},
    {"losses: NAKs",
     [](Fabricated& m) { set(m, port("mlx5_1", "hw_counters/packet_seq_err"), "3"); },
     {{{"losses", "mlx5_1"}, kWarn, "links and fabric"}}},
    {"losses: out of sequence",
     [](Fabricated& m) { set(m, port("mlx5_1", "hw_counters/out_of_sequence"), "12"); },
     {{{"losses", "mlx5_1"}, kWarn, "links and fabric"}}},
    {"losses: receiver not ready",
     [](Fabricated& m) { set(m, port("mlx5_0", "hw_counters/rnr_nak_retry_err"), "1"); },
     {{{"losses", "mlx5_0"}, kWarn, "links and fabric"}}},
    {"losses unreadable",
     [](Fabricated& m) { m.remove_all(port("mlx5_0", "hw_counters")); },
     {{{"losses", "mlx5_0"}, kUnknown, ""}}},
    {"older firmware",
     [](Fabricated& m) { set(m, hca("mlx5_1", "fw_ver"), "28.39.1002"); },
     {{{"firmware", "mlx5_1"}, kWarn, "upgrade"}}},
    {"firmware unreadable",
     [](Fabricated& m) { m.files.erase(hca("mlx5_0", "fw_ver")); },
     {{{"firmware", "mlx5_0"}, kUnknown, ""}},
     {{"firmware", "mlx5_1"}}},
    {"no device memory",
     [](Fabricated& m) { m.device_memory["mlx5_0"] = {}; },
     {{{"device-memory", "mlx5_0"}, kWarn, ""}}},
    {"device memory used up",
     [](Fabricated& m) { m.device_memory["mlx5_1"].largest_bytes = 0; },
     {{{"device-memory", "mlx5_1"}, kWarn, ""}}},
    {"Data Direct unknown",
     [](Fabricated& m) {
       set(m, pci(kNic0, "device"), "0x1023");
       m.data_direct["mlx5_0"] = fail(Status::kSystem, "the HCA does not answer");
     },
     {{{"data-direct", "mlx5_0"}, kUnknown, ""}},
     {{"rate", "mlx5_1"}, {"firmware", "mlx5_1"}}},  // it has no like any more
    {"libmlx5 before Data Direct",
     [](Fabricated& m) {
       for (const char* nic : {kNic0, kNic1}) set(m, pci(nic, "device"), "0x1023");
       for (const char* name : {"mlx5_0", "mlx5_1"})
         m.data_direct[name] = fail(Status::kUnsupported, "this libmlx5 has no such call");
     },
     both("data-direct", "mlx5_0", "mlx5_1", kWarn, "rdma-core 54")},
    {"EFA writes nothing",
     [](Fabricated& m) {
       set(m, hca("rdmap0", "device/vendor"), "0x1d0f");
       set(m, hca("rdmap0", "device/driver"), "@../../../../bus/pci/drivers/efa");
       set(m, port("rdmap0", "hw_counters/rdma_write_bytes"), "0");
     },
     {{{"efa", "rdmap0"}, kWarn, "efa-direct"}}},
};

const std::vector<Fault> kQualityFaults = {
    {"PCP trusted",
     [](Fabricated& m) { m.replace_output("mlnx_qos -i eth0", "trust state: dscp", "trust state: pcp"); },
     {{{"pfc", "mlx5_0"}, kWarn, "mlnx_qos -i eth0 --trust dscp"}}},
    {"no PFC",
     [](Fabricated& m) { m.replace_output("mlnx_qos -i eth1", "0   0   0   1", "0   0   0   0"); },
     {{{"pfc", "mlx5_1"}, kWarn, "mlnx_qos -i eth1 --pfc 0,0,0,1,0,0,0,0"}},
     {{"dcqcn", "mlx5_1"}}},
    {"no traffic class for gdx", [](Fabricated& m) { m.traffic_class = std::nullopt; },
     both("pfc", "mlx5_0", "mlx5_1", kWarn, "GDX_TRAFFIC_CLASS=106")},
    {"DSCP without PFC",
     [](Fabricated& m) {
       m.traffic_class = 34;
       m.files.erase(hca("mlx5_0", "tc/1/traffic_class"));
       set(m, hca("mlx5_1", "tc/1/traffic_class"), "Global tclass=66");
     },
     {{{"pfc", "mlx5_0"}, kWarn, "mlnx_qos -i eth0 --dscp2prio set,8,3"},
      {{"pfc", "mlx5_1"}, kWarn, "mlnx_qos -i eth1 --dscp2prio set,8,3"}}},
    {"DSCP of unknown priority",
     [](Fabricated& m) { m.replace_output("mlnx_qos -i eth0", "prio:3", "none:3"); },
     {{{"pfc", "mlx5_0"}, kUnknown, ""}}},
    {"traffic class that gdx refuses",
     [](Fabricated& m) { m.traffic_class = fail(Status::kInvalidArgument, "GDX_TRAFFIC_CLASS = '300'"); },
     both("pfc", "mlx5_0", "mlx5_1", kFail)},
    {"no mlnx_qos", [](Fabricated& m) { no_program(m, "mlnx_qos"); },
     joined({both("pfc", "mlx5_0", "mlx5_1", kUnknown), both("dcqcn", "mlx5_0", "mlx5_1", kUnknown)})},
    {"mlnx_qos without a tale",
     [](Fabricated& m) { m.programs["mlnx_qos -i eth0"] = "Netlink error\n"; },
     {{{"pfc", "mlx5_0"}, kUnknown, ""}, {{"dcqcn", "mlx5_0"}, kUnknown, ""}}},
    {"mlnx_qos without a trust state",
     [](Fabricated& m) { m.replace_output("mlnx_qos -i eth0", "trust state", "trusted"); },
     {{{"pfc", "mlx5_0"}, kUnknown, ""}, {{"dcqcn", "mlx5_0"}, kUnknown, ""}}},
    {"mlnx_qos without PFC",
     [](Fabricated& m) { m.replace_output("mlnx_qos -i eth1", "enabled", "enables"); },
     {{{"pfc", "mlx5_1"}, kUnknown, ""}, {{"dcqcn", "mlx5_1"}, kUnknown, ""}}},
    {"DCQCN off",
     [](Fabricated& m) { m.replace_output(fmt::format("mlxconfig -d {} q", kNic0), "255", "0"); },
     {{{"dcqcn", "mlx5_0"}, kWarn, "ROCE_CC_PRIO_MASK_P1=255"}}},
    {"CNPs paused",
     [](Fabricated& m) { m.replace_output(fmt::format("mlxconfig -d {} q", kNic1), "49", "26"); },
     {{{"dcqcn", "mlx5_1"}, kWarn, ""}}},
    {"CNPs' DSCP unknown",
     [](Fabricated& m) {
       m.replace_output(fmt::format("mlxconfig -d {} q", kNic0), "CNP_DSCP_P1", "CNP_DSCP_P2");
     },
     {{{"dcqcn", "mlx5_0"}, kUnknown, ""}}},
    {"CNPs' DSCP without a priority",
     [](Fabricated& m) { m.replace_output("mlnx_qos -i eth1", "prio:6", "none:6"); },
     {{{"dcqcn", "mlx5_1"}, kUnknown, ""}}},
    {"no mlxconfig", [](Fabricated& m) { no_program(m, "mlxconfig"); },
     joined(
         {both("dcqcn", "mlx5_0", "mlx5_1", kUnknown), both("nic-settings", "mlx5_0", "mlx5_1", kUnknown)})},
    {"discards",
     [](Fabricated& m) { m.replace_output("ethtool -S eth1", "rx_discards_phy: 0", "rx_discards_phy: 991"); },
     {{{"discards", "mlx5_1"}, kWarn, "PFC on the queue"}}},
    {"no ethtool", [](Fabricated& m) { no_program(m, "ethtool"); },
     both("discards", "mlx5_0", "mlx5_1", kUnknown)},
};

const std::vector<Fault> kPcieFaults = {
    {"ACS redirects",
     [](Fabricated& m) { set(m, pci("0000:17:01.0", "config"), config_space(0x2910, 0x1d)); },
     {{{"acs", "0000:17:01.0"}, kWarn, "setpci -s 0000:17:01.0 ECAP_ACS+0x6.w=0000"}}},
    {"ACS for root",
     [](Fabricated& m) { set(m, pci("0000:99:00.0", "config"), config_space(0x2910, 0x1d, 64)); },
     {{{"acs", "0000:99:00.0"}, kUnknown, ""}}},
    {"IOMMU translates",
     [](Fabricated& m) { set(m, "/sys/kernel/iommu_groups/10/type", "DMA-FQ"); },
     {{{"iommu", kGpu0}, kWarn, "passthrough"}}},
    {"IOMMU translates, whatever the kernel was told",
     [](Fabricated& m) {
       set(m, "/sys/kernel/iommu_groups/20/type", "DMA");
       m.replace("/proc/cmdline", "quiet", "iommu=pt");
     },
     {{{"iommu", kNic0}, kWarn, "passthrough"}},
     {{"iommu", kNic1}}},
    {"IOMMU unknown",
     [](Fabricated& m) { m.files.erase("/sys/kernel/iommu_groups/21/type"); },
     {{{"iommu", kNic1}, kUnknown, ""}}},
    {"GPU far from every NIC",
     [](Fabricated& m) {
       m.topology.paths[3] = {1, 1, PathClass::kSys};
     },
     {{{"path", kGpu1}, kWarn, "another NIC"}},
     {{"acs", "0000:99:00.0"}}},
    {"GPU behind another root complex",
     [](Fabricated& m) {
       m.topology.paths[3] = {1, 1, PathClass::kNode};
     },
     {{{"path", kGpu1}, kWarn, "another NIC"}},
     {{"acs", "0000:99:00.0"}}},
    {"bound to the other socket", bound_to_node_0, {{{"affinity", kGpu1}, kWarn, "NUMA node 1"}}},
    {"processors of a node unreadable",
     [](Fabricated& m) { m.files.erase("/sys/devices/system/node/node1/cpulist"); },
     {{{"affinity", kGpu1}, kUnknown, ""}}},
    {"GPUs with relaxed ordering",
     [](Fabricated& m) { m.replace(kParameters, "RelaxedOrderingMode: 0", "RelaxedOrderingMode: 1"); },
     both("relaxed-ordering", kGpu0, kGpu1, kWarn, "NVreg_EnablePCIERelaxedOrderingMode=0")},
    {"GPUs with relaxed ordering by the registry",
     [](Fabricated& m) {
       m.replace(kParameters, "RegistryDwords: \"", "RegistryDwords: \"RmSetPCIERelaxedOrdering=0x2;");
     },
     both("relaxed-ordering", kGpu0, kGpu1, kWarn, "no RmSetPCIERelaxedOrdering")},
    {"a GPU that the hypervisor asks for relaxed ordering",
     [](Fabricated& m) {
       make_virtual(m);
       m.gpus[kGpu0].compute_capability = 80;
       m.files[pci(kGpu0, "config")][0xe8] = 0x14;
     },
     {{{"relaxed-ordering", kGpu0}, kWarn, "have the hypervisor ask for no relaxed ordering"}},
     {{"gpu", kGpu0}}},
    {"GPUs that a hypervisor may ask, unknown to an ordinary user",
     [](Fabricated& m) {
       make_virtual(m);
       for (auto& [bus_id, gpu] : m.gpus) {
         gpu.compute_capability = 86;
         m.files[pci(bus_id, "config")].resize(64);
       }
     },
     both("relaxed-ordering", kGpu0, kGpu1, kWarn, "leave the virtual machine"),
     {{"gpu", kGpu0}, {"gpu", kGpu1}}},
    {"a hidden GPU that a hypervisor may ask",
     [](Fabricated& m) {
       make_virtual(m);
       m.gpus.erase(kGpu1);
       m.files[pci(kGpu1, "config")].resize(64);
     },
     {{{"relaxed-ordering", kGpu1}, kUnknown, ""},
      {{"gpu", kGpu1}, kWarn, ""},
      {{"uar-mapping", kPair1}, kUnknown, ""},
      {{"dmabuf", kPair1}, kUnknown, ""},
      {{"registration", kPair1}, kUnknown, ""},
      {{"write-ordering", kGpu1}, kUnknown, ""}}},
    {"NIC whose writes pass each other",
     [](Fabricated& m) {
       m.replace_output(fmt::format("mlxconfig -d {} q", kNic1), "per_mkey(0)", "force_relax(1)");
     },
     {{{"nic-settings", "mlx5_1"}, kFail, fmt::format("mlxconfig -d {} set PCI_WR_ORDERING=0", kNic1)}}},
    {"NIC whose order of writes is not told",
     [](Fabricated& m) {
       m.replace_output(fmt::format("mlxconfig -d {} q", kNic0), "PCI_WR_ORDERING ", "PCI_XX_ORDERING ");
     },
     {{{"nic-settings", "mlx5_0"}, kUnknown, ""}}},
    {"NIC without relaxed ordering",
     [](Fabricated& m) { set(m, pci(kNic1, "config"), config_space(0x2900)); },
     {{{"relaxed-ordering", kNic1}, kWarn, ""}}},
    {"configuration space for root",
     [](Fabricated& m) { set(m, pci(kNic0, "config"), config_space(0x2910, 0, 64)); },
     {{{"relaxed-ordering", kNic0}, kUnknown, ""}, {{"read-request", "mlx5_0"}, kUnknown, ""}}},
};

const std::vector<Fault> kSystemFaults = {
    {"other driver on disk",
     [](Fabricated& m) { m.replace_output("modinfo -F version mlx5_core", "24.10-1.1.4", "25.01-0.6.0"); },
     {{{"modules", "mlx5_core"}, kWarn, "reboot"}}},
    {"no modinfo", [](Fabricated& m) { no_program(m, "modinfo"); },
     joined({both("modules", "mlx5_core", "mlx5_ib", kUnknown),
             both("modules", "nvidia", "nvidia_peermem", kUnknown)})},
    {"old rdma-core",
     [](Fabricated& m) { m.libmlx5 = "/usr/lib/x86_64-linux-gnu/libmlx5.so.1.22.39.0"; },
     {{{"rdma-core", "machine"}, kWarn, "upgrade rdma-core"}}},
    {"rdma-core unknown",
     [](Fabricated& m) { m.libmlx5 = "/opt/lib/libmlx5.so"; },
     {{{"rdma-core", "machine"}, kUnknown, ""}}},
    {"little locked memory",
     [](Fabricated& m) {
       m.replace(kLimits, "Max locked memory         unlimited", "Max locked memory         8388608  ");
       m.replace(kStatus, "000001ffffffffff", "0000000000000000");
     },
     {{{"locked-memory", "machine"}, kWarn, "--ulimit memlock=-1"}},
     {{"uar-mapping", kPair0}, {"uar-mapping", kPair1}}},  // no capability maps without the key
    {"small stack",
     [](Fabricated& m) { m.replace(kLimits, "8388608    ", "1048576    "); },
     {{{"stack", "machine"}, kWarn, "--ulimit stack=67108864"}},
     {{"locked-memory", "machine"}}},
    {"few open files",
     [](Fabricated& m) {
       m.replace(kLimits, "Max open files            1048576", "Max open files            1024   ");
     },
     {{{"open-files", "machine"}, kWarn, "nofile"}}},
    {"limits unreadable",
     [](Fabricated& m) { m.files.erase(kLimits); },
     {{{"locked-memory", "machine"}, kUnknown, ""},
      {{"stack", "machine"}, kUnknown, ""},
      {{"open-files", "machine"}, kUnknown, ""}}},
    {"small /dev/shm",
     [](Fabricated& m) { m.shared_memory_bytes = 64 << 20; },
     {{{"shared-memory", "machine"}, kWarn, "--shm-size=1g"}}},
    {"uverbs device denied",
     [](Fabricated& m) { m.unopened["/dev/infiniband/uverbs0"] = "Permission denied"; },
     {{{"devices", "mlx5_0"}, kFail, ""}}},
    {"GPU's device not in the container",
     [](Fabricated& m) { m.files.erase("/dev/nvidia1"); },
     {{{"devices", kGpu1}, kFail, ""}}},
    {"driver's device denied by the control group",
     [](Fabricated& m) { m.unopened["/dev/nvidia-uvm"] = "Operation not permitted"; },
     {{{"devices", "machine"}, kFail, ""}}},
    {"control group used up",
     [](Fabricated& m) {
       m.replace("/sys/fs/cgroup/user.slice/rdma.max", "mlx5_0 hca_handle=max", "mlx5_0 hca_handle=2");
     },
     {{{"cgroup", "mlx5_0"}, kFail, ""}}},
    {"control group limits",
     [](Fabricated& m) {
       m.replace("/sys/fs/cgroup/user.slice/rdma.max", "mlx5_1 hca_handle=max hca_object=max",
                 "mlx5_1 hca_handle=max hca_object=2000");
     },
     {{{"cgroup", "mlx5_1"}, kWarn, ""}}},
    {"control group around it limits",
     [](Fabricated& m) { set(m, "/sys/fs/cgroup/rdma.max", "mlx5_0 hca_handle=64 hca_object=max"); },
     {{{"cgroup", "mlx5_0"}, kWarn, ""}}},
    {"control group not to be seen",
     [](Fabricated& m) { set(m, "/proc/self/cgroup", "0::/../elsewhere"); },
     {{{"cgroup", "machine"}, kUnknown, ""}},
     {{"cgroup", "mlx5_0"}, {"cgroup", "mlx5_1"}}},
    {"uverbs device unknown",
     [](Fabricated& m) { m.remove_all(pci(kNic1, "infiniband_verbs")); },
     {{{"devices", "mlx5_1"}, kUnknown, ""}}},
    {"control group unknown",
     [](Fabricated& m) { m.files.erase("/proc/self/cgroup"); },
     {{{"cgroup", "machine"}, kUnknown, ""}},
     {{"cgroup", "mlx5_0"}, {"cgroup", "mlx5_1"}}},
    {"status unreadable", [](Fabricated& m) { m.files.erase(kStatus); },
     joined({{{{"capabilities", "machine"}, kUnknown, ""}}, both("affinity", kGpu0, kGpu1, kUnknown)})},
    {"huge pages unreadable",
     [](Fabricated& m) { m.files.erase("/proc/meminfo"); },
     {{{"huge-pages", "machine"}, kUnknown, ""}}},
};

}  // namespace

const std::vector<Fault>& faults() {
  static const std::vector<Fault> all = [] {
    std::vector<Fault> joined_faults;
    for (const auto& part : {kGpuFaults, kPortFaults, kQualityFaults, kPcieFaults, kSystemFaults})
      joined_faults.insert(joined_faults.end(), part.begin(), part.end());
    return joined_faults;
  }();
  return all;
}

void make_infiniband(Fabricated& machine) {
  for (const char* name : {"mlx5_0", "mlx5_1"}) {
    machine.remove_all(port(name, "gid_attrs"));
    set(machine, port(name, "link_layer"), "InfiniBand");
    set(machine, port(name, "lid"), "0x5");
  }
  machine.remove_all(pci(kNic0, "net"));
  machine.remove_all(pci(kNic1, "net"));
  machine.programs.erase("mlnx_qos -i eth0");
  machine.programs.erase("mlnx_qos -i eth1");
}

}  // namespace gdx::doctor
