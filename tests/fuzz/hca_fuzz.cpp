// A hostile client and a hostile peer of one HCA: PRM commands, rings, doorbells and packets in any order.
#include <array>
#include <memory>
#include <random>
#include <vector>

#include "driver-shim/softhca/devx/commands.h"
#include "driver-shim/softhca/devx/limits.h"
#include "driver-shim/softhca/engine/engine.h"
#include "driver-shim/softhca/wire/addressing.h"
#include "proto/mlx5/doorbell.h"
#include "proto/mlx5/umr.h"
#include "proto/mlx5/wqe.h"
#include "proto/roce/codec.h"
#include "tests/fuzz/input.h"

namespace gdx::softhca {
namespace {

namespace prm = mlx5::prm;
using fuzz::Input;

constexpr std::size_t kUmemBytes = 16 * 4096;
constexpr std::size_t kMaxSteps = 200;
constexpr std::size_t kMaxObjects = 8;

// Wire without a peer: drops sent packets; the input contains the arrivals.
class LoneWire final : public wire::Wire {
 public:
  const wire::Address& local() const override { return local_; }
  std::size_t room(const wire::Address& /*destination*/) override { return SIZE_MAX; }
  std::span<std::byte> begin_packet(const wire::Address& /*destination*/) override { return packet_; }
  void commit_packet(const wire::Address& /*destination*/, std::size_t length_bytes) override {
    fuzz::expect(length_bytes <= packet_.size(), "a packet fits its buffer");
  }
  void flush() override {}
  std::size_t receive(std::size_t /*max_packets*/, const Sink& sink) override {
    const std::vector<std::byte> arrival = std::move(arrival_);
    arrival_.clear();
    if (arrival.empty()) return 0;
    sink(local_, arrival);
    return 1;
  }
  int poll_fd() const override { return -1; }
  bool arm() override { return true; }
  const wire::WireCounters& counters() const override { return counters_; }

  void arrive(std::vector<std::byte> datagram) { arrival_ = std::move(datagram); }

 private:
  wire::Address local_ = wire::Address::ipv4(0x7f000002);
  std::array<std::byte, 4096 + 64> packet_;
  std::vector<std::byte> arrival_;
  wire::WireCounters counters_;
};

// Memory that the client may name, between guards that nobody may touch.
struct alignas(4096) Pages {
  using Guard = std::array<std::uint8_t, 4096>;
  Pages() {
    for (Guard* guard : guards()) guard->fill(fuzz::kCanary);
  }
  void check() {
    for (Guard* guard : guards()) fuzz::expect_canaries(*guard, "nothing lands beside the client's memory");
  }
  std::array<Guard*, 3> guards() { return {&before, &between, &behind}; }

  Guard before;
  std::array<std::byte, kUmemBytes> umem{};
  Guard between;
  std::array<std::byte, mlx5::kUarPageBytes> uar{};
  std::array<std::byte, 4096> device_memory{};
  Guard behind;
};

class Bench {
 public:
  Bench() {
    auto wire = std::make_unique<LoneWire>();
    wire_ = wire.get();
    HcaConfig config;
    config.device_memory_bytes = pages_->device_memory.size();
    engine_ = std::make_unique<Engine>(
        config, std::move(wire), pages_->device_memory.data(),
        [state = std::mt19937(1)]() mutable { return static_cast<std::uint32_t>(state()); });
    commands_ =
        std::make_unique<devx::Commands>(*engine_, umems_, [](devx::Named, std::uint32_t) { return true; });
    umem_ = *umems_.add(pages_->umem.data(), kUmemBytes);
    pd_ = *engine_->alloc_pd();
    uar_ = *engine_->add_uar({pages_->uar.data()});
    mkey_ = *engine_->register_memory(
        {.pd = pd_,
         .base = pages_->umem.data(),
         .iova = 0,
         .length_bytes = kUmemBytes,
         .access = kLocalWrite | kRemoteWrite | kRemoteRead | kRemoteAtomic | kWindowBind});
    constexpr std::uint32_t kEntries = 4;
    umr_keys_ = {
        *engine_->register_memory(
            {.pd = pd_, .umr = UmrKey{.window = true, .peer_may_invalidate = true, .max_entries = kEntries}}),
        *engine_->register_memory({.pd = pd_, .umr = UmrKey{.max_entries = kEntries}})};
  }
  // Queue pairs before the completion queues that they use.
  ~Bench() {
    while (!objects_.empty()) {
      for (std::size_t i = objects_.size(); i-- > 0;) {
        if (commands_->destroy(objects_[i]) == 0) objects_.erase(objects_.begin() + static_cast<long>(i));
      }
    }
    fuzz::expect(umems_.remove(umem_) == 0, "nobody holds a umem after its queues are gone");
    pages_->check();
  }

  void step(Input& input) {
    const auto kind = input.take<std::uint8_t>();
    if (kind == 0xff) return bind(input);
    switch (kind % 8) {
      case 0: return create(input, prm::Opcode::kCreateCq);
      case 1: return create(input, prm::Opcode::kCreateQp);
      case 2:
      case 3: return modify(input);
      case 4: return anything(input);
      case 5: return scribble(input);
      case 6: return ring(input);
      default: return arrive(input);
    }
  }
  void check_invariants() {
    const char* const broken = engine_->check_invariants();
    fuzz::expect(broken == nullptr, broken);
  }

 private:
  using Mailbox = std::array<std::uint8_t, 0xe80 / 8>;

  static void patch(Input& input, std::span<std::uint8_t> mailbox) {
    for (std::uint8_t patches = input.take<std::uint8_t>() % 8; patches > 0; --patches) {
      const std::size_t at = input.take<std::uint16_t>() % mailbox.size();
      mailbox[at] = input.take<std::uint8_t>();
    }
  }
  const devx::Object* chosen(Input& input) const {
    return objects_.empty() ? nullptr : &objects_[input.take<std::uint8_t>() % objects_.size()];
  }

  void create(Input& input, prm::Opcode opcode) {
    if (objects_.size() == kMaxObjects) return;
    Mailbox in{};
    prm::set(in, prm::kOpcode, static_cast<std::uint64_t>(opcode));
    if (opcode == prm::Opcode::kCreateCq) {
      prm::set(in, prm::cq::kLogSize, 4);
      prm::set(in, prm::cq::kUarPage, uar_);
      prm::set(in, prm::cq::kEqn, devx::kFirstEqn);
      prm::set(in, prm::cq::kDbrUmemId, umem_);
      prm::set(in, prm::cq::kUmemId, umem_);
      prm::set(in, prm::cq::kUmemOffset, 4096);
    } else {
      prm::set(in, prm::qp::kPd, pd_);
      prm::set(in, prm::qp::kUarPage, uar_);
      prm::set(in, prm::qp::kSendCqn, cqn_);
      prm::set(in, prm::qp::kReceiveCqn, cqn_);
      prm::set(in, prm::qp::kLogRqSize, 3);
      prm::set(in, prm::qp::kLogRqStride, 1);
      prm::set(in, prm::qp::kLogSqSize, 4);
      prm::set(in, prm::qp::kDbrUmemId, umem_);
      prm::set(in, prm::qp::kDbrAddress, kQpRecord);
      prm::set(in, prm::qp::kUmemId, umem_);
      prm::set(in, prm::qp::kUmemOffset, 2 * 4096);
    }
    patch(input, in);
    const auto object = commands_->create(in, out_);
    if (!object) return;
    if (object->kind == devx::ObjectKind::kCq) cqn_ = object->number;
    objects_.push_back(*object);
  }

  // The next transition to RTS, or the one that the input names.
  void modify(Input& input) {
    static constexpr std::array kOpcodes{
        prm::Opcode::kRst2Init,  prm::Opcode::kInit2Rtr, prm::Opcode::kRtr2Rts, prm::Opcode::kRts2Rts,
        prm::Opcode::kInit2Init, prm::Opcode::k2Err,     prm::Opcode::k2Rst,    prm::Opcode::kQueryQp};
    const devx::Object* object = chosen(input);
    if (object == nullptr) return;
    std::size_t which = input.take<std::uint8_t>();
    if (which % 2 == 0 && object->kind == devx::ObjectKind::kQp) {
      const auto state = engine_->query_qp(object->number);
      which = state ? static_cast<std::size_t>(state->state) % 3 : 0;
    } else {
      which = which / 2 % kOpcodes.size();
    }
    Mailbox in{};
    prm::set(in, prm::kOpcode, static_cast<std::uint64_t>(kOpcodes[which]));
    prm::set(in, prm::kObjectId, object->number);
    prm::set(in, prm::qp::kMtu, 1);
    prm::set(in, prm::qp::kRemoteQpn, 0x77);
    prm::set(in, prm::qp::kRemoteRead, 1);
    prm::set(in, prm::qp::kRemoteWrite, 1);
    prm::set(in, prm::qp::kRemoteAtomic, 1);
    prm::set(in, prm::qp::kPathPort, 1);
    prm::set(in, prm::qp::kPathMigrationState, prm::qp::kMigrated);
    prm::set(in, prm::qp::kLogMaxMessage, devx::kLogMaxMessage);
    prm::set(in, prm::qp::kAtomicMode, prm::qp::kAtomicModeIbSpec);
    prm::set(in, prm::qp::kPathHopLimit, 64);
    prm::set(in, prm::qp::kPathUdpSourcePort, 0xc000);
    const wire::Mac mac = wire::mac_of(wire_->local());
    std::copy(mac.begin(), mac.end(), in.begin() + prm::qp::kPathRemoteMacHigh.bit_offset / 8);
    const auto& gid = wire_->local().gid;
    std::copy(gid.begin(), gid.end(), in.begin() + prm::qp::kPathRemoteGidByte);
    patch(input, in);
    if (kOpcodes[which] == prm::Opcode::kQueryQp) {
      (void)commands_->query(*object, in, out_);
    } else {
      (void)commands_->modify(*object, in, out_);
    }
  }

  // A command with nothing right about it, or an early destroy.
  void anything(Input& input) {
    const auto kind = input.take<std::uint8_t>();
    const devx::Object* object = chosen(input);
    if (kind % 4 == 0 && object != nullptr) {
      if (commands_->destroy(*object) == 0) objects_.erase(objects_.begin() + (object - objects_.data()));
      return;
    }
    const auto in = input.take_bytes(input.take<std::uint8_t>());
    out_.fill(fuzz::kCanary);
    const std::size_t room = input.take<std::uint8_t>() * 20u;  // to beyond the longest answer
    const auto out = devx::Output(out_).first(room);
    if (kind % 4 == 1 && object != nullptr) {
      (void)commands_->modify(*object, in, out);
    } else if (kind % 4 == 2 && object != nullptr) {
      (void)commands_->query(*object, in, out);
    } else {
      (void)commands_->general(in, out);
    }
    fuzz::expect_canaries(std::span(out_).subspan(room), "an answer fits its buffer");
  }

  // Anywhere in the umem: rings, records, payload.
  void scribble(Input& input) {
    const std::size_t at = input.take<std::uint16_t>() % kUmemBytes;
    const auto bytes = input.take_bytes(std::min<std::size_t>(input.take<std::uint8_t>(), kUmemBytes - at));
    std::memcpy(pages_->umem.data() + at, bytes.data(), bytes.size());
  }

  // One WQE that the parser takes, the producer index, the doorbell.
  void ring(Input& input) {
    const devx::Object* object = chosen(input);
    if (object == nullptr) return;
    const auto index = input.take<std::uint16_t>();
    mlx5::PutWqe wqe{};
    wqe.control.opmod_index_opcode = std::uint32_t{index} << 8 | input.take<std::uint8_t>();
    wqe.control.qpn_ds = object->number << 8 | input.take<std::uint8_t>();
    wqe.control.fm_ce_se = input.take<std::uint8_t>();
    wqe.remote = {input.take<std::uint16_t>(), mkey_, 0};
    wqe.data = {input.take<std::uint16_t>(), mkey_, input.take<std::uint16_t>()};
    std::memcpy(pages_->umem.data() + 2 * 4096 + kReceiveRingBytes + index % 16 * 64, &wqe, sizeof wqe);
    const Be32 produced(std::uint32_t{index} + 1u);
    std::memcpy(pages_->umem.data() + kQpRecord + sizeof produced, &produced, sizeof produced);
    ring_for(wqe.control);
  }

  // The doorbell is the first 8 bytes of the newest WQE.
  void ring_for(const mlx5::ControlSegment& control) {
    std::memcpy(&pages_->uar[mlx5::kUarBlueFlame], &control, sizeof(std::uint64_t));
    engine_->progress();
  }

  // A UMR WQE for a window or a key to be laid out, as libmlx5's but for the input's changes.
  void bind(Input& input) {
    const devx::Object* object = chosen(input);
    if (object == nullptr) return;
    const auto index = input.take<std::uint16_t>();
    const auto length_bytes = input.take<std::uint16_t>();
    mlx5::ControlSegment control{};
    control.opmod_index_opcode =
        std::uint32_t{index} << 8 | static_cast<std::uint32_t>(mlx5::WqeOpcode::kUmr);
    control.qpn_ds = object->number << 8 | 12;
    mlx5::UmrControlSegment umr{};
    umr.flags = input.take<std::uint8_t>();
    const auto entries = input.take<std::uint8_t>();
    umr.translation_octowords = entries % 6;
    control.immediate = umr_keys_[entries >> 7];
    umr.mkey_mask = kUmrMask;
    mlx5::MkeyContextSegment context{};
    context.free = input.take<std::uint8_t>();
    context.access_flags = input.take<std::uint8_t>();
    context.qpn_tag = input.take<std::uint8_t>() % 2 == 0 ? object->number << 8 : ~0u;
    context.start_address = input.take<std::uint16_t>();
    context.length_bytes = length_bytes;
    const mlx5::DataSegment entry{length_bytes, mkey_, input.take<std::uint16_t>()};
    const mlx5::RepeatBlockSegment block{length_bytes, mlx5::kRepeatBlockOperation, 3, 0, 1};
    const mlx5::RepeatEntrySegment strided{0x40, length_bytes, mkey_, entry.address};
    const bool pattern = (entries & 0x40) != 0;
    std::vector<std::byte> wqe(12 * mlx5::kSegmentBytes);
    std::memcpy(wqe.data(), &control, sizeof control);
    std::memcpy(wqe.data() + 16, &umr, sizeof umr);
    std::memcpy(wqe.data() + 64, &context, sizeof context);
    std::memcpy(wqe.data() + 128, pattern ? static_cast<const void*>(&block) : &entry, sizeof entry);
    std::memcpy(wqe.data() + 144, pattern ? static_cast<const void*>(&strided) : &entry, sizeof entry);
    patch(input, {reinterpret_cast<std::uint8_t*>(wqe.data()), wqe.size()});
    std::byte* const ring = pages_->umem.data() + 2 * 4096 + kReceiveRingBytes;
    for (std::size_t i = 0; i < wqe.size(); ++i) ring[(index * 64u + i) % (16 * 64)] = wqe[i];
    const Be32 produced(std::uint32_t{index} + 3u);
    std::memcpy(pages_->umem.data() + kQpRecord + sizeof produced, &produced, sizeof produced);
    ring_for(control);
  }

  void arrive(Input& input) {
    const devx::Object* object = chosen(input);
    const auto bytes = std::as_bytes(input.take_bytes(input.take<std::uint8_t>()));
    std::vector<std::byte> datagram(bytes.begin(), bytes.end());
    const bool addressed = object != nullptr && datagram.size() >= roce::kBthBytes;
    if (addressed) {
      const Be32 qpn(object->number);
      std::memcpy(datagram.data() + 4, &qpn, sizeof qpn);
      datagram[1] &= std::byte{0xf0};
    }
    wire_->arrive(std::move(datagram));
    engine_->progress();
  }

  static constexpr std::uint64_t kQpRecord = 64;
  static constexpr std::size_t kReceiveRingBytes = 8 * 32;
  static constexpr std::uint64_t kUmrMask = mlx5::kMkeyMaskFree | mlx5::kMkeyMaskTag | mlx5::kMkeyMaskQpn |
                                            mlx5::kMkeyMaskLength | mlx5::kMkeyMaskStartAddress |
                                            mlx5::kMkeyMaskLocalWrite | mlx5::kMkeyMaskRemoteRead |
                                            mlx5::kMkeyMaskRemoteWrite | mlx5::kMkeyMaskAtomic;

  std::unique_ptr<Pages> pages_ = std::make_unique<Pages>();
  LoneWire* wire_ = nullptr;
  std::unique_ptr<Engine> engine_;
  devx::UmemTable umems_;
  std::unique_ptr<devx::Commands> commands_;
  std::uint32_t umem_ = 0, pd_ = 0, uar_ = 0, mkey_ = 0, cqn_ = 0;
  std::array<std::uint32_t, 2> umr_keys_{};
  std::vector<devx::Object> objects_;
  std::array<std::uint8_t, 5120> out_{};
};

}  // namespace
}  // namespace gdx::softhca

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  gdx::fuzz::Input input(data, size);
  gdx::softhca::Bench bench;
  for (std::size_t i = 0; i < gdx::softhca::kMaxSteps && !input.empty(); ++i) {
    bench.step(input);
    bench.check_invariants();
  }
  return 0;
}
