#include "perf/overload.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "device/endpoint.h"

namespace gdx::perf {
namespace {

constexpr std::uint64_t kExchangeTimeoutNs = 300'000'000'000;
constexpr std::uint64_t kWaitTimeoutNs = 120'000'000'000;  // the transport gives a peer up long before
constexpr std::uint64_t kChunkWords = kOverloadChunkBytes / sizeof(std::uint64_t);
constexpr double kBitsPerByte = 8;

// Returns a word of a chunk, unlike its neighbours and unlike that chunk of every other sender.
GDX_DEVICE std::uint64_t word_of(std::uint64_t sender, std::uint64_t chunk, std::uint64_t index) {
  return ((sender << 48 | chunk << 9) + index) * 0x9e3779b97f4a7c15u;
}

// A sender that is alone goes no further than this: twice its share.
std::uint64_t most_chunks(const OverloadOptions& options, std::uint32_t senders) {
  return 2 * options.chunks / senders;
}

struct Sender {
  EndpointHandle endpoint;
  LocalMemory source;  // one chunk
  RemoteMemory target;
};

// Progress of one sender, written by the kernel while it runs.
struct Sent {
  std::uint64_t chunks = 0;
  std::uint32_t ended = 0;
  Status status = Status::kPending;
};

__global__ void push_chunks(const Sender* senders, std::uint64_t at_most, const std::uint32_t* stop,
                            Sent* sent) {
  const Sender& self = senders[blockIdx.x];
  Sent& mine = sent[blockIdx.x];
  device::Endpoint<Scope::kThread> peer(self.endpoint);
  auto* words = reinterpret_cast<std::uint64_t*>(self.source.address);
  Status status = peer.status();
  for (std::uint64_t k = 0; k < at_most && status == Status::kOk && exec::load_flag(stop) == 0; ++k) {
    for (std::uint64_t i = 0; i < kChunkWords; ++i) words[i] = word_of(blockIdx.x, k, i);
    status =
        gdx_put<Mode::kPush>(peer, self.target + k * kOverloadChunkBytes, self.source, kOverloadChunkBytes);
    if (status == Status::kOk) exec::add(&mine.chunks, 1);
  }
  if (status == Status::kOk) status = gdx_flush(peer);
  mine.status = status;
  exec::publish(&mine.ended, 1);
}

// Stops and wakes the peer, and ends the run. Its clock is what has been pushed.
class Conductor {
 public:
  Conductor(pid_t peer, const OverloadOptions& options, std::vector<Sent>& sent)
      : peer_(peer), options_(options), sent_(sent) {}
  ~Conductor() { wake(); }
  Conductor(const Conductor&) = delete;
  Conductor& operator=(const Conductor&) = delete;

  void advance();
  [[nodiscard]] const std::uint32_t* stop() const { return &stop_; }
  [[nodiscard]] int error() const { return error_; }
  // Returns the rate of the slowest sender with a live peer during the stall.
  [[nodiscard]] double worst_other_gbps() const;

 private:
  enum class Phase : std::uint8_t { kBefore, kStalled, kAfter, kOver };
  struct Snapshot {
    std::uint64_t at_ns = 0;
    std::vector<std::uint64_t> chunks;
  };

  [[nodiscard]] Snapshot snapshot() const;
  [[nodiscard]] bool others_ended() const {
    return std::all_of(sent_.begin() + 1, sent_.end(),
                       [](const Sent& s) { return exec::load_flag(&s.ended) != 0; });
  }
  void wake() {
    if (stopped_ && ::kill(peer_, SIGCONT) != 0) error_ = errno;
    stopped_ = false;
  }

  pid_t peer_;
  const OverloadOptions& options_;
  std::vector<Sent>& sent_;
  Phase phase_ = Phase::kBefore;
  std::uint32_t stop_ = 0;
  bool stopped_ = false;
  int error_ = 0;
  Snapshot begin_;
  Snapshot end_;
};

Conductor::Snapshot Conductor::snapshot() const {
  Snapshot now{monotonic_ns(), {}};
  for (Sent& sent : sent_) now.chunks.push_back(std::atomic_ref(sent.chunks).load(std::memory_order_relaxed));
  return now;
}

void Conductor::advance() {
  if (phase_ == Phase::kOver) return;
  const Snapshot now = snapshot();
  const std::uint64_t pushed = std::accumulate(now.chunks.begin(), now.chunks.end(), std::uint64_t{0});
  if (phase_ == Phase::kBefore && options_.stall != Stall::kNone && pushed * 4 >= options_.chunks) {
    phase_ = Phase::kStalled;
    begin_ = now;
    stopped_ = ::kill(peer_, SIGSTOP) == 0;
    if (!stopped_) error_ = errno;
  }
  if (phase_ == Phase::kStalled && (pushed * 4 >= options_.chunks * 3 || others_ended())) {
    phase_ = Phase::kAfter;
    end_ = now;
    if (options_.stall == Stall::kForAWhile) wake();
  }
  if (pushed < options_.chunks && error_ == 0) return;
  phase_ = Phase::kOver;
  std::atomic_ref(stop_).store(1, std::memory_order_relaxed);
}

double Conductor::worst_other_gbps() const {
  if (end_.at_ns <= begin_.at_ns || sent_.size() < 2) return 0;
  std::uint64_t least = ~std::uint64_t{0};
  for (std::size_t i = 1; i < sent_.size(); ++i) least = std::min(least, end_.chunks[i] - begin_.chunks[i]);
  return static_cast<double>(least) * kOverloadChunkBytes * kBitsPerByte /
         static_cast<double>(end_.at_ns - begin_.at_ns);
}

// A kernel that waits calls this, and takes no argument with it.
Conductor* conductor = nullptr;
int advance_and_progress() {
  conductor->advance();
  return progress();
}

struct Introduction {
  std::array<EndpointAddress, kMaxOverloadSenders> endpoints{};  // rank 0: of all senders; others: the first
  RemoteMemory buffer{};
  pid_t pid = 0;
};

struct Delivery {
  std::array<std::uint64_t, kMaxOverloadSenders> pushed{};  // rank 0's
  std::uint64_t whole = 0;                                  // everybody else's
};

Result<std::vector<Endpoint>> make_senders(const Hca& hca, StagingPool& staging, std::uint32_t senders,
                                           const OverloadOptions& options) {
  std::vector<Endpoint> endpoints;
  for (std::uint32_t i = 0; i < senders; ++i) {
    auto endpoint = GDX_TRY(Endpoint::create(hca, &staging,
                                             {.slot_count = staging.slot_count(),
                                              .timeout_ns = kWaitTimeoutNs,
                                              .ack_timeout = options.ack_timeout,
                                              .retry_count = options.retry_count,
                                              .unsafe_push_without_credits = options.without_credits}));
    endpoints.push_back(std::move(endpoint));
  }
  return endpoints;
}

void count_failures(const std::vector<Endpoint>& endpoints, const std::vector<Sent>& sent,
                    OverloadFigures& figures) {
  for (std::size_t i = 0; i < sent.size(); ++i) {
    if (sent[i].status == Status::kOk) continue;
    if (figures.failed_senders++ > 0) continue;
    figures.failure = fmt::format("sender {}: {}", i,
                                  endpoints[i].fault().status == Status::kOk ? status_name(sent[i].status)
                                                                             : endpoints[i].describe_fault());
  }
}

Result<void> run_kernel(const std::vector<Sender>& senders, pid_t peer, const OverloadOptions& options,
                        std::vector<Sent>& sent, OverloadFigures& figures) {
  Conductor conducting(peer, options, sent);
  conductor = &conducting;
  const auto count = static_cast<std::uint32_t>(senders.size());
  const Status launched = exec::launch({.grid = {count}, .progress = advance_and_progress}, push_chunks,
                                       static_cast<const Sender*>(senders.data()),
                                       most_chunks(options, count), conducting.stop(), sent.data());
  conductor = nullptr;
  if (launched != Status::kOk) return fail(launched, fmt::format("kernel launch: {}", status_name(launched)));
  if (conducting.error() != 0) {
    return fail(Status::kSystem, fmt::format("cannot stop or wake the peer, process {}: {}", peer,
                                             std::strerror(conducting.error())));
  }
  figures.worst_other_gbps = conducting.worst_other_gbps();
  return {};
}

// Returns the number of intact chunks of `sender` in the buffer, of its first `pushed`. The HCA stores a
// packet's last word last, with release.
std::uint64_t whole_chunks(std::span<const std::byte> buffer, std::uint32_t sender, std::uint64_t pushed) {
  const auto* words = reinterpret_cast<const std::uint64_t*>(buffer.data());
  constexpr std::uint64_t kLast = kChunkWords - 1;
  std::uint64_t whole = 0;
  for (std::uint64_t k = 0; k < pushed; ++k, words += kChunkWords) {
    bool right = exec::load_acquire(&words[kLast]) == word_of(sender, k, kLast);
    for (std::uint64_t i = 0; right && i < kLast; ++i) right = words[i] == word_of(sender, k, i);
    whole += right ? 1 : 0;
  }
  return whole;
}

}  // namespace

Result<OverloadFigures> push_to_all(World& world, const Hca& hca, const OverloadOptions& options) {
  OverloadFigures figures{.senders = world.size() - 1};
  auto staging = GDX_TRY(StagingPool::create(hca));
  auto endpoints = GDX_TRY(make_senders(hca, staging, figures.senders, options));
  auto sources = GDX_TRY(allocate_memory(hca, std::size_t{figures.senders} * kOverloadChunkBytes));

  Introduction mine;
  for (std::size_t i = 0; i < endpoints.size(); ++i) mine.endpoints[i] = endpoints[i].address();
  const auto all = GDX_TRY(world.allgather_value(mine, kExchangeTimeoutNs));
  std::vector<Sender> senders;
  for (std::uint32_t i = 0; i < figures.senders; ++i) {
    const Introduction& peer = all[i + 1];
    GDX_TRY(endpoints[i].connect(peer.endpoints[0]));
    const LocalMemory source = sources.local() + std::uint64_t{i} * kOverloadChunkBytes;
    senders.push_back({endpoints[i].handle(), source, peer.buffer});
  }
  GDX_TRY(world.barrier(kExchangeTimeoutNs));

  std::vector<Sent> sent(figures.senders);
  const auto counter = [&hca](const char* name) { return hca.counter(name).value_or(0); };
  const std::uint64_t start_ns = monotonic_ns();
  GDX_TRY(run_kernel(senders, all[1].pid, options, sent, figures));
  const auto duration_ns = static_cast<double>(monotonic_ns() - start_ns);
  count_failures(endpoints, sent, figures);
  figures.violations = counter("softhca_staging_violations");
  figures.retransmitted = counter("softhca_retransmitted_packets");
  endpoints.clear();
  figures.lost_slots = staging.slot_count() - staging.free_slots();

  Delivery delivery;
  for (std::size_t i = 0; i < sent.size(); ++i) delivery.pushed[i] = sent[i].chunks;
  GDX_TRY(world.allgather_value(delivery, kExchangeTimeoutNs));
  const auto judged = GDX_TRY(world.allgather_value(delivery, kExchangeTimeoutNs));
  for (std::size_t i = 0; i < sent.size(); ++i) {
    const std::uint64_t whole = judged[i + 1].whole;
    figures.pushed += sent[i].chunks;
    figures.whole += whole;
    if (sent[i].status == Status::kOk) figures.damaged += sent[i].chunks - whole;
  }
  figures.goodput_gbps =
      static_cast<double>(figures.whole) * kOverloadChunkBytes * kBitsPerByte / duration_ns;
  return figures;
}

Result<void> receive_pushes(World& world, const Hca& hca, const OverloadOptions& options) {
  const std::uint32_t sender = world.rank() - 1;
  auto buffer = GDX_TRY(allocate_memory(hca, most_chunks(options, world.size() - 1) * kOverloadChunkBytes));
  std::memset(buffer.data(), 0xee, buffer.bytes());  // and has its pages
  auto endpoint = GDX_TRY(Endpoint::create(hca, nullptr));

  Introduction mine{.buffer = buffer.remote(), .pid = ::getpid()};
  mine.endpoints[0] = endpoint.address();
  const auto all = GDX_TRY(world.allgather_value(mine, kExchangeTimeoutNs));
  if (auto connected = endpoint.connect(all[0].endpoints[sender]); !connected) return connected;
  if (auto ready = world.barrier(kExchangeTimeoutNs); !ready) return ready;

  Delivery delivery;
  const auto pushed = GDX_TRY(world.allgather_value(delivery, kExchangeTimeoutNs));
  delivery.whole = whole_chunks(buffer.span(), sender, pushed[0].pushed[sender]);
  GDX_TRY(world.allgather_value(delivery, kExchangeTimeoutNs));
  return {};
}

}  // namespace gdx::perf
