// The plan of a benchmark: lists of conditions, and the cases that are their product. A command line makes
// it; all ranks get it as JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "host/programs/bench/load.h"
#include "proto/doorbell_kind.h"
#include "proto/gpu/queue.h"

namespace gdx::bench {

inline constexpr std::uint64_t kMaxMessageBytes = 64 << 20;
inline constexpr std::uint32_t kMaxEndpoints = 1024;
inline constexpr std::uint32_t kMaxPosters = 1024;
inline constexpr std::uint32_t kMaxDepth = 4096;
inline constexpr std::uint32_t kMaxRounds = 100;
inline constexpr std::uint64_t kMaxMessages = 1'000'000;
inline constexpr std::uint64_t kMaxTimes = 64'000'000;  // messages of all posters of a sample
inline constexpr std::uint64_t kMaxTokenBytes = 64 << 10;
// Least messages of each endpoint in a sample, where the time decides. A case for which they do not fit has
// no figure.
inline constexpr std::uint64_t kLeastTimedMessages = 50;
inline constexpr std::uint32_t kMaxWorkers = 256;
inline constexpr int kNobody = -1;
inline constexpr char kGpuMemory[] = "gpu";
inline constexpr std::string_view kDefault = "default";  // as endpoints have it

// Latency: of one message at a time. Bandwidth: of `depth` messages between two flushes.
enum class Measure : std::uint8_t { kLatency, kBandwidth };

// "put", "alltoall".
[[nodiscard]] std::string name(Operation operation);
[[nodiscard]] std::string name(Measure measure);
[[nodiscard]] std::string name(Way way);
[[nodiscard]] std::string name(Threads scope);

// One condition to measure.
struct Case {
  Operation operation = Operation::kPut;
  Measure measure = Measure::kLatency;
  Way way = Way::kPull;
  std::uint64_t bytes = 8;
  Threads scope = Threads::kWarp;
  std::uint32_t endpoints = 1;
  std::uint32_t posters = 1;  // blocks; more than the endpoints share them
  std::uint32_t depth = 1;    // messages between two flushes; 1 for latency
  std::uint32_t batch = 1;    // messages of one doorbell
  std::uint32_t ranks = 2;
  bool both_ways = false;                               // both ranks send
  std::optional<DoorbellKind> doorbell = std::nullopt;  // none: as endpoints have it by default
  std::optional<Placement> queues = std::nullopt;       // none: likewise

  friend bool operator==(const Case&, const Case&) = default;
};

constexpr bool shares(const Case& item) { return item.posters > item.endpoints; }
// Returns whether two cases differ at most in way, doorbell and memory of the queues: then they take turns.
[[nodiscard]] bool same_but_way(Case a, const Case& b);
// "put bw push 4096 warp x1 depth 16": equal for cases that may be compared.
[[nodiscard]] std::string key_of(const Case& item);
// Returns the time of a message that is reported: "completion", "half round trip" or "round".
[[nodiscard]] std::string latency_of(Operation operation);

// Figures of a collective as nccl-tests has them: algbw is `bytes` over the time of a round, and busbw is
// algbw times `factor`.
struct Bus {
  std::uint64_t bytes;
  double factor;
};
[[nodiscard]] Bus bus_of(const Case& item);

struct Plan {
  std::vector<std::string> tests;  // put_lat, get_bw, ..., alltoall
  std::vector<std::string> ways = {"pull", "push", "inline", "bounce"};
  std::vector<std::uint64_t> sizes_bytes = {};
  std::vector<std::string> scopes = {"warp"};
  std::vector<std::uint64_t> endpoints = {1};
  std::vector<std::uint64_t> posters = {};  // none: as many as endpoints
  std::vector<std::uint64_t> depths = {16};
  std::vector<std::uint64_t> batches = {1};
  std::vector<std::string> doorbells = {};  // plain, blueflame; none: as endpoints have it by default
  std::vector<std::string> queues = {};     // host, gpu; none: as endpoints have it by default
  std::uint32_t ranks = 2;
  bool both_ways = false;
  bool adaptive_routing = false;  // data may land in any order; false: as endpoints have it by default
  std::uint32_t rounds = 7;
  std::uint64_t messages = 0;  // of each sample; 0: as many as fit into the time
  double seconds = 60;         // for all samples
  std::string hca;
  std::string memory = "host";  // of the payload; or kGpuMemory
  std::uint64_t workers = 0;    // threads that run a kernel's blocks, on the CPU layer; 0: half of the cores
  bool peers = false;           // standard benchmarks take turns with the cases
  bool break_memory = false;    // one byte is damaged before it is checked
  int kill_rank = kNobody;      // it kills itself half-way
};

[[nodiscard]] std::vector<std::string> all_tests();  // of two ranks
[[nodiscard]] std::vector<std::string> collective_tests();
[[nodiscard]] std::vector<std::string> expert_tests();
[[nodiscard]] std::vector<std::string> tests_of_ranks();  // both
[[nodiscard]] std::vector<std::string> all_ways();

// Returns the plan's number of threads for the blocks of one kernel. Half of the cores are for NICs and the
// peer.
[[nodiscard]] std::uint32_t workers_of(const Plan& plan, std::uint32_t cores);

// The product of the plan's lists. Ways of one size are neighbours. Errors: kInvalidArgument.
[[nodiscard]] Result<std::vector<Case>> cases_of(const Plan& plan);

// "8:1M" (each power of two), "8:1M:8" (by that factor), or a list "8,64,4K". K, M: 2^10, 2^20.
// Errors: kInvalidArgument.
[[nodiscard]] Result<std::vector<std::uint64_t>> parse_sizes(const std::string& text);

[[nodiscard]] nlohmann::ordered_json to_json(const Case& item);
[[nodiscard]] nlohmann::ordered_json to_json(const Plan& plan);
// Errors: kInvalidArgument.
[[nodiscard]] Result<Plan> plan_from_json(const std::string& text);

}  // namespace gdx::bench
