#include "host/programs/bench/payload.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "host/programs/bench/experts.h"

namespace gdx::bench {
namespace {

std::uint64_t expected_word(Sent sent, std::uint64_t i);

// Two floats, of whole numbers below 2^16, so that every sum of all ranks is exact.
std::uint64_t two_sums(Sent sent, std::uint64_t i) {
  float sums[2] = {};
  for (std::uint32_t rank = sent.rank; rank < sent.rank + sent.summed_ranks; ++rank) {
    const std::uint64_t word = expected_word({sent.sample, rank}, i);
    sums[0] += static_cast<float>(word >> 48);
    sums[1] += static_cast<float>(word >> 32 & 0xffff);
  }
  return std::bit_cast<std::uint64_t>(sums);
}

// The word at byte `i` of what is sent; unlike its neighbours and other samples' byte.
std::uint64_t expected_word(Sent sent, std::uint64_t i) {
  if (sent.summed_ranks != 0) return two_sums(sent, i);
  const std::uint64_t origin = (sent.sample * kMostRanks + sent.rank) * kMostRanks + sent.to;
  return (origin * 0x9e3779b97f4a7c15u ^ i) * 0xd6e8feb86659fd93u;
}

// Counts wrong bytes of the `bytes` at offset `from` of a sink.
std::uint64_t count_bad_of(const std::byte* sink, std::uint64_t from, std::uint64_t bytes, Sent sent) {
  std::uint64_t bad = 0;
  for (std::uint64_t i = 0; i < bytes; i += sizeof(std::uint64_t)) {
    const std::uint64_t word = expected_word(sent, from + i);
    std::uint64_t is = word;
    std::memcpy(&is, sink + from + i, std::min<std::uint64_t>(sizeof word, bytes - i));
    for (std::uint64_t wrong = is ^ word; wrong != 0; wrong >>= 8) bad += (wrong & 0xff) != 0;
  }
  return bad;
}

// Returns the messages between this rank and each other, which `by_here` tells the direction of.
std::vector<Piece> token_pieces(const Load& load, std::uint64_t sample, bool by_here) {
  std::vector<Piece> pieces;
  for (std::uint32_t other = 0; other < load.ranks; ++other) {
    const std::uint32_t from = by_here ? load.rank : other;
    const std::uint32_t to = by_here ? other : load.rank;
    const std::uint64_t places = messages_between(load.operation, from, to, load.ranks);
    if (other != load.rank && places != 0)
      pieces.push_back({other * load.slots * load.stride_bytes, {sample, from, to}, places});
  }
  return pieces;
}

}  // namespace

std::vector<Piece> pieces_from(const Load& load, std::uint64_t sample) {
  if (load.operation == Operation::kAllReduce) return {{0, {sample, load.rank, 0, 1}}};
  if (load.operation == Operation::kIncast) return {{0, {sample, load.rank, 0}}};
  if (is_of_experts(load.operation)) return token_pieces(load, sample, true);
  std::vector<Piece> pieces;
  for (std::uint32_t to = 0; to < load.ranks; ++to)
    pieces.push_back({to * load.bytes, {sample, load.rank, to}});
  return pieces;
}
std::vector<Piece> pieces_to(const Load& load, std::uint64_t sample) {
  if (load.operation == Operation::kAllReduce) return {{0, {sample, 0, 0, load.ranks}}};
  if (is_of_experts(load.operation)) return token_pieces(load, sample, false);
  std::vector<Piece> pieces;
  if (load.operation == Operation::kIncast && load.rank != 0) return pieces;
  for (std::uint32_t by = load.operation == Operation::kIncast ? 1 : 0; by < load.ranks; ++by)
    pieces.push_back({by * load.bytes, {sample, by, load.rank}});
  return pieces;
}

Result<Region> allocate_region(const Hca& hca, const Gpu* gpu, std::size_t bytes) {
  auto memory = GDX_TRY(allocate_memory(hca, bytes));
  Region region{std::move(memory), nullptr};
  if (gpu == nullptr) return region;
  region.mapping = GDX_TRY(gpu->map(region.memory.data(), region.memory.bytes()));
  return region;
}

Result<Payload> Payload::in_host_memory(const Hca& hca, const Gpu* kernels, std::size_t bytes) {
  auto region = GDX_TRY(allocate_region(hca, kernels, bytes));
  return Payload(std::nullopt, std::move(region));
}

Result<Payload> Payload::in_gpu_memory(const Hca& hca, const Gpu& gpu, std::size_t bytes) {
  auto on_gpu = GDX_TRY(GpuMemory::allocate(gpu, bytes));
  auto memory = GDX_TRY(register_memory(hca, on_gpu.address(), on_gpu.bytes()));
  return Payload(std::move(on_gpu), {std::move(memory), nullptr});
}

std::string Payload::place() const {
  if (!on_gpu_) return "host memory";
  return fmt::format("GPU memory, by {}", registration_name(memory().registered_by()));
}

Result<std::byte*> Payload::take(std::uint64_t offset, std::uint64_t bytes, bool with_contents) {
  if (!on_gpu_) return memory().data() + offset;
  copy_.resize(bytes);
  if (with_contents) {
    GDX_TRY(on_gpu_->read(offset, copy_));
  }
  return copy_.data();
}

Result<void> Payload::put_back(std::uint64_t offset) {
  return on_gpu_ ? on_gpu_->write(offset, copy_) : Result<void>{};
}

Result<void> Payload::fill(std::uint64_t offset, std::uint64_t bytes, Sent sent, bool inverted) {
  std::byte* const at = GDX_TRY(take(offset, bytes, false));
  for (std::uint64_t i = 0; i < bytes; i += sizeof(std::uint64_t)) {
    const std::uint64_t word = expected_word(sent, i) ^ (inverted ? ~std::uint64_t{0} : 0);
    std::memcpy(at + i, &word, std::min<std::uint64_t>(sizeof word, bytes - i));
  }
  return put_back(offset);
}

Result<void> Payload::damage(std::uint64_t offset) {
  std::byte* const at = GDX_TRY(take(offset, 1, true));
  *at ^= std::byte{1};
  return put_back(offset);
}

Result<std::uint64_t> Payload::count_bad(std::uint64_t offset, std::uint64_t places, std::uint64_t bytes,
                                         std::uint64_t stride_bytes, Sent sent) {
  const std::byte* const sink = GDX_TRY(take(offset, (places - 1) * stride_bytes + bytes, true));
  std::uint64_t bad = 0;
  for (std::uint64_t place = 0; place < places; ++place)
    bad += count_bad_of(sink, place * stride_bytes, bytes, sent);
  return bad;
}

}  // namespace gdx::bench
