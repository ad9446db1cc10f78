#include "host/memory/gpu_registration.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "base/descriptor.h"
#include "base/environment.h"
#include "base/log.h"
#include "base/page_size.h"
#include "host/gpu/gpu.h"
#include "host/topo/topology.h"

namespace gdx {
namespace {

constexpr int kNoDescriptor = -1;
constexpr int kLinuxNotSupported = 524;  // ENOTSUPP of linux/errno.h, which programs are not to see

ibv_mr* reg_mr(ibv_pd* pd, void* address, std::size_t bytes, int access) {
  return ibv_reg_mr(pd, address, bytes, access);  // a macro
}

// In pages of the host and no larger: those bound how an object in the umem must be aligned. Queues lie on
// pages of the host. Source: Linux, drivers/infiniband/hw/mlx5/devx.c.
mlx5dv_devx_umem_in umem_in_host_pages(void* address, std::size_t bytes, std::uint32_t access) {
  mlx5dv_devx_umem_in in{};
  in.addr = address;
  in.size = bytes;
  in.access = access;
  in.pgsz_bitmap = page_bytes();
  return in;
}

mlx5dv_devx_umem* reg_umem(ibv_context* context, void* address, std::size_t bytes, std::uint32_t access) {
  mlx5dv_devx_umem_in in = umem_in_host_pages(address, bytes, access);
  return mlx5dv_devx_umem_reg_ex(context, &in);
}

mlx5dv_devx_umem* reg_dmabuf_umem(ibv_context* context, std::uint64_t offset, std::size_t bytes,
                                  int descriptor, std::uint32_t access) {
  mlx5dv_devx_umem_in in = umem_in_host_pages(reinterpret_cast<void*>(offset), bytes, access);
  in.comp_mask = MLX5DV_UMEM_MASK_DMABUF;
  in.dmabuf_fd = descriptor;
  return mlx5dv_devx_umem_reg_ex(context, &in);
}

// Says once per process which way was taken.
void log_once(const char* what, const Hca& hca, RegistrationWay way, std::array<std::atomic<bool>, 4>& said) {
  if (said[static_cast<std::size_t>(way)].exchange(true)) return;
  log::info("{} registered with HCA {} by {}", what, hca.name(), registration_name(way));
}

Result<SharedRegion> share(const GpuRegion& region) {
  const auto gpu = GDX_TRY(Gpu::open(region.gpu));
  const auto address = reinterpret_cast<std::uintptr_t>(region.address);
  const std::uintptr_t first = address / page_bytes() * page_bytes();
  const std::uintptr_t end = (address + region.bytes + page_bytes() - 1) / page_bytes() * page_bytes();
  const auto exported = GDX_TRY(gpu.export_dmabuf(first, end - first));
  return SharedRegion{Descriptor(exported), address - first};
}

tl::unexpected<Error> refused(const Hca& hca, RegistrationWay way, int error) {
  const Status status = error == ENOMEM ? Status::kNoMemory : Status::kUnsupported;
  if (way == RegistrationWay::kDmabuf && error == kLinuxNotSupported) {
    return fail(status, fmt::format("the GPU's driver does not attach HCA {} ({}); see dmesg: {}", hca.name(),
                                    kDmabufDetached, kTopologyFix));
  }
  const char* const text = std::strerror(error);
  return fail(status, way == RegistrationWay::kDmabuf
                          ? fmt::format("HCA {} does not take it: {}", hca.name(), text)
                          : fmt::format("HCA {} gets no pages from it: {}; see dmesg", hca.name(), text));
}

// Makes what `by_dmabuf(shared)` or `by_address()` return, by the first way that `facts` allow and that
// works. They return null with errno where they fail. The HCA's driver holds its own reference to a dmabuf.
template <typename ByDmabuf, typename ByAddress>
auto register_by_table(const Hca& hca, const GpuRegion& region, RegistrationFacts facts, ByDmabuf by_dmabuf,
                       ByAddress by_address) -> Result<std::pair<decltype(by_address()), RegistrationWay>> {
  using Made = decltype(by_address());
  const auto attempt = [&](RegistrationWay way) -> Result<Made> {
    Made made = nullptr;
    if (way == RegistrationWay::kDmabuf) {
      const auto shared = GDX_TRY(share(region));
      made = by_dmabuf(shared);
      if (made == nullptr) return refused(hca, way, errno);
    } else {
      made = by_address();
      if (made == nullptr) return refused(hca, way, errno);
    }
    return made;
  };
  std::vector<std::string> reasons;
  facts.hca_writes =
      (region.access & (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) != 0;
  for (;;) {
    const RegistrationWay way = decide_registration(facts);
    if (way != RegistrationWay::kDmabuf && way != RegistrationWay::kPeermem) break;
    const auto made = attempt(way);
    if (made) return std::pair{*made, way};
    if (made.error().status == Status::kNoMemory) return tl::unexpected(made.error());
    reasons.push_back(fmt::format("{}: {}", registration_name(way), made.error().message));
    (way == RegistrationWay::kDmabuf ? facts.dmabuf_failed : facts.peermem_failed) = true;
  }
  if (auto advice = refusal_advice(facts); !advice.empty()) reasons.push_back(std::move(advice));
  return fail(Status::kUnsupported,
              fmt::format("HCA {} cannot register {} bytes of GPU memory at {}: {}", hca.name(), region.bytes,
                          region.address, fmt::join(reasons, "; ")));
}

}  // namespace

const RegistrationVerbs& hca_verbs() {
  static const RegistrationVerbs verbs{reg_mr, ibv_reg_dmabuf_mr, reg_umem, reg_dmabuf_umem};
  return verbs;
}

const char* registration_name(RegistrationWay way) {
  switch (way) {
    case RegistrationWay::kHostPages: return "host pages";
    case RegistrationWay::kDmabuf: return "dmabuf";
    case RegistrationWay::kPeermem: return "nvidia_peermem";
    case RegistrationWay::kRefused: return "no way";
  }
  return "no way";
}

const char* write_order_text(WriteOrder order) {
  switch (order) {
    case WriteOrder::kKept: return "GPU_DIRECT_RDMA_WRITES_ORDERING at least OWNER, and one way";
    case WriteOrder::kBelowOwner: return "GPU_DIRECT_RDMA_WRITES_ORDERING below OWNER";
    case WriteOrder::kTwoWays: return "it is joined to the processor by C2C, and to the HCA by a PCIe switch";
  }
  return "unknown";
}

std::string refusal_advice(const RegistrationFacts& facts) {
  if (facts.pointer == PointerKind::kManaged) {
    return "managed memory migrates, so no HCA can hold it: use cudaMalloc";
  }
  if (facts.write_order != WriteOrder::kKept && facts.hca_writes) {
    return fmt::format(
        "this GPU does not order the HCA's writes for a running kernel ({}): keep queues, and memory that "
        "the "
        "HCA writes, in host memory; register what it only reads without write access",
        write_order_text(facts.write_order));
  }
  std::vector<std::string> advice;
  if (facts.choice == RegistrationChoice::kPeermem) {
    advice.push_back(fmt::format("dmabuf: excluded by ${}", kGpuRegistrationVariable));
  } else if (!facts.gpu_exports_dmabuf) {
    advice.emplace_back(
        "dmabuf: the GPU exports none: install the open kernel modules of CUDA 11.7 or later");
  } else if (!facts.hca_imports_dmabuf) {
    advice.emplace_back("dmabuf: the HCA takes none: use Linux 5.12 or later and its mlx5_ib");
  }
  if (facts.choice == RegistrationChoice::kDmabuf) {
    advice.push_back(fmt::format("nvidia_peermem: excluded by ${}", kGpuRegistrationVariable));
  } else if (!facts.peermem_loaded) {
    advice.emplace_back(
        "nvidia_peermem: not loaded: modprobe nvidia_peermem, which needs MLNX_OFED's peer-memory calls");
  }
  return fmt::format("{}", fmt::join(advice, "; "));
}

Result<RegistrationChoice> registration_choice_from_environment() {
  return choice_from_environment<RegistrationChoice>(kGpuRegistrationVariable,
                                                     {{"auto", RegistrationChoice::kAuto},
                                                      {"dmabuf", RegistrationChoice::kDmabuf},
                                                      {"peermem", RegistrationChoice::kPeermem}});
}

// Linux looks at the descriptor only if the device's driver takes dmabufs, and then finds a bad one.
bool hca_imports_dmabuf(const Hca& hca) {
  ibv_mr* const mr = ibv_reg_dmabuf_mr(hca.pd(), 0, page_bytes(), 0, kNoDescriptor, IBV_ACCESS_LOCAL_WRITE);
  if (mr == nullptr) return errno == EBADF;
  ibv_dereg_mr(mr);
  return false;
}

bool peermem_loaded(const std::string& modules) {
  std::error_code ignored;
  return std::filesystem::exists(modules + "/nvidia_peermem", ignored) ||
         std::filesystem::exists(modules + "/nv_peer_mem", ignored);
}

Result<PointerFacts> describe_pointer(const cuda::Driver& driver, const void* address) {
  unsigned type = 0;
  unsigned managed = 0;
  int gpu = 0;
  std::array<CUpointer_attribute, 3> attributes{
      CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  std::array<void*, 3> values{&type, &managed, &gpu};
  const auto ask = [&] {
    return driver.call.pointer_get_attributes(static_cast<unsigned>(attributes.size()), attributes.data(),
                                              values.data(), reinterpret_cast<std::uintptr_t>(address));
  };
  CUresult result = ask();
  if (result == CUDA_ERROR_INVALID_CONTEXT) {
    // This thread has none. Any will do, since all of a process share its addresses.
    const auto any = GDX_TRY(Gpu::open());
    result = any.run(ask);
  }
  if (result != CUDA_SUCCESS) {
    return tl::unexpected(driver.error(result, fmt::format("cannot tell whose memory is at {}", address)));
  }
  if (managed != 0) return PointerFacts{PointerKind::kManaged, gpu};
  return PointerFacts{type == CU_MEMORYTYPE_DEVICE ? PointerKind::kDevice : PointerKind::kHost, gpu};
}

Result<RegistrationFacts> read_registration_facts(const Hca& hca, const PointerFacts& pointer) {
  const auto choice = GDX_TRY(registration_choice_from_environment());
  const auto gpu = GDX_TRY(Gpu::open(pointer.gpu));
  RegistrationFacts facts;
  facts.pointer = pointer.kind;
  facts.gpu_exports_dmabuf = gpu.exports_dmabuf();
  // gdxd answers for its HCA when it is asked. An address of this process is none of gdxd's.
  facts.hca_imports_dmabuf = hca.daemon() || hca_imports_dmabuf(hca);
  facts.peermem_loaded = !hca.daemon() && peermem_loaded();
  // The software HCA writes by the driver's copies, of which the attribute says nothing.
  if (!hca.is_software()) {
    const bool over_c2c = gpu.has_host_atomics();  // PCIe has not all of them
    const auto paths =
        over_c2c ? paths_to(this_machine(), hca.name(), {gpu.pci_bus_id()}) : std::vector<PathClass>();
    facts.write_order = write_order(gpu.orders_rdma_writes(), over_c2c,
                                    paths.empty() ? std::nullopt : std::optional(paths.front()));
  }
  facts.hca_writes = true;
  facts.choice = choice;
  return facts;
}

Result<GpuRegistration> register_gpu_region(const RegistrationVerbs& verbs, const Hca& hca,
                                            const GpuRegion& region, RegistrationFacts facts) {
  const auto by_dmabuf = [&](const SharedRegion& shared) {
    return verbs.reg_dmabuf_mr(hca.pd(), shared.offset, region.bytes,
                               reinterpret_cast<std::uintptr_t>(region.address), shared.dmabuf.value(),
                               region.access);
  };
  const auto by_address = [&] { return verbs.reg_mr(hca.pd(), region.address, region.bytes, region.access); };
  const auto made = GDX_TRY(register_by_table(hca, region, facts, by_dmabuf, by_address));
  static std::array<std::atomic<bool>, 4> said{};
  log_once("GPU memory is", hca, made.second, said);
  return GpuRegistration{made.first, made.second};
}

Result<SharedRegion> share_gpu_region(const Hca& hca, const GpuRegion& region,
                                      const RegistrationFacts& facts) {
  if (decide_registration(facts) == RegistrationWay::kDmabuf) return share(region);
  return fail(Status::kUnsupported,
              fmt::format("gdxd cannot register {} bytes of GPU memory at {} with HCA {}: {}", region.bytes,
                          region.address, hca.name(), refusal_advice(facts)));
}

Result<GpuUmem> register_gpu_umem(const RegistrationVerbs& verbs, const Hca& hca, const GpuRegion& region,
                                  RegistrationFacts facts) {
  const auto access = static_cast<std::uint32_t>(region.access);
  const auto by_dmabuf = [&](const SharedRegion& shared) {
    return verbs.reg_dmabuf_umem(hca.context(), shared.offset, region.bytes, shared.dmabuf.value(), access);
  };
  const auto by_address = [&] { return verbs.reg_umem(hca.context(), region.address, region.bytes, access); };
  const auto made = GDX_TRY(register_by_table(hca, region, facts, by_dmabuf, by_address));
  static std::array<std::atomic<bool>, 4> said{};
  log_once("queues in GPU memory are", hca, made.second, said);
  return GpuUmem{UmemHandle(made.first), made.second};
}

}  // namespace gdx
