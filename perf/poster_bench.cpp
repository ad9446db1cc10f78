// The poster beside the same writes of one thread, in turns: gdx_poster_bench PROVIDER [ROUNDS]. Two
// processes, in each of which one thread does everything: the poster is a step of the kernel's waits. Each
// has a processor of its own where there are two. Prints the median of each side, and of the rounds' ratios.
//
//   latency     a put of 64 B and a signal each way, beside two writes by fi_writemsg each way, which either
//               complete at delivery, or as soon as their source is free
//   bandwidth   puts of 1 MiB and a flush, beside as many writes by fi_writemsg
//   messages    puts of 64 B with a signal each and a flush, beside two writes each: time, and the sender's
//               processor time
//   batch       puts of 64 B that tell that more follow, and a flush, beside as many writes
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/or_exit.h"
#include "device/exec/exec.h"
#include "device/impl/command_ring.h"
#include "host/poster/libfabric_port.h"
#include "host/poster/poster.h"
#include "perf/two_processes.h"

namespace gdx {
namespace {

using program::or_exit;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kHeapBytes = 8 * kMiB;
constexpr std::uint64_t kTarget = 4 * kMiB;
constexpr std::uint64_t kPayloadBytes = 64;
constexpr std::uint64_t kTurns = 100;     // round trips of a sample
constexpr std::uint64_t kPutsOfMiB = 32;  // of a sample
constexpr std::uint64_t kMessages = 500;  // of a sample
constexpr std::uint64_t kTimeoutNs = 60'000'000'000;
constexpr std::uint32_t kInFlight = 64;
constexpr std::uint32_t kFruitlessPolls = 100;

struct Cost {
  std::uint64_t ns;
  std::uint64_t cpu_ns;  // of this process
};

std::uint64_t cpu_ns() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

class Rank {
 public:
  Rank(const std::string& provider, std::uint32_t rank, const perf::Peer& other)
      : heap_(kHeapBytes), rank_(rank), peer_(1 - rank), other_(other) {
    const LibfabricOptions options{.provider = provider, .address = {}, .insecure = false};
    ExecutorOptions shape;
    shape.rank = rank;
    shape.ranks = 2;
    auto executor = or_exit(Executor::create(or_exit(open_libfabric_port(options)), shape));
    (void)or_exit(executor->add_window(heap_.data(), kHeapBytes));
    const agent::Card card = executor->card();
    or_exit(executor->connect(peer_, other.exchange(card)));
    PosterOptions poster;
    poster.thread = false;
    poster.timeout_ns = kTimeoutNs;
    poster_ = or_exit(Poster::start(std::move(executor), poster));
    raw_ = or_exit(open_libfabric_port(options));
    region_ = or_exit(raw_->register_memory(heap_.data(), kHeapBytes, true));
    std::array<std::byte, 128> address{};
    std::ranges::copy(raw_->address(), address.begin());
    const auto theirs = other.exchange(address);
    or_exit(raw_->connect(peer_, std::span(theirs).first(raw_->address().size())));
    raw_target_ = other.exchange(PortTarget{region_.base, region_.key});
  }

  Cost poster_round_trips() {
    return timed([&] {
      in_kernel([&](const CommandRingHandle& ring) {
        for (std::uint64_t turn = 0; turn < kTurns; ++turn) {
          if (rank_ == 1 && !await_word(++expected_)) return Status::kTimeout;
          Command command = put(kPayloadBytes, 0);
          command.flags = kCommandSignalSet;
          command.signal_offset = kTarget + kMiB;
          command.value = ++sent_;
          std::uint64_t index = 0;
          if (const Status status = device::impl::post_command(ring, command, index); status != Status::kOk)
            return status;
          if (rank_ == 0 && !await_word(++expected_)) return Status::kTimeout;
        }
        return device::impl::flush_commands(ring, peer_);
      });
    });
  }

  Cost raw_round_trips(std::uint32_t flags) {
    return timed([&] {
      for (std::uint64_t turn = 0; turn < kTurns; ++turn) {
        if (rank_ == 1) await_raw(++expected_);
        word(0) = ++sent_;
        write_raw(kPayloadBytes * 2, kTarget, kPayloadBytes, flags);
        write_raw(0, kTarget + kMiB, sizeof(std::uint64_t), flags);
        // The word is the source of the write, so it must have left before it changes.
        if (rank_ == 0) await_raw(++expected_);
        drain_raw();
      }
    });
  }

  // Gives `count` commands and a flush.
  Cost poster_puts(std::uint64_t count, std::uint64_t bytes, std::uint8_t flags) {
    return timed([&] {
      if (rank_ == 1) return;
      in_kernel([&](const CommandRingHandle& ring) {
        for (std::uint64_t i = 0; i < count; ++i) {
          std::uint64_t index = 0;
          Command command = put(bytes, i % 2 * kMiB);
          command.flags = i + 1 < count ? flags : flags & ~kCommandMore;
          command.signal_offset = kTarget + kMiB + kPayloadBytes;
          command.value = 1;
          if (const Status status = device::impl::post_command(ring, command, index); status != Status::kOk)
            return status;
        }
        return device::impl::flush_commands(ring, peer_);
      });
    });
  }
  // Makes as many writes, each with one of a word behind it if `words`.
  Cost raw_puts(std::uint64_t count, std::uint64_t bytes, bool words) {
    return timed([&] {
      if (rank_ == 1) return;
      for (std::uint64_t i = 0; i < count; ++i) {
        write_raw(i % 2 * kMiB, kTarget + i % 2 * kMiB, bytes, 0);
        if (words) write_raw(0, kTarget + kMiB + kPayloadBytes, sizeof(std::uint64_t), 0);
      }
      drain_raw();
    });
  }

 private:
  template <typename Body>
  Cost timed(Body body) {
    other_.meet();
    const Cost began{monotonic_ns(), cpu_ns()};
    body();
    const Cost took{monotonic_ns() - began.ns, cpu_ns() - began.cpu_ns};
    other_.send('.');
    while (!other_.has_message()) {  // because the other rank's last operations need this one's agent
      poster_->progress();
      poll_raw();
    }
    (void)other_.receive<char>();
    return took;
  }
  template <typename Body>
  void in_kernel(Body body) {
    Status status = Status::kOk;
    exec::LaunchConfig config;
    config.progress = progress;
    const Status launched = exec::launch(
        config, [&](const CommandRingHandle& ring) { status = body(ring); }, poster_->ring(0));
    if (launched == Status::kOk && status == Status::kOk) return;
    fmt::print(stderr, "rank {}: {}: {}\n", rank_, status_name(status), poster_->describe_fault(0));
    std::exit(1);
  }
  [[nodiscard]] Command put(std::uint64_t bytes, std::uint64_t from) const {
    Command command{};
    command.operation = CommandOperation::kPut;
    command.rank = peer_;
    command.bytes = bytes;
    command.local_offset = from;
    command.remote_offset = kTarget + from;
    return command;
  }
  std::uint64_t& word(std::uint64_t offset) {
    return *reinterpret_cast<std::uint64_t*>(heap_.data() + offset);
  }
  bool arrived(std::uint64_t value) {
    return std::atomic_ref(word(kTarget + kMiB)).load(std::memory_order_acquire) >= value;
  }
  bool await_word(std::uint64_t value) {
    const std::uint64_t began = monotonic_ns();
    while (!arrived(value)) {
      exec::relax();
      if (monotonic_ns() - began > kTimeoutNs) return false;
    }
    return true;
  }
  void await_raw(std::uint64_t value) {
    while (!arrived(value)) poll_raw();
  }
  void poll_raw() {
    events_.clear();
    or_exit(raw_->poll(events_));
    // Gives the processor up after some 30 us in vain, as kernels of the CPU layer do.
    fruitless_ = events_.empty() ? fruitless_ + 1 : 0;
    if (fruitless_ > kFruitlessPolls) std::this_thread::yield();
    in_flight_ -= static_cast<std::uint32_t>(events_.size());
  }
  void drain_raw() {
    while (in_flight_ != 0) poll_raw();
  }
  void write_raw(std::uint64_t from, std::uint64_t to, std::uint64_t bytes, std::uint32_t flags) {
    PortContext& context = contexts_[next_context_++ % kInFlight];
    while (in_flight_ == kInFlight / 2) poll_raw();
    const PortTarget target{raw_target_.address + to, raw_target_.key};
    const PortSource source{heap_.data() + from, region_.local};
    while (or_exit(raw_->write(peer_, source, target, bytes, flags, 0, &context)) == Posting::kAgain)
      poll_raw();
    ++in_flight_;
  }

  std::vector<std::byte> heap_;
  std::uint32_t rank_;
  std::uint32_t peer_;
  const perf::Peer& other_;
  std::array<PortContext, kInFlight> contexts_{};
  std::uint32_t next_context_ = 0;
  std::uint32_t in_flight_ = 0;
  std::uint32_t fruitless_ = 0;
  std::uint64_t sent_ = 0;
  std::uint64_t expected_ = 0;
  std::vector<PortEvent> events_;
  PortRegion region_;
  PortTarget raw_target_{};
  std::unique_ptr<Poster> poster_;
  std::unique_ptr<Port> raw_;
};

void keep_to_processor(std::uint32_t rank) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < 2) return;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed) == 0 || rank-- != 0) continue;
    CPU_ZERO(&allowed);
    CPU_SET(cpu, &allowed);
    (void)sched_setaffinity(0, sizeof allowed, &allowed);
    return;
  }
}

// Times of both sides, round by round, in one unit.
struct Figure {
  const char* what;
  const char* unit;
  double scale;  // a time in ns by it, or it by the time if `rate`, is in `unit`
  bool rate;
  std::vector<double> poster{};
  std::vector<double> raw{};
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

void show(const Figure& figure) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < figure.raw.size(); ++i)
    ratios.push_back(figure.rate ? figure.raw[i] / figure.poster[i] : figure.poster[i] / figure.raw[i]);
  const auto value = [&](double ns) { return figure.rate ? figure.scale / ns : ns / figure.scale; };
  std::ranges::sort(ratios);
  fmt::print("{}: poster {:.2f} {}, one thread {:.2f} {}, ratio {:.2f} (rounds {:.2f} to {:.2f})\n",
             figure.what, value(median(figure.poster)), figure.unit, value(median(figure.raw)), figure.unit,
             median(ratios), ratios.front(), ratios.back());
}

void measure(const std::string& provider, int rounds, std::uint32_t rank, const perf::Peer& other) {
  constexpr double kUs = 1e3;
  constexpr double kMiBs = kPutsOfMiB * static_cast<double>(kMiB);
  constexpr std::uint8_t kTell = kCommandSignalAdd | kCommandMore;
  keep_to_processor(rank);
  Rank self(provider, rank, other);
  std::vector<Figure> figures{
      {"put+signal round trip", "us", kUs * kTurns, false},
      {"put+signal round trip, writes complete when their source is free", "us", kUs * kTurns, false},
      {"puts of 1 MiB", "GB/s", kMiBs, true},
      {"puts of 64 B with a signal", "us", kUs * kMessages, false},
      {"processor time of a put of 64 B with a signal", "us", kUs * kMessages, false},
      {"puts of 64 B in a batch", "us", kUs * kMessages, false},
  };
  for (int round = -1; round < rounds; ++round) {  // the first one warms up
    const Cost trips = self.poster_round_trips();
    const Cost raw_trips = self.raw_round_trips(0);
    const Cost early_trips = self.raw_round_trips(kPortSourceFree);
    const Cost puts = self.poster_puts(kPutsOfMiB, kMiB, 0);
    const Cost raw_puts = self.raw_puts(kPutsOfMiB, kMiB, false);
    const Cost tells = self.poster_puts(kMessages, kPayloadBytes, kTell);
    const Cost raw_tells = self.raw_puts(kMessages, kPayloadBytes, true);
    const Cost batch = self.poster_puts(kMessages, kPayloadBytes, kCommandMore);
    const Cost raw_batch = self.raw_puts(kMessages, kPayloadBytes, false);
    if (round < 0) continue;
    const std::array poster{trips.ns, trips.ns, puts.ns, tells.ns, tells.cpu_ns, batch.ns};
    const std::array raw{raw_trips.ns, early_trips.ns,   raw_puts.ns,
                         raw_tells.ns, raw_tells.cpu_ns, raw_batch.ns};
    for (std::size_t i = 0; i < figures.size(); ++i) {
      figures[i].poster.push_back(static_cast<double>(poster[i]));
      figures[i].raw.push_back(static_cast<double>(raw[i]));
    }
  }
  if (rank == 0) std::ranges::for_each(figures, show);
}

int run(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    fmt::print(stderr, "usage: gdx_poster_bench PROVIDER [ROUNDS]\n");
    return 2;
  }
  const int rounds = argc == 3 ? std::atoi(argv[2]) : 10;
  perf::in_two_processes([&](const perf::Peer& other) { measure(argv[1], rounds, 0, other); },
                         [&](const perf::Peer& other) { measure(argv[1], rounds, 1, other); });
  return 0;
}

}  // namespace
}  // namespace gdx

int main(int argc, char** argv) {
  try {
    return gdx::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gdx_poster_bench: %s\n", error.what());
    return 1;
  }
}
