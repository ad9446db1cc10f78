// The stream of a peer that claims to be a rank.
#include "host/bootstrap/frame.h"
#include "host/team/connector_letter.h"
#include "tests/fuzz/input.h"

namespace {

using namespace gdx::bootstrap;

void check_letter(const Frame& frame) {
  const gdx::ConnectorPlace place{0, 1, 4, 2};
  const auto letter = gdx::decode_letter(frame.payload, place);
  if (!letter) return;
  gdx::fuzz::expect(letter->from < place.size && letter->from != place.rank && letter->lane < place.lanes,
                    "a letter is of a rank and a lane");
  for (const char c : letter->why.message) gdx::fuzz::expect(c >= ' ' && c <= '~', "a reason is printable");
}

void check(const Frame& frame) {
  if (frame.type == FrameType::kConnector) check_letter(frame);
  if (frame.type == FrameType::kHello) {
    const std::uint32_t world_size = decode_hello(frame);
    gdx::fuzz::expect(encode_hello(frame.rank, world_size).size() == sizeof(FrameHeader) + sizeof(HelloBody),
                      "a hello can be said again");
  }
  if (frame.type == FrameType::kGroup) {
    const GroupHello hello = decode_group(frame);
    gdx::fuzz::expect(hello.ranks.size() >= 2 && hello.ranks.size() <= kMaxRanks, "a group has members");
  }
  if (frame.type != FrameType::kFailed) return;
  const Failure failure = decode_failure(frame);
  gdx::fuzz::expect(failure.reason.size() <= kMaxReasonBytes, "a reason is short");
  for (const char c : failure.reason) gdx::fuzz::expect(c >= ' ' && c <= '~', "a reason is printable");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  gdx::fuzz::Input input(data, size);
  const FrameSet allowed =
      input.take<std::uint8_t>() % 2 == 0
          ? FrameSet{FrameType::kHello, FrameType::kContribution, FrameType::kConnector, FrameType::kGroup}
          : FrameSet{FrameType::kWelcome, FrameType::kGathered, FrameType::kFailed};
  FrameParser parser;
  while (!input.empty()) {
    const std::size_t chunk = 1 + input.take<std::uint8_t>();
    const std::size_t wanted = parser.wanted_bytes();
    gdx::fuzz::expect(wanted <= sizeof(FrameHeader) + kMaxGatheredBytes, "no frame is endless");
    parser.feed(std::as_bytes(input.take_bytes(std::min(chunk, wanted))));
    const auto frame = parser.take(allowed);
    if (!frame) return 0;
    if (!frame->has_value()) continue;
    gdx::fuzz::expect(allowed.contains((*frame)->type), "only permitted frames come out");
    check(**frame);
  }
  return 0;
}
