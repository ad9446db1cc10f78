// Ports that write down what the transport does, and configurations to go with them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "driver-shim/softhca/transport/rc.h"
#include "proto/roce/codec.h"

namespace gdx::softhca::transport::test {

inline constexpr std::uint32_t kMtu = 256;
inline constexpr std::uint32_t kRkey = 0x1234;
inline constexpr std::uint64_t kAddress = 0x10000;
inline constexpr std::uint32_t kAll = ~0u;

inline RcConfig make_config(std::uint32_t psn = 100) {
  RcConfig config;
  config.local_qpn = 0x11;
  config.remote_qpn = 0x22;
  config.send_psn = psn;
  config.receive_psn = psn;
  config.mtu_bytes = kMtu;
  config.ack_timeout = 1;  // 8192 ns
  config.retry_count = 2;
  config.min_rnr_timer = 1;
  config.max_rd_atomic = 2;
  config.max_dest_rd_atomic = 2;
  config.remote_write = config.remote_read = config.remote_atomic = true;
  return config;
}

// Returns the bytes of a packet's headers, so that a test compares all of them.
inline std::vector<std::byte> encoded(const roce::Headers& headers) {
  std::vector<std::byte> bytes(roce::header_bytes(headers.bth.opcode));
  EXPECT_EQ(roce::encode(headers, bytes), bytes.size());
  return bytes;
}

struct SentSegment {
  roce::Headers headers;
  std::uint64_t cookie;
  std::uint32_t offset_bytes;
  std::uint32_t length_bytes;
};

class RecordingRequesterPort final : public RequesterPort {
 public:
  mlx5::Syndrome send(const roce::Headers& headers, const WorkRequest& request, std::uint32_t offset_bytes,
                      std::uint32_t length_bytes) override {
    if (send_fails_for == request.cookie) return mlx5::Syndrome::kLocalProtection;
    sent.push_back({headers, request.cookie, offset_bytes, length_bytes});
    return mlx5::Syndrome::kNone;
  }
  mlx5::Syndrome scatter(const WorkRequest& request, std::uint32_t offset_bytes,
                         std::span<const std::byte> payload) override {
    scattered.push_back({request.cookie, offset_bytes});
    scattered_bytes.insert(scattered_bytes.end(), payload.begin(), payload.end());
    return scatter_result;
  }
  mlx5::Syndrome apply(const WorkRequest& request) override {
    applied.push_back({request.cookie, sent.size()});
    return apply_result;
  }
  void complete(const WorkRequest& request, mlx5::Syndrome syndrome) override {
    completed.push_back({request.cookie, syndrome});
  }

  void note_resend(ResendCause cause, std::uint32_t psn) override { resends.push_back({cause, psn}); }

  // PSNs sent since the last call.
  std::vector<std::uint32_t> take_psns() {
    std::vector<std::uint32_t> psns;
    for (const SentSegment& segment : sent) psns.push_back(segment.headers.bth.psn);
    sent.clear();
    return psns;
  }

  std::vector<std::pair<ResendCause, std::uint32_t>> resends;
  std::optional<std::uint64_t> send_fails_for;
  mlx5::Syndrome scatter_result = mlx5::Syndrome::kNone;
  mlx5::Syndrome apply_result = mlx5::Syndrome::kNone;
  std::vector<std::pair<std::uint64_t, std::size_t>> applied;  // and how many packets had been sent
  std::vector<SentSegment> sent;
  std::vector<std::pair<std::uint64_t, std::uint32_t>> scattered;
  std::vector<std::byte> scattered_bytes;
  std::vector<std::pair<std::uint64_t, mlx5::Syndrome>> completed;
};

// Actions of the responder, in order, as one letter each: S send, R read response, C receive completion, W
// write, A atomic, I invalidate, F fatal.
class RecordingResponderPort final : public ResponderPort {
 public:
  void send(const roce::Headers& headers) override {
    sent.push_back(headers);
    trace += 'S';
  }
  bool send_from_memory(const roce::Headers& headers, std::uint32_t rkey, std::uint64_t address,
                        std::uint32_t length_bytes) override {
    EXPECT_EQ(length_bytes > 0 ? rkey : kRkey, kRkey);
    if (!memory_readable) return false;
    sent.push_back(headers);
    read_ranges.push_back({address, length_bytes});
    trace += 'R';
    return true;
  }
  bool check(RemoteOperation operation, std::uint32_t rkey, std::uint64_t address,
             std::uint32_t length_bytes) override {
    checks.push_back(operation);
    return rkey == kRkey && address >= kAddress && address + length_bytes <= kAddress + memory.size();
  }
  bool write(std::uint32_t rkey, std::uint64_t address, std::span<const std::byte> payload) override {
    EXPECT_EQ(rkey, kRkey);
    if (!memory_writable) return false;
    trace += 'W';
    std::copy(payload.begin(), payload.end(), memory.begin() + (address - kAddress));
    return true;
  }
  std::optional<std::uint64_t> execute(std::uint32_t rkey, std::uint64_t address,
                                       const AtomicOperation& operation) override {
    EXPECT_EQ(std::pair(rkey, address), std::pair(kRkey, kAddress));
    if (!memory_is_there) return std::nullopt;
    trace += 'A';
    return std::exchange(word, operation.result(word));
  }
  bool take_receive() override { return receives > 0 && receives-- > 0; }
  [[nodiscard]] std::optional<std::uint32_t> posted_receives() const override {
    return advertises ? std::optional(static_cast<std::uint32_t>(receives)) : std::nullopt;
  }
  mlx5::Syndrome scatter_receive(std::uint32_t offset_bytes, std::span<const std::byte> payload) override {
    received_at.push_back(offset_bytes);
    if (receive_result == mlx5::Syndrome::kNone) received_bytes += payload.size();
    return receive_result;
  }
  void complete_receive(const ReceiveCompletion& completion) override {
    completions.push_back(completion);
    trace += 'C';
  }
  bool invalidate(std::uint32_t rkey) override {
    trace += 'I';
    return rkey == kRkey;
  }
  void fatal(mlx5::Syndrome syndrome) override {
    fatal_syndrome = syndrome;
    trace += 'F';
  }

  std::string trace;
  std::vector<roce::Headers> sent;
  std::vector<RemoteOperation> checks;
  std::vector<std::pair<std::uint64_t, std::uint32_t>> read_ranges;
  std::array<std::byte, 4096> memory{};
  std::uint64_t word = 0;
  int receives = 0;
  bool advertises = false;
  std::size_t received_bytes = 0;
  std::vector<std::uint32_t> received_at;  // offsets of payloads in their messages
  bool memory_readable = true;
  bool memory_writable = true;
  bool memory_is_there = true;  // during an atomic
  mlx5::Syndrome receive_result = mlx5::Syndrome::kNone;
  std::vector<ReceiveCompletion> completions;
  mlx5::Syndrome fatal_syndrome = mlx5::Syndrome::kNone;
};

}  // namespace gdx::softhca::transport::test
