// Nodes and links of each path class.
#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "driver-shim/pcie/fabric.h"

namespace gdx::pcie {
namespace {

constexpr std::uint32_t kNoChannel = ~std::uint32_t{0};
constexpr std::uint32_t kLargestRequestBytes = 4096;  // largest request: PCIe 5.0, 7.5.3.4

Result<void> refuse(std::string_view field, std::uint64_t value, std::string_view wanted) {
  return fail(Status::kInvalidArgument, fmt::format("{} is {}: use {}", field, value, wanted));
}

Result<void> check_size(std::string_view field, std::uint32_t bytes) {
  if (std::has_single_bit(bytes) && bytes >= 32 && bytes <= kLargestRequestBytes) return {};
  return refuse(field, bytes, "a power of two from 32 to 4096");
}

}  // namespace

Result<void> check(const Platform& platform) {
  if (auto checked = check(platform.link); !checked) return checked;
  const std::pair<std::string_view, std::uint32_t> sizes[] = {
      {"MRRS of the NIC", platform.nic.mrrs_bytes},
      {"MRRS of the GPU", platform.gpu.mrrs_bytes},
      {"completion size of GPU memory", platform.gpu_memory.completion_bytes},
      {"completion size of NIC memory", platform.nic_memory.completion_bytes},
      {"completion size of host memory", platform.host_memory.completion_bytes},
      {"line of the root complex", platform.root.line_bytes},
      {"store size of the GPU", platform.gpu_store_bytes}};
  for (const auto& [field, bytes] : sizes) {
    if (auto checked = check_size(field, bytes); !checked) return checked;
  }
  const std::pair<std::string_view, std::uint32_t> counts[] = {
      {"tags of the NIC", platform.nic.tags},
      {"tags of the GPU", platform.gpu.tags},
      {"peer read lines of the root complex", platform.root.peer_read_lines},
      {"posted headers", platform.buffers.posted.headers},
      {"non-posted headers", platform.buffers.non_posted.headers},
      {"completion headers", platform.buffers.completion.headers}};
  for (const auto& [field, count] : counts) {
    if (count == 0) return refuse(field, count, "at least 1");
  }
  // A packet that is larger than the buffer behind it would wait forever.
  for (const Credits& credits : {platform.buffers.posted, platform.buffers.completion}) {
    if (credits.data_bytes < platform.link.mps_bytes)
      return refuse("data credit", credits.data_bytes, "at least the maximum payload size");
  }
  return {};
}

Fabric::Fabric(EventQueue& events, const Platform& platform, PathClass path)
    : events_(events), platform_(platform) {
  build(path);
  route();
}

void Fabric::build(PathClass path) {
  const RootComplex& root = platform_.root;
  const std::uint32_t mps = platform_.link.mps_bytes;
  nodes_.resize(3);
  add_end(kGpuNode, platform_.gpu, platform_.gpu_memory, std::min(mps, platform_.gpu_store_bytes));
  add_end(kNicNode, platform_.nic, platform_.nic_memory, mps);
  // Host memory stands for the processor too: its stores leave in lines.
  add_end(kHostNode, Requester{}, platform_.host_memory, std::min(mps, root.line_bytes));

  const NodeId nic_root = add_node(NodeKind::kRoot);
  nodes_[nic_root].owns_host_memory = true;
  join_inside(nic_root, kHostNode, platform_.memory_bytes_per_s, 0);
  switch (path) {
    case PathClass::kPix: {
      const NodeId middle = add_node(NodeKind::kSwitch);
      for (const NodeId neighbour : {kGpuNode, kNicNode, nic_root}) join_by_link(middle, neighbour);
      return;
    }
    case PathClass::kPxb: {
      const NodeId lower = add_node(NodeKind::kSwitch);
      const NodeId upper = add_node(NodeKind::kSwitch);
      join_by_link(kGpuNode, lower);
      join_by_link(lower, upper);
      join_by_link(upper, kNicNode);
      join_by_link(upper, nic_root);
      return;
    }
    case PathClass::kPhb: {
      join_by_link(kGpuNode, nic_root);
      join_by_link(nic_root, kNicNode);
      return;
    }
    case PathClass::kNode:
    case PathClass::kSys: {
      const bool sockets = path == PathClass::kSys;
      const NodeId gpu_root = add_node(NodeKind::kRoot);
      join_by_link(kGpuNode, gpu_root);
      join_inside(gpu_root, nic_root, sockets ? root.socket_bytes_per_s : root.node_bytes_per_s,
                  from_ns(sockets ? root.socket_hop_ns : root.node_hop_ns));
      join_by_link(nic_root, kNicNode);
      return;
    }
  }
}

void Fabric::add_end(NodeId node, const Requester& requester, const Completer& completer,
                     std::uint32_t write_bytes) {
  Node& end = nodes_[node];
  end.requester = requester;
  end.completer = completer;
  end.completer.completion_bytes = std::min(completer.completion_bytes, platform_.link.mps_bytes);
  end.write_bytes = write_bytes;
  end.tags_free = requester.tags;
}

NodeId Fabric::add_node(NodeKind kind) {
  Node node;
  node.kind = kind;
  node.lines_free = platform_.root.peer_read_lines;
  nodes_.push_back(std::move(node));
  return static_cast<NodeId>(nodes_.size() - 1);
}

void Fabric::join_by_link(NodeId a, NodeId b) {
  const bool caused = platform_.link.dllp == DllpAccounting::kCaused;
  join({.from = a,
        .to = b,
        .bytes_per_s = tlp_bytes_per_s(platform_.link),
        .latency_ps = from_ns(platform_.link_latency_ns),
        .buffers = {platform_.buffers.posted, platform_.buffers.non_posted, platform_.buffers.completion},
        .framing = platform_.link.generation,
        .dllp_share = caused ? dllp_share(platform_.link) : 0});
}

void Fabric::join_inside(NodeId a, NodeId b, double bytes_per_s, TimePs latency_ps) {
  join({.from = a,
        .to = b,
        .bytes_per_s = bytes_per_s,
        .latency_ps = latency_ps,
        .buffers = {platform_.buffers.posted, platform_.buffers.non_posted, platform_.buffers.completion},
        .framing = std::nullopt});
}

void Fabric::join(ChannelConfig config) {
  channels_.emplace_back(config);
  std::swap(config.from, config.to);
  channels_.emplace_back(config);
}

// The graph is a tree, so that there is one way from anywhere to anywhere.
void Fabric::route() {
  for (NodeId target = 0; target < nodes_.size(); ++target) {
    for (Node& node : nodes_) node.next.resize(nodes_.size(), kNoChannel);
    std::deque<NodeId> reached{target};
    while (!reached.empty()) {
      const NodeId here = reached.front();
      reached.pop_front();
      for (std::uint32_t channel = 0; channel < channels_.size(); ++channel) {
        const ChannelConfig& config = channels_[channel].config();
        if (config.to != here || config.from == target) continue;
        if (nodes_[config.from].next[target] != kNoChannel) continue;
        nodes_[config.from].next[target] = channel;
        reached.push_back(config.from);
      }
    }
  }
}

bool Fabric::can_read(NodeId from, NodeId to) const {
  if (platform_.root.peer_reads || to == kHostNode || from == kHostNode) return true;
  for (NodeId node = from; node != to; node = channels_[nodes_[node].next[to]].config().to) {
    if (nodes_[node].kind == NodeKind::kRoot) return false;
  }
  return true;
}

std::uint64_t Fabric::bytes_sent(NodeId node) const {
  std::uint64_t bytes = 0;
  for (const Channel& channel : channels_) {
    if (channel.config().from == node) bytes += channel.bytes_sent();
  }
  return bytes;
}

}  // namespace gdx::pcie
