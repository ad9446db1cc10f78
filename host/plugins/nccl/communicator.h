// One connection in NCCL's sense: sends one way to one peer, its registered memory and its requests.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/result.h"
#include "host/messaging/peer.h"
#include "host/plugins/nccl/abi.h"

namespace gdx::nccl {

class Communicator;

enum class Direction { kSend, kReceive };

struct Memory {
  std::byte* address;
  std::size_t bytes;
  PortRegion region;
};

struct Request {
  Communicator* communicator;
  Direction direction;
  std::uint64_t number;  // of a send, or of a group of receives
  std::uint64_t bytes;   // of a send
  bool open;             // else it has ended, and nothing may end it again
};

// Threads: any.
class Communicator {
 public:
  Communicator(std::unique_ptr<messaging::Peer> peer, Direction direction);
  ~Communicator() { messaging::Peer::close(std::move(peer_)); }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Errors: kUnsupported for memory of a GPU; kInvalidArgument; the port's.
  [[nodiscard]] Result<Memory*> register_memory(void* data, std::size_t bytes, int type);
  void forget_memory(Memory* memory);

  // Both return null where the call must come again. Errors: kInvalidArgument for what the registered memory
  // does not hold; those of Peer.
  [[nodiscard]] Result<Request*> send(void* data, std::size_t bytes, int tag, const Memory* memory);
  [[nodiscard]] Result<Request*> receive(std::span<void* const> data, std::span<const std::size_t> bytes,
                                         std::span<const int> tags, std::span<void* const> memories);
  // Returns whether the request is complete, and ends it then. `bytes`: of each of its messages, or null.
  // Errors: those of Peer, by which the request has ended; kInvalidArgument where it had ended before.
  [[nodiscard]] Result<bool> test(Request* request, int* bytes);

  // Tells `error` once for all requests, and returns its outcome.
  [[nodiscard]] Outcome told(const Error& error);

 private:
  [[nodiscard]] Request* new_request(std::uint64_t number, std::uint64_t bytes);
  void end(Request* request);

  Direction direction_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Memory>> memories_;
  std::vector<std::unique_ptr<Request>> requests_;
  std::vector<Request*> free_;
  bool told_ = false;
  std::unique_ptr<messaging::Peer> peer_;
};

}  // namespace gdx::nccl
