// One rank of the driver of the plugin for NCCL: the calls of NCCL's net transport, each checked.
#pragma once

#include <fmt/format.h>

#include <array>
#include <random>
#include <string>
#include <vector>

#include "tests/e2e/nccl_ranks.h"

namespace gdx::nccl {

inline constexpr std::size_t kMostGroup = 8;
inline constexpr std::uint64_t kPhases = 6;  // in which a rank may leave

// One rank's half of the calls, by either version's struct.
template <typename Properties>
class Rank {
 public:
  Rank(const Arguments& given, std::uint32_t rank, Shared& shared)
      : arguments_(given), rank_(rank), shared_(shared), random_(given.seed * kMostRanks + rank) {
    net_ = interface_of<Net<Properties>>(given, "ncclNetPlugin_");
    int config = -1;
    if (given.test == "refusals") {
      setenv("NCCL_SOCKET_IFNAME", "none0", 1);
      must(net_->init(&context_, given.seed, &config, logger, nullptr) == Outcome::kInvalidArgument,
           "an interface that is not there");
      setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    }
    must_succeed(net_->init(&context_, given.seed, &config, logger, nullptr), "init");
    must_succeed(net_->devices(&devices_), "devices");
    must(devices_ > 0, "no device");
    Properties properties{};
    must_succeed(net_->get_properties(0, &properties), "getProperties");
    must(properties.pointers == kHostMemory && properties.most_receives == static_cast<int>(kMostGroup),
         "properties");
  }

  [[nodiscard]] std::uint32_t next() const { return (rank_ + 1) % arguments_.ranks; }

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
    void* other = nullptr;
    int config = -1;
    must_succeed(net_->init(&other, arguments_.seed, &config, logger, nullptr), "init again");
    must_succeed(net_->finalize(context_), "finalize again");
    std::array<std::byte, kHandleBytes> handle{};
    must(net_->listen(context_, 0, handle.data(), &listener_) == Outcome::kInvalidArgument,
         "an ended context");
    must_succeed(net_->listen(other, 0, handle.data(), &listener_), "listen of another context");
    close();
    must_succeed(net_->finalize(other), "finalize of another context");
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

  // Returns whether the request is complete.
  bool test(void* request, int* sizes) {
    int done = 0;
    must_succeed(net_->test(request, &done, sizes), "test");
    return done != 0;
  }
  [[nodiscard]] void* sender() const { return sender_; }
  [[nodiscard]] void* receiver() const { return receiver_; }

  void transfer();
  void groups();
  void devices();
  void reuse();
  void last_words();
  void refusals();
  void too_long();
  void exiting();
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

}  // namespace gdx::nccl
