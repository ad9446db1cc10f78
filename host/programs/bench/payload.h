// Bytes that a rank of a benchmark sends and receives, in host memory or in a GPU's, and the check of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "host/gdx.h"
#include "host/gpu/gpu_memory.h"
#include "host/programs/bench/load.h"

namespace gdx::bench {

// Host memory that the HCA and this rank's kernels reach.
struct Region {
  Memory memory;
  std::shared_ptr<GpuMapping> mapping;  // none on the CPU layer
};

// `gpu`: runs the kernels; null on the CPU layer.
[[nodiscard]] Result<Region> allocate_region(const Hca& hca, const Gpu* gpu, std::size_t bytes);

// Origin of bytes: rank `rank` sends them to rank `to` in sample `sample`.
struct Sent {
  std::uint64_t sample;
  std::uint32_t rank;
  std::uint32_t to = 0;
  // Nonzero: floats, each the sum of those that this many ranks have, of which `rank` is the first.
  std::uint32_t summed_ranks = 0;
};

// Bytes of a collective's message at a place of a rank's source, or of its sink. Of experts they are those of
// one rank, in as many places as it has messages.
struct Piece {
  std::uint64_t at;
  Sent sent;
  std::uint64_t places = 1;
};
[[nodiscard]] constexpr std::uint64_t length_of(const Load& load, const Piece& piece) {
  return (piece.places - 1) * load.stride_bytes + load.bytes;
}
[[nodiscard]] std::vector<Piece> pieces_from(const Load& load, std::uint64_t sample);
[[nodiscard]] std::vector<Piece> pieces_to(const Load& load, std::uint64_t sample);

// Threads: one at a time, while no kernel runs.
class Payload {
 public:
  [[nodiscard]] static Result<Payload> in_host_memory(const Hca& hca, const Gpu* kernels, std::size_t bytes);
  // The host fills and reads it by copies. Errors: those of GpuMemory::allocate and register_memory.
  [[nodiscard]] static Result<Payload> in_gpu_memory(const Hca& hca, const Gpu& gpu, std::size_t bytes);

  [[nodiscard]] const Memory& memory() const { return region_.memory; }
  // "host memory", or "GPU memory, by dmabuf".
  [[nodiscard]] std::string place() const;

  // Stores what `sent` tells, or its inverse, into the `bytes` at `offset`.
  [[nodiscard]] Result<void> fill(std::uint64_t offset, std::uint64_t bytes, Sent sent, bool inverted);
  // Inverts a bit of a byte.
  [[nodiscard]] Result<void> damage(std::uint64_t offset);
  // Counts wrong bytes of those at `offset`: of `places` messages of `bytes` each, `stride_bytes` apart.
  [[nodiscard]] Result<std::uint64_t> count_bad(std::uint64_t offset, std::uint64_t places,
                                                std::uint64_t bytes, std::uint64_t stride_bytes, Sent sent);

 private:
  Payload(std::optional<GpuMemory> on_gpu, Region region)
      : on_gpu_(std::move(on_gpu)), region_(std::move(region)) {}
  // Returns the bytes where the host may read and write them; put_back() ends that.
  Result<std::byte*> take(std::uint64_t offset, std::uint64_t bytes, bool with_contents);
  Result<void> put_back(std::uint64_t offset);

  std::optional<GpuMemory> on_gpu_;  // freed after its registration
  Region region_;
  std::vector<std::byte> copy_;
};

}  // namespace gdx::bench
