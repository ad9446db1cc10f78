// The probes of this machine. Devices stay open until the probes end.
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <infiniband/mlx5dv.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "base/descriptor.h"
#include "base/page_size.h"
#include "host/gpu/gpu.h"
#include "host/gpu/gpu_memory.h"
#include "host/hca/hca.h"
#include "host/programs/doctor/loopback.h"
#include "host/programs/doctor/machine.h"
#include "proto/mlx5/doorbell.h"

namespace gdx::doctor {
namespace {

constexpr int kProgramTimeoutMs = 60'000;          // between two pieces of its output
constexpr std::uint64_t kSmallestAllocation = 64;  // bytes of device memory, the least that mlx5 allocates

// stdin and stderr go to /dev/null: a program that asks or complains says nothing to the operator.
Result<std::string> run_program(const std::vector<std::string>& command) {
  const std::string line = fmt::format("{}", fmt::join(command, " "));
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    return fail(Status::kSystem, fmt::format("{}: {}", line, std::strerror(errno)));
  const Descriptor reading(ends[0]);
  Descriptor writing(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, writing.value(), STDOUT_FILENO);
  std::vector<char*> arguments;
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  pid_t child = -1;
  const int error = posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return fail(Status::kNotFound, fmt::format("{}: {}", line, std::strerror(error)));
  writing.close();
  std::string output;
  std::array<char, 4096> piece{};
  bool silent = false;
  for (ssize_t got = 1; got > 0;) {
    pollfd waiting{reading.value(), POLLIN, 0};
    got = poll(&waiting, 1, kProgramTimeoutMs) == 1 ? read(reading.value(), piece.data(), piece.size()) : -1;
    if (got > 0) output.append(piece.data(), static_cast<std::size_t>(got));
    if (got < 0) {
      silent = true;
      kill(child, SIGKILL);
    }
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (silent) {
    return fail(Status::kTimeout,
                fmt::format("{}: killed after {} s without output", line, kProgramTimeoutMs / 1000));
  }
  if (WIFSIGNALED(status))
    return fail(Status::kSystem, fmt::format("{}: killed by signal {}", line, WTERMSIG(status)));
  if (WEXITSTATUS(status) != 0)
    return fail(Status::kSystem, fmt::format("{}: exit status {}", line, WEXITSTATUS(status)));
  return output;
}

// A regular file in place of a device, and a device that is in use, count as well.
Result<Refusal> open_device(const std::string& path) {
  const Descriptor opened(open(path.c_str(), O_RDWR | O_CLOEXEC));
  return Refusal(opened ? "" : std::strerror(errno));
}

Result<Refusal> open_devx(const std::string& hca) {
  int count = 0;
  ibv_device** const list = ibv_get_device_list(&count);
  Result<Refusal> outcome = fail(Status::kNotFound, fmt::format("libibverbs does not list {}", hca));
  for (int i = 0; i < count; ++i) {
    if (hca != ibv_get_device_name(list[i])) continue;
    mlx5dv_context_attr attributes{};
    attributes.flags = MLX5DV_CONTEXT_FLAGS_DEVX;
    errno = 0;
    const ContextHandle context(mlx5dv_open_device(list[i], &attributes));
    outcome = Refusal(context ? "" : std::strerror(errno));
  }
  if (list != nullptr) ibv_free_device_list(list);
  return outcome;
}

Result<std::vector<GpuSeen>> see_gpus() {
  const auto count = GDX_TRY(Gpu::count());
  std::vector<GpuSeen> seen;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    const auto gpu = GDX_TRY(Gpu::open(ordinal));
    seen.push_back({canonical_bus_id(gpu.pci_bus_id()).value_or(gpu.pci_bus_id()), gpu.exports_dmabuf(),
                    gpu.orders_rdma_writes(), gpu.has_host_atomics(), gpu.compute_capability()});
  }
  return seen;
}

Result<Gpu> open_gpu(const std::string& bus_id) {
  const auto count = GDX_TRY(Gpu::count());
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    auto gpu = Gpu::open(ordinal);
    if (gpu && canonical_bus_id(gpu->pci_bus_id()) == bus_id) return gpu;
  }
  return fail(Status::kNotFound, fmt::format("CUDA does not show GPU {}", bus_id));
}

// Each HCA that was asked for, or why it does not open: opened once.
class OpenHcas {
 public:
  const Result<Hca>& get(const std::string& name) {
    const auto known = opened_.find(name);
    return known != opened_.end()
               ? known->second
               : opened_.emplace(name, Hca::open({.name = name, .in_this_process = true})).first->second;
  }

 private:
  std::map<std::string, Result<Hca>> opened_;
};

Result<Refusal> map_uar(const Hca& hca, const std::string& bus_id) {
  const auto gpu = GDX_TRY(open_gpu(bus_id));
  const UarHandle uar(mlx5dv_devx_alloc_uar(hca.context(), MLX5DV_UAR_ALLOC_TYPE_NC));
  if (!uar) return fail(Status::kSystem, fmt::format("mlx5dv_devx_alloc_uar: {}", std::strerror(errno)));
  const auto mapping = gpu.map(uar->base_addr, mlx5::kUarPageBytes, MappingChoice::kAuto);
  return Refusal(mapping ? "" : mapping.error().message);
}

// Tries the registrations of HCA and driver. Another check reports memory that gdx refuses for the order of
// writes.
Result<Refusal> register_page(const Hca& hca, const std::string& bus_id, RegistrationWay way) {
  constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  if (way == RegistrationWay::kHostPages) {
    std::vector<std::byte> page(page_bytes());
    const MrHandle registered(ibv_reg_mr(hca.pd(), page.data(), page.size(), kAccess));
    return Refusal(registered ? "" : std::strerror(errno));
  }
  const auto gpu = GDX_TRY(open_gpu(bus_id));
  const auto memory = GDX_TRY(GpuMemory::allocate(gpu, kGpuPageBytes));
  const RegistrationFacts facts{
      .pointer = PointerKind::kDevice,
      .gpu_exports_dmabuf = gpu.exports_dmabuf(),
      .hca_imports_dmabuf = hca_imports_dmabuf(hca),
      .peermem_loaded = peermem_loaded(),
      .choice = way == RegistrationWay::kDmabuf ? RegistrationChoice::kDmabuf : RegistrationChoice::kPeermem};
  const GpuRegion region{memory.address(), memory.bytes(), kAccess, gpu.ordinal()};
  const auto registered = register_gpu_region(hca_verbs(), hca, region, facts);
  if (!registered) return Refusal(registered.error().message);
  const MrHandle released(registered->mr);
  return Refusal();
}

// Both HCAs are open, so whatever then fails keeps a put from arriving: no common address family, no route.
Refusal put_between(const Hca& from, const Hca& to) {
  constexpr std::uint32_t kBlocks = 16;
  auto opened = Loopback::open(from, {.blocks = kBlocks, .other = &to});
  return opened ? put_once(*opened) : opened.error().message;
}

Result<DeviceMemory> ask_device_memory(const Hca& hca) {
  DeviceMemory memory{hca.device_memory_bytes(), 0};
  for (std::uint64_t bytes = memory.bytes; bytes >= kSmallestAllocation && memory.largest_bytes == 0;
       bytes /= 2) {
    ibv_alloc_dm_attr attributes{};
    attributes.length = bytes;
    const std::unique_ptr<ibv_dm, CallDestroy<ibv_free_dm>> piece(ibv_alloc_dm(hca.context(), &attributes));
    if (piece) memory.largest_bytes = bytes;
  }
  return memory;
}

}  // namespace

Probes live_probes() {
  const auto hcas = std::make_shared<OpenHcas>();
  // Makes of a probe on an open HCA one by its name.
  const auto by_name = [hcas](auto probe) {
    return [hcas, probe](const std::string& name,
                         const auto&... more) -> decltype(probe(std::declval<const Hca&>(), more...)) {
      const auto& hca = hcas->get(name);
      if (!hca) return tl::unexpected(hca.error());
      return probe(*hca, more...);
    };
  };
  // mlxconfig takes seconds, and two checks want it.
  const auto outputs = std::make_shared<std::map<std::vector<std::string>, Result<std::string>>>();
  Probes probes;
  probes.run = [outputs](const std::vector<std::string>& command) {
    const auto known = outputs->find(command);
    return known != outputs->end() ? known->second
                                   : outputs->emplace(command, run_program(command)).first->second;
  };
  probes.open_device = open_device;
  probes.open_devx = open_devx;
  probes.gpus = see_gpus;
  probes.map_uar = by_name(map_uar);
  probes.hca_imports_dmabuf = by_name([](const Hca& hca) { return Result<bool>(hca_imports_dmabuf(hca)); });
  probes.register_page = by_name(register_page);
  probes.put = [hcas](const std::string& from, const std::string& to) -> Result<Refusal> {
    const auto& first = hcas->get(from);
    const auto& second = hcas->get(to);
    if (!first || !second) return tl::unexpected(first ? second.error() : first.error());
    return put_between(*first, *second);
  };
  probes.device_memory = by_name(ask_device_memory);
  probes.data_direct = by_name(data_direct_path);
  return probes;
}

}  // namespace gdx::doctor
