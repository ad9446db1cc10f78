// Everything between a GPU, a NIC and host memory: the links, switches and root complexes of one path class,
// in virtual time. Reads and writes go in, their completion comes out as an event.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "driver-shim/pcie/channel.h"
#include "driver-shim/pcie/event_queue.h"
#include "proto/path_class.h"

namespace gdx::pcie {

// The ends of a path, in every fabric.
inline constexpr NodeId kGpuNode = 0;
inline constexpr NodeId kNicNode = 1;
inline constexpr NodeId kHostNode = 2;  // host memory beside the NIC: on its socket, for SYS

// Errors: kInvalidArgument naming the parameter that makes no sense.
[[nodiscard]] Result<void> check(const Platform& platform);

class Fabric {
 public:
  using Done = EventQueue::Handler;

  // `platform` has passed check(). `events` and `platform` outlive the fabric.
  Fabric(EventQueue& events, const Platform& platform, PathClass path);

  // Makes a posted write. `arrived` runs when its last byte is in the target's memory; the writer gets no
  // report. A write or read of no bytes makes no packet, and `arrived` runs at once.
  // Ordering: writes from one end to another arrive in the order of the calls.
  void write(NodeId from, NodeId to, std::uint64_t address, std::uint64_t length_bytes, Purpose purpose,
             Done arrived);

  // `done` runs when the last completion has arrived. Requests are cut at MRRS and wait for tags.
  // can_read() must hold.
  void read(NodeId from, NodeId to, std::uint64_t address, std::uint64_t length_bytes, Purpose purpose,
            Done done);

  // Returns false if a root complex on the way refuses peer reads.
  [[nodiscard]] bool can_read(NodeId from, NodeId to) const;

  [[nodiscard]] const Counters& counters() const { return counters_; }

  // Bytes that have left a node towards its neighbours, headers included.
  [[nodiscard]] std::uint64_t bytes_sent(NodeId node) const;

 private:
  enum class NodeKind : std::uint8_t { kEnd, kSwitch, kRoot };
  struct Node {
    NodeKind kind = NodeKind::kEnd;
    std::vector<std::uint32_t> next{};  // channel to take towards each target
    // Members below are used if this is an end.
    Completer completer;
    Requester requester;
    std::uint32_t write_bytes = 0;
    std::uint32_t tags_free = 0;
    std::deque<PacketId> untagged;
    // Members below are used if this is a root complex.
    bool owns_host_memory = false;
    std::uint32_t lines_free = 0;
    std::deque<PacketId> unserved;  // peer reads, the first one possibly served in part
  };
  struct Job {  // a write, a read, or one request of a read
    std::uint64_t remaining_bytes = 0;
    std::uint32_t parent = 0;
    Done done;
  };

  void build(PathClass path);
  void add_end(NodeId node, const Requester& requester, const Completer& completer,
               std::uint32_t write_bytes);
  NodeId add_node(NodeKind kind);
  void join_by_link(NodeId a, NodeId b);
  void join_inside(NodeId a, NodeId b, double bytes_per_s, TimePs latency_ps);
  void join(ChannelConfig config);
  void route();

  PacketId make_packet(const Packet& packet);
  void drop_packet(PacketId id);
  std::uint32_t make_job(std::uint64_t remaining_bytes, std::uint32_t parent, Done done);
  void count_down(std::uint32_t job, std::uint32_t bytes, TimePs now);
  void happen_now(Done done);

  void issue_tagged(NodeId node, TimePs now);
  void forward(NodeId node, PacketId id, TimePs now);
  void pump(std::uint32_t channel, TimePs now);
  void leave_buffer(PacketId id, TimePs now);
  void arrive(std::uint32_t channel, PacketId id, TimePs now);
  void pass_through(NodeId node, PacketId id, TimePs now);
  void finish(NodeId node, PacketId id, TimePs now);
  void complete_read(NodeId node, const Packet& request, TimePs now);
  void serve_peer_reads(NodeId root, TimePs now);
  [[nodiscard]] TimePs transit_ps(const Node& node, const Packet& packet) const;

  EventQueue& events_;
  const Platform& platform_;
  std::vector<Node> nodes_;
  std::vector<Channel> channels_;  // 2n and 2n + 1 are the two directions of link n
  std::vector<Packet> packets_;
  std::vector<PacketId> free_packets_;
  std::vector<Job> jobs_;
  std::vector<std::uint32_t> free_jobs_;
  Counters counters_;
};

}  // namespace gdx::pcie
