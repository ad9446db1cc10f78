#include "host/memory/gpu_registration.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
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

// Finds a function of libmlx5 that older ones lack; null in those.
template <typename Function>
Function find_verb(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}

using RegDmabufMr = ibv_mr* (*)(ibv_pd*, std::uint64_t, std::size_t, std::uint64_t, int, int, int);
RegDmabufMr reg_dmabuf_mr_of_mlx5() {
  static const auto found = find_verb<RegDmabufMr>("mlx5dv_reg_dmabuf_mr");
  return found;
}

ibv_mr* reg_data_direct_mr(ibv_pd* pd, std::uint64_t offset, std::size_t bytes, std::uint64_t iova,
                           int descriptor, int access) {
  constexpr int kDataDirect = 1;  // MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT
  return reg_dmabuf_mr_of_mlx5()(pd, offset, bytes, iova, descriptor, access, kDataDirect);
}

using SaidOfWays = std::array<std::atomic<bool>, static_cast<std::size_t>(RegistrationWay::kRefused)>;

// Says once per process which way was taken.
void log_once(const char* what, const Hca& hca, RegistrationWay way, SaidOfWays& said) {
  if (said[static_cast<std::size_t>(way)].exchange(true)) return;
  log::info("{} registered with HCA {} by {}", what, hca.name(), registration_name(way));
}

Result<SharedRegion> share(const GpuRegion& region, DmabufPages pages = DmabufPages::kDriversChoice) {
  const auto gpu = GDX_TRY(Gpu::open(region.gpu));
  const auto address = reinterpret_cast<std::uintptr_t>(region.address);
  const std::uintptr_t first = address / page_bytes() * page_bytes();
  const std::uintptr_t end = (address + region.bytes + page_bytes() - 1) / page_bytes() * page_bytes();
  const auto exported = GDX_TRY(gpu.export_dmabuf(first, end - first, pages));
  return SharedRegion{Descriptor(exported), address - first};
}

// Returns what to do where the driver keeps this memory from HCAs, as on Grace all that was not made for
// them; else nothing. Drivers that do not know the attribute keep none.
std::string allocation_advice(const GpuRegion& region) {
  const auto gpu = Gpu::open(region.gpu);
  if (!gpu) return {};
  unsigned capable = 0;
  void* value = &capable;
  CUpointer_attribute asked = CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE;
  const CUresult result = gpu->run([&] {
    return gpu->driver().call.pointer_get_attributes(1, &asked, &value,
                                                     reinterpret_cast<std::uintptr_t>(region.address));
  });
  if (result != CUDA_SUCCESS || capable != 0) return {};
  return "the driver gives this memory to no HCA: make it by cuMemCreate with gpuDirectRDMACapable = 1";
}

tl::unexpected<Error> refused(const Hca& hca, RegistrationWay way, int error) {
  const Status status = error == ENOMEM ? Status::kNoMemory : Status::kUnsupported;
  if (way == RegistrationWay::kDmabuf && error == kLinuxNotSupported) {
    return fail(status, fmt::format("the GPU's driver does not attach HCA {} ({}); see dmesg: {}", hca.name(),
                                    kDmabufDetached, kTopologyFix));
  }
  const char* const text = std::strerror(error);
  return fail(status, way == RegistrationWay::kPeermem
                          ? fmt::format("HCA {} gets no pages from it: {}; see dmesg", hca.name(), text)
                          : fmt::format("HCA {} does not take it: {}", hca.name(), text));
}

// Makes what `by_dmabuf(shared, way)` or `by_address()` return, by the first way that `facts` allow and that
// works. They return null with errno where they fail. The HCA's driver holds its own reference to a dmabuf.
template <typename ByDmabuf, typename ByAddress>
auto register_by_table(const Hca& hca, const GpuRegion& region, RegistrationFacts facts, ByDmabuf by_dmabuf,
                       ByAddress by_address) -> Result<std::pair<decltype(by_address()), RegistrationWay>> {
  using Made = decltype(by_address());
  const auto attempt = [&](RegistrationWay way) -> Result<Made> {
    std::optional<SharedRegion> shared;
    if (way == RegistrationWay::kDataDirect) shared = GDX_TRY(share(region, DmabufPages::kPcie));
    if (way == RegistrationWay::kDmabuf) shared = GDX_TRY(share(region));
    const Made made = shared ? by_dmabuf(*shared, way) : by_address();
    if (made == nullptr) return refused(hca, way, errno);
    return made;
  };
  std::vector<std::string> reasons;
  facts.hca_writes =
      (region.access & (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) != 0;
  for (;;) {
    const RegistrationWay way = decide_registration(facts);
    if (way == RegistrationWay::kHostPages || way == RegistrationWay::kRefused) break;
    const auto made = attempt(way);
    if (made) return std::pair{*made, way};
    if (made.error().status == Status::kNoMemory) return tl::unexpected(made.error());
    reasons.push_back(fmt::format("{}: {}", registration_name(way), made.error().message));
    if (way == RegistrationWay::kDataDirect) facts.data_direct_failed = true;
    if (way == RegistrationWay::kDmabuf) facts.dmabuf_failed = true;
    if (way == RegistrationWay::kPeermem) facts.peermem_failed = true;
  }
  for (std::string& advice : std::array{refusal_advice(facts), allocation_advice(region)}) {
    if (!advice.empty()) reasons.push_back(std::move(advice));
  }
  return fail(Status::kUnsupported,
              fmt::format("HCA {} cannot register {} bytes of GPU memory at {}: {}", hca.name(), region.bytes,
                          region.address, fmt::join(reasons, "; ")));
}

}  // namespace

const RegistrationVerbs& hca_verbs() {
  static const RegistrationVerbs verbs{reg_mr, ibv_reg_dmabuf_mr,
                                       reg_dmabuf_mr_of_mlx5() != nullptr ? reg_data_direct_mr : nullptr,
                                       reg_umem, reg_dmabuf_umem};
  return verbs;
}

const char* registration_name(RegistrationWay way) {
  switch (way) {
    case RegistrationWay::kHostPages: return "host pages";
    case RegistrationWay::kDataDirect: return "dmabuf and Data Direct";
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

Result<std::string> data_direct_path(const Hca& hca) {
  constexpr char kName[] = "mlx5dv_get_data_direct_sysfs_path";
  const auto ask = find_verb<int (*)(ibv_context*, char*, std::size_t)>(kName);
  if (ask == nullptr) return fail(Status::kUnsupported, fmt::format("this libmlx5 has no {}", kName));
  std::array<char, PATH_MAX> path{};
  const int error = ask(hca.context(), path.data(), path.size());
  if (error == ENODEV) return std::string();
  if (error != 0) return fail(Status::kSystem, fmt::format("{}: {}", kName, std::strerror(error)));
  return std::string(path.data());
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
  facts.hca_has_data_direct = !hca.daemon() && hca_verbs().reg_data_direct_mr != nullptr &&
                              !data_direct_path(hca).value_or("").empty();
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
  const auto by_dmabuf = [&](const SharedRegion& shared, RegistrationWay way) {
    const auto verb = way == RegistrationWay::kDataDirect ? verbs.reg_data_direct_mr : verbs.reg_dmabuf_mr;
    return verb(hca.pd(), shared.offset, region.bytes, reinterpret_cast<std::uintptr_t>(region.address),
                shared.dmabuf.value(), region.access);
  };
  const auto by_address = [&] { return verbs.reg_mr(hca.pd(), region.address, region.bytes, region.access); };
  const auto made = GDX_TRY(register_by_table(hca, region, facts, by_dmabuf, by_address));
  static SaidOfWays said{};
  log_once("GPU memory is", hca, made.second, said);
  return GpuRegistration{made.first, made.second};
}

Result<SharedRegion> share_gpu_region(const Hca& hca, const GpuRegion& region,
                                      const RegistrationFacts& facts) {
  if (decide_registration(facts) != RegistrationWay::kDmabuf) {
    return fail(Status::kUnsupported,
                fmt::format("gdxd cannot register {} bytes of GPU memory at {} with HCA {}: {}", region.bytes,
                            region.address, hca.name(), refusal_advice(facts)));
  }
  auto shared = share(region);
  const std::string advice = shared ? "" : allocation_advice(region);
  if (!advice.empty()) shared.error().message += "; " + advice;
  return shared;
}

Result<GpuUmem> register_gpu_umem(const RegistrationVerbs& verbs, const Hca& hca, const GpuRegion& region,
                                  RegistrationFacts facts) {
  const auto access = static_cast<std::uint32_t>(region.access);
  facts.hca_has_data_direct = false;  // DevX has no verb for it
  const auto by_dmabuf = [&](const SharedRegion& shared, RegistrationWay /*way*/) {
    return verbs.reg_dmabuf_umem(hca.context(), shared.offset, region.bytes, shared.dmabuf.value(), access);
  };
  const auto by_address = [&] { return verbs.reg_umem(hca.context(), region.address, region.bytes, access); };
  const auto made = GDX_TRY(register_by_table(hca, region, facts, by_dmabuf, by_address));
  static SaidOfWays said{};
  log_once("queues in GPU memory are", hca, made.second, said);
  return GpuUmem{UmemHandle(made.first), made.second};
}

}  // namespace gdx
