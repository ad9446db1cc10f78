// One connected peer: the link that carries messages, and the connection by which its end is seen.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "base/result.h"
#include "host/bootstrap/connection.h"
#include "host/messaging/keeper.h"
#include "host/messaging/link.h"
#include "proto/bootstrap/meeting.h"

namespace gdx::messaging {

// Time in which what a lost peer has sent before may still arrive, and looks without result by then.
inline constexpr std::uint64_t kGraceNs = 1'000'000'000;
inline constexpr std::uint32_t kGraceLooks = 100;
inline constexpr std::uint64_t kMostGraceNs = 5 * kGraceNs;  // because others may go on without end

// Grace of one peer.
class Grace {
 public:
  void begin(std::uint64_t now_ns) {
    began_ns_ = now_ns;
    fruitless_ = 0;
  }
  // Counts a look for what may arrive.
  void on_look(bool fruitful) { fruitless_ = fruitful ? 0 : fruitless_ + 1; }
  // A time before begin() is within it.
  [[nodiscard]] bool is_over(std::uint64_t now_ns) const {
    const std::uint64_t least_ns = fruitless_ >= kGraceLooks ? kGraceNs : kMostGraceNs;
    return now_ns >= began_ns_ + least_ns;
  }

 private:
  std::uint64_t began_ns_ = 0;
  std::uint32_t fruitless_ = 0;
};

// Returns the frame of a message of this end.
[[nodiscard]] std::vector<std::byte> meeting_frame(End end, const bootstrap::MeetingMessage& message);

// Threads: any; calls wait for one another, and none waits for the peer. Calls, where not told otherwise, are
// those of Link.
class Peer final : public Kept {
 public:
  Peer(std::shared_ptr<Keeper> keeper, std::unique_ptr<Link> link, bootstrap::Connection connection, End end);
  // Tells the peer what has arrived from it, and closes without waiting. A peer that has sent, and has
  // nothing open, goes on in the keeper until the other end hangs up, at most kMostGraceNs, because a
  // provider may complete a message before it has left. Memory that the other end may write is to be
  // forgotten before.
  static void close(std::unique_ptr<Peer> peer);
  // As close(), at once in any case.
  ~Peer() override;
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  [[nodiscard]] Result<PortRegion> register_memory(std::byte* address, std::uint64_t bytes, bool remote);
  void forget_memory(const PortRegion& region, std::span<const std::byte> memory);
  [[nodiscard]] Result<std::uint64_t> send(std::int32_t tag, std::uint64_t bytes, const PortSource& from);
  [[nodiscard]] Result<std::uint64_t> receive(std::span<const Part> parts);
  // Both make progress first. After the peer is lost both return its error: kPeerGone where it has closed or
  // ended, the provider's else, within kMostGraceNs.
  [[nodiscard]] Result<bool> sent(std::uint64_t number);
  [[nodiscard]] Result<std::optional<Link::Received>> received(std::uint64_t group);
  void progress();

  [[nodiscard]] const std::string& name() const { return name_; }  // of the other end, for messages
  [[nodiscard]] const PortTraits& traits() const { return link_->traits(); }
  [[nodiscard]] SignalOrder order() const { return link_->order(); }

  void take_turn() override;
  void give_up(const char* why) override;
  [[nodiscard]] bool is_over() const override;

 private:
  void say_bye();
  void step(std::uint64_t now_ns);
  void look(std::uint64_t now_ns);
  void begin_to_lose(Error error, std::uint64_t now_ns);

  std::shared_ptr<Keeper> keeper_;  // null once it owns this
  std::mutex mutex_;
  std::uint64_t closed_ns_ = 0;
  bootstrap::Connection connection_;
  std::string name_;
  End end_;
  std::unique_ptr<Link> link_;
  bool hung_up_ = false;  // nothing more comes on the connection
  std::optional<Error> losing_;
  Grace grace_;                        // since then
  std::optional<std::uint64_t> owed_;  // sends that the peer has delivered, once it has closed
};

}  // namespace gdx::messaging
