#include "host/bootstrap/frame.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace gdx::bootstrap {
namespace frame_test {

constexpr FrameSet kAll{FrameType::kHello, FrameType::kWelcome, FrameType::kContribution,
                        FrameType::kGathered, FrameType::kFailed};

// Feeds as a connection does: never more than is wanted. Bytes that nobody wants stay unread.
Result<std::optional<Frame>> parse(std::span<const std::byte> bytes, FrameSet allowed) {
  FrameParser parser;
  for (;;) {
    auto frame = parser.take(allowed);
    if (!frame || frame->has_value() || bytes.empty()) return frame;
    const auto piece = bytes.first(std::min(bytes.size(), parser.wanted_bytes()));
    parser.feed(piece);
    bytes = bytes.subspan(piece.size());
  }
}

std::vector<std::byte> with_header(FrameHeader header) {
  std::vector<std::byte> bytes(sizeof header);
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes;
}

FrameHeader plausible_header() {
  return {kMagic, kVersion, static_cast<std::uint16_t>(FrameType::kContribution), 1, 1, 0};
}

TEST(Frame, encoded_hello_has_the_bytes_of_the_protocol) {
  const auto bytes = encode_hello(3, 5);
  const std::uint8_t expected[] = {'g', 'd', 'x', 'b', 0, 2, 0, 1, 0, 0, 0, 3,
                                   0,   0,   0,   0,   0, 0, 0, 4, 0, 0, 0, 5};
  ASSERT_EQ(bytes.size(), sizeof expected);
  EXPECT_EQ(std::memcmp(bytes.data(), expected, sizeof expected), 0);
}

TEST(FrameParser, frame_fed_byte_by_byte_comes_out_once_complete) {
  const std::byte payload[] = {std::byte{1}, std::byte{2}, std::byte{3}};
  const auto bytes = encode_frame(FrameType::kContribution, 7, 9, payload);
  FrameParser parser;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    auto early = parser.take(kAll);
    ASSERT_TRUE(early);
    ASSERT_FALSE(early->has_value()) << "at byte " << i;
    parser.feed(std::span(bytes).subspan(i, 1));
  }
  const auto frame = parser.take(kAll);
  ASSERT_TRUE(frame && frame->has_value());
  EXPECT_EQ((*frame)->rank, 7u);
  EXPECT_EQ((*frame)->sequence, 9u);
  EXPECT_EQ((*frame)->payload, std::vector<std::byte>(std::begin(payload), std::end(payload)));
  EXPECT_TRUE(parser.empty());
}

TEST(FrameParser, wrong_magic_is_refused) {
  auto header = plausible_header();
  header.magic = 0x47455420u;  // "GET "
  EXPECT_EQ(parse(with_header(header), kAll).error().status, Status::kInvalidArgument);
}

TEST(FrameParser, other_version_is_a_version_mismatch) {
  auto header = plausible_header();
  header.version = static_cast<std::uint16_t>(kVersion + 1);
  const auto refused = parse(with_header(header), kAll);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, Status::kVersionMismatch);
  EXPECT_EQ(refused.error().message,
            "speaks bootstrap protocol version 3, this side 2: run the same gdx everywhere");
}

TEST(FrameParser, unknown_or_forbidden_type_is_refused) {
  for (const int type : {0, 6, 40, 0xffff}) {
    auto header = plausible_header();
    header.type = static_cast<std::uint16_t>(type);
    EXPECT_FALSE(parse(with_header(header), kAll)) << type;
  }
  EXPECT_FALSE(parse(with_header(plausible_header()), {FrameType::kHello}));
}

TEST(FrameParser, length_is_checked_at_the_header_by_its_type) {
  struct Case {
    FrameType type;
    std::uint32_t least;
    std::uint32_t most;
  };
  constexpr std::uint32_t kLetterBytes = 240;   // sizeof(ConnectorMessage)
  constexpr std::uint32_t kMeetingBytes = 536;  // sizeof(MeetingMessage)
  for (const auto& [type, least, most] :
       {Case{FrameType::kHello, 4, 4}, Case{FrameType::kWelcome, 0, 0},
        Case{FrameType::kContribution, 0, 1 << 20}, Case{FrameType::kGathered, 0, 64 << 20},
        Case{FrameType::kFailed, 8, 8 + 480}, Case{FrameType::kConnector, kLetterBytes, kLetterBytes},
        Case{FrameType::kMeeting, kMeetingBytes, kMeetingBytes},
        Case{FrameType::kGroup, 32 + 2 * 4, 32 + 16384 * 4}}) {
    auto header = plausible_header();
    header.type = static_cast<std::uint16_t>(type);
    for (const std::uint32_t length : {least, most, least - 1, most + 1, 0xffffffffu}) {
      header.length_bytes = length;
      const auto frame = parse(with_header(header), {type});
      ASSERT_EQ(frame.has_value(), length >= least && length <= most) << length;
      if (frame) continue;
      EXPECT_EQ(frame.error().status, Status::kInvalidArgument);
      EXPECT_EQ(frame.error().message, "sent a frame of type " + std::to_string(static_cast<int>(type)) +
                                           " with the impossible length " + std::to_string(length));
    }
  }
}

TEST(FrameParser, truncated_frame_is_not_a_frame) {
  auto bytes = encode_hello(1, 2);
  bytes.pop_back();
  const auto frame = parse(bytes, kAll);
  ASSERT_TRUE(frame);
  EXPECT_FALSE(frame->has_value());
}

TEST(FrameParser, random_bytes_never_crash_and_never_pass) {
  constexpr std::uint64_t kSeed = 7;
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::byte> bytes(random() % 64);
    for (auto& byte : bytes) byte = static_cast<std::byte>(random());
    const auto frame = parse(bytes, kAll);
    EXPECT_FALSE(frame && frame->has_value());
  }
}

TEST(FrameParser, mutated_frames_never_crash) {
  constexpr std::uint64_t kSeed = 11;
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 20'000; ++round) {
    auto bytes = encode_failure({Status::kBusy, 3, "a reason"});
    bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    const auto frame = parse(bytes, kAll);
    if (frame && *frame && (*frame)->type == FrameType::kFailed) {
      EXPECT_NE(decode_failure(**frame).status, Status::kOk);
    }
  }
}

TEST(Failure, encoded_and_decoded_keeps_status_rank_and_reason) {
  const auto frame = parse(encode_failure({Status::kPeerGone, 5, "rank 5 closed its connection"}), kAll);
  ASSERT_TRUE(frame && *frame);
  const Failure failure = decode_failure(**frame);
  EXPECT_EQ(failure.status, Status::kPeerGone);
  EXPECT_EQ(failure.rank, 5u);
  EXPECT_EQ(failure.reason, "rank 5 closed its connection");
}

TEST(Failure, unknown_status_and_control_bytes_are_made_harmless) {
  const auto frame = parse(encode_failure({static_cast<Status>(0xdead), 0, "a\x1b[2J\nb"}), kAll);
  ASSERT_TRUE(frame && *frame);
  const Failure failure = decode_failure(**frame);
  EXPECT_EQ(failure.status, Status::kSystem);
  EXPECT_EQ(failure.reason, "a?[2J?b");
}

TEST(Failure, text_and_status_of_a_stranger_are_those_that_may_be_shown) {
  EXPECT_EQ(decode_text(std::as_bytes(std::span(" ~\x1f\x7f\xff", 5))), " ~???");
  EXPECT_EQ(decode_status(static_cast<std::uint32_t>(Status::kBusy)), Status::kBusy);
  for (const Status none : {Status::kOk, Status::kPending, static_cast<Status>(0xffff)})
    EXPECT_EQ(decode_status(static_cast<std::uint32_t>(none)), Status::kSystem);
}

TEST(Failure, overlong_reason_is_cut_to_what_the_protocol_allows) {
  const auto frame = parse(encode_failure({Status::kBusy, 0, std::string(5000, 'x')}), kAll);
  ASSERT_TRUE(frame && *frame);
  EXPECT_EQ(decode_failure(**frame).reason.size(), kMaxReasonBytes);
}

}  // namespace frame_test
}  // namespace gdx::bootstrap
