// Input values of the model. Each value names its source:
//   [spec]      PCI Express Base Specification
//   [measured]  a published measurement of that very thing
//   [fitted]    chosen so that the model meets a published measurement; it is no evidence for the model
//   [guessed]   unpublished, or chosen to meet a figure whose publication is not on record; plausible, and
//   the
//               first suspect when a figure surprises
// Source, of what names pcie-bench: Neugebauer et al., "Understanding PCIe performance for end host
// networking", SIGCOMM 2018, doi 10.1145/3230543.3230560; its measurements are github.com/pcie-bench/data.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "driver-shim/pcie/link.h"

namespace gdx::pcie {

// Buffer space that the receiver of a link advertises, by flow-control class.
struct Credits {
  std::uint32_t headers = 0;
  std::uint32_t data_bytes = 0;  // counted in units of 16 B [spec] 2.6.1
};

struct Buffers {
  // [guessed] An end point's or a switch's; enough to keep a Gen5 x16 link busy across one hop.
  Credits posted{128, 32768};
  Credits non_posted{128, 2048};
  Credits completion{256, 65536};
};

struct Requester {
  std::uint32_t tags = 256;        // [spec] 8-bit tags; 10-bit tags give 768
  std::uint32_t mrrs_bytes = 512;  // [guessed] common default of ConnectX and of servers' firmware
};

struct Completer {
  std::uint32_t latency_ns = 0;
  std::uint32_t completion_bytes = 0;  // one completion ends at multiples of it; cut down to MPS
};

enum class Origin : std::uint8_t { kGuessed, kGiven };

struct RootComplex {
  // [fitted] with host memory below to 440 ns for a 64 B DMA read, Gen3 x8, Ivy Bridge E5-2620 v2. Source:
  // pcie-bench data, lat_cmd_sizes.
  std::uint32_t memory_hop_ns = 90;
  std::uint32_t peer_hop_ns = 150;  // [guessed] port to port, one way
  bool peer_reads = true;
  bool only_one = false;  // the machine has one root complex, so no NODE or SYS path
  // Peer reads are carried out line by line. So many lines are outstanding in the root complex that the
  // request enters first. [guessed] On any platform.
  std::uint32_t peer_read_lines = 48;
  Origin peer_read_lines_are = Origin::kGuessed;
  std::uint32_t line_bytes = 64;  // [guessed] a cache line; equals the smallest RCB [spec]
  // [guessed] One way, between two root complexes of one NUMA node.
  std::uint32_t node_hop_ns = 30;
  // [fitted] One way between sockets: 440 ns becomes 506 ns for a remote 64 B read (pcie-bench data, same
  // machine).
  std::uint32_t socket_hop_ns = 33;
  double node_bytes_per_s = 100e9;  // [guessed] far above a link
  // [guessed] Peer writes between sockets were measured at 39 GB/s on dual EPYC 9374F and 51 on dual Turin.
  // Older ones are far below: kA30. Source: github.com/voipmonitor/rtx6kpro, hardware/pcie-bandwidth.md, RTX
  // PRO 6000 at Gen5.
  double socket_bytes_per_s = 40e9;
};

struct Platform {
  std::string_view name = "generic";
  std::string_view what = "a server of today";
  LinkConfig link{};
  Buffers buffers{};
  std::uint32_t link_latency_ns = 50;  // [guessed] one way: both physical and link layers, and the wire
  // [guessed] PEX89048 for Gen5 by its vendor, which is of a switch that cuts through. Here a switch forwards
  // whole packets, so a packet's own time on a link comes on top: 4 ns for 256 B there.
  std::uint32_t switch_latency_ns = 115;
  RootComplex root{};
  Requester nic{};
  Requester gpu{};
  // [guessed] With gpu_issue_ns: 0.85 us for an A100's read from a peer's BAR under its switch, as was noted
  // without its publication.
  Completer gpu_memory{250, 256};
  Completer nic_memory{200, 256};  // [guessed]
  Completer host_memory{150, 64};  // [fitted] see memory_hop_ns; 64 B completions: root complexes with RCB 64
  double memory_bytes_per_s = 200e9;  // [guessed] host memory is not what limits
  std::uint32_t gpu_issue_ns = 170;   // [guessed] from an instruction to the GPU's PCIe port, or back
  // Largest packet in which GPU stores to a BAR leave. [guessed], unpublished, and it decides the speed of a
  // push: 256 B at best, 64 B from CPUs. papers/push-vs-pull.md describes its measurement.
  std::uint32_t gpu_store_bytes = 256;
};

inline constexpr Platform kGeneric{};

// EPYC 7452, V100 (Gen3), ConnectX-6, one root complex. The lines meet 6.11 GB/s of a NIC that reads the GPU,
// as was noted without its publication.
inline constexpr Platform kEpyc7452 = [] {
  Platform platform = kGeneric;
  platform.name = "epyc-7452";
  platform.what = "EPYC 7452, V100 Gen3 x16, ConnectX-6";
  platform.link.generation = Generation::kGen3;
  platform.root.peer_read_lines = 48;  // [guessed]
  return platform;
}();

// Ivy Bridge with QPI between GPU and NIC. The lines meet peer reads of 0.25 GB/s, as were noted without
// their publication.
inline constexpr Platform kIvyBridge = [] {
  Platform platform = kGeneric;
  platform.name = "ivy-bridge";
  platform.what = "Ivy Bridge EP, Gen3 x16";
  platform.link.generation = Generation::kGen3;
  platform.root.peer_read_lines = 3;          // [guessed]
  platform.root.socket_bytes_per_s = 14.4e9;  // [spec] Intel's: QPI of an E5-2620 v2, 7.2 GT/s of 2 B
  return platform;
}();

// Intel client processors forward peer writes only. Source: D. Rossetti in issue 1253 of
// github.com/NVIDIA/open-gpu-kernel-modules, 2026, where reads by a ConnectX-5 fail.
inline constexpr Platform kIntelClient = [] {
  Platform platform = kGeneric;
  platform.name = "intel-client";
  platform.what = "Intel client processor: no peer reads across its root complex";
  platform.link.generation = Generation::kGen4;
  platform.root.peer_reads = false;  // [measured] the same issue
  platform.root.only_one = true;     // [spec] Intel's: client processors have one socket
  return platform;
}();

// A100 under a switch of an EPYC host: it reads its host's memory in 1.6 us, as was noted without its
// publication.
inline constexpr Platform kA100 = [] {
  Platform platform = kGeneric;
  platform.name = "a100";
  platform.what = "A100 Gen4 x16 under a switch";
  platform.link.generation = Generation::kGen4;
  platform.root.memory_hop_ns = 425;  // [guessed]
  return platform;
}();

// A30 and NIC on two sockets, Gen4: RDMA writes from GPU to GPU at 11 GB/s. Each reads one A30 and writes the
// other, so which of both the fit describes is not known. Source: issue 241 of
// github.com/linux-rdma/perftest, 2024, which has 23 GB/s from host to host.
inline constexpr Platform kA30 = [] {
  Platform platform = kGeneric;
  platform.name = "a30";
  platform.what = "A30 Gen4 x16 on two sockets";
  platform.link.generation = Generation::kGen4;
  platform.root.socket_bytes_per_s = 11e9;  // [fitted]
  return platform;
}();

inline constexpr std::array<const Platform*, 6> kPlatforms = {&kGeneric,     &kEpyc7452, &kIvyBridge,
                                                              &kIntelClient, &kA100,     &kA30};

}  // namespace gdx::pcie
