// A hostile peer: requester and responder fed with whatever decodes, in any order and at any time.
#include <array>
#include <optional>
#include <vector>

#include "driver-shim/softhca/transport/rc.h"
#include "proto/roce/codec.h"
#include "tests/fuzz/input.h"

namespace gdx::softhca::transport {
namespace {

using fuzz::expect;
using mlx5::Syndrome;

constexpr std::uint64_t kAddress = 0x10000;
constexpr std::uint32_t kMemoryBytes = 4096;
constexpr std::uint32_t kReceiveBytes = 1024;
constexpr std::uint32_t kRkey = 0x1234;
constexpr std::size_t kMaxSteps = 400;

class Victim final : RequesterPort, ResponderPort {
 public:
  explicit Victim(const RcConfig& config)
      : config_(config), requester_(config, *this), responder_(config, *this) {}

  void step(fuzz::Input& input) {
    take_step(input);
    expect(requester_.check_invariants() == nullptr, "the requester's invariants hold");
    expect(responder_.check_invariants() == nullptr, "the responder's invariants hold");
  }
  void finish() {
    requester_.fail_all(Syndrome::kFlushed);
    expect(completed_ == posted_, "every work request completes");
  }

 private:
  void take_step(fuzz::Input& input) {
    switch (input.take<std::uint8_t>() % 8) {
      case 0:
      case 1:
      case 2: return deliver_likely(input);
      case 3: return deliver_raw(input);
      case 4: return post(input);
      case 5: ++receives_; return;
      case 6:
        now_ns_ += std::uint64_t{input.take<std::uint16_t>()} << 6;
        if (now_ns_ >= requester_.next_deadline_ns()) requester_.on_timer(now_ns_);
        return;
      default: {
        const std::uint32_t packets = 1 + input.take<std::uint8_t>() % 16;
        if (!dead_) responder_.pump(now_ns_, packets);
        requester_.pump(now_ns_, packets);
      }
    }
  }
  void deliver(const roce::Headers& headers, std::span<const std::byte> payload) {
    if (dead_) return;
    requester_.on_packet(now_ns_, headers, payload);
    if (!dead_) responder_.on_packet(now_ns_, headers, payload);
  }
  void deliver_raw(fuzz::Input& input) {
    const auto decoded = roce::decode(std::as_bytes(input.take_bytes(input.take<std::uint8_t>())));
    if (!decoded) return;
    std::array<std::byte, roce::kMaxHeaderBytes> again;
    const std::size_t length_bytes = roce::encode(decoded->headers, again);
    expect(length_bytes == roce::header_bytes(decoded->headers.bth.opcode), "what decodes encodes");
    deliver(decoded->headers, decoded->payload);
  }
  // Near what the victim expects, so that the fuzzer gets past the first check.
  void deliver_likely(fuzz::Input& input) {
    roce::Headers headers;
    const auto operation = input.take<std::uint8_t>();
    headers.bth.opcode = operation < 0xf0 ? static_cast<roce::Opcode>(operation % 0x18)
                         : operation & 1  ? roce::Opcode::kMaskedCompareSwap
                                          : roce::Opcode::kMaskedFetchAdd;
    const auto distance = static_cast<std::uint32_t>(input.take<std::int8_t>());
    const auto flags = input.take<std::uint8_t>();
    const std::uint32_t base = flags & 1 ? requester_.next_psn() : responder_.expected_psn();
    headers.bth.psn = (base + distance) & roce::kPsnMask;
    headers.bth.ack_request = flags & 2;
    headers.aeth = {input.take<std::uint8_t>(), 0};
    headers.reth.rkey = headers.atomic.rkey = flags & 4 ? kRkey + 1 : kRkey;
    headers.reth.address = headers.atomic.address = kAddress + input.take<std::uint16_t>();
    const auto length_bytes = input.take<std::uint16_t>();
    headers.reth.length_bytes = flags & 8 ? length_bytes << 16 : length_bytes;
    const std::size_t payload_bytes = flags & 16   ? config_.mtu_bytes
                                      : flags & 32 ? length_bytes % (config_.mtu_bytes + 2)
                                                   : 0;
    deliver(headers, std::span(zeros_).first(payload_bytes));
  }
  void post(fuzz::Input& input) {
    WorkRequest request;
    request.opcode = static_cast<mlx5::WqeOpcode>(input.take<std::uint8_t>() % 0x26);
    request.fm_ce_se = input.take<std::uint8_t>();
    request.length_bytes = input.take<std::uint16_t>();
    request.cookie = posted_++;
    requester_.post(request);
  }

  Syndrome send(const roce::Headers& /*headers*/, const WorkRequest& request, std::uint32_t offset_bytes,
                std::uint32_t length_bytes) override {
    expect(length_bytes <= config_.mtu_bytes && offset_bytes <= request.length_bytes &&
               length_bytes <= request.length_bytes - offset_bytes,
           "a packet gathers inside its request");
    return Syndrome::kNone;
  }
  Syndrome scatter(const WorkRequest& request, std::uint32_t offset_bytes,
                   std::span<const std::byte> payload) override {
    const bool atomic = request.opcode != mlx5::WqeOpcode::kRdmaRead;
    const std::size_t room_bytes = atomic ? sizeof(std::uint64_t) : request.length_bytes;
    expect(offset_bytes <= room_bytes && payload.size() <= room_bytes - offset_bytes,
           "a response scatters inside its request");
    return Syndrome::kNone;
  }
  Syndrome apply(const WorkRequest& request) override {
    expect(request.cookie == completed_, "a key changes when nothing before it can be sent again");
    return Syndrome::kNone;
  }
  void complete(const WorkRequest& request, Syndrome syndrome) override {
    expect(request.cookie == completed_++, "work requests complete once and in order");
    expect(!failed_ || syndrome == Syndrome::kFlushed, "after an error everything is flushed");
    failed_ = failed_ || syndrome != Syndrome::kNone;
  }

  static bool inside(std::uint32_t rkey, std::uint64_t address, std::size_t length_bytes) {
    const std::uint64_t offset = address - kAddress;
    return rkey == kRkey && offset <= kMemoryBytes && length_bytes <= kMemoryBytes - offset;
  }
  void send(const roce::Headers& /*headers*/) override {}
  bool send_from_memory(const roce::Headers& /*headers*/, std::uint32_t rkey, std::uint64_t address,
                        std::uint32_t length_bytes) override {
    expect(length_bytes <= config_.mtu_bytes, "a response fits the MTU");
    expect(length_bytes == 0 || inside(rkey, address, length_bytes), "only checked memory is read");
    return address % 1024 < 960;  // the rest has gone since the check
  }
  bool check(RemoteOperation /*operation*/, std::uint32_t rkey, std::uint64_t address,
             std::uint32_t length_bytes) override {
    return inside(rkey, address, length_bytes);
  }
  bool write(std::uint32_t rkey, std::uint64_t address, std::span<const std::byte> payload) override {
    expect(inside(rkey, address, payload.size()), "only checked memory is written");
    return true;
  }
  std::optional<std::uint64_t> execute(std::uint32_t rkey, std::uint64_t address,
                                       const AtomicOperation& /*operation*/) override {
    expect(address % 8 == 0 && inside(rkey, address, 8), "an atomic is aligned and checked");
    return 0;
  }
  bool take_receive() override {
    if (receives_ == 0) return false;
    --receives_;
    ++taken_receives_;
    received_bytes_ = 0;
    return true;
  }
  Syndrome scatter_receive(std::uint32_t offset_bytes, std::span<const std::byte> payload) override {
    expect(taken_receives_ > 0 && offset_bytes == received_bytes_, "receives fill without holes");
    if (payload.size() > kReceiveBytes - received_bytes_) return Syndrome::kLocalLength;
    received_bytes_ += static_cast<std::uint32_t>(payload.size());
    return Syndrome::kNone;
  }
  void complete_receive(const ReceiveCompletion& /*completion*/) override {
    expect(taken_receives_ > 0, "only a taken receive completes");
    --taken_receives_;
  }
  bool invalidate(std::uint32_t rkey) override { return rkey % 2 == 0; }
  void fatal(Syndrome /*syndrome*/) override {
    expect(!dead_, "a queue pair dies once");
    dead_ = true;
    requester_.fail_all(Syndrome::kFlushed);
  }

  RcConfig config_;
  std::array<std::byte, 4097> zeros_{};
  std::uint64_t now_ns_ = 0;
  std::uint64_t posted_ = 0;
  std::uint64_t completed_ = 0;
  bool failed_ = false;
  bool dead_ = false;
  std::uint32_t receives_ = 1;
  std::uint32_t taken_receives_ = 0;
  std::uint32_t received_bytes_ = 0;
  Requester requester_;
  Responder responder_;
};

RcConfig make_config(fuzz::Input& input) {
  const auto bits = input.take<std::uint16_t>();
  RcConfig config;
  config.mtu_bytes = 256u << bits % 5;
  config.send_psn = config.receive_psn = bits & 8 ? 0xfffffe : 100;
  config.ack_timeout = bits & 16 ? 0 : 1;
  config.retry_count = bits >> 5 & 7;
  config.rnr_retry = bits >> 8 & 7;
  config.max_rd_atomic = bits >> 11 & 3;
  config.max_dest_rd_atomic = bits >> 13 & 3;
  config.max_unacked_packets = bits & 0x8000 ? 4 : 0;
  config.remote_write = config.remote_read = config.remote_atomic = true;
  return config;
}

}  // namespace
}  // namespace gdx::softhca::transport

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gdx::softhca::transport;
  gdx::fuzz::Input input(data, size);
  Victim victim(make_config(input));
  for (std::size_t i = 0; i < kMaxSteps && !input.empty(); ++i) victim.step(input);
  victim.finish();
  return 0;
}
