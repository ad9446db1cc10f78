#include "driver-shim/softhca/transport/unacknowledged.h"

#include <algorithm>

#include "driver-shim/softhca/transport/request_opcodes.h"
#include "proto/roce/codec.h"

namespace gdx::softhca::transport {

using mlx5::Syndrome;

UnacknowledgedRequester::UnacknowledgedRequester(RequesterPort& port, roce::Service service,
                                                 std::uint32_t send_psn, std::uint32_t mtu_bytes)
    : port_(port), service_(service), psn_(send_psn & roce::kPsnMask), mtu_bytes_(mtu_bytes) {}

bool UnacknowledgedRequester::carries(mlx5::WqeOpcode opcode) const {
  const roce::Opcode only = roce::in_service(packet_opcodes(opcode).only, service_);
  return roce::traits_of(only).operation != roce::Operation::kNone;
}

void UnacknowledgedRequester::post(const WorkRequest& request) {
  if (in_error_) {
    port_.complete(request, Syndrome::kFlushed);
    return;
  }
  queue_.push_back(request);
}

std::uint32_t UnacknowledgedRequester::pump(std::uint64_t /*now_ns*/, std::uint32_t max_packets) {
  std::uint32_t sent = 0;
  while (sent < max_packets && !queue_.empty()) {
    const WorkRequest request = queue_.front();
    const bool changes_key = request.opcode == mlx5::WqeOpcode::kUmr;
    const bool silent = changes_key || request.opcode == mlx5::WqeOpcode::kNop;
    const std::uint32_t left_bytes = request.length_bytes - sent_bytes_;
    const Segment segment{.offset_bytes = sent_bytes_,
                          .length_bytes = std::min(left_bytes, mtu_bytes_),
                          .first = sent_bytes_ == 0,
                          .last = left_bytes <= mtu_bytes_};
    Syndrome syndrome = silent && !changes_key ? Syndrome::kNone : admit(request);
    if (syndrome == Syndrome::kNone && changes_key) syndrome = port_.apply(request);
    if (syndrome == Syndrome::kNone && !silent) syndrome = transmit(request, segment);
    if (syndrome != Syndrome::kNone) {
      fail_all(syndrome);
      return sent;
    }
    sent += silent ? 0 : 1;
    sent_bytes_ += segment.length_bytes;
    if (!silent && !segment.last) continue;
    queue_.pop_front();
    sent_bytes_ = 0;
    port_.complete(request, Syndrome::kNone);
  }
  return sent;
}

Syndrome UnacknowledgedRequester::transmit(const WorkRequest& request, const Segment& segment) {
  roce::Headers headers;
  headers.bth.opcode =
      roce::in_service(packet_opcodes(request.opcode).at(segment.first, segment.last), service_);
  headers.bth.pad_count = roce::pad_count_for(segment.length_bytes);
  headers.bth.psn = psn_;
  headers.bth.solicited = segment.last && (request.fm_ce_se & mlx5::kSolicited) != 0;
  headers.immediate = request.immediate;
  address(request, headers);
  const Syndrome syndrome = port_.send(headers, request, segment.offset_bytes, segment.length_bytes);
  if (syndrome != Syndrome::kNone) return syndrome;
  psn_ = (psn_ + 1) & roce::kPsnMask;
  ++counters_.packets_sent;
  return Syndrome::kNone;
}

void UnacknowledgedRequester::fail_all(Syndrome first) {
  in_error_ = true;
  sent_bytes_ = 0;
  for (; !queue_.empty(); first = Syndrome::kFlushed) {
    const WorkRequest request = queue_.front();
    queue_.pop_front();
    port_.complete(request, first);
  }
}

}  // namespace gdx::softhca::transport
