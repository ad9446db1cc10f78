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

// Divides the time among samples, by what messages of samples that are dropped have cost.
class Budget {
 public:
  Budget(const Plan& plan, const std::vector<Case>& cases);

  // Returns the messages of the next sample that estimates a case, each several times as many as the one
  // before; 0: enough is known.
  [[nodiscard]] std::uint64_t next(std::size_t index) const;
  void learn(std::size_t index, std::uint64_t messages, const Sample& sample, std::uint64_t wall_ns);
  // Gives all cases their least messages, and what is left to those that gain by it. Where the time is too
  // short for that, the dearest get none, together with those that differ in the way alone, but some case
  // always gets some.
  void divide(std::uint64_t spent_ns);
  // Returns the messages of a sample; 0: none fit into the time, or nothing is known of the case.
  [[nodiscard]] std::uint64_t messages(std::size_t index) const { return cases_[index].messages; }

 private:
  struct Cost {
    Case item;
    std::uint64_t tried = 0;     // messages of the last sample that estimated
    double of_one_ns = 0;        // of a message
    double beside_ns = 0;        // of a sample, beside its messages and those that warm it up
    double wall_ns = 0;          // of the last sample
    std::uint64_t messages = 0;  // of a sample
    [[nodiscard]] std::uint64_t least() const;
    [[nodiscard]] double ns(std::uint64_t count) const;
    [[nodiscard]] std::uint64_t fitting(double share_ns) const;
  };
  std::uint64_t fixed_;
  double all_ns_;
  double rounds_;
  std::vector<Cost> cases_;
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
