// Several HCAs, each a process with many connections, send to one whose socket is small. Nothing is lost on
// purpose, so what the kernel drops and what is sent again is our doing.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "perf/rc_queue.h"

namespace gdx::perf {
namespace incast_test {

constexpr std::size_t kSenders = 3;
constexpr std::size_t kQueues = 16;  // of each
constexpr int kMessages = 8;         // on each queue
constexpr int kDepth = 16;
constexpr std::uint32_t kMessageBytes = 65536;
constexpr std::uint8_t kPatient = 25;  // 137 s: no timer shall resend what only waits for a processor
constexpr const char* kSmallBuffer =
    "262144";  // doubled by the kernel; a quarter of it has the minimum of four peers
constexpr unsigned kLimitS = 250;

enum class Direction { kWrite, kRead };
enum class Until { kDone, kDrop };

struct Counters {
  std::uint64_t socket_drops = 0;
  std::uint64_t kernel_drops = 0;  // the same, from /proc/net/udp
  std::uint64_t retransmitted = 0;
  std::uint64_t waits = 0;
};

// Read at each end when all is done; shared with the processes.
struct Outcome {
  Counters receiver;
  std::array<Counters, kSenders> senders;
};

std::uint64_t hw_counter(const char* name) {
  const std::string path = std::string("/sys/class/infiniband/gdx0/ports/1/hw_counters/") + name;
  const int fd = ::open(path.c_str(), O_RDONLY);
  require(fd >= 0, "open a counter");
  std::array<char, 32> text{};
  const ssize_t n = ::read(fd, text.data(), text.size() - 1);
  ::close(fd);
  require(n > 0, "read a counter");
  return std::strtoull(text.data(), nullptr, 10);
}

// The last column for the socket on port 4791 of the IPv4 address in `gid`.
std::uint64_t kernel_drops(const ibv_gid& gid) {
  std::array<char, 16> name{};
  std::snprintf(name.data(), name.size(), "%02X%02X%02X%02X:12B7", gid.raw[15], gid.raw[14], gid.raw[13],
                gid.raw[12]);
  std::ifstream table("/proc/net/udp");
  for (std::string line; std::getline(table, line);) {
    if (line.find(name.data()) == std::string::npos) continue;
    std::istringstream words(line);
    std::string drops;
    while (words >> drops) {
    }
    return std::strtoull(drops.c_str(), nullptr, 10);
  }
  give_up("the HCA's socket is not in /proc/net/udp");
}

Counters counters_of(const RcQueue& queue) {
  const std::uint64_t from_proc = kernel_drops(queue.address().gid);
  return {.socket_drops = hw_counter("softhca_socket_drops"),
          .kernel_drops = from_proc,
          // A tail that is late on a busy machine is sent again without a timeout.
          .retransmitted = hw_counter("softhca_retransmitted_packets") - hw_counter("softhca_tail_resends"),
          .waits = hw_counter("softhca_window_waits")};
}

using Queues = std::vector<std::unique_ptr<RcQueue>>;

void connect_all(Nic& nic, const Peer& peer, Queues& queues) {
  for (std::size_t i = 0; i < kQueues; ++i) {
    queues.push_back(std::make_unique<RcQueue>(nic, kDepth));
    RcQueue& queue = *queues.back();
    queue.connect(peer.exchange(queue.address()), kPatient);
  }
}

// Polls until each queue has seen `completions`.
void finish(const Queues& queues, int completions) {
  for (const auto& queue : queues) {
    for (int done = 0; done < completions;) done += queue->poll().sends;
  }
}

void send(Direction direction, const Peer& peer, Counters& out) {
  Nic nic(kMessageBytes);
  Queues queues;
  connect_all(nic, peer, queues);
  peer.meet();
  if (direction == Direction::kWrite) {
    for (const auto& queue : queues) queue->post_writes(kMessageBytes, kMessages);
    finish(queues, 1);
    peer.send('.');
  }
  while (!peer.has_message()) static_cast<void>(queues.front()->poll());
  out = counters_of(*queues.front());
  peer.meet();
}

void receive(Direction direction, Until until, const std::vector<Peer>& peers, Counters& out) {
  Nic nic(kMessageBytes);
  Queues queues;
  for (const Peer& peer : peers) connect_all(nic, peer, queues);
  for (const Peer& peer : peers) peer.meet();
  if (direction == Direction::kRead) {
    for (const auto& queue : queues) {
      for (int i = 0; i < kMessages; ++i) queue->post_read(kMessageBytes);
    }
  }
  if (until == Until::kDrop) {
    do {
      static_cast<void>(queues.front()->poll());
      out = counters_of(*queues.front());
    } while (out.kernel_drops == 0);
    return;
  }
  if (direction == Direction::kRead) {
    finish(queues, kMessages);
  } else {
    for (const Peer& peer : peers) {
      while (!peer.has_message()) static_cast<void>(queues.front()->poll());
      static_cast<void>(peer.receive<char>());
    }
  }
  out = counters_of(*queues.front());
  for (const Peer& peer : peers) peer.meet();  // this message ends their polling
}

// A process of its own, which opens its own HCA and ends with the test.
template <typename Body>
pid_t start(const char* window, Body body) {
  const pid_t child = ::fork();
  require(child >= 0, "fork");
  if (child > 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::alarm(kLimitS);
  ::setenv("GDX_SOFTHCA_RECEIVE_BUFFER_BYTES", kSmallBuffer, 1);
  ::setenv("GDX_SOFTHCA_RECEIVE_WINDOW", window, 1);
  try {
    body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::exit(1);
  }
  std::exit(0);
}

bool ended_well(pid_t child) {
  int status = 0;
  return ::waitpid(child, &status, 0) == child && status == 0;
}

class Incast : public ::testing::TestWithParam<Direction> {
 protected:
  Incast() {
    void* const shared =
        ::mmap(nullptr, sizeof(Outcome), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    require(shared != MAP_FAILED, "share memory");
    outcome = new (shared) Outcome;
  }
  ~Incast() override { ::munmap(outcome, sizeof(Outcome)); }

  // True: every process has done its part.
  [[nodiscard]] bool run(const char* window, Until until) const {
    std::vector<Peer> to_senders;
    std::vector<pid_t> children;
    std::array<std::array<int, 2>, kSenders> ends;
    for (auto& pair : ends) {
      require(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair.data()) == 0, "make a socket pair");
      to_senders.emplace_back(pair[0]);
    }
    for (std::size_t i = 0; i < kSenders; ++i) {
      children.push_back(start(window, [&] { send(GetParam(), Peer(ends[i][1]), outcome->senders[i]); }));
    }
    children.push_back(start(window, [&] { receive(GetParam(), until, to_senders, outcome->receiver); }));
    for (const auto& pair : ends) {
      for (const int fd : pair) ::close(fd);
    }
    // Endless senders have no further use once the receiver has read enough.
    bool whole = ended_well(children.back());
    children.pop_back();
    for (const pid_t child : children) {
      if (until == Until::kDrop) ::kill(child, SIGKILL);
      const bool well = ended_well(child);
      whole = whole && (well || until == Until::kDrop);
    }
    return whole;
  }

  Outcome* outcome;
};

TEST_P(Incast, into_one_small_socket_drops_nothing_and_resends_nothing) {
  ASSERT_TRUE(run("1", Until::kDone));
  EXPECT_EQ(outcome->receiver.kernel_drops, 0u);
  EXPECT_EQ(outcome->receiver.socket_drops, 0u);
  EXPECT_EQ(outcome->receiver.retransmitted, 0u);
  std::uint64_t waits = 0;
  for (const Counters& sender : outcome->senders) {
    EXPECT_EQ(sender.kernel_drops, 0u);
    EXPECT_EQ(sender.retransmitted, 0u);
    waits += sender.waits;
  }
  EXPECT_GT(waits, 0u) << "the socket was too large to prove anything";
}

// The control: it must be the window that keeps the socket from overflowing.
TEST_P(Incast, without_windows_overflows_the_socket) {
  ASSERT_TRUE(run("0", Until::kDrop));
  EXPECT_GT(outcome->receiver.kernel_drops, 0u);
  EXPECT_GT(outcome->receiver.socket_drops, 0u);
}

INSTANTIATE_TEST_SUITE_P(Directions, Incast, ::testing::Values(Direction::kWrite, Direction::kRead),
                         [](const auto& named) {
                           return named.param == Direction::kWrite ? "write" : "read";
                         });

}  // namespace incast_test
}  // namespace gdx::perf
