#include "host/gpu/gpu.h"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include "base/environment.h"
#include "base/log.h"
#include "base/page_size.h"
#include "base/trace.h"
#include "driver-shim/cuda/sharing.h"

// Defined by device/exec/cuda.h, in programs that include it.
extern "C" [[gnu::weak]] const int gdx_kernels_are_cuda;

namespace gdx {
namespace {

constexpr int kMinVmmVersion = 12000;  // as cuDriverGetVersion counts

struct Range {
  std::uintptr_t first;
  std::size_t bytes;
  friend auto operator<=>(const Range&, const Range&) = default;
};

Range whole_pages(const void* address, std::size_t bytes) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  const std::uintptr_t first = at / page_bytes() * page_bytes();
  const std::uintptr_t end = (at + bytes + page_bytes() - 1) / page_bytes() * page_bytes();
  return {first, end - first};
}

// Logs the way once per process.
void log_once(MappingWay way) {
  static std::array<std::atomic<bool>, 2> said{};
  if (said[static_cast<std::size_t>(way)].exchange(true)) return;
  log::info("host pages are shown to the GPU by {}", mapping_name(way));
}

std::string registration_advice(CUresult result, MappingWay way, PageKind pages) {
  if (way == MappingWay::kIoMemory && pages == PageKind::kOrdinary) {
    return fmt::format("these are ordinary pages, as a software HCA has them: leave out {}",
                       kGpuMappingVariable);
  }
  if (way == MappingWay::kPlain && pages == PageKind::kDevice) {
    return fmt::format("these are device pages: leave out {}", kGpuMappingVariable);
  }
  if (result == CUDA_ERROR_NOT_PERMITTED ||
      (way == MappingWay::kIoMemory && result != CUDA_ERROR_OUT_OF_MEMORY)) {
    return "load the nvidia module with NVreg_RegistryDwords=\"PeerMappingOverride=1\"";
  }
  return "raise the locked-memory limit (ulimit -l), or map less";
}

}  // namespace

bool program_has_cuda_kernels() { return &gdx_kernels_are_cuda != nullptr; }

// Context of one GPU. Retained from its first need to its last use, because it costs hundreds of megabytes of
// GPU memory.
struct Gpu::Context {
  Context(const cuda::Driver& loaded, CUdevice opened) : driver(loaded), device(opened) {}
  ~Context() {
    if (handle != nullptr) driver.call.primary_ctx_release(device);
  }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  CUresult read();
  [[nodiscard]] int attribute(CUdevice_attribute which) const;
  CUresult retain();

  const cuda::Driver& driver;
  CUdevice device;
  std::atomic<CUcontext> handle = nullptr;
  std::mutex retaining;
  std::string name;
  std::string pci_bus_id;
  int compute_capability = 0;
  bool exports_dmabuf = false;
  bool creates_rdma_memory = false;
  bool orders_rdma_writes = false;
  bool has_host_atomics = false;
  int most_mhz = 0;
  bool shared_by_mps = false;
};

// Every GPU that is open somewhere in this process, and all host pages that are registered. There is
// one registry for all GPUs, because the driver registers pages for all of them at once.
struct Gpu::Registry {
  static Registry& instance() {
    static auto& registry = *new Registry;
    return registry;
  }
  std::mutex lock;
  std::map<int, std::weak_ptr<Context>> opened;

  struct Registration {
    MappingWay way;
    std::shared_ptr<Context> context;  // context that registered the pages
    int users = 0;
  };
  std::mutex registering;
  std::map<Range, Registration> registrations;
};

namespace {

// Makes a context this thread's, during the object's lifetime.
class Current {
 public:
  Current(const cuda::Driver& driver, CUcontext context)
      : driver_(driver), result_(driver.call.ctx_push_current(context)) {}
  ~Current() {
    if (result_ == CUDA_SUCCESS) driver_.call.ctx_pop_current(nullptr);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  [[nodiscard]] CUresult result() const { return result_; }

 private:
  const cuda::Driver& driver_;
  CUresult result_;
};

}  // namespace

class Gpu::Mapping : public GpuMapping {
 public:
  Mapping(std::shared_ptr<Context> context, Range range, MappingWay way)
      : GpuMapping(way), context_(std::move(context)), range_(range) {}
  ~Mapping() override {
    Registry& registry = Registry::instance();
    const std::lock_guard guard(registry.registering);
    const auto entry = registry.registrations.find(range_);
    if (--entry->second.users != 0) return;
    const std::shared_ptr<Context> owner = entry->second.context;
    registry.registrations.erase(entry);
    const Current current(owner->driver, owner->handle);
    owner->driver.call.mem_host_unregister(reinterpret_cast<void*>(range_.first));
  }

 private:
  std::shared_ptr<Context> context_;  // context of the GPU whose kernels use the pages
  Range range_;
};

Result<MappingChoice> mapping_choice_from_environment() {
  return choice_from_environment<MappingChoice>(kGpuMappingVariable,
                                                {{"auto", MappingChoice::kAuto},
                                                 {"plain", MappingChoice::kPlain},
                                                 {"iomemory", MappingChoice::kIoMemory}});
}

Result<int> Gpu::count() {
  const auto driver = GDX_TRY(cuda::driver());
  int count = 0;
  const CUresult result = driver->call.device_get_count(&count);
  if (result != CUDA_SUCCESS) return tl::unexpected(driver->error(result, "cannot count the GPUs"));
  return count;
}

// Returns an attribute; 0 of a driver that does not know it, and so does not promise what it stands for.
int Gpu::Context::attribute(CUdevice_attribute which) const {
  int value = 0;
  return driver.call.device_get_attribute(&value, which, device) == CUDA_SUCCESS ? value : 0;
}

// Reads the GPU's properties, once.
CUresult Gpu::Context::read() {
  std::array<char, 256> name_text{};
  std::array<char, 32> bus_id{};
  int major = 0;
  int minor = 0;
  CUresult result = driver.call.device_get_name(name_text.data(), static_cast<int>(name_text.size()), device);
  if (result == CUDA_SUCCESS) {
    result = driver.call.device_get_pci_bus_id(bus_id.data(), static_cast<int>(bus_id.size()), device);
  }
  if (result == CUDA_SUCCESS) {
    result = driver.call.device_get_attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
  }
  if (result == CUDA_SUCCESS) {
    result = driver.call.device_get_attribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
  }
  if (result != CUDA_SUCCESS) return result;
  name = name_text.data();
  pci_bus_id = bus_id.data();
  compute_capability = 10 * major + minor;
  exports_dmabuf = attribute(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) != 0 &&
                   driver.call.mem_get_handle_for_address_range != nullptr;
  creates_rdma_memory = driver.version >= kMinVmmVersion &&
                        attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) != 0 &&
                        attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) != 0 &&
                        cuda::sharing().has_value();
  orders_rdma_writes = attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING) >=
                       CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER;
  has_host_atomics = attribute(CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED) != 0;
  most_mhz = attribute(CU_DEVICE_ATTRIBUTE_CLOCK_RATE) / 1000;
  shared_by_mps = attribute(CU_DEVICE_ATTRIBUTE_MPS_ENABLED) != 0;
  return CUDA_SUCCESS;
}

CUresult Gpu::Context::retain() {
  if (handle != nullptr) return CUDA_SUCCESS;
  const std::lock_guard guard(retaining);
  if (handle != nullptr) return CUDA_SUCCESS;
  CUcontext primary = nullptr;
  const CUresult result = driver.call.primary_ctx_retain(&primary, device);
  if (result == CUDA_SUCCESS) handle = primary;
  return result;
}

Result<Gpu> Gpu::open(int ordinal) {
  const TraceSpan span("Gpu::open");
  const auto loaded = GDX_TRY(cuda::driver());
  const cuda::Driver& driver = *loaded;
  Registry& registry = Registry::instance();
  const std::lock_guard guard(registry.lock);
  if (auto context = registry.opened[ordinal].lock()) return Gpu(std::move(context));

  CUdevice device = 0;
  CUresult result = driver.call.device_get(&device, ordinal);
  if (result != CUDA_SUCCESS)
    return tl::unexpected(driver.error(result, fmt::format("cannot open GPU {}", ordinal)));
  auto context = std::make_shared<Context>(driver, device);
  result = context->read();
  if (result != CUDA_SUCCESS)
    return tl::unexpected(driver.error(result, fmt::format("cannot query GPU {}", ordinal)));
  registry.opened[ordinal] = context;
  return Gpu(std::move(context));
}

Result<Gpu> Gpu::current() {
  const cuda::Driver* const driver = cuda::loaded_driver();
  if (driver == nullptr && !program_has_cuda_kernels())
    return fail(Status::kNotFound, "this process has no GPU: it has not loaded the CUDA driver");
  CUdevice device = 0;
  const bool has_context = driver != nullptr && driver->call.ctx_get_device(&device) == CUDA_SUCCESS;
  return open(has_context ? device : 0);
}

std::vector<std::string> Gpu::in_use() {
  Registry& registry = Registry::instance();
  std::vector<std::string> bus_ids;
  const std::lock_guard guard(registry.lock);
  for (const auto& [ordinal, opened] : registry.opened) {
    const auto context = opened.lock();
    if (context && context->handle != nullptr) bus_ids.push_back(context->pci_bus_id);
  }
  return bus_ids;
}

int Gpu::ordinal() const { return context_->device; }
const std::string& Gpu::name() const { return context_->name; }
const std::string& Gpu::pci_bus_id() const { return context_->pci_bus_id; }
int Gpu::compute_capability() const { return context_->compute_capability; }
bool Gpu::exports_dmabuf() const { return context_->exports_dmabuf; }
bool Gpu::creates_rdma_memory() const { return context_->creates_rdma_memory; }
std::string Gpu::cuda_version() const { return cuda::version_text(driver().version); }
int Gpu::most_mhz() const { return context_->most_mhz; }
bool Gpu::shared_by_mps() const { return context_->shared_by_mps; }
bool Gpu::orders_rdma_writes() const { return context_->orders_rdma_writes; }
bool Gpu::has_host_atomics() const { return context_->has_host_atomics; }
const cuda::Driver& Gpu::driver() const { return context_->driver; }

CUresult Gpu::run(const std::function<CUresult()>& call) const {
  if (const CUresult retained = context_->retain(); retained != CUDA_SUCCESS) return retained;
  const Current current(context_->driver, context_->handle);
  return current.result() == CUDA_SUCCESS ? call() : current.result();
}

Result<int> Gpu::export_dmabuf(std::uintptr_t address, std::size_t bytes, DmabufPages pages) const {
  const cuda::Driver& driver = context_->driver;
  if (!context_->exports_dmabuf) {
    return fail(Status::kUnsupported, fmt::format("GPU {} exports no dmabuf", context_->device));
  }
  int descriptor = -1;
  const CUresult result = run([&] {
    return driver.call.mem_get_handle_for_address_range(
        &descriptor, address, bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
        pages == DmabufPages::kPcie ? cuda::kDmabufAcrossPcie : 0);
  });
  if (result == CUDA_SUCCESS) return descriptor;
  return tl::unexpected(driver.error(result, fmt::format("GPU {} exports no dmabuf of {} bytes at {:#x}",
                                                         context_->device, bytes, address)));
}

Result<std::shared_ptr<GpuMapping>> Gpu::map(void* address, std::size_t bytes) const {
  const auto choice = GDX_TRY(mapping_choice_from_environment());
  return map(address, bytes, choice);
}

// Checks that this GPU reaches registered pages at the host's address.
Result<void> Gpu::check_address(std::uintptr_t first) const {
  CUdeviceptr seen = 0;
  const CUresult result = run(
      [&] { return driver().call.mem_host_get_device_pointer(&seen, reinterpret_cast<void*>(first), 0); });
  if (result == CUDA_SUCCESS && seen == first) return {};
  return fail(
      Status::kUnsupported,
      fmt::format("GPU {} reaches host memory at other addresses than the host: hide the GPUs that do "
                  "not with CUDA_VISIBLE_DEVICES",
                  context_->device));
}

Result<std::shared_ptr<GpuMapping>> Gpu::map(void* address, std::size_t bytes, MappingChoice choice) const {
  const TraceSpan span("Gpu::map");
  const Range range = whole_pages(address, bytes);
  const cuda::Driver& driver = context_->driver;
  const auto pages = GDX_TRY(page_kind(reinterpret_cast<void*>(range.first), range.bytes));
  const MappingWay way = choose_mapping(pages, choice);

  Registry& registry = Registry::instance();
  const std::lock_guard guard(registry.registering);
  const auto known = registry.registrations.find(range);
  if (known != registry.registrations.end()) {
    GDX_TRY(check_address(range.first));
    ++known->second.users;
    return std::make_shared<Mapping>(context_, range, known->second.way);
  }
  unsigned flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
  if (way == MappingWay::kIoMemory) flags |= CU_MEMHOSTREGISTER_IOMEMORY;
  void* const first = reinterpret_cast<void*>(range.first);
  CUresult result = run([&] { return driver.call.mem_host_register(first, range.bytes, flags); });
  if (result != CUDA_SUCCESS) {
    Error error = driver.error(result, fmt::format("GPU {} cannot map {} bytes at {} by {}", context_->device,
                                                   range.bytes, first, mapping_name(way)));
    error.message += "; " + registration_advice(result, way, pages);
    return tl::unexpected(std::move(error));
  }
  if (auto checked = check_address(range.first); !checked) {
    run([&] { return driver.call.mem_host_unregister(first); });
    return tl::unexpected(std::move(checked.error()));
  }
  registry.registrations[range] = {way, context_, 1};
  log_once(way);
  return std::make_shared<Mapping>(context_, range, way);
}

int exit_status_without_gpu(const Error& error) {
  return error.status == Status::kNoDevice || error.status == Status::kUnsupported ? kExitNoGpu : 1;
}

Result<Gpu> open_gpu_or_skip() {
  auto opened = Gpu::open();
  if (!opened && exit_status_without_gpu(opened.error()) == kExitNoGpu)
    return fail(opened.error().status, "SKIPPED: " + opened.error().message);
  return opened;
}

}  // namespace gdx
