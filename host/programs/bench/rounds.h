// Use of samples by a benchmark's rounds: lines of the journal, numbers of messages, progress.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "host/programs/bench/plan.h"
#include "host/programs/bench/rank.h"

namespace gdx::bench {

// A sample's line of the journal.
[[nodiscard]] nlohmann::ordered_json to_json(std::size_t index, std::uint32_t round, const Sample& sample);

// Estimates how many messages fit into a sample's share of the time, from a first round of few messages.
class Budget {
 public:
  Budget(const Plan& plan, std::size_t cases);

  [[nodiscard]] std::uint64_t few(const Case& item) const;
  void learn(std::size_t index, const Case& item, const Sample& sample, std::uint64_t wall_ns);
  [[nodiscard]] std::uint64_t messages(std::size_t index) const { return messages_[index]; }

 private:
  std::uint64_t fixed_;
  double share_ns_;
  std::vector<std::uint64_t> messages_;
};

// On a terminal a bar that overwrites itself, elsewhere a line for each tenth.
class Meter {
 public:
  // `all`: items of all rounds.
  Meter(std::size_t all, bool terminal, std::uint64_t now_ns)
      : all_(all), told_ns_(now_ns), terminal_(terminal) {}

  // Returns what to show when the next item begins; empty: nothing new.
  [[nodiscard]] std::string next(std::uint64_t now_ns, std::uint32_t round, std::uint32_t rounds,
                                 const std::string& item);

 private:
  std::size_t all_;
  std::size_t done_ = 0;
  std::size_t tenths_ = 0;
  std::uint64_t told_ns_;
  bool terminal_;
};

}  // namespace gdx::bench
