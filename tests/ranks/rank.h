// One rank: a software HCA on the simulated network, and the memory that its kernels and its NIC share. It
// makes endpoints as host/queue does, without the kernel ABI between: a thousand of them open in
// milliseconds.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "driver-shim/softhca/engine/engine.h"
#include "host/staging/credit_exchange.h"
#include "proto/gpu/memory.h"
#include "proto/gpu/queue.h"
#include "proto/mlx5/doorbell.h"
#include "tests/ranks/bus.h"
#include "tests/ranks/network.h"

namespace gdx::ranks {

struct RankConfig {
  std::uint32_t endpoints = 1;
  std::uint32_t log_send_queue = 4;       // WQEBBs of each endpoint, and completion queue entries
  std::uint64_t buffer_bytes = 4096;      // of each endpoint: as much to send from, and as much to receive in
  std::uint64_t timeout_ns = 50'000'000;  // of every wait in device code, in virtual time
  std::uint8_t ack_timeout = 8;           // 4.096 us * 2^n
  std::uint8_t retry_count = 7;
  std::uint32_t slots = 0;  // of staging memory, a power of two, shared by all endpoints; 0: they cannot push
  std::uint32_t slot_bytes = kDefaultSlotBytes;
  bool odd_endpoints_push = true;
  bool blueflame = false;
  std::optional<BusConfig> bus = std::nullopt;
  std::uint64_t order_ns = 0;  // of the fence before a doorbell, across the bus
  bool bounces = false;        // the slots are host memory
  bool pulls = false;          // the NIC fetches what messages consist of; signals always come with their WQE
  std::function<void(std::uint32_t endpoint)> taken =
      {};  // called for each packet to an endpoint; null: none
};

class Rank {
 public:
  // Errors are of the harness's own making: they end the process with a line.
  Rank(const RankConfig& config, Network& network, std::uint32_t number, std::uint64_t seed);
  Rank(const Rank&) = delete;

  void connect(std::uint32_t endpoint, Rank& peer, std::uint32_t peer_endpoint);

  [[nodiscard]] EndpointHandle handle(std::uint32_t endpoint);
  [[nodiscard]] LocalMemory source(std::uint32_t endpoint);
  [[nodiscard]] LocalMemory inbox(std::uint32_t endpoint);
  [[nodiscard]] std::uint64_t* signal(std::uint32_t endpoint);
  [[nodiscard]] RemoteMemory remote_inbox(std::uint32_t endpoint);
  [[nodiscard]] RemoteMemory remote_signal(std::uint32_t endpoint);

  // One step of the HCA, and one poll of the credit scheduler. Returns the number of things done.
  int progress();
  // A kernel has stored payload into staging memory, or host memory.
  void note_store(std::uint64_t bytes) {
    if (!bus_) return;
    if (config_.bounces) {
      bus_->gpu_stores_bounce(bytes);
    } else {
      bus_->gpu_stores_payload(bytes);
    }
  }
  // Returns whether only the host writes the word; false without a bus.
  [[nodiscard]] bool is_host_word(std::uint32_t endpoint, const void* word) const;
  void carry_load(std::uint64_t bytes, Bus::Done done) { bus_->gpu_loads_host_word(bytes, std::move(done)); }
  // Starts what a kernel has rung on its way to the NIC, when it has been ordered. Returns how many
  // doorbells. Without a bus they are there.
  int carry_doorbells(std::uint32_t endpoint);

  [[nodiscard]] softhca::Hca& hca() { return *hca_; }
  [[nodiscard]] const Bus* bus() const { return bus_.get(); }
  // Returns the time at which the last payload across the bus was in the GPU's memory.
  [[nodiscard]] std::uint64_t delivered_ns() const { return delivered_ns_; }

 private:
  // Part of an endpoint's memory with a fixed size; its rings and buffers follow.
  struct Control {
    alignas(64) Be32 queue_pair_record[2];
    Be32 completion_record[2];
    alignas(64) QueueState state;
    std::uint64_t scratch;
    std::uint64_t signal;
    std::uint32_t abort;
    std::uint64_t owner;
    std::uint64_t grants;
    CreditRequests requests;
    // With a bus: where the GPU rings, and the record as far as the NIC has it.
    alignas(64) std::byte doorbell[mlx5::kBlueFlameRegisterBytes];
    Be32 fetched_record[2];
  };
  using DoorbellWords = std::array<std::uint64_t, 8>;
  struct CarriedDoorbell {
    std::size_t half = 0;
    DoorbellWords words{};
    bool with_wqe = false;
    std::uint16_t produced = 0;  // the NIC's position in the queue then
    bool fetched = false;
  };
  struct EndpointMemory {
    Control* control = nullptr;
    mlx5::WqeBasicBlock* send_queue = nullptr;
    mlx5::Cqe64* completion_queue = nullptr;
    std::byte* source = nullptr;
    std::byte* inbox = nullptr;
    // The credits' queues, each as long as the pool has slots.
    std::uint32_t* granted_slots = nullptr;
    std::uint32_t* returned_slots = nullptr;
    HeldSlot* held = nullptr;
    std::uint32_t qpn = 0;
    // With a bus, which parts what the GPU writes from what the NIC sees:
    std::byte* uar_page = nullptr;
    mlx5::Cqe64* written_completions = nullptr;
    std::uint32_t completions = 0;          // carried to the GPU's side
    std::uint16_t stored_blocks = 0;        // of the send queue, by the GPU
    std::uint16_t ordered_blocks = 0;       // of these, whose fence has ended: as the record has it
    std::uint16_t asked_blocks = 0;         // of it, by the NIC
    std::deque<CarriedDoorbell> doorbells;  // their WQEs are on the way, or waited for by one that is
  };
  struct Block {
    alignas(64) std::byte bytes[64];
  };

  [[nodiscard]] std::size_t endpoint_blocks() const;
  void lay_out(std::uint32_t endpoint);
  void create_queues(EndpointMemory& memory);
  void share_staging(EndpointMemory& memory);
  void describe_staging(const EndpointMemory& memory, StagingHandle& staging);
  static void take_minimum(const StagingHandle& staging, StagingState& state);
  [[nodiscard]] std::uint32_t lease_slots() const;
  void open_hca(Network& network, std::uint32_t number, std::uint64_t seed);
  [[nodiscard]] Network::Nic make_nic(Network& network);
  [[nodiscard]] bool is_fetched(std::span<const std::byte> datagram) const;
  void ring_ordered(EndpointMemory& memory, CarriedDoorbell doorbell, std::uint16_t posted);
  void doorbell_arrives(EndpointMemory& memory, CarriedDoorbell doorbell);
  [[nodiscard]] static std::uint16_t posted_blocks(const EndpointMemory& memory);
  static void ring_fetched(EndpointMemory& memory);
  int carry_completions(EndpointMemory& memory);
  [[nodiscard]] RemoteMemory remote(const void* at, std::uint64_t bytes) const;

  RankConfig config_;
  pcie::EventQueue& events_;
  std::vector<Block> memory_;     // everything below lies in it; registered as one region
  std::vector<Block> uar_pages_;  // one, or with a bus one for each endpoint
  std::vector<Block> staging_;    // the NIC's, or the host's
  std::vector<EndpointMemory> endpoints_;
  std::optional<CreditExchange> credits_;
  std::unordered_set<std::uint64_t> peer_signals_;                // their addresses
  std::unordered_map<std::uint32_t, std::uint32_t> endpoint_of_;  // by queue pair
  std::unique_ptr<Bus> bus_;
  std::unique_ptr<softhca::Hca> hca_;
  std::uint32_t pd_ = 0;
  std::uint32_t uar_ = 0;
  std::uint32_t mkey_ = 0;
  std::uint32_t staging_key_ = 0;
  std::uint64_t delivered_ns_ = 0;
};

}  // namespace gdx::ranks
