#include "perf/machine.h"

#include <cstdlib>
#include <cstring>

#include "device/exec/exec.h"

namespace gdx::machine {

bool is_gpu() { return exec::kOnGpu; }

#if defined(__CUDACC__)

namespace {

constexpr char kAdvice[] = "; install the NVIDIA driver, or run the program for the CPU layer";

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

std::string unavailable() {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    return std::string("no CUDA driver here: libcuda.so.1 cannot be loaded") + kAdvice;
  }
  int count = 0;
  const cudaError_t counted = cudaGetDeviceCount(&count);
  if (counted != cudaSuccess)
    return std::string("no usable GPU here: ") + cudaGetErrorString(counted) + kAdvice;
  if (count == 0) return std::string("no GPU here") + kAdvice;
  return "";
}

std::string name() {
  cudaDeviceProp properties{};
  int driver = 0;
  if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess ||
      cudaDriverGetVersion(&driver) != cudaSuccess) {
    return "a GPU that tells nothing";
  }
  return std::string(properties.name) + ", sm_" + std::to_string(10 * properties.major + properties.minor) +
         ", driver CUDA " + version_text(driver);
}

unsigned multiprocessors() {
  int count = 0;
  if (cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0) != cudaSuccess) return 1;
  return static_cast<unsigned>(count);
}

void Release::operator()(std::byte* memory) const {
  if (place == Place::kGpu) {
    cudaFree(memory);
  } else {
    cudaFreeHost(memory);
  }
}

Memory allocate(Place place, std::size_t bytes) {
  void* memory = nullptr;
  const cudaError_t result =
      place == Place::kGpu ? cudaMalloc(&memory, bytes) : cudaHostAlloc(&memory, bytes, cudaHostAllocMapped);
  if (result != cudaSuccess) return Memory(nullptr, Release{place});
  Memory owned(static_cast<std::byte*>(memory), Release{place});
  if (place == Place::kHost) {
    std::memset(memory, 0, bytes);
  } else if (cudaMemset(memory, 0, bytes) != cudaSuccess) {
    owned.reset();
  }
  return owned;
}

bool copy(void* to, const void* from, std::size_t bytes) {
  return cudaMemcpy(to, from, bytes, cudaMemcpyDefault) == cudaSuccess;
}

#else

std::string unavailable() { return ""; }
std::string name() { return "CPU layer"; }
unsigned multiprocessors() { return 2; }

void Release::operator()(std::byte* memory) const { std::free(memory); }

Memory allocate(Place place, std::size_t bytes) {
  constexpr std::size_t kPageBytes = 4096;
  const std::size_t rounded = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  Memory owned(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, rounded)), Release{place});
  if (owned) std::memset(owned.get(), 0, rounded);
  return owned;
}

bool copy(void* to, const void* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
  return true;
}

#endif

}  // namespace gdx::machine
