// gdx_nccl_bench CASE --plugin PATH: what the plugin for NCCL does between two processes of this machine,
// called as NCCL's net transport calls it. Prints "NAME VALUE" lines.
#include <dlfcn.h>
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/command_line.h"
#include "host/plugins/nccl/abi.h"
#include "perf/two_processes.h"

namespace gdx::perf {
namespace {

using nccl::LogLevel;
using nccl::NetV12;
using nccl::Outcome;

constexpr double kNsPerSecond = 1e9;
constexpr double kNsPerUs = 1e3;
constexpr double kNsPerMs = 1e6;
constexpr std::size_t kNcclSteps = 8;  // messages that a channel of NCCL has under way
constexpr std::size_t kAhead = 4;      // receives of a ping-pong

void print(const char* name, double value) { std::printf("%s %.6g\n", name, value); }

void logger(LogLevel level, unsigned long /*flags*/, const char* /*file*/, int /*line*/, const char* format,
            ...) {
  if (level != LogLevel::kWarn) return;
  va_list arguments;
  va_start(arguments, format);
  (void)std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  std::fputc('\n', stderr);
}

void succeed(Outcome outcome, const char* what) {
  if (outcome != Outcome::kSuccess) give_up(fmt::format("{} returned {}", what, static_cast<int>(outcome)));
}

// One process: a connection each way, and a buffer that is registered for both.
class Rank {
 public:
  Rank(const std::string& plugin, const Peer& other, std::size_t bytes, std::size_t places)
      : other_(other), bytes_(bytes), places_(places), buffer_(places * bytes) {
    void* const library = dlopen(plugin.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) give_up(dlerror());
    net_ = static_cast<const NetV12*>(dlsym(library, "ncclNetPlugin_v12"));
    require(net_ != nullptr, "find ncclNetPlugin_v12");
    int config = -1;
    succeed(net_->init(&context_, 1, &config, logger, nullptr), "init");
  }
  ~Rank() { (void)net_->finalize(context_); }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  void open() {
    std::array<std::byte, nccl::kHandleBytes> handle{};
    succeed(net_->listen(context_, 0, handle.data(), &listener_), "listen");
    handle = other_.exchange(handle);
    while (sender_ == nullptr || receiver_ == nullptr) {
      if (sender_ == nullptr)
        succeed(net_->connect(context_, 0, handle.data(), &sender_, nullptr), "connect");
      if (receiver_ == nullptr) succeed(net_->accept(listener_, &receiver_, nullptr), "accept");
    }
    succeed(net_->register_memory(sender_, buffer_.data(), buffer_.size(), nccl::kHostMemory, &from_),
            "regMr");
    succeed(net_->register_memory(receiver_, buffer_.data(), buffer_.size(), nccl::kHostMemory, &to_),
            "regMr");
  }
  void close() {
    other_.meet();
    succeed(net_->close_send(sender_), "closeSend");
    succeed(net_->close_receive(receiver_), "closeRecv");
    succeed(net_->close_listen(listener_), "closeListen");
    sender_ = receiver_ = nullptr;
  }

  // Keep kNcclSteps messages under way, until that many are complete.
  void send(std::uint64_t messages) {
    stream(messages, [&](std::byte* at, void** request) {
      succeed(net_->send(sender_, at, bytes_, 0, from_, nullptr, request), "isend");
    });
  }
  void receive(std::uint64_t messages) {
    stream(messages, [&](std::byte* at, void** request) { post_receive(at, request); });
  }

  // Returns half the time of each round trip, in ns. One side begins. Receives are posted ahead, as NCCL's
  // are.
  std::vector<double> ping_pong(int iterations, bool begins) {
    std::vector<double> times;
    std::array<void*, kAhead> receiving{};
    for (void*& request : receiving) post_receive(buffer_.data(), &request);
    other_.meet();
    for (int i = 0; i < iterations; ++i) {
      void*& due = receiving[static_cast<std::size_t>(i) % kAhead];
      const std::uint64_t began_ns = monotonic_ns();
      if (!begins) await(due);
      void* sending = nullptr;
      succeed(net_->send(sender_, buffer_.data(), bytes_, 0, from_, nullptr, &sending), "isend");
      if (begins) await(due);
      times.push_back(static_cast<double>(monotonic_ns() - began_ns) / 2);
      await(sending);
      if (i + static_cast<int>(kAhead) < iterations) post_receive(buffer_.data(), &due);
    }
    return times;
  }

 private:
  template <typename Post>
  void stream(std::uint64_t messages, Post post) {
    std::array<void*, kNcclSteps> requests{};
    std::uint64_t posted = 0;
    std::uint64_t complete = 0;
    while (complete < messages) {
      bool idle = true;
      if (posted < messages && posted - complete < kNcclSteps) {
        post(buffer_.data() + posted % places_ * bytes_, &requests[posted % kNcclSteps]);
        if (requests[posted % kNcclSteps] != nullptr) ++posted, idle = false;
      }
      if (complete < posted && is_done(requests[complete % kNcclSteps])) ++complete, idle = false;
      if (idle) sched_yield();  // as NCCL's progress does
    }
  }
  void post_receive(std::byte* at, void** request) {
    void* data = at;
    std::size_t bytes = bytes_;
    int tag = 0;
    succeed(net_->receive(receiver_, 1, &data, &bytes, &tag, &to_, nullptr, request), "irecv");
  }
  bool is_done(void* request) {
    int done = 0;
    succeed(net_->test(request, &done, nullptr), "test");
    return done != 0;
  }
  void await(void* request) {
    while (!is_done(request)) sched_yield();
  }

  const Peer& other_;
  std::size_t bytes_;
  std::size_t places_;  // of messages
  std::vector<std::byte> buffer_;
  const NetV12* net_ = nullptr;
  void* context_ = nullptr;
  void* listener_ = nullptr;
  void* sender_ = nullptr;
  void* receiver_ = nullptr;
  void* from_ = nullptr;
  void* to_ = nullptr;
};

struct Options {
  std::string plugin;
  std::size_t bytes = 8;
  std::size_t places = 1;
  int count = 1000;
};

// Runs measure(rank, other, is_first) in both processes.
template <typename Measure>
void in_both(const Options& options, Measure measure) {
  const auto half = [&](const Peer& other, bool is_first) {
    Rank rank(options.plugin, other, options.bytes, options.places);
    measure(rank, other, is_first);
  };
  in_two_processes([&](const Peer& other) { half(other, true); },
                   [&](const Peer& other) { half(other, false); });
}

void measure_bandwidth(const Options& options) {
  const auto messages = static_cast<std::uint64_t>(options.count);
  in_both(options, [&](Rank& rank, const Peer& other, bool sends) {
    rank.open();
    const auto stream = [&](std::uint64_t some) {
      other.meet();
      const std::uint64_t began_ns = monotonic_ns();
      sends ? rank.send(some) : rank.receive(some);
      other.meet();
      return static_cast<double>(monotonic_ns() - began_ns) / kNsPerSecond;
    };
    (void)stream(kNcclSteps + messages / 10);
    const double seconds = stream(messages);
    if (sends) print("bytes_per_s", static_cast<double>(messages * options.bytes) / seconds);
    rank.close();
  });
}

void measure_latency(const Options& options) {
  in_both(options, [&](Rank& rank, const Peer& /*other*/, bool begins) {
    rank.open();
    (void)rank.ping_pong(static_cast<int>(kAhead) + options.count / 10, begins);
    auto times = rank.ping_pong(options.count, begins);
    std::ranges::sort(times);
    if (begins) print("median_us", times[times.size() / 2] / kNsPerUs);
    if (begins) print("p99_us", times[times.size() * 99 / 100] / kNsPerUs);
    rank.close();
  });
}

// Time of opening connections one after another, each with one each way and its registrations.
void measure_connections(const Options& options) {
  in_both(options, [&](Rank& rank, const Peer& other, bool is_first) {
    double open_ns = 0;
    for (int i = 0; i <= options.count; ++i) {  // the first one warms up
      other.meet();
      const std::uint64_t began_ns = monotonic_ns();
      rank.open();
      if (i != 0) open_ns += static_cast<double>(monotonic_ns() - began_ns);
      rank.close();
    }
    if (is_first) print("ms_each", open_ns / options.count / kNsPerMs);
  });
}

int run(int argc, char** argv) {
  command_line::App app("Measures the plugin for NCCL between two processes of this machine");
  app.require_command();
  Options options;
  const auto add = [&](const char* name, const char* what, void (*measure)(const Options&),
                       const char* count) {
    const command_line::Command command = app.add_command(name, what);
    command.when_chosen([&options, measure] { measure(options); });
    command.add_option("--plugin", options.plugin, "The library").check(command_line::not_empty("a path"));
    command.add_option("--bytes", options.bytes, "Of a message (8)").check(command_line::whole(1, 1 << 30));
    command.add_option("--places", options.places, "Of messages in memory, taken in turn (1)")
        .check(command_line::whole(1, kNcclSteps));
    command.add_option("--count", options.count, count).check(command_line::whole(kAhead, 100'000'000));
  };
  add("bandwidth", "8 messages under way, from one to the other", measure_bandwidth, "Messages (1000)");
  add("latency", "Ping-pong", measure_latency, "Round trips (1000)");
  add("connections", "Opening one each way, one after another", measure_connections, "Of these (1000)");
  return app.parse("gdx_nccl_bench", argc, argv).value_or(0);
}

}  // namespace
}  // namespace gdx::perf

int main(int argc, char** argv) {
  try {
    return gdx::perf::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gdx_nccl_bench: %s\n", error.what());
    return 1;
  }
}
