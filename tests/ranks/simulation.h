// Many ranks in one process and in virtual time: production device code on the CPU layer, production HCA and
// transport below it, a modelled network between them. A run is a function of its configuration alone.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tests/ranks/flow.h"
#include "tests/ranks/network.h"
#include "tests/ranks/rank.h"

namespace gdx::ranks {

enum class Pattern : std::uint8_t {
  kExchange,  // both ends of every connection put a message with a signal and wait for the peer's, in steps
  kStream,    // one end puts, one message behind the other; the other end does nothing
};

inline constexpr std::uint64_t kMaxMessageBytes = 16 << 20;

struct SimulationConfig {
  std::uint32_t ranks = 16;
  std::uint32_t endpoints_per_rank = 8;  // even: half of them towards the ranks above, half below
  Pattern pattern = Pattern::kExchange;
  pcie::Mode mode = pcie::Mode::kPull;                           // not kProxy, which a CPU posts
  pcie::DoorbellKind doorbell = pcie::DoorbellKind::kBlueFlame;  // across a bus
  std::uint32_t log_send_queue = 4;                              // WQEBBs of an endpoint
  bool one_way = false;                                          // in a stream, only rank 0 sends
  std::uint64_t message_bytes = 1024;                            // a multiple of 8, to kMaxMessageBytes
  std::uint32_t messages = 16;                                   // of each endpoint that sends
  // A kernel thread's time for a put's fences. Across a bus it passes before the doorbell leaves; without
  // one, where a doorbell is memory that HCA and kernel share, before the put.
  pcie::Ordering ordering = {};
  std::uint64_t post_ns = 0;    // its time for whatever else it does from one put to the next
  std::uint64_t jitter_ns = 0;  // at most so much is added to post_ns, another amount each time
  // Step of virtual time between two looks of all ranks: the resolution of all times. Only timeouts of
  // kernels may be up to 0.1 ms late.
  std::uint64_t step_ns = 100;
  std::optional<std::uint32_t> dead_rank = std::nullopt;  // its HCA does nothing from the start
  bool trace = false;                                     // keep what kernels do
  std::uint64_t seed = 1;
  NetworkConfig network = {};
  std::optional<BusConfig> bus = std::nullopt;  // the path between GPU and NIC of each rank; null: none
  std::uint32_t slots = 32;  // of each rank: 4 KiB of staging memory each, 64 KiB of host memory in kBounce
};

// Returns the time of a put's fences, of the scope that mode and queues need; without a bus, GPU scope.
[[nodiscard]] std::uint64_t order_ns(const SimulationConfig& config);

struct Report {
  std::uint64_t endpoints = 0;
  std::uint64_t messages = 0;     // put and, in an exchange, seen and verified by the peer
  std::uint64_t wrong_words = 0;  // 8 B words that held something else than was sent
  std::uint64_t failed_endpoints = 0;
  Status first_failure = Status::kOk;
  std::uint64_t virtual_ns = 0;    // until the last flush
  std::uint64_t seen_ns = 0;       // until the last message of an exchange was seen
  std::uint64_t rounds = 0;        // of looks of all ranks
  std::uint64_t looks = 0;         // of kernels, at what they wait for
  std::uint64_t delivered_ns = 0;  // until the last payload was in its GPU's memory; with a bus
  NetworkCounters network;
  std::uint64_t retransmitted_packets = 0;
  std::uint64_t recoveries = 0;  // timeouts, NAKs, duplicates, gaps, damaged and undeliverable packets
  std::uint64_t staging_violations = 0;
  pcie::Counters pcie;                     // of rank 0's bus
  std::vector<softhca::HcaCounters> hcas;  // by rank
};

class Simulation {
 public:
  // `config` has passed check().
  explicit Simulation(const SimulationConfig& config);
  ~Simulation();

  // Errors: kInvalidArgument naming what is impossible.
  [[nodiscard]] static Result<void> check(const SimulationConfig& config);

  // Once. Threads: one simulation runs at a time on a thread.
  [[nodiscard]] Report run();

  [[nodiscard]] const std::vector<Outcome>& outcomes() const {
    return outcomes_;
  }  // by endpoint, after run()

  // Returns the actions of each endpoint's kernel; after run(), if config.trace requested them.
  [[nodiscard]] const std::vector<std::vector<Action>>& actions() const { return actions_; }

  // Returns the peer of the endpoint `index` (rank * endpoints_per_rank + endpoint).
  struct Peer {
    std::uint32_t rank = 0;
    std::uint32_t endpoint = 0;
  };
  [[nodiscard]] static Peer peer_of(const SimulationConfig& config, std::uint32_t index);

 private:
  // Reasons for a kernel's block to look: packets for it since it last looked, or an end of its own time.
  struct Attention {
    std::uint64_t until_round = 0;  // it looks in each round up to this one
    std::uint64_t busy_until_ns = 0;
    std::uint64_t look_again_ns = 0;  // in any case, because waits have timeouts
  };

  static int progress();
  static bool may_find_news(unsigned block);
  static std::uint64_t clock();
  static void stored(std::uint32_t block, std::uint64_t bytes);
  static void posted(std::uint32_t block);
  static void busy_until(std::uint32_t block, std::uint64_t until_ns);
  friend void carry_load(const void* from, std::uint64_t bytes);
  static void sent(std::uint32_t block, std::uint64_t bytes, std::uint64_t begun_ns);
  static void received(std::uint32_t block, std::uint64_t bytes);
  void round();
  [[nodiscard]] bool packets_are_all_news() const;
  [[nodiscard]] RankConfig watched(std::uint32_t rank);
  void note_arrival(std::uint32_t rank, std::uint32_t endpoint);
  [[nodiscard]] std::uint64_t next_event_ns();
  [[nodiscard]] std::vector<Flow> make_flows();

  SimulationConfig config_;
  Network network_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<Rank*> alive_;
  std::vector<Attention> attention_;  // by block
  std::vector<Outcome> outcomes_;
  std::vector<std::vector<Action>> actions_;  // empty without a trace
  std::uint64_t rounds_ = 0;
  std::uint64_t looks_ = 0;  // counted where kernels may leave some out
  unsigned quiet_rounds_ = 0;
};

}  // namespace gdx::ranks
