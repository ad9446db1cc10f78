// Section D of the bring-up: two hosts, each of which runs it. They meet over TCP, and go through each step
// together, so that both report the same failure. Kernels of the CPU layer post.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <optional>

#include "base/commit.h"
#include "device/endpoint.h"
#include "host/programs/bench/peer_ends.h"
#include "host/programs/doctor/bring_up.h"
#include "host/programs/doctor/loopback.h"
#include "host/staging/progress.h"
#include "proto/mlx5/prm.h"

namespace gdx::doctor {
namespace {

namespace prm = mlx5::prm;
using bench::kReportingRank;
using bench::PeerEnds;
using bench::PeerRun;

constexpr std::uint64_t kJoinNs = 300'000'000'000;
constexpr std::uint64_t kSectionsNs = 900'000'000'000;  // bound of the other host's sections A to C
constexpr std::uint64_t kTogetherNs = 60'000'000'000;
constexpr std::uint64_t kCallNs = 10'000'000'000;  // bound of one call: less than the other side waits
constexpr std::size_t kBytes = 1u << 20;
constexpr std::uint64_t kWordBytes = 8;
constexpr std::uint32_t kSlots = 8;
constexpr std::uint64_t kPuts = 256;      // puts of kBytes each, by which the bandwidth is measured
constexpr double kLeastOfPerftest = 0.5;  // below it, something is wrong
constexpr const char* kPerftest = "ib_write_bw";
constexpr const char* kPerftestWrites = "1000";

using Text = std::array<char, 512>;

Text text_of(std::string_view from) {
  Text text{};
  std::memcpy(text.data(), from.data(), std::min(from.size(), text.size() - 1));
  return text;
}

// Facts of one side.
struct Side {
  EndpointAddress address;
  RemoteMemory target;
  Text host;
  Text commit;
  bool can_push;
};

std::uint32_t other_rank(const Bench& bench) { return 1 - bench.world->rank(); }

// Returns the failures of both sides, with their places; empty: none. A lost peer is one, too.
std::string agree(Bench& bench, const std::string& failure, std::uint64_t timeout_ns = kTogetherNs) {
  auto all = bench.world->allgather_value(text_of(failure), timeout_ns);
  const std::string here = failure.empty() ? "" : "here: " + failure;
  const std::string separator = failure.empty() ? "" : "; ";
  if (!all) return fmt::format("{}{}the peer: {}", here, separator, all.error().message);
  Text& others = (*all)[other_rank(bench)];
  others.back() = '\0';
  return others[0] == '\0' ? here : fmt::format("{}{}at the peer: {}", here, separator, others.data());
}

// An endpoint that is connected to the peer's, and a buffer at both ends.
struct Link {
  Memory source;
  Memory target;
  std::optional<Endpoint> endpoint;
  Side peer;
};

Result<Link> make_link(Bench& bench, StagingPools pools, std::uint32_t slots) {
  EndpointOptions options;
  options.slot_count = pools.nic != nullptr ? slots : 0;
  options.bounce_slot_count = pools.host != nullptr ? slots : 0;
  options.ack_timeout = kAckTimeout;
  options.retry_count = kRetryCount;
  options.timeout_ns = kCallNs;
  auto source = GDX_TRY(allocate_memory(*bench.hca, kBytes));
  auto target = GDX_TRY(allocate_memory(*bench.hca, kBytes));
  auto endpoint = GDX_TRY(Endpoint::create(*bench.hca, pools, options));
  return Link{std::move(source), std::move(target), std::move(endpoint), {}};
}

// Opens a link at both sides, in steps that both end together. `failure` is that of either.
std::optional<Link> open_together(Bench& bench, std::string& failure, StagingPools pools = {},
                                  std::uint32_t slots = 0) {
  auto link = make_link(bench, pools, slots);
  failure = agree(bench, link ? "" : link.error().message);
  if (!failure.empty()) return std::nullopt;
  Side mine{link->endpoint->address(), link->target.remote(), {}, text_of(commit()), pools.nic != nullptr};
  gethostname(mine.host.data(), mine.host.size() - 1);
  const auto sides = bench.world->allgather_value(mine, kTogetherNs);
  if (!sides) {
    failure = fmt::format("the peer: {}", sides.error().message);
    return std::nullopt;
  }
  link->peer = (*sides)[other_rank(bench)];
  link->peer.host.back() = '\0';
  link->peer.commit.back() = '\0';
  const auto connected = link->endpoint->connect(link->peer.address);
  failure = agree(bench, connected ? "" : connected.error().message);
  if (!failure.empty()) return std::nullopt;
  return std::move(*link);
}

template <Mode M>
Status put_by_warp(const Link& link, std::uint64_t bytes, std::uint64_t count) {
  std::atomic<Status> ended{Status::kOk};
  const auto kernel = [&](const EndpointHandle& handle) {
    device::Endpoint<Scope::kWarp> endpoint(handle);
    Status status = Status::kOk;
    for (std::uint64_t i = 0; i < count && status == Status::kOk; ++i)
      status = gdx_put<M>(endpoint, link.peer.target, link.source.local(), bytes);
    if (status == Status::kOk) status = gdx_flush(endpoint);
    if (status != Status::kOk) ended.store(status);
  };
  const Status launched =
      exec::launch({.block = {kWarpThreads}, .progress = progress}, kernel, link.endpoint->handle());
  return launched == Status::kOk ? ended.load() : launched;
}

struct Way {
  Mode mode;
  const char* name;
  Status (*put)(const Link&, std::uint64_t bytes, std::uint64_t count);
};
constexpr std::array<Way, 4> kWays{{{Mode::kPull, "pull", put_by_warp<Mode::kPull>},
                                    {Mode::kInline, "inline", put_by_warp<Mode::kInline>},
                                    {Mode::kPush, "push", put_by_warp<Mode::kPush>},
                                    {Mode::kBounce, "bounce", put_by_warp<Mode::kBounce>}}};
constexpr std::array<std::uint64_t, 9> kSizes{1, 7, 64, 221, 1024, 4096, 4097, 65536, kBytes};

// One put of rank `sender`, and what arrived. Both sides call it.
std::string put_once(Bench& bench, Link& link, const Way& way, std::uint64_t bytes, std::uint32_t sender) {
  const auto seed = static_cast<std::uint32_t>(bytes + 31 * sender + static_cast<std::uint32_t>(way.mode));
  std::string failure;
  if (bench.world->rank() == sender) {
    fill_pattern(link.source.span().first(bytes), seed);
    const Status status = way.put(link, bytes, 1);
    if (status != Status::kOk)
      failure = fmt::format("{} of {} B: {}; {}", way.name, bytes, status_name(status),
                            link.endpoint->describe_fault());
  }
  failure = agree(bench, failure);
  if (!failure.empty()) return failure;
  if (bench.world->rank() != sender) {
    failure = first_mismatch(link.target.data(), bytes, seed);
    if (!failure.empty()) failure = fmt::format("{} of {} B: {}", way.name, bytes, failure);
  }
  return agree(bench, failure);
}

// Congestion is no error: a network that marks packets works.
bool is_congestion(const std::string& name) { return name.find("_cnp_") != std::string::npos; }

// perftest's average in GB/s at the reporting rank, its client there; else 0. Errors: those of the world.
Result<double> run_perftest(Bench& bench) {
  const std::string bytes = fmt::format("{}", kBytes);
  // -F: processors without a fixed clock are no reason to give no figure.
  PeerRun run{kPerftest, {.bytes = kBytes}, {"-F", "-s", bytes, "-n", kPerftestWrites}};
  auto ends = GDX_TRY(PeerEnds::find(*bench.world, "gdx doctor", {std::move(run)},
                                     {bench.hca->name(), bench.hca->gid_index()}));
  const auto figures = GDX_TRY(ends.run(*bench.world, 0));
  return figures ? figures->messages_per_s * kBytes / 1e9 : 0;
}

StepResult failed(const std::string& failure) { return {Verdict::kFail, failure}; }

// The command for the other host.
std::string call_there(const PeerPlace& place) {
  return fmt::format("gdx doctor --hardware {} --port {}",
                     place.host.empty() ? "--peer THIS_HOST" : "--listen", place.port);
}

using Counters = std::map<std::string, std::uint64_t>;
Counters read_counters(const Hca& hca) {
  Counters counters;
  for (const char* name : {"local_ack_timeout_err", "out_of_sequence", "packet_seq_err", "rnr_nak_retry_err",
                           "duplicate_request", "roce_adp_retrans", "np_cnp_sent", "rp_cnp_handled"}) {
    const auto value = hca.counter(name);
    if (value) counters.emplace(name, *value);
  }
  return counters;
}

// Advice for hosts that have not met.
std::string advice_to_meet(const PeerPlace& place, Status why) {
  if (why == Status::kInvalidArgument) return "give --peer the other host's name or IPv4 address";
  if (why == Status::kUnsupported) return "give both hosts the same secret by GDX_SECRET_FILE";
  if (why == Status::kBusy) return "give both hosts another --port";
  return "run there within 5 min: " + call_there(place);
}

}  // namespace

void join_peer(Bench& bench) {
  const bool listens = bench.peer->host.empty();
  const std::string root = fmt::format("{}:{}", listens ? "0.0.0.0" : bench.peer->host, bench.peer->port);
  bench.tell(
      fmt::format("meets the other host at {} within 5 min; run there: {}", root, call_there(*bench.peer)));
  auto world = World::join({listens ? 0u : 1u, 2, root, kJoinNs});
  if (world) {
    bench.world = std::make_unique<World>(std::move(*world));
    return;
  }
  bench.unmet = world.error();
  bench.tell(fmt::format("no second host, so step 17 will fail: {}", bench.unmet.message));
}

void watch_peer(Bench& bench) {
  if (bench.world == nullptr || bench.peer_lost) return;
  const auto there = bench.world->poll_peers();
  bench.peer_lost = !there;
  if (!there) bench.tell(fmt::format("the other host has ended, see its report: {}", there.error().message));
}

StepResult meet_peer(Bench& bench) {
  if (bench.world == nullptr)
    return {Verdict::kFail, bench.unmet.message, advice_to_meet(*bench.peer, bench.unmet.status)};
  if (!bench.peer_lost) bench.tell("waits at most 15 min for the other host's sections A to C");
  const auto begun = std::chrono::steady_clock::now();
  std::string failure = agree(bench, bench.obstacle, kSectionsNs);
  const auto waited =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - begun);
  if (!failure.empty()) return failed(failure);
  auto link = open_together(bench, failure);
  if (!link) return failed(failure);
  for (const std::uint32_t sender : {0u, 1u}) {
    failure = put_once(bench, *link, kWays[0], kWordBytes, sender);
    if (!failure.empty()) return failed(failure);
  }
  StepResult result{Verdict::kOk, {}};
  const auto& mine = link->endpoint->address();
  const auto& theirs = link->peer.address;
  result.value = fmt::format("{} at {}, path MTU {} here and {} there: {} B each way", link->peer.host.data(),
                             address_text(theirs.gid), mine.mtu_bytes, theirs.mtu_bytes, kWordBytes);
  result.facts.push_back({"seconds of waiting for sections A to C there", fmt::format("{}", waited.count())});
  result.facts.push_back({"host there", link->peer.host.data()});
  result.facts.push_back({"commit there", link->peer.commit.data()});
  result.facts.push_back({"address here", address_text(mine.gid)});
  result.facts.push_back({"address there", address_text(theirs.gid)});
  result.facts.push_back({"GID index here", fmt::format("{}", bench.hca->gid_index())});
  result.facts.push_back({"LID here", fmt::format("{}", mine.lid)});
  result.facts.push_back({"LID there", fmt::format("{}", theirs.lid)});
  if (const auto context = link->endpoint->query_queue_pair()) {
    // The next hop's MAC, the fields of the address vector and the traffic class are in these bytes.
    const auto path = std::span(*context).subspan(prm::qp::kPath / 8, 0x2c);
    result.facts.push_back({"primary address path", fmt::format("{:02x}", fmt::join(path, ""))});
    result.facts.push_back({"hop limit", fmt::format("{}", prm::get32(*context, prm::qp::kPathHopLimit))});
    result.facts.push_back(
        {"traffic class", fmt::format("{}", prm::get32(*context, prm::qp::kPathTrafficClass))});
  }
  return result;
}

StepResult put_all_ways(Bench& bench) {
  auto nic = StagingPool::create(*bench.hca);
  auto host = StagingPool::create(*bench.hca, StagingOptions::in_host_memory());
  if (auto failure = agree(bench, host ? "" : host.error().message); !failure.empty()) return failed(failure);
  const Counters before = read_counters(*bench.hca);
  std::string failure;
  auto link = open_together(bench, failure, {nic ? &*nic : nullptr, &*host}, kSlots);
  if (!link) return failed(failure);
  std::vector<std::string> ways;
  for (const Way& way : kWays) {
    for (const std::uint32_t sender : {0u, 1u}) {
      const bool can_push = sender == bench.world->rank() ? nic.has_value() : link->peer.can_push;
      if (way.mode == Mode::kPush && !can_push) continue;
      for (const std::uint64_t bytes : kSizes) {
        if (way.mode == Mode::kInline && bytes > kMaxInlinePutBytes) continue;
        failure = put_once(bench, *link, way, bytes, sender);
        if (!failure.empty()) return failed(failure);
      }
      ways.push_back(fmt::format("{} {}", way.name, sender == bench.world->rank() ? "out" : "in"));
    }
  }
  StepResult result{Verdict::kOk, fmt::format("{} sizes by {}; inline those up to {} B", kSizes.size(),
                                              fmt::join(ways, ", "), kMaxInlinePutBytes)};
  if (!nic)
    result = {Verdict::kUnknown,
              fmt::format("{}; push out: not tried: {}", result.value, nic.error().message)};
  const Counters after = read_counters(*bench.hca);
  std::vector<std::string> risen;
  for (const auto& [name, value] : after) {
    const auto old = before.find(name);
    if (old == before.end()) continue;
    result.facts.push_back({name + " before", fmt::format("{}", old->second)});
    result.facts.push_back({name + " after", fmt::format("{}", value)});
    if (!is_congestion(name) && value != old->second)
      risen.push_back(fmt::format("{} by {}", name, value - old->second));
  }
  if (after.empty()) {
    result.verdict = Verdict::kUnknown;
    result.value += "; no counter of errors can be read";
  } else {
    result.value +=
        risen.empty() ? "; no counter of errors rose" : fmt::format("; rose: {}", fmt::join(risen, ", "));
  }
  return result;
}

StepResult lose_peer(Bench& bench) {
  StepResult result{Verdict::kOk, {}};
  for (const std::uint32_t lost : {0u, 1u}) {
    std::string failure;
    auto link = open_together(bench, failure);
    if (!link) return failed(failure);
    failure = put_once(bench, *link, kWays[0], kWordBytes, 1 - lost);
    if (!failure.empty()) return failed(failure);
    // Ends the endpoint as the operating system does for a process that was killed.
    if (bench.world->rank() == lost) link->endpoint.reset();
    if (failure = agree(bench, {}); !failure.empty()) return failed(failure);
    if (bench.world->rank() != lost) {
      const auto begin = std::chrono::steady_clock::now();
      const Status status = kWays[0].put(*link, kWordBytes, 1);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      const EndpointFault fault = link->endpoint->fault();
      if (status == Status::kOk ||
          fault.syndrome != static_cast<std::uint8_t>(mlx5::Syndrome::kRetryExceeded))
        failure = fmt::format(
            "a put to a queue pair that is gone: {}, syndrome {:#04x} after {:.2f} s; wanted 0x15",
            status_name(status), fault.syndrome, took.count());
      result.value =
          fmt::format("a put to a peer that is gone ends with syndrome 0x15 after {:.2f} s", took.count());
      result.facts = {{"milliseconds", fmt::format("{:.0f}", 1e3 * took.count())}};
    }
    if (failure = agree(bench, failure); !failure.empty()) return failed(failure);
  }
  return result;
}

StepResult judge_bandwidth(double puts, double perftest, bool software) {
  const std::string mine = fmt::format("puts of 1 MiB, posted by a processor: {:.3g} GB/s", puts);
  if (perftest == 0) {
    return {
        Verdict::kUnknown,
        fmt::format("{}; {} gave no figure: install perftest on both hosts, and open TCP ports between them",
                    mine, kPerftest)};
  }
  const bool slow = puts < kLeastOfPerftest * perftest && !software;
  return {slow ? Verdict::kFail : Verdict::kOk,
          fmt::format("{}; {}: {:.3g} GB/s", mine, kPerftest, perftest)};
}

StepResult compare_bandwidth(Bench& bench) {
  std::string failure;
  auto link = open_together(bench, failure);
  if (!link) return failed(failure);
  double gigabytes = 0;
  if (failure = put_once(bench, *link, kWays[0], kBytes, kReportingRank); !failure.empty())
    return failed(failure);
  if (bench.world->rank() == kReportingRank) {
    fill_pattern(link->source.span(), 1);
    const auto begin = std::chrono::steady_clock::now();
    const Status status = kWays[0].put(*link, kBytes, kPuts);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    if (status != Status::kOk)
      failure = fmt::format("{}; {}", status_name(status), link->endpoint->describe_fault());
    gigabytes = static_cast<double>(kPuts * kBytes) / 1e9 / took.count();
  }
  if (failure = agree(bench, failure); !failure.empty()) return failed(failure);
  if (bench.world->rank() != kReportingRank) failure = first_mismatch(link->target.data(), kBytes, 1);
  if (failure = agree(bench, failure); !failure.empty()) return failed(failure);
  const auto perftest = run_perftest(bench);
  if (!perftest) return failed("the peer: " + perftest.error().message);
  const auto figures = bench.world->allgather_value(std::array{gigabytes, *perftest}, kTogetherNs);
  if (!figures) return failed("the peer: " + figures.error().message);
  const auto [mine, beside] = (*figures)[kReportingRank];
  StepResult result = judge_bandwidth(mine, beside, bench.hca->is_software());
  result.facts = {{"puts, MB/s", fmt::format("{:.0f}", 1e3 * mine)},
                  {"ib_write_bw, MB/s", fmt::format("{:.0f}", 1e3 * beside)}};
  return result;
}

}  // namespace gdx::doctor
