#include "host/programs/doctor/endpoint_pair.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <bit>
#include <optional>
#include <utility>

namespace gdx::doctor {
namespace {

constexpr ModeTable kNoChoice{0, 0, kNoSizeLimit};  // nobody asks for a mode here

}  // namespace

void fill_pattern(std::span<std::byte> bytes, std::uint32_t seed) {
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte{pattern_byte(seed, i)};
}

std::string first_mismatch(const std::byte* got, std::size_t bytes, std::uint32_t seed) {
  for (std::size_t i = 0; i < bytes; ++i) {
    const auto is = static_cast<unsigned>(got[i]);
    if (is == pattern_byte(seed, i)) continue;
    return fmt::format("of {} bytes, byte {} ({} mod 4, {} mod 16) is {:#04x}, wanted {:#04x}{}", bytes, i,
                       i % 4, i % 16, is, pattern_byte(seed, i),
                       seed > 0 && is == pattern_byte(seed - 1, i) ? ": the pattern before" : "");
  }
  return {};
}

mlx5::CqeOpcode Completed::opcode() const {
  return static_cast<mlx5::CqeOpcode>(cqe.op_own >> mlx5::kCqeOpcodeShift);
}

mlx5::WqeOpcode Completed::send_opcode() const {
  return static_cast<mlx5::WqeOpcode>(cqe.send_opcode_qpn >> 24);
}

mlx5::Syndrome Completed::syndrome() const {
  if (opcode() != mlx5::CqeOpcode::kRequesterError) return mlx5::Syndrome::kNone;
  return static_cast<mlx5::Syndrome>(std::bit_cast<mlx5::ErrorCqe>(cqe).syndrome);
}

std::uint8_t Completed::vendor_syndrome() const {
  if (opcode() != mlx5::CqeOpcode::kRequesterError) return 0;
  return std::bit_cast<mlx5::ErrorCqe>(cqe).vendor_error_syndrome;
}

std::string Completed::text() const {
  return fmt::format("opcode {}, WQE {} (opcode {:#x}), QP {:#x}, syndrome {:#04x}, vendor {:#04x}, owner {}",
                     static_cast<unsigned>(opcode()), wqe_counter(), static_cast<unsigned>(send_opcode()),
                     qpn(), static_cast<unsigned>(syndrome()), vendor_syndrome(),
                     cqe.op_own & mlx5::kCqeOwnerMask);
}

std::string Completed::bytes() const {
  return fmt::format("{:02x}", fmt::join(std::bit_cast<std::array<std::uint8_t, sizeof cqe>>(cqe), ""));
}

std::string describe_wrong(const Completed& completed, std::uint16_t index, mlx5::WqeOpcode opcode,
                           std::uint32_t qpn, mlx5::Syndrome wanted) {
  const auto kind =
      wanted == mlx5::Syndrome::kNone ? mlx5::CqeOpcode::kRequester : mlx5::CqeOpcode::kRequesterError;
  return fmt::format(
      "the completion is {}; wanted opcode {}, WQE {} (opcode {:#x}), QP {:#x}, syndrome {:#04x}",
      completed.text(), static_cast<unsigned>(kind), index, static_cast<unsigned>(opcode), qpn,
      static_cast<unsigned>(wanted));
}

Result<EndpointPair> EndpointPair::open(const Hca& hca, const PairOptions& wanted) {
  const Hca& hca_of_peer = wanted.other != nullptr ? *wanted.other : hca;
  EndpointOptions options{.send_queue_blocks = kMinSendQueueBlocks,
                          .auto_modes = {.table = kNoChoice},
                          .timeout_ns = kWaitS * 1'000'000'000ull,
                          .ack_timeout = kAckTimeout,
                          .retry_count = kRetryCount,
                          .doorbell = DoorbellKind::kPlain,
                          .may_ring_unprobed_blueflame = true,
                          .shares_doorbell_page = wanted.shares_page};
  auto peer = Endpoint::create(hca_of_peer, {}, options);
  options.send_queue_blocks = wanted.blocks;
  const auto slots = [](const StagingPool* pool) { return pool != nullptr ? pool->slot_count() : 0; };
  options.slot_count = slots(wanted.pools.nic);
  options.bounce_slot_count = slots(wanted.pools.host);
  options.sharing = wanted.sharing;
  options.doorbell = wanted.doorbell;
  // Kernels of the CPU layer cannot read queues in GPU memory.
  if (wanted.gpu != nullptr && program_has_cuda_kernels() && wanted.queues != Placement::kHost)
    options.gpu = *wanted.gpu;
  options.placement = wanted.queues;
  auto endpoint = GDX_TRY(Endpoint::create(hca, wanted.pools, options));
  if (!peer) return tl::unexpected(peer.error());
  GDX_TRY(endpoint.connect(peer->address()));
  GDX_TRY(peer->connect(endpoint.address()));
  auto source = GDX_TRY(allocate_memory(hca, kBufferBytes));
  auto target = GDX_TRY(allocate_memory(hca_of_peer, kBufferBytes));
  EndpointPair pair{std::move(source), std::move(target), std::move(endpoint), std::move(*peer)};
  if (wanted.gpu == nullptr) return pair;
  GDX_TRY(pair.endpoint.map_to(*wanted.gpu));
  for (const Memory* const memory : {&pair.source, &pair.target})
    pair.mappings.push_back(GDX_TRY(wanted.gpu->map(memory->data(), memory->bytes())));
  return pair;
}

}  // namespace gdx::doctor
