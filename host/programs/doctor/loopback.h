// A pair of endpoints, and the processor in place of a kernel: it writes work requests of the first, rings
// and reads completions one by one, whatever they are.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "host/programs/doctor/endpoint_pair.h"
#include "proto/mlx5/wqe.h"

namespace gdx::doctor {

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

// Threads: one.
class Loopback {
 public:
  // Errors: as EndpointPair::open.
  [[nodiscard]] static Result<Loopback> open(const Hca& hca, const PairOptions& options);

  // Source and target, of kBufferBytes each.
  [[nodiscard]] const Memory& source() const { return pair_.source; }
  [[nodiscard]] const Memory& target() const { return pair_.target; }
  [[nodiscard]] const EndpointHandle& handle() const { return handle_; }
  [[nodiscard]] const Endpoint& endpoint() const { return pair_.endpoint; }
  [[nodiscard]] std::uint16_t next_index() const { return static_cast<std::uint16_t>(producer_); }

  // Writes it to the ring. Returns its index.
  std::uint16_t post(const WorkRequest& request);
  // Tells the record of all that is posted, and rings with the newest, by 8 B.
  void ring();
  // Rings the doorbell of the WQE of one block at `index`, and stores no record.
  void ring_for(std::uint16_t index);
  // Stores the doorbell record and rings no doorbell.
  void publish();
  // Waits up to kWaitS for the next completion.
  [[nodiscard]] std::optional<Completed> poll();
  // The completion queue's entry at which poll() looked last, in hexadecimal.
  [[nodiscard]] std::string newest_entry() const;

 private:
  explicit Loopback(EndpointPair pair);
  [[nodiscard]] Completed read_entry(std::uint32_t index) const;

  EndpointPair pair_;
  EndpointHandle handle_;
  std::uint32_t producer_ = 0;
  std::uint32_t newest_ = 0;  // index of the newest WQE
  std::uint32_t consumer_ = 0;
  std::uint32_t looked_at_ = 0;  // entry at which the newest poll() looked
};

// Puts 64 B and waits for the completion. Returns what went wrong; empty: nothing.
[[nodiscard]] std::string put_once(Loopback& loopback);

}  // namespace gdx::doctor
