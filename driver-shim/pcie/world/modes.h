// The ways a payload gets from GPU memory onto the wire, each as the PCIe transactions it consists of. This
// is the page to read: everything else in this folder interprets these tables.
//
// They are a model of what device/impl/put.h and an mlx5 NIC do, not that code itself.
// Source: docs/device.md, "Ordering"; what a NIC fetches: the doorbell record and its WQE,
// unless BlueFlame carried that, and what the WQE points to. [guessed] It reads the record first and the WQE
// after that. It may go by the doorbell's index instead: DOCA GPUNetIO and UCX ring before they store the
// record, and again after it. Nobody published it, so WorldConfig::record chooses.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "driver-shim/pcie/packet.h"
#include "proto/doorbell_kind.h"

namespace gdx::pcie {

enum class Mode : std::uint8_t { kPull, kPush, kInline, kProxy, kBounce, kPushFlags, kPushOrdered };
inline constexpr std::array<Mode, 7> kModes = {Mode::kPull,       Mode::kPush,   Mode::kInline,
                                               Mode::kProxy,      Mode::kBounce, Mode::kPushFlags,
                                               Mode::kPushOrdered};

// Returns whether the GPU stores payload into the NIC's memory.
constexpr bool is_push(Mode mode) {
  return mode == Mode::kPush || mode == Mode::kPushFlags || mode == Mode::kPushOrdered;
}
// Returns whether no NIC and GPU of today can do it.
constexpr bool is_proposal(Mode mode) { return mode == Mode::kPushFlags || mode == Mode::kPushOrdered; }

// A line of payload with a flag, which one store writes whole, as NCCL's LL128 has on NVLink.
inline constexpr std::uint32_t kFlaggedLineBytes = 128;
inline constexpr std::uint32_t kFlagBytes = 8;

using gdx::doorbell_kind_of;
using gdx::DoorbellKind;
using gdx::name;
using gdx::RecordUse;

enum class Actor : std::uint8_t { kGpu, kNic, kCpu };

enum class Verb : std::uint8_t {
  kStore,  // a posted write; the actor goes on at once, another actor's next step waits for its arrival
  kRing,   // a posted write like kStore, as the batch's doorbells demand
  kLoad,   // a read; the next step waits for its completion
  kFetch,  // a read as kLoad; left out if the doorbell brought its content, or for a record that is unread
  kOrder,  // the GPU's release before what follows: at the scope that reaches the place
  kOrderFetched,  // as kOrder, for what kFetch reads; left out where kFetch is
  kNotice,        // the CPU comes round to looking
  kSend,  // packet by packet onto the wire, from the place; a packet leaves when its payload is there. The
          // next step waits for the peer's acknowledgement.
};

enum class Place : std::uint8_t {
  kQueue,    // work and completion queue, doorbell record: in GPU or in host memory, as configured
  kGpu,      // the source buffer
  kHost,     // the slots of bounce and proxy, and what belongs to them
  kStaging,  // on-NIC memory
  kUar,      // the NIC's doorbell registers
  kWqe,      // the NIC holds it: it came with the WQE
};

// Amount that a step moves.
enum class Extent : std::uint8_t {
  kNothing,
  kPayload,  // the batch's payload, each put's by itself
  kLines,    // payload in lines with flags
  kWqes,     // 64 B blocks of all work requests of the batch, inline payload included
  kWord,     // 4 B, a doorbell record
  kFlag,     // 8 B, by which GPU and CPU notify each other
  kBlock,    // 64 B, a CQE; one for each put
};

struct Step {
  Actor actor;
  Verb verb;
  Place place;
  Purpose purpose = Purpose::kPayload;
  Extent extent = Extent::kNothing;
};

// The NIC's fetch of the payload is part of kSend. The ring gets the WQE by every doorbell, for
// retransmission and for a copy that was torn.
inline constexpr Step kPullSteps[] = {
    {Actor::kGpu, Verb::kStore, Place::kQueue, Purpose::kWqe, Extent::kWqes},
    {Actor::kGpu, Verb::kOrder, Place::kQueue},
    {Actor::kGpu, Verb::kStore, Place::kQueue, Purpose::kRecord, Extent::kWord},
    {Actor::kGpu, Verb::kRing, Place::kUar, Purpose::kDoorbell},
    {Actor::kNic, Verb::kFetch, Place::kQueue, Purpose::kRecord, Extent::kWord},
    {Actor::kNic, Verb::kFetch, Place::kQueue, Purpose::kWqe, Extent::kWqes},
    {Actor::kNic, Verb::kSend, Place::kGpu, Purpose::kPayload, Extent::kPayload},
    {Actor::kNic, Verb::kStore, Place::kQueue, Purpose::kCqe, Extent::kBlock},
    {Actor::kGpu, Verb::kLoad, Place::kQueue, Purpose::kCqe, Extent::kBlock},
};

inline constexpr Step kPushSteps[] = {
    {Actor::kGpu, Verb::kStore, Place::kStaging, Purpose::kPayload, Extent::kPayload},
    {Actor::kGpu, Verb::kStore, Place::kQueue, Purpose::kWqe, Extent::kWqes},
    {Actor::kGpu, Verb::kOrder, Place::kStaging},
    {Actor::kGpu, Verb::kStore, Place::kQueue, Purpose::kRecord, Extent::kWord},
    {Actor::kGpu, Verb::kRing, Place::kUar, Purpose::kDoorbell},
    {Actor::kNic, Verb::kFetch, Place::kQueue, Purpose::kRecord, Extent::kWord},
    {Actor::kNic, Verb::kFetch, Place::kQueue, Purpose::kWqe, Extent::kWqes},
    {Actor::kNic, Verb::kSend, Place::kStaging, Purpose::kPayload, Extent::kPayload},
    {Actor::kNic, Verb::kStore, Place::kQueue, Purpose::kCqe, Extent::kBlock},
    {Actor::kGpu, Verb::kLoad, Place::kQueue, Purpose::kCqe, Extent::kBlock},
};

// Models a proposal for future NICs. Each line of payload carries a flag. The NIC checks the flags of
// staging memory, waits for lines that are missing, and strips the flags. So the release need not cover the
// payload, but the queue alone.
inline constexpr Step kPushFlagsSteps[] = {
    {Actor::kGpu, Verb::kStore, Place::kStaging, Purpose::kPayload, Extent::kLines},
    {Actor::kGpu, Verb::kStore, Place::kQueue, Purpose::kWqe, Extent::kWqes},
    {Actor::kGpu, Verb::kOrder, Place::kQueue},
    {Actor::kGpu, Verb::kStore, Place::kQueue, Purpose::kRecord, Extent::kWord},
    {Actor::kGpu, Verb::kRing, Place::kUar, Purpose::kDoorbell},
    {Actor::kNic, Verb::kFetch, Place::kQueue, Purpose::kRecord, Extent::kWord},
    {Actor::kNic, Verb::kFetch, Place::kQueue, Purpose::kWqe, Extent::kWqes},
    {Actor::kNic, Verb::kSend, Place::kStaging, Purpose::kPayload, Extent::kPayload},
    {Actor::kNic, Verb::kStore, Place::kQueue, Purpose::kCqe, Extent::kBlock},
    {Actor::kGpu, Verb::kLoad, Place::kQueue, Purpose::kCqe, Extent::kBlock},
};

// Models a proposal for future GPUs and NICs. The GPU emits the stores to the NIC in program order. PCIe
// keeps posted writes of one requester in order. A WQE in the doorbell needs no release, if the NIC keeps
// that WQE until its acknowledgement. A WQE that is fetched needs one for the queue.
inline constexpr Step kPushOrderedSteps[] = {
    {Actor::kGpu, Verb::kStore, Place::kStaging, Purpose::kPayload, Extent::kPayload},
    {Actor::kGpu, Verb::kStore, Place::kQueue, Purpose::kWqe, Extent::kWqes},
    {Actor::kGpu, Verb::kOrderFetched, Place::kQueue},
    {Actor::kGpu, Verb::kStore, Place::kQueue, Purpose::kRecord, Extent::kWord},
    {Actor::kGpu, Verb::kRing, Place::kUar, Purpose::kDoorbell},
    {Actor::kNic, Verb::kFetch, Place::kQueue, Purpose::kRecord, Extent::kWord},
    {Actor::kNic, Verb::kFetch, Place::kQueue, Purpose::kWqe, Extent::kWqes},
    {Actor::kNic, Verb::kSend, Place::kStaging, Purpose::kPayload, Extent::kPayload},
    {Actor::kNic, Verb::kStore, Place::kQueue, Purpose::kCqe, Extent::kBlock},
    {Actor::kGpu, Verb::kLoad, Place::kQueue, Purpose::kCqe, Extent::kBlock},
};

inline constexpr Step kInlineSteps[] = {
    {Actor::kGpu, Verb::kStore, Place::kQueue, Purpose::kWqe, Extent::kWqes},
    {Actor::kGpu, Verb::kOrder, Place::kQueue},
    {Actor::kGpu, Verb::kStore, Place::kQueue, Purpose::kRecord, Extent::kWord},
    {Actor::kGpu, Verb::kRing, Place::kUar, Purpose::kDoorbell},
    {Actor::kNic, Verb::kFetch, Place::kQueue, Purpose::kRecord, Extent::kWord},
    {Actor::kNic, Verb::kFetch, Place::kQueue, Purpose::kWqe, Extent::kWqes},
    {Actor::kNic, Verb::kSend, Place::kWqe, Purpose::kPayload, Extent::kPayload},
    {Actor::kNic, Verb::kStore, Place::kQueue, Purpose::kCqe, Extent::kBlock},
    {Actor::kGpu, Verb::kLoad, Place::kQueue, Purpose::kCqe, Extent::kBlock},
};

// Steps of other libraries, in which a CPU thread posts for the kernel. The CPU's own queue lies in its
// memory, so storing a WQE there and polling are no PCIe transactions. BlueFlame serves it too, because
// libmlx5 uses it for a WQE posted alone.
inline constexpr Step kProxySteps[] = {
    {Actor::kGpu, Verb::kStore, Place::kHost, Purpose::kPayload, Extent::kPayload},
    {Actor::kGpu, Verb::kOrder, Place::kHost},
    {Actor::kGpu, Verb::kStore, Place::kHost, Purpose::kProxy, Extent::kFlag},
    {Actor::kCpu, Verb::kNotice, Place::kHost},
    {Actor::kCpu, Verb::kRing, Place::kUar, Purpose::kDoorbell},
    {Actor::kNic, Verb::kFetch, Place::kHost, Purpose::kRecord, Extent::kWord},
    {Actor::kNic, Verb::kFetch, Place::kHost, Purpose::kWqe, Extent::kWqes},
    {Actor::kNic, Verb::kSend, Place::kHost, Purpose::kPayload, Extent::kPayload},
    {Actor::kNic, Verb::kStore, Place::kHost, Purpose::kCqe, Extent::kBlock},
    {Actor::kCpu, Verb::kNotice, Place::kHost},
    {Actor::kCpu, Verb::kStore, Place::kGpu, Purpose::kProxy, Extent::kFlag},
};

// Steps of gdx: the GPU posts, without a CPU.
inline constexpr Step kBounceSteps[] = {
    {Actor::kGpu, Verb::kStore, Place::kHost, Purpose::kPayload, Extent::kPayload},
    {Actor::kGpu, Verb::kStore, Place::kQueue, Purpose::kWqe, Extent::kWqes},
    {Actor::kGpu, Verb::kOrder, Place::kHost},
    {Actor::kGpu, Verb::kStore, Place::kQueue, Purpose::kRecord, Extent::kWord},
    {Actor::kGpu, Verb::kRing, Place::kUar, Purpose::kDoorbell},
    {Actor::kNic, Verb::kFetch, Place::kQueue, Purpose::kRecord, Extent::kWord},
    {Actor::kNic, Verb::kFetch, Place::kQueue, Purpose::kWqe, Extent::kWqes},
    {Actor::kNic, Verb::kSend, Place::kHost, Purpose::kPayload, Extent::kPayload},
    {Actor::kNic, Verb::kStore, Place::kQueue, Purpose::kCqe, Extent::kBlock},
    {Actor::kGpu, Verb::kLoad, Place::kQueue, Purpose::kCqe, Extent::kBlock},
};

struct ModeEntry {
  std::string_view name;
  std::span<const Step> steps;
};

constexpr ModeEntry entry(Mode mode) {
  switch (mode) {
    case Mode::kPull: return {"pull", kPullSteps};
    case Mode::kPush: return {"push", kPushSteps};
    case Mode::kInline: return {"inline", kInlineSteps};
    case Mode::kProxy: return {"proxy", kProxySteps};
    case Mode::kBounce: return {"bounce", kBounceSteps};
    case Mode::kPushFlags: return {"push-flags", kPushFlagsSteps};
    case Mode::kPushOrdered: return {"push-ordered", kPushOrderedSteps};
  }
  return {};
}

constexpr std::string_view name(Mode mode) { return entry(mode).name; }

constexpr std::optional<Mode> mode_of(std::string_view wanted) {
  for (const Mode mode : kModes) {
    if (name(mode) == wanted) return mode;
  }
  return std::nullopt;
}

}  // namespace gdx::pcie
