// Movement of packets.
#include "driver-shim/pcie/fabric.h"

#include <utility>

namespace gdx::pcie {
namespace {

constexpr std::uint32_t kNoJob = ~std::uint32_t{0};

}  // namespace

PacketId Fabric::make_packet(const Packet& packet) {
  if (free_packets_.empty()) {
    packets_.push_back(packet);
    return static_cast<PacketId>(packets_.size() - 1);
  }
  const PacketId id = free_packets_.back();
  free_packets_.pop_back();
  packets_[id] = packet;
  return id;
}

void Fabric::drop_packet(PacketId id) { free_packets_.push_back(id); }

std::uint32_t Fabric::make_job(std::uint64_t remaining_bytes, std::uint32_t parent, Done done) {
  Job job{remaining_bytes, parent, std::move(done)};
  if (free_jobs_.empty()) {
    jobs_.push_back(std::move(job));
    return static_cast<std::uint32_t>(jobs_.size() - 1);
  }
  const std::uint32_t id = free_jobs_.back();
  free_jobs_.pop_back();
  jobs_[id] = std::move(job);
  return id;
}

void Fabric::count_down(std::uint32_t job, std::uint32_t bytes, TimePs now) {
  jobs_[job].remaining_bytes -= bytes;
  if (jobs_[job].remaining_bytes > 0) return;
  const Done done = std::move(jobs_[job].done);
  free_jobs_.push_back(job);
  if (done) done(now);
}

void Fabric::happen_now(Done done) {
  if (done) events_.at(events_.now(), std::move(done));
}

void Fabric::write(NodeId from, NodeId to, std::uint64_t address, std::uint64_t length_bytes, Purpose purpose,
                   Done arrived) {
  if (length_bytes == 0) return happen_now(std::move(arrived));
  Traffic& traffic = counters_.writes[static_cast<std::size_t>(purpose)];
  ++traffic.transfers;
  traffic.bytes += length_bytes;
  const std::uint32_t job = make_job(length_bytes, kNoJob, std::move(arrived));
  const std::uint32_t channel = nodes_[from].next[to];
  for_each_piece(address, length_bytes, nodes_[from].write_bytes, [&](std::uint64_t at, std::uint32_t bytes) {
    ++traffic.packets;
    const PacketId id = make_packet({.kind = TlpKind::kWrite,
                                     .origin = from,
                                     .target = to,
                                     .payload_bytes = bytes,
                                     .address = at,
                                     .job = job});
    channels_[channel].enqueue(id, packets_[id]);
  });
  pump(channel, events_.now());
}

void Fabric::read(NodeId from, NodeId to, std::uint64_t address, std::uint64_t length_bytes, Purpose purpose,
                  Done done) {
  if (length_bytes == 0) return happen_now(std::move(done));
  Traffic& traffic = counters_.reads[static_cast<std::size_t>(purpose)];
  ++traffic.transfers;
  traffic.bytes += length_bytes;
  const std::uint32_t whole = make_job(length_bytes, kNoJob, std::move(done));
  for_each_piece(address, length_bytes, nodes_[from].requester.mrrs_bytes,
                 [&](std::uint64_t at, std::uint32_t bytes) {
                   ++traffic.packets;
                   const PacketId id = make_packet({.kind = TlpKind::kReadRequest,
                                                    .origin = from,
                                                    .target = to,
                                                    .requested_bytes = bytes,
                                                    .address = at,
                                                    .job = make_job(bytes, whole, nullptr)});
                   nodes_[from].untagged.push_back(id);
                 });
  issue_tagged(from, events_.now());
}

// Every outstanding read request holds one of its requester's tags.
void Fabric::issue_tagged(NodeId node, TimePs now) {
  Node& end = nodes_[node];
  while (end.tags_free > 0 && !end.untagged.empty()) {
    --end.tags_free;
    const PacketId id = end.untagged.front();
    end.untagged.pop_front();
    forward(node, id, now);
  }
}

void Fabric::forward(NodeId node, PacketId id, TimePs now) {
  const std::uint32_t channel = nodes_[node].next[packets_[id].target];
  channels_[channel].enqueue(id, packets_[id]);
  pump(channel, now);
}

void Fabric::pump(std::uint32_t channel, TimePs now) {
  const auto sent = channels_[channel].send_next(now);
  if (!sent) return;
  events_.at(sent->left_at, [this, channel, id = sent->id](TimePs left_at) {
    leave_buffer(id, left_at);
    packets_[id].held_channel = channel + 1;
    events_.at(left_at + channels_[channel].config().latency_ps,
               [this, channel, id](TimePs at) { arrive(channel, id, at); });
    pump(channel, left_at);
  });
}

// Frees the receive buffer in which the packet lay; its credits travel back to the sender.
void Fabric::leave_buffer(PacketId id, TimePs now) {
  const std::uint32_t held = packets_[id].held_channel;
  if (held == 0) return;
  packets_[id].held_channel = 0;
  const std::uint32_t channel = held - 1;
  events_.at(now + channels_[channel].config().latency_ps,
             [this, channel, kind = packets_[id].kind, bytes = packets_[id].payload_bytes](TimePs at) {
               channels_[channel].return_credits({.kind = kind, .payload_bytes = bytes});
               pump(channel, at);
             });
}

void Fabric::arrive(std::uint32_t channel, PacketId id, TimePs now) {
  const ChannelConfig& config = channels_[channel].config();
  const Packet& packet = packets_[id];
  if (config.framing) {
    const std::uint32_t bytes = wire_bytes(*config.framing, packet.kind, packet.payload_bytes);
    channels_[channel ^ 1].owe_bytes(bytes * config.dllp_share);
  }
  const NodeId node = config.to;
  if (node == packet.target) return finish(node, id, now);
  events_.at(now + transit_ps(nodes_[node], packet),
             [this, node, id](TimePs at) { pass_through(node, id, at); });
}

TimePs Fabric::transit_ps(const Node& node, const Packet& packet) const {
  if (node.kind == NodeKind::kSwitch) return from_ns(platform_.switch_latency_ns);
  const bool host_memory = packet.target == kHostNode || packet.origin == kHostNode;
  if (!host_memory) return from_ns(platform_.root.peer_hop_ns);
  // A root that only passes on to the host's own adds nothing but the hop, which is the channel's.
  return node.owns_host_memory ? from_ns(platform_.root.memory_hop_ns) : 0;
}

void Fabric::pass_through(NodeId node, PacketId id, TimePs now) {
  Packet& packet = packets_[id];
  if (nodes_[node].kind == NodeKind::kRoot) {
    const bool peers = packet.target != kHostNode && packet.origin != kHostNode;
    if (packet.kind == TlpKind::kReadRequest && peers && packet.line_holder == kNoNode) {
      nodes_[node].unserved.push_back(id);
      return serve_peer_reads(node, now);
    }
    if (packet.kind == TlpKind::kCompletion && packet.line_holder == node) {
      packet.line_holder = kNoNode;
      ++nodes_[node].lines_free;
      serve_peer_reads(node, now);
    }
  }
  forward(node, id, now);
}

// A root complex reads a peer on the requester's behalf, in lines, as far as its line buffers go.
void Fabric::serve_peer_reads(NodeId root, TimePs now) {
  while (nodes_[root].lines_free > 0 && !nodes_[root].unserved.empty()) {
    const PacketId id = nodes_[root].unserved.front();
    Packet line = packets_[id];
    line.requested_bytes = first_piece(line.address, line.requested_bytes, platform_.root.line_bytes);
    line.line_holder = root;
    line.held_channel = 0;
    packets_[id].address += line.requested_bytes;
    packets_[id].requested_bytes -= line.requested_bytes;
    --nodes_[root].lines_free;
    if (packets_[id].requested_bytes == 0) {
      nodes_[root].unserved.pop_front();
      leave_buffer(id, now);
      drop_packet(id);
    }
    forward(root, make_packet(line), now);
  }
}

void Fabric::finish(NodeId node, PacketId id, TimePs now) {
  leave_buffer(id, now);
  const Packet packet = packets_[id];
  drop_packet(id);
  switch (packet.kind) {
    case TlpKind::kWrite: return count_down(packet.job, packet.payload_bytes, now);
    case TlpKind::kReadRequest: {
      const TimePs latency_ps = from_ns(nodes_[node].completer.latency_ns);
      events_.at(now + latency_ps, [this, node, packet](TimePs at) { complete_read(node, packet, at); });
      return;
    }
    case TlpKind::kCompletion: {
      const std::uint32_t whole = jobs_[packet.job].parent;
      const bool request_done = jobs_[packet.job].remaining_bytes == packet.payload_bytes;
      count_down(packet.job, packet.payload_bytes, now);
      if (request_done) ++nodes_[node].tags_free;
      count_down(whole, packet.payload_bytes, now);
      if (request_done) issue_tagged(node, now);
      return;
    }
  }
}

void Fabric::complete_read(NodeId node, const Packet& request, TimePs now) {
  const std::uint32_t channel = nodes_[node].next[request.origin];
  for_each_piece(request.address, request.requested_bytes, nodes_[node].completer.completion_bytes,
                 [&](std::uint64_t at, std::uint32_t bytes) {
                   const PacketId id = make_packet({.kind = TlpKind::kCompletion,
                                                    .origin = node,
                                                    .target = request.origin,
                                                    .payload_bytes = bytes,
                                                    .address = at,
                                                    .job = request.job,
                                                    .line_holder = request.line_holder});
                   channels_[channel].enqueue(id, packets_[id]);
                 });
  pump(channel, now);
}

}  // namespace gdx::pcie
