// A way to a fabric that the poster's thread drives: writes, reads and short messages to connected ranks, by
// keys.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace gdx {

// Properties of a port, as they were negotiated: they decide what is native and what is emulated.
struct PortTraits {
  std::string provider;              // "tcp;ofi_rxm"
  std::string version;               // of the provider and of the API that was agreed
  std::string order_source{};        // source of the orders; empty: flags of libfabric
  bool message_after_write = false;  // a message is delivered after the writes before it
  bool messages_in_order = false;
  bool read_after_write = false;  // a read sees the writes before it
  bool delivery_complete = true;  // writes complete when the target has them, else when their source is free
  // kPortSourceFree ends writes earlier, and a connection is never made anew, so that a message whose number
  // counts a lost write waits for ever.
  bool early_writes = false;
  bool atomics = false;
  bool gpu_memory = false;
  bool random_keys = false;  // else the provider chooses keys
  bool offsets = false;      // a remote address counts from the region's begin
  bool within_host = false;  // it reaches no other host
  bool software = false;     // ordinary processors move the bytes, and nobody on the way is authenticated
  std::uint32_t immediate_bytes = 0;  // of data that a write brings to the target's queue
  std::uint64_t most_bytes = 0;       // of one write or read
};

// Storage that a port needs for an operation in flight; it stays until the operation's event.
struct PortContext {
  void* reserved[8];
};

// Message of the agents' protocol; a port carries exactly this many bytes.
inline constexpr std::size_t kPortMessageBytes = 64;

// Result of posting: an event will follow, or the port has no room and must be polled first.
enum class Posting { kPosted, kAgain };

struct PortEvent {
  enum class Kind { kDone, kFailed, kMessage, kImmediate };
  Kind kind = Kind::kDone;
  PortContext* context = nullptr;  // of kDone and kFailed; null: the failure belongs to no operation
  std::uint32_t immediate = 0;
  std::array<std::byte, kPortMessageBytes> message{};
  Error error;  // of kFailed
};

// Part of memory of this process.
struct PortSource {
  std::byte* address;
  void* region;  // PortRegion::local
};

// Memory of a peer, as its PortRegion says.
struct PortTarget {
  std::uint64_t address;
  std::uint64_t key;
};

struct PortRegion {
  void* object = nullptr;  // the port's own; null: it keeps none
  void* local = nullptr;
  std::uint64_t base = 0;  // of PortTarget::address
  std::uint64_t key = 0;
};

// Flags of a posting.
inline constexpr std::uint32_t kPortMore = 1;        // another posting to the same rank follows at once
inline constexpr std::uint32_t kPortImmediate = 2;   // the target's queue gets `immediate`
inline constexpr std::uint32_t kPortSourceFree = 4;  // a write may complete as soon as its source is free

// A port belongs to one thread at a time, which posts and polls. Writes complete when the target has them
// (delivery, not departure), unless kPortSourceFree is given or the port's properties say otherwise. Errors
// of all calls: the provider's words, and a Status by their meaning.
class Port {
 public:
  virtual ~Port() = default;
  [[nodiscard]] virtual const PortTraits& traits() const = 0;
  // Returns this port's address, for connect() of peers.
  [[nodiscard]] virtual const std::vector<std::byte>& address() const = 0;
  // Errors: kUnsupported for an address that is not permitted here.
  [[nodiscard]] virtual Result<void> connect(std::uint32_t rank, std::span<const std::byte> address) = 0;
  // The memory must outlive the port. Peers may read and write it only if `remote`.
  [[nodiscard]] virtual Result<PortRegion> register_memory(std::byte* address, std::uint64_t bytes,
                                                           bool remote) = 0;
  // Ends what register_memory() began; nothing that names the region may be in flight.
  virtual void forget_memory(const PortRegion& region) = 0;

  [[nodiscard]] virtual Result<Posting> write(std::uint32_t rank, PortSource from, PortTarget to,
                                              std::uint64_t bytes, std::uint32_t flags,
                                              std::uint32_t immediate, PortContext* context) = 0;
  [[nodiscard]] virtual Result<Posting> read(std::uint32_t rank, PortSource to, PortTarget from,
                                             std::uint64_t bytes, PortContext* context) = 0;
  // `message`: kPortMessageBytes.
  [[nodiscard]] virtual Result<Posting> send(std::uint32_t rank, PortSource message,
                                             PortContext* context) = 0;
  // Appends what has happened to `events`, and makes progress. Errors: the port itself has failed.
  [[nodiscard]] virtual Result<void> poll(std::vector<PortEvent>& events) = 0;
};

}  // namespace gdx
