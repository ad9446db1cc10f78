#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <tuple>

#include "device/options.h"
#include "driver-shim/pcie/world/measure.h"
#include "tests/ranks/goal.h"
#include "tests/ranks/measure.h"
#include "tests/ranks/simulation.h"

namespace gdx::ranks {
namespace ranks_test {

// RC has nothing to mend where no switch drops and no rank is dead: a recovery there is a fault of ours.
Report run(const SimulationConfig& config) {
  EXPECT_TRUE(Simulation::check(config));
  const Report report = Simulation(config).run();
  if (report.network.dropped == 0 && !config.dead_rank) {
    EXPECT_EQ(report.retransmitted_packets, 0u);
    EXPECT_EQ(report.recoveries, 0u);
  }
  return report;
}

TEST(Ranks, exchange_every_word_is_verified) {
  const Report report = run({});
  EXPECT_EQ(report.network.dropped, 0u);
  EXPECT_EQ(report.endpoints, 16u * 8);
  EXPECT_EQ(report.messages, 16u * 8 * 16);
  EXPECT_EQ(report.wrong_words, 0u);
  EXPECT_EQ(report.failed_endpoints, 0u);
}

TEST(Ranks, exchange_of_1024_endpoints_costs_each_message_the_same) {
  SimulationConfig small;
  small.messages = 4;
  SimulationConfig large = small;
  large.ranks = 128;
  const Report few = run(small);
  const Report many = run(large);
  EXPECT_EQ(many.endpoints, 1024u);
  EXPECT_EQ(many.messages, 1024u * 4);
  EXPECT_EQ(many.wrong_words + many.failed_endpoints, 0u);
  // Units of the work: packets, and rounds in which every rank looks once.
  EXPECT_EQ(many.network.packets, few.network.packets * 8);
  EXPECT_EQ(many.rounds, few.rounds);
  EXPECT_EQ(many.virtual_ns, few.virtual_ns);
}

// Endpoints of one rank share its link. With a share as large as before, more of them take as many looks.
TEST(Ranks, exchange_of_256_endpoints_a_rank_costs_each_message_the_same) {
  SimulationConfig small;
  small.ranks = 2;
  small.messages = 4;
  SimulationConfig large = small;
  large.endpoints_per_rank = 256;
  large.network.link.bits_per_s *= 32;
  large.network.nic_queue_bytes *= 32;
  const Report few = run(small);
  const Report many = run(large);
  EXPECT_EQ(many.messages, few.messages * 32);
  EXPECT_EQ(many.wrong_words + many.failed_endpoints, 0u);
  EXPECT_EQ(many.network.packets, few.network.packets * 32);
  EXPECT_LE(many.rounds, few.rounds + few.rounds / 10);
}

// On one link for all, virtual time grows with the endpoints. If all looked all the time, their looks would
// grow with the square.
TEST(Ranks, exchange_of_endpoints_that_share_a_link_costs_each_message_as_many_looks) {
  SimulationConfig small;
  small.ranks = 2;
  small.messages = 4;
  small.endpoints_per_rank = 32;
  SimulationConfig large = small;
  large.endpoints_per_rank = 256;
  const Report few = run(small);
  const Report many = run(large);
  EXPECT_GT(many.rounds, 3 * few.rounds) << "the link is not what they wait for";
  EXPECT_EQ(many.messages, few.messages * 8);
  EXPECT_GT(few.looks, few.messages);
  EXPECT_LE(many.looks, 8 * (few.looks + few.looks / 4));
}

#if defined(__SANITIZE_ADDRESS__)
#define GDX_HEAP_IS_COUNTED 0
#else
#define GDX_HEAP_IS_COUNTED 1
#endif

std::size_t heap_bytes_of(std::uint32_t ranks) {
  const auto in_use = [] {
    const struct mallinfo2 heap = mallinfo2();
    return heap.uordblks + heap.hblkhd;
  };
  const std::size_t before = in_use();
  SimulationConfig config;
  config.ranks = ranks;
  const Simulation simulation(config);
  return in_use() - before;
}

TEST(Ranks, memory_of_an_endpoint_is_the_same_among_1024) {
  if (!GDX_HEAP_IS_COUNTED) GTEST_SKIP() << "a sanitizer's heap does not count itself: preset cpu runs this";
  const auto few = static_cast<double>(heap_bytes_of(16)) / (16 * 8);
  const auto many = static_cast<double>(heap_bytes_of(128)) / (128 * 8);
  EXPECT_NEAR(many, few, 0.01 * few);
}

// The row of 128 ranks of 8 endpoints that papers/scale.md tells of.
TEST(Ranks, memory_of_an_endpoint_is_what_the_paper_says) {
  if (!GDX_HEAP_IS_COUNTED) GTEST_SKIP() << "a sanitizer's heap does not count itself: preset cpu runs this";
  std::ifstream table(GDX_PAPERS "/scale/growth.txt");
  double kept = 0;
  for (std::string line; kept == 0 && std::getline(table, line);) {
    std::istringstream words(line);
    std::uint32_t ranks = 0;
    std::uint32_t endpoints = 0;
    if (words >> ranks >> endpoints && ranks == 128 && endpoints == 8) words >> kept;
  }
  EXPECT_NEAR(static_cast<double>(heap_bytes_of(128)) / (128 * 8), kept, 0.02 * kept)
      << "run ./run papers, and say so in papers/scale.md";
}

TEST(Ranks, kernels_out_of_phase_are_not_stepped_over) {
  SimulationConfig config;
  config.jitter_ns = 500;
  const Report coarse = run(config);
  config.step_ns = 10;
  const Report fine = run(config);
  // Each of 16 exchanges waits for looks of both ends and HCAs, not for a jump of 700 ns.
  EXPECT_LE(coarse.seen_ns, fine.seen_ns + 16 * 4 * 100);
}

TEST(Ranks, switch_that_drops_loses_no_message) {
  SimulationConfig config;
  config.network.port_buffer_bytes = 1000;  // two senders at once are one too many
  config.jitter_ns = 2000;                  // in step, they would never meet
  config.message_bytes = 16384;
  const Report report = run(config);
  EXPECT_GT(report.network.dropped, 0u);
  EXPECT_GE(report.retransmitted_packets, report.network.dropped);
  EXPECT_EQ(report.messages, 16u * 8 * 16);
  EXPECT_EQ(report.wrong_words + report.failed_endpoints, 0u);
}

TEST(Ranks, dead_rank_fails_its_peers_and_nobody_else) {
  SimulationConfig config;
  config.dead_rank = 3;
  Simulation simulation(config);
  const Report report = simulation.run();
  for (std::uint32_t i = 0; i < simulation.outcomes().size(); ++i) {
    const bool dead = i / config.endpoints_per_rank == 3;
    const bool severed = dead || Simulation::peer_of(config, i).rank == 3;
    const Outcome& outcome = simulation.outcomes()[i];
    EXPECT_EQ(outcome.wrong_words, 0u);
    if (!severed) {
      EXPECT_EQ(outcome.status, Status::kOk) << i;
      EXPECT_EQ(outcome.messages, config.messages) << i;
    } else if (!dead) {
      EXPECT_EQ(outcome.status, Status::kPeerUnreachable) << i;
    } else {
      EXPECT_EQ(outcome.status, Status::kTimeout) << i;  // its own HCA does not even answer its kernel
    }
  }
  EXPECT_EQ(report.failed_endpoints, 2u * config.endpoints_per_rank);
}

TEST(Ranks, stream_is_as_fast_as_the_link) {
  SimulationConfig config;
  config.ranks = 2;
  config.endpoints_per_rank = 2;
  config.pattern = Pattern::kStream;
  config.message_bytes = 1 << 20;
  config.messages = 8;
  config.network.link.bits_per_s = 100e9;
  const Report report = run(config);
  const double bits = 8.0 * static_cast<double>(config.messages * config.message_bytes);
  const double rate = bits / (static_cast<double>(report.virtual_ns) * 1e-9);
  // 4096 of 4178 B of a packet are payload; the window fills and the last ACK returns once.
  EXPECT_LE(rate, 100e9 * 4096 / 4178);
  EXPECT_GE(rate, 0.97 * 100e9 * 4096 / 4178);
}

TEST(Ranks, impossible_configurations_are_refused_by_name) {
  using testing::HasSubstr;
  const auto message = [](SimulationConfig config) { return Simulation::check(config).error().message; };
  EXPECT_THAT(message({.endpoints_per_rank = 3}), HasSubstr("even"));
  EXPECT_THAT(message({.ranks = 1}), HasSubstr("at least 2"));
  EXPECT_THAT(message({.message_bytes = 12}), HasSubstr("multiple of 8"));
  EXPECT_THAT(message({.message_bytes = (16 << 20) + 8}), HasSubstr("at most 16777216"));
  EXPECT_THAT(message({.ranks = 128, .message_bytes = 16 << 20}), HasSubstr("MiB of buffers"));
  EXPECT_THAT(message({.mode = pcie::Mode::kPush, .slots = 1u << 31}), HasSubstr("MiB of slots"));
  EXPECT_THAT(message({.mode = pcie::Mode::kBounce, .slots = 1u << 16}), HasSubstr("65536 MiB of slots"));
  EXPECT_TRUE(Simulation::check({.mode = pcie::Mode::kBounce, .slots = 1u << 12}));
  EXPECT_TRUE(Simulation::check({.mode = pcie::Mode::kPush, .slots = 1u << 16}));
  EXPECT_THAT(message({.messages = 0}), HasSubstr("at least 1"));
  EXPECT_THAT(message({.messages = ~0u}), HasSubstr("at most 16777216 in all"));
  EXPECT_TRUE(Simulation::check({.messages = 1 << 17}));
  EXPECT_THAT(message({.messages = (1 << 13) + 1, .trace = true}), HasSubstr("at most 1048576 in all with"));
  EXPECT_TRUE(Simulation::check({.messages = 1 << 13, .trace = true}));
  EXPECT_THAT(message({.ranks = 2, .message_bytes = 16 << 20, .messages = 257}), HasSubstr("at most 64 GiB"));
  EXPECT_THAT(message({.dead_rank = 16}), HasSubstr("there are 16"));
  EXPECT_THAT(message({.mode = pcie::Mode::kProxy}), HasSubstr("use bounce"));
}

constexpr pcie::DoorbellKind kDoorbellKinds[] = {pcie::DoorbellKind::kPlain, pcie::DoorbellKind::kBlueFlame};

SimulationConfig across(PathClass path, pcie::Mode mode,
                        pcie::DoorbellKind doorbell = pcie::DoorbellKind::kBlueFlame) {
  SimulationConfig config;
  config.mode = mode;
  config.doorbell = doorbell;
  config.bus = BusConfig{.path = path, .queues = pcie::QueuePlacement::kGpu};
  return config;
}

std::uint64_t transfers(const std::array<pcie::Traffic, pcie::kPurposes>& traffic) {
  std::uint64_t sum = 0;
  for (const pcie::Traffic& one : traffic) sum += one.transfers;
  return sum;
}

std::uint64_t host_words_read(const Report& report) {
  return report.pcie.reads[static_cast<std::size_t>(pcie::Purpose::kHostWord)].transfers;
}

// Returns the reads of any other kind.
std::uint64_t other_reads(const Report& report) {
  return transfers(report.pcie.reads) - host_words_read(report);
}

// Each endpoint polls its grants and its abort word; a grant costs a read more, and so few of them
// move.
std::uint64_t most_host_words_read(const SimulationConfig& config, const Report& report) {
  const std::uint64_t polls = report.virtual_ns / kHostPollNs + 1;
  const std::uint32_t pollers = config.one_way ? config.endpoints_per_rank / 2 : config.endpoints_per_rank;
  return pollers * 2 * polls + config.slots;
}

TEST(Bus, every_mode_moves_every_word_over_every_path) {
  for (const PathClass path : kPathClasses) {
    for (const pcie::DoorbellKind doorbell : kDoorbellKinds) {
      for (const pcie::Mode mode :
           {pcie::Mode::kPull, pcie::Mode::kPush, pcie::Mode::kInline, pcie::Mode::kBounce}) {
        SimulationConfig config = across(path, mode, doorbell);
        config.ranks = 4;
        config.endpoints_per_rank = 4;
        // Three slots, of four that four endpoints share.
        config.message_bytes = mode == pcie::Mode::kInline ? kMaxInlinePutBytes : 10000;
        config.slots = 4;
        const Report report = run(config);
        EXPECT_EQ(report.messages, 4u * 4 * 16) << name(path) << " " << name(mode) << " " << name(doorbell);
        EXPECT_EQ(report.wrong_words + report.failed_endpoints + report.staging_violations, 0u);
      }
    }
  }
}

using ReadsOfModes = testing::TestWithParam<std::tuple<pcie::Mode, pcie::DoorbellKind, RecordUse>>;

// Four endpoints send 16 messages each.
TEST_P(ReadsOfModes, are_those_of_the_table) {
  const auto [mode, doorbell, record] = GetParam();
  for (const std::uint64_t bytes : {8, 200}) {
    SimulationConfig config = across(PathClass::kSys, mode, doorbell);
    config.bus->record = record;
    config.message_bytes = bytes;
    config.pattern = Pattern::kStream;
    config.one_way = true;
    pcie::WorldConfig table;
    table.path = PathClass::kSys;
    table.queues = pcie::QueuePlacement::kGpu;
    table.doorbell = doorbell;
    table.record = record;
    const auto expected = pcie::measure_latency(table, mode, bytes).counters.reads;
    const Report report = run(config);
    const auto& reads = report.pcie.reads;
    EXPECT_LE(host_words_read(report), most_host_words_read(config, report));
    for (std::size_t purpose = 0; purpose < pcie::kPurposes; ++purpose) {
      if (static_cast<pcie::Purpose>(purpose) == pcie::Purpose::kHostWord) continue;
      EXPECT_EQ(reads[purpose].transfers, 4 * 16 * expected[purpose].transfers)
          << bytes << " B: " << pcie::kPurposeNames[purpose];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Bus, ReadsOfModes,
                         testing::Combine(testing::Values(pcie::Mode::kPull, pcie::Mode::kPush,
                                                          pcie::Mode::kInline, pcie::Mode::kBounce),
                                          testing::ValuesIn(kDoorbellKinds),
                                          testing::Values(RecordUse::kRead, RecordUse::kUnread)),
                         [](const auto& test) {
                           return fmt::format("{}_{}_{}", pcie::name(std::get<0>(test.param)),
                                              pcie::name(std::get<1>(test.param)),
                                              name(std::get<2>(test.param)));
                         });

// The NIC reads payload that the GPU stored into host memory from there: as often as a pull, but never from
// the GPU.
TEST(Bus, bounce_reads_its_payload_where_no_peer_can_be_read) {
  SimulationConfig bounce = across(PathClass::kSys, pcie::Mode::kBounce);
  bounce.bus->queues = pcie::QueuePlacement::kHost;
  bounce.pattern = Pattern::kStream;
  bounce.one_way = true;
  const Report report = run(bounce);
  const auto payload = static_cast<std::size_t>(pcie::Purpose::kPayload);
  EXPECT_EQ(report.pcie.reads[payload].transfers, 4u * 16);
  EXPECT_EQ(report.pcie.writes[payload].bytes, 4u * 16 * bounce.message_bytes);
}

// Across sockets a GPU stores faster than it is read: the reason why anybody bounces.
TEST(Bus, large_bounce_is_faster_than_a_pull_across_sockets_and_not_under_a_switch) {
  const auto delivered_ns = [](PathClass path, pcie::Mode mode) {
    SimulationConfig config = across(path, mode);
    config.message_bytes = 1 << 20;
    const Result<std::uint64_t> ns = measure_delivery(config);
    EXPECT_TRUE(ns) << ns.error().message;
    return ns.value_or(0);
  };
  EXPECT_LT(2 * delivered_ns(PathClass::kSys, pcie::Mode::kBounce),
            delivered_ns(PathClass::kSys, pcie::Mode::kPull));
  EXPECT_GT(delivered_ns(PathClass::kPix, pcie::Mode::kBounce),
            delivered_ns(PathClass::kPix, pcie::Mode::kPull));
}

TEST(Bus, push_with_blueflame_reads_nothing_with_signals_and_without_a_pause) {
  SimulationConfig exchange = across(PathClass::kSys, pcie::Mode::kPush);
  EXPECT_EQ(other_reads(run(exchange)), 0u);
  SimulationConfig stream = exchange;
  stream.pattern = Pattern::kStream;
  stream.ordering = {0, 0};
  EXPECT_EQ(other_reads(run(stream)), 0u);
}

SimulationConfig stream_of_slots(std::uint32_t messages) {
  SimulationConfig config = across(PathClass::kSys, pcie::Mode::kPush);
  config.ranks = 2;
  config.endpoints_per_rank = 2;
  config.log_send_queue = 8;
  config.pattern = Pattern::kStream;
  config.one_way = true;
  config.ordering = {0, 0};
  config.message_bytes = kDefaultSlotBytes;
  config.messages = messages;
  return config;
}

// An endpoint holds 16 slots and fills each of them twice: its own completions bring them back in time.
TEST(Bus, push_that_recycles_its_credits_reads_nothing_across_pcie) {
  SimulationConfig config = stream_of_slots(32);
  config.post_ns = 400;
  const Report report = run(config);
  ASSERT_EQ(report.messages, 32u);
  ASSERT_LT(report.virtual_ns, kHostPollNs) << "no poll is due in that time";
  EXPECT_EQ(transfers(report.pcie.reads), 0u);
}

// The longer run: what is read goes by the time and not by the slots, flushes or turns of a wait.
TEST(Bus, push_of_many_slots_reads_what_the_host_says_once_in_a_while) {
  const SimulationConfig config = stream_of_slots(2048);
  const Report report = run(config);
  ASSERT_EQ(report.messages, 2048u);
  ASSERT_GT(report.virtual_ns, 20 * kHostPollNs);
  EXPECT_EQ(other_reads(report), 0u);
  EXPECT_GT(host_words_read(report), 0u) << "a limit that sinks must be heard of";
  EXPECT_LE(host_words_read(report), most_host_words_read(config, report));
}

using ProductionAndTable =
    testing::TestWithParam<std::tuple<PathClass, pcie::Mode, pcie::QueuePlacement, pcie::DoorbellKind>>;

TEST_P(ProductionAndTable, take_the_same_time) {
  const auto [path, mode, queues, doorbell] = GetParam();
  for (const std::uint64_t bytes : {8, 200, 4096}) {
    if (mode == pcie::Mode::kInline && bytes > 200) continue;  // more than one work request
    SimulationConfig config = across(path, mode, doorbell);
    config.bus->queues = queues;
    config.message_bytes = bytes;
    pcie::WorldConfig table;
    table.path = path;
    table.queues = queues;
    table.doorbell = doorbell;
    for (const pcie::Ordering ordering : {pcie::Ordering{0, 0}, pcie::Ordering{}}) {
      config.ordering = table.ordering = ordering;
      const double expected = pcie::measure_latency(table, mode, bytes).delivered_ns;
      const Result<std::uint64_t> delivered_ns = measure_delivery(config);
      ASSERT_TRUE(delivered_ns) << delivered_ns.error().message;
      EXPECT_NEAR(static_cast<double>(*delivered_ns), expected, 10)  // steps of a ns, in several places
          << bytes << " B, fences of " << ordering.gpu_scope_ns;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Bus, ProductionAndTable,
                         testing::Combine(testing::ValuesIn(kPathClasses),
                                          testing::Values(pcie::Mode::kPull, pcie::Mode::kPush,
                                                          pcie::Mode::kInline, pcie::Mode::kBounce),
                                          testing::Values(pcie::QueuePlacement::kHost,
                                                          pcie::QueuePlacement::kGpu),
                                          testing::ValuesIn(kDoorbellKinds)),
                         [](const auto& test) {
                           std::string mode(pcie::name(std::get<1>(test.param)));
                           std::ranges::replace(mode, '-', '_');
                           const bool gpu = std::get<2>(test.param) == pcie::QueuePlacement::kGpu;
                           return std::string(name(std::get<0>(test.param))) + "_" + mode +
                                  (gpu ? "_gpu_queues_" : "_host_queues_") +
                                  std::string(pcie::name(std::get<3>(test.param)));
                         });

// A full queue takes one WQE after the other, each rung alone: four lines, and a fifth for its record. The
// table rings for 16 at a time.
TEST(Bus, inline_across_sockets_is_bounded_by_the_fetch_of_its_records_and_wqes) {
  SimulationConfig config = across(PathClass::kSys, pcie::Mode::kInline);
  config.message_bytes = 16 * pcie::kMaxInlineBytes;  // for which the table rings once
  static_assert(16 * pcie::kMaxInlineBytes <= kMaxInlinePutBytes);
  pcie::WorldConfig table;
  table.path = PathClass::kSys;
  table.queues = pcie::QueuePlacement::kGpu;
  table.ordering = {0, 0};
  const double lines = 16.0 * 4;
  const double expected = pcie::measure_rate(table, pcie::Mode::kInline, config.message_bytes).bytes_per_s *
                          ((lines + 1) / lines) * (4.0 / 5);
  const Result<Rate> measured = measure_rate(config);
  ASSERT_TRUE(measured) << measured.error().message;
  EXPECT_NEAR(measured->bytes_per_s, expected, 0.05 * expected);
}

// A GOAL schedule, parsed: messages as (from, to, tag, bytes), and how long each endpoint computed.
struct Goal {
  using Message = std::tuple<unsigned, unsigned, unsigned, std::uint64_t>;
  std::multiset<Message> sends;
  std::multiset<Message> receives;
  std::vector<std::uint64_t> calcs_ns;
  std::set<unsigned> cpus;
  std::vector<std::string> wrong_lines;
};

Goal parse_goal(const std::string& text) {
  Goal goal;
  std::set<std::string> labels;  // of the rank
  unsigned rank = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    char label[32];
    char other[32];
    unsigned peer = 0;
    unsigned tag = 0;
    unsigned cpu = 0;
    unsigned long bytes = 0;
    if (line.empty() || line == "}" || line.starts_with("// ") || line.starts_with("num_ranks ")) continue;
    if (std::sscanf(line.c_str(), "rank %u {", &rank) == 1) {
      labels.clear();
      continue;
    }
    if (std::sscanf(line.c_str(), "%31[a-z0-9_] requires %31[a-z0-9_]", label, other) == 2) {
      if (!labels.contains(label) || !labels.contains(other)) goal.wrong_lines.push_back(line);
      continue;
    }
    if (std::sscanf(line.c_str(), "%31[a-z0-9_]: send %lub to %u tag %u cpu %u", label, &bytes, &peer, &tag,
                    &cpu) == 5) {
      goal.sends.emplace(rank, peer, tag, bytes);
    } else if (std::sscanf(line.c_str(), "%31[a-z0-9_]: recv %lub from %u tag %u cpu %u", label, &bytes,
                           &peer, &tag, &cpu) == 5) {
      goal.receives.emplace(peer, rank, tag, bytes);
    } else if (std::sscanf(line.c_str(), "%31[a-z0-9_]: calc %lu cpu %u", label, &bytes, &cpu) == 3) {
      goal.calcs_ns.push_back(bytes);
    } else {
      goal.wrong_lines.push_back(line);
      continue;
    }
    if (!labels.insert(label).second) goal.wrong_lines.push_back(line);
    // An endpoint's label begins with its number, and its operations wait for one another alone.
    if (std::stoul(label + 1) != cpu) goal.wrong_lines.push_back(line);
    goal.cpus.insert(cpu);
  }
  return goal;
}

TEST(Goal, says_what_the_ranks_of_the_run_posted_and_waited_for) {
  SimulationConfig config;
  config.ranks = 5;
  config.endpoints_per_rank = 4;
  config.message_bytes = 64;
  config.messages = 3;
  config.jitter_ns = 500;
  config.trace = true;
  Simulation simulation(config);
  const Report report = simulation.run();
  ASSERT_EQ(report.failed_endpoints, 0u);
  std::ostringstream out;
  write_goal(config, simulation.actions(), out);
  const Goal goal = parse_goal(out.str());
  EXPECT_THAT(goal.wrong_lines, testing::IsEmpty());
  EXPECT_THAT(goal.cpus, testing::ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(goal.sends.size(), report.messages);
  EXPECT_EQ(goal.sends, goal.receives);
  ASSERT_EQ(goal.calcs_ns.size(), report.messages);
  for (const std::uint64_t ns : goal.calcs_ns) {
    EXPECT_GE(ns, config.ordering.gpu_scope_ns);
    EXPECT_LE(ns,
              config.ordering.gpu_scope_ns + config.jitter_ns +
                  2 * config.step_ns);  // a poll, and another until it acts
  }
}

TEST(Goal, of_an_endpoint_is_in_the_order_of_its_kernel) {
  SimulationConfig config;
  config.ranks = 2;
  config.endpoints_per_rank = 2;
  config.message_bytes = 64;
  config.messages = 2;
  const std::vector<std::vector<Action>> actions = {
      {{Action::Kind::kSend, 64, 700}, {Action::Kind::kReceive, 64, 2000}, {Action::Kind::kSend, 64, 2750}},
      {},
      {},
      {}};
  std::ostringstream out;
  write_goal(config, actions, out);
  EXPECT_EQ(out.str(),
            "num_ranks 2\n// Each endpoint is a cpu. What its thread spends on a send is the calc before it: "
            "simulate with o = 0.\n\nrank 0 {\nc0_1: calc 700 cpu 0\ns0_1: send 64b to 1 tag 0 cpu 0\n"
            "s0_1 requires c0_1\nr0_1: recv 64b from 1 tag 1 cpu 0\nr0_1 requires s0_1\n"
            "c0_2: calc 750 cpu 0\nc0_2 requires r0_1\ns0_2: send 64b to 1 tag 0 cpu 0\ns0_2 requires c0_2\n}"
            "\n\nrank 1 {\n}\n");
}

TEST(Goal, endpoints_beyond_the_cpus_of_a_schedule_are_refused) {
  EXPECT_TRUE(check_goal({.ranks = 2, .endpoints_per_rank = 256}));
  EXPECT_FALSE(check_goal({.ranks = 2, .endpoints_per_rank = 258}));
  EXPECT_FALSE(check_goal({.pattern = Pattern::kStream}));
}

TEST(LogGp, follows_the_network) {
  SimulationConfig config;
  config.network.link.latency_ns = 5000;
  config.network.link.bits_per_s = 80e9;
  const Result<LogGp> measured = measure_loggp(config);
  ASSERT_TRUE(measured) << measured.error().message;
  EXPECT_GE(measured->latency_ns, 5000);
  EXPECT_LE(measured->latency_ns, 5050);  // two packets of some 100 B take 20 ns
  EXPECT_GE(measured->gap_ns, 9.8);       // 98 B of packet
  EXPECT_GE(measured->gap_per_byte_ns, 0.1);
  EXPECT_LE(measured->gap_per_byte_ns, 0.105);
  EXPECT_EQ(measured->overhead_ns, config.ordering.gpu_scope_ns);
}

// A simulator adds o and L, and gets what `gdx model` says with fences: a put that is announced by a signal.
TEST(LogGp, overhead_is_the_fence_of_the_scope_that_mode_and_queues_need) {
  const auto measured = [](pcie::Mode mode) {
    return measure_loggp(across(PathClass::kSys, mode)).value_or(LogGp{});
  };
  const pcie::Ordering fences;
  const LogGp pull = measured(pcie::Mode::kPull);
  const LogGp push = measured(pcie::Mode::kPush);
  EXPECT_EQ(pull.overhead_ns, fences.gpu_scope_ns);
  EXPECT_EQ(push.overhead_ns, fences.system_scope_ns);
  SimulationConfig pull_from_host_queues = across(PathClass::kSys, pcie::Mode::kPull);
  pull_from_host_queues.bus->queues = pcie::QueuePlacement::kHost;
  EXPECT_EQ(order_ns(pull_from_host_queues), fences.system_scope_ns);
  pcie::WorldConfig table;
  table.path = PathClass::kSys;
  table.queues = pcie::QueuePlacement::kGpu;
  const auto sum_ns = [](const LogGp& logged) {
    return logged.latency_ns + static_cast<double>(logged.overhead_ns);
  };
  const double pull_ns = pcie::measure_latency(table, pcie::Mode::kPull, 8).delivered_ns;
  const double push_ns = pcie::measure_latency(table, pcie::Mode::kPush, 8).delivered_ns;
  EXPECT_NEAR(sum_ns(pull), pull_ns, 30);
  // Once in so long the pusher reads what the scheduler says, which the table leaves out: not more than a
  // pull's read of its payload, in each message's part of that time.
  const double polls_ns = (pull.latency_ns - push.latency_ns) * push.latency_ns / kHostPollNs;
  EXPECT_GE(sum_ns(push), push_ns - 30);
  EXPECT_LE(sum_ns(push), push_ns + 30 + polls_ns);
  // An endpoint alone is fenced for a quarter of its 16 slots of 4 KiB at a time.
  EXPECT_NEAR(push.gap_per_byte_ns, fences.system_scope_ns / (4 * 4096.0), 0.1 * push.gap_per_byte_ns);
}

TEST(LogGp, of_a_connection_that_fails_is_an_error) {
  SimulationConfig config;
  config.network.link.latency_ns = 20'000'000;
  const Result<LogGp> measured = measure_loggp(config);
  ASSERT_FALSE(measured);
  EXPECT_EQ(measured.error().status, Status::kPeerUnreachable);
}

}  // namespace ranks_test
}  // namespace gdx::ranks
