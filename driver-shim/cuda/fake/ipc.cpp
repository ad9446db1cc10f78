// CUDA IPC of the fake driver: a handle names the file of an allocation in the process that has it. It keeps
// nothing alive, as the real one does not.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "driver-shim/cuda/fake/sharing.h"
#include "driver-shim/cuda/fake/state.h"
#include "driver-shim/cuda/sharing.h"

namespace gdx::fake_cuda {
namespace {

struct Named {
  std::uint64_t magic;
  pid_t process;
  int file;
  CUdevice device;
  std::uint32_t offset;  // place of the allocation in its file
  std::uint64_t bytes;
  std::uint64_t inode;  // the file's number may be another's when the allocation is gone
};
static_assert(sizeof(Named) <= sizeof(CUipcMemHandle));
constexpr std::uint64_t kMagic = 0x6664782d69706331;

struct Opened {
  std::size_t bytes;
  CUdevice device;
  int references;
  Named name;
};

struct Ipc {
  std::mutex lock;
  std::map<CUdeviceptr, Opened> opened;  // by address
};
Ipc& ipc() {
  static Ipc instance;
  return instance;
}

CUresult context_refusal() {
  const CUresult result = cuPointerGetAttributes(0, nullptr, nullptr, 0);
  return result == CUDA_ERROR_INVALID_VALUE ? CUDA_SUCCESS : result;
}

std::uint64_t inode_of(int file) {
  struct stat found {};
  return fstat(file, &found) == 0 ? found.st_ino : 0;
}

bool known_allocation(CUdeviceptr at, CUdeviceptr* base, std::size_t* bytes, CUdevice* device) {
  const std::lock_guard guard(state().lock);
  for (const auto& [address, memory] : state().allocations) {
    if (!memory->holds(at)) continue;
    *base = address;
    *bytes = memory->bytes();
    *device = memory->device();
    return true;
  }
  return false;
}

}  // namespace

bool find_opened(CUdeviceptr at, CUdeviceptr* base, std::size_t* bytes, CUdevice* device) {
  const std::lock_guard guard(ipc().lock);
  for (const auto& [address, opened] : ipc().opened) {
    if (at < address || at - address >= opened.bytes) continue;
    *base = address;
    *bytes = opened.bytes;
    *device = opened.device;
    return true;
  }
  return false;
}

}  // namespace gdx::fake_cuda

using namespace gdx::fake_cuda;

extern "C" {

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  if (const CUresult refusal = context_refusal(); refusal != CUDA_SUCCESS) return refusal;
  CUdeviceptr first = 0;
  std::size_t length = 0;
  CUdevice device = 0;
  if (!known_allocation(address, &first, &length, &device) && !find_mapped(address, &first, &length)) {
    if (!find_opened(address, &first, &length, &device)) return CUDA_ERROR_INVALID_VALUE;
    // As of a small allocation, which shares its pages with others before it.
    first -= kPageBytes;
    length += kPageBytes;
  }
  if (base != nullptr) *base = first;
  if (bytes != nullptr) *bytes = length;
  return CUDA_SUCCESS;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  if (const CUresult refusal = context_refusal(); refusal != CUDA_SUCCESS) return refusal;
  Named name{kMagic, getpid(), -1, 0, static_cast<std::uint32_t>(address % kPageBytes), 0, 0};
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  if (handle == nullptr || !known_allocation(address, &base, &bytes, &name.device) || base != address)
    return CUDA_ERROR_INVALID_VALUE;
  {
    const std::lock_guard driver(state().lock);
    name.file = state().allocations.at(address)->file();
  }
  name.inode = inode_of(name.file);
  name.bytes = bytes;
  *handle = {};
  std::memcpy(handle, &name, sizeof name);
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle handle, unsigned int flags) {
  if (const CUresult refusal = context_refusal(); refusal != CUDA_SUCCESS) return refusal;
  Named name{};
  std::memcpy(&name, &handle, sizeof name);
  if (address == nullptr || name.magic != kMagic || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
    return CUDA_ERROR_INVALID_VALUE;
  if (name.process == getpid()) return CUDA_ERROR_INVALID_CONTEXT;
  const std::lock_guard guard(ipc().lock);
  for (auto& [at, opened] : ipc().opened) {
    if (std::memcmp(&opened.name, &name, sizeof name) != 0) continue;
    ++opened.references;
    *address = at;
    return CUDA_SUCCESS;
  }
  const std::string path = "/proc/" + std::to_string(name.process) + "/fd/" + std::to_string(name.file);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return CUDA_ERROR_INVALID_VALUE;
  const bool is_named = inode_of(file) == name.inode;
  void* const pages =
      is_named ? mmap(nullptr, name.offset + name.bytes, PROT_NONE, MAP_SHARED, file, 0) : MAP_FAILED;
  close(file);
  if (!is_named) return CUDA_ERROR_INVALID_VALUE;
  if (pages == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = reinterpret_cast<CUdeviceptr>(pages) + name.offset;
  ipc().opened[*address] = {name.bytes, name.device, 1, name};
  return CUDA_SUCCESS;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  if (const CUresult refusal = context_refusal(); refusal != CUDA_SUCCESS) return refusal;
  const std::lock_guard guard(ipc().lock);
  const auto found = ipc().opened.find(address);
  if (found == ipc().opened.end()) return CUDA_ERROR_INVALID_VALUE;
  if (--found->second.references != 0) return CUDA_SUCCESS;
  const Named& name = found->second.name;
  munmap(reinterpret_cast<void*>(address - name.offset), name.offset + name.bytes);
  ipc().opened.erase(found);
  return CUDA_SUCCESS;
}

}  // extern "C"
