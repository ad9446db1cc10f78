// A GPU as the host side sees it, through its primary context, which the CUDA runtime uses too: what needs
// none, such as its name, makes none.
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

// Host pages that kernels of one GPU may load from and store to, at the host's own addresses, until the last
// mapping of them goes; the pages must live as long.
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

// Threads: any.
class Gpu {
 public:
  // Errors: as cuda::driver(); kNotFound when there is no GPU of that number; kSystem.
  [[nodiscard]] static Result<Gpu> open(int ordinal = 0);
  // How many there are. Errors: as cuda::driver(), kSystem.
  [[nodiscard]] static Result<int> count();
  // The PCI bus ids of those of which this process holds the context, as one does that maps pages or
  // allocates.
  [[nodiscard]] static std::vector<std::string> in_use();

  [[nodiscard]] int ordinal() const;
  [[nodiscard]] const std::string& name() const;
  [[nodiscard]] const std::string& pci_bus_id() const;  // "0000:3B:00.0"
  [[nodiscard]] int compute_capability() const;         // 90 for sm_90
  [[nodiscard]] bool exports_dmabuf() const;
  [[nodiscard]] const cuda::Driver& driver() const;

  // Makes `call` with this GPU's context current on this thread; returns what it returns, or why it could
  // not.
  CUresult run(const std::function<CUresult()>& call) const;

  // A dmabuf of `bytes` of this GPU's memory at `address`, both multiples of kHostPageBytes: a descriptor
  // that the caller closes. Errors: kUnsupported; kSystem with what the driver said.
  [[nodiscard]] Result<int> export_dmabuf(std::uintptr_t address, std::size_t bytes) const;

  // Maps the whole pages that hold [address, address + bytes). The same pages mapped again are shared.
  // Errors: kInvalidArgument (not mapped in this process), kUnsupported (the GPU would reach them at another
  // address), kNoMemory, kSystem (a forced way that the pages forbid) with what the driver said and what to
  // do.
  [[nodiscard]] Result<std::shared_ptr<GpuMapping>> map(void* address, std::size_t bytes,
                                                        MappingChoice choice) const;
  // The same with $GDX_GPU_MAPPING's choice.
  [[nodiscard]] Result<std::shared_ptr<GpuMapping>> map(void* address, std::size_t bytes) const;

 private:
  struct Context;
  struct Registry;
  class Mapping;
  explicit Gpu(std::shared_ptr<Context> context) : context_(std::move(context)) {}
  std::shared_ptr<Context> context_;
};

}  // namespace gdx
