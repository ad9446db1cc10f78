// One HCA with a queue pair laid out by hand, as libmlx5 lays it out: rings and doorbell records in
// memory, a UAR page to ring, CQEs polled by their owner bit.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "driver-shim/softhca/engine/engine.h"
#include "proto/mlx5/cqe.h"
#include "proto/mlx5/wqe.h"

namespace gdx::softhca::test {

// Secret of the tokens of all nodes that open a wire themselves.
inline constexpr SipKey kTokenSecret{0x6764782d68636131, 0x6764782d68636132};

struct Remote {
  std::uint64_t address = 0;
  std::uint32_t rkey = 0;
};

struct Local {
  std::uint64_t address = 0;
  std::uint32_t length_bytes = 0;
  std::uint32_t lkey = 0;
};

// Content of a CQE, in any of its forms.
struct Polled {
  mlx5::CqeOpcode opcode;
  mlx5::Syndrome syndrome;
  std::uint16_t wqe_counter;
  std::uint32_t byte_count;
  std::uint32_t immediate;
  mlx5::Cqe64 cqe;
};

class Node {
 public:
  static constexpr std::uint32_t kSendBlocks = 256;
  static constexpr std::uint32_t kReceives = 16;
  static constexpr std::uint32_t kLogCqEntries = 9;
  static constexpr std::size_t kDeviceMemoryBytes = 4096;
  static constexpr std::uint32_t kAllAccess = kLocalWrite | kRemoteWrite | kRemoteRead | kRemoteAtomic;
  static constexpr std::uint32_t kQkey = 0x11223344;  // of UD
  // Local ACK timeout codes: 8 s, longer than the machine stands still, and 2 ms, for tests of timeouts.
  static constexpr std::uint8_t kPatient = 21;
  static constexpr std::uint8_t kHasty = 9;

  explicit Node(const wire::FaultConfig& faults = {}, std::size_t memory_bytes = 4 << 20,
                wire::Carrier carrier = wire::Carrier::kUdp, QpType type = QpType::kRc);
  // On a wire of the test's own.
  explicit Node(std::unique_ptr<wire::Wire> wire, std::size_t memory_bytes = 4 << 20,
                const HcaConfig& config = {}, const Clock& clock = monotonic_ns, QpType type = QpType::kRc);

  void connect_to_rtr(const Node& peer);  // RESET to RTR
  // RESET to RTS against `peer`.
  void connect(const Node& peer, std::uint8_t timeout = kPatient, std::uint8_t retry_count = 7);
  Errno modify_to_error();
  Errno modify_to_reset();  // the rings are to be used from their first entry again

  // Queues a WQE without ringing. `signaled`: completes with a CQE.
  std::uint16_t post_write(const Local& local, const Remote& remote, bool signaled = true);
  std::uint16_t post_write_immediate(const Local& local, const Remote& remote, std::uint32_t immediate);
  std::uint16_t post_read(const Local& local, const Remote& remote);
  std::uint16_t post_send(const Local& local);
  std::uint16_t post_send_inline(std::span<const char> text, std::uint32_t immediate);
  std::uint16_t post_fetch_add(const Local& local, const Remote& remote, std::uint64_t add);
  std::uint16_t post_compare_swap(const Local& local, const Remote& remote, std::uint64_t compare,
                                  std::uint64_t swap);
  // On as many bytes as `result` has, 4 or 8.
  std::uint16_t post_masked_fetch_add(const Local& result, const Remote& target, std::uint64_t add,
                                      std::uint64_t boundaries);
  std::uint16_t post_masked_compare_swap(const Local& result, const Remote& target,
                                         const transport::AtomicOperation& operation);
  std::uint16_t post_raw(mlx5::WqeOpcode opcode, std::span<const std::byte> segments, std::uint8_t fm_ce_se,
                         std::uint32_t immediate = 0, std::uint32_t opmod = 0);
  void ring();          // record, then doorbell
  void write_record();  // the record alone
  void write_record_as(std::uint16_t produced);
  // The doorbell alone: a control segment's first 8 bytes, for whichever number.
  void ring_for(std::uint32_t named_qpn);
  // Record, then the WQE at `index` with its doorbell, as libmlx5 writes it: ascending, `blocks` long, to the
  // BlueFlame half at `offset`. `spoil` changes what is written on its way.
  void ring_blueflame(std::uint16_t index, std::size_t offset, std::size_t blocks = 1,
                      const std::function<void(std::span<std::uint64_t>)>& spoil = {});
  void post_receive(const Local& local);
  // For the next completion: the record, then the doorbell.
  void arm(std::uint32_t cqn);

  std::optional<Polled> poll_send() { return poll(send_ring_, send_record_, send_consumer_); }
  std::optional<Polled> poll_receive() {
    return poll(receive_cq_ring_, receive_cq_record_, receive_consumer_);
  }

  [[nodiscard]] Local local(std::size_t offset, std::uint32_t length_bytes) const;
  [[nodiscard]] Remote remote(std::size_t offset) const;
  [[nodiscard]] Local staging(std::size_t offset, std::uint32_t length_bytes) const;

  // Order: the HCA goes first, the memory that it watches last.
  std::vector<std::byte> memory;
  std::vector<std::uint64_t> device_memory;
  std::vector<std::uint64_t> uar_page;
  std::vector<int> events;    // of the queue pair
  int completion_events = 0;  // of both completion queues
  std::vector<mlx5::WqeBasicBlock> send_queue;
  std::vector<mlx5::DataSegment> receive_queue;
  std::uint32_t pd = 0;
  std::uint32_t qpn = 0;
  std::uint32_t send_cqn = 0;
  std::uint32_t receive_cqn = 0;
  std::uint32_t mkey = 0;
  std::uint32_t staging_key = 0;

 private:
  using OpenHca = std::function<Result<std::unique_ptr<Hca>>(const HcaConfig& config, std::byte* staging)>;
  Node(std::size_t memory_bytes, const OpenHca& open, QpType type = QpType::kRc);
  std::optional<Polled> poll(std::vector<mlx5::Cqe64>& ring, Be32* record, std::uint32_t& consumer);
  std::uint32_t make_cq(std::vector<mlx5::Cqe64>& ring, Be32* record);

  std::vector<mlx5::Cqe64> send_ring_;
  std::vector<mlx5::Cqe64> receive_cq_ring_;
  Be32 send_record_[2]{};
  Be32 receive_cq_record_[2]{};
  Be32 record_[2]{};
  std::uint16_t produced_ = 0;
  std::uint16_t receives_posted_ = 0;
  std::uint32_t send_consumer_ = 0;
  std::uint32_t receive_consumer_ = 0;

 public:
  std::unique_ptr<Hca> hca;
};

// Lets two connected nodes give each other their tokens (host_tokens.h), as their threads would.
void introduce(Node& a, Node& b);
// Steps both HCAs in turn until `done`, at most `limit` times; a minute ends what hangs. Returns whether it
// was.
bool drive(Node& a, Node& b, const std::function<bool()>& done, int limit = std::numeric_limits<int>::max());
// The next send completion of `a`.
std::optional<Polled> await_send(Node& a, Node& b);
std::optional<Polled> await_receive(Node& a, Node& b);
// The next send completion of a node whose peer does nothing.
std::optional<Polled> await_alone(Node& node);

}  // namespace gdx::softhca::test
