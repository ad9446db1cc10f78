#include "driver-shim/pcie/model/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/output.h"

namespace gdx::pcie {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kNsPerUs = 1000;
constexpr std::string_view kCompleted =
    "completed: the poster has seen the ACK, which the peer's NIC sends when it accepts a packet, before its "
    "PCIe write lands";

std::string traffic_text(const std::array<Traffic, kPurposes>& traffic) {
  std::string text;
  for (std::size_t i = 0; i < kPurposes; ++i) {
    if (traffic[i].transfers == 0) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", traffic[i].transfers, kPurposeNames[i]);
  }
  return text.empty() ? "none" : text;
}

Json traffic_json(const std::array<Traffic, kPurposes>& traffic) {
  Json all = Json::object();
  for (std::size_t i = 0; i < kPurposes; ++i) {
    if (traffic[i].transfers == 0) continue;
    all[std::string(kPurposeNames[i])] = {
        {"transfers", traffic[i].transfers}, {"packets", traffic[i].packets}, {"bytes", traffic[i].bytes}};
  }
  return all;
}

std::optional<Rate> rate_below_ceiling(const WorldConfig& world, Mode mode, std::uint64_t size_bytes) {
  const Rate rate = measure_rate(world, mode, size_bytes);
  if (rate.messages_per_s > most_messages_per_s(world)) return std::nullopt;
  return rate;
}

// Returns the kind of doorbell that rings. A batch is rung by a plain one.
DoorbellKind kind_rung(const WorldConfig& world) {
  return world.batch == 1 ? world.doorbell : DoorbellKind::kPlain;
}

}  // namespace

Report run_model(const ModelRequest& request) {
  Report report{.world = request.world, .rows = {}, .not_possible = {}};
  const Progress progress;
  for (const Mode mode : request.modes) {
    std::vector<std::uint64_t> refused_bytes;
    std::string why;
    for (const std::uint64_t size : request.sizes_bytes) {
      if (auto checked = check(request.world, mode, size); !checked) {
        refused_bytes.push_back(size);
        why = checked.error().message;
        continue;
      }
      progress.show("modelling {} of {} B", name(mode), size);
      report.rows.push_back({.mode = mode,
                             .size_bytes = size,
                             .latency = measure_latency(request.world, mode, size),
                             .rate = rate_below_ceiling(request.world, mode, size)});
    }
    if (refused_bytes.empty()) continue;
    report.not_possible.push_back(
        fmt::format("{} of {} B: {}", name(mode), fmt::join(refused_bytes, ", "), why));
  }
  return report;
}

std::string heading(const WorldConfig& world) {
  const Platform& platform = world.platform;
  return fmt::format(
      "modelled: {}, {} path, Gen{} x{}, MPS {} B, GPU stores of {} B, queues in {} memory, {}, records {}, "
      "{} Gb/s wire{}",
      platform.name, name(world.path), static_cast<int>(platform.link.generation), platform.link.lanes,
      platform.link.mps_bytes, platform.gpu_store_bytes,
      world.queues == QueuePlacement::kGpu ? "GPU" : "host",
      kind_rung(world) == DoorbellKind::kBlueFlame ? "BlueFlame" : "plain doorbells", name(world.record),
      world.wire.bits_per_s / 1e9, world.batch == 1 ? "" : fmt::format(", batches of {} puts", world.batch));
}

std::string caveat(const WorldConfig& world) {
  const RootComplex& root = world.platform.root;
  if (!crosses_root_complex(world.path) || !root.peer_reads) return "";
  return fmt::format("{}: a root complex keeps {} lines of peer reads outstanding; it limits pull",
                     root.peer_read_lines_are == Origin::kGiven ? "given" : "guessed", root.peer_read_lines);
}

std::string proposals(const Report& report) {
  const bool any = std::any_of(report.rows.begin(), report.rows.end(),
                               [](const Row& row) { return is_proposal(row.mode); });
  return any ? "proposed: push-flags needs a NIC that checks flags, push-ordered a GPU and a NIC that keep "
               "stores in order; none of today does"
             : "";
}

std::string withheld(const Report& report) {
  const bool any = std::ranges::any_of(report.rows, [](const Row& row) { return !row.rate; });
  return any ? fmt::format(
                   "no rate: more than the {:.1f} million messages a second that were published, of "
                   "{:.1f} by one queue",
                   most_messages_per_s(report.world) / 1e6, kMostMessagesOfQueuePerS / 1e6)
             : "";
}

std::string to_text(const Report& report) {
  std::string text = heading(report.world) + "\n";
  if (const std::string guessed = caveat(report.world); !guessed.empty()) text += guessed + "\n";
  if (const std::string proposed = proposals(report); !proposed.empty()) text += proposed + "\n";
  if (const std::string kept = withheld(report); !kept.empty()) text += kept + "\n";
  text += fmt::format("{}\n", kCompleted);
  const std::uint32_t batch = report.world.batch;
  text += fmt::format("{:12} {:>9} {:>12} {:>12} {:>9} {:>9}  PCIe transfers of {}: reads; writes\n", "mode",
                      "bytes", "delivered us", "completed us", "Gb/s", "Mmsg/s",
                      batch == 1 ? "one put" : fmt::format("{} puts", batch));
  for (const Row& row : report.rows) {
    text += fmt::format("{:12} {:>9} {:>12.3f} {:>12.3f} ", name(row.mode), row.size_bytes,
                        row.latency.delivered_ns / kNsPerUs, row.latency.completed_ns / kNsPerUs);
    text += row.rate ? fmt::format("{:>9.2f} {:>9.3f}", row.rate->bytes_per_s * 8 / 1e9,
                                   row.rate->messages_per_s / 1e6)
                     : fmt::format("{:>9} {:>9}", "-", "-");
    text += fmt::format("  {}; {}\n", traffic_text(row.latency.counters.reads),
                        traffic_text(row.latency.counters.writes));
  }
  for (const std::string& why : report.not_possible) text += fmt::format("not possible: {}\n", why);
  return text;
}

std::string to_json(const Report& report) {
  const WorldConfig& world = report.world;
  Json json = {{"label", "modelled"},
               {"platform", std::string(world.platform.name)},
               {"path", std::string(name(world.path))},
               {"generation", static_cast<int>(world.platform.link.generation)},
               {"lanes", world.platform.link.lanes},
               {"mps_bytes", world.platform.link.mps_bytes},
               {"gpu_store_bytes", world.platform.gpu_store_bytes},
               {"queues", world.queues == QueuePlacement::kGpu ? "gpu" : "host"},
               {"doorbell", std::string(name(kind_rung(world)))},
               {"record", std::string(name(world.record))},
               {"wire_gbps", world.wire.bits_per_s / 1e9},
               {"mtu_bytes", world.wire.mtu_bytes},
               {"peer_read_lines", world.platform.root.peer_read_lines},
               {"rcb_bytes", world.platform.host_memory.completion_bytes},
               {"socket_gbps", world.platform.root.socket_bytes_per_s * 8 / 1e9},
               {"pool_bytes", world.staging.pool_bytes},
               {"slot_bytes", world.staging.slot_bytes},
               {"order_gpu_scope_ns", world.ordering.gpu_scope_ns},
               {"order_system_scope_ns", world.ordering.system_scope_ns},
               {"endpoints", world.lanes},
               {"batch", world.batch},
               {"most_messages_per_s", most_messages_per_s(world)},
               {"caveat", caveat(world)},
               {"proposed", proposals(report)},
               {"withheld", withheld(report)},
               {"completed", kCompleted},
               {"rows", Json::array()},
               {"not_possible", report.not_possible}};
  for (const Row& row : report.rows) {
    json["rows"].push_back({{"mode", std::string(name(row.mode))},
                            {"size_bytes", row.size_bytes},
                            {"delivered_ns", row.latency.delivered_ns},
                            {"completed_ns", row.latency.completed_ns},
                            {"gbps", row.rate ? Json(row.rate->bytes_per_s * 8 / 1e9) : Json()},
                            {"messages_per_s", row.rate ? Json(row.rate->messages_per_s) : Json()},
                            {"reads", traffic_json(row.latency.counters.reads)},
                            {"writes", traffic_json(row.latency.counters.writes)}});
  }
  return json.dump(2) + "\n";
}

}  // namespace gdx::pcie
