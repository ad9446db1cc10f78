// GPUs, their driver, and how an HCA reaches their memory and they its doorbells.
#include <fmt/format.h>

#include <algorithm>

#include "host/gpu/relaxed_stores.h"
#include "host/programs/doctor/checks.h"
#include "host/topo/pci_sysfs.h"

namespace gdx::doctor {
namespace {

constexpr char kDriverVersion[] = "/proc/driver/nvidia/version";
constexpr char kKernelRelease[] = "/proc/sys/kernel/osrelease";
constexpr char kDmabufKernel[] = "6.1";
constexpr char kGdrcopyVersion[] = "2.5";

// Sources: nvshmem.md in the documentation of DeepEP; open-gpu-kernel-modules, nv-linux.h (NV_IS_SUSER).
constexpr char kMappingFix[] =
    "options nvidia NVreg_RegistryDwords=\"PeerMappingOverride=1;\" in /etc/modprobe.d/nvidia.conf, then "
    "update-initramfs -u and reboot; or CAP_SYS_ADMIN, of containers --cap-add=SYS_ADMIN";
constexpr char kNoGpuStep[] =
    "with a GPU: lspci -d 10de: shows it, or the container hides it; without one: gdx run -- PROGRAM, built "
    "for the CPU layer, as gdx demo is";
constexpr char kDmabufFix[] = "a newer kernel (6.1) and the open GPU driver";

std::string pair_name(const Pair& pair) { return fmt::format("{} with {}", pair.gpu, pair.hca.name); }

// Without peer-memory calls in the kernel, which MLNX_OFED brings, nvidia-peermem returns EINVAL as it loads.
// Source: open-gpu-kernel-modules, nvidia-peermem.c (NV_MLNX_IB_PEER_MEM_SYMBOLS_PRESENT).
std::string gpu_memory_fix(const Machine& machine) {
  const auto symbols = machine.read_all("/proc/kallsyms");
  if (symbols && symbols->find(" ib_register_peer_memory_client") == std::string::npos)
    return fmt::format(
        "{}: without MLNX_OFED's peer-memory calls in this kernel nvidia-peermem does not load", kDmabufFix);
  return fmt::format(
      "modprobe nvidia-peermem, and where it says Invalid argument build the GPU driver anew with "
      "MLNX_OFED installed; or {}",
      kDmabufFix);
}

Finding judge_gpu(const Machine& machine, const std::string& gpu, const Result<std::vector<GpuSeen>>& seen) {
  if (!seen && machine.exists(kDriverVersion))
    return {gpu, Verdict::kFail, "CUDA does not start", seen.error().message};
  if (!seen)
    return judge(gpu, machine.exists("/proc/sys") ? std::optional(false) : std::nullopt,
                 {"", "the NVIDIA driver is not loaded", "whether the NVIDIA driver is loaded is not known"},
                 fmt::format("{}: absent; {}", kDriverVersion, seen.error().message), "", Verdict::kFail);
  const bool shown = std::ranges::find(*seen, gpu, &GpuSeen::bus_id) != seen->end();
  return judge(gpu, shown, {"CUDA shows it", "CUDA does not show it to this process", ""},
               fmt::format("cuDeviceGetCount: {}", seen->size()));
}

std::vector<Finding> check_driver(const Machine& machine) {
  std::vector<std::string> gpus;
  for (const PciDevice& gpu : machine.topology.gpus) {
    if (gpu.runs_cuda) gpus.push_back(gpu.bus_id);
  }
  if (gpus.empty())
    return {judge("machine", machine.topology.pci_devices == 0 ? std::nullopt : std::optional(false),
                  {"", "no NVIDIA GPU", "no PCI device is to be seen"},
                  fmt::format("{}: {} devices", kPciDevices, machine.topology.pci_devices), kNoGpuStep,
                  Verdict::kFail)};
  const auto seen = machine.probes.gpus();
  return each(gpus, [&](const std::string& gpu) { return judge_gpu(machine, gpu, seen); });
}

// With CAP_SYS_ADMIN the driver maps without the key, so such a mapping proves nothing for others. Root in a
// container may lack it.
Finding judge_mapping(const Machine& machine, const Pair& pair, const Result<Refusal>& tried) {
  constexpr unsigned kSysAdmin = 21;  // linux/capability.h
  const std::string subject = pair_name(pair);
  const auto parameters = machine.read(kNvidiaParameters);
  const std::string registry = parameters ? field(*parameters, "RegistryDwords").value_or("") : "";
  const bool permitted = registry.find("PeerMappingOverride=1") != std::string::npos;
  const bool privileged = is_capable(machine, kSysAdmin).value_or(true);
  const std::string key = parameters ? fmt::format("{}: RegistryDwords: {}", kNvidiaParameters, registry)
                                     : machine.evidence(kNvidiaParameters);
  if (tried && !tried->empty())
    return {subject, Verdict::kFail, "a UAR page cannot be mapped", *tried + "; " + key, kMappingFix};
  if (parameters && !permitted && (!tried || privileged)) {
    return {subject, Verdict::kWarn,
            tried ? "a UAR page maps with CAP_SYS_ADMIN; the key that lets others is not set"
                  : "the driver lets no user map a UAR page",
            key, kMappingFix};
  }
  if (!tried)
    return {subject, Verdict::kUnknown, "no UAR page was mapped", tried.error().message + "; " + key};
  if (!parameters && privileged)
    return {subject, Verdict::kUnknown, "a UAR page maps with CAP_SYS_ADMIN; without is not known", key};
  return {subject, Verdict::kOk, "a UAR page was mapped", key};
}

std::vector<Finding> check_mapping(const Machine& machine) {
  return each(nearest_pairs(machine), [&](const Pair& pair) {
    return judge_mapping(machine, pair, machine.probes.map_uar(pair.hca.name, pair.gpu));
  });
}

// Do the GPU and the HCA of a pair both take part? Absent: not all could be asked.
struct Dmabuf {
  std::optional<bool> gpu;
  std::optional<bool> hca;
  std::string why;  // the attribute that could not be read
  [[nodiscard]] bool works() const { return gpu.value_or(false) && hca.value_or(false); }
};
Dmabuf ask_dmabuf(const Machine& machine, const Pair& pair) {
  Dmabuf told;
  const auto gpu = see_gpu(machine, pair.gpu);
  if (gpu) told.gpu = gpu->exports_dmabuf;
  if (!gpu) told.why = gpu.error().message;
  const auto imports = machine.probes.hca_imports_dmabuf(pair.hca.name);
  if (imports) told.hca = *imports;
  if (!imports) told.why = imports.error().message;
  return told;
}

std::vector<Finding> check_dmabuf(const Machine& machine) {
  std::vector<Finding> findings;
  const auto release = machine.read(kKernelRelease);
  for (const Pair& pair : nearest_pairs(machine)) {
    const std::string subject = pair_name(pair);
    const Dmabuf told = ask_dmabuf(machine, pair);
    if (told.gpu == false) {
      findings.push_back({subject, Verdict::kWarn, "the GPU exports no dmabuf",
                          "CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED: 0", kDmabufFix});
    } else if (told.hca == false) {
      findings.push_back(
          {subject, Verdict::kWarn, "the HCA takes no dmabuf",
           "ibv_reg_dmabuf_mr of descriptor -1 is not supported; " + machine.evidence(kKernelRelease),
           kDmabufFix});
    } else if (told.works()) {
      findings.push_back(
          {subject, Verdict::kOk, "dmabuf works", "ibv_reg_dmabuf_mr of descriptor -1: EBADF"});
    } else if (release && older(*release, kDmabufKernel)) {
      findings.push_back({subject, Verdict::kWarn, "the kernel is too old for dmabuf",
                          machine.evidence(kKernelRelease), kDmabufFix});
    } else {
      findings.push_back({subject, Verdict::kUnknown, "dmabuf was not tried", told.why});
    }
  }
  return findings;
}

// Source: NCCL net_ib/gdr.cc, NVSHMEM transport_ib_common.cpp.
std::vector<Finding> check_peermem(const Machine& machine) {
  if (nearest_pairs(machine).empty()) return {};
  constexpr char kModule[] = "/sys/module/nvidia_peermem";
  const bool loaded = machine.exists(kModule);
  for (const char* old : {"/sys/kernel/mm/memory_peers/nv_mem/version", "/sys/module/nv_peer_mem"}) {
    if (machine.exists(old)) {
      return {{"machine", Verdict::kWarn, "nv_peer_mem, nvidia_peermem's forerunner, is loaded",
               machine.exists(std::string(old) + "/version") ? machine.evidence(std::string(old) + "/version")
                                                             : std::string(old),
               "rmmod nv_peer_mem, then modprobe nvidia-peermem"}};
    }
  }
  if (loaded)
    return {{"machine", Verdict::kOk, "nvidia_peermem is loaded",
             machine.evidence(kModule + std::string("/version"))}};
  if (!machine.exists("/sys/module"))
    return {{"machine", Verdict::kUnknown, "modules cannot be listed", machine.evidence("/sys/module")}};
  for (const Pair& pair : nearest_pairs(machine)) {
    const Dmabuf told = ask_dmabuf(machine, pair);
    if (told.works()) continue;
    const bool known = told.gpu == false || told.hca == false;
    return {{"machine", known ? Verdict::kWarn : Verdict::kUnknown,
             known ? "nvidia_peermem is not loaded, and there is no dmabuf" : "nvidia_peermem is not loaded",
             std::string(kModule) + ": absent", gpu_memory_fix(machine)}};
  }
  return {{"machine", Verdict::kOk, "nvidia_peermem is not loaded: dmabuf serves",
           std::string(kModule) + ": absent"}};
}

// GPU memory, by each way there is: one must work, and dmabuf where both sides offer it.
Finding judge_gpu_page(const Machine& machine, const Pair& pair) {
  const std::string subject = pair_name(pair);
  const auto try_way = [&](RegistrationWay way) {
    return machine.probes.register_page(pair.hca.name, pair.gpu, way);
  };
  const auto dmabuf = try_way(RegistrationWay::kDmabuf);
  const auto peermem = try_way(RegistrationWay::kPeermem);
  const auto worked = [](const Result<Refusal>& tried) { return tried && tried->empty(); };
  const auto text = [&](const char* way, const Result<Refusal>& tried) {
    return fmt::format("{}: {}", way, worked(tried) ? "registered" : tried ? *tried : tried.error().message);
  };
  const std::string evidence = text("dmabuf", dmabuf) + "; " + text("nvidia_peermem", peermem);
  const bool detached = dmabuf && dmabuf->find(kDmabufDetached) != std::string::npos;
  if (!worked(dmabuf) && !worked(peermem)) {
    const bool tried = dmabuf && peermem;
    return {subject, tried ? Verdict::kFail : Verdict::kUnknown,
            tried ? "GPUDirect does not work: the HCA takes no GPU page" : "no GPU page was registered",
            evidence,
            !tried     ? ""
            : detached ? kTopologyFix
                       : gpu_memory_fix(machine)};
  }
  if (dmabuf && !dmabuf->empty() && ask_dmabuf(machine, pair).works())
    return {subject, Verdict::kWarn, "both sides offer dmabuf, and it does not work", evidence,
            detached ? kTopologyFix : ""};
  return {subject, Verdict::kOk, worked(dmabuf) ? "a GPU page registers by dmabuf" : "a GPU page registers",
          evidence};
}

std::vector<Finding> check_registration(const Machine& machine) {
  std::vector<Finding> findings;
  for (const HcaSeen& hca : mlx5_hcas(machine)) {
    const auto tried = machine.probes.register_page(hca.name, "", RegistrationWay::kHostPages);
    findings.push_back(
        judge(hca.name, tried,
              {"a host page registers", "a host page does not register", "no host page was registered"},
              "ibv_reg_mr"));
  }
  for (const Pair& pair : nearest_pairs(machine)) findings.push_back(judge_gpu_page(machine, pair));
  return findings;
}

// Hardware alone writes past the driver's copies, so a GPU without such an HCA is not asked.
std::vector<Finding> check_write_ordering(const Machine& machine) {
  return each(nearest_pairs(machine), [&](const Pair& pair) {
    const auto gpu = see_gpu(machine, pair.gpu);
    const WriteOrder order =
        gpu ? write_order(gpu->orders_writes, gpu->over_c2c, pair.path) : WriteOrder::kKept;
    return judge(
        pair.gpu, gpu ? std::optional(order == WriteOrder::kKept) : std::nullopt,
        {"a running kernel sees an HCA's writes in order", "gdx refuses GPU memory that the HCA writes here",
         "the order of an HCA's writes is not known"},
        gpu ? write_order_text(order) : gpu.error().message,
        "use queues, and memory that the HCA writes, in host memory");
  });
}

// Without it nothing is missing. Source: aws-ofi-nccl issue 1371.
std::vector<Finding> check_gdrcopy(const Machine& machine) {
  constexpr char kVersion[] = "/sys/module/gdrdrv/version";
  constexpr char kFix[] = "install GDRCopy 2.5 or later";
  if (nearest_pairs(machine).empty()) return {};
  const bool loaded = machine.exists("/sys/module/gdrdrv");
  if (loaded && !machine.exists("/dev/gdrdrv"))
    return {{"machine", Verdict::kWarn, "gdrdrv is loaded, and has no device", "/dev/gdrdrv: absent", kFix}};
  if (!loaded) return {{"machine", Verdict::kOk, "no GDRCopy: gdx needs none", "/sys/module/gdrdrv: absent"}};
  const auto version = machine.read(kVersion);
  return {judge("machine", version ? std::optional(!older(*version, kGdrcopyVersion)) : std::nullopt,
                {"GDRCopy is there", "GDRCopy is too old", "which GDRCopy is not known"},
                machine.evidence(kVersion), kFix)};
}

constexpr Check kGpuChecks[] = {
    {"gpu", "the PCI tree, /proc/driver/nvidia/version, the CUDA driver", check_driver},
    {"uar-mapping", "a UAR page mapped by cuMemHostRegister; /proc/driver/nvidia/params, CAP_SYS_ADMIN",
     check_mapping},
    {"dmabuf", "ibv_reg_dmabuf_mr of descriptor -1, the GPU's attribute, the kernel's release", check_dmabuf},
    {"peermem", "/sys/module/nvidia_peermem, nv_peer_mem, /sys/kernel/mm/memory_peers, /proc/kallsyms",
     check_peermem},
    {"registration", "a page of the host and of the GPU, registered by each way", check_registration},
    {"write-ordering", "the GPU's attributes GPU_DIRECT_RDMA_WRITES_ORDERING, HOST_NATIVE_ATOMIC_SUPPORTED",
     check_write_ordering},
    {"gdrcopy", "/dev/gdrdrv, /sys/module/gdrdrv/version", check_gdrcopy},
};

}  // namespace

std::span<const Check> gpu_checks() { return kGpuChecks; }

}  // namespace gdx::doctor
