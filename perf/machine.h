// The machine of a test's or benchmark's kernels, and its memory: a GPU or the CPU layer.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace gdx::machine {

// Returns the reason why kernels cannot run here, on one line; empty when they can.
[[nodiscard]] std::string unavailable();
// "NVIDIA H200, sm_90, driver CUDA 13.0", or "CPU layer".
[[nodiscard]] std::string name();
[[nodiscard]] unsigned multiprocessors();
[[nodiscard]] bool is_gpu();

enum class Place { kHost, kGpu };  // pinned host memory, and the GPU's own; one and the same on the CPU layer

struct Release {
  Place place = Place::kHost;
  void operator()(std::byte* memory) const;
};
using Memory = std::unique_ptr<std::byte, Release>;

// Zeroed, aligned to 4 KiB. Null when there is no more.
[[nodiscard]] Memory allocate(Place place, std::size_t bytes);
// Between host memory and memory of either place, while no kernel runs. False when the machine refuses.
[[nodiscard]] bool copy(void* to, const void* from, std::size_t bytes);

}  // namespace gdx::machine
