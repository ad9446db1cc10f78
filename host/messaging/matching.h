// Matching of messages between two ends: the receiver announces where each receive lies, and the sender gives
// every send the oldest receive of its tag. Pure: knows no port, socket or clock. Sends and receives of one
// tag match in the order of their calls, whatever the order between tags.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"

namespace gdx::messaging {

inline constexpr std::uint32_t kMostGroups = 32;                       // receives announced and not complete
inline constexpr std::uint32_t kMostParts = 8;                         // of a group
inline constexpr std::uint32_t kMostSends = kMostGroups * kMostParts;  // without a receive
inline constexpr std::uint64_t kMostBytes = (std::uint64_t{1} << 40) - 2;

// One receive: memory that the sender may write.
struct Part {
  std::uint64_t address;
  std::uint64_t key;
  std::uint64_t bytes;
  std::int32_t tag;
  std::uint32_t reserved;
};

// Receives that were posted together and complete together. Travels as it lies in memory.
struct Announcement {
  std::uint64_t group;  // counts the receiver's groups
  std::uint32_t parts;
  std::uint32_t reserved;
  std::array<Part, kMostParts> part;
};
static_assert(sizeof(Part) == 32 && sizeof(Announcement) == 272);

// Place of one receive: also that of its arrival word.
struct PartPlace {
  std::uint64_t group = 0;
  std::uint32_t part = 0;
};

// Word that tells a receive's end: the low bits of its group, and the bytes that came. It never equals that
// of a group before in the same place, nor 0.
inline constexpr std::uint32_t kArrivalShift = 40;
inline constexpr std::uint64_t kTooLong = (std::uint64_t{1} << kArrivalShift) - 1;  // in place of bytes
constexpr std::uint64_t pack_arrival(std::uint64_t group, std::uint64_t bytes) {
  constexpr std::uint64_t kLaps = (std::uint64_t{1} << (64 - kArrivalShift)) - 1;
  return (group % kLaps + 1) << kArrivalShift | bytes;
}

// Sender's half. Threads: one at a time.
class SendMatcher {
 public:
  struct Match {
    std::uint64_t send;  // counts this end's sends
    PartPlace place;
    Part receive;
    bool fits = true;  // else nothing may be written: the sender is told, and the receiver by kTooLong
  };

  // Takes the next announcement, which a peer has written. Errors: kRemoteInvalid for one that no receiver
  // makes.
  [[nodiscard]] Result<void> on_announcement(const Announcement& announcement);
  // Takes a send and returns its number. Errors: kInvalidLength; kBusy with kMostSends waiting.
  [[nodiscard]] Result<std::uint64_t> post(std::int32_t tag, std::uint64_t bytes);
  // Returns the next send that has a receive, by the order of sends where several have.
  [[nodiscard]] std::optional<Match> next_match();
  [[nodiscard]] std::uint64_t posted() const { return numbers_; }
  [[nodiscard]] std::uint64_t announced() const { return groups_; }

 private:
  struct Send {
    std::uint64_t number;
    std::int32_t tag;
    std::uint64_t bytes;
  };
  struct Receive {
    PartPlace place;
    Part part;
  };
  std::deque<Send> sends_;
  std::deque<Receive> receives_;  // announced and not matched, oldest first
  std::uint64_t groups_ = 0;
  std::uint64_t numbers_ = 0;
};

// Receiver's half. Threads: one at a time.
class ReceiveMatcher {
 public:
  // Makes the announcement of a group. Errors: kInvalidArgument for no parts or too many; kInvalidLength;
  // kBusy while the group kMostGroups before is open.
  [[nodiscard]] Result<Announcement> post(std::span<const Part> parts);
  // Reads a receive's arrival word. Returns whether it has arrived, which a send that is too long has, too.
  // Errors: kRemoteInvalid for bytes that the receive cannot have.
  [[nodiscard]] Result<bool> on_word(const PartPlace& place, std::uint64_t word);
  // Returns the bytes of each part once all of an open group have arrived; empty before.
  [[nodiscard]] std::span<const std::uint64_t> complete(std::uint64_t group) const;
  // Returns kInvalidLength where a send to an open group was too long.
  [[nodiscard]] const std::optional<Error>& refusal(std::uint64_t group) const { return of(group).refusal; }
  // Returns whether a receive that has not arrived lies in that memory of this end.
  [[nodiscard]] bool need(std::uint64_t key, std::uint64_t address, std::uint64_t bytes) const;
  // Frees a complete group's place, in any order. Its announcement's place is free with it.
  void retire(std::uint64_t group);
  [[nodiscard]] bool is_open(std::uint64_t group) const;
  [[nodiscard]] std::uint32_t parts(std::uint64_t group) const { return of(group).announcement.parts; }
  [[nodiscard]] std::uint64_t arrived() const { return arrived_; }  // parts, of all groups
  [[nodiscard]] std::uint64_t groups() const { return groups_; }    // posted

 private:
  struct Group {
    bool open = false;
    Announcement announcement{};
    std::array<std::uint64_t, kMostParts> bytes{};
    std::uint32_t marked = 0;  // bit of each part that has arrived
    std::uint32_t missing = 0;
    std::optional<Error> refusal;  // the first
  };
  [[nodiscard]] Group& of(std::uint64_t group) { return open_[group % kMostGroups]; }
  [[nodiscard]] const Group& of(std::uint64_t group) const { return open_[group % kMostGroups]; }

  std::array<Group, kMostGroups> open_{};
  std::uint64_t groups_ = 0;
  std::uint64_t arrived_ = 0;
};

}  // namespace gdx::messaging
