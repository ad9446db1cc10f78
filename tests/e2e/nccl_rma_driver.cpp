// Driver of the plugin's one-sided transfers: opens the library as NCCL does and calls it as NCCL's proxies
// for RMA and GIN do. nccl_rma_driver PLUGIN v13|v14|v15|v16 CASE RANKS SEED. Prints and ends as nccl_driver
// does.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <map>
#include <random>

#include "host/plugins/nccl/rma_abi.h"
#include "tests/e2e/nccl_ranks.h"

namespace gdx::nccl {
namespace {

// Requests that NCCL keeps open towards each rank in each context: 32 times the plugin's maxRecvs.
constexpr int kMostReceives = 32;
constexpr std::size_t kMostOpen = std::size_t{32} * kMostReceives;
constexpr int kContexts = 2;

// One rank's half of the calls, by the struct of one version.
template <typename Own>
class RmaRank {
 public:
  RmaRank(const Arguments& given, std::uint32_t rank, Shared& shared)
      : arguments_(given), rank_(rank), shared_(shared), random_(given.seed * kMostRanks + rank) {
    rma_ = interface_of<Own>(given, "ncclRmaPlugin_");
    must_succeed(rma_->begin.init(&context_, given.seed, logger), "init");
    int devices = -1;
    must_succeed(rma_->begin.devices(&devices), "devices");
    must(devices == 0, "devices that were not asked for");
    setenv("GDX_NCCL_RMA", "host", 1);
    must_succeed(rma_->begin.devices(&devices), "devices");
    must(devices > 0, "no device");
    PropertiesV12 properties{};
    must_succeed(rma_->meeting.get_properties(0, &properties), "getProperties");
    must(properties.device_type == kGinProxyDevice && properties.pointers == kHostMemory &&
             properties.most_receives == kMostReceives,
         "properties");
  }
  void transfer();
  void refusals();
  void deregistered();
  void killed();
  void closing();
  void together();

 private:
  void meet() {
    const std::uint32_t round = ++rounds_;
    ++shared_.arrived;
    while (shared_.arrived < round * arguments_.ranks) std::this_thread::yield();
  }
  void open() {
    must_succeed(rma_->meeting.listen(context_, 0, shared_.handles[rank_][0].data(), &listener_), "listen");
    meet();
    std::vector<void*> handles;
    for (std::uint32_t rank = 0; rank < arguments_.ranks; ++rank)
      handles.push_back(shared_.handles[rank][0].data());
    // NCCL 2.30 gives the context of its net.
    must_succeed(rma_->meeting.connect(nullptr, handles.data(), static_cast<int>(arguments_.ranks),
                                       static_cast<int>(rank_), listener_, &group_),
                 "connect");
    must_succeed(rma_->end.close_listen(listener_), "closeListen");
    if constexpr (requires { rma_->get_rma_properties; }) {
      RmaProperties properties{true};
      must_succeed(rma_->get_rma_properties(group_, &properties), "getRmaProperties");
      must(!properties.signals_flush_all_puts, "flushesAllPutsOnAnySignal");
    }
    if constexpr (requires { rma_->memory.create_context(nullptr, nullptr, nullptr); }) {
      RmaConfig config{kContexts, -1, 1};
      must_succeed(rma_->memory.create_context(group_, &config, &rma_context_), "createContext");
    } else {
      RmaConfigV13 config{0, 0, kContexts, 0, -1};
      DeviceHandle* handle = nullptr;
      must_succeed(rma_->memory.create_context(group_, &config, &rma_context_, &handle), "createContext");
      must(handle != nullptr && handle->device_type == kGinProxyDevice, "a device handle");
    }
  }
  void close() {
    must_succeed(rma_->end.destroy_context(rma_context_), "destroyContext");
    must_succeed(rma_->end.close_group(group_), "closeColl");
    must_succeed(rma_->completion.finalize(context_), "finalize");
    must_succeed(rma_->completion.finalize(context_), "finalize again");
  }
  Outcome try_to_register(std::vector<std::byte>& buffer, int type, void** memory) {
    if constexpr (requires {
                    rma_->memory.register_memory(nullptr, nullptr, 0, 0, std::uint64_t{0}, nullptr);
                  }) {
      return rma_->memory.register_memory(group_, buffer.data(), buffer.size(), type, 0, memory);
    } else {
      void* device_memory = nullptr;
      return rma_->memory.register_memory(group_, buffer.data(), buffer.size(), type, 0, memory,
                                          &device_memory);
    }
  }
  void* registered(std::vector<std::byte>& buffer) {
    void* memory = nullptr;
    must_succeed(try_to_register(buffer, kHostMemory, &memory), "regMrSym");
    return memory;
  }
  void forget(void* memory) { must_succeed(rma_->end.forget_memory(group_, memory), "deregMrSym"); }

  static constexpr bool kHasFlags = requires(const Own* own, void** request) {
    own->transfer.put(nullptr, 0, 0, nullptr, 0, 0, nullptr, 0, 0u, request);
  };
  Outcome put(std::uint64_t from_offset, void* from, std::size_t bytes, std::uint64_t to_offset, void* to,
              std::uint32_t rank, bool more, void** request) {
    const int context = static_cast<int>(random_() % kContexts);
    if constexpr (kHasFlags) {
      return rma_->transfer.put(rma_context_, context, from_offset, from, bytes, to_offset, to, rank,
                                more ? kMoreFollow : 0, request);
    } else {
      return rma_->transfer.put(rma_context_, context, from_offset, from, bytes, to_offset, to, rank,
                                request);
    }
  }
  Outcome put_signal(std::size_t bytes, void* from, void* to, std::uint32_t rank, std::uint64_t word_offset,
                     void* word, std::uint64_t value, void** request) {
    const bool strong = random_() % 2 == 0;
    const std::uint32_t operation = value == 1 ? kSignalIncrement : kSignalAdd;
    if constexpr (kHasFlags) {
      return rma_->transfer.put_signal(rma_context_, 0, 0, from, bytes, 0, to, rank, word_offset, word, value,
                                       operation, strong, 0, request);
    } else if constexpr (std::is_same_v<Own, RmaV14>) {
      return rma_->transfer.put_signal(rma_context_, 0, 0, from, bytes, 0, to, rank, word_offset, word, value,
                                       operation, strong, request);
    } else {
      return rma_->transfer.put_signal(rma_context_, 0, 0, from, bytes, 0, to, rank, word_offset, word, value,
                                       operation, request);
    }
  }
  Outcome get(void* from, std::size_t bytes, void* to, std::uint32_t rank, void** request) {
    if constexpr (kHasFlags) {
      return rma_->transfer.get(rma_context_, 0, 0, from, bytes, 0, to, rank, 0, request);
    } else {
      return rma_->transfer.get(rma_context_, 0, 0, from, bytes, 0, to, rank, request);
    }
  }
  // Returns how the request ends.
  Outcome end_of(void* request) {
    for (;;) {
      int done = 0;
      const Outcome outcome = rma_->completion.test(group_, request, &done);
      if (outcome != Outcome::kSuccess)
        must(rma_->completion.test(group_, request, &done) == Outcome::kInvalidArgument,
             "test of a request that has ended");
      if (outcome != Outcome::kSuccess || done != 0) return outcome;
      must(rma_->completion.progress(rma_context_) == Outcome::kSuccess || dying_, "rmaProgress");
    }
  }
  void must_end(void* request, const char* what) {
    must(request != nullptr, fmt::format("{} gave no request", what));
    must_succeed(end_of(request), what);
  }
  // The rank to which those of a rank that ends go, and others to rank 0.
  [[nodiscard]] std::uint32_t target() const { return rank_ == 0 ? 1 : 0; }
  // Posts that many from the first half of `memory` to the second. Those that were refused are null.
  std::vector<void*> post_puts(std::size_t count, std::size_t half, void* memory) {
    std::vector<void*> requests(count);
    for (void*& request : requests) (void)put(0, memory, half, half, memory, target(), false, &request);
    return requests;
  }
  // Waits until all have ended.
  std::size_t count_failed(const std::vector<void*>& requests) {
    return static_cast<std::size_t>(std::ranges::count_if(requests, [&](void* request) {
      return request == nullptr || end_of(request) == Outcome::kRemoteError;
    }));
  }
  std::uint64_t load(std::vector<std::byte>& words, std::size_t index) {
    auto& word = reinterpret_cast<std::uint64_t*>(words.data())[index];
    return std::atomic_ref(word).load(std::memory_order_acquire);
  }
  void exchange(std::size_t bytes);
  void again();
  void reach(std::uint32_t phase);
  void see_the_end(std::vector<std::byte>& buffer, void* memory);

  Arguments arguments_;
  std::uint32_t rank_;
  Shared& shared_;
  std::mt19937_64 random_;
  std::uint32_t rounds_ = 0;
  bool dying_ = false;  // a rank is
  const Own* rma_ = nullptr;
  void* context_ = nullptr;
  void* listener_ = nullptr;
  void* group_ = nullptr;
  void* rma_context_ = nullptr;
};

// Each rank puts to every rank, itself too, then signals; the words tell the targets that all is there. Then
// each gets it back.
template <typename Own>
void RmaRank<Own>::exchange(std::size_t bytes) {
  const std::size_t room = std::max<std::size_t>(bytes, 8);
  std::vector<std::byte> out(room);
  std::vector<std::byte> in(room * arguments_.ranks);
  std::vector<std::byte> words(8 * arguments_.ranks);
  std::vector<std::byte> back(room);
  for (std::size_t i = 0; i < bytes; ++i) out[i] = pattern(arguments_.seed + rank_, bytes, i);
  void* const from = registered(out);
  void* const to = registered(in);
  void* const word = registered(words);
  void* const again = registered(back);
  std::vector<void*> requests;
  for (std::uint32_t rank = 0; rank < arguments_.ranks; ++rank) {
    const std::size_t pieces = bytes > 65'536 || bytes == 0 ? 1 : std::min<std::size_t>(bytes, kMostOpen - 2);
    for (std::size_t i = 0; i < pieces; ++i) {
      const std::size_t at = i * bytes / pieces;
      const std::size_t piece = (i + 1) * bytes / pieces - at;
      must_succeed(
          put(at, from, piece, rank_ * room + at, to, rank, i + 1 < pieces, &requests.emplace_back()),
          "iput");
    }
    must_succeed(put_signal(0, nullptr, nullptr, rank, 8 * rank_, word, 1, &requests.emplace_back()),
                 "iputSignal");
    must_succeed(put_signal(0, nullptr, nullptr, rank, 8 * rank_, word, 41, &requests.emplace_back()),
                 "iputSignal");
  }
  for (std::uint32_t rank = 0; rank < arguments_.ranks; ++rank) {
    while (load(words, rank) != 42) must_succeed(rma_->completion.progress(rma_context_), "rmaProgress");
    for (std::size_t i = 0; i < bytes; ++i)
      must(in[rank * room + i] == pattern(arguments_.seed + rank, bytes, i),
           fmt::format("byte {} of {} B from rank {}", i, bytes, rank));
  }
  for (void* const request : requests) must_end(request, "test of a put");
  const std::uint32_t next = (rank_ + 1) % arguments_.ranks;
  void* request = nullptr;
  must_succeed(get(from, bytes, again, next, &request), "iget");
  must_end(request, "test of a get");
  must_succeed(rma_->completion.flush(rma_context_, 0, word, next, &request), "iflush");
  must_end(request, "test of a flush");
  for (std::size_t i = 0; i < bytes; ++i)
    must(back[i] == pattern(arguments_.seed + next, bytes, i), fmt::format("byte {} of a get", i));
  meet();
  for (void* const memory : {again, word, to, from}) forget(memory);
}

// Memory that is registered again has its handle again, only where it has at all ranks, and until one of the
// registrations ends.
template <typename Own>
void RmaRank<Own>::again() {
  std::vector<std::byte> buffer(4096);
  std::vector<std::byte> other(4096);
  void* const first = registered(buffer);
  must(registered(buffer) == first, "memory that is registered again has another handle");
  std::vector<void*> apart{registered(rank_ == 0 ? buffer : other)};
  must(apart[0] != first, "memory that is another at one rank has a handle that was given");
  must(registered(buffer) == first, "memory that was another at one rank in between has another handle");
  forget(first);
  meet();
  if (rank_ == 0) {
    buffer[0] = std::byte{7};
    for (void* const memory : {first, apart[0]}) {
      void* request = nullptr;
      must_succeed(put(0, memory, 1, memory == first ? 8 : 16, memory, 1, false, &request), "iput");
      must_end(request, "test of a put");
    }
  }
  meet();
  must(rank_ != 1 || (buffer[8] == std::byte{7} && other[16] == std::byte{7}), "a put by a shared handle");
  apart.push_back(registered(buffer));
  must(apart[1] != first, "memory that may have been freed has its earlier handle");
  meet();
  for (void* const memory : {apart[0], apart[1], first, first}) forget(memory);
}

template <typename Own>
void RmaRank<Own>::transfer() {
  open();
  again();
  for (const std::size_t bytes : {0, 1, 8, 4095, 65'536, 1 << 20}) exchange(bytes);
  if (arguments_.seed % 2 == 0) exchange(std::size_t{64} << 20);
  bool failed = true;
  must_succeed(rma_->completion.query_last_error(rma_context_, &failed), "queryLastError");
  must(!failed, "an error without one");
  close();
}

// Refusals of what cannot be had end at all ranks, and the group goes on.
template <typename Own>
void RmaRank<Own>::refusals() {
  open();
  std::vector<std::byte> buffer(4096);
  void* memory = nullptr;
  for (const bool everywhere : {true, false}) {
    const bool refused = everywhere || rank_ == 1;
    must(try_to_register(buffer, refused ? kCudaMemory : kHostMemory, &memory) == Outcome::kInvalidUsage,
         "memory that one rank cannot register");
  }
  must(warnings >= 1, "a refusal without a line");
  memory = registered(buffer);
  void* request = nullptr;
  must(put(1, memory, buffer.size(), 0, memory, 1, false, &request) == Outcome::kInvalidArgument, "too long");
  must(put_signal(0, nullptr, nullptr, 1, 4, memory, 1, &request) == Outcome::kInvalidArgument, "no word");
  must(rma_->completion.flush(rma_context_, 0, memory, arguments_.ranks, &request) ==
           Outcome::kInvalidArgument,
       "a rank too many");
  must(request == nullptr, "a request beside an error");
  must_succeed(put(0, memory, 8, 0, memory, 1, false, &request), "iput");
  must_end(request, "test of a put");
  meet();
  forget(memory);
  if (rank_ != 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // longer than a lost rank has
  must_succeed(rma_->completion.progress(rma_context_), "rmaProgress beside a rank that closes");
  close();
}

// Others cannot write a rank's part once that rank has ended its registration, though theirs go on.
template <typename Own>
void RmaRank<Own>::deregistered() {
  open();
  std::vector<std::byte> buffer(4096, std::byte{static_cast<unsigned char>(rank_)});
  void* const memory = registered(buffer);
  if (rank_ == 1) forget(memory);
  meet();
  if (rank_ == 0) {
    dying_ = true;  // its connection
    must(count_failed(post_puts(1, buffer.size() / 2, memory)) == 1, "a put to memory that was given up");
  }
  meet();
  must(rank_ != 1 || std::ranges::count(buffer, std::byte{1}) == 4096, "memory that was given up is written");
  close();
}

// Rank 1 kills itself: with phase 0 before it connects, 1 connected, 2 with memory, 3 in a transfer, 4 when
// rank 0 waits for its signal and has nothing open, 5 in a flush, 6 closing.
template <typename Own>
void RmaRank<Own>::killed() {
  const auto phase = static_cast<std::uint32_t>(arguments_.seed % 7);
  const auto die = [&](std::uint32_t at) {
    if (at == phase && rank_ == 1) (void)kill(getpid(), SIGKILL);
  };
  dying_ = true;
  if (phase == 0) {
    must_succeed(rma_->meeting.listen(context_, 0, shared_.handles[rank_][0].data(), &listener_), "listen");
    meet();
    die(0);
    std::vector<void*> handles;
    for (std::uint32_t rank = 0; rank < arguments_.ranks; ++rank)
      handles.push_back(shared_.handles[rank][0].data());
    must(rma_->meeting.connect(context_, handles.data(), static_cast<int>(arguments_.ranks),
                               static_cast<int>(rank_), listener_, &group_) != Outcome::kSuccess,
         "connect without a rank");
    return;
  }
  open();
  die(1);
  std::vector<std::byte> buffer(std::size_t{1} << 20);
  if (phase == 1) {
    void* memory = nullptr;
    must(try_to_register(buffer, kHostMemory, &memory) != Outcome::kSuccess, "regMrSym without a rank");
    return close();
  }
  void* const memory = registered(buffer);
  meet();
  die(2);
  if (phase == 6) {
    const bool dies_first = random_() % 2 == 0;
    if (dies_first) die(6);
    must_succeed(rma_->end.close_group(group_), "closeColl");
    die(6);
    return must_succeed(rma_->completion.finalize(context_), "finalize");
  }
  if (phase == 3 || phase == 5) {
    std::vector<void*> requests = post_puts(phase == 3 ? kMostOpen : 8, buffer.size() / 2, memory);
    if (phase == 5) (void)rma_->completion.flush(rma_context_, 0, memory, target(), &requests.emplace_back());
    for (std::uint64_t left = random_() % 50; left != 0; --left)
      (void)rma_->completion.progress(rma_context_);
    die(phase);
    const std::size_t failed = count_failed(requests);
    must(rank_ != 0 || failed != 0 || phase == 5, "no put to a killed rank failed");
  }
  die(4);
  see_the_end(buffer, memory);
  close();
}

// Rank 1 closes: with phase 0 connected, 1 with memory, 2 in a transfer. What others ask of it must fail.
template <typename Own>
void RmaRank<Own>::closing() {
  const auto phase = static_cast<std::uint32_t>(arguments_.seed % 3);
  open();
  std::vector<std::byte> buffer(std::size_t{1} << 20);
  void* memory = nullptr;
  if (phase == 0) {
    if (rank_ == 1) return close();
    must(try_to_register(buffer, kHostMemory, &memory) != Outcome::kSuccess, "regMrSym without a rank");
    return close();
  }
  memory = registered(buffer);
  std::vector<void*> requests;
  if (phase == 2) requests = post_puts(kMostOpen, buffer.size() / 2, memory);
  if (rank_ == 1) return close();
  dying_ = true;
  if (phase == 1) requests = post_puts(kMostOpen, buffer.size() / 2, memory);
  const std::size_t failed = count_failed(requests);
  must(failed != 0, "no put to a rank that closed failed");
  close();
}

// Two ranks of one process, whose thread closes one and then the other, as NCCL does.
template <typename Own>
void RmaRank<Own>::together() {
  if (rank_ != 0) return;
  unsetenv("GDX_NCCL_RMA");
  RmaRank other(arguments_, 1, shared_);
  std::thread opening([&] { other.open(); });
  open();
  opening.join();
  close();
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // longer than a lost rank has
  must_succeed(other.rma_->completion.progress(other.rma_context_),
               "rmaProgress beside a rank that has closed");
  other.close();
}

// Waits as NCCL's proxy does, for progress to tell.
template <typename Own>
void RmaRank<Own>::see_the_end(std::vector<std::byte>& buffer, void* memory) {
  Outcome outcome = Outcome::kSuccess;
  while (outcome == Outcome::kSuccess) outcome = rma_->completion.progress(rma_context_);
  must(outcome == Outcome::kRemoteError, fmt::format("rmaProgress ended with {}", static_cast<int>(outcome)));
  bool failed = false;
  must_succeed(rma_->completion.query_last_error(rma_context_, &failed), "queryLastError");
  must(failed && warnings >= 1, "a killed rank without a word");
  void* request = nullptr;
  Outcome last = put(0, memory, buffer.size(), 0, memory, 1, false, &request);
  if (last == Outcome::kSuccess) last = end_of(request);
  must(last == Outcome::kRemoteError, "iput to a killed rank");
}

template <typename Own>
int run_version(const Arguments& arguments, std::uint32_t rank, Shared& shared) {
  using Rank = RmaRank<Own>;
  const std::map<std::string, void (Rank::*)()> cases{
      {"transfer", &Rank::transfer}, {"refusals", &Rank::refusals}, {"deregistered", &Rank::deregistered},
      {"killed", &Rank::killed},     {"closing", &Rank::closing},   {"together", &Rank::together}};
  const auto found = cases.find(arguments.test);
  must(found != cases.end(), "no such case");
  Rank own(arguments, rank, shared);
  (own.*found->second)();
  return 0;
}

int run_rank(const Arguments& arguments, std::uint32_t rank, Shared& shared) {
  if (arguments.version == "v13") return run_version<RmaV13>(arguments, rank, shared);
  if (arguments.version == "v14") return run_version<RmaV14>(arguments, rank, shared);
  if (arguments.version == "v15") return run_version<RmaV15>(arguments, rank, shared);
  return run_version<RmaV16>(arguments, rank, shared);
}

}  // namespace
}  // namespace gdx::nccl

int main(int argc, char** argv) {
  if (argc != 6) {
    fmt::print(stderr, "usage: nccl_rma_driver PLUGIN v13|v14|v15|v16 CASE RANKS SEED\n");
    return 2;
  }
  return gdx::nccl::run_ranks(gdx::nccl::arguments_of(argv), gdx::nccl::run_rank);
}
