// Rates of kernels' posts and of their stores to host memory, and the time of a host thread's answer.
// gdx_posting_bench_cuda measures on a GPU, gdx_peer_bench_cuda beside another library's puts.
// gdx_posting_bench runs it on the CPU layer, where only the counts have meaning. Every WQE is checked.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/command_line.h"
#include "perf/machine.h"
#include "perf/posting.h"
#include "perf/posting_queues.h"

namespace gdx::posting {
namespace {

constexpr int kExitSkipped = 77;
constexpr std::uint32_t kWarp = 32;
constexpr char kNoTma[] = "this GPU has no TMA: it needs sm_90";

struct Options {
  std::uint32_t puts = 1024;   // of a poster
  std::uint32_t chunks = 256;  // of a block
  std::uint32_t rounds = 1000;
  bool break_queue = false;
  bool break_blueflame = false;
  bool json = false;
};

using Json = nlohmann::ordered_json;

struct Shape {
  const char* who;
  Poster poster;
  Sharing sharing;
  std::uint32_t posters;
  std::uint32_t posters_of_block;
};

// Poster: gdx, or another library.
struct Library {
  const char* name;
  Status (*post)(const PostCase& what, Times* times);
};

// Returns whether a poster uses BlueFlame. Threads, shared endpoints, warps of their lanes' WQEs and other
// libraries ring plainly.
constexpr bool has_blueflame(const Shape& shape) { return shape.poster == Poster::kWarpPut; }

std::vector<Shape> shapes() {
  const std::uint32_t all = machine::multiprocessors();
  return {
      {"one thread", Poster::kThread, Sharing::kExclusive, 1, 1},
      {"one warp", Poster::kWarp, Sharing::kExclusive, 1, 1},
      {"a thread of each SM", Poster::kThread, Sharing::kExclusive, all, 1},
      {"4 warps of each SM", Poster::kWarp, Sharing::kExclusive, 4 * all, 4},
      {"one warp, put by put", Poster::kWarpPut, Sharing::kExclusive, 1, 1},
      {"4 warps of each SM, put by put", Poster::kWarpPut, Sharing::kExclusive, 4 * all, 4},
      {"one thread", Poster::kThread, Sharing::kShared, 1, 1},
      {"one warp", Poster::kWarp, Sharing::kShared, 1, 1},
      {"a thread of each SM", Poster::kThread, Sharing::kShared, all, 1},
      {"4 warps of each SM", Poster::kWarp, Sharing::kShared, 4 * all, 4},
  };
}

// Result of all posters' clocks.
struct Summary {
  double seconds = 0;
  double cycles = 0;  // mean
  Status status = Status::kOk;
};

Summary summarize(const Times* times, std::uint32_t count) {
  Summary all;
  std::uint64_t start_ns = ~std::uint64_t{0};
  std::uint64_t end_ns = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    start_ns = std::min(start_ns, times[i].start_ns);
    end_ns = std::max(end_ns, times[i].end_ns);
    all.cycles += static_cast<double>(times[i].cycles) / count;
    if (times[i].status != Status::kOk) all.status = times[i].status;
  }
  all.seconds = static_cast<double>(end_ns - start_ns) / 1e9;
  return all;
}

// A ratio of clocks that may not have moved.
double per(double count, double seconds) { return seconds > 0 ? count / seconds : 0; }

Result post_row(const Shape& shape, Placement placement, const Library& library, bool blueflame,
                const Options& options, Json& row) {
  const bool shared = shape.sharing == Sharing::kShared;
  std::uint32_t puts = options.puts / kWarp * kWarp;
  if (shared) puts = std::max(kWarp, std::min(puts, kMaxBlocks / shape.posters / kWarp * kWarp));
  const std::uint32_t queue_count = shared ? 1 : shape.posters;
  const std::uint32_t puts_of_queue = shared ? puts * shape.posters : puts;
  auto queues = MemoryQueues::make(queue_count, puts_of_queue, shape.sharing, placement, blueflame);
  auto times = machine::allocate(machine::Place::kHost, shape.posters * sizeof(Times));
  if (!queues || !times) return {false, "no memory for the queues: ask for fewer --puts"};
  auto* const read = reinterpret_cast<Times*>(times.get());
  const PostCase what{queues->queues(), shape.sharing,          shape.poster,
                      shape.posters,    shape.posters_of_block, puts};
  const Status launched = library.post(what, read);
  if (launched != Status::kOk)
    return {false, fmt::format("the kernel did not run: {}", status_name(launched))};
  const Summary summary = summarize(read, shape.posters);
  const std::uint64_t total = std::uint64_t{puts} * shape.posters;
  row = {{"what", "post"},
         {"library", library.name},
         {"who", shape.who},
         {"sharing", shared ? "shared" : "exclusive"},
         {"queues_in", placement == Placement::kGpu ? "gpu" : "host"},
         {"doorbell", blueflame ? "BlueFlame" : "plain"},
         {"puts", total}};
  if (summary.status == Status::kUnsupported) {
    row["skipped"] = kNoTma;
    return {true, ""};
  }
  if (summary.status != Status::kOk)
    return {false, fmt::format("posting ended with: {}", status_name(summary.status))};
  if (options.break_queue) queues->damage();
  if (options.break_blueflame && blueflame) queues->damage_blueflame();
  const MemoryQueues::Findings found = queues->check(what);
  if (machine::is_gpu()) {
    row["cycles_per_put"] = summary.cycles / puts;
    row["million_puts_per_s"] = per(static_cast<double>(total), summary.seconds) / 1e6;
  }
  row["wqes_found"] = found.wqes;
  row["mistakes"] = found.mistakes;
  if (found.wqes == total && found.mistakes == 0) return {true, ""};
  return {false, fmt::format("{} of {} WQEs found, {} mistakes", found.wqes, total, found.mistakes)};
}

struct StoreShape {
  const char* who;
  Storer storer;
  std::uint32_t blocks;
  machine::Place to = machine::Place::kHost;
  Placement released_for = Placement::kHost;
};

// Bandwidth of many chunks under way, or how long each takes by itself.
Result store_row(const StoreShape& shape, std::uint32_t chunk_bytes, bool one_at_a_time,
                 const Options& options, Json& row) {
  const bool to_host = shape.to == machine::Place::kHost;
  const std::size_t bytes = std::size_t{shape.blocks} * options.chunks * chunk_bytes;
  auto to = machine::allocate(shape.to, bytes);
  auto from = machine::allocate(machine::Place::kGpu, chunk_bytes);
  auto times = machine::allocate(machine::Place::kHost, shape.blocks * sizeof(Times));
  if (!to || !from || !times) return {false, "no memory to store to: ask for fewer --chunks"};
  std::vector<std::byte> pattern(chunk_bytes);
  for (std::size_t i = 0; i < pattern.size(); ++i) pattern[i] = static_cast<std::byte>(i * 131 + 7);
  if (!machine::copy(from.get(), pattern.data(), chunk_bytes))
    return {false, "the pattern could not be copied"};
  auto* const read = reinterpret_cast<Times*>(times.get());
  const StoreCase what{shape.storer,  shape.blocks,       options.chunks, chunk_bytes,
                       one_at_a_time, shape.released_for, to.get(),       from.get()};
  const Status launched = store(what, read);
  if (launched != Status::kOk)
    return {false, fmt::format("the kernel did not run: {}", status_name(launched))};
  const Summary summary = summarize(read, shape.blocks);
  row = {{"what", fmt::format("store to {} memory{}", to_host ? "pinned host" : "GPU",
                              one_at_a_time ? ", one by one" : "")},
         {"who", shape.who},
         {"scope", shape.released_for == Placement::kHost ? "system" : "gpu"},
         {"chunk_bytes", chunk_bytes},
         {"bytes", bytes}};
  if (summary.status == Status::kUnsupported) {
    row["skipped"] = kNoTma;
    return {true, ""};
  }
  std::vector<std::byte> stored(bytes);
  if (!machine::copy(stored.data(), to.get(), bytes)) return {false, "what was stored could not be copied"};
  std::uint64_t wrong = 0;
  for (std::size_t at = 0; at < bytes; at += chunk_bytes) {
    wrong += std::memcmp(stored.data() + at, pattern.data(), chunk_bytes) != 0;
  }
  if (machine::is_gpu() && one_at_a_time) {
    row["ns_per_chunk"] = summary.seconds * 1e9 / options.chunks;
    row["cycles_per_chunk"] = summary.cycles / options.chunks;
  } else if (machine::is_gpu()) {
    row["gigabytes_per_s"] = per(static_cast<double>(bytes), summary.seconds) / 1e9;
  }
  row["wrong_chunks"] = wrong;
  return wrong == 0 ? Result{true, ""} : Result{false, fmt::format("{} chunks are wrong", wrong)};
}

// Measures a thread of the host that answers a kernel's requests.
Result ask_row(const Options& options, Json& row) {
  constexpr std::size_t kLineBytes = 64;
  auto words = machine::allocate(machine::Place::kHost, 2 * kLineBytes);
  auto times = machine::allocate(machine::Place::kHost, sizeof(Times));
  if (!words || !times) return {false, "no memory for two words"};
  auto* const question = reinterpret_cast<std::uint64_t*>(words.get());
  auto* const answer = reinterpret_cast<std::uint64_t*>(words.get() + kLineBytes);
  std::atomic<bool> over{false};
  std::thread host([&] {
    while (!over.load(std::memory_order_relaxed)) {
      const std::uint64_t asked = std::atomic_ref(*question).load(std::memory_order_acquire);
      std::atomic_ref(*answer).store(asked, std::memory_order_release);
      if (!machine::is_gpu()) std::this_thread::yield();  // the kernel may want this very processor
    }
  });
  auto* const read = reinterpret_cast<Times*>(times.get());
  const Status launched = ask({question, answer, options.rounds}, read);
  over = true;
  host.join();
  if (launched != Status::kOk)
    return {false, fmt::format("the kernel did not run: {}", status_name(launched))};
  row = {{"what", "answer of a host thread"}, {"rounds", options.rounds}, {"answered", *answer}};
  const Summary summary = summarize(read, 1);
  if (summary.status != Status::kOk)
    return {false, fmt::format("a host thread answered {} of {} questions", *answer, options.rounds)};
  if (machine::is_gpu()) row["ns_per_round"] = summary.seconds * 1e9 / options.rounds;
  return *answer == options.rounds ? Result{true, ""} : Result{false, "an answer is not the question's"};
}

void print_row(const Json& row) {
  std::string line;
  for (const auto& [key, value] : row.items()) {
    line += fmt::format("{}{} {}", line.empty() ? "" : "  ", key,
                        value.is_string()         ? value.get<std::string>()
                        : value.is_number_float() ? fmt::format("{:.2f}", value.get<double>())
                                                  : value.dump());
  }
  fmt::print("{}\n", line);
}

int run(const Options& options) {
  Json rows = Json::array();
  std::string failure;
  const auto take = [&](const Result& result, Json row) {
    if (!options.json && !row.empty()) print_row(row);
    if (!row.empty()) rows.push_back(std::move(row));
    if (!result.ok && failure.empty()) failure = result.reason;
  };
  std::vector<Library> libraries{{"gdx", post}};
  if (peer() != nullptr) libraries.push_back({peer()->name, peer()->post});
  for (const Placement placement : {Placement::kGpu, Placement::kHost}) {
    for (const Shape& shape : shapes()) {
      for (const Library& library : libraries) {
        // Theirs is fenced at the GPU's scope wherever the queue is: too little for host memory, and no
        // match.
        if (library.post != post && (placement == Placement::kHost || has_blueflame(shape))) continue;
        for (const bool blueflame : {false, true}) {
          if (blueflame && !has_blueflame(shape)) continue;
          Json row;
          const Result result = post_row(shape, placement, library, blueflame, options, row);
          take(result, std::move(row));
        }
      }
    }
  }
  const std::uint32_t all = machine::multiprocessors();
  const StoreShape storers[] = {
      {"one thread", Storer::kThread, 1},        {"one warp", Storer::kWarp, 1},
      {"one block", Storer::kBlock, 1},          {"one TMA", Storer::kBulk, 1},
      {"a warp of each SM", Storer::kWarp, all}, {"a block of each SM", Storer::kBlock, all},
      {"a TMA of each SM", Storer::kBulk, all}};
  for (const StoreShape& shape : storers) {
    Json row;
    const Result result = store_row(shape, kChunkBytes, false, options, row);
    take(result, std::move(row));
    for (const std::uint32_t chunk_bytes : {64u, kChunkBytes}) {
      if (shape.blocks != 1) continue;
      Json alone;
      const Result done = store_row(shape, chunk_bytes, true, options, alone);
      take(done, std::move(alone));
    }
  }
  // A WQE, by itself, in the queue's two places: what the scope of its release costs.
  for (const Placement scope : {Placement::kGpu, Placement::kHost}) {
    Json row;
    const Result result =
        store_row({"one thread", Storer::kThread, 1, machine::Place::kGpu, scope}, 64, true, options, row);
    take(result, std::move(row));
  }
  Json row;
  const Result result = ask_row(options, row);
  take(result, std::move(row));
  if (options.json) {
    const Json out{{"machine", machine::name()}, {"is_gpu", machine::is_gpu()}, {"rows", std::move(rows)}};
    fmt::print("{}\n", out.dump(1));
  }
  if (failure.empty()) return 0;
  fmt::print(stderr, "gdx_posting_bench: {}\n", failure);
  return 1;
}

}  // namespace
}  // namespace gdx::posting

int main(int argc, char** argv) {
  using gdx::command_line::whole;
  using gdx::posting::kMaxBlocks;
  gdx::posting::Options options;
  gdx::command_line::App app{"Posting into queues of memory, and stores to pinned host memory"};
  app.add_option("--puts", options.puts, "puts of each poster, rounded down to a multiple of 32")
      .check(whole(32, kMaxBlocks));
  app.add_option("--chunks", options.chunks, "chunks of 4 KiB that each block stores").check(whole(1, 4096));
  app.add_option("--rounds", options.rounds, "questions of a kernel to a thread of the host")
      .check(whole(1, 1'000'000));
  app.add_flag("--break-queue", options.break_queue, "damage one WQE before the check: it must be found");
  app.add_flag("--break-blueflame", options.break_blueflame,
               "damage a WQE in a BlueFlame register: it must be found");
  app.add_flag("--json", options.json, "one JSON document instead of lines");
  if (const auto status = app.parse("gdx_posting_bench", argc, argv)) return *status;
  if (const std::string reason = gdx::machine::unavailable(); !reason.empty()) {
    fmt::print(stderr, "gdx_posting_bench: SKIPPED: {}\n", reason);
    return gdx::posting::kExitSkipped;
  }
  return gdx::posting::run(options);
}
