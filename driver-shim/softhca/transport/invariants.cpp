// Conditions that hold between events. Simulations, fuzzers and the asserts of queue pairs check them.
#include <algorithm>

#include "driver-shim/softhca/transport/peer_window.h"
#include "driver-shim/softhca/transport/rc.h"

namespace gdx::softhca::transport {

const char* Requester::check_invariants() const {
  if (in_error_) return queue_.empty() ? nullptr : "an error leaves work requests behind";
  if (unacked_ > send_psn_ || send_psn_ > sent_end_ || sent_end_ > posted_end_ || asked_end_ > sent_end_)
    return "PSNs are out of order";
  if (send_index_ < queue_.first() || send_index_ > queue_.end()) return "the cursor has left the queue";

  ExtendedPsn next = queue_.empty() ? posted_end_ : queue_.front().first_psn;
  std::uint32_t responses = 0;
  std::uint64_t response_psns = 0;
  for (std::uint64_t i = queue_.first(); i != queue_.end(); ++i) {
    const Entry& entry = queue_[i];
    if (entry.first_psn != next) return "PSNs of work requests leave a gap";
    next = entry.end_psn();
    if (i == send_index_ && (send_psn_ < entry.first_psn || send_psn_ > next))
      return "the cursor's PSN lies outside of its work request";
    if (i >= send_index_ || !entry.wants_response || entry.packets == 0) continue;
    ++responses;
    response_psns += entry.end_psn() - std::max(entry.first_psn, unacked_);
  }
  if (next != posted_end_) return "posted PSNs belong to no work request";
  if (!queue_.empty() && (unacked_ < queue_.front().first_psn || unacked_ > queue_.front().end_psn()))
    return "the oldest PSN without its ACK lies outside of the oldest work request";
  if (responses != responses_pending_) return "READs and atomics under way are miscounted";
  if (response_psns != response_psns_pending_) return "PSNs of READs under way are miscounted";
  if (responses > config_.max_rd_atomic) return "more READs and atomics are under way than permitted";

  const bool timed = ack_timeout_ns_ != kNever && awaits_acknowledge();
  if (timed != (ack_deadline_ns_ != kNever)) return "the ACK timer does not run exactly while an ACK is due";
  if (tail_packets_due_ > 0 && !awaits_acknowledge()) return "a tail is resent that is acknowledged";
  if (retries_left_ > config_.retry_count || rnr_retries_left_ > config_.rnr_retry)
    return "more retries are left than configured";
  return nullptr;
}

const char* Responder::check_invariants() const {
  if (executed_ >= expected_) return "a PSN is executed before it is expected";
  if (message_ == Message::kWrite && write_remaining_bytes_ == 0) return "a whole WRITE has not ended";
  if (message_ == Message::kWrite && offset_bytes_ + write_remaining_bytes_ != write_.length_bytes)
    return "received and missing bytes are not the WRITE's length";

  std::uint32_t requests = 0;
  std::uint32_t duplicates = 0;
  for (std::uint64_t i = responses_.first(); i != responses_.end(); ++i) {
    const Response& response = responses_[i];
    if (response.is_answer()) ++(response.duplicate ? duplicates : requests);
    if (response.kind == Response::Kind::kRead &&
        response.remaining_packets != packets_of(response.remaining_bytes, config_.mtu_bytes))
      return "packets and bytes of a READ response do not fit";
    if (response.psn > expected_) return "a response lies beyond the expected PSN";
  }
  if (!dead_ && requests != requests_pending_) return "READs and atomics without their answer are miscounted";
  if (requests > config_.max_dest_rd_atomic || duplicates > config_.max_dest_rd_atomic)
    return "more READs and atomics wait for answers than the peer may have outstanding";
  for (const Served& served : served_) {
    if (served.end_psn > expected_) return "an answer is kept for a request that has not come";
  }
  if (!responses_.empty() && responses_.front().kind != Response::Kind::kRead &&
      (responses_.front().kind != Response::Kind::kAck || responses_.front().completion))
    return "a response waits although nothing is before it";
  return nullptr;
}

const char* SendWindow::check_invariants() const {
  if (taken_units_ > sent_units_) return "the peer took more units than were sent";
  if (marked_units_ > sent_units_) return "a marker counts units that were not sent";
  if (ignored_ > unanswered_) return "more markers are ignored than unanswered";
  if (unanswered_ > 0 && !asked_) return "a marker is unanswered that was not sent";
  return waiting_ && unlimited() ? "a sender waits for a window that bounds nothing" : nullptr;
}

const char* ReceiveShares::check_invariants() const {
  if (promised_units() > capacity_units_) return "more is promised than the socket can hold";
  for (const auto& [peer, share] : shares_) {
    if (share.taken_units > share.limit_units) return "a peer has sent beyond its grant";
    if (share.ended_at_bytes.value_or(0) > taken_bytes_) return "a lease ended at bytes that were not taken";
    if (next_end_ns_ > share.renewed_ns + kReclaimNs) return "a lease ends before any is looked at";
  }
  return nullptr;
}

}  // namespace gdx::softhca::transport
