// The outcome of a step of the bring-up, and the number of puts that a step tries.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "host/programs/doctor/checks.h"
#include "host/programs/doctor/endpoint_pair.h"

namespace gdx::doctor {

// A finding of a step beside its value.
struct Fact {
  std::string name;
  std::string value;                              // a decimal number becomes one in JSON
  std::optional<Verdict> verdict = std::nullopt;  // verdict on a part that was tried
};

struct StepResult {
  Verdict verdict = Verdict::kUnknown;  // never kWarn
  std::string value;
  std::string advice = {};
  std::vector<Fact> facts = {};
};

// Sizes and counts with which the steps of section C try kernels.
struct StepSizes {
  std::uint32_t puts;            // step 11, on each place of queues
  std::uint32_t rings;           // step 11, by each index, and of each lane
  std::uint64_t record_late_ns;  // step 11
  std::uint32_t pushes;          // step 12, of 1 to 4097 B in turn
  std::uint32_t backward_pairs;  // step 14
  std::uint32_t messages;        // step 15, in host memory
  std::uint32_t on_gpu;          // step 15, in each placement in GPU memory
  std::uint32_t shared_puts;     // step 16
  std::uint32_t laps;            // step 16, of an exclusive endpoint's ring
};
inline constexpr StepSizes kFullSizes{100'000,    10'000,    1'000'000, 1'000'000, 100'000,
                                      10'000'000, 1'000'000, 1'000'000, 100};
inline constexpr StepSizes kShortSizes{20'000, 500, 1'000'000, 4'097, 2'000, 10'000, 200, 4'096, 100};

// Result of a step whose StagingPool::create on the NIC failed.
[[nodiscard]] StepResult without_staging(const Error& error);

// Collects what the parts of a step found. The step fails where a part does.
class PartResults {
 public:
  // `failure` is empty where the HCA did as it should.
  // `deviates`: not as wanted, which is no failure on some HCAs; the fact has no verdict then.
  void add(const std::string& part, const std::string& failure, const std::string& value,
           bool deviates = false);
  // Keeps what the HCA shows of a part that failed; QUERY_QP's bytes are kept with the commands.
  void add_evidence(const std::string& part, const std::string& cqe, const Endpoint& endpoint);
  // `unlike`: parts that say nothing of a GPU. It stands behind the value, and OK becomes UNKNOWN.
  [[nodiscard]] StepResult result(const std::string& unlike = {});

 private:
  StepResult result_;
  std::vector<std::string> done_;
  std::vector<std::string> failed_;
};

}  // namespace gdx::doctor
