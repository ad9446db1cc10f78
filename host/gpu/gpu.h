// A GPU for the host side, through its primary context, which the CUDA runtime uses too. Calls that need no
// context, such as for the name, make none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "driver-shim/cuda/driver.h"
#include "host/gpu/mapping_choice.h"

namespace gdx {

// Exit status of a program for a GPU on a machine that has none: "skipped", for test drivers.
inline constexpr int kExitNoGpu = 77;

// Returns whether the program has kernels that nvcc compiled. Such a program has none for the CPU layer.
[[nodiscard]] bool program_has_cuda_kernels();

// Host pages that kernels of a GPU may load from and store to, at the host's own addresses. Several GPUs may
// map the same pages. Valid until the last mapping of them ends; the pages must live as long.
class GpuMapping {
 public:
  virtual ~GpuMapping() = default;
  GpuMapping(const GpuMapping&) = delete;
  GpuMapping& operator=(const GpuMapping&) = delete;
  [[nodiscard]] MappingWay way() const { return way_; }

 protected:
  explicit GpuMapping(MappingWay way) : way_(way) {}

 private:
  MappingWay way_;
};

// Addresses of a dmabuf's pages. An HCA's verb takes one of the two kinds, and fails with ENOTSUPP for the
// other. Source: UCX pull request 11571.
enum class DmabufPages {
  kDriversChoice,  // on Grace those of C2C
  kPcie,           // pages of BAR1, for Data Direct
};

// Threads: any.
class Gpu {
 public:
  // Opens the GPU of that number. Errors: those of cuda::driver(); kNotFound when there is no GPU of that
  // number; kSystem.
  [[nodiscard]] static Result<Gpu> open(int ordinal = 0);
  // Opens the GPU of this thread's current CUDA context. Without a context it is GPU 0, the CUDA runtime's
  // default. Errors: kNotFound in a process without CUDA, which has neither loaded the driver nor kernels
  // that nvcc compiled; those of open().
  [[nodiscard]] static Result<Gpu> current();
  // Returns the number of GPUs. Errors: those of cuda::driver(), kSystem.
  [[nodiscard]] static Result<int> count();
  // Returns the PCI bus ids of GPUs whose context this process holds, because it maps pages or allocates.
  [[nodiscard]] static std::vector<std::string> in_use();

  [[nodiscard]] int ordinal() const;
  [[nodiscard]] const std::string& name() const;
  [[nodiscard]] const std::string& pci_bus_id() const;  // "0000:3B:00.0"
  [[nodiscard]] int compute_capability() const;         // 90 for sm_90
  [[nodiscard]] std::string cuda_version() const;       // "13.0": the newest that the driver runs
  [[nodiscard]] int most_mhz() const;                   // highest clock of its multiprocessors; 0: unknown
  [[nodiscard]] bool shared_by_mps() const;             // processes' kernels run beside one another
  [[nodiscard]] bool exports_dmabuf() const;
  // Returns whether cuMemCreate makes memory of this GPU that HCAs register and other processes map. On Grace
  // an HCA registers no other. False before CUDA 12.0, whose cuMemCreate did not heed CUDA_VISIBLE_DEVICES.
  // Sources: NCCL src/misc/cudawrap.cc, ncclIsCuMemSupported; torchcomms pull request 1354.
  [[nodiscard]] bool creates_rdma_memory() const;
  // Returns whether a running kernel reads an HCA's writes to this GPU's memory in the order of those writes.
  // False on GPUs up to Ampere. Source: NVIDIA's GPUDirect RDMA guide, "Synchronization and Memory Ordering".
  [[nodiscard]] bool orders_rdma_writes() const;
  // Returns whether this GPU's atomics on host memory are atomic with those of processors and other GPUs.
  // Over PCIe they are usually not. Source: CUDA C++ Programming Guide, "Atomic Functions".
  [[nodiscard]] bool has_host_atomics() const;
  [[nodiscard]] const cuda::Driver& driver() const;

  // Makes `call` with this GPU's context current on this thread. Returns its result, or the error of making
  // the context current.
  CUresult run(const std::function<CUresult()>& call) const;

  // Exports `bytes` of this GPU's memory at `address` as a dmabuf, both of whole pages of the host. The
  // caller closes the descriptor. Errors: kUnsupported; kSystem with the driver's message.
  [[nodiscard]] Result<int> export_dmabuf(std::uintptr_t address, std::size_t bytes,
                                          DmabufPages pages = DmabufPages::kDriversChoice) const;

  // Maps the whole pages that hold [address, address + bytes). Pages mapped again share one mapping.
  // Errors: kInvalidArgument (not mapped in this process), kUnsupported (the GPU would use another address),
  // kNoMemory. kSystem (a forced way that the pages forbid) with the driver's message and the remedy.
  [[nodiscard]] Result<std::shared_ptr<GpuMapping>> map(void* address, std::size_t bytes,
                                                        MappingChoice choice) const;
  // Maps with $GDX_GPU_MAPPING's choice. Errors: those of the other map().
  [[nodiscard]] Result<std::shared_ptr<GpuMapping>> map(void* address, std::size_t bytes) const;

 private:
  struct Context;
  struct Registry;
  class Mapping;
  explicit Gpu(std::shared_ptr<Context> context) : context_(std::move(context)) {}
  [[nodiscard]] Result<void> check_address(std::uintptr_t first) const;
  std::shared_ptr<Context> context_;
};

// Opens the GPU that a program is for. Errors: those of Gpu::open(). The message begins with "SKIPPED: "
// where the machine has no GPU or too old a driver.
[[nodiscard]] Result<Gpu> open_gpu_or_skip();
// Returns the exit status for such an error: kExitNoGpu, or 1 for a fault.
[[nodiscard]] int exit_status_without_gpu(const Error& error);

}  // namespace gdx
