// The two ranks of `gdx bench`, which `gdx run --ranks 2` starts. The driver shows the NIC's memory to the
// GPU in some tests, and not in others.
#include "host/programs/bench/rank.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "host/programs/bench/conditions.h"
#include "host/programs/bench/kernels.h"
#include "tests/e2e/must.h"

namespace gdx::bench {
namespace bench_rank_test {

using ::testing::HasSubstr;

constexpr char kPeerMapping[] = "GDX_FAKE_CUDA_PEER_MAPPING";
constexpr std::uint64_t kMessages = 32;
constexpr std::uint64_t kLongNs = 60'000'000'000;

class BenchRank : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    joined = std::make_unique<World>(must(World::join(must(WorldOptions::from_environment()))));
  }
  static void TearDownTestSuite() { joined.reset(); }
  void TearDown() override { unsetenv(kPeerMapping); }

  static Result<Rank> connect(const Plan& plan, const std::vector<Case>& cases) {
    const Gpu gpu = must(Gpu::open());
    return Rank::connect(must(Hca::open()), {.kernels = &gpu}, *joined, plan, cases);
  }
  // Runs each case that can run. Returns how many did.
  static int run_all(Rank& rank, const std::vector<Case>& cases) {
    int count = 0;
    for (const Case& item : cases) {
      if (!rank.can_run(item)) continue;
      ++count;
      const Sample sample = must(rank.run(*joined, item, kMessages, false));
      EXPECT_EQ(sample.messages, kMessages) << key_of(item);
      EXPECT_EQ(sample.bad_bytes + sample.dropped_bad_bytes, 0u) << key_of(item);
    }
    return count;
  }

  // Sum of both ranks' HCAs since they were opened.
  static std::uint64_t sent_again(const Rank& rank) {
    const std::uint64_t mine = must(rank.hca().counter("softhca_retransmitted_packets"));
    const auto both = must(joined->allgather_value(mine, kLongNs));
    return both[0] + both[1];
  }
  static std::uint64_t sent_again_in(Rank& rank, const Case& item) {
    return must(rank.run(*joined, item, kMessages, false)).retransmissions;
  }

  // Latency, because beside bandwidth a sampler reads counters that the kernel stores plainly.
  static Plan puts(std::vector<std::string> ways) {
    Plan plan;
    plan.tests = {"put_lat"};
    plan.ways = std::move(ways);
    plan.sizes_bytes = {64};
    return plan;
  }

  // Figures of a sample, of the process and of both HCAs, are no more than passed meanwhile; its rate is that
  // of its own times.
  static Sample run_one(Rank& rank, const Case& item) {
    const auto counters_of = [&rank] {
      return must(joined->allgather_value(
          std::array{count_of(rank, {"record_reads", "wqe_reads", "receive_wqe_reads", "payload_reads"}),
                     count_of(rank, {"payload_writes", "doorbell_writes", "cqe_writes"}),
                     count_of(rank, {"record_reads"})},
          kLongNs));
    };
    const auto before = counters_of();
    const std::uint64_t cpu_before_ns = process_cpu_ns();
    Sample sample = must(rank.run(*joined, item, kMessages, false));
    EXPECT_LE(sample.cpu_ns.at(joined->rank()), process_cpu_ns() - cpu_before_ns) << key_of(item);
    EXPECT_GT(sample.cpu_ns.at(joined->rank()), 0u) << key_of(item);
    const auto after = counters_of();
    const auto passed = [&](std::size_t i) {
      return after[0][i] + after[1][i] - before[0][i] - before[1][i];
    };
    EXPECT_LE(sample.pcie_reads.value_or(0), passed(0)) << key_of(item);
    EXPECT_LE(sample.pcie_record_reads.value_or(0), passed(2)) << key_of(item);
    EXPECT_LE(sample.pcie_writes.value_or(0), passed(1)) << key_of(item);
    double rate = 0;
    const auto elapsed_ns = must(joined->allgather_value(sample.elapsed_ns, kLongNs));
    const auto senders = std::ranges::count_if(elapsed_ns, [](std::uint64_t ns) { return ns != 0; });
    for (const std::uint64_t ns : elapsed_ns) {
      if (ns != 0)
        rate += static_cast<double>(sample.messages) * 1e9 / static_cast<double>(senders) /
                static_cast<double>(ns);
    }
    EXPECT_NEAR(sample.messages_per_s / rate, 1, 1e-9) << key_of(item);
    return sample;
  }
  static bool is_first() { return joined->rank() == 0; }

 private:
  static std::uint64_t count_of(const Rank& rank, const std::vector<std::string>& names) {
    std::uint64_t sum = 0;
    for (const std::string& name : names) sum += must(rank.hca().counter("softhca_pcie_" + name));
    return sum;
  }

  static inline std::unique_ptr<World> joined;
};

// A benchmark between two endpoints at each rank, and its sums over both ranks.
struct Wanted {
  const char* test;
  bool both_ways;
  std::uint64_t messages;
  std::uint64_t posted;  // answers included
  std::uint64_t checked_bytes;
};
constexpr std::uint32_t kDepth = 5;
constexpr std::uint64_t kBytes = 60;
constexpr Wanted kLatencies[] = {{"put_lat", false, 64, 64, 2 * kBytes},
                                 {"put_signal_lat", false, 64, 128, 4 * kBytes},
                                 {"get_lat", false, 64, 64, 2 * kBytes},
                                 {"fetch_add_lat", false, 64, 64, 16}};
[[maybe_unused]] constexpr Wanted kBandwidths[] = {
    {"put_bw", false, 64, 64, 2 * kDepth* kBytes},         {"put_bw", true, 128, 128, 4 * kDepth* kBytes},
    {"put_signal_bw", true, 128, 128, 4 * kDepth* kBytes}, {"get_bw", false, 64, 64, 2 * kDepth* kBytes},
    {"get_bw", true, 128, 128, 4 * kDepth* kBytes},        {"fetch_add_bw", true, 128, 128, 32}};

Plan plan_of(const Wanted& wanted) {
  Plan plan;
  plan.tests = {wanted.test};
  plan.ways = {"pull", "proxy"};
  plan.sizes_bytes = {kBytes};
  plan.endpoints = {2};
  plan.depths = {kDepth};
  plan.both_ways = wanted.both_ways;
  return plan;
}

void expect_sums(const Sample& sample, const Wanted& wanted, const std::string& key) {
  EXPECT_EQ(sample.messages, wanted.messages) << key;
  EXPECT_EQ(sample.posted, wanted.posted) << key;
  EXPECT_EQ(sample.checked_bytes, wanted.checked_bytes) << key;
  EXPECT_EQ(sample.bad_bytes + sample.dropped_bad_bytes, 0u) << key;
  EXPECT_EQ(sample.cpu_ns.size(), 2u) << key;
  EXPECT_EQ(sample.credit_stalls, 0u) << key << ": no way of these has credits";
  EXPECT_GT(sample.pcie_reads.value_or(0), wanted.messages) << key << ": each work request is read";
  EXPECT_GT(sample.pcie_writes.value_or(0), 0u) << key;
}

// Times are in steps of a ns, and buckets are 1/32 as wide as their least value at most.
void expect_times(const Sample& sample, std::uint64_t count, const std::string& key) {
  ASSERT_EQ(sample.latency_ns.count(), count) << key;
  double mean_ns = 0;
  double mean_square_ns2 = 0;
  for (const auto& [least_ns, messages] : sample.latency_ns.buckets()) {
    const double share = static_cast<double>(messages) / static_cast<double>(count);
    mean_ns += share * static_cast<double>(least_ns);
    mean_square_ns2 += share * static_cast<double>(least_ns) * static_cast<double>(least_ns);
  }
  EXPECT_NEAR(sample.mean_ns / mean_ns, 1, 1.0 / 16) << key;
  EXPECT_NEAR(sample.mean_square_ns2 / mean_square_ns2, 1, 1.0 / 8) << key;
  EXPECT_NEAR(sample.median_ns / sample.latency_ns.quantile(33.0 / 64), 1, 1.0 / 16) << key;
  EXPECT_LE(sample.latency_ns.quantile(0) * static_cast<double>(count) / 2,
            static_cast<double>(sample.elapsed_ns))
      << key << ": endpoints work at the same time";
}

TEST_F(BenchRank, gpu_that_is_shown_the_memory_of_the_nic_pushes) {
  const Plan plan = puts({"pull", "push", "inline", "bounce", "auto"});
  const auto cases = must(cases_of(plan));
  Rank rank = must(connect(plan, cases));
  EXPECT_EQ(rank.push_refusal(), "");
  EXPECT_FALSE(read_conditions(rank, {}).contains("push"));
  EXPECT_EQ(run_all(rank, cases), 5);
}

TEST_F(BenchRank, latencies_have_the_figures_of_all_endpoints_and_of_both_ranks) {
  for (const Wanted& wanted : kLatencies) {
    const Plan plan = plan_of(wanted);
    const auto cases = must(cases_of(plan));
    Rank rank = must(connect(plan, cases));
    for (const Case& item : cases) {
      const Sample sample = run_one(rank, item);
      expect_sums(sample, wanted, key_of(item));
      EXPECT_TRUE(sample.occupancy.empty()) << key_of(item);
      if (is_first()) expect_times(sample, wanted.messages, key_of(item));
      EXPECT_EQ(sample.latency_ns.count() != 0, is_first()) << key_of(item);
      EXPECT_EQ(sample.elapsed_ns != 0, is_first()) << key_of(item);
    }
    EXPECT_EQ(rank.queues_place(), "kernels' in host memory, proxies' in host memory");
    EXPECT_EQ(rank.staging_violations(), 0u);
  }
}

// Beside bandwidth a sampler reads counters that the kernel stores plainly.
#ifndef __SANITIZE_THREAD__
TEST_F(BenchRank, bandwidths_have_the_sums_of_all_endpoints_and_of_both_ranks) {
  for (const Wanted& wanted : kBandwidths) {
    const Plan plan = plan_of(wanted);
    const auto cases = must(cases_of(plan));
    Rank rank = must(connect(plan, cases));
    for (const Case& item : cases) {
      const Sample sample = run_one(rank, item);
      expect_sums(sample, wanted, key_of(item));
      const bool sends = is_first() || wanted.both_ways;
      EXPECT_EQ(sample.elapsed_ns != 0, sends) << key_of(item);
      EXPECT_EQ(sample.occupancy.empty(), !sends) << key_of(item);
      EXPECT_EQ(sample.latency_ns.count(), 0u) << key_of(item);
    }
  }
}
#endif

TEST_F(BenchRank, collectives_have_the_rounds_of_one_rank_and_the_bytes_of_all) {
  constexpr Wanted kCollectives[] = {{"alltoall", false, 32, 32, 4 * kBytes},
                                     {"incast", false, 32, 32, kBytes},
                                     {"allreduce", false, 32, 32, 2 * kBytes}};
  for (const Wanted& wanted : kCollectives) {
    Plan plan = puts({"pull"});
    plan.tests = {wanted.test};
    plan.sizes_bytes = {kBytes};
    const auto cases = must(cases_of(plan));
    Rank rank = must(connect(plan, cases));
    const Sample sample = run_one(rank, cases[0]);
    expect_sums(sample, wanted, wanted.test);
    EXPECT_EQ(sample.latency_ns.count(), is_first() ? kMessages : 0) << wanted.test;
  }
}

TEST_F(BenchRank, conditions_are_those_of_the_rank_and_its_gpu) {
  const Plan plan = puts({"pull"});
  const auto cases = must(cases_of(plan));
  Rank rank = must(connect(plan, cases));
  const Gpu gpu = must(Gpu::open());
  std::array<char, 256> host{};
  ASSERT_EQ(gethostname(host.data(), host.size()), 0);
  EXPECT_EQ(hca_text(rank.hca()), "the software HCA");
  EXPECT_EQ(measured_on(rank.hca(), {}), "the software HCA, kernels on the CPU layer");
  EXPECT_EQ(measured_on(rank.hca(), {&gpu, &gpu}),
            "the software HCA, kernels on " + gpu.name() + ", payload in GPU memory");
  const auto without = read_conditions(rank, {});
  const auto with = read_conditions(rank, {&gpu, nullptr});
  EXPECT_EQ(with["host"], host.data());
  EXPECT_EQ(without["kernel_threads"], rank.workers());
  EXPECT_TRUE(with["kernel_threads"].is_null());
  EXPECT_EQ(with["gpu"], gpu.name());
  EXPECT_EQ(with["gpu_clock"], "at most 1000 MHz");
  EXPECT_EQ(with["gpu_sharing"], "time slices");
  EXPECT_EQ(with["cuda"], gpu.cuda_version());
  for (const char* const of_gpu : {"gpu", "gpu_clock", "gpu_sharing", "cuda"})
    EXPECT_TRUE(without[of_gpu].is_null()) << of_gpu;
  EXPECT_EQ(without["path_class"], "none: kernels on a CPU");
  EXPECT_EQ(with["payload"], "host memory");
  EXPECT_EQ(with["queues"], "kernels' in host memory");
  EXPECT_EQ(with["firmware"], rank.hca().firmware());
  EXPECT_EQ(with["address"], rank.hca().address_text());
  EXPECT_EQ(with["path_mtu_bytes"], rank.hca().path_mtu_bytes());
  const auto environment = with["environment"].get<std::string>();
  EXPECT_THAT(" " + environment + " ", HasSubstr(" GDX_SOFTHCA_LOSS=0.02 "));
  for (const char* const of_launcher : {"GDX_RANK=", "GDX_WORLD_SIZE=", "GDX_ROOT=", "PATH="})
    EXPECT_THAT(" " + environment, ::testing::Not(HasSubstr(std::string(" ") + of_launcher)));
}

TEST_F(BenchRank, packets_sent_again_count_in_one_case_each) {
  Plan plan = puts({"pull"});
  plan.sizes_bytes = {1 << 16};
  const auto cases = must(cases_of(plan));
  Rank rank = must(connect(plan, cases));
  const std::uint64_t before = sent_again(rank);
  const std::uint64_t first = sent_again_in(rank, cases[0]);
  const std::uint64_t second = sent_again_in(rank, cases[0]);
  EXPECT_GT(first, 0u);
  EXPECT_LE(first + second, sent_again(rank) - before);
}

TEST_F(BenchRank, push_that_is_refused_is_left_out_and_the_rest_is_measured) {
  setenv(kPeerMapping, "0", 1);
  const Plan plan = puts({"pull", "push", "inline", "bounce", "auto"});
  const auto cases = must(cases_of(plan));
  Rank rank = must(connect(plan, cases));
  EXPECT_THAT(rank.push_refusal(), HasSubstr("PeerMappingOverride"));
  EXPECT_EQ(read_conditions(rank, {}).at("push"), "not measured: " + rank.push_refusal());
  EXPECT_EQ(run_all(rank, cases), 4);
}

TEST_F(BenchRank, push_that_one_rank_refuses_is_left_out_at_both) {
  if (std::string_view(std::getenv(kRankVariable)) == "1") setenv(kPeerMapping, "0", 1);
  const Plan plan = puts({"push", "pull"});
  const auto cases = must(cases_of(plan));
  Rank rank = must(connect(plan, cases));
  EXPECT_THAT(rank.push_refusal(),
              HasSubstr(std::getenv(kPeerMapping) != nullptr ? "PeerMappingOverride"
                                                             : "the kernels of rank 1 cannot push"));
  EXPECT_EQ(run_all(rank, cases), 1);
}

TEST_F(BenchRank, plan_of_pushes_alone_fails_with_the_reason_of_their_refusal) {
  setenv(kPeerMapping, "0", 1);
  const Plan plan = puts({"push"});
  const auto rank = connect(plan, must(cases_of(plan)));
  ASSERT_FALSE(rank);
  EXPECT_EQ(rank.error().status, Status::kUnsupported);
  EXPECT_THAT(rank.error().message, HasSubstr("PeerMappingOverride"));
}

}  // namespace bench_rank_test
}  // namespace gdx::bench
