// Bus between one rank's NIC and its GPU, and between the NIC and the memory it reads and writes. Null
// without a bus: then memory is as near as registers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "driver-shim/pcie/fabric.h"
#include "driver-shim/pcie/world/world_config.h"

namespace gdx::ranks {

struct BusConfig {
  pcie::Platform platform = pcie::kGeneric;
  PathClass path = PathClass::kPix;
  pcie::QueuePlacement queues = pcie::QueuePlacement::kHost;
  RecordUse record = RecordUse::kRead;  // as pcie::WorldConfig
  std::uint32_t nic_ns = 150;  // [guessed] a NIC's pipeline, per message and direction, as pcie::WorldConfig
};

// One PCIe path in virtual time. Each call starts a transfer; `done` runs when it has happened, at once where
// there is nothing to transfer.
class Bus {
 public:
  using Done = std::function<void()>;

  // `config` and `events` outlive the bus.
  Bus(pcie::EventQueue& events, const BusConfig& config)
      : config_(config), events_(events), fabric_(events, config.platform, config.path) {}

  void gpu_stores_payload(std::uint64_t bytes) {
    write(pcie::kGpuNode, pcie::kNicNode, bytes, pcie::Purpose::kPayload, {});
  }
  void gpu_stores_bounce(std::uint64_t bytes) {
    write(pcie::kGpuNode, pcie::kHostNode, bytes, pcie::Purpose::kPayload, {});
  }
  // WQEs of so many bytes, and the doorbell record.
  void gpu_posts(std::uint64_t wqe_bytes) {
    if (queue_node() == pcie::kGpuNode || wqe_bytes == 0) return;
    write(pcie::kGpuNode, pcie::kHostNode, wqe_bytes, pcie::Purpose::kWqe, {});
    write(pcie::kGpuNode, pcie::kHostNode, sizeof(std::uint32_t), pcie::Purpose::kRecord, {});
  }
  void gpu_rings(std::uint64_t bytes, Done done) {
    write(pcie::kGpuNode, pcie::kNicNode, bytes, pcie::Purpose::kDoorbell, std::move(done));
  }
  // As pcie/world/modes.h has it: a doorbell that brought no WQE costs a read of the record before that,
  // where records are read.
  void nic_fetches_record(Done done) {
    if (config_.record == RecordUse::kUnread) return done();
    read(queue_node(), sizeof(std::uint32_t), pcie::Purpose::kRecord, std::move(done));
  }
  void nic_fetches_wqes(std::uint64_t bytes, Done done) {
    read(queue_node(), bytes, pcie::Purpose::kWqe, std::move(done));
  }
  void nic_fetches_payload(bool bounced, std::uint64_t bytes, Done done) {
    read(bounced ? pcie::kHostNode : pcie::kGpuNode, bytes, pcie::Purpose::kPayload, std::move(done));
  }
  void nic_delivers_payload(std::uint64_t bytes, Done done) {
    write(pcie::kNicNode, pcie::kGpuNode, bytes, pcie::Purpose::kPayload, std::move(done));
  }
  // Until a polling GPU has seen it: where the queue is in host memory, it must read it across the path.
  void nic_completes(Done done);
  // A word that only the host writes, as grants of credits are.
  void gpu_loads_host_word(std::uint64_t bytes, Done done) {
    load(bytes, pcie::Purpose::kHostWord, std::move(done));
  }
  // The NIC's own time on a message, each way.
  void nic_works(Done done);

  [[nodiscard]] const pcie::Counters& counters() const { return fabric_.counters(); }

 private:
  [[nodiscard]] pcie::NodeId queue_node() const {
    return config_.queues == pcie::QueuePlacement::kGpu ? pcie::kGpuNode : pcie::kHostNode;
  }
  void write(pcie::NodeId from, pcie::NodeId to, std::uint64_t bytes, pcie::Purpose purpose, Done done);
  void read(pcie::NodeId from, std::uint64_t bytes, pcie::Purpose purpose, Done done);
  void load(std::uint64_t bytes, pcie::Purpose purpose, Done done);

  const BusConfig& config_;
  pcie::EventQueue& events_;
  pcie::Fabric fabric_;
};

}  // namespace gdx::ranks
