// What ranks tell each other to map each other's memory. First all gather cards over TCP. Then each two ranks
// of one node pass one message each way over a local socket: an OfferHeader, so many Offers, and the open
// files that these name, in their order. One machine only, hence in its own byte order.
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

// Where a process runs, as far as others can share memory with it.
struct NodeIdentity {
  char boot_id[36];  // /proc/sys/kernel/random/boot_id; all zero: not known
  std::uint32_t user;
  std::uint64_t network_device;  // of /proc/self/ns/net, as stat(2) tells it
  std::uint64_t network_inode;

  bool operator==(const NodeIdentity&) const = default;
};

struct Card {
  std::uint32_t version;
  std::uint32_t willing;  // 0: told not to
  NodeIdentity node;
  char socket_name[kNameBytes];     // where the rank listens, letters and digits; empty: nowhere
  std::uint8_t token[kTokenBytes];  // whoever connects proves by it that it has seen this card
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

static_assert(std::is_trivially_copyable_v<Card> && std::is_trivially_copyable_v<Offer>);
static_assert(sizeof(Card) == 112 && sizeof(Offer) == 368 && sizeof(OfferHeader) == 32);

}  // namespace gdx::peer
