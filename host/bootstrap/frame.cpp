#include "host/bootstrap/frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cstring>

#include "proto/bootstrap/connector.h"
#include "proto/bootstrap/meeting.h"

namespace gdx::bootstrap {
namespace {

struct LengthBounds {
  std::size_t least;
  std::size_t most;
};

std::optional<LengthBounds> length_bounds(std::uint16_t type) {
  switch (static_cast<FrameType>(type)) {
    case FrameType::kHello: return LengthBounds{sizeof(HelloBody), sizeof(HelloBody)};
    case FrameType::kWelcome: return LengthBounds{0, 0};
    case FrameType::kContribution: return LengthBounds{0, kMaxContributionBytes};
    case FrameType::kGathered: return LengthBounds{0, kMaxGatheredBytes};
    case FrameType::kFailed: return LengthBounds{sizeof(FailedBody), sizeof(FailedBody) + kMaxReasonBytes};
    case FrameType::kConnector: return LengthBounds{sizeof(ConnectorMessage), sizeof(ConnectorMessage)};
    case FrameType::kMeeting: return LengthBounds{sizeof(MeetingMessage), sizeof(MeetingMessage)};
    case FrameType::kGroup:
      return LengthBounds{sizeof(GroupBody) + 2 * sizeof(Be32), sizeof(GroupBody) + kMaxRanks * sizeof(Be32)};
  }
  return std::nullopt;
}

template <typename T>
T load(std::span<const std::byte> bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

constexpr std::uint32_t kTlsAlert = 0x1503;  // type and version of a record: RFC 8446, section 5.1
constexpr std::uint32_t kTlsHandshake = 0x1603;

tl::unexpected<Error> not_a_rank(std::uint32_t magic) {
  if (magic >> 16 == kTlsAlert || magic >> 16 == kTlsHandshake)
    return fail(Status::kInvalidArgument,
                "has a secret, and this rank has none: give all ranks of the job the same");
  return fail(Status::kInvalidArgument,
              fmt::format("is not a gdx rank: its stream begins with {:#010x}", magic));
}

// Checks the rest of a header whose magic has been checked.
Result<std::size_t> check_header(const FrameHeader& header, FrameSet allowed) {
  if (header.version != kVersion) {
    return fail(Status::kVersionMismatch,
                fmt::format("speaks bootstrap protocol version {}, this side {}: run the "
                            "same gdx everywhere",
                            std::uint16_t{header.version}, kVersion));
  }
  const std::uint16_t type = header.type;
  const auto bounds = length_bounds(type);
  if (!bounds || !allowed.contains(static_cast<FrameType>(type))) {
    return fail(Status::kInvalidArgument, fmt::format("sent a frame of type {} out of turn", type));
  }
  const std::uint32_t length = header.length_bytes;
  if (length < bounds->least || length > bounds->most) {
    return fail(Status::kInvalidArgument,
                fmt::format("sent a frame of type {} with the impossible length {}", type, length));
  }
  return length;
}

void append(std::vector<std::byte>& out, const void* from, std::size_t bytes) {
  const auto* first = static_cast<const std::byte*>(from);
  out.insert(out.end(), first, first + bytes);
}

}  // namespace

std::size_t FrameParser::wanted_bytes() const {
  if (!header_checked_) return sizeof(FrameHeader) - std::min(buffer_.size(), sizeof(FrameHeader));
  return sizeof(FrameHeader) + payload_bytes_ - buffer_.size();
}

void FrameParser::feed(std::span<const std::byte> bytes) {
  assert(bytes.size() <= wanted_bytes());
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

Result<std::optional<Frame>> FrameParser::take(FrameSet allowed) {
  // Checked as soon as its bytes are there, because a stranger may send little and wait.
  if (buffer_.size() >= sizeof(Be32) && load<Be32>(buffer_) != kMagic) return not_a_rank(load<Be32>(buffer_));
  if (buffer_.size() < sizeof(FrameHeader)) return std::optional<Frame>{};
  const auto header = load<FrameHeader>(buffer_);
  if (!header_checked_) {
    payload_bytes_ = GDX_TRY(check_header(header, allowed));
    header_checked_ = true;
  }
  if (buffer_.size() < sizeof(FrameHeader) + payload_bytes_) return std::optional<Frame>{};
  Frame frame;
  frame.type = static_cast<FrameType>(std::uint16_t{header.type});
  frame.rank = header.rank;
  frame.sequence = header.sequence;
  frame.payload.assign(buffer_.begin() + sizeof(FrameHeader), buffer_.end());
  buffer_.clear();
  header_checked_ = false;
  return std::optional<Frame>{std::move(frame)};
}

std::vector<std::byte> encode_frame(FrameType type, std::uint32_t rank, std::uint32_t sequence,
                                    std::span<const std::byte> payload) {
  const FrameHeader header{kMagic, kVersion, static_cast<std::uint16_t>(type),
                           rank,   sequence, static_cast<std::uint32_t>(payload.size())};
  std::vector<std::byte> bytes(sizeof header + payload.size());
  std::memcpy(bytes.data(), &header, sizeof header);
  std::copy(payload.begin(), payload.end(), bytes.begin() + sizeof header);
  return bytes;
}

std::vector<std::byte> encode_hello(std::uint32_t rank, std::uint32_t world_size) {
  const HelloBody body{world_size};
  return encode_frame(FrameType::kHello, rank, 0, std::as_bytes(std::span(&body, 1)));
}

std::vector<std::byte> encode_failure(const Failure& failure) {
  const FailedBody body{static_cast<std::uint32_t>(failure.status), failure.rank};
  std::vector<std::byte> payload;
  append(payload, &body, sizeof body);
  append(payload, failure.reason.data(), std::min<std::size_t>(failure.reason.size(), kMaxReasonBytes));
  return encode_frame(FrameType::kFailed, 0, 0, payload);
}

std::uint32_t decode_hello(const Frame& frame) {
  assert(frame.type == FrameType::kHello && frame.payload.size() == sizeof(HelloBody));
  return load<HelloBody>(frame.payload).world_size;
}

std::vector<std::byte> encode_group(const GroupHello& hello) {
  const GroupBody body{hello.key.team, hello.key.of, hello.key.tag, hello.key.call, 0};
  const std::vector<Be32> ranks(hello.ranks.begin(), hello.ranks.end());
  std::vector<std::byte> payload;
  append(payload, &body, sizeof body);
  append(payload, ranks.data(), ranks.size() * sizeof(Be32));
  return encode_frame(FrameType::kGroup, hello.rank, 0, payload);
}

GroupHello decode_group(const Frame& frame) {
  assert(frame.type == FrameType::kGroup && frame.payload.size() >= sizeof(GroupBody));
  const auto body = load<GroupBody>(frame.payload);
  GroupHello hello{{body.of, body.tag, body.call, body.team}, frame.rank, {}};
  auto rest = std::span(frame.payload).subspan(sizeof(GroupBody));
  for (; rest.size() >= sizeof(Be32); rest = rest.subspan(sizeof(Be32)))
    hello.ranks.push_back(load<Be32>(rest));
  return hello;
}

Status decode_status(std::uint32_t value) {
  const auto status = static_cast<Status>(value);
  const bool unknown = std::string_view(status_name(status)) == status_name(static_cast<Status>(~0u));
  const bool failure = !unknown && status != Status::kOk && status != Status::kPending;
  return failure ? status : Status::kSystem;
}

std::string decode_text(std::span<const std::byte> bytes) {
  std::string text(bytes.size(), '?');
  std::transform(bytes.begin(), bytes.end(), text.begin(), [](std::byte byte) {
    const auto character = std::to_integer<char>(byte);
    return character >= ' ' && character <= '~' ? character : '?';
  });
  return text;
}

Failure decode_failure(const Frame& frame) {
  assert(frame.type == FrameType::kFailed && frame.payload.size() >= sizeof(FailedBody));
  const auto body = load<FailedBody>(frame.payload);
  return {decode_status(body.status), body.rank,
          decode_text(std::span(frame.payload).subspan(sizeof(FailedBody)))};
}

}  // namespace gdx::bootstrap
