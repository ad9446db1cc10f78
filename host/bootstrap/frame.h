// Converts bytes to frames and back, for proto/bootstrap/messages.h: pure, no sockets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "proto/bootstrap/messages.h"

namespace gdx::bootstrap {

struct Frame {
  FrameType type{};
  std::uint32_t rank = 0;
  std::uint32_t sequence = 0;
  std::vector<std::byte> payload;
};

// Types of the frames that the receiver's state permits; all others are an error.
class FrameSet {
 public:
  constexpr FrameSet(std::initializer_list<FrameType> types) {
    for (const FrameType type : types) bits_ |= 1u << static_cast<unsigned>(type);
  }
  [[nodiscard]] constexpr bool contains(FrameType type) const {
    return (bits_ >> static_cast<unsigned>(type) & 1u) != 0;
  }

 private:
  std::uint32_t bits_ = 0;
};

// Collects bytes of a stream into frames. Holds at most one frame, because no peer may decide the amount of
// memory. Refuses a bad header as soon as it is complete.
class FrameParser {
 public:
  // Returns the bytes to read next: up to the end of the header, then up to the end of the frame.
  [[nodiscard]] std::size_t wanted_bytes() const;
  void feed(std::span<const std::byte> bytes);

  // Returns the frame, once complete; nullopt before.
  // Errors: kInvalidArgument (another magic, a type not in `allowed`, a length that the type cannot have),
  // kVersionMismatch. After an error the stream is lost.
  [[nodiscard]] Result<std::optional<Frame>> take(FrameSet allowed);

  [[nodiscard]] bool empty() const { return buffer_.empty(); }

 private:
  std::vector<std::byte> buffer_;
  std::size_t payload_bytes_ = 0;  // valid once the header has been checked
  bool header_checked_ = false;
};

[[nodiscard]] std::vector<std::byte> encode_frame(FrameType type, std::uint32_t rank, std::uint32_t sequence,
                                                  std::span<const std::byte> payload = {});
[[nodiscard]] std::vector<std::byte> encode_hello(std::uint32_t rank, std::uint32_t world_size);

struct Failure {
  Status status = Status::kSystem;
  std::uint32_t rank = 0;
  std::string reason;
};
[[nodiscard]] std::vector<std::byte> encode_failure(const Failure& failure);

// Names a group that is being made: the group whose ranks make it, their call, and their first team, which
// GroupPlace fills in.
struct GroupKey {
  std::uint64_t of = 0;
  std::uint64_t tag = 0;
  std::uint32_t call = 0;
  std::uint64_t team = 0;
  bool operator==(const GroupKey&) const = default;
};
struct GroupHello {
  GroupKey key;
  std::uint32_t rank = 0;            // the sender's
  std::vector<std::uint32_t> ranks;  // ranks of all members, in their order
};
[[nodiscard]] std::vector<std::byte> encode_group(const GroupHello& hello);
// Decodes a member's hello. `frame` has its type and passed FrameParser.
[[nodiscard]] GroupHello decode_group(const Frame& frame);

// Returns the status that a peer sent. An unknown one, and one that is no failure, becomes kSystem.
[[nodiscard]] Status decode_status(std::uint32_t value);
// Returns text that a peer sent. Unprintable bytes become '?'.
[[nodiscard]] std::string decode_text(std::span<const std::byte> bytes);

// Decodes a hello. `frame` has its type and passed FrameParser.
[[nodiscard]] std::uint32_t decode_hello(const Frame& frame);
// Decodes a failure: its status by decode_status(), its reason by decode_text().
[[nodiscard]] Failure decode_failure(const Frame& frame);

}  // namespace gdx::bootstrap
