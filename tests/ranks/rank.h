// One rank: a software HCA on the simulated network, and the memory that its kernels and its NIC share. It
// makes endpoints as host/queue does, without the kernel ABI between: a thousand of them open in
// milliseconds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "driver-shim/softhca/engine/engine.h"
#include "proto/gpu/memory.h"
#include "proto/gpu/queue.h"
#include "tests/ranks/network.h"

namespace gdx::ranks {

struct RankConfig {
  std::uint32_t endpoints = 1;
  std::uint32_t log_send_queue = 4;       // WQEBBs of each endpoint, and completion queue entries
  std::uint64_t buffer_bytes = 4096;      // of each endpoint: as much to send from, and as much to receive in
  std::uint64_t timeout_ns = 50'000'000;  // of every wait in device code, in virtual time
  std::uint8_t ack_timeout = 8;           // 4.096 us * 2^n
  std::uint8_t retry_count = 7;
};

class Rank {
 public:
  // Errors are of the harness's own making: they end the process with a line.
  Rank(const RankConfig& config, Network& network, std::uint32_t number, std::uint64_t seed);
  Rank(const Rank&) = delete;

  void connect(std::uint32_t endpoint, const Rank& peer, std::uint32_t peer_endpoint);

  [[nodiscard]] EndpointHandle handle(std::uint32_t endpoint);
  [[nodiscard]] LocalMemory source(std::uint32_t endpoint);
  [[nodiscard]] LocalMemory inbox(std::uint32_t endpoint);
  [[nodiscard]] std::uint64_t* signal(std::uint32_t endpoint);
  [[nodiscard]] RemoteMemory remote_inbox(std::uint32_t endpoint);
  [[nodiscard]] RemoteMemory remote_signal(std::uint32_t endpoint);

  [[nodiscard]] softhca::Hca& hca() { return *hca_; }

 private:
  // What of an endpoint's memory has a fixed size; its rings and buffers follow.
  struct Control {
    alignas(64) Be32 queue_pair_record[2];
    Be32 completion_record[2];
    alignas(64) QueueState state;
    std::uint64_t scratch;
    std::uint64_t signal;
    std::uint32_t abort;
  };
  struct EndpointMemory {
    Control* control = nullptr;
    mlx5::WqeBasicBlock* send_queue = nullptr;
    mlx5::Cqe64* completion_queue = nullptr;
    std::byte* source = nullptr;
    std::byte* inbox = nullptr;
    std::uint32_t qpn = 0;
  };
  struct Block {
    alignas(64) std::byte bytes[64];
  };

  [[nodiscard]] std::size_t endpoint_blocks() const;
  void lay_out(std::uint32_t endpoint);
  void create_queues(EndpointMemory& memory);
  [[nodiscard]] RemoteMemory remote(const void* at, std::uint64_t bytes) const;

  RankConfig config_;
  std::vector<Block> memory_;  // everything below lies in it; registered as one region
  std::vector<Block> uar_page_;
  std::vector<EndpointMemory> endpoints_;
  std::unique_ptr<softhca::Hca> hca_;
  std::uint32_t pd_ = 0;
  std::uint32_t uar_ = 0;
  std::uint32_t mkey_ = 0;
};

}  // namespace gdx::ranks
