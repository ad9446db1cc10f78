// Two endpoints of one HCA that are connected to each other, and the processor in place of a kernel: it
// writes work requests of the first, rings and reads completions one by one, whatever they are.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "host/hca/hca.h"
#include "host/memory/memory.h"
#include "host/queue/endpoint.h"
#include "proto/mlx5/cqe.h"
#include "proto/mlx5/wqe.h"

namespace gdx::doctor {

// Each `seed` has a pattern of its own.
void fill_pattern(std::span<std::byte> bytes, std::uint32_t seed);
// Compares with the pattern of `seed`. Describes the first wrong byte, where it lies in its words, and
// whether it is the pattern's before; empty: none.
[[nodiscard]] std::string first_mismatch(const std::byte* got, std::size_t bytes, std::uint32_t seed);

// A send WQE that is being built; its control segment is filled in when it is posted.
class WorkRequest {
 public:
  explicit WorkRequest(mlx5::WqeOpcode opcode, std::uint8_t flags = mlx5::kCompletionAlways);
  WorkRequest& remote(std::uint64_t address, std::uint32_t rkey);
  WorkRequest& gather(std::uint64_t address, std::uint32_t lkey, std::uint32_t bytes);
  WorkRequest& inlined(std::span<const std::byte> payload);
  WorkRequest& operand(std::uint64_t addend);

  [[nodiscard]] std::size_t blocks() const;
  // Padded with zeros to whole blocks, as the WQE at `index` of queue pair `qpn`.
  [[nodiscard]] std::vector<std::byte> encode(std::uint16_t index, std::uint32_t qpn) const;

 private:
  template <typename T>
  void append(const T& part);

  mlx5::WqeOpcode opcode_;
  std::uint8_t flags_;
  std::vector<std::byte> segments_;  // behind the control segment
};

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
};

// Threads: one.
class Loopback {
 public:
  static constexpr std::size_t kBufferBytes = 8192;
  static constexpr int kWaitS = 5;
  // Retries end, with syndrome 0x15, within kWaitS, whatever the environment says.
  static constexpr std::uint8_t kAckTimeout = 14;  // 67 ms
  static constexpr std::uint8_t kRetryCount = 3;
  static_assert((kRetryCount + 1) * 4 * (4096ull << kAckTimeout) < kWaitS * 1'000'000'000ull);

  // A send queue of `blocks`, which complete in a queue of as many. BlueFlame is permitted on hardware,
  // because steps probe it. `other`: the HCA of the target and the second endpoint; null: `hca`. Errors: as
  // Endpoint::create and connect.
  [[nodiscard]] static Result<Loopback> open(const Hca& hca, std::uint32_t blocks,
                                             StagingPool* pool = nullptr,
                                             Sharing sharing = Sharing::kExclusive,
                                             DoorbellKind doorbell = DoorbellKind::kPlain,
                                             const Hca* other = nullptr);

  // Source and target, of kBufferBytes each.
  [[nodiscard]] const Memory& source() const { return source_; }
  [[nodiscard]] const Memory& target() const { return target_; }
  [[nodiscard]] const EndpointHandle& handle() const { return handle_; }
  [[nodiscard]] const Endpoint& endpoint() const { return endpoint_; }
  [[nodiscard]] std::uint16_t next_index() const { return static_cast<std::uint16_t>(producer_); }

  // Writes it to the ring. Returns its index.
  std::uint16_t post(const WorkRequest& request);
  // Tells the record of all that is posted, and rings with the newest, by 8 B.
  void ring();
  // With the doorbell of the WQE of one block at `index`, and no record.
  void ring_for(std::uint16_t index);
  // The record alone.
  void publish();
  // Waits up to kWaitS for the next completion.
  [[nodiscard]] std::optional<Completed> poll();
  // The completion queue's entry at which poll() looked last, in hexadecimal.
  [[nodiscard]] std::string newest_entry() const;

 private:
  Loopback(Endpoint endpoint, Endpoint peer, Memory source, Memory target);
  [[nodiscard]] Completed read_entry(std::uint32_t index) const;

  Memory source_;
  Memory target_;
  Endpoint endpoint_;
  Endpoint peer_;  // only answers, because an error ends both
  EndpointHandle handle_;
  std::uint32_t producer_ = 0;
  std::uint32_t newest_ = 0;  // index of the newest WQE
  std::uint32_t consumer_ = 0;
  std::uint32_t looked_at_ = 0;  // by the newest poll()
};

// Puts 64 B and waits for the completion. Returns what went wrong; empty: nothing.
[[nodiscard]] std::string put_once(Loopback& loopback);

}  // namespace gdx::doctor
