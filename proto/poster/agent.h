// Messages between posters of two ranks, and the card by which one knows the other. Little-endian.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gdx::agent {

// Must rise on every change of a struct here, because connect() refuses a card of another version.
inline constexpr std::uint32_t kVersion = 1;

enum class Kind : std::uint8_t {
  kSet = 1,
  kAdd = 2,
  kFetchAdd = 3,
  kCompareSwap = 4,
  kEcho = 5,    // changes nothing: its answer says that all earlier messages were applied
  kAnswer = 6,  // to one of the others; not numbered
};

// One flow is a lane between two ranks. `sequence` counts its messages, `after` its writes: the message is
// applied after messages 0 to sequence - 1 and writes 0 to after - 1.
struct Message {
  std::uint64_t token;  // of the receiver's card: a stranger does not know it
  std::uint64_t sequence;
  std::uint64_t after;
  std::uint64_t offset;
  std::uint64_t value;    // of an answer: the old word
  std::uint64_t compare;  // of kCompareSwap
  std::uint64_t request;  // returned by the answer
  std::uint32_t flow;     // at the receiver: lane * ranks + the sender's rank
  Kind kind;
  std::uint8_t window;
  std::uint8_t wants_answer;
  std::uint8_t refused;  // of an answer: nonzero if the word is not in the window
};

// Most messages of a flow that are sent and not answered. The receiver sorts within that many.
inline constexpr std::uint64_t kMostUnanswered = 256;
inline constexpr std::uint64_t kAnswerEvery = 64;

// Immediate data of a write: the flow, and the low bits of the write's number.
inline constexpr std::uint32_t kNumberBits = 20;
inline constexpr std::uint32_t kMostFlows = 1u << (32 - kNumberBits);
// Most writes of a flow in flight. A write completes after its number is in the receiver's queue, so numbers
// pass each other by less.
inline constexpr std::uint64_t kMostWrites = 512;
constexpr std::uint32_t pack_number(std::uint32_t flow, std::uint64_t number) {
  return flow << kNumberBits | static_cast<std::uint32_t>(number & ((1u << kNumberBits) - 1));
}

inline constexpr std::uint32_t kMostWindows = 8;
// In place of a window: `offset` is an address of the receiver, of a word that it shows.
inline constexpr std::uint8_t kByAddress = 255;
static_assert(kMostWindows < kByAddress);
inline constexpr std::uint32_t kProviderBytes = 32;
inline constexpr std::uint32_t kMostAddressBytes = 256;

struct CardWindow {
  std::uint64_t base;
  std::uint64_t key;
  std::uint64_t bytes;
};

// Card of a rank, for its peers alone.
struct Card {
  std::uint32_t version;
  std::uint32_t ranks;
  std::uint32_t lanes;
  std::uint32_t order;  // SignalOrder
  std::uint64_t token;
  char provider[kProviderBytes];  // ends with 0
  std::uint32_t window_count;
  std::uint32_t address_bytes;
  CardWindow windows[kMostWindows];
  std::uint8_t address[kMostAddressBytes];
};

static_assert(sizeof(Message) == 64);
static_assert(sizeof(Card) == 64 + kMostWindows * sizeof(CardWindow) + kMostAddressBytes);

}  // namespace gdx::agent
