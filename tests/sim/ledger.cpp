#include "tests/sim/ledger.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace gdx::sim {
namespace {

using mlx5::CqeOpcode;
using mlx5::Syndrome;
using mlx5::WqeOpcode;

constexpr std::uint32_t kAtomicBytes = 8;

bool is_atomic(WqeOpcode opcode) {
  return opcode == WqeOpcode::kAtomicCompareSwap || opcode == WqeOpcode::kAtomicFetchAdd ||
         opcode == WqeOpcode::kAtomicMaskedCompareSwap || opcode == WqeOpcode::kAtomicMaskedFetchAdd;
}
bool is_write(WqeOpcode opcode) {
  return opcode == WqeOpcode::kRdmaWrite || opcode == WqeOpcode::kRdmaWriteImmediate;
}
bool is_send(WqeOpcode opcode) {
  return opcode == WqeOpcode::kSend || opcode == WqeOpcode::kSendImmediate ||
         opcode == WqeOpcode::kSendInvalidate;
}

CqeOpcode receive_opcode(WqeOpcode opcode) {
  switch (opcode) {
    case WqeOpcode::kSendImmediate: return CqeOpcode::kResponderSendImmediate;
    case WqeOpcode::kSendInvalidate: return CqeOpcode::kResponderSendInvalidate;
    case WqeOpcode::kRdmaWriteImmediate: return CqeOpcode::kResponderWriteImmediate;
    default: return CqeOpcode::kResponderSend;
  }
}

std::string describe(const char* what, std::uint64_t number) {
  return std::string(what) + ", work request " + std::to_string(number);
}

// Bit by bit, as the masked atomics are defined, so that it shares nothing with the transport's own sum.
std::uint64_t add_by_bits(std::uint64_t left, std::uint64_t right, std::uint64_t boundaries) {
  std::uint64_t sum = 0;
  unsigned carry = 0;
  for (unsigned bit = 0; bit < 64; ++bit) {
    const auto total = static_cast<unsigned>((left >> bit & 1) + (right >> bit & 1)) + carry;
    sum |= std::uint64_t{total & 1} << bit;
    carry = (boundaries >> bit & 1) != 0 ? 0 : total >> 1;
  }
  return sum;
}

std::uint64_t swap_by_bits(const WorkRequest& request, std::uint64_t value) {
  std::uint64_t swapped = 0;
  for (unsigned bit = 0; bit < 64; ++bit) {
    const bool looked_at = request.compare_mask >> bit & 1;
    if (looked_at && (value >> bit & 1) != (request.compare >> bit & 1)) return value;
    const bool replaced = request.swap_mask_or_boundaries >> bit & 1;
    swapped |= ((replaced ? request.swap_or_add : value) >> bit & 1) << bit;
  }
  return swapped;
}

std::uint64_t after_atomic(const WorkRequest& request, std::uint64_t value) {
  switch (request.opcode) {
    case WqeOpcode::kAtomicFetchAdd: return value + request.swap_or_add;
    case WqeOpcode::kAtomicCompareSwap: return value == request.compare ? request.swap_or_add : value;
    case WqeOpcode::kAtomicMaskedFetchAdd:
      return add_by_bits(value, request.swap_or_add, request.swap_mask_or_boundaries);
    default: return swap_by_bits(request, value);
  }
}

}  // namespace

Ledger::Ledger(std::uint32_t poster, std::uint32_t target, std::span<const std::byte> initial_memory)
    : poster_(poster),
      memory_(initial_memory.begin(), initial_memory.end()),
      last_writer_(initial_memory.size(), 0) {
  for (std::uint32_t i = 0; i < kRegionKeys; ++i) keys_.push_back(first_key_of(target) + i);
}

void Ledger::choose_atomic(Random& random, WorkRequest& request) const {
  const std::uint64_t offset = random.between(0, kRegionBytes / kAtomicBytes - 1) * kAtomicBytes;
  request.remote_address = kRegionAddress + offset;
  request.length_bytes = kAtomicBytes;
  request.swap_or_add = random.next();
  std::uint64_t now;
  std::memcpy(&now, memory_.data() + offset, sizeof now);
  request.compare = random.chance(0.7) ? now : random.next();
  request.swap_mask_or_boundaries = random.next();
  request.compare_mask = random.chance(0.5) ? random.next() & random.next() & random.next() : random.next();
}

// READs that use the key must have been answered before: the invalidation does not wait for them.
void Ledger::choose_invalidation(Random& random, WorkRequest& request) {
  if (keys_.size() == 1) {
    request.opcode = WqeOpcode::kSend;
    return;
  }
  const auto doomed = keys_.begin() + static_cast<std::ptrdiff_t>(random.between(1, keys_.size() - 1));
  request.immediate = *doomed;
  gone_keys_.push_back(*doomed);
  keys_.erase(doomed);
  request.fm_ce_se |= mlx5::kFence;
  unfenced_reads_.clear();
}

void Ledger::choose_operation(Random& random, std::uint32_t mtu_bytes, WorkRequest& request) {
  static constexpr std::array kOperations{WqeOpcode::kRdmaWrite,
                                          WqeOpcode::kRdmaWrite,
                                          WqeOpcode::kRdmaWrite,
                                          WqeOpcode::kRdmaWriteImmediate,
                                          WqeOpcode::kSend,
                                          WqeOpcode::kSendImmediate,
                                          WqeOpcode::kSendInvalidate,
                                          WqeOpcode::kRdmaRead,
                                          WqeOpcode::kRdmaRead,
                                          WqeOpcode::kAtomicCompareSwap,
                                          WqeOpcode::kAtomicFetchAdd,
                                          WqeOpcode::kAtomicMaskedCompareSwap,
                                          WqeOpcode::kAtomicMaskedFetchAdd,
                                          WqeOpcode::kNop};
  request.opcode = kOperations[random.between(0, kOperations.size() - 1)];
  request.rkey = keys_[random.between(0, keys_.size() - 1)];
  request.immediate = static_cast<std::uint32_t>(random.next());
  if (request.opcode == WqeOpcode::kNop && request.immediate % 4 == 0) request.opcode = WqeOpcode::kUmr;
  if (random.chance(0.3)) request.fm_ce_se |= mlx5::kSolicited;
  const std::uint64_t size_class = random.between(0, 9);
  request.length_bytes = static_cast<std::uint32_t>(
      size_class == 0 ? 0
                      : std::min<std::uint64_t>(random.between(1, size_class < 6 ? mtu_bytes : 7 * mtu_bytes),
                                                kRegionBytes));
  request.remote_address = kRegionAddress + random.between(0, kRegionBytes - request.length_bytes);
  if (is_atomic(request.opcode)) choose_atomic(random, request);
  if (request.opcode == WqeOpcode::kSendInvalidate) choose_invalidation(random, request);
}

void Ledger::apply_flaw(Flaw flaw, WorkRequest& request) {
  request.rkey = keys_.front();
  switch (flaw) {
    case Flaw::kNone: return;
    case Flaw::kBadRkey:
    case Flaw::kInvalidatedKey:
    case Flaw::kOutOfRange:
    case Flaw::kLocalMemory:
      request.opcode = WqeOpcode::kRdmaWrite;
      request.length_bytes = 1500;
      request.remote_address = kRegionAddress;
      if (flaw == Flaw::kBadRkey) request.rkey ^= 0x80;
      if (flaw == Flaw::kInvalidatedKey) request.rkey = gone_keys_.empty() ? 0 : gone_keys_.back();
      if (flaw == Flaw::kOutOfRange) request.remote_address += kRegionBytes - request.length_bytes + 1;
      break;
    case Flaw::kMisalignedAtomic:
      request.opcode = WqeOpcode::kAtomicFetchAdd;
      request.length_bytes = kAtomicBytes;
      request.remote_address = kRegionAddress + 4;
      break;
    case Flaw::kTooLongForReceive:
      request.opcode = WqeOpcode::kSend;
      request.length_bytes = kReceiveBytes + 1;
      break;
    case Flaw::kUnknownOpcode: request.opcode = static_cast<WqeOpcode>(0x7e); break;
  }
  flawed_ = posted_.size();
  static constexpr std::array kSyndromes{Syndrome::kNone,
                                         Syndrome::kRemoteAccess,
                                         Syndrome::kRemoteAccess,
                                         Syndrome::kRemoteInvalidRequest,
                                         Syndrome::kRemoteInvalidRequest,
                                         Syndrome::kLocalProtection,
                                         Syndrome::kLocalQpOperation,
                                         Syndrome::kRemoteAccess};
  flaw_syndrome_ = kSyndromes[static_cast<std::size_t>(flaw)];
}

// Adds a fence so that a READ's result is certain: without one a later request may overtake it. Some requests
// may overtake. Then the READ returns old or new, byte by byte, but never older than the requests before it.
void Ledger::fence_if_needed(Random& random, WorkRequest& request) {
  if (request.opcode == WqeOpcode::kRdmaRead) return;
  const std::uint64_t begin = request.remote_address;
  const std::uint64_t end = begin + request.length_bytes;
  const bool overlaps =
      (is_write(request.opcode) || is_atomic(request.opcode)) &&
      std::any_of(unfenced_reads_.begin(), unfenced_reads_.end(),
                  [begin, end](const UnfencedRead& read) { return read.begin < end && begin < read.end; });
  if (!overlaps || random.chance(0.5)) return;
  request.fm_ce_se |= mlx5::kFence;
  unfenced_reads_.clear();
}

std::uint32_t Ledger::message_at(std::uint32_t psns) const {
  const auto found =
      std::upper_bound(messages_.begin(), messages_.end(), psns,
                       [](std::uint32_t psn, const Message& message) { return psn < message.first_psn; });
  return static_cast<std::uint32_t>(found - messages_.begin());
}

void Ledger::number(const WorkRequest& request, std::uint32_t mtu_bytes) {
  if (request.opcode == WqeOpcode::kNop || request.opcode == WqeOpcode::kUmr) return;
  const bool atomic = is_atomic(request.opcode);
  const std::uint32_t first = messages_.empty() ? 0 : messages_.back().end_psn;
  const std::uint32_t packets =
      atomic || request.length_bytes == 0 ? 1 : (request.length_bytes + mtu_bytes - 1) / mtu_bytes;
  messages_.push_back({first, first + packets, atomic || request.opcode == WqeOpcode::kRdmaRead});
}

WorkRequest Ledger::post(Random& random, std::uint32_t mtu_bytes, Flaw flaw) {
  Posted posted;
  if (flawed_ || flaw == Flaw::kNone) {
    choose_operation(random, mtu_bytes, posted.request);
  } else {
    apply_flaw(flaw, posted.request);
  }
  fence_if_needed(random, posted.request);
  number(posted.request, mtu_bytes);
  posted.request.cookie = posted_.size();
  posted.request.wqe_counter = static_cast<std::uint16_t>(posted_.size());
  // A local failure is found packet by packet: what went before it has reached the peer.
  const bool flawed_here = flawed_ == posted_.size();
  if (!flawed_ || (flawed_here && flaw == Flaw::kLocalMemory)) execute(posted);
  if (posted.request.opcode == WqeOpcode::kRdmaRead) {
    unfenced_reads_.push_back({posted_.size(), posted.request.remote_address,
                               posted.request.remote_address + posted.request.length_bytes});
  }
  posted_.push_back(std::move(posted));
  return posted_.back().request;
}

void Ledger::store(std::uint32_t offset, std::byte value, std::uint64_t writer) {
  memory_[offset] = value;
  last_writer_[offset] = writer;
  const std::uint64_t address = kRegionAddress + offset;
  for (const UnfencedRead& read : unfenced_reads_) {
    if (read.begin > address || address >= read.end) continue;
    posted_[read.number].newer.push_back({static_cast<std::uint32_t>(address - read.begin), value});
  }
}

void Ledger::execute(Posted& posted) {
  const WorkRequest& request = posted.request;
  const auto at = static_cast<std::uint32_t>(request.remote_address - kRegionAddress);
  const std::uint64_t writer = posted_.size() + 1;
  if (is_write(request.opcode)) {
    for (std::uint32_t i = 0; i < request.length_bytes; ++i) {
      store(at + i, payload_byte(request, i), writer);
    }
  } else if (request.opcode == WqeOpcode::kRdmaRead) {
    posted.expected.assign(memory_.begin() + at, memory_.begin() + at + request.length_bytes);
  } else if (is_atomic(request.opcode)) {
    posted.expected.assign(memory_.begin() + at, memory_.begin() + at + kAtomicBytes);
    std::uint64_t value;
    std::memcpy(&value, posted.expected.data(), sizeof value);
    value = after_atomic(request, value);
    std::array<std::byte, kAtomicBytes> bytes;
    std::memcpy(bytes.data(), &value, sizeof value);
    for (std::uint32_t i = 0; i < kAtomicBytes; ++i) store(at + i, bytes[i], writer);
  }
  if (is_send(request.opcode) || request.opcode == WqeOpcode::kRdmaWriteImmediate) {
    receives_.push_back(posted_.size());
  }
}

// Earlier requests might be resent, under the key's new range.
std::string Ledger::on_apply(const WorkRequest& request) {
  if (request.cookie != completed_) return describe("changes a key that is still in use", request.cookie);
  if (std::exchange(applied_, request.cookie) == request.cookie) {
    return describe("changes a key twice", request.cookie);
  }
  return "";
}

std::string Ledger::on_complete(const WorkRequest& request, Syndrome syndrome,
                                std::span<const std::byte> peer_memory) {
  const std::uint64_t number = request.cookie;
  if (number != completed_ || number >= posted_.size()) return describe("completed out of turn", number);
  ++completed_;
  if (first_error_ != Syndrome::kNone) {
    return syndrome == Syndrome::kFlushed ? "" : describe("not flushed after an error", number);
  }
  if (syndrome != Syndrome::kNone) {
    first_error_ = syndrome;
    return "";
  }
  ++succeeded_;
  const Posted& posted = posted_[number];
  if (flawed_ && number >= *flawed_) return describe("a flawed request succeeded", number);
  if (posted.scattered_bytes != posted.expected.size()) return describe("completed without its data", number);
  if (!is_write(request.opcode) && !is_atomic(request.opcode)) return "";
  const std::uint64_t at = request.remote_address - kRegionAddress;
  for (std::uint64_t i = at; i < at + request.length_bytes; ++i) {
    if (last_writer_[i] == number + 1 && peer_memory[i] != memory_[i]) {
      return describe("acknowledged before it was in memory", number);
    }
  }
  return "";
}

std::string Ledger::on_scatter(const WorkRequest& request, std::uint32_t offset_bytes,
                               std::span<const std::byte> payload) {
  Posted& posted = posted_[request.cookie];
  if (offset_bytes != posted.scattered_bytes || offset_bytes + payload.size() > posted.expected.size()) {
    return describe("response data at the wrong offset", request.cookie);
  }
  for (std::uint32_t i = 0; i < payload.size(); ++i) {
    const std::uint32_t at = offset_bytes + i;
    if (payload[i] == posted.expected[at]) continue;
    const auto newer = std::find(posted.newer.begin(), posted.newer.end(), std::pair(at, payload[i]));
    if (newer == posted.newer.end()) return describe("response data is wrong", request.cookie);
  }
  posted.scattered_bytes += static_cast<std::uint32_t>(payload.size());
  return "";
}

std::string Ledger::on_receive(const ReceiveCompletion& completion, std::span<const std::byte> buffer,
                               std::span<const std::byte> memory) {
  if (completion.syndrome != Syndrome::kNone) {
    return flawed_ ? "" : "a receive failed though no request was flawed";
  }
  if (received_ == receives_.size()) return "a receive completion that nobody is owed";
  const std::size_t number = receives_[received_++];
  const WorkRequest& request = posted_[number].request;
  const bool solicited = (request.fm_ce_se & mlx5::kSolicited) != 0;
  if (completion.opcode != receive_opcode(request.opcode) || completion.byte_count != request.length_bytes ||
      completion.solicited != solicited ||
      (request.opcode != WqeOpcode::kSend && completion.immediate_or_rkey != request.immediate)) {
    return describe("receive completion does not match", number);
  }
  if (is_send(request.opcode)) {
    if (buffer.size() != request.length_bytes) return describe("received length is wrong", number);
    for (std::uint32_t i = 0; i < buffer.size(); ++i) {
      if (buffer[i] != payload_byte(request, i)) return describe("received data is wrong", number);
    }
  }
  return check_memory(memory, number + 1);
}

// The MSN counts the messages that are over with the PSN that is answered; a READ is over with its
// acceptance. What is answered again may carry the count of today.
std::string Ledger::check_answer(const roce::Headers& answer, std::int32_t psns, std::int32_t executed_psns,
                                 bool exact) const {
  const bool acknowledges = answer.bth.opcode == roce::Opcode::kRcAcknowledge;
  const bool refuses = (answer.aeth.syndrome & roce::kAethKindMask) != roce::kAethKindAck;
  const auto over_with = [this](std::int32_t psn) {
    return static_cast<std::uint32_t>(
        std::count_if(messages_.begin(), messages_.end(),
                      [end = static_cast<std::uint32_t>(psn + 1)](const Message& message) {
                        return message.answered ? message.first_psn < end : message.end_psn <= end;
                      }));
  };
  // A NAK answers for what is before its PSN.
  const std::uint32_t least = over_with(refuses ? psns - 1 : psns);
  const std::uint32_t most = exact ? least : over_with(executed_psns);
  if (answer.aeth.msn < least || answer.aeth.msn > most) {
    return "MSN " + std::to_string(answer.aeth.msn) + " where " + std::to_string(least) + " to " +
           std::to_string(most) + " messages are over";
  }
  const bool names_a_response =
      acknowledges && !refuses && psns >= 0 && wants_response(static_cast<std::uint32_t>(psns));
  return names_a_response ? "an ACK names a request that its response acknowledges" : "";
}

// Every byte whose last writer is among the first `upto` work requests.
std::string Ledger::check_memory(std::span<const std::byte> memory, std::uint64_t upto) const {
  for (std::uint32_t i = 0; i < memory_.size(); ++i) {
    if (last_writer_[i] <= upto && memory[i] != memory_[i]) {
      return "memory byte " + std::to_string(i) + " is wrong" + describe("", last_writer_[i] - 1);
    }
  }
  return "";
}

}  // namespace gdx::sim
