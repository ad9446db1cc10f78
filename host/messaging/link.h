// Messages between this process and one peer, both ways, over an executor: receives are announced by a put
// into the sender's memory, and a send is a put into the receive and a signal that tells its bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "host/messaging/matching.h"
#include "host/poster/executor.h"

namespace gdx::messaging {

// Ends of a link: the one that has connected, and the one that has accepted.
enum class End : std::uint32_t { kConnecting = 0, kAccepting = 1 };

// Threads: one at a time. Nothing here waits, and nothing is bounded in time: whoever watches the peer calls
// lose().
class Link {
 public:
  // Errors: those of Executor::create and add_window.
  [[nodiscard]] static Result<std::unique_ptr<Link>> open(std::unique_ptr<Port> port, End end);

  [[nodiscard]] agent::Card card() const { return executor_->card(); }
  // Errors: those of Executor::connect.
  [[nodiscard]] Result<void> connect(const agent::Card& card) { return executor_->connect(peer_, card); }
  [[nodiscard]] const PortTraits& traits() const { return executor_->traits(); }
  [[nodiscard]] SignalOrder order() const { return executor_->order(); }

  // Registers memory for sends, or with `remote` for receives. Errors: the port's.
  [[nodiscard]] Result<PortRegion> register_memory(std::byte* address, std::uint64_t bytes, bool remote) {
    return executor_->register_memory(address, bytes, remote);
  }
  // Ends that. Peers write it no more. Messages in it that are not complete end the link, because its owner
  // frees it next, and nothing may be posted from there or matched with it.
  void forget_memory(const PortRegion& region, std::span<const std::byte> memory);

  // Sends to the peer's oldest receive of the tag, once there is one. Returns its number, for sent(), which
  // tells the link's error if the link is lost already. Errors: kInvalidLength; kBusy with kMostSends open,
  // in place of which a lost link gives its error.
  [[nodiscard]] Result<std::uint64_t> send(std::int32_t tag, std::uint64_t bytes, const PortSource& from);
  // Posts receives that complete together. Returns their group, for received(). Errors: as of
  // ReceiveMatcher::post; kBusy while their place is in use; of a lost link as for send().
  [[nodiscard]] Result<std::uint64_t> receive(std::span<const Part> parts);

  // Returns whether the source is free and the peer has the bytes; ends the send then, and after an error.
  // Errors: kInvalidLength for a send longer than its receive; the link's.
  [[nodiscard]] Result<bool> sent(std::uint64_t number);
  // Returns the bytes of each receive once all have arrived, and ends the group; nullopt before.
  // Errors: kInvalidLength where a send to it was too long; the link's.
  struct Received {
    std::uint32_t parts = 0;
    std::array<std::uint64_t, kMostParts> bytes{};
  };
  [[nodiscard]] Result<std::optional<Received>> received(std::uint64_t group);

  // Posts and polls once. What has arrived is taken after a failure, too. Returns whether anything was done.
  bool progress(std::uint64_t now_ns);
  // Returns the first failure of the wire or of the peer's words; it may be the peer's orderly end.
  [[nodiscard]] const std::optional<Error>& failure() const { return failure_; }
  // Counts sends of this end that the peer has, of which it knows or will find them.
  [[nodiscard]] std::uint64_t delivered() const { return next_ordinal_ - undelivered_.size(); }
  // Counts sends of the peer that have arrived, in the order in which it made them known.
  [[nodiscard]] std::uint64_t taken();
  // Tells that the peer has closed and had `taken` sends: those are complete.
  void peer_has_taken(std::uint64_t taken);
  // Ends the link: open sends and receives that are not complete end with `error`.
  void lose(Error error);
  [[nodiscard]] bool is_lost() const { return lost_.has_value(); }
  [[nodiscard]] bool is_quiet() const { return open_sends_ == 0 && open_groups_ == 0 && executor_->idle(); }

 private:
  // Window 0 of either end; the peer writes the first three.
  struct Control {
    std::array<Announcement, kMostGroups> announced;
    std::uint64_t announced_count;
    std::array<std::array<std::uint64_t, kMostParts>, kMostGroups> arrivals;
    std::array<Announcement, kMostGroups> announcing;  // sources
  };
  enum class SendState { kFree, kWaiting, kPosted, kRefused };
  struct Send {
    SendState state = SendState::kFree;
    std::uint64_t number = 0;
    PortSource from{};
    std::uint64_t bytes = 0;
    std::uint64_t index = 0;    // kPosted: of its command
    std::uint64_t ordinal = 0;  // kPosted: among the sends that the peer is told of
  };

  Link(std::unique_ptr<Executor> executor, End end);
  void take_announcements();
  void read_words(std::uint64_t group);
  void match();
  void announce(const Announcement& announcement);
  // Returns the link's error in place of kBusy once it is lost, because nothing gets free by itself then.
  [[nodiscard]] Error unless_lost(const Error& error) const;

  std::uint32_t peer_;
  std::unique_ptr<Control> control_;  // outlives the executor, which peers write through
  std::unique_ptr<Executor> executor_;
  SendMatcher sends_to_;
  ReceiveMatcher receives_;
  std::array<Send, kMostSends> sends_{};
  std::array<std::uint64_t, kMostGroups> announcing_index_{};  // of the newest command from that source
  std::array<bool, kMostGroups> announcing_used_{};
  std::uint64_t next_index_ = 0;
  std::uint64_t next_ordinal_ = 0;
  std::deque<std::uint64_t> undelivered_;  // commands of sends, in their order
  std::uint64_t completed_ = 0;            // commands, before any failure
  std::uint64_t peer_took_ = 0;
  std::uint32_t open_sends_ = 0;
  std::uint32_t open_groups_ = 0;
  std::uint64_t oldest_group_ = 0;  // no group below it is open
  std::optional<Error> failure_;
  bool port_failed_ = false;
  std::optional<Error> lost_;
};

}  // namespace gdx::messaging
