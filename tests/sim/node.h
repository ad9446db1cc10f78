// One end of the simulated connection: memory, a receive queue, a requester and a responder, and the
// Ports between them and the link.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "driver-shim/softhca/transport/rc.h"
#include "tests/sim/ledger.h"
#include "tests/sim/link.h"
#include "tests/sim/tries.h"

namespace gdx::sim {

namespace transport = softhca::transport;

// Receive WQEs of one node, or of several that share them.
struct ReceivePool {
  std::uint64_t posted = 0;
  std::uint64_t taken = 0;
};

// The newest message, from 1, for which answers with credits promise a receive. Kept with the specification's
// table, not with the transport's arithmetic.
class ReceiveBooks {
 public:
  // An answer whose MSN counts `messages`. Not an ACK: it says nothing.
  void note(const roce::Headers& answer, std::uint32_t messages);
  [[nodiscard]] bool told() const { return newest_.has_value(); }
  [[nodiscard]] std::uint32_t newest() const { return newest_.value_or(0); }
  [[nodiscard]] bool promises(std::uint32_t message) const { return newest_ && message <= *newest_; }

 private:
  std::optional<std::uint32_t> newest_;  // the maximum: nothing is bounded
};

class Node final : transport::RequesterPort, transport::ResponderPort {
 public:
  using Transmit = std::function<Fate(std::vector<std::byte>)>;

  // `initial_memory` is this node's; the peer's ledger must start from the same bytes. `receives` outlives
  // the node.
  Node(std::uint32_t number, const transport::RcConfig& config, const LinkFaults& faults,
       std::vector<std::byte> initial_memory, ReceivePool& receives, bool advertises, Transmit transmit);

  // The books of what this node posts, and those of what its peer posts. Both outlive the node.
  void attach(Node& peer, Ledger& own, Ledger& peers);
  void post(const WorkRequest& request) { requester_.post(request); }
  // BTH to padding, as it came out of a datagram whose ICRC was right.
  void on_datagram(std::uint64_t now_ns, std::uint64_t sent_ns, std::span<const std::byte> datagram);
  void on_timer(std::uint64_t now_ns);
  void pump(std::uint64_t now_ns, std::uint32_t max_packets);
  void fail_local_memory_of(std::uint64_t cookie) { broken_request_ = cookie; }

  [[nodiscard]] bool can_send(std::uint64_t now_ns) const;
  [[nodiscard]] std::uint64_t next_deadline_ns() const { return requester_.next_deadline_ns(); }
  [[nodiscard]] bool in_error() const { return dead_ || requester_.in_error(); }
  // kNever: it is not in error.
  [[nodiscard]] std::uint64_t error_ns() const { return error_ns_; }
  // RNR NAKs for one and the same PSN, each when the wait for the one before it was over.
  [[nodiscard]] std::uint32_t refusals_in_a_row() const { return refusals_in_a_row_; }
  [[nodiscard]] const Tries& tries() const { return tries_; }
  void on_pause(std::size_t host, std::uint64_t begin_ns, std::uint64_t end_ns) {
    tries_.on_pause(host, begin_ns, end_ns);
  }
  [[nodiscard]] const std::vector<std::byte>& memory() const { return memory_; }
  [[nodiscard]] const std::string& problem() const { return problem_; }
  [[nodiscard]] const transport::Requester& requester() const { return requester_; }
  [[nodiscard]] const transport::Responder& responder() const { return responder_; }

 private:
  mlx5::Syndrome send(const roce::Headers& headers, const WorkRequest& request, std::uint32_t offset_bytes,
                      std::uint32_t length_bytes) override;
  mlx5::Syndrome scatter(const WorkRequest& request, std::uint32_t offset_bytes,
                         std::span<const std::byte> payload) override;
  mlx5::Syndrome apply(const WorkRequest& request) override;
  void complete(const WorkRequest& request, mlx5::Syndrome syndrome) override;

  void send(const roce::Headers& headers) override;
  bool send_from_memory(const roce::Headers& headers, std::uint32_t rkey, std::uint64_t address,
                        std::uint32_t length_bytes) override;
  bool check(transport::RemoteOperation operation, std::uint32_t rkey, std::uint64_t address,
             std::uint32_t length_bytes) override;
  bool write(std::uint32_t rkey, std::uint64_t address, std::span<const std::byte> payload) override;
  std::optional<std::uint64_t> execute(std::uint32_t rkey, std::uint64_t address,
                                       const transport::AtomicOperation& operation) override;
  bool take_receive() override;
  [[nodiscard]] std::optional<std::uint32_t> posted_receives() const override;
  mlx5::Syndrome scatter_receive(std::uint32_t offset_bytes, std::span<const std::byte> payload) override;
  void complete_receive(const transport::ReceiveCompletion& completion) override;
  bool invalidate(std::uint32_t rkey) override;
  void fatal(mlx5::Syndrome syndrome) override;

  std::byte* locate(std::uint64_t address, std::size_t length_bytes);
  void note(std::string problem);
  // Each request that arrives moves one: it is taken, dropped and counted, or refused.
  [[nodiscard]] std::array<std::uint64_t, 5> fates_of_requests() const;
  void check_invariants();
  void note_error(std::uint64_t now_ns);
  void check_answer(const roce::Headers& answer);
  void count_refusal(std::uint64_t now_ns, const roce::Headers& headers);
  [[nodiscard]] std::uint32_t messages_to(std::uint32_t msn) const;
  void check_refusal(const roce::Headers& answer);
  void check_credits(const roce::Headers& answer);
  void record_answer(const roce::Headers& answer);
  void check_probe();
  void record_response(std::int32_t psns);
  [[nodiscard]] bool lacks_response_before(std::int32_t psns) const;
  [[nodiscard]] static Answer answer_of(const roce::Headers& headers, std::uint32_t first_psn);
  void transmit_answer(const roce::Headers& headers, std::vector<std::byte> datagram);
  [[nodiscard]] std::uint64_t probe_interval_ns() const;
  void check_request(const roce::Headers& headers, const WorkRequest& request, std::uint32_t offset_bytes);

  const transport::RcConfig config_;
  std::uint32_t first_key_;
  std::uint32_t keys_ = (1u << kRegionKeys) - 1;  // a bit for each that works
  std::vector<std::byte> memory_;
  Transmit transmit_;
  Node* peer_ = nullptr;
  Ledger* own_ = nullptr;
  Ledger* peers_ = nullptr;
  ReceivePool& receives_;
  const bool advertises_;
  std::deque<std::vector<std::byte>> taken_;  // their buffers, oldest first
  std::optional<std::uint64_t> broken_request_;
  bool dead_ = false;
  std::uint64_t error_ns_ = transport::kNever;
  std::uint64_t now_ns_ = 0;            // of the call in progress
  ReceiveBooks permitted_peer_;         // receives that this node granted in its answers
  ReceiveBooks permitted_;              // receives that the peer's answers permitted this node
  std::uint32_t arriving_message_ = 0;  // to which the request in progress belongs
  bool answers_waited_ = false;         // true if answers waited when it arrived
  bool receives_wanted_ = false;        // by some message
  std::int32_t newest_answer_ = -1;     // newest PSN of an answer that this node has sent, from the first one
  std::int32_t newest_acknowledged_ = -1;  // newest PSN that answers of the peer acknowledge
  std::uint32_t asking_message_ = 0;       // that went beyond the limit last; 0: none has
  bool refused_ = false;                   // it was
  std::map<std::int32_t, std::int32_t>
      unanswered_;                       // READs and atomics: PSN behind the last, next PSN expected
  std::uint32_t told_at_refusal_ = ~0u;  // newest message permitted when a receive was missing last
  std::uint64_t ask_after_ns_ = 0;       // before then no other may
  std::uint64_t probes_seen_ = 0;
  std::uint32_t refused_psn_ = 0;
  std::uint64_t refused_until_ns_ = 0;
  std::uint32_t refusals_in_a_row_ = 0;
  Tries tries_;
  std::string problem_;
  transport::Requester requester_;
  transport::Responder responder_;
};

}  // namespace gdx::sim
