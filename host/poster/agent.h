// The target's half of signals and atomics: applies peers' messages to this rank's words, each after the
// messages and writes that it must follow. Knows no port and no clock.
#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "proto/poster/agent.h"

namespace gdx {

struct PosterWindow {
  std::byte* address = nullptr;
  std::uint64_t bytes = 0;
};

// Returns the word of 8 B at `offset` of the window; null if there is none, or not an aligned one.
[[nodiscard]] std::uint64_t* word_at(std::span<const PosterWindow> windows, std::uint32_t window,
                                     std::uint64_t offset);

class Agent {
 public:
  // An answer, to the rank of `flow`, which is the flow's number here.
  struct Answer {
    std::uint32_t flow;
    agent::Message message;
  };

  explicit Agent(std::uint32_t flows) : flows_(flows) {}

  // Takes the number that a write brought. Errors: kRemoteInvalid for one that no peer could have sent.
  [[nodiscard]] Result<void> on_write(std::uint32_t immediate, std::span<const PosterWindow> windows,
                                      std::vector<Answer>& answers);
  // Takes a message of a peer, whose token the caller has compared. Applies it, and those that waited for it,
  // as soon as they may be. Errors: kRemoteInvalid for one that no peer could have sent.
  [[nodiscard]] Result<void> on_message(const agent::Message& message, std::span<const PosterWindow> windows,
                                        std::vector<Answer>& answers);

  // Shows memory whose words messages may name by address, until hide() of the same memory.
  void show(const PosterWindow& memory) { shown_.push_back(memory); }
  void hide(const PosterWindow& memory);

 private:
  // Numbers that have come: all before `next`, and those marked behind it.
  struct Placed {
    std::uint64_t next = 0;
    std::bitset<2 * agent::kMostWrites> marked;
  };
  struct Flow {
    Placed placed;
    std::uint64_t next_message = 0;
    std::array<std::optional<agent::Message>, agent::kMostUnanswered> waiting;
  };
  void apply_due(std::uint32_t number, std::span<const PosterWindow> windows, std::vector<Answer>& answers);
  [[nodiscard]] std::uint64_t* word_of(const agent::Message& message,
                                       std::span<const PosterWindow> windows) const;
  // Returns the answer to `message`, once it is applied.
  [[nodiscard]] agent::Message apply(const agent::Message& message,
                                     std::span<const PosterWindow> windows) const;

  std::vector<Flow> flows_;
  std::vector<PosterWindow> shown_;
};

}  // namespace gdx
