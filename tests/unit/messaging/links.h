// Links over a real provider, for tests of this process with itself.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "host/messaging/link.h"
#include "host/poster/libfabric_port.h"

namespace gdx::messaging {

inline constexpr std::uint64_t kHangNs = 60'000'000'000;

// Faults of a port, set from any thread.
struct Trouble {
  std::atomic<bool> withholds{false};    // completions
  std::atomic<bool> fails{false};        // completions, in place of success, with `error`
  std::atomic<std::uint32_t> throws{0};  // polls from now
  Error error;
};

// Port that goes by a trouble, and else by the port below.
class TroubledPort final : public Port {
 public:
  TroubledPort(std::unique_ptr<Port> below, Trouble& trouble) : below_(std::move(below)), trouble_(trouble) {}
  const PortTraits& traits() const override { return below_->traits(); }
  const std::vector<std::byte>& address() const override { return below_->address(); }
  Result<void> connect(std::uint32_t rank, std::span<const std::byte> address) override {
    return below_->connect(rank, address);
  }
  Result<PortRegion> register_memory(std::byte* address, std::uint64_t bytes, bool remote) override {
    return below_->register_memory(address, bytes, remote);
  }
  void forget_memory(const PortRegion& region) override { below_->forget_memory(region); }
  Result<Posting> write(std::uint32_t rank, PortSource from, PortTarget to, std::uint64_t bytes,
                        std::uint32_t flags, std::uint32_t immediate, PortContext* context) override {
    return below_->write(rank, from, to, bytes, flags, immediate, context);
  }
  Result<Posting> read(std::uint32_t rank, PortSource to, PortTarget from, std::uint64_t bytes,
                       PortContext* context) override {
    return below_->read(rank, to, from, bytes, context);
  }
  Result<Posting> send(std::uint32_t rank, PortSource message, PortContext* context) override {
    return below_->send(rank, message, context);
  }
  Result<void> poll(std::vector<PortEvent>& events) override {
    if (trouble_.throws != 0 && trouble_.throws-- != 0) throw std::bad_alloc();
    std::vector<PortEvent> happened;
    auto polled = below_->poll(happened);
    for (PortEvent& event : happened) {
      if (event.kind == PortEvent::Kind::kDone && trouble_.withholds) continue;
      if (event.kind == PortEvent::Kind::kDone && trouble_.fails) {
        event.kind = PortEvent::Kind::kFailed;
        event.error = trouble_.error;
      }
      events.push_back(std::move(event));
    }
    return polled;
  }

 private:
  std::unique_ptr<Port> below_;
  Trouble& trouble_;
};

inline std::unique_ptr<Link> link_of(End end, Trouble* trouble = nullptr) {
  auto port = open_libfabric_port({.provider = "tcp", .address = {}, .insecure = false});
  if (!port) std::abort();
  if (trouble != nullptr) *port = std::make_unique<TroubledPort>(std::move(*port), *trouble);
  return Link::open(std::move(*port), end).value();
}

}  // namespace gdx::messaging
