// Faults that a test plants in the software HCAs of a process, one at a time. They prove that a check can
// fail.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

namespace gdx::softhca {

enum class PlantedFault : std::uint8_t {
  kNone,
  kNoDevice,          // no RDMA device is to be seen
  kPortDown,          // the port is not active
  kInfiniBandPort,    // the port is InfiniBand, and has no LID
  kNoOverrunIgnore,   // capability cq_oi is 0
  kTimestampFormat,   // CREATE_QP refuses the default format of timestamps
  kQueryQp,           // QUERY_QP returns a smaller MTU than was set
  kCqeCounter,        // wqe_counter of a completion is that of the next WQE
  kOwnerBit,          // the owner bit of completions of DevX queues is that of the first lap on all laps
  kInlineWrap,        // inline data behind the end of the ring is not that of its beginning
  kLostAdd,           // atomics answer, and change nothing
  kReturnedSum,       // atomics answer with the sum that they store
  kBackwardDoorbell,  // a doorbell older than what was fetched ends the queue pair
  kStalePayload,      // a WRITE of more than 8 B lands only with the next such one
  kSyndrome,          // a remote access error is reported as a remote operation error
  kTornBlueFlame,     // executes a torn copy of a WQE from a doorbell
  kMuteBlueFlame,     // a doorbell that brings a WQE is lost
  kDisguised,         // no counter shows that it is software, so that programs take it for hardware
  kNoAckTimeout,      // a queue pair has ack timeout 0, whatever was set: it never sends again, nor gives up
  kDeviceMemoryTail,  // the last byte read from device memory is wrong where the length is no multiple of 4
  kForceRelax,  // PCI_WR_ORDERING is force_relax: a WRITE of more than 8 B lands a step late, after a signal
  kRails,       // HCAs with an even and with an odd address do not reach each other
  kForeignGid,  // the interface of GID 1 is in another network namespace, with a number of one here
  kMergedDoorbells,  // only one arrives of doorbells for several queue pairs that come at once
  kDeafToRepeats,    // a doorbell that is as the one before is lost, even if the record came meanwhile
  kNextIsLast,       // a doorbell without a length is taken to name the last WQE, not the next
  kNoGpuAtomics,     // atomics on GPU memory, by address, end with a remote access error
  kDroppedForce,  // data lands in any order although a queue pair forces its own, and QUERY_QP shows no force
};

// Names of the faults, which GDX_SOFTHCA_FAULT takes as values.
inline constexpr std::array<std::pair<std::string_view, PlantedFault>, 27> kPlantedFaults{{
    {"no_device", PlantedFault::kNoDevice},
    {"port_down", PlantedFault::kPortDown},
    {"infiniband_port", PlantedFault::kInfiniBandPort},
    {"no_overrun_ignore", PlantedFault::kNoOverrunIgnore},
    {"timestamp_format", PlantedFault::kTimestampFormat},
    {"query_qp", PlantedFault::kQueryQp},
    {"cqe_counter", PlantedFault::kCqeCounter},
    {"owner_bit", PlantedFault::kOwnerBit},
    {"inline_wrap", PlantedFault::kInlineWrap},
    {"lost_add", PlantedFault::kLostAdd},
    {"returned_sum", PlantedFault::kReturnedSum},
    {"backward_doorbell", PlantedFault::kBackwardDoorbell},
    {"stale_payload", PlantedFault::kStalePayload},
    {"syndrome", PlantedFault::kSyndrome},
    {"torn_blueflame", PlantedFault::kTornBlueFlame},
    {"mute_blueflame", PlantedFault::kMuteBlueFlame},
    {"disguised", PlantedFault::kDisguised},
    {"no_ack_timeout", PlantedFault::kNoAckTimeout},
    {"device_memory_tail", PlantedFault::kDeviceMemoryTail},
    {"force_relax", PlantedFault::kForceRelax},
    {"rails", PlantedFault::kRails},
    {"foreign_gid", PlantedFault::kForeignGid},
    {"merged_doorbells", PlantedFault::kMergedDoorbells},
    {"deaf_to_repeats", PlantedFault::kDeafToRepeats},
    {"next_is_last", PlantedFault::kNextIsLast},
    {"no_gpu_atomics", PlantedFault::kNoGpuAtomics},
    {"dropped_force", PlantedFault::kDroppedForce},
}};

// Set before the first HCA is made, and read by all of them since. Threads: any, then.
inline PlantedFault planted_fault = PlantedFault::kNone;

}  // namespace gdx::softhca
