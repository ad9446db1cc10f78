// Two endpoints of one HCA that are connected to each other, with memory to put from and to; what came
// against its pattern, and a completion, as text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "host/gpu/gpu.h"
#include "host/hca/hca.h"
#include "host/memory/memory.h"
#include "host/programs/doctor/pattern.h"
#include "host/queue/endpoint.h"
#include "proto/mlx5/cqe.h"
#include "proto/mlx5/wqe.h"

namespace gdx::doctor {

inline constexpr std::size_t kBufferBytes = 8192;
inline constexpr int kWaitS = 5;
// Retries end, with syndrome 0x15, within kWaitS, whatever the environment says.
inline constexpr std::uint8_t kAckTimeout = 14;  // 67 ms
inline constexpr std::uint8_t kRetryCount = 3;
static_assert((kRetryCount + 1) * 4 * (4096ull << kAckTimeout) < kWaitS * 1'000'000'000ull);

void fill_pattern(std::span<std::byte> bytes, std::uint32_t seed);
// Compares with the pattern of `seed`. Describes the first wrong byte, where it lies in its words, and
// whether it is the pattern's before; empty: none.
[[nodiscard]] std::string first_mismatch(const std::byte* got, std::size_t bytes, std::uint32_t seed);

struct Completed {
  mlx5::Cqe64 cqe{};

  [[nodiscard]] mlx5::CqeOpcode opcode() const;
  [[nodiscard]] mlx5::WqeOpcode send_opcode() const;
  [[nodiscard]] std::uint32_t qpn() const { return cqe.send_opcode_qpn & 0xffffff; }
  [[nodiscard]] std::uint16_t wqe_counter() const { return cqe.wqe_counter; }
  [[nodiscard]] mlx5::Syndrome syndrome() const;       // kNone where it is no error
  [[nodiscard]] std::uint8_t vendor_syndrome() const;  // 0 where it is no error
  // "opcode 0, WQE 3 (opcode 0x8), QP 0x12, syndrome 0x00, vendor 0x00, owner 1".
  [[nodiscard]] std::string text() const;
  // Returns the entry's bytes in hexadecimal.
  [[nodiscard]] std::string bytes() const;
};
// Describes a completion that is another than wanted.
[[nodiscard]] std::string describe_wrong(const Completed& completed, std::uint16_t index,
                                         mlx5::WqeOpcode opcode, std::uint32_t qpn,
                                         mlx5::Syndrome wanted = mlx5::Syndrome::kNone);

struct PairOptions {
  std::uint32_t blocks;  // blocks of the send queue; the CQ has as many entries
  StagingPools pools = {};
  Sharing sharing = Sharing::kExclusive;
  DoorbellKind doorbell = DoorbellKind::kPlain;  // BlueFlame is permitted on hardware: steps probe it
  const Hca* other = nullptr;                    // HCA of the target and the peer; null: the same HCA
  const Gpu* gpu = nullptr;                      // GPU whose kernels reach the endpoint, source and target
  bool shares_page = false;                      // rings in the register page that a context shares
  std::optional<Placement> queues = {};          // none: as endpoints of kernels have it by default
};

struct EndpointPair {
  // Errors: as Endpoint::create, connect and map_to, and Gpu::map.
  [[nodiscard]] static Result<EndpointPair> open(const Hca& hca, const PairOptions& options);

  Memory source;  // kBufferBytes, as the target
  Memory target;
  Endpoint endpoint;
  Endpoint peer;  // only answers, because an error ends both
  std::vector<std::shared_ptr<GpuMapping>> mappings = {};
};

}  // namespace gdx::doctor
