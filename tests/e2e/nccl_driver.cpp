// Driver of the plugin for NCCL: opens the library as NCCL does and calls it in the order and from the
// threads of NCCL's net transport. nccl_driver PLUGIN VERSION CASE RANKS SEED. Ranks are processes of their
// own. What goes wrong is printed, and is the program's failure; a rank that hangs is ended and named.
#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "host/plugins/nccl/abi.h"

namespace gdx::nccl {
namespace {

constexpr std::uint32_t kMostRanks = 8;
constexpr std::uint32_t kDevices = 2;  // at most, that are used
constexpr std::uint64_t kHangS = 100;
constexpr std::size_t kMostGroup = 8;

struct Shared {
  std::atomic<std::uint32_t> arrived;
  std::array<std::array<std::array<std::byte, kHandleBytes>, kDevices>, kMostRanks> handles;
};

struct Arguments {
  std::string plugin;
  std::string version;
  std::string test;
  std::uint32_t ranks = 2;
  std::uint64_t seed = 1;
};

std::atomic<int> warnings{0};

void logger(LogLevel level, unsigned long /*flags*/, const char* /*file*/, int /*line*/, const char* format,
            ...) {
  std::array<char, 1024> text{};
  va_list arguments;
  va_start(arguments, format);
  (void)std::vsnprintf(text.data(), text.size(), format, arguments);
  va_end(arguments);
  if (level == LogLevel::kWarn) ++warnings;
  fmt::print(stderr, "{} {}: {}\n", getpid(), level == LogLevel::kWarn ? "WARN" : "INFO", text.data());
}

[[noreturn]] void fail_test(const std::string& why) {
  fmt::print(stderr, "nccl_driver: {}: {}\n", getpid(), why);
  std::_Exit(1);
}
void must(bool condition, const std::string& what) {
  if (!condition) fail_test(what);
}
void must_succeed(Outcome outcome, const char* what) {
  must(outcome == Outcome::kSuccess, fmt::format("{} returned {}", what, static_cast<int>(outcome)));
}

std::byte pattern(std::uint64_t seed, std::uint64_t message, std::size_t at) {
  return static_cast<std::byte>((seed * 31 + message * 7 + at * 13 + (at >> 8)) & 0xff);
}

// One rank's half of the calls, by either version's struct.
template <typename Properties>
class Rank {
 public:
  Rank(const Arguments& given, std::uint32_t rank, Shared& shared)
      : arguments_(given), rank_(rank), shared_(shared), random_(given.seed * kMostRanks + rank) {
    void* const library = dlopen(given.plugin.c_str(), RTLD_NOW | RTLD_LOCAL);
    must(library != nullptr, fmt::format("{}", library == nullptr ? dlerror() : ""));
    net_ = static_cast<const Net<Properties>*>(dlsym(library, ("ncclNetPlugin_" + given.version).c_str()));
    must(net_ != nullptr, "no such version of the interface");
    int config = -1;
    must_succeed(net_->init(&context_, given.seed, &config, logger, nullptr), "init");
    must_succeed(net_->devices(&devices_), "devices");
    must(devices_ > 0, "no device");
    Properties properties{};
    must_succeed(net_->get_properties(0, &properties), "getProperties");
    must(properties.pointers == kHostMemory && properties.most_receives == static_cast<int>(kMostGroup),
         "properties");
  }

  [[nodiscard]] std::uint32_t next() const { return (rank_ + 1) % arguments_.ranks; }
  [[nodiscard]] std::uint32_t rank() const { return rank_; }

  void meet() {
    const std::uint32_t round = ++rounds_;
    ++shared_.arrived;
    while (shared_.arrived < round * arguments_.ranks) std::this_thread::yield();
  }

  void listen(std::uint32_t device) {
    must_succeed(
        net_->listen(context_, static_cast<int>(device), shared_.handles[rank_][device].data(), &listener_),
        "listen");
  }
  // Calls connect and accept by turns, as NCCL's progress does.
  void connect(std::uint32_t device) {
    auto handle = shared_.handles[next()][device];
    while (sender_ == nullptr || receiver_ == nullptr) {
      if (sender_ == nullptr)
        must_succeed(net_->connect(context_, static_cast<int>(device), handle.data(), &sender_, nullptr),
                     "connect");
      if (receiver_ == nullptr) must_succeed(net_->accept(listener_, &receiver_, nullptr), "accept");
    }
  }
  void open(std::uint32_t device = 0) {
    listen(device);
    meet();
    connect(device);
  }
  void close() {
    if (sender_ != nullptr) must_succeed(net_->close_send(sender_), "closeSend");
    if (receiver_ != nullptr) must_succeed(net_->close_receive(receiver_), "closeRecv");
    if (listener_ != nullptr) must_succeed(net_->close_listen(listener_), "closeListen");
    sender_ = receiver_ = listener_ = nullptr;
  }
  void finalize() {
    must_succeed(net_->finalize(context_), "finalize");
    must_succeed(net_->finalize(context_), "finalize again");
  }

  void* registered(void* communicator, std::vector<std::byte>& buffer) {
    void* memory = nullptr;
    must_succeed(net_->register_memory(communicator, buffer.data(), buffer.size(), kHostMemory, &memory),
                 "regMr");
    return memory;
  }
  // Returns a request, or null where the call must come again.
  void* send(std::byte* data, std::size_t bytes, int tag, void* memory) {
    void* request = nullptr;
    must_succeed(net_->send(sender_, data, bytes, tag, memory, nullptr, &request), "isend");
    return request;
  }
  void* receive(std::vector<void*> data, std::vector<std::size_t> bytes, std::vector<int> tags,
                std::vector<void*> memories) {
    void* request = nullptr;
    must_succeed(net_->receive(receiver_, static_cast<int>(data.size()), data.data(), bytes.data(),
                               tags.data(), memories.data(), nullptr, &request),
                 "irecv");
    return request;
  }

  void transfer();
  void groups();
  void devices();
  void reuse();
  void refusals();
  void too_long();
  void closing();
  void killed();

 private:
  void stream(std::size_t bytes, std::uint64_t messages, std::size_t window);
  [[nodiscard]] Outcome wait_for_end(void* request);
  void reach(std::uint32_t phase, std::vector<std::byte>& buffer, bool dies);

  Arguments arguments_;
  std::uint32_t rank_;
  Shared& shared_;
  std::mt19937_64 random_;
  std::uint32_t rounds_ = 0;
  const Net<Properties>* net_ = nullptr;
  void* context_ = nullptr;
  int devices_ = 0;
  void* listener_ = nullptr;
  void* sender_ = nullptr;
  void* receiver_ = nullptr;
};

// Sends to the next rank and receives from the one before, with up to `window` of each under way.
template <typename Properties>
void Rank<Properties>::stream(std::size_t bytes, std::uint64_t messages, std::size_t window) {
  const std::size_t room = std::max<std::size_t>(bytes, 1);
  std::vector<std::byte> out(room * window);
  std::vector<std::byte> in(room * window);
  void* const out_memory = registered(sender_, out);
  void* const in_memory = registered(receiver_, in);
  std::vector<void*> sends(window);
  std::vector<void*> receives(window);
  std::uint64_t posted = 0;
  std::uint64_t sent = 0;
  std::uint64_t asked = 0;
  std::uint64_t received = 0;
  const std::uint32_t before = (rank_ + arguments_.ranks - 1) % arguments_.ranks;
  while (sent < messages || received < messages) {
    if (posted < messages && posted - sent < window) {
      std::byte* const from = out.data() + posted % window * room;
      for (std::size_t i = 0; i < bytes; ++i) from[i] = pattern(arguments_.seed + rank_, posted, i);
      sends[posted % window] = send(from, bytes, 5, out_memory);
      if (sends[posted % window] != nullptr) ++posted;
    }
    if (asked < messages && asked - received < window) {
      receives[asked % window] = receive({in.data() + asked % window * room}, {room}, {5}, {in_memory});
      if (receives[asked % window] != nullptr) ++asked;
    }
    int done = 0;
    int size = -1;
    if (sent < posted) must_succeed(net_->test(sends[sent % window], &done, &size), "test of a send");
    if (done != 0) must(size == static_cast<int>(bytes), "a send told another size");
    if (done != 0) ++sent;
    done = 0;
    if (received < asked) must_succeed(net_->test(receives[received % window], &done, &size), "test");
    if (done == 0) continue;
    must(size == static_cast<int>(bytes), fmt::format("{} B came, not {}", size, bytes));
    const std::byte* const at = in.data() + received % window * room;
    for (std::size_t i = 0; i < bytes; ++i)
      must(at[i] == pattern(arguments_.seed + before, received, i),
           fmt::format("byte {} of message {} of {} B", i, received, bytes));
    void* flush = &done;
    int none = size;
    void* where = in.data();
    void* memory = in_memory;
    must_succeed(net_->flush(receiver_, 1, &where, &none, &memory, &flush), "iflush");
    must(flush == nullptr, "a flush of host memory has a request");
    ++received;
  }
  must_succeed(net_->forget_memory(sender_, out_memory), "deregMr");
  must_succeed(net_->forget_memory(receiver_, in_memory), "deregMr");
}

template <typename Properties>
void Rank<Properties>::transfer() {
  open();
  const bool is_long = arguments_.seed % 2 == 0;  // even seeds go to 64 MiB
  for (const std::size_t bytes : {0, 1, 8, 4095, 65'536, 1 << 20}) stream(bytes, bytes > 65'536 ? 6 : 40, 8);
  stream(64, 400, 32);
  if (is_long) stream(std::size_t{64} << 20, 2, 1);
  meet();
  close();
}

// Groups of receives with tags by seed, and sends in an order by seed: each tag keeps its own order.
template <typename Properties>
void Rank<Properties>::groups() {
  open();
  constexpr std::size_t kBytes = 512;
  constexpr int kTags = 3;
  constexpr std::size_t kMessages = 160;
  // Both ends draw the same tags; the sender posts them in another order.
  std::mt19937_64 common(arguments_.seed);
  std::vector<std::vector<int>> tags;
  std::vector<int> all;
  while (all.size() < kMessages) {
    auto& group = tags.emplace_back(1 + common() % kMostGroup);
    for (int& tag : group) all.push_back(tag = static_cast<int>(common() % kTags));
  }
  std::vector<int> order = all;
  for (std::size_t i = 0; i < order.size(); ++i)  // a local shuffle, as of proxies that share a connection
    std::swap(order[i], order[std::min(order.size() - 1, i + common() % 4)]);
  std::vector<std::byte> out(kBytes * all.size());
  std::vector<std::byte> in(kBytes * all.size());
  void* const out_memory = registered(sender_, out);
  void* const in_memory = registered(receiver_, in);
  std::vector<void*> sends;
  std::map<int, std::uint64_t> sent_of;
  struct Group {
    void* request;
    std::size_t first;
    std::vector<int> tags;
  };
  std::vector<Group> open_groups;
  std::size_t posted = 0;
  std::size_t group = 0;
  std::size_t places = 0;
  std::size_t finished = 0;
  std::map<int, std::uint64_t> received_of;
  while (posted < order.size() || !sends.empty() || finished < tags.size()) {
    if (posted < order.size() && random_() % 3 != 0) {
      std::byte* const from = out.data() + posted * kBytes;
      const int tag = order[posted];
      for (std::size_t i = 0; i < kBytes; ++i)
        from[i] = pattern(arguments_.seed, sent_of[tag] * kTags + static_cast<std::uint64_t>(tag), i);
      if (void* const request = send(from, kBytes, tag, out_memory)) {
        sends.push_back(request);
        ++sent_of[tag];
        ++posted;
      }
    }
    if (group < tags.size() && random_() % 3 != 0) {
      const std::size_t n = tags[group].size();
      std::vector<void*> data;
      for (std::size_t i = 0; i < n; ++i) data.push_back(in.data() + (places + i) * kBytes);
      if (void* const request = receive(data, std::vector<std::size_t>(n, kBytes), tags[group],
                                        std::vector<void*>(n, in_memory))) {
        open_groups.push_back({request, places, tags[group]});
        places += n;
        ++group;
      }
    }
    std::erase_if(sends, [&](void* request) {
      int done = 0;
      must_succeed(net_->test(request, &done, nullptr), "test of a send");
      return done != 0;
    });
    if (open_groups.empty()) continue;
    std::array<int, kMostGroup> sizes{};
    int done = 0;
    const Group& first = open_groups.front();
    must_succeed(net_->test(first.request, &done, sizes.data()), "test of a group");
    if (done == 0) continue;
    for (std::size_t i = 0; i < first.tags.size(); ++i) {
      const int tag = first.tags[i];
      must(sizes[i] == static_cast<int>(kBytes), "a size of a group");
      const std::uint64_t message = received_of[tag]++ * kTags + static_cast<std::uint64_t>(tag);
      for (std::size_t at = 0; at < kBytes; ++at)
        must(in[(first.first + i) * kBytes + at] == pattern(arguments_.seed, message, at),
             fmt::format("message {} of tag {} is another", message, tag));
    }
    open_groups.erase(open_groups.begin());
    ++finished;
  }
  meet();
  close();
}

// Several communicators on each device, and each by a thread of its own.
template <typename Properties>
void Rank<Properties>::devices() {
  const auto used = static_cast<std::uint32_t>(std::min(devices_, static_cast<int>(kDevices)));
  struct Channel {
    void* sender;
    void* receiver;
    void* listener;
  };
  std::vector<Channel> channels;
  for (std::uint32_t i = 0; i < 2 * used; ++i) {
    open(i % used);
    channels.push_back({sender_, receiver_, listener_});
    sender_ = receiver_ = listener_ = nullptr;
    meet();
  }
  std::vector<std::thread> threads;
  for (const Channel& channel : channels) {
    threads.emplace_back([this, channel] {
      Rank own = *this;
      own.sender_ = channel.sender;
      own.receiver_ = channel.receiver;
      own.listener_ = channel.listener;
      own.stream(10'000, 60, 4);
    });
  }
  for (std::thread& thread : threads) thread.join();
  meet();
  for (const Channel& channel : channels) {
    sender_ = channel.sender;
    receiver_ = channel.receiver;
    listener_ = channel.listener;
    close();
  }
}

// One listener for connections one after another. The ends close at different times.
template <typename Properties>
void Rank<Properties>::reuse() {
  listen(0);
  meet();
  void* const listener = listener_;
  for (int round = 0; round < 20; ++round) {
    listener_ = listener;
    connect(0);
    stream(1000, 20, 4);
    listener_ = nullptr;
    close();
  }
  meet();
  listener_ = listener;
  close();
}

// What cannot be had is refused with a line.
template <typename Properties>
void Rank<Properties>::refusals() {
  open();
  std::vector<std::byte> buffer(4096);
  void* memory = nullptr;
  const int before = warnings;
  must(net_->register_memory(sender_, buffer.data(), 64, kCudaMemory, &memory) == Outcome::kInvalidUsage,
       "CUDA");
  must(
      net_->register_dmabuf(sender_, buffer.data(), 64, kCudaMemory, 0, 0, &memory) == Outcome::kInvalidUsage,
      "dmabuf");
  must(warnings == before + 2, "refusals without a line");
  void* const known = registered(sender_, buffer);
  void* request = nullptr;
  must(net_->send(sender_, buffer.data() + 1, buffer.size(), 0, known, nullptr, &request) ==
           Outcome::kInvalidArgument,
       "a send beyond its memory");
  Properties properties{};
  must(net_->get_properties(devices_, &properties) == Outcome::kInvalidArgument, "a device too many");
  std::array<std::byte, kHandleBytes> handle{};
  void* sender = nullptr;
  must(net_->connect(context_, 0, handle.data(), &sender, nullptr) == Outcome::kRemoteError,
       "a handle of zeros");
  meet();
  close();
}

template <typename Properties>
Outcome Rank<Properties>::wait_for_end(void* request) {
  for (;;) {
    int done = 0;
    const Outcome outcome = net_->test(request, &done, nullptr);
    if (outcome != Outcome::kSuccess || done != 0) return outcome;
    std::this_thread::yield();
  }
}

// A send longer than its receive is told to both ends, and writes nothing.
template <typename Properties>
void Rank<Properties>::too_long() {
  open();
  std::vector<std::byte> out(4096, std::byte{1});
  std::vector<std::byte> in(4096);
  void* const from = registered(sender_, out);
  void* const to = registered(receiver_, in);
  void* const receiving = receive({in.data()}, {100}, {0}, {to});
  void* const sending = send(out.data(), 4096, 0, from);
  must(wait_for_end(sending) == Outcome::kInvalidUsage, "the send");
  must(wait_for_end(receiving) == Outcome::kInvalidUsage, "the receive");
  for (const std::byte byte : in) must(byte == std::byte{0}, "a refused send wrote");
  meet();
  close();
}

// Goes as far as `phase`: 0 listening, 1 connecting, 2 connected, 3 receives posted, 4 in a transfer. What
// rank 0 then has outstanding must end with an error, once the other has gone.
template <typename Properties>
void Rank<Properties>::reach(std::uint32_t phase, std::vector<std::byte>& buffer, bool dies) {
  const auto leave = [&](std::uint32_t at) {
    if (at != phase || rank_ == 0) return false;
    if (dies) (void)kill(getpid(), SIGKILL);
    close();
    return true;
  };
  listen(0);
  meet();
  if (leave(0)) return;
  auto handle = shared_.handles[next()][0];
  if (phase == 1 && rank_ != 0) {
    for (std::uint64_t left = random_() % 200; left != 0; --left) {
      must_succeed(net_->connect(context_, 0, handle.data(), &sender_, nullptr), "connect");
      if (receiver_ == nullptr) must_succeed(net_->accept(listener_, &receiver_, nullptr), "accept");
      if (sender_ != nullptr) break;
    }
    (void)leave(1);
    return;
  }
  if (phase <= 1) {
    // Either connect or what follows on the communicator tells.
    Outcome outcome = Outcome::kSuccess;
    while (outcome == Outcome::kSuccess && sender_ == nullptr)
      outcome = net_->connect(context_, 0, handle.data(), &sender_, nullptr);
    if (outcome != Outcome::kSuccess) return;
    void* const memory = registered(sender_, buffer);
    void* request = nullptr;
    while (outcome == Outcome::kSuccess && request == nullptr)
      outcome = net_->send(sender_, buffer.data(), 64, 1, memory, nullptr, &request);
    if (request != nullptr) outcome = wait_for_end(request);
    must(outcome == Outcome::kRemoteError, fmt::format("connect ended with {}", static_cast<int>(outcome)));
    return;
  }
  connect(0);
  if (leave(2)) return;
  void* const from = registered(sender_, buffer);
  void* const to = registered(receiver_, buffer);
  std::vector<void*> receives;
  std::vector<void*> sends;
  for (int i = 0; i < 4; ++i) receives.push_back(receive({buffer.data()}, {buffer.size()}, {1}, {to}));
  if (leave(3)) return;
  for (int i = 0; i < 8; ++i) sends.push_back(send(buffer.data(), buffer.size(), 1, from));
  if (rank_ != 0) {
    for (std::uint64_t left = random_() % 400; left != 0; --left) {
      int done = 0;
      (void)net_->test(receives[3], &done, nullptr);
      if (done != 0) break;
    }
    (void)leave(4);
    return;
  }
  // Four sends may have found the receives of the other; the others cannot.
  int failed = 0;
  for (void* const request : sends) failed += wait_for_end(request) == Outcome::kRemoteError ? 1 : 0;
  must(failed >= 4, fmt::format("only {} of 8 sends failed", failed));
  for (void* const request : receives) (void)wait_for_end(request);
  void* request = nullptr;
  must_succeed(net_->send(sender_, buffer.data(), 8, 1, from, nullptr, &request), "isend to a lost peer");
  must(wait_for_end(request) == Outcome::kRemoteError, "a send to a lost peer");
  must(warnings >= 1, "no line about the lost peer");
}

template <typename Properties>
void Rank<Properties>::closing() {
  std::vector<std::byte> buffer(1 << 20);
  reach(static_cast<std::uint32_t>(arguments_.seed % 5), buffer, false);
  close();
}

template <typename Properties>
void Rank<Properties>::killed() {
  std::vector<std::byte> buffer(1 << 20);
  reach(static_cast<std::uint32_t>(arguments_.seed % 5), buffer, true);
  close();
}

template <typename Properties>
int run_rank(const Arguments& arguments, std::uint32_t rank, Shared& shared) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  alarm(kHangS);
  using Own = Rank<Properties>;
  const std::map<std::string, void (Own::*)()> cases{
      {"transfer", &Own::transfer}, {"groups", &Own::groups},     {"devices", &Own::devices},
      {"reuse", &Own::reuse},       {"refusals", &Own::refusals}, {"too_long", &Own::too_long},
      {"closing", &Own::closing},   {"killed", &Own::killed}};
  const auto found = cases.find(arguments.test);
  must(found != cases.end(), "no such case");
  Own own(arguments, rank, shared);
  (own.*found->second)();
  own.finalize();
  return 0;
}

int run(const Arguments& arguments) {
  void* const pages =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto& shared = *new (pages) Shared{};
  std::vector<pid_t> ranks;
  for (std::uint32_t rank = 0; rank < arguments.ranks; ++rank) {
    ranks.push_back(fork());
    if (ranks.back() != 0) continue;
    const int result = arguments.version == "v11" ? run_rank<PropertiesV11>(arguments, rank, shared)
                                                  : run_rank<PropertiesV12>(arguments, rank, shared);
    std::exit(result);
  }
  int worst = 0;
  for (std::uint32_t left = arguments.ranks; left != 0; --left) {
    int status = 0;
    const pid_t pid = wait(&status);
    const bool planned = arguments.test == "killed" && pid != ranks[0];
    if (WIFSIGNALED(status) && !(planned && WTERMSIG(status) == SIGKILL)) {
      fmt::print(stderr, "nccl_driver: process {} ended by signal {}{}\n", pid, WTERMSIG(status),
                 WTERMSIG(status) == SIGALRM ? ": it hung" : "");
      worst = 1;
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0) worst = WEXITSTATUS(status);
    if (worst == 0) continue;
    for (const pid_t other : ranks) (void)kill(other, SIGKILL);
  }
  return worst;
}

}  // namespace
}  // namespace gdx::nccl

int main(int argc, char** argv) {
  if (argc != 6) {
    fmt::print(stderr, "usage: nccl_driver PLUGIN v11|v12 CASE RANKS SEED\n");
    return 2;
  }
  return gdx::nccl::run({argv[1], argv[2], argv[3], static_cast<std::uint32_t>(std::atoi(argv[4])),
                         static_cast<std::uint64_t>(std::atoll(argv[5]))});
}
