#include "tests/sim/loose_node.h"

#include <algorithm>
#include <array>

#include "proto/roce/codec.h"
#include "tests/sim/datagrams.h"

namespace gdx::sim {

using mlx5::CqeOpcode;
using mlx5::Syndrome;
using mlx5::WqeOpcode;

namespace {

constexpr std::uint32_t kLooseRegionBytes = 2048;
constexpr std::uint32_t kQkey = 0x11110000;
constexpr std::uint32_t kFirstQpn = 0x40;
constexpr std::size_t kGrhBytes = 40;
constexpr std::uint32_t kIdBytes = 8;
constexpr std::byte kGrhFiller{0x6a};

bool is_write(WqeOpcode opcode) {
  return opcode == WqeOpcode::kRdmaWrite || opcode == WqeOpcode::kRdmaWriteImmediate;
}

bool completes_a_receive(WqeOpcode opcode) { return opcode != WqeOpcode::kRdmaWrite; }

bool has_immediate(WqeOpcode opcode) {
  return opcode == WqeOpcode::kSendImmediate || opcode == WqeOpcode::kRdmaWriteImmediate;
}

CqeOpcode receive_opcode(WqeOpcode opcode) {
  switch (opcode) {
    case WqeOpcode::kSendImmediate: return CqeOpcode::kResponderSendImmediate;
    case WqeOpcode::kRdmaWriteImmediate: return CqeOpcode::kResponderWriteImmediate;
    default: return CqeOpcode::kResponderSend;
  }
}

transport::UcConfig uc_config(const LooseConfig& config) {
  return {.remote_qpn = kFirstQpn + (config.number ^ 1),
          .send_psn = config.send_psn,
          .receive_psn = config.receive_psn,
          .mtu_bytes = config.mtu_bytes,
          .remote_write = true};
}

transport::UdConfig ud_config(const LooseConfig& config) {
  return {.local_qpn = kFirstQpn + config.number,
          .qkey = kQkey + config.number,
          .send_psn = config.send_psn,
          .mtu_bytes = config.mtu_bytes};
}

}  // namespace

LooseNode::LooseNode(const LooseConfig& config, ReceivePool& receives, Transmit transmit)
    : config_(config),
      receives_(receives),
      transmit_(std::move(transmit)),
      memory_(kLooseRegionBytes),
      allowed_(kLooseRegionBytes, 1),  // zero, as at the beginning
      uc_requester_(uc_config(config), *this),
      uc_responder_(uc_config(config), *this),
      ud_requester_(ud_config(config), *this),
      ud_responder_(ud_config(config), *this) {}

bool LooseNode::may_hear(const LooseNode& hearer, const LooseNode& sender) {
  const std::uint32_t a = hearer.config_.number;
  const std::uint32_t b = sender.config_.number;
  return hearer.config_.service == Service::kUc ? a == (b ^ 1) : (a & 1) != (b & 1);
}

void LooseNode::note(std::string problem) {
  if (problem_.empty()) problem_ = std::move(problem);
}

// The first bytes say whose message it is, the others come from its number and their place in it.
std::byte LooseNode::payload_byte(std::uint64_t cookie, std::uint32_t offset) const {
  const std::uint64_t id = std::uint64_t{config_.number} << 32 | cookie;
  if (offset < kIdBytes) return static_cast<std::byte>(id >> 8 * offset);
  return static_cast<std::byte>(cookie * 131 + config_.number * 59 + offset * 7 + (offset >> 8) * 13);
}

std::uint32_t LooseNode::header_bytes() const { return config_.service == Service::kUd ? kGrhBytes : 0; }

void LooseNode::post(Random& random, std::uint32_t pairs) {
  static constexpr std::array kUcOperations{WqeOpcode::kSend, WqeOpcode::kSendImmediate,
                                            WqeOpcode::kRdmaWrite, WqeOpcode::kRdmaWriteImmediate};
  Posted posted;
  WorkRequest& request = posted.request;
  request.cookie = posted_.size();
  request.immediate = static_cast<std::uint32_t>(random.next());
  const bool flawed = random.chance(0.02);
  const bool uc = config_.service == Service::kUc;
  request.opcode = kUcOperations[random.between(0, uc ? 3 : 1)];
  request.length_bytes = static_cast<std::uint32_t>(
      random.between(random.chance(0.1) ? 0 : kIdBytes,
                     uc ? std::min(5 * config_.mtu_bytes, kLooseRegionBytes) : config_.mtu_bytes));
  if (uc) {
    const std::uint64_t at = random.between(0, kLooseRegionBytes - request.length_bytes);
    request.remote_address = kRegionAddress + at;
    request.rkey = first_key_of(config_.number ^ 1);
    if (flawed && is_write(request.opcode) && request.length_bytes > 0) {
      request.rkey ^= 0x80;
      posted.deliverable = false;
    } else if (is_write(request.opcode)) {
      std::vector<std::bitset<256>>& allowed = senders_[0].node->allowed_;
      for (std::uint32_t i = 0; i < request.length_bytes; ++i) {
        allowed[at + i].set(std::to_integer<std::size_t>(payload_byte(request.cookie, i)));
      }
    }
    uc_requester_.post(request);
  } else {
    const auto target =
        static_cast<std::uint32_t>(2 * random.between(0, pairs - 1) + 1 - (config_.number & 1));
    request.destination_qpn = kFirstQpn + target;
    request.qkey = kQkey + target + (flawed ? 0x100 : 0);
    posted.deliverable = !flawed;
    ud_requester_.post(request);
  }
  posted_.push_back(posted);
}

void LooseNode::pump(std::uint32_t max_packets) {
  uc_requester_.pump(0, max_packets);
  ud_requester_.pump(0, max_packets);
}

bool LooseNode::can_send() const { return uc_requester_.can_send(0) || ud_requester_.can_send(0); }

void LooseNode::on_datagram(std::span<const std::byte> datagram) {
  const auto decoded = roce::decode(datagram);
  if (!decoded) return note("a packet of ours does not decode");
  if (dead_ || decoded->headers.bth.destination_qpn != kFirstQpn + config_.number) return;
  ++packets_arrived_;
  if (config_.service == Service::kUc) {
    uc_responder_.on_packet(decoded->headers, decoded->payload);
  } else {
    std::array<std::byte, kGrhBytes> grh;
    grh.fill(kGrhFiller);
    ud_responder_.on_packet(decoded->headers, grh, decoded->payload);
  }
}

Syndrome LooseNode::send(const roce::Headers& headers, const WorkRequest& request, std::uint32_t offset_bytes,
                         std::uint32_t length_bytes) {
  std::span<std::byte> payload;
  auto datagram = make_datagram(headers, length_bytes, payload);
  for (std::uint32_t i = 0; i < length_bytes; ++i)
    payload[i] = payload_byte(request.cookie, offset_bytes + i);
  ++packets_sent_;
  transmit_(std::move(datagram));
  return Syndrome::kNone;
}

Syndrome LooseNode::scatter(const WorkRequest& /*request*/, std::uint32_t /*offset_bytes*/,
                            std::span<const std::byte> /*payload*/) {
  note("a response without a request");
  return Syndrome::kNone;
}

Syndrome LooseNode::apply(const WorkRequest& /*request*/) { return Syndrome::kLocalQpOperation; }

void LooseNode::complete(const WorkRequest& request, Syndrome syndrome) {
  if (request.cookie != completed_ || syndrome != Syndrome::kNone) note("a request completed out of turn");
  ++completed_;
}

void LooseNode::send(const roce::Headers& /*headers*/) { note("answered, which this service does not"); }

bool LooseNode::send_from_memory(const roce::Headers& /*headers*/, std::uint32_t /*rkey*/,
                                 std::uint64_t /*address*/, std::uint32_t /*length_bytes*/) {
  note("was read from, which this service does not allow");
  return false;
}

bool LooseNode::check(transport::RemoteOperation operation, std::uint32_t rkey, std::uint64_t address,
                      std::uint32_t length_bytes) {
  const std::uint64_t offset = address - kRegionAddress;
  const bool inside = offset <= kLooseRegionBytes && length_bytes <= kLooseRegionBytes - offset;
  if (rkey != first_key_of(config_.number)) ++key_faults_caused_;
  return operation == transport::RemoteOperation::kWrite && rkey == first_key_of(config_.number) && inside;
}

bool LooseNode::write(std::uint32_t rkey, std::uint64_t address, std::span<const std::byte> payload) {
  if (rkey != first_key_of(config_.number)) note("a write under a wrong key");
  std::copy(payload.begin(), payload.end(),
            memory_.begin() + static_cast<std::ptrdiff_t>(address - kRegionAddress));
  return true;
}

std::optional<std::uint64_t> LooseNode::execute(std::uint32_t /*rkey*/, std::uint64_t /*address*/,
                                                const transport::AtomicOperation& /*operation*/) {
  note("executed an atomic, which this service does not have");
  return 0;
}

bool LooseNode::take_receive() {
  if (taken_) note("took a receive while one was taken");
  if (receives_.taken == receives_.posted) return false;
  ++receives_.taken;
  taken_ = true;
  buffer_.clear();
  return true;
}

Syndrome LooseNode::scatter_receive(std::uint32_t offset_bytes, std::span<const std::byte> payload) {
  if (!taken_) note("received into a buffer that it did not take");
  buffer_.resize(offset_bytes);  // a lost message's bytes give way to the next one's
  buffer_.insert(buffer_.end(), payload.begin(), payload.end());
  return Syndrome::kNone;
}

// Returns whether the arrived message is this request, whole.
bool LooseNode::arrived(const WorkRequest& request, const LooseNode& sender,
                        const transport::ReceiveCompletion& completion) const {
  if (!completes_a_receive(request.opcode) || completion.opcode != receive_opcode(request.opcode) ||
      completion.byte_count != header_bytes() + request.length_bytes ||
      (has_immediate(request.opcode) && completion.immediate_or_rkey != request.immediate)) {
    return false;
  }
  const bool written = is_write(request.opcode);
  const auto bytes = written ? std::span(memory_).subspan(request.remote_address - kRegionAddress)
                             : std::span(buffer_).subspan(header_bytes());
  for (std::uint32_t i = 0; i < request.length_bytes; ++i) {
    if (bytes[i] != sender.payload_byte(request.cookie, i)) return false;
  }
  return true;
}

void LooseNode::complete_receive(const transport::ReceiveCompletion& completion) {
  if (!taken_) note("completed a receive that was not taken");
  taken_ = false;
  ++received_;
  if (completion.syndrome != Syndrome::kNone) return note("a receive failed");
  if (completion.opcode != CqeOpcode::kResponderWriteImmediate && completion.byte_count == header_bytes()) {
    buffer_.resize(header_bytes());
  }
  const bool ud = config_.service == Service::kUd;
  if (ud && !std::all_of(buffer_.begin(), buffer_.begin() + kGrhBytes,
                         [](std::byte b) { return b == kGrhFiller; })) {
    note("a receive without its network header");
  }
  // Assigns a short message to one of several requests: on UC, which keeps order, to the earliest; on UD to
  // the one that has arrived least often.
  Posted* found = nullptr;
  for (Sender& sender : senders_) {
    std::vector<Posted>& posted = sender.node->posted_;
    if (ud && completion.source_qpn != kFirstQpn + sender.node->config_.number) continue;
    for (std::size_t i = sender.next; i < posted.size(); ++i) {
      const bool mine = !ud || posted[i].request.destination_qpn == kFirstQpn + config_.number;
      if (!mine || !posted[i].deliverable || !arrived(posted[i].request, *sender.node, completion)) continue;
      if (found == nullptr || posted[i].deliveries < found->deliveries) found = &posted[i];
      if (ud) continue;
      sender.next = i + 1;
      break;
    }
  }
  if (found != nullptr) {
    ++found->deliveries;
    return;
  }
  note("received what nobody sent whole, to this queue pair, and since the last");
}

bool LooseNode::invalidate(std::uint32_t /*rkey*/) {
  note("was told to invalidate, which this service does not allow");
  return false;
}

void LooseNode::fatal(Syndrome /*syndrome*/) {
  if (key_faults_caused_ < transport::kMaxKeyFaults) note("died without a cause");
  dead_ = true;
}

std::string LooseNode::verdict_of_packets() const {
  const std::uint64_t sent = uc_requester_.counters().packets_sent + ud_requester_.counters().packets_sent;
  const std::uint64_t arrived =
      uc_responder_.counters().packets_received + ud_responder_.counters().packets_received;
  const auto& ud = ud_responder_.counters();
  const std::uint64_t accounted = received_ + ud.out_of_buffer + ud.qkey_violations;
  if (config_.service == Service::kUd && !dead_ && arrived != accounted) {
    return "of " + std::to_string(arrived) + " packets " + std::to_string(accounted) +
           " were delivered or counted as dropped";
  }
  if (sent == packets_sent_ && arrived == packets_arrived_) return "";
  return "counts " + std::to_string(sent) + " packets sent and " + std::to_string(arrived) + " received of " +
         std::to_string(packets_sent_) + " and " + std::to_string(packets_arrived_);
}

std::string LooseNode::verdict(bool nothing_lost, bool may_repeat) const {
  if (completed_ != posted_.size()) return "requests were never completed";
  if (std::string problem = verdict_of_packets(); !problem.empty()) return problem;
  for (std::size_t i = 0; i < memory_.size(); ++i) {
    if (!allowed_[i].test(std::to_integer<std::size_t>(memory_[i]))) {
      return "memory byte " + std::to_string(i) + " is what nobody wrote";
    }
  }
  for (const Posted& posted : posted_) {
    const std::string which = "request " + std::to_string(posted.request.cookie);
    if (posted.deliveries > (may_repeat ? 2u : 1u))
      return which + " was delivered more often than it arrived";
    const bool owed = posted.deliverable && completes_a_receive(posted.request.opcode);
    if (nothing_lost && owed && posted.deliveries == 0) return which + " was lost without a cause";
  }
  return "";
}

}  // namespace gdx::sim
