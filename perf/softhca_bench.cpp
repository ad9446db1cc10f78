// gdx_softhca_bench: what the software HCA does between two processes of this machine, and beside it what
// UDP alone does. Prints "NAME VALUE" lines; run it as `gdx run -- gdx_softhca_bench CASE`.
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/command_line.h"
#include "perf/raw_udp.h"
#include "perf/rc_queue.h"
#include "perf/two_processes.h"

namespace gdx::perf {
namespace {

constexpr double kNsPerSecond = 1e9;
constexpr double kNsPerUs = 1e3;
constexpr int kSmallBatch = 64;                      // writes with one doorbell, while they are small
constexpr std::uint32_t kLargeMessageBytes = 65536;  // from here on each rings for itself
constexpr int kLargeInFlight = 8;

void print(const char* name, double value) { std::printf("%s %.6g\n", name, value); }

// CPU seconds that this process has used, in all its threads.
double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

std::uint64_t resident_bytes() {
  std::uint64_t total_pages = 0;
  std::uint64_t resident_pages = 0;
  std::ifstream("/proc/self/statm") >> total_pages >> resident_pages;
  return resident_pages * 4096;
}

// Keeps the queue full and stops with it empty. Returns the messages written.
std::uint64_t write_for(RcQueue& queue, std::uint32_t length_bytes, double seconds) {
  const bool large = length_bytes >= kLargeMessageBytes;
  const int batch = large ? 1 : kSmallBatch;
  const int in_flight_limit = large ? kLargeInFlight : RcQueue::kDepth / kSmallBatch;
  const auto duration_ns = static_cast<std::uint64_t>(seconds * kNsPerSecond);
  int in_flight = 0;
  std::uint64_t batches = 0;
  const std::uint64_t start_ns = monotonic_ns();
  std::uint64_t now_ns = start_ns;
  for (bool posting = true; posting || in_flight > 0; now_ns = monotonic_ns()) {
    posting = now_ns - start_ns < duration_ns;
    while (posting && in_flight < in_flight_limit) {
      queue.post_writes(length_bytes, batch);
      ++in_flight;
      ++batches;
    }
    in_flight -= queue.poll().sends;
  }
  const double elapsed_s = static_cast<double>(now_ns - start_ns) / kNsPerSecond;
  const double messages_per_s = static_cast<double>(batches) * batch / elapsed_s;
  print("messages_per_s", messages_per_s);
  print("bytes_per_s", messages_per_s * length_bytes);
  return batches * static_cast<std::uint64_t>(batch);
}

void measure_writes(std::uint32_t length_bytes, double seconds) {
  in_two_processes(
      [&](const Peer& peer) {
        Nic nic(length_bytes);
        RcQueue queue(nic);
        connect(queue, peer);
        const double before_s = cpu_seconds();
        static_cast<void>(write_for(queue, length_bytes, seconds));
        print("sender_cpu_s", cpu_seconds() - before_s);
        peer.send('.');
        print("receiver_cpu_s", peer.receive<double>());
      },
      [&](const Peer& peer) {
        Nic nic(length_bytes);
        RcQueue queue(nic);
        connect(queue, peer);
        const double before_s = cpu_seconds();
        static_cast<void>(peer.receive<char>());
        peer.send(cpu_seconds() - before_s);
      });
}

// Both ends in one process, whose HCAs one thread drives, so that it does all the work and never waits: what
// a message costs, whoever else uses the processors.
void measure_cost(std::uint32_t length_bytes, double seconds) {
  Nic sender(length_bytes, 0);
  Nic receiver(length_bytes, 1);
  RcQueue source(sender);
  RcQueue target(receiver);
  source.connect(target.address());
  target.connect(source.address());
  const double before_s = cpu_seconds();
  const std::uint64_t messages = write_for(source, length_bytes, seconds);
  const double ns_per_message = (cpu_seconds() - before_s) * kNsPerSecond / static_cast<double>(messages);
  print("cpu_ns_per_message", ns_per_message);
  print("cpu_ns_per_byte", ns_per_message / length_bytes);
}

// SEND and back again, both sides polling; half of each round trip.
void measure_latency(std::uint32_t length_bytes, int iterations) {
  constexpr int kReceives = 8;
  const auto bounce = [&](const Peer& peer, bool begins, std::vector<double>& one_way_us) {
    Nic nic(length_bytes);
    RcQueue queue(nic);
    for (int i = 0; i < kReceives; ++i) queue.post_receive(length_bytes);
    connect(queue, peer);
    // A send's completion may come after the answer to it: what is still awaited carries over.
    int unsent = 0;
    int unreceived = 0;
    const auto send = [&] {
      queue.post_send(length_bytes);
      ++unsent;
    };
    const auto receive = [&] {
      for (++unreceived; unreceived > 0 || unsent > kReceives;) {
        const RcQueue::Completed completed = queue.poll();
        unsent -= completed.sends;
        unreceived -= completed.receives;
      }
      queue.post_receive(length_bytes);
    };
    for (int i = 0; i < iterations; ++i) {
      const std::uint64_t start_ns = monotonic_ns();
      if (begins) send();
      receive();
      if (!begins) send();
      one_way_us.push_back(static_cast<double>(monotonic_ns() - start_ns) / 2 / kNsPerUs);
    }
    while (unsent > 0) unsent -= queue.poll().sends;
    peer.meet();
  };
  in_two_processes(
      [&](const Peer& peer) {
        std::vector<double> one_way_us;
        bounce(peer, true, one_way_us);
        std::sort(one_way_us.begin(), one_way_us.end());
        print("median_us", one_way_us[one_way_us.size() / 2]);
        print("p99_us", one_way_us[one_way_us.size() * 99 / 100]);
        double sum_us = 0;
        for (const double us : one_way_us) sum_us += us;
        print("mean_us", sum_us / static_cast<double>(one_way_us.size()));
      },
      [&](const Peer& peer) {
        std::vector<double> ignored;
        bounce(peer, false, ignored);
      });
}

// Every block of the ring once and again, with as many writes outstanding as it takes.
void fill(RcQueue& queue, int depth, std::uint32_t length_bytes) {
  constexpr int kRounds = 4;
  for (int round = 0; round < kRounds; ++round) {
    int awaited = 0;
    for (int left = depth; left > 0; left -= kSmallBatch, ++awaited) {
      queue.post_writes(length_bytes, std::min(left, kSmallBatch));
    }
    while (awaited > 0) awaited -= queue.poll().sends;
  }
}

// Measures the memory that a connected queue adds to a process after moving data, and the part of its rings.
void measure_memory(int queues, int depth) {
  constexpr std::uint32_t kBytes = 8;
  const auto connect_all = [&](const Peer& peer, bool writes) {
    Nic nic(kBytes);
    std::vector<std::unique_ptr<RcQueue>> all;
    RcQueue warm_up(nic, depth);
    connect(warm_up, peer);
    const std::uint64_t before_bytes = resident_bytes();
    for (int i = 0; i < queues; ++i) {
      all.push_back(std::make_unique<RcQueue>(nic, depth));
      connect(*all.back(), peer);
      if (writes) fill(*all.back(), depth, kBytes);
    }
    const double bytes_per_queue = static_cast<double>(resident_bytes() - before_bytes) / queues;
    if (writes) print("bytes_per_queue", bytes_per_queue);
    if (writes) print("bytes_beyond_rings", bytes_per_queue - static_cast<double>(warm_up.ring_bytes()));
    peer.meet();
  };
  in_two_processes([&](const Peer& peer) { connect_all(peer, true); },
                   [&](const Peer& peer) { connect_all(peer, false); });
}

// An HCA with a connected queue and nothing to do.
void measure_idle(double seconds) {
  const auto idle = [&](const Peer& peer, bool prints) {
    Nic nic(8);
    RcQueue queue(nic);
    connect(queue, peer);
    std::this_thread::sleep_for(std::chrono::seconds(1));  // lets the effects of connecting settle
    const double before_s = cpu_seconds();
    const std::uint64_t start_ns = monotonic_ns();
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    const double elapsed_s = static_cast<double>(monotonic_ns() - start_ns) / kNsPerSecond;
    if (prints) print("core_share", (cpu_seconds() - before_s) / elapsed_s);
    peer.meet();
  };
  in_two_processes([&](const Peer& peer) { idle(peer, true); }, [&](const Peer& peer) { idle(peer, false); });
}

int run(int argc, char** argv) {
  command_line::App app("Measures the software HCA between two processes of this machine");
  app.require_command();
  double seconds = 1;
  std::uint32_t length_bytes = 8;
  int iterations = 5000;
  int queues = 1000;
  int depth = 16;
  RawUdpOptions raw;
  const auto add = [&](const char* name, const char* what, auto measure) {
    const command_line::Command command = app.add_command(name, what);
    command.when_chosen(measure);
    return command;
  };
  const auto write = add("write", "Bandwidth of RC writes", [&] { measure_writes(length_bytes, seconds); });
  write.add_option("--bytes", length_bytes, "Of a message (8)").check(command_line::whole(1, 1 << 30));
  write.add_option("--seconds", seconds, "How long, in seconds (1)").check(command_line::real(0.01, 600));
  const auto cost = add("cost", "Processor time of RC writes", [&] { measure_cost(length_bytes, seconds); });
  cost.add_option("--bytes", length_bytes, "Of a message (8)").check(command_line::whole(1, 1 << 30));
  cost.add_option("--seconds", seconds, "How long, in seconds (1)").check(command_line::real(0.01, 600));
  const auto latency =
      add("latency", "Ping-pong of sends", [&] { measure_latency(length_bytes, iterations); });
  latency.add_option("--bytes", length_bytes, "Of a message (8)").check(command_line::whole(1, 1 << 30));
  latency.add_option("--iterations", iterations, "Round trips (5000)")
      .check(command_line::whole(1, 100'000'000));
  const auto memory = add("memory", "Of a connected queue", [&] { measure_memory(queues, depth); });
  memory.add_option("--queues", queues, "How many to connect (1000)").check(command_line::whole(1, 100'000));
  memory.add_option("--depth", depth, "Work requests that each holds, and has outstanding (16)")
      .check(command_line::whole(1, 8192));
  const auto idle = add("idle", "Processor time of an idle HCA", [&] { measure_idle(seconds); });
  idle.add_option("--seconds", seconds, "How long, in seconds (1)").check(command_line::real(0.01, 600));
  const auto udp = add("raw-udp", "UDP with GSO and GRO alone; needs no HCA", [&] {
    raw.seconds = seconds;
    const RawUdpRate rate = measure_raw_udp(raw);
    print("bytes_per_s", rate.bytes_per_s);
    print("lost_share", rate.lost_share);
    print("cpu_ns_per_byte", raw_udp_cost(raw));
  });
  udp.add_option("--seconds", seconds, "How long, in seconds (1)").check(command_line::real(0.01, 600));
  udp.add_option("--segment-bytes", raw.segment_bytes, "UDP payload of a packet")
      .check(command_line::whole(1, 65'000));
  udp.add_option("--segments", raw.segments, "In one GSO send").check(command_line::whole(1, 64));
  udp.add_option("--sends", raw.sends, "In one sendmmsg").check(command_line::whole(1, 1024));
  return app.parse("gdx_softhca_bench", argc, argv).value_or(0);
}

}  // namespace
}  // namespace gdx::perf

int main(int argc, char** argv) {
  try {
    return gdx::perf::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gdx_softhca_bench: %s\n", error.what());
    return 1;
  }
}
