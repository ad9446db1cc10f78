// The books of one requester's retries: what each try sent, and what became of it and of the answers. They
// tell whether a try that failed had to. PSNs count from the connection's first one.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "driver-shim/softhca/transport/rc_types.h"
#include "tests/sim/ledger.h"
#include "tests/sim/link.h"

namespace gdx::sim {

struct Answer {
  enum class Kind : std::uint8_t { kAck, kSequenceNak, kRnrNak, kOtherNak, kData };
  Kind kind = Kind::kAck;
  std::int32_t psn = 0;
  std::uint64_t wait_ns = 0;  // of an RNR NAK
};

// A series of tries begins with progress and with an RNR NAK. Its tries fail by a timeout, and by the first
// report of the oldest PSN's loss, once between timeouts. Each must have a cause in itself:
//   timeout: a packet up to the first that asked for an ACK, or its answer, was lost or late;
//     or a host paused
//   report of a loss: the oldest PSN, or what answers it, was lost; a packet was late, or came twice; or what
//     is reported happened before the try's first packet arrived
class Tries {
 public:
  Tries(const softhca::transport::RcConfig& config, std::uint64_t delay_ns)
      : config_(config), delay_ns_(delay_ns) {}

  // Attaches the ledger of this requester's posts, which outlives these books.
  void attach(const Ledger& own) { own_ = &own; }
  void on_request(std::uint64_t now_ns, std::int32_t first, std::int32_t end, bool asks, const Fate& fate);
  // The peer has sent it, or it has arrived, sent at `sent_ns`.
  void on_answer_sent(std::uint64_t now_ns, const Answer& answer, const Fate& fate);
  void on_answer(std::uint64_t now_ns, std::uint64_t sent_ns, const Answer& answer);
  void on_time(std::uint64_t now_ns);
  // Returns what is wrong with it: it came early, or without a packet that waited for an answer.
  std::string on_timeout(std::uint64_t now_ns);
  void on_pause(std::size_t host, std::uint64_t begin_ns, std::uint64_t end_ns) {
    pauses_[host] = {begin_ns, end_ns};
  }

  // Returns whether the series has used up the retries, each try with its cause. From `silent_ns` on the peer
  // answers nothing.
  [[nodiscard]] bool exhausted(std::uint64_t silent_ns) const;
  [[nodiscard]] std::uint64_t failed() const { return failed_; }  // in all series
  [[nodiscard]] std::uint64_t unexplained(std::uint64_t silent_ns) const;
  [[nodiscard]] std::string text() const;

 private:
  struct Request {
    std::int32_t first, end;
    bool asks;
    std::uint64_t sent_ns;
    Fate fate;
  };
  struct SentAnswer {
    Answer answer;
    std::uint64_t sent_ns;
    Fate fate;
  };
  struct Pause {
    std::uint64_t begin_ns = 0, end_ns = 0;
  };

  [[nodiscard]] bool wants_data(std::int32_t psn) const {
    return own_->wants_response(static_cast<std::uint32_t>(psn));
  }
  [[nodiscard]] std::uint64_t arrival_ns(const Request& request) const;
  [[nodiscard]] bool request_explains(const Request& request) const;
  [[nodiscard]] bool answer_explains(const SentAnswer& sent) const;
  [[nodiscard]] bool timeout_explained(std::uint64_t now_ns, const Request& asking) const;
  [[nodiscard]] bool loss_explained(bool data, std::uint64_t sent_ns) const;
  void on_loss(std::uint64_t now_ns, std::uint64_t sent_ns, bool data);
  void begin_series(std::uint64_t now_ns);
  void fail(std::uint64_t now_ns, bool explained);
  void go_back();

  const softhca::transport::RcConfig& config_;
  const std::uint64_t delay_ns_;
  const Ledger* own_ = nullptr;
  std::int32_t oldest_ = 0;  // without an answer
  std::int32_t sent_end_ = 0;
  std::optional<std::int32_t> reported_;  // was lost, and its try has failed for that
  std::uint64_t waits_until_ns_ = 0;      // for receives; 0: it does not
  std::uint64_t series_began_ns_ = 0;
  std::uint32_t series_failed_ = 0;
  std::uint64_t failed_ = 0;
  std::vector<std::uint64_t> unexplained_ns_;
  std::vector<Request> requests_;    // of this try, oldest first
  std::vector<SentAnswer> answers_;  // sent since it began
  std::int32_t newest_late_request_ = -1;
  std::int32_t newest_late_answer_ = -1;
  std::array<Pause, 2> pauses_;  // the newest of each host
};

}  // namespace gdx::sim
