#include "host/programs/bench/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/parse_number.h"
#include "device/options.h"
#include "host/calibration/conditions.h"
#include "host/programs/bench/experts.h"

namespace gdx::bench {
namespace {

template <typename T>
using Names = std::vector<std::pair<std::string_view, T>>;

const Names<Operation>& operation_names() {
  static const Names<Operation> names = {{"put", Operation::kPut},
                                         {"put_signal", Operation::kPutSignal},
                                         {"get", Operation::kGet},
                                         {"fetch_add", Operation::kFetchAdd},
                                         {"alltoall", Operation::kAllToAll},
                                         {"incast", Operation::kIncast},
                                         {"allreduce", Operation::kAllReduce},
                                         {"dispatch", Operation::kDispatch},
                                         {"combine", Operation::kCombine}};
  return names;
}
const Names<Measure>& measure_names() {
  static const Names<Measure> names = {{"lat", Measure::kLatency}, {"bw", Measure::kBandwidth}};
  return names;
}
const Names<Way>& way_names() {
  static const Names<Way> names = {{"pull", Way::kPull},     {"push", Way::kPush}, {"inline", Way::kInline},
                                   {"bounce", Way::kBounce}, {"auto", Way::kAuto}, {"proxy", Way::kProxy},
                                   {"nic", Way::kNic}};
  return names;
}
const Names<Threads>& scope_names() {
  static const Names<Threads> names = {
      {"thread", Threads::kThread}, {"warp", Threads::kWarp}, {"block", Threads::kBlock}};
  return names;
}

template <typename T>
std::string name_in(const Names<T>& names, T value) {
  const auto found = std::ranges::find(names, value, &std::pair<std::string_view, T>::second);
  return std::string(found->first);
}

template <typename T>
Result<T> value_in(const Names<T>& names, const char* kind, const std::string& text) {
  const auto found = std::ranges::find(names, text, &std::pair<std::string_view, T>::first);
  if (found != names.end()) return found->second;
  std::vector<std::string_view> known(names.size());
  std::ranges::transform(names, known.begin(), &std::pair<std::string_view, T>::first);
  return fail(Status::kInvalidArgument,
              fmt::format("'{}' is no {}: use {}", text, kind, fmt::join(known, ", ")));
}

struct Test {
  Operation operation;
  Measure measure;
};
Result<Test> parse_test(const std::string& text) {
  for (const auto& [operation_name, operation] : operation_names()) {
    if (is_collective(operation)) {
      if (text == operation_name) return Test{operation, Measure::kLatency};
      continue;
    }
    for (const auto& [measure_name, measure] : measure_names()) {
      if (text == fmt::format("{}_{}", operation_name, measure_name)) return Test{operation, measure};
    }
  }
  return fail(Status::kInvalidArgument,
              fmt::format("'{}' is no benchmark, and no host that has an address: use {}, {}", text,
                          fmt::join(all_tests(), ", "), fmt::join(tests_of_ranks(), ", ")));
}

Result<std::uint64_t> parse_size(std::string_view text) {
  std::uint64_t unit = 1;
  if (text.ends_with('K') || text.ends_with('k')) unit = 1 << 10;
  if (text.ends_with('M') || text.ends_with('m')) unit = 1 << 20;
  const auto number = parse_unsigned(unit == 1 ? text : text.substr(0, text.size() - 1));
  if (number && *number != 0 && *number <= kMaxMessageBytes / unit) return *number * unit;
  return fail(Status::kInvalidArgument, fmt::format("'{}': use 1 to 64M, such as 8:1M or 8,4K", text));
}

std::vector<std::string_view> split(std::string_view text, char delimiter) {
  std::vector<std::string_view> parts;
  parts.reserve(static_cast<std::size_t>(std::ranges::count(text, delimiter)) + 1);
  for (std::size_t end = 0; (end = text.find(delimiter)) != std::string_view::npos;) {
    parts.push_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  parts.push_back(text);
  return parts;
}

// Returns the ways that an operation has, of those wanted: gets and atomics have one, beside that by a proxy.
std::vector<Way> ways_of(Operation operation, const std::vector<Way>& wanted) {
  if (operation != Operation::kGet && operation != Operation::kFetchAdd) return wanted;
  std::vector<Way> ways;
  if (wanted != std::vector{Way::kProxy}) ways.push_back(Way::kNic);
  if (std::ranges::count(wanted, Way::kProxy) != 0) ways.push_back(Way::kProxy);
  return ways;
}

// Returns the doorbells that differ for posters of a case: threads ring plainly, a CPU proxy is one, and so
// do teams, which make collectives.
std::vector<std::optional<DoorbellKind>> doorbells_of(const Plan& plan, const Case& item) {
  if (plan.doorbells.empty()) return {std::nullopt};
  std::vector<std::optional<DoorbellKind>> kinds;
  for (const DoorbellKind kind : {DoorbellKind::kPlain, DoorbellKind::kBlueFlame}) {
    const bool rings =
        kind == DoorbellKind::kPlain || (item.scope != Threads::kThread && item.way != Way::kProxy &&
                                         !shares(item) && !is_collective(item.operation));
    if (rings && std::ranges::count(plan.doorbells, name(kind)) != 0) kinds.emplace_back(kind);
  }
  return kinds;
}

// Returns the memories of queues that differ for posters of a case: a CPU proxy reads none of a GPU's, and
// those of a team are where its heap is, in the host's.
std::vector<std::optional<Placement>> queues_of(const Plan& plan, const Case& item) {
  if (plan.queues.empty()) return {std::nullopt};
  std::vector<std::optional<Placement>> places;
  for (const Placement place : {Placement::kHost, Placement::kGpu}) {
    const bool posts =
        place == Placement::kHost || (item.way != Way::kProxy && !is_collective(item.operation));
    if (posts && std::ranges::count(plan.queues, gdx::name(place)) != 0) places.emplace_back(place);
  }
  return places;
}

// Refuses a benchmark of two ranks among more, and conditions that a collective does not have.
Result<void> check_ranks(const Plan& plan, const std::string& test, Operation operation) {
  const auto refuse = [&](const std::string& why) { return fail(Status::kInvalidArgument, test + why); };
  if (!is_collective(operation)) {
    if (plan.ranks == 2) return {};
    return refuse(fmt::format(" runs between 2 ranks: leave out --ranks, or use {}",
                              fmt::join(tests_of_ranks(), ", ")));
  }
  if (std::ranges::count(plan.ways, "proxy") != 0)
    return refuse(" is posted by kernels alone: leave proxy out of --modes");
  if (plan.endpoints != std::vector<std::uint64_t>{1})
    return refuse(" is made by a team, with one endpoint to each other rank: leave out --endpoints");
  if (!plan.posters.empty()) return refuse(" is posted by one block of each rank: leave out --posters");
  const auto long_one = [](std::uint64_t bytes) { return bytes > kMaxTokenBytes; };
  if (is_of_experts(operation) && std::ranges::any_of(plan.sizes_bytes, long_one))
    return refuse(fmt::format(" has up to {} messages a round: use --size up to 64K", kRoutes));
  const auto odd = [](std::uint64_t bytes) { return bytes % sizeof(float) != 0; };
  if (operation == Operation::kAllReduce && std::ranges::any_of(plan.sizes_bytes, odd))
    return refuse(" sums floats of 4 B: use --size of multiples of 4");
  return {};
}

// Only puts and gets may share a doorbell, and only where several messages are posted between two flushes.
bool has_batches(const Test& test) {
  return test.measure == Measure::kBandwidth &&
         (test.operation == Operation::kPut || test.operation == Operation::kGet);
}

// Refuses batches that a window ends before they are whole.
Result<void> check_batches(const Plan& plan, const Test& test) {
  if (!has_batches(test) || plan.batches.empty() || plan.depths.empty()) return {};
  const std::uint64_t batch = std::ranges::max(plan.batches);
  const std::uint64_t depth = std::ranges::min(plan.depths);
  if (batch <= depth) return {};
  return fail(Status::kInvalidArgument,
              fmt::format("--batch: '{}': a window of --depth {} has fewer messages: use at most {}, or a "
                          "greater depth",
                          batch, depth, depth));
}

// Returns the numbers of posters of a case, and none below its endpoints. Shared endpoints are for puts of
// kernels, which ring each by itself.
std::vector<std::uint64_t> posters_of(const Plan& plan, const Case& item) {
  if (plan.posters.empty()) return {item.endpoints};
  std::vector<std::uint64_t> posters;
  const bool may_share = item.operation == Operation::kPut && item.way != Way::kProxy && item.batch == 1;
  for (const std::uint64_t count : plan.posters) {
    if (count == item.endpoints || (count > item.endpoints && may_share)) posters.push_back(count);
  }
  return posters;
}

void add_variants(const Plan& plan, Case item, std::vector<Case>& cases) {
  for (const std::uint64_t posters : posters_of(plan, item)) {
    item.posters = static_cast<std::uint32_t>(posters);
    for (const auto& doorbell : doorbells_of(plan, item)) {
      item.doorbell = doorbell;
      for (const auto& queues : queues_of(plan, item)) {
        item.queues = queues;
        cases.push_back(item);
      }
    }
  }
}

// Adds the cases of one test and size, but inline no longer one than a put may be.
void add_cases(const Plan& plan, const Case& begun, const std::vector<Way>& ways, std::vector<Case>& cases) {
  const bool many = begun.measure == Measure::kBandwidth;
  const bool batches = has_batches({begun.operation, begun.measure});
  const std::vector<std::uint64_t> one = {1};
  for (const std::uint64_t endpoints : plan.endpoints) {
    for (const std::uint64_t depth : many ? plan.depths : one) {
      for (const std::uint64_t batch : batches ? plan.batches : one) {
        for (const Way way : ways_of(begun.operation, ways)) {
          if (way == Way::kInline && begun.bytes > kMaxInlinePutBytes) continue;
          Case item = begun;
          item.endpoints = static_cast<std::uint32_t>(endpoints);
          item.depth = static_cast<std::uint32_t>(depth);
          item.batch = static_cast<std::uint32_t>(batch);
          item.both_ways = plan.both_ways && many;
          item.way = way;
          add_variants(plan, item, cases);
        }
      }
    }
  }
}

}  // namespace

std::string name(Operation operation) { return name_in(operation_names(), operation); }
std::string name(Measure measure) { return name_in(measure_names(), measure); }
std::string name(Way way) { return name_in(way_names(), way); }
std::string name(Threads scope) { return name_in(scope_names(), scope); }

std::string key_of(const Case& item) {
  return fmt::format("{} {} {} {} B {} x{} depth {} batch {}{}{}{}{}{}", name(item.operation),
                     name(item.measure), name(item.way), item.bytes, name(item.scope), item.endpoints,
                     item.depth, item.batch, shares(item) ? fmt::format(" {} posters", item.posters) : "",
                     item.ranks == 2 ? "" : fmt::format(" {} ranks", item.ranks),
                     item.both_ways ? " both ways" : "",
                     item.doorbell ? fmt::format(" {}", gdx::name(*item.doorbell)) : "",
                     item.queues ? fmt::format(" {} queues", gdx::name(*item.queues)) : "");
}

bool same_but_way(Case a, const Case& b) {
  a.way = b.way;
  a.doorbell = b.doorbell;
  a.queues = b.queues;
  return a == b;
}

std::uint32_t workers_of(const Plan& plan, std::uint32_t cores) {
  return plan.workers != 0 ? static_cast<std::uint32_t>(plan.workers) : std::max(1u, cores / 2);
}

Bus bus_of(const Case& item) {
  if (is_of_experts(item.operation)) {
    const std::uint32_t sent = messages_to_others(item.operation, 0, item.ranks);
    return {kRoutes * item.bytes, static_cast<double>(sent) / kRoutes};
  }
  const double others = static_cast<double>(item.ranks - 1) / static_cast<double>(item.ranks);
  if (item.operation == Operation::kAllReduce) return {item.bytes, 2 * others};
  return {item.ranks * item.bytes, others};
}

std::string latency_of(Operation operation) {
  if (is_collective(operation)) return "round";
  return operation == Operation::kPutSignal ? "half round trip" : "completion";
}

std::vector<std::string> all_tests() {
  std::vector<std::string> tests;
  tests.reserve(operation_names().size() * measure_names().size());
  for (const auto& measure : measure_names()) {
    for (const auto& operation : operation_names()) {
      if (!is_collective(operation.second))
        tests.push_back(fmt::format("{}_{}", operation.first, measure.first));
    }
  }
  return tests;
}

std::vector<std::string> collective_tests() { return {"alltoall", "incast", "allreduce"}; }

std::vector<std::string> expert_tests() { return {"dispatch", "combine"}; }

std::vector<std::string> tests_of_ranks() {
  std::vector<std::string> tests = collective_tests();
  for (const std::string& test : expert_tests()) tests.push_back(test);
  return tests;
}

std::vector<std::string> all_ways() { return {"pull", "push", "inline", "bounce", "auto", "proxy"}; }

Result<std::vector<Case>> cases_of(const Plan& plan) {
  std::vector<Way> ways(plan.ways.size());
  for (std::size_t i = 0; i < ways.size(); ++i) {
    ways[i] = GDX_TRY(value_in(way_names(), "mode", plan.ways[i]));
  }
  std::vector<Case> cases;
  for (const std::string& text : plan.tests) {
    const auto test = GDX_TRY(parse_test(text));
    GDX_TRY(check_ranks(plan, text, test.operation));
    GDX_TRY(check_batches(plan, test));
    std::vector<std::uint64_t> sizes = plan.sizes_bytes;
    if (test.operation == Operation::kFetchAdd) sizes = {8};
    for (const std::uint64_t bytes : sizes) {
      for (const std::string& scope : plan.scopes) {
        Case begun{.operation = test.operation, .measure = test.measure, .bytes = bytes, .ranks = plan.ranks};
        begun.scope = GDX_TRY(value_in(scope_names(), "scope", scope));
        add_cases(plan, begun, ways, cases);
      }
    }
  }
  const auto times = [&plan](const Case& item) { return plan.messages * item.posters > kMaxTimes; };
  if (std::ranges::any_of(cases, times)) {
    return fail(Status::kInvalidArgument,
                fmt::format("--iters: '{}': all posters of a sample have at most {} messages: use fewer",
                            plan.messages, kMaxTimes));
  }
  if (!cases.empty()) return cases;
  if (!plan.posters.empty()) {
    return fail(
        Status::kInvalidArgument,
        "--posters: nothing has so many: they are as many as --endpoints, or more in put_lat and put_bw, by "
        "kernels, without --batch and with plain doorbells");
  }
  if (plan.ways == std::vector<std::string>{"inline"}) {
    return fail(
        Status::kInvalidArgument,
        fmt::format("--modes: 'inline': a put takes at most {} bytes: use a --size up to that, or add a mode",
                    kMaxInlinePutBytes));
  }
  return fail(Status::kInvalidArgument,
              "doorbells, queues: threads, proxies and collectives ring plainly, and proxies and collectives "
              "have queues "
              "in host memory: add plain or host, or a scope of warp or block");
}

Result<std::vector<std::uint64_t>> parse_sizes(const std::string& text) {
  std::vector<std::uint64_t> sizes;
  const std::vector<std::string_view> range = split(text, ':');
  if (range.size() == 1) {
    for (const std::string_view part : split(text, ',')) {
      const auto bytes = GDX_TRY(parse_size(part));
      sizes.push_back(bytes);
    }
  } else {
    const auto least = GDX_TRY(parse_size(range[0]));
    const auto most = GDX_TRY(parse_size(range[1]));
    const auto factor = range.size() == 3 ? parse_unsigned(range[2]) : 2;
    if (range.size() > 3 || !factor || *factor < 2 || least > most) {
      return fail(Status::kInvalidArgument,
                  fmt::format("'{}': use LEAST:MOST or LEAST:MOST:FACTOR, such as 8:1M or 8:1M:4", text));
    }
    for (std::uint64_t bytes = least; bytes <= most; bytes *= *factor) sizes.push_back(bytes);
  }
  std::ranges::sort(sizes);
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

nlohmann::ordered_json to_json(const Case& item) {
  return {{"operation", name(item.operation)},
          {"measure", name(item.measure)},
          {"mode", name(item.way)},
          {"poster", item.way == Way::kProxy ? "CPU proxy" : "kernel"},
          {"bytes", item.bytes},
          {"scope", name(item.scope)},
          {"endpoints", item.endpoints},
          {"posters", item.posters},
          {"depth", item.depth},
          {"batch", item.batch},
          {"ranks", item.ranks},
          {"direction", item.both_ways ? "both ways" : "one way"},
          {"doorbell", item.doorbell ? gdx::name(*item.doorbell) : kDefault},
          {"queues", item.queues ? gdx::name(*item.queues) : kDefault}};
}

nlohmann::ordered_json to_json(const Plan& plan) {
  return {{"tests", plan.tests},
          {"modes", plan.ways},
          {"sizes", plan.sizes_bytes},
          {"scopes", plan.scopes},
          {"endpoints", plan.endpoints},
          {"posters", plan.posters},
          {"depths", plan.depths},
          {"batches", plan.batches},
          {"doorbells", plan.doorbells},
          {"queues", plan.queues},
          {"ranks", plan.ranks},
          {"both_ways", plan.both_ways},
          {"adaptive_routing", plan.adaptive_routing},
          {"rounds", plan.rounds},
          {"messages", plan.messages},
          {"seconds", plan.seconds},
          {"hca", plan.hca},
          {"memory", plan.memory},
          {"workers", plan.workers},
          {"peers", plan.peers},
          {"kill_rank", plan.kill_rank},
          {"break_memory", plan.break_memory}};
}

Result<Plan> plan_from_json(const std::string& text) {
  Plan plan;
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    json.at("tests").get_to(plan.tests);
    json.at("modes").get_to(plan.ways);
    json.at("sizes").get_to(plan.sizes_bytes);
    json.at("scopes").get_to(plan.scopes);
    json.at("endpoints").get_to(plan.endpoints);
    json.at("posters").get_to(plan.posters);
    json.at("depths").get_to(plan.depths);
    json.at("batches").get_to(plan.batches);
    json.at("doorbells").get_to(plan.doorbells);
    json.at("queues").get_to(plan.queues);
    json.at("ranks").get_to(plan.ranks);
    json.at("both_ways").get_to(plan.both_ways);
    json.at("adaptive_routing").get_to(plan.adaptive_routing);
    json.at("rounds").get_to(plan.rounds);
    json.at("messages").get_to(plan.messages);
    json.at("seconds").get_to(plan.seconds);
    json.at("hca").get_to(plan.hca);
    json.at("memory").get_to(plan.memory);
    json.at("workers").get_to(plan.workers);
    json.at("peers").get_to(plan.peers);
    json.at("kill_rank").get_to(plan.kill_rank);
    json.at("break_memory").get_to(plan.break_memory);
  } catch (const nlohmann::json::exception& error) {
    return fail(Status::kInvalidArgument,
                fmt::format("no plan of a benchmark ({}): start it as gdx bench", error.what()));
  }
  return plan;
}

}  // namespace gdx::bench
