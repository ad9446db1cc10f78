// Bring-up of a GPU beside the HCA, without kernels: what its driver says, maps and registers.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <infiniband/mlx5dv.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/page_size.h"
#include "host/gpu/gpu_memory.h"
#include "host/memory/gpu_registration.h"
#include "host/programs/doctor/bring_up.h"
#include "host/programs/doctor/loopback.h"
#include "host/queue/doorbell.h"
#include "proto/mlx5/doorbell.h"

namespace gdx::doctor {
namespace {

constexpr std::uint32_t kBlocks = 64;

StepResult without_gpu(const Error& error) {
  const auto count = Gpu::count();
  if (count && *count > 0) return {Verdict::kFail, error.message};
  StepResult result{Verdict::kUnknown, "no GPU here"};
  result.facts.push_back({"cuda", count ? "shows none" : count.error().message});
  return result;
}

// Collects a fact for each thing that is tried. The step fails with the first that does not work.
class Tries {
 public:
  // `harms`: what was permitted and does not work, which is worse than a refusal.
  void add(const char* what, const Result<std::string>& outcome, bool harms = false) {
    result_.facts.push_back(
        {what, outcome ? *outcome : outcome.error().message, outcome ? Verdict::kOk : Verdict::kFail});
    (outcome ? worked_ : failed_).emplace_back(what);
    if (!outcome && (failed_.size() == 1 || (harms && !harmed_))) first_ = outcome.error().message;
    harmed_ = harmed_ || harms;
  }
  [[nodiscard]] bool any_worked() const { return !worked_.empty(); }
  [[nodiscard]] StepResult result(bool all_must) {
    const bool suffices = failed_.empty() || (!all_must && !harmed_ && any_worked());
    result_.verdict = suffices ? Verdict::kOk : Verdict::kFail;
    result_.value =
        fmt::format("{}: {}", fmt::join(worked_, ", "), worked_.empty() ? "nothing works" : "works");
    if (!failed_.empty()) result_.value += fmt::format("; not {}: {}", fmt::join(failed_, ", "), first_);
    return std::move(result_);
  }

 private:
  StepResult result_;
  std::vector<std::string> worked_;
  std::vector<std::string> failed_;
  std::string first_;
  bool harmed_ = false;
};

Result<std::string> map_to(const Gpu& gpu, void* address, std::size_t bytes) {
  const auto mapping = GDX_TRY(gpu.map(address, bytes, MappingChoice::kAuto));
  return std::string((*mapping).way() == MappingWay::kIoMemory ? "as I/O memory" : "by plain registration");
}

Result<std::string> map_device_memory(const Gpu& gpu, const Hca& hca) {
  auto pool = GDX_TRY(StagingPool::create(hca));
  GDX_TRY(pool.map_to(gpu));
  return fmt::format("{} slots", pool.slot_count());
}

// Waits for the request that was posted.
Result<void> await(Loopback& loopback) {
  loopback.ring();
  const auto completed = loopback.poll();
  if (!completed) return fail(Status::kTimeout, "no completion came");
  if (completed->syndrome() == mlx5::Syndrome::kNone) return {};
  return fail(Status::kRemoteAccess, "the completion is " + completed->text());
}

// The HCA reads a pattern from GPU memory, and writes another there, which the driver's copies read back.
Result<std::string> exchange(const Hca& hca, const Gpu& gpu, RegistrationChoice choice, bool& is_registered) {
  constexpr std::size_t kBytes = 4097;
  constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  auto memory = GDX_TRY(GpuMemory::allocate(gpu, kGpuPageBytes));
  auto facts = GDX_TRY(read_registration_facts(hca, {PointerKind::kDevice, gpu.ordinal()}));
  facts.choice = choice;
  const GpuRegion region{memory.address(), memory.bytes(), kAccess, gpu.ordinal()};
  const auto registered = GDX_TRY(register_gpu_region(hca_verbs(), hca, region, facts));
  const MrHandle key(registered.mr);
  is_registered = true;
  auto loopback = GDX_TRY(Loopback::open(hca, {.blocks = kBlocks}));

  std::vector<std::byte> pattern(kBytes);
  fill_pattern(pattern, 1);
  GDX_TRY(memory.write(0, pattern));
  const auto address = reinterpret_cast<std::uintptr_t>(memory.address());
  loopback.post(WorkRequest(mlx5::WqeOpcode::kRdmaWrite)
                    .remote(loopback.target().remote().address, loopback.target().rkey())
                    .gather(address, key->lkey, kBytes));
  GDX_TRY(await(loopback));
  std::string wrong = first_mismatch(loopback.target().data(), kBytes, 1);
  if (!wrong.empty()) return fail(Status::kSystem, "read from the GPU: " + wrong);

  fill_pattern(loopback.source().span().first(kBytes), 2);
  loopback.post(WorkRequest(mlx5::WqeOpcode::kRdmaRead)
                    .remote(loopback.source().remote().address, loopback.source().rkey())
                    .gather(address, key->lkey, kBytes));
  GDX_TRY(await(loopback));
  GDX_TRY(memory.read(0, pattern));
  wrong = first_mismatch(pattern.data(), kBytes, 2);
  if (!wrong.empty()) return fail(Status::kSystem, "written to the GPU: " + wrong);
  return fmt::format("{} B each way", kBytes);
}

}  // namespace

StepResult ask_gpu(Bench& /*bench*/) {
  const auto gpu = Gpu::open();
  if (!gpu) return without_gpu(gpu.error());
  constexpr int kOldest = 80;
  const auto yes = [](bool has) { return has ? "yes" : "no"; };
  StepResult result{gpu->compute_capability() >= kOldest ? Verdict::kOk : Verdict::kFail,
                    fmt::format("GPU 0 {}, sm_{}", gpu->name(), gpu->compute_capability())};
  if (result.verdict == Verdict::kFail)
    result.advice = fmt::format("kernels are built for sm_{} and later", kOldest);
  result.facts = {
      {"pci_bus_id", gpu->pci_bus_id()},
      {"DMA_BUF_SUPPORTED", yes(gpu->exports_dmabuf())},
      {"GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, by POSIX files", yes(gpu->creates_rdma_memory())},
      {"GPU_DIRECT_RDMA_WRITES_ORDERING is OWNER or above", yes(gpu->orders_rdma_writes())},
      {"HOST_NATIVE_ATOMIC_SUPPORTED", yes(gpu->has_host_atomics())}};
  return result;
}

StepResult map_pages(Bench& bench) {
  const auto gpu = Gpu::open();
  if (!gpu) return without_gpu(gpu.error());
  Tries tries;
  auto memory = allocate_memory(*bench.hca, page_bytes());
  tries.add("host page", memory ? map_to(*gpu, memory->data(), memory->bytes())
                                : Result<std::string>(tl::unexpected(memory.error())));
  const auto doorbell = allocate_doorbell(*bench.hca, DoorbellKind::kPlain);
  tries.add("doorbell page", doorbell ? map_to(*gpu, doorbell->uar->base_addr, mlx5::kUarPageBytes)
                                      : Result<std::string>(tl::unexpected(doorbell.error())));
  if (bench.hca->device_memory_bytes() != 0) tries.add("device memory", map_device_memory(*gpu, *bench.hca));
  return tries.result(true);
}

StepResult exchange_payload(Bench& bench) {
  const auto gpu = Gpu::open();
  if (!gpu) return without_gpu(gpu.error());
  Tries tries;
  const std::pair<const char*, RegistrationChoice> ways[] = {
      {"dmabuf", RegistrationChoice::kDmabuf}, {"nvidia_peermem", RegistrationChoice::kPeermem}};
  for (const auto& [name, choice] : ways) {
    bool is_registered = false;
    const auto outcome = exchange(*bench.hca, *gpu, choice, is_registered);
    tries.add(name, outcome, is_registered && !outcome);
  }
  return tries.result(false);
}

}  // namespace gdx::doctor
