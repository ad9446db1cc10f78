// Two machines, each a GPU and a NIC on one PCIe path, and the wire between them: messages go from GPU memory
// to GPU memory, in virtual time.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "driver-shim/pcie/fabric.h"
#include "driver-shim/pcie/world/world_config.h"

namespace gdx::pcie {

class World {
 public:
  // `config` has passed both checks, the second for the size that begin() is given, and outlives the world.
  World(const WorldConfig& config, Mode mode);

  struct Events {
    std::function<void(TimePs now, std::uint64_t bytes)> delivered;  // in the peer's GPU memory
    std::function<void(TimePs now)> completed;  // a whole message; its poster has the completion
  };

  // Puts `message_bytes` so many times, through so many endpoints; step() lets it happen. Once.
  void begin(std::uint64_t message_bytes, std::uint64_t messages, std::uint32_t lanes, const Events& events);

  // Executes the next event. Returns false once all is complete.
  bool step() { return events_.step(); }

  [[nodiscard]] TimePs now() const { return events_.now(); }
  [[nodiscard]] const Counters& sender_counters() const { return sender_.counters(); }

 private:
  // Work requests that are ordered, and announced, together: of a part of one put, or of `puts`.
  struct Batch {
    std::uint32_t lane = 0;
    std::uint64_t address = 0;
    std::uint64_t payload_bytes = 0;
    std::uint32_t puts = 1;
    std::uint32_t wqes = 1;
    std::uint32_t wqe_bytes = 0;
    std::uint32_t slots = 0;
    bool ends_message = false;
    std::size_t step = 0;
    std::uint64_t at_peer_bytes = 0;
    std::uint32_t polled = 0;
  };
  struct Lane {
    std::uint64_t messages_left = 0;  // messages that have not begun
    std::uint32_t puts = 0;           // puts under way; the next field has their rest
    std::uint64_t rest_bytes = 0;
    std::uint32_t uncompleted = 0;  // batches
    std::uint32_t slots = 0;        // slots in use
    bool posting = false;
  };
  using BatchId = std::uint32_t;
  // Part of a batch that is not yet on the wire.
  struct Sending {
    BatchId id = 0;
    NodeId source = kNoNode;
    std::uint64_t address = 0;
    std::uint64_t rest_bytes = 0;
    bool first = true;
  };

  void post_next(std::uint32_t lane, TimePs now);
  void may_post(std::uint32_t lane, TimePs now);
  void start(const Batch& batch, TimePs now);
  [[nodiscard]] Batch next_batch(std::uint32_t lane) const;
  void take_step(BatchId id, TimePs now);
  void step_done(BatchId id, TimePs now);
  void store(BatchId id, const Step& step, TimePs now);
  void ring(BatchId id, const Step& step, TimePs now);
  void load(BatchId id, const Step& step, TimePs now);
  void order(BatchId id, const Step& step, TimePs now);
  void send(BatchId id, const Step& step, TimePs now);
  void fetch_packets();
  void transmit(BatchId id, std::uint32_t bytes, bool first, TimePs now);
  void receive(BatchId id, std::uint32_t bytes, TimePs now);
  void finish(BatchId id, TimePs now);

  [[nodiscard]] const Step* next_step(const Batch& batch) const;
  // Returns how many transfers a step makes: one for each put where each has a place of its own.
  [[nodiscard]] static std::uint32_t transfers(Extent extent, const Batch& batch);
  // Returns whether the batch's doorbells carry its WQEs.
  [[nodiscard]] bool is_brought(const Batch& batch) const;
  [[nodiscard]] NodeId node_of(Place place) const;
  [[nodiscard]] static NodeId node_of(Actor actor);
  [[nodiscard]] static std::uint64_t extent_bytes(Extent extent, const Batch& batch);

  const WorldConfig& config_;
  Mode mode_;
  std::span<const Step> steps_;
  EventQueue events_;
  Fabric sender_;
  Fabric receiver_;
  Events observer_;
  std::uint64_t message_bytes_ = 0;
  std::vector<Lane> lanes_;
  std::vector<Batch> batches_;
  std::vector<BatchId> free_batches_;
  std::uint32_t slot_bytes_ = 0;  // payload of one slot
  std::uint32_t slots_free_ = 0;
  std::uint32_t lease_ = 0;         // slots that one endpoint may use
  std::uint32_t puts_a_batch_ = 1;  // puts under one doorbell
  std::deque<std::uint32_t> waiting_for_slots_;
  std::deque<Sending> sending_;            // served in turn, a packet each
  std::uint64_t fetched_ahead_bytes_ = 0;  // requested or here, and not yet on the wire
  TimePs wire_free_at_ = 0;
};

}  // namespace gdx::pcie
