# The known bugs, and how many seeds may be needed to find each.

gdx_mutant(atomic_executed_again_when_repeated
  FILE responder.cpp
  FIND [[response.original = known->original;]]
  REPLACE [[response.original = port_.execute(headers.atomic.rkey, headers.atomic.address, {true, 1, 0, 0, 0}).value_or(0);]]
  SEEDS 1..200)

gdx_mutant(psn_compared_without_wrap
  FILE psn.h
  FIND [[  const std::uint64_t ahead = (wire - reference) & roce::kPsnMask;
  return ahead < kPsnHalfSpace ? reference + ahead : reference + ahead - (roce::kPsnMask + 1ull);]]
  REPLACE [[  return (reference & ~std::uint64_t{roce::kPsnMask}) + wire;]]
  SEEDS 1..200)

# While an answer waits to leave, payload is dropped and acknowledged all the same.
gdx_mutant(write_acknowledged_before_it_lands
  FILE responder.cpp
  FIND [[if (!payload.empty() && !place(payload)]]
  REPLACE [[if (!payload.empty() && responses_.empty() && !place(payload)]]
  SEEDS 1..200)

gdx_mutant(write_executed_again_when_repeated
  FILE responder.cpp
  FIND [[  if (psn < expected_) return on_duplicate(headers, traits, psn);]]
  REPLACE [[  if (psn < expected_ && traits.operation == Operation::kWrite && traits.first && traits.last) {
    (void)port_.write(headers.reth.rkey, headers.reth.address, payload);
  }
  if (psn < expected_) return on_duplicate(headers, traits, psn);]]
  SEEDS 1..200)

gdx_mutant(fence_ignored
  FILE requester.cpp
  FIND [[case mlx5::kFence: return Fence::kResponses;]]
  REPLACE [[case mlx5::kFence: return Fence::kNone;]]
  SEEDS 1..200)

# A loss then finds the key changed under what is sent again.
gdx_mutant(key_changed_before_the_acknowledgement
  FILE requester.cpp
  FIND [[  if (entry.changes_key) return send_index_ == queue_.first();
]]
  REPLACE [[]]
  SEEDS 1..200)

# A READ that resumes in its middle asks for its beginning.
gdx_mutant(read_resumed_at_the_wrong_place
  FILE requester.cpp
  FIND [[headers.reth = {request.remote_address + received_bytes, request.rkey,]]
  REPLACE [[headers.reth = {request.remote_address, request.rkey,]]
  SEEDS 1..200)

gdx_mutant(rnr_retries_never_run_out
  FILE requester.cpp
  FIND [[    --rnr_retries_left_;
]]
  REPLACE [[]]
  SEEDS 1..200)

# Retries of one message count against the next one.
gdx_mutant(rnr_retries_are_not_refilled
  FILE requester.cpp
  FIND [[  rnr_retries_left_ = config_.rnr_retry;
  rnr_deadline_ns_ = kNever;
  tail_]]
  REPLACE [[  rnr_deadline_ns_ = kNever;
  tail_]]
  SEEDS 1..400)

gdx_mutant(retries_are_not_refilled
  FILE requester.cpp
  FIND [[  retries_left_ = config_.retry_count;
  rnr_retries_left_ = config_.rnr_retry;
  rnr_deadline]]
  REPLACE [[  rnr_retries_left_ = config_.rnr_retry;
  rnr_deadline]]
  SEEDS 1..400)

# The link has not lost so many tries.
gdx_mutant(gives_up_one_retry_early
  FILE requester.cpp
  FIND [[  if (retries_left_ == 0) {]]
  REPLACE [[  if (retries_left_ <= 1) {]]
  SEEDS 1..400)

# Of a connection on which much is lost, only the tries tell it.
gdx_mutant(failed_try_takes_two_retries
  FILE requester.cpp
  FIND [[  --retries_left_;
]]
  REPLACE [[  retries_left_ -= std::min(retries_left_, 2u);
]]
  SEEDS 1..400)

gdx_mutant(each_report_of_a_loss_takes_a_retry
  FILE requester.cpp
  FIND [[  if (rnr_deadline_ns_ != kNever || recovered_psn_ == unacked_) return;]]
  REPLACE [[  if (rnr_deadline_ns_ != kNever) return;]]
  SEEDS 1..400)

gdx_mutant(rnr_nak_does_not_refill_the_retries
  FILE requester.cpp
  FIND [[  retries_left_ = config_.retry_count;
  if (config_.rnr_retry != kEndlessRnrRetry) {]]
  REPLACE [[  if (config_.rnr_retry != kEndlessRnrRetry) {]]
  SEEDS 1..1000)

gdx_mutant(timeout_runs_on_after_going_back
  FILE requester.cpp
  FIND [[  ack_deadline_ns_ = tail_deadline_ns_ = kNever;
  tail_packets_due_ = 0;]]
  REPLACE [[  tail_deadline_ns_ = kNever;
  tail_packets_due_ = 0;]]
  SEEDS 1..400)

# Progress does not begin the wait anew.
gdx_mutant(timeout_counts_from_the_first_packet
  FILE requester.cpp
  FIND [[  ack_deadline_ns_ = runs ? now_ns + std::max(ack_timeout_ns_, grown_ns) : kNever;]]
  REPLACE [[  if (ack_deadline_ns_ == kNever || !runs) ack_deadline_ns_ = runs ? now_ns + std::max(ack_timeout_ns_, grown_ns) : kNever;]]
  SEEDS 1..400)

gdx_mutant(lost_tail_waits_for_the_timeout
  FILE requester.cpp
  FIND [[    tail_packets_due_ = 2;]]
  REPLACE [[    tail_packets_due_ = 0;]]
  SEEDS 1..400)

# A NAK was lost: the peer sends no other before what it lacks has come.
gdx_mutant(tail_is_resent_without_its_oldest_packet
  FILE requester.cpp
  FIND [[    tail_packets_due_ = 2;]]
  REPLACE [[    tail_packets_due_ = 1;]]
  SEEDS 1..4000)

gdx_mutant(tail_is_resent_once
  FILE requester.cpp
  FIND [[  if (!oldest) tail_deadline_ns_ = now_ns + round_trip_.wait_ns(++tail_resends_);]]
  REPLACE [[]]
  SEEDS 1..4000)

gdx_mutant(resent_tail_takes_a_retry
  FILE requester.cpp
  FIND [[    tail_packets_due_ = 2;]]
  REPLACE [[    if (!take_retry()) return;
    tail_packets_due_ = 2;]]
  SEEDS 1..400)

gdx_mutant(resent_tail_puts_the_timeout_off
  FILE requester.cpp
  FIND [[  ++counters_.tail_resends;]]
  REPLACE [[  ++counters_.tail_resends;
  start_timers(now_ns);]]
  SEEDS 1..400)

gdx_mutant(msn_does_not_count_reads
  FILE responder.cpp
  FIND [[  msn_ = (msn_ + 1) & roce::kPsnMask;
  const Response response = read_response(reth, expected_);]]
  REPLACE [[  const Response response = read_response(reth, expected_);]]
  SEEDS 1..200)

gdx_mutant(msn_counts_first_packets
  FILE responder.cpp
  FIND [[  if (traits.last) msn_ =]]
  REPLACE [[  if (traits.last || traits.first) msn_ =]]
  SEEDS 1..200)

gdx_mutant(ack_of_a_duplicate_names_a_read
  FILE responder.cpp
  FIND [[  response.psn = executed_;]]
  REPLACE [[  response.psn = expected_ - 1;]]
  SEEDS 1..200)

# A READ is answered although a WRITE before it is missing.
gdx_mutant(read_overtakes_a_lost_write
  FILE responder.cpp
  FIND [[    if (!gap_reported_) queue_nak(roce::kNakSequenceError);]]
  REPLACE [[    if (!gap_reported_) queue_nak(roce::kNakSequenceError);
    if (traits.operation == Operation::kRead) responses_.push_back(read_response(headers.reth, psn));]]
  SEEDS 1..200)

gdx_mutant(invalidated_key_still_works
  FILE responder.cpp
  FIND [[&& !port_.invalidate(headers.immediate)) {]]
  REPLACE [[&& headers.immediate == 0) {]]
  SEEDS 1..200)

gdx_mutant(masked_add_carries_across_its_boundaries
  FILE responder.cpp
  FIND [[masked ? mask.swap_mask_or_boundaries : 0, 0};]]
  REPLACE [[0, 0};]]
  SEEDS 1..200)

# Receives that are posted stay posted.
gdx_mutant(receive_limit_sinks_with_a_late_ack
  FILE credits.h
  FIND [[    newest_permitted_ = std::max(newest_permitted_, told);]]
  REPLACE [[    newest_permitted_ = told;]]
  SEEDS 1..4000)

gdx_mutant(receive_credits_add_up_with_each_ack
  FILE credits.h
  FIND [[    newest_permitted_ = std::max(newest_permitted_, told);]]
  REPLACE [[    newest_permitted_ = std::max(told, newest_permitted_ + credits_of(code));]]
  SEEDS 1..200)

gdx_mutant(receive_limit_permits_one_too_many
  FILE credits.h
  FIND [[message <= newest_permitted_;]]
  REPLACE [[message <= newest_permitted_ + 1;]]
  SEEDS 1..200)

gdx_mutant(receive_credits_rounded_up
  FILE credits.h
  FIND [[static_cast<int>(count >> (octave - 1) & 1)]]
  REPLACE [[static_cast<int>((count & (count - 1)) != 0)]]
  SEEDS 1..200)

gdx_mutant(receive_limit_compared_without_wrap
  FILE credits.h
  FIND [[extend_psn(aeth.msn, newest_message)]]
  REPLACE [[((newest_message & ~std::uint64_t{roce::kPsnMask}) + aeth.msn)]]
  SEEDS 1..200)

gdx_mutant(receives_posted_late_are_not_told
  FILE responder.cpp
  FIND [[  return !advertised_ || port_.posted_receives().value_or(0) > 0;]]
  REPLACE [[  return !advertised_;]]
  SEEDS 1..200)

# The ACK that told of receives was lost: only asking brings the word.
gdx_mutant(held_message_never_asks
  FILE requester.cpp
  FIND [[    probe_deadline_ns_ = now_ns + std::min(ack_timeout_ns_, kLongestProbeWaitNs);]]
  REPLACE [[    probe_deadline_ns_ = kNever - 1;]]
  SEEDS 1..200)

# The next four change no packet: only the books of packets see them.
gdx_mutant(packet_without_a_reliable_service_is_not_counted
  FILE unacknowledged.cpp
  FIND [[  ++counters_.packets_sent;
]]
  REPLACE [[  if (!segment.first) ++counters_.packets_sent;
]]
  SEEDS 1..200)

gdx_mutant(late_answer_is_not_counted
  FILE requester.cpp
  FIND [[  ++counters_.packets_received;
]]
  REPLACE [[  if (extend_psn(headers.bth.psn, unacked_) >= unacked_) ++counters_.packets_received;
]]
  SEEDS 1..200)

gdx_mutant(resent_tail_is_not_counted
  FILE requester.cpp
  FIND [[  ++counters_.packets_sent;
  ++counters_.retransmitted_packets;]]
  REPLACE [[  ++counters_.retransmitted_packets;]]
  SEEDS 1..400)

gdx_mutant(request_behind_a_gap_is_not_counted
  FILE responder.cpp
  FIND [[    ++counters_.out_of_sequence;
]]
  REPLACE [[]]
  SEEDS 1..200)

gdx_mutant(uc_delivers_a_message_with_a_hole
  FILE uc.cpp
  FIND [[    ++counters_.out_of_sequence;
    message_ = Message::kNone;]]
  REPLACE [[    ++counters_.out_of_sequence;]]
  SEEDS 1..400)

gdx_mutant(uc_delivers_a_copy_again
  FILE uc.cpp
  FIND [[    ++counters_.duplicate_requests;
    return;]]
  REPLACE [[    ++counters_.duplicate_requests;]]
  SEEDS 1..400)

gdx_mutant(ud_takes_any_qkey
  FILE ud.cpp
  FIND [[if (headers.deth.qkey != config_.qkey) {]]
  REPLACE [[if ((headers.deth.qkey ^ config_.qkey) & 0xffff0000) {]]
  SEEDS 1..400)

# The next two change no result: only invariants see them. Here no timer runs for the resent tail.
gdx_mutant(acknowledgement_awaited_without_a_timer INVARIANT
  FILE requester.cpp
  FIND [[  send_psn_ = asked_end_ = unacked_;]]
  REPLACE [[  send_psn_ = unacked_;]]
  SEEDS 1..50)

gdx_mutant(completing_acknowledgement_waits_for_a_turn INVARIANT
  FILE responder.cpp
  FIND [[  if (completion) send_control_responses();]]
  REPLACE [[]]
  SEEDS 1..50)
