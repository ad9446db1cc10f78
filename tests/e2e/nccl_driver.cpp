// Driver of the plugin for NCCL: opens the library as NCCL does and calls it in the order and from the
// threads of NCCL's net transport. nccl_driver PLUGIN VERSION CASE RANKS SEED. Ranks are processes of their
// own. What goes wrong is printed, and is the program's failure; a rank that hangs is ended and named.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "tests/e2e/nccl_rank.h"

namespace gdx::nccl {

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
class Groups {
 public:
  Groups(Rank<Properties>& rank, std::uint64_t seed) : rank_(rank), seed_(seed), random_(seed) {
    while (order_.size() < kMessages) {
      auto& group = tags_.emplace_back(1 + random_() % kMostGroup);
      for (int& tag : group) order_.push_back(tag = static_cast<int>(random_() % kTags));
    }
    for (std::size_t i = 0; i < order_.size(); ++i)  // a local shuffle, as of proxies that share a connection
      std::swap(order_[i], order_[std::min(order_.size() - 1, i + random_() % 4)]);
    out_.resize(kBytes * order_.size());
    in_.resize(kBytes * order_.size());
  }
  void run() {
    out_memory_ = rank_.registered(rank_.sender(), out_);
    in_memory_ = rank_.registered(rank_.receiver(), in_);
    while (posted_ < order_.size() || !sends_.empty() || finished_ < tags_.size()) {
      if (posted_ < order_.size() && random_() % 3 != 0) post_send();
      if (group_ < tags_.size() && random_() % 3 != 0) post_group();
      std::erase_if(sends_, [&](void* request) { return rank_.test(request, nullptr); });
      if (!open_.empty()) finish_first();
    }
  }

 private:
  static constexpr std::size_t kBytes = 512;
  static constexpr int kTags = 3;
  static constexpr std::size_t kMessages = 160;
  struct Group {
    void* request;
    std::size_t first;
    std::vector<int> tags;
  };

  // Numbers a message of a tag, for its pattern.
  static std::uint64_t number(std::uint64_t order, int tag) {
    return order * kTags + static_cast<std::uint64_t>(tag);
  }
  void post_send() {
    std::byte* const from = out_.data() + posted_ * kBytes;
    const int tag = order_[posted_];
    for (std::size_t i = 0; i < kBytes; ++i) from[i] = pattern(seed_, number(sent_of_[tag], tag), i);
    void* const request = rank_.send(from, kBytes, tag, out_memory_);
    if (request == nullptr) return;
    sends_.push_back(request);
    ++sent_of_[tag];
    ++posted_;
  }
  void post_group() {
    const std::vector<int>& tags = tags_[group_];
    std::vector<void*> data;
    for (std::size_t i = 0; i < tags.size(); ++i) data.push_back(in_.data() + (places_ + i) * kBytes);
    void* const request = rank_.receive(data, std::vector<std::size_t>(tags.size(), kBytes), tags,
                                        std::vector<void*>(tags.size(), in_memory_));
    if (request == nullptr) return;
    open_.push_back({request, places_, tags});
    places_ += tags.size();
    ++group_;
  }
  void finish_first() {
    std::array<int, kMostGroup> sizes{};
    const Group& first = open_.front();
    if (!rank_.test(first.request, sizes.data())) return;
    for (std::size_t i = 0; i < first.tags.size(); ++i) {
      const int tag = first.tags[i];
      must(sizes[i] == static_cast<int>(kBytes), "a size of a group");
      const std::uint64_t message = number(received_of_[tag]++, tag);
      for (std::size_t at = 0; at < kBytes; ++at)
        must(in_[(first.first + i) * kBytes + at] == pattern(seed_, message, at),
             fmt::format("message {} of tag {} is another", message, tag));
    }
    open_.erase(open_.begin());
    ++finished_;
  }

  Rank<Properties>& rank_;
  std::uint64_t seed_;
  std::mt19937_64 random_;  // both ends draw the same tags, and then go on by themselves
  std::vector<std::vector<int>> tags_;
  std::vector<int> order_;
  std::vector<std::byte> out_;
  std::vector<std::byte> in_;
  void* out_memory_ = nullptr;
  void* in_memory_ = nullptr;
  std::vector<void*> sends_;
  std::vector<Group> open_;
  std::map<int, std::uint64_t> sent_of_;
  std::map<int, std::uint64_t> received_of_;
  std::size_t posted_ = 0;
  std::size_t group_ = 0;
  std::size_t places_ = 0;
  std::size_t finished_ = 0;
};

template <typename Properties>
void Rank<Properties>::groups() {
  open();
  Groups<Properties>(*this, arguments_.seed).run();
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
  threads.reserve(channels.size());
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
  for (int round = 0; round < 5; ++round) {
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

// Sends that are complete at rank 0 arrive at rank 1, which looks for them after rank 0 has closed.
template <typename Properties>
void Rank<Properties>::last_words() {
  open();
  constexpr std::size_t kMessages = 32;
  std::vector<std::byte> buffer(std::size_t{1} << 16, static_cast<std::byte>(1 - rank_));
  void* const memory = registered(rank_ == 0 ? sender_ : receiver_, buffer);
  std::vector<void*> requests;
  while (requests.size() < kMessages) {
    void* const request = rank_ == 0 ? send(buffer.data(), buffer.size(), 1, memory)
                                     : receive({buffer.data()}, {buffer.size()}, {1}, {memory});
    if (request != nullptr) requests.push_back(request);
  }
  if (rank_ == 0) {
    for (void* const request : requests) must_succeed(wait_for_end(request), "a send");
    close();
  }
  meet();
  std::this_thread::sleep_for(std::chrono::seconds(rank_ * 2));  // longer than a lost peer has
  if (rank_ == 0) return;
  for (void* const request : requests) must_succeed(wait_for_end(request), "a receive of a peer that closed");
  must(buffer.front() == std::byte{1} && buffer.back() == std::byte{1}, "a byte of the last message");
  close();
}

// Refusals of what cannot be had, each with a line.
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
    if (outcome != Outcome::kSuccess)
      must(net_->test(request, &done, nullptr) == Outcome::kInvalidArgument,
           "test of a request that has ended");
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
  const void* const other = receive({in.data()}, {100}, {0}, {to});
  must(other != receive({in.data()}, {100}, {0}, {to}), "two receives in one request");
  meet();
  close();
}

// Ends its process with messages open, as a program does that fails or calls exit. No thread of the library
// may go on then, because what it uses ends.
template <typename Properties>
void Rank<Properties>::exiting() {
  open();
  std::vector<std::byte> buffer(1 << 16);
  void* const memory = registered(receiver_, buffer);
  for (int i = 0; i < 8; ++i) (void)receive({buffer.data()}, {buffer.size()}, {1}, {memory});
  meet();
  (void)net_->finalize(context_);
  std::exit(0);
}

// Goes as far as `phase`: 0 listening, 1 connecting, 2 connected, 3 receives posted, 4 in a transfer, 5
// closing behind one. What rank 0 then has outstanding must end with an error, once the others have gone.
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
      const Outcome outcome = net_->connect(context_, 0, handle.data(), &sender_, nullptr);
      must(outcome == Outcome::kSuccess || next() != 0, "connect");  // others leave, too
      if (receiver_ == nullptr) must_succeed(net_->accept(listener_, &receiver_, nullptr), "accept");
      if (sender_ != nullptr || outcome != Outcome::kSuccess) break;
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
  if (phase == 5) {
    stream(64, 8, 4);
    if (rank_ == 0) return;
    must_succeed(net_->close_send(sender_), "closeSend");
    sender_ = nullptr;
    (void)leave(5);
    return;
  }
  void* const from = registered(sender_, buffer);
  void* const to = registered(receiver_, buffer);
  std::vector<void*> receives(4);
  std::vector<void*> sends(8);
  for (void*& one : receives) one = receive({buffer.data()}, {buffer.size()}, {1}, {to});
  if (leave(3)) return;
  for (void*& one : sends) one = send(buffer.data(), buffer.size(), 1, from);
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
  must(wait_for_end(send(buffer.data(), 8, 1, from)) == Outcome::kRemoteError,
       "test of an isend to a lost peer");
  must(warnings >= 1, "no line about the lost peer");
}

template <typename Properties>
void Rank<Properties>::closing() {
  std::vector<std::byte> buffer(1 << 20);
  reach(static_cast<std::uint32_t>(arguments_.seed % kPhases), buffer, false);
  close();
}

template <typename Properties>
void Rank<Properties>::killed() {
  std::vector<std::byte> buffer(1 << 20);
  reach(static_cast<std::uint32_t>(arguments_.seed % kPhases), buffer, true);
  close();
}

namespace {

void must_be_alone() {
  const std::filesystem::directory_iterator threads("/proc/self/task");
  must(std::distance(begin(threads), end(threads)) == 1, "a thread goes on beyond the end of the library");
}

template <typename Properties>
int run_rank(const Arguments& arguments, std::uint32_t rank, Shared& shared) {
  using Own = Rank<Properties>;
  const std::map<std::string, void (Own::*)()> cases{
      {"transfer", &Own::transfer}, {"groups", &Own::groups},         {"devices", &Own::devices},
      {"reuse", &Own::reuse},       {"last_words", &Own::last_words}, {"refusals", &Own::refusals},
      {"too_long", &Own::too_long}, {"exiting", &Own::exiting},       {"closing", &Own::closing},
      {"killed", &Own::killed}};
  const auto found = cases.find(arguments.test);
  must(found != cases.end(), "no such case");
  // Registered before the library is loaded, so that it runs when the library has ended.
  if (arguments.test == "exiting") (void)std::atexit(must_be_alone);
  Own own(arguments, rank, shared);
  (own.*found->second)();
  own.finalize();
  return 0;
}

}  // namespace
}  // namespace gdx::nccl

int main(int argc, char** argv) {
  if (argc != 6) {
    fmt::print(stderr, "usage: nccl_driver PLUGIN v11|v12 CASE RANKS SEED\n");
    return 2;
  }
  using namespace gdx::nccl;
  const Arguments arguments = arguments_of(argv);
  return run_ranks(arguments, arguments.version == "v11" ? run_rank<PropertiesV11> : run_rank<PropertiesV12>);
}
