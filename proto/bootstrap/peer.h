// Messages by which ranks of a node map each other's memory. First all ranks gather identities over TCP. Then
// each two ranks of one node pass one message each way over a local socket. A message is an OfferHeader, its
// Offers, and the open files that they name, in their order. Byte order is the machine's own, because both
// ends are on one machine.
//
//   all ranks   RankIdentity ------- TCP gather -----------> all RankIdentities
//   each pair   OfferHeader, Offers, files <--local socket--> OfferHeader, Offers, files
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "proto/gpu/memory.h"

namespace gdx::peer {

inline constexpr std::uint32_t kExchangeVersion = 1;
inline constexpr std::size_t kNameBytes = 32;
inline constexpr std::size_t kTokenBytes = 16;
inline constexpr std::size_t kMaxParts = 8;  // allocations that one region of GPU memory may span
inline constexpr std::size_t kReasonBytes = 192;

// Identity of the place where a process runs, for sharing memory with it.
struct NodeIdentity {
  char boot_id[36];  // /proc/sys/kernel/random/boot_id; all zero: unknown
  std::uint32_t user;
  std::uint64_t network_device;  // of /proc/self/ns/net, from stat(2)
  std::uint64_t network_inode;

  bool operator==(const NodeIdentity&) const = default;
};

// Identity that a rank publishes, so that ranks of its node can connect to it.
struct RankIdentity {
  std::uint32_t version;
  std::uint32_t willing;  // 0: sharing is disabled
  NodeIdentity node;
  char socket_name[kNameBytes];     // name on which the rank listens, letters and digits; empty: none
  std::uint8_t token[kTokenBytes];  // proof of a connecting process that it has read this identity
};

enum class OfferKind : std::uint32_t {
  kNone = 0,      // cannot be shared: `reason`
  kHostFile = 1,  // one sealed file; the region begins where it does
  kGpuParts = 2,  // VMM allocations, as files, one after another; the region begins `offset` after the first
  kGpuIpc = 3,    // a CUDA IPC handle; the region begins `offset` after what it opens
};

// One region.
struct Offer {
  OfferKind kind;
  std::uint32_t access;  // of the registration: enum ibv_access_flags
  RemoteMemory region;
  std::uint64_t offset;
  std::uint32_t part_count;  // open files
  std::uint32_t reserved;
  std::uint64_t part_bytes[kMaxParts];
  std::uint8_t ipc_handle[64];
  char reason[kReasonBytes];
};

struct OfferHeader {
  std::uint32_t version;
  std::uint32_t rank;               // the sender's
  std::uint8_t token[kTokenBytes];  // the receiver's
  std::uint32_t count;
  std::uint32_t reserved;
};

static_assert(std::is_trivially_copyable_v<RankIdentity> && std::is_trivially_copyable_v<Offer>);
static_assert(sizeof(RankIdentity) == 112 && sizeof(Offer) == 368 && sizeof(OfferHeader) == 32);

}  // namespace gdx::peer
