// The oracle of one direction: what a requester posted, what the peer's memory must therefore hold, and
// which completions both sides are owed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "driver-shim/softhca/transport/rc_types.h"
#include "proto/roce/headers.h"
#include "tests/sim/random.h"

namespace gdx::sim {

using softhca::transport::ReceiveCompletion;
using softhca::transport::WorkRequest;

inline constexpr std::uint64_t kRegionAddress = 0x7fff00000000;
inline constexpr std::uint32_t kRegionBytes = 8192;
inline constexpr std::uint32_t kRegionKeys = 6;  // the first one cannot be invalidated
inline constexpr std::uint32_t kReceiveBytes = 8192;

// The keys of a node's memory are kRegionKeys numbers from this one on.
constexpr std::uint32_t first_key_of(std::uint32_t node) { return 0x00c0ffe0 + node * 0x100; }

// Faults that a work request can carry in itself.
enum class Flaw {
  kNone,
  kBadRkey,
  kOutOfRange,
  kMisalignedAtomic,
  kTooLongForReceive,
  kLocalMemory,
  kUnknownOpcode,
  kInvalidatedKey
};
inline constexpr std::uint64_t kFlaws = 7;

class Ledger {
 public:
  // Records the posts of node `poster` to node `target`, whose memory is `initial_memory`.
  Ledger(std::uint32_t poster, std::uint32_t target, std::span<const std::byte> initial_memory);

  // A random work request, entered into the books as if executed at once. After a flawed one nothing
  // more is expected to execute.
  WorkRequest post(Random& random, std::uint32_t mtu_bytes, Flaw flaw);

  // Byte `offset` of what a work request of this poster carries.
  [[nodiscard]] std::byte payload_byte(const WorkRequest& request, std::uint32_t offset) const {
    return static_cast<std::byte>(request.cookie * 131 + poster_ * 59 + offset * 7 + (offset >> 8) * 13);
  }

  // The following note events and return what is wrong with them, or an empty string.
  std::string on_complete(const WorkRequest& request, mlx5::Syndrome syndrome,
                          std::span<const std::byte> peer_memory);
  std::string on_scatter(const WorkRequest& request, std::uint32_t offset_bytes,
                         std::span<const std::byte> payload);
  std::string on_apply(const WorkRequest& request);
  std::string on_receive(const ReceiveCompletion& completion, std::span<const std::byte> buffer,
                         std::span<const std::byte> memory);
  // Checks an answer that the target is about to send. `psns` counts from the connection's first PSN to the
  // answer's (-1: a PSN before the first). `executed_psns` counts to the newest that the target has taken.
  // The answer's MSN counts from the first message. `exact`: no request was ever repeated.
  [[nodiscard]] std::string check_answer(const roce::Headers& answer, std::int32_t psns,
                                         std::int32_t executed_psns, bool exact) const;
  // Number, from 1, of the message to which the PSN belongs that is `psns` after the first one.
  [[nodiscard]] std::uint32_t message_at(std::uint32_t psns) const;
  // Returns whether that is a READ or an atomic.
  [[nodiscard]] bool wants_response(std::uint32_t psns) const {
    return !messages_.empty() && messages_[message_at(psns) - 1].answered;
  }

  [[nodiscard]] std::string check_memory(std::span<const std::byte> memory, std::uint64_t upto) const;
  [[nodiscard]] bool all_completed() const { return completed_ == posted_.size(); }
  [[nodiscard]] bool all_received() const { return received_ == receives_.size(); }
  [[nodiscard]] std::size_t posted() const { return posted_.size(); }
  [[nodiscard]] std::size_t succeeded() const { return succeeded_; }
  [[nodiscard]] mlx5::Syndrome first_error() const { return first_error_; }
  [[nodiscard]] std::optional<std::size_t> flawed() const { return flawed_; }
  [[nodiscard]] mlx5::Syndrome flaw_syndrome() const { return flaw_syndrome_; }

 private:
  struct Posted {
    WorkRequest request;
    std::vector<std::byte> expected;  // READ or atomic: what must come back
    std::vector<std::pair<std::uint32_t, std::byte>>
        newer;  // or this at that offset: written since, unfenced
    std::uint32_t scattered_bytes = 0;
  };
  // A READ that nothing posted after it has waited for.
  struct UnfencedRead {
    std::size_t number;
    std::uint64_t begin, end;
  };
  // PSNs of a message, from the connection's first one.
  struct Message {
    std::uint32_t first_psn, end_psn;
    bool answered;  // READ or atomic: by its response
  };

  void choose_operation(Random& random, std::uint32_t mtu_bytes, WorkRequest& request);
  void choose_atomic(Random& random, WorkRequest& request) const;
  void choose_invalidation(Random& random, WorkRequest& request);
  void apply_flaw(Flaw flaw, WorkRequest& request);
  void fence_if_needed(Random& random, WorkRequest& request);
  void number(const WorkRequest& request, std::uint32_t mtu_bytes);
  void execute(Posted& posted);
  void store(std::uint32_t offset, std::byte value, std::uint64_t writer);

  std::uint32_t poster_;
  std::vector<std::uint32_t> keys_;         // those that still work
  std::vector<std::uint32_t> gone_keys_;    // those that a SEND has invalidated
  std::vector<std::byte> memory_;           // the peer's, once everything posted has executed
  std::vector<std::uint64_t> last_writer_;  // per byte of it: number of the work request, from 1
  std::vector<Posted> posted_;
  std::vector<std::size_t> receives_;  // those that complete a receive, in order
  std::vector<UnfencedRead> unfenced_reads_;
  std::vector<Message> messages_;
  std::size_t completed_ = 0;
  std::optional<std::uint64_t> applied_;  // the newest change of a key
  std::size_t succeeded_ = 0;
  std::size_t received_ = 0;
  mlx5::Syndrome first_error_ = mlx5::Syndrome::kNone;
  std::optional<std::size_t> flawed_;
  mlx5::Syndrome flaw_syndrome_ = mlx5::Syndrome::kNone;
};

}  // namespace gdx::sim
