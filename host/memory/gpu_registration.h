// Registration of GPU memory with an HCA. The choice is a table over named facts; each way that fails becomes
// a fact, and the table is read again.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/descriptor.h"
#include "base/result.h"
#include "driver-shim/cuda/driver.h"
#include "host/hca/handles.h"
#include "host/hca/hca.h"
#include "proto/path_class.h"

namespace gdx {

inline constexpr char kGpuRegistrationVariable[] = "GDX_GPU_REGISTRATION";

enum class PointerKind {
  kHost,     // memory that the CPU may access, pinned by CUDA or not
  kDevice,   // cudaMalloc, cuMemCreate, stream-ordered pools
  kManaged,  // migrates between the two
};
enum class RegistrationChoice { kAuto, kDmabuf, kPeermem };  // "auto", "dmabuf", "peermem"
enum class RegistrationWay {
  kHostPages,   // ibv_reg_mr, pages of the host
  kDataDirect,  // as kDmabuf, of PCIe pages, which the HCA reads by a function beside the GPU
  kDmabuf,      // cuMemGetHandleForAddressRange and ibv_reg_dmabuf_mr
  kPeermem,     // ibv_reg_mr, whose pages the module nvidia_peermem supplies
  kRefused,
};

// Order in which an HCA's writes to a GPU's memory become visible to its running kernel.
enum class WriteOrder : std::uint8_t {
  kKept,
  kBelowOwner,  // GPU_DIRECT_RDMA_WRITES_ORDERING promises none
  kTwoWays,     // data may come by PCIe, and its announcement by C2C
};
// Returns the order of writes on `path`, that between GPU and HCA; nullopt: unknown. The attribute describes
// one way only, so it does not cover C2C. Sources: GPUDirect RDMA guide, "Synchronization and Memory
// Ordering"; NCCL src/graph/paths.cc, ncclTopoNeedFlush. NCCL flushes over C2C where GPU and NIC share a PCIe
// switch.
[[nodiscard]] constexpr WriteOrder write_order(bool owner_or_above, bool over_c2c,
                                               std::optional<PathClass> path) {
  if (!owner_or_above) return WriteOrder::kBelowOwner;
  const bool beside = !path || *path <= PathClass::kPxb;
  return over_c2c && beside ? WriteOrder::kTwoWays : WriteOrder::kKept;
}
// Returns the obstacle in words, for memory that the HCA writes.
[[nodiscard]] const char* write_order_text(WriteOrder order);

struct RegistrationFacts {
  PointerKind pointer = PointerKind::kHost;
  bool gpu_exports_dmabuf = false;
  bool hca_imports_dmabuf = false;
  bool peermem_loaded = false;
  bool hca_has_data_direct = false;
  WriteOrder write_order = WriteOrder::kKept;
  bool hca_writes = false;          // the HCA may write what is registered
  bool data_direct_failed = false;  // tried, in vain
  bool dmabuf_failed = false;
  bool peermem_failed = false;
  RegistrationChoice choice = RegistrationChoice::kAuto;  // choice of a way for device memory
};

// Data Direct is for memory that the HCA only reads. Its writes would come on a way of their own, and so
// pass, or fall behind, those to queues and signals, which announce them. Source: cuda.h 13.0,
// cuFlushGPUDirectRDMAWrites: ways of one GPU are separate ordering domains.
[[nodiscard]] constexpr RegistrationWay decide_registration(const RegistrationFacts& facts) {
  switch (facts.pointer) {
    case PointerKind::kHost: return RegistrationWay::kHostPages;
    case PointerKind::kManaged: return RegistrationWay::kRefused;
    case PointerKind::kDevice: break;
  }
  if (facts.write_order != WriteOrder::kKept && facts.hca_writes) return RegistrationWay::kRefused;
  const bool data_direct =
      facts.gpu_exports_dmabuf && facts.hca_has_data_direct && !facts.hca_writes && !facts.data_direct_failed;
  if (data_direct && facts.choice == RegistrationChoice::kAuto) return RegistrationWay::kDataDirect;
  const bool dmabuf = facts.gpu_exports_dmabuf && facts.hca_imports_dmabuf && !facts.dmabuf_failed;
  const bool peermem = facts.peermem_loaded && !facts.peermem_failed;
  if (dmabuf && facts.choice != RegistrationChoice::kPeermem) return RegistrationWay::kDmabuf;
  if (peermem && facts.choice != RegistrationChoice::kDmabuf) return RegistrationWay::kPeermem;
  return RegistrationWay::kRefused;
}

// Part of the message where the GPU's driver refuses the HCA a dmabuf, and the remedy. It attaches an HCA
// only on a chipset that it knows, below a common switch, or in a virtual machine. Source:
// open-gpu-kernel-modules, nv-pci.c (nv_grdma_pci_topology_supported).
inline constexpr char kDmabufDetached[] = "ENOTSUPP";
inline constexpr char kTopologyFix[] =
    "options nvidia NVreg_GrdmaPciTopoCheckOverride=1 in /etc/modprobe.d/nvidia.conf, then update-initramfs "
    "-u "
    "and reboot";

// Returns the name of a way, such as "dmabuf" or "nvidia_peermem".
[[nodiscard]] const char* registration_name(RegistrationWay way);
// Returns the obstacles of untried ways, and their remedies; for facts that decide kRefused.
[[nodiscard]] std::string refusal_advice(const RegistrationFacts& facts);

// $GDX_GPU_REGISTRATION; kAuto without it. Errors: kInvalidArgument naming what it may be.
[[nodiscard]] Result<RegistrationChoice> registration_choice_from_environment();

// Returns whether the HCA's driver imports dmabufs. Probes it with an invalid descriptor. Threads: any.
[[nodiscard]] bool hca_imports_dmabuf(const Hca& hca);
// Returns whether nvidia_peermem, or its forerunner nv_peer_mem, is loaded. `modules` is the folder that
// lists the kernel's modules.
[[nodiscard]] bool peermem_loaded(const std::string& modules = "/sys/module");

struct PointerFacts {
  PointerKind kind = PointerKind::kHost;
  int gpu = 0;  // ordinal; of device memory
};
// Errors: kSystem with the driver's message. Threads: any.
[[nodiscard]] Result<PointerFacts> describe_pointer(const cuda::Driver& driver, const void* address);

// Returns the sysfs folder of the HCA's Data Direct function; empty without one. Errors: kUnsupported
// (libmlx5 before rdma-core 54), kSystem.
[[nodiscard]] Result<std::string> data_direct_path(const Hca& hca);

// The facts of this HCA, this GPU and this machine. Errors: as registration_choice_from_environment,
// Gpu::open.
[[nodiscard]] Result<RegistrationFacts> read_registration_facts(const Hca& hca, const PointerFacts& pointer);

// Verbs that register memory. They are arguments, so that a test can stand in for an HCA that takes dmabufs.
struct RegistrationVerbs {
  ibv_mr* (*reg_mr)(ibv_pd* pd, void* address, std::size_t bytes, int access);
  ibv_mr* (*reg_dmabuf_mr)(ibv_pd* pd, std::uint64_t offset, std::size_t bytes, std::uint64_t iova,
                           int descriptor, int access);
  // mlx5dv_reg_dmabuf_mr with MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT; null in libmlx5 before rdma-core 54.
  ibv_mr* (*reg_data_direct_mr)(ibv_pd* pd, std::uint64_t offset, std::size_t bytes, std::uint64_t iova,
                                int descriptor, int access);
  mlx5dv_devx_umem* (*reg_umem)(ibv_context* context, void* address, std::size_t bytes, std::uint32_t access);
  mlx5dv_devx_umem* (*reg_dmabuf_umem)(ibv_context* context, std::uint64_t offset, std::size_t bytes,
                                       int descriptor, std::uint32_t access);
};
[[nodiscard]] const RegistrationVerbs& hca_verbs();

struct GpuRegion {
  void* address;
  std::size_t bytes;
  int access;  // ibv_access_flags
  int gpu;     // ordinal
};

struct GpuRegistration {
  ibv_mr* mr;  // the caller deregisters it
  RegistrationWay way;
};

// Registers device memory by the first way that `facts` allow and that works. Logged once per way. Errors:
// kUnsupported with the reason of every way and what to do; kNoMemory; as Gpu::open.
[[nodiscard]] Result<GpuRegistration> register_gpu_region(const RegistrationVerbs& verbs, const Hca& hca,
                                                          const GpuRegion& region, RegistrationFacts facts);

// A region as a dmabuf, which has whole pages: the region begins within the first of them.
struct SharedRegion {
  Descriptor dmabuf;
  std::uint64_t offset;
};
// Exports device memory for gdxd to register. Errors: kUnsupported with the reason and what to do; those of
// Gpu::export_dmabuf.
[[nodiscard]] Result<SharedRegion> share_gpu_region(const Hca& hca, const GpuRegion& region,
                                                    const RegistrationFacts& facts);

struct GpuUmem {
  UmemHandle umem;
  RegistrationWay way;
};

// Registers device memory of queues, in which DevX commands place rings and records by the umem's number and
// an offset. Errors: those of register_gpu_region.
[[nodiscard]] Result<GpuUmem> register_gpu_umem(const RegistrationVerbs& verbs, const Hca& hca,
                                                const GpuRegion& region, RegistrationFacts facts);

}  // namespace gdx
