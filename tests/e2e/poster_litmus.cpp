// Ordering over a provider of libfabric, between two processes: poster_litmus PROVIDER ORDER CASE ROUNDS
// SEED. Kernels give commands to the posters of both ranks; what a rank sees too early is printed, and is the
// program's failure. ORDER: auto, message, sequence or delivery.
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/or_exit.h"
#include "device/exec/exec.h"
#include "device/impl/command_ring.h"
#include "host/poster/libfabric_port.h"
#include "host/poster/poster.h"

namespace gdx {
namespace {

constexpr std::uint64_t kHeapBytes = std::uint64_t{4} << 20;
constexpr std::uint64_t kSource = std::uint64_t{1} << 20;  // offsets in the heap; words come first
constexpr std::uint64_t kTarget = std::uint64_t{2} << 20;
constexpr std::uint64_t kHangNs = 100'000'000'000;
constexpr int kSkipped = 77;

using program::or_exit;

struct Arguments {
  std::string provider;
  std::string order;
  std::string test;
  std::uint64_t rounds = 0;
  std::uint64_t seed = 0;
};

[[noreturn]] void fail_test(const std::string& why) {
  fmt::print(stderr, "poster_litmus: {}\n", why);
  std::exit(1);
}

class Rank {
 public:
  Rank(Arguments given, std::uint32_t own_rank, int other)
      : arguments(std::move(given)),
        rank(own_rank),
        peer(1 - own_rank),
        random(arguments.seed + rank),
        other_(other) {
    void* const pages = mmap(nullptr, kHeapBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    heap = static_cast<std::byte*>(pages);
    auto port = open_libfabric_port({.provider = arguments.provider, .address = {}, .insecure = false});
    if (!port && port.error().status == Status::kUnsupported) {
      fmt::print(stderr, "SKIPPED: {}\n", port.error().message);
      std::exit(kSkipped);
    }
    if (!port) fail_test(port.error().message);
    ExecutorOptions options;
    options.rank = rank;
    options.ranks = 2;
    options.peer_timeout_ns = kHangNs;
    const std::map<std::string, SignalOrder> orders{{"message", SignalOrder::kMessage},
                                                    {"sequence", SignalOrder::kSequence},
                                                    {"delivery", SignalOrder::kDelivery}};
    if (const auto found = orders.find(arguments.order); found != orders.end()) options.order = found->second;
    auto executor = or_exit(Executor::create(std::move(*port), options));
    (void)or_exit(executor->add_window(heap, kHeapBytes));
    const agent::Card own = executor->card();
    agent::Card theirs{};
    exchange(&own, &theirs, sizeof own);
    or_exit(executor->connect(peer, theirs));
    or_exit(executor->connect(rank, own));
    PosterOptions poster_options;
    poster_options.timeout_ns = 2 * kHangNs;
    poster_options.log_entries = 6;
    poster = or_exit(Poster::start(std::move(executor), poster_options));
    watch_other();
  }

  // Ends this process when the other one ends first, because kernels may wait long for a rank that is gone.
  void watch_other() const {
    std::thread([this] {
      pollfd socket{other_, POLLRDHUP, 0};
      while (poll(&socket, 1, -1) < 0) {
      }
      if (!finished) _exit(1);
    }).detach();
  }

  // Tells the other process, and hears from it.
  void exchange(const void* own, void* theirs, std::size_t bytes) const {
    if (send(other_, own, bytes, MSG_NOSIGNAL) != static_cast<ssize_t>(bytes))
      fail_test("the other rank has ended");
    for (std::size_t at = 0; at < bytes;) {
      const ssize_t got = read(other_, static_cast<char*>(theirs) + at, bytes - at);
      if (got <= 0) fail_test("the other rank has ended");
      at += static_cast<std::size_t>(got);
    }
  }
  void meet() const {
    char here = 1;
    char there = 0;
    exchange(&here, &there, 1);
  }

  template <typename Body>
  void in_kernel(Body body, unsigned threads = 1) const {
    Status result = Status::kOk;
    const auto kernel = [&](const CommandRingHandle& ring) {
      const Status status = body(ring);
      if (status != Status::kOk) result = status;
    };
    exec::LaunchConfig config;
    config.block = {threads};
    const Status launched = exec::launch(config, kernel, poster->ring(0));
    if (launched != Status::kOk || result != Status::kOk)
      fail_test(fmt::format("rank {}: {}: {}", rank, status_name(result), poster->describe_fault(0)));
  }

  [[nodiscard]] std::uint64_t* word(std::uint64_t index) const {
    return reinterpret_cast<std::uint64_t*>(heap) + index;
  }
  [[nodiscard]] std::uint64_t load(std::uint64_t index) const {
    return std::atomic_ref(*word(index)).load(std::memory_order_acquire);
  }
  void wait_for(std::uint64_t index, std::uint64_t least) const {
    for (const std::uint64_t began = monotonic_ns(); load(index) < least; std::this_thread::yield()) {
      if (monotonic_ns() - began > kHangNs)
        fail_test(fmt::format("rank {}: word {} stayed at {} below {}", rank, index, load(index), least));
    }
  }

  Arguments arguments;
  std::uint32_t rank;
  std::uint32_t peer;
  std::mt19937_64 random;
  std::byte* heap = nullptr;
  std::unique_ptr<Poster> poster;
  std::atomic<bool> finished{false};

 private:
  int other_;
};

using device::impl::await_command;
using device::impl::flush_commands;
using device::impl::post_command;

Command put(std::uint32_t rank, std::uint64_t from, std::uint64_t to, std::uint64_t bytes) {
  Command command{};
  command.operation = CommandOperation::kPut;
  command.rank = rank;
  command.local_offset = from;
  command.remote_offset = to;
  command.bytes = bytes;
  return command;
}

Command with_signal(Command command, std::uint64_t word, std::uint64_t value, std::uint8_t flag) {
  command.flags = flag;
  command.signal_offset = word * sizeof(std::uint64_t);
  command.value = value;
  return command;
}

Command word_command(CommandOperation operation, std::uint32_t rank, std::uint64_t remote_word,
                     std::uint64_t local_word, std::uint64_t value) {
  Command command{};
  command.operation = operation;
  command.rank = rank;
  command.remote_offset = remote_word * sizeof(std::uint64_t);
  command.local_offset = local_word * sizeof(std::uint64_t);
  command.value = value;
  return command;
}

Status post_all(const CommandRingHandle& ring, std::initializer_list<Command> commands) {
  for (const Command& command : commands) {
    std::uint64_t index = 0;
    const Status status = post_command(ring, command, index);
    if (status != Status::kOk) return status;
  }
  return Status::kOk;
}

std::uint64_t pattern(std::uint64_t round, std::uint64_t at) {
  return (round << 24 | at) * 0x9e3779b97f4a7c15u;
}

// Some puts, a signal, and puts of the next round behind it, while the first may still be on their way.
void payload_and_signal(const Rank& self) {
  constexpr std::uint64_t kPuts = 6;
  constexpr std::uint64_t kPutWords = 1024;
  constexpr std::uint64_t kWord = sizeof(std::uint64_t);
  constexpr std::uint64_t kAreaBytes = kPuts * kPutWords * kWord;
  std::mt19937_64 sizes(self.arguments.seed);  // the same in both ranks
  const std::uint64_t rounds = self.arguments.rounds;
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    const std::uint64_t area = round % 4 * kAreaBytes;
    std::array<std::uint64_t, kPuts> words{};
    for (std::uint64_t& count : words) count = 1 + sizes() % (round % 8 == 0 ? kPutWords : 8);
    if (self.rank == 0) {
      // Keeps areas that are still compared from being overwritten.
      if (round > 3) self.wait_for(1, round - 3);
      for (std::uint64_t i = 0; i < kPuts; ++i) {
        for (std::uint64_t at = 0; at < words[i]; ++at)
          *self.word((kSource + area) / kWord + i * kPutWords + at) = pattern(round, i * kPutWords + at);
      }
      self.in_kernel([&](const CommandRingHandle& ring) {
        for (std::uint64_t i = 0; i < kPuts; ++i) {
          const std::uint64_t at = area + i * kPutWords * kWord;
          Command command = put(self.peer, kSource + at, kTarget + at, words[i] * kWord);
          if (i + 1 == kPuts) command = with_signal(command, 0, round, kCommandSignalSet);
          if (const Status status = post_all(ring, {command}); status != Status::kOk) return status;
        }
        return Status::kOk;
      });
    } else {
      self.wait_for(0, round);
      for (std::uint64_t i = 0; i < kPuts; ++i) {
        for (std::uint64_t at = 0; at < words[i]; ++at) {
          if (*self.word((kTarget + area) / kWord + i * kPutWords + at) != pattern(round, i * kPutWords + at))
            fail_test(fmt::format("signal {} came before word {} of its put {}", round, at, i));
        }
      }
      self.in_kernel([&](const CommandRingHandle& ring) {
        return post_all(ring, {with_signal(put(self.peer, 0, 0, 0), 1, round, kCommandSignalSet)});
      });
    }
  }
}

// Two words that are set in turn: the first is never behind the second, and neither goes back.
void signal_and_signal(const Rank& self) {
  const std::uint64_t rounds = self.arguments.rounds;
  if (self.rank == 0) {
    self.in_kernel([&](const CommandRingHandle& ring) {
      for (std::uint64_t round = 1; round <= rounds; ++round) {
        const Status status =
            post_all(ring, {with_signal(put(self.peer, 0, 0, 0), 0, round, kCommandSignalSet),
                            with_signal(put(self.peer, 0, 0, 0), 1, round, kCommandSignalSet)});
        if (status != Status::kOk) return status;
      }
      return flush_commands(ring, self.peer);
    });
    return;
  }
  std::uint64_t seen = 0;
  while (seen < rounds) {
    const std::uint64_t second = self.load(1);
    const std::uint64_t first = self.load(0);
    if (first < second) fail_test(fmt::format("signal {} was there before signal {}", second, first));
    if (second < seen) fail_test(fmt::format("signal {} came after signal {}", second, seen));
    seen = second;
    std::this_thread::yield();
  }
}

// A get sees puts and signals of the same ring before it, without a flush between.
void get_after_put(Rank& self) {
  constexpr std::uint64_t kWord = sizeof(std::uint64_t);
  if (self.rank != 0) return;
  for (std::uint64_t round = 1; round <= self.arguments.rounds; ++round) {
    const std::uint64_t words = 1 + self.random() % (round % 16 == 0 ? 8192 : 64);
    for (std::uint64_t at = 0; at < words; ++at) *self.word(kSource / kWord + at) = pattern(round, at);
    self.in_kernel([&](const CommandRingHandle& ring) {
      Command get = put(self.peer, kTarget, kTarget, words * kWord);
      get.operation = CommandOperation::kGet;
      Command get_word = put(self.peer, 2 * kWord, 0, kWord);
      get_word.operation = CommandOperation::kGet;
      const Status status =
          post_all(ring, {put(self.peer, kSource, kTarget, words * kWord), get,
                          with_signal(put(self.peer, 0, 0, 0), 0, round, kCommandSignalSet), get_word});
      return status == Status::kOk ? flush_commands(ring, self.peer) : status;
    });
    for (std::uint64_t at = 0; at < words; ++at) {
      if (*self.word(kTarget / kWord + at) != pattern(round, at))
        fail_test(fmt::format("round {}: a get did not see word {} of the put before it", round, at));
    }
    if (self.load(2) != round)
      fail_test(fmt::format("a get saw {} of the signal {} before it", self.load(2), round));
  }
}

// A rank that is told of a flush by another way finds the signals before it.
void flush_after_signal(const Rank& self) {
  for (std::uint64_t round = 1; round <= self.arguments.rounds; ++round) {
    if (self.rank == 0) {
      self.in_kernel([&](const CommandRingHandle& ring) {
        const Status status =
            post_all(ring, {with_signal(put(self.peer, 0, 0, 0), 0, round, kCommandSignalSet)});
        return status == Status::kOk ? flush_commands(ring, self.peer) : status;
      });
    }
    self.meet();
    if (self.rank == 1 && self.load(0) != round)
      fail_test(fmt::format("after a flush the word was {}, not {}", self.load(0), round));
    self.meet();
  }
}

// All change one word of rank 1, which does so itself: nothing is lost, and no old value comes twice.
void atomics(const Rank& self) {
  constexpr unsigned kThreads = 8;
  const std::uint64_t each = self.arguments.rounds / kThreads;
  std::vector<std::uint64_t> old(kThreads * each);
  self.in_kernel(
      [&](const CommandRingHandle& ring) {
        const std::uint32_t thread = exec::thread_rank<Scope::kBlock>();
        for (std::uint64_t round = 0; round < each; ++round) {
          const Command add = word_command(CommandOperation::kFetchAdd, 1, 0, 8 + thread, 1);
          std::uint64_t index = 0;
          Status status = post_command(ring, add, index);
          if (status == Status::kOk) status = await_command(ring, add, index);
          if (status == Status::kOk)
            status = post_all(ring, {with_signal(put(1, 0, 0, 0), 1, 1, kCommandSignalAdd)});
          if (status != Status::kOk) return status;
          old[thread * each + round] = *self.word(8 + thread);
        }
        return flush_commands(ring, 1);
      },
      kThreads);
  std::ranges::sort(old);
  if (std::ranges::adjacent_find(old) != old.end()) fail_test("two adds returned the same old value");
  self.meet();
  const std::uint64_t all = 2 * kThreads * each;
  if (self.rank == 1 && (self.load(0) != all || self.load(1) != all))
    fail_test(fmt::format("{} of {} adds and {} of {} signals that add arrived", self.load(0), all,
                          self.load(1), all));
  // One of both ranks wins each turn of a compare-and-swap.
  for (std::uint64_t turn = 0; turn < each; ++turn) {
    self.in_kernel([&](const CommandRingHandle& ring) {
      Command swap = word_command(CommandOperation::kCompareSwap, 1, 2, 8, 2 * turn + 1 + self.rank);
      swap.bytes = turn == 0 ? 0 : *self.word(9);
      std::uint64_t index = 0;
      const Status status = post_command(ring, swap, index);
      return status == Status::kOk ? await_command(ring, swap, index) : status;
    });
    const bool won = *self.word(8) == (turn == 0 ? 0 : *self.word(9));
    bool other = false;
    self.exchange(&won, &other, sizeof won);
    if (won == other)
      fail_test(fmt::format("turn {}: {} ranks won a compare-and-swap", turn, won ? "two" : "no"));
    *self.word(9) = 2 * turn + 1 + (won ? self.rank : self.peer);
  }
}

int run(const Arguments& arguments, std::uint32_t rank, int other) {
  static Rank& self = *new Rank(arguments, rank, other);  // for the watching thread, too
  self.meet();
  const std::map<std::string, std::function<void(Rank&)>> tests{{"payload_and_signal", payload_and_signal},
                                                                {"signal_and_signal", signal_and_signal},
                                                                {"get_after_put", get_after_put},
                                                                {"flush_after_signal", flush_after_signal},
                                                                {"atomics", atomics}};
  const auto found = tests.find(arguments.test);
  if (found == tests.end()) fail_test("no case " + arguments.test);
  found->second(self);
  self.finished = true;
  self.meet();
  self.poster.reset();
  return 0;
}

int both_ranks(const Arguments& arguments) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) fail_test("no socket pair");
  const pid_t child = fork();
  if (child == 0) {
    close(sockets[0]);
    return run(arguments, 1, sockets[1]);
  }
  close(sockets[1]);
  const int own = run(arguments, 0, sockets[0]);
  close(sockets[0]);  // ends what rank 1 waits for
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) fmt::print(stderr, "rank 1 was killed: {}\n", strsignal(WTERMSIG(status)));
  const int theirs = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
  return own != 0 ? own : theirs;
}

}  // namespace
}  // namespace gdx

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "usage: poster_litmus PROVIDER ORDER CASE ROUNDS SEED\n");
    return 2;
  }
  try {
    return gdx::both_ranks({argv[1], argv[2], argv[3], std::strtoull(argv[4], nullptr, 10),
                            std::strtoull(argv[5], nullptr, 10)});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "poster_litmus: %s\n", error.what());
    return 1;
  }
}
