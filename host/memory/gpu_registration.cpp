#include "host/memory/gpu_registration.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "base/descriptor.h"
#include "base/log.h"
#include "host/gpu/gpu.h"

namespace gdx {
namespace {

constexpr int kNoDescriptor = -1;

ibv_mr* reg_mr(ibv_pd* pd, void* address, std::size_t bytes, int access) {
  return ibv_reg_mr(pd, address, bytes, access);  // a macro
}

// Says once per process which way was taken.
void log_once(const Hca& hca, RegistrationWay way) {
  static std::array<std::atomic<bool>, 4> said{};
  if (said[static_cast<std::size_t>(way)].exchange(true)) return;
  log::info("GPU memory is registered with HCA {} by {}", hca.name(), registration_name(way));
}

// A dmabuf has whole pages; the region begins within the first of them, and so does its address as the HCA
// knows it.
Result<ibv_mr*> register_by_dmabuf(const RegistrationVerbs& verbs, const Hca& hca, const GpuRegion& region) {
  const auto gpu = Gpu::open(region.gpu);
  if (!gpu) return tl::unexpected(gpu.error());
  const auto address = reinterpret_cast<std::uintptr_t>(region.address);
  const std::uintptr_t first = address / kHostPageBytes * kHostPageBytes;
  const std::uintptr_t end = (address + region.bytes + kHostPageBytes - 1) / kHostPageBytes * kHostPageBytes;
  const auto exported = gpu->export_dmabuf(first, end - first);
  if (!exported) return tl::unexpected(exported.error());
  const Descriptor dmabuf(*exported);  // a registration holds its own reference
  ibv_mr* const mr =
      verbs.reg_dmabuf_mr(hca.pd(), address - first, region.bytes, address, dmabuf.value(), region.access);
  if (mr != nullptr) return mr;
  const int error = errno;
  return fail(error == ENOMEM ? Status::kNoMemory : Status::kUnsupported,
              fmt::format("HCA {} does not take it: {}", hca.name(), std::strerror(error)));
}

Result<ibv_mr*> register_by_peermem(const RegistrationVerbs& verbs, const Hca& hca, const GpuRegion& region) {
  ibv_mr* const mr = verbs.reg_mr(hca.pd(), region.address, region.bytes, region.access);
  if (mr != nullptr) return mr;
  const int error = errno;
  return fail(error == ENOMEM ? Status::kNoMemory : Status::kUnsupported,
              fmt::format("HCA {} gets no pages from it: {}; see dmesg", hca.name(), std::strerror(error)));
}

}  // namespace

const RegistrationVerbs& hca_verbs() {
  static const RegistrationVerbs verbs{reg_mr, ibv_reg_dmabuf_mr};
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

std::string refusal_advice(const RegistrationFacts& facts) {
  if (facts.pointer == PointerKind::kManaged) {
    return "managed memory migrates, so no HCA can hold it: use cudaMalloc";
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
    advice.emplace_back("nvidia_peermem: not loaded: modprobe nvidia_peermem");
  }
  return fmt::format("{}", fmt::join(advice, "; "));
}

Result<RegistrationChoice> registration_choice_from_environment() {
  const char* const text = std::getenv(kGpuRegistrationVariable);
  if (text == nullptr || std::string_view(text) == "auto") return RegistrationChoice::kAuto;
  if (std::string_view(text) == "dmabuf") return RegistrationChoice::kDmabuf;
  if (std::string_view(text) == "peermem") return RegistrationChoice::kPeermem;
  return fail(Status::kInvalidArgument,
              fmt::format("{} is '{}': use auto, dmabuf or peermem", kGpuRegistrationVariable, text));
}

// Linux looks at the descriptor only if the device's driver takes dmabufs, and then finds a bad one.
bool hca_imports_dmabuf(const Hca& hca) {
  ibv_mr* const mr = ibv_reg_dmabuf_mr(hca.pd(), 0, kHostPageBytes, 0, kNoDescriptor, IBV_ACCESS_LOCAL_WRITE);
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
    const auto any = Gpu::open();
    if (!any) return tl::unexpected(any.error());
    result = any->run(ask);
  }
  if (result != CUDA_SUCCESS) {
    return tl::unexpected(driver.error(result, fmt::format("cannot tell whose memory is at {}", address)));
  }
  if (managed != 0) return PointerFacts{PointerKind::kManaged, gpu};
  return PointerFacts{type == CU_MEMORYTYPE_DEVICE ? PointerKind::kDevice : PointerKind::kHost, gpu};
}

Result<RegistrationFacts> read_registration_facts(const Hca& hca, const PointerFacts& pointer) {
  const auto choice = registration_choice_from_environment();
  if (!choice) return tl::unexpected(choice.error());
  const auto gpu = Gpu::open(pointer.gpu);
  if (!gpu) return tl::unexpected(gpu.error());
  RegistrationFacts facts;
  facts.pointer = pointer.kind;
  facts.gpu_exports_dmabuf = gpu->exports_dmabuf();
  facts.hca_imports_dmabuf = hca_imports_dmabuf(hca);
  facts.peermem_loaded = peermem_loaded();
  facts.choice = *choice;
  return facts;
}

Result<GpuRegistration> register_gpu_region(const RegistrationVerbs& verbs, const Hca& hca,
                                            const GpuRegion& region, RegistrationFacts facts) {
  std::vector<std::string> reasons;
  for (;;) {
    const RegistrationWay way = decide_registration(facts);
    if (way != RegistrationWay::kDmabuf && way != RegistrationWay::kPeermem) break;
    const bool dmabuf = way == RegistrationWay::kDmabuf;
    const auto mr = dmabuf ? register_by_dmabuf(verbs, hca, region) : register_by_peermem(verbs, hca, region);
    if (mr) {
      log_once(hca, way);
      return GpuRegistration{*mr, way};
    }
    if (mr.error().status == Status::kNoMemory) return tl::unexpected(mr.error());
    reasons.push_back(fmt::format("{}: {}", registration_name(way), mr.error().message));
    (dmabuf ? facts.dmabuf_failed : facts.peermem_failed) = true;
  }
  if (auto advice = refusal_advice(facts); !advice.empty()) reasons.push_back(std::move(advice));
  return fail(Status::kUnsupported,
              fmt::format("HCA {} cannot register {} bytes of GPU memory at {}: {}", hca.name(), region.bytes,
                          region.address, fmt::join(reasons, "; ")));
}

}  // namespace gdx
