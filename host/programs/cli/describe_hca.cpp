#include "host/programs/cli/describe_hca.h"

#include <arpa/inet.h>
#include <endian.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "host/calibration/choose_modes.h"
#include "host/gpu/gpu.h"
#include "host/memory/gpu_registration.h"
#include "host/queue/doorbell.h"
#include "host/queue/endpoint.h"
#include "host/queue/queue_commands.h"
#include "host/queue/queue_objects.h"
#include "host/staging/staging_pool.h"
#include "host/topo/topology.h"
#include "proto/mlx5/doorbell.h"
#include "proto/mlx5/prm.h"

namespace gdx {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint32_t kSmallestMtuBytes = 128;  // unit of enum ibv_mtu, which counts doublings

std::string gid_text(const ibv_gid& gid) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  inet_ntop(AF_INET6, gid.raw, text.data(), text.size());
  return text.data();
}

// Returns the way in which kernels of a GPU would reach these pages: the pages decide, unless it is forced.
std::string mapping_of(const void* address, std::size_t bytes) {
  const auto pages = page_kind(address, bytes);
  if (!pages) return pages.error().message;
  const auto choice = mapping_choice_from_environment();
  if (!choice) return choice.error().message;
  return fmt::format("{} ({} pages)", mapping_name(choose_mapping(*pages, *choice)),
                     *pages == PageKind::kDevice ? "device" : "ordinary");
}

// Describes the doorbell register that the next endpoint would get.
Json describe_doorbell(const Hca& hca) {
  const auto options = resolve_endpoint_options({}, hca.is_software(), hca.link_layer());
  if (!options) return {{"kind", "none"}, {"mapping", options.error().message}};
  if (const auto checked = check_doorbell(hca, *options->doorbell, {}); !checked)
    return {{"kind", "none"}, {"mapping", checked.error().message}};
  const auto doorbell = allocate_doorbell(hca, *options->doorbell);
  if (!doorbell) return {{"kind", "none"}, {"mapping", doorbell.error().message}};
  return {{"kind", doorbell->blueflame_half_bytes != 0 ? "BlueFlame" : "plain"},
          {"mapping", mapping_of(doorbell->uar->base_addr, mlx5::kUarPageBytes)}};
}

// Returns the way for the HCA's own memory, found with a piece of it.
Json device_memory_mapping(const Hca& hca) {
  if (hca.device_memory_bytes() == 0) return nullptr;
  ibv_alloc_dm_attr attributes{};
  attributes.length = kMinSlotBytes;
  const std::unique_ptr<ibv_dm, CallDestroy<ibv_free_dm>> dm(ibv_alloc_dm(hca.context(), &attributes));
  if (!dm) return fmt::format("none to be had: {}", std::strerror(errno));
  mlx5dv_dm details{};
  mlx5dv_obj object{};
  object.dm.in = dm.get();
  object.dm.out = &details;
  if (mlx5dv_init_obj(&object, MLX5DV_OBJ_DM) != 0 || details.buf == nullptr) return "not mapped";
  return mapping_of(details.buf, kMinSlotBytes);
}

// Returns the timestamps of queue pairs made through DevX.
std::string timestamps_of(const Hca& hca) {
  namespace prm = mlx5::prm;
  const auto roce = commands::query_capability(hca.context(), prm::cap::kRoce);
  if (!roce) return "unknown: " + roce.error().message;
  switch (prm::get32(*roce, prm::cap::kQpTimestamps)) {
    case prm::cap::kFreeRunningOnly: return "free-running";
    case prm::cap::kRealTimeOnly: return "real time";
    default: return "free-running and real time";
  }
}

// Returns whether signals to a peer like this HCA are fenced although its order can be forced, because its
// queue pairs do not show the force. An endpoint that is connected to itself tells; false without one.
bool shows_no_force(const Hca& hca) {
  auto endpoint = Endpoint::create(hca, {}, {.may_ring_unprobed_blueflame = true});
  return endpoint && endpoint->connect(endpoint->address()) && endpoint->handle().signal_fence != 0;
}

// Returns the way by which a peer's signals, set and added, stay behind its puts, and the price. What peers
// send here counts.
Json describe_order(const Hca& hca) {
  const auto options = resolve_endpoint_options({}, hca.is_software(), hca.link_layer());
  if (!options) return {{"signals", options.error().message}};
  const bool adaptive = *options->adaptive_routing;
  const auto told = [](bool kept, const std::string& signals) {
    return Json{{"kept", kept}, {"signals", signals}};
  };
  const std::string fenced =
      "fenced, set and added ones, which waits a round trip for the puts before them: ";
  if (data_order_of(hca.routing(), hca.link_layer(), adaptive) == DataOrder::kKept) {
    if (hca.routing().order_forced && shows_no_force(hca))
      return told(false, fenced + "queue pairs do not show that they force the order");
    if (!hca.routing().order_forced) return told(true, "unfenced: the HCA has no other order");
    return told(true,
                fmt::format("unfenced: each queue pair forces the order, which leaves an adaptively routing "
                            "network's bandwidth unused; {}=1 takes it, and fences them",
                            kAdaptiveRoutingVariable));
  }
  const std::string why =
      adaptive ? fmt::format("{}=1 {}", kAdaptiveRoutingVariable,
                             hca.routing().order_forced ? "lets those land in any order"
                                                        : "permits any order, and the HCA decides")
               : fmt::format("{}, and no queue pair can force an order",
                             hca.link_layer() == LinkLayer::kInfiniBand ? "the service level decides"
                                                                        : "firmware decides");
  return told(false, fenced + why);
}

// Lanes and Gb/s of each, as the enumerations of IBA 14.2.5.6 and the kernel's ib_port_speed count them.
double rate_gbps(const ibv_port_attr& port) {
  constexpr std::array<std::pair<int, int>, 5> kLanes = {{{1, 1}, {2, 4}, {4, 8}, {8, 12}, {16, 2}}};
  constexpr std::array<std::pair<int, double>, 8> kSpeeds = {
      {{1, 2.5}, {2, 5}, {4, 10}, {8, 10}, {16, 14}, {32, 25}, {64, 50}, {128, 100}}};
  const auto value_of = [](const auto& table, int code) {
    const auto row = std::ranges::find(table, code, [](const auto& one) { return one.first; });
    return row == table.end() ? 0.0 : static_cast<double>(row->second);
  };
  return value_of(kLanes, port.active_width) * value_of(kSpeeds, port.active_speed);
}

// Returns the entries of the port's P_Key table that are in use.
Json pkeys_of(const Hca& hca, std::uint16_t entries) {
  Json pkeys = Json::array();
  for (int index = 0; index < entries; ++index) {
    __be16 pkey = 0;
    if (ibv_query_pkey(hca.context(), hca.port(), index, &pkey) == 0 && pkey != 0)
      pkeys.push_back(fmt::format("{:#06x}", be16toh(pkey)));
  }
  return pkeys;
}

Json describe_port(const Hca& hca) {
  ibv_port_attr port{};
  if (const int error = ibv_query_port(hca.context(), hca.port(), &port); error != 0)
    return {{"reason", fmt::format("cannot be queried: {}", std::strerror(error))}};
  return {{"number", hca.port()},
          {"state", ibv_port_state_str(port.state)},
          {"link", port.link_layer == IBV_LINK_LAYER_ETHERNET ? "Ethernet" : "InfiniBand"},
          {"rate_gbps", rate_gbps(port)},
          {"mtu_bytes", kSmallestMtuBytes << port.active_mtu},
          {"max_mtu_bytes", kSmallestMtuBytes << port.max_mtu},
          {"grh_required", (port.flags & IBV_QPF_GRH_REQUIRED) != 0},
          {"pkeys", pkeys_of(hca, port.pkey_tbl_len)}};
}

// Adds the PCI place; a software HCA has none.
void add_place(const Hca& hca, Json& described) {
  const auto& nics = this_machine().nics;
  const auto nic = std::ranges::find(nics, hca.name(), &PciDevice::os_name);
  described["pci"] = nic == nics.end() ? Json(nullptr) : Json(nic->bus_id);
  described["numa_node"] = nic == nics.end() || nic->numa_node < 0 ? Json(nullptr) : Json(nic->numa_node);
}

// Returns the shape of an endpoint that may hold all slots that pools have by default.
QueueShape default_shape(const Hca& hca, bool blueflame) {
  QueueShape shape{.blueflame = blueflame};
  const StagingOptions on_nic;
  if (const auto bytes = resolve_staging_bytes(on_nic, hca.device_memory_bytes())) {
    shape.slot_count = static_cast<std::uint32_t>(*bytes / on_nic.slot_bytes);
    shape.slot_bytes = on_nic.slot_bytes;
  }
  shape.bounce_slot_bytes = kDefaultBounceSlotBytes;
  shape.bounce_slot_count = static_cast<std::uint32_t>(kDefaultBounceBytes / kDefaultBounceSlotBytes);
  return shape;
}

Json limits_json(const ModeTable& modes) {
  const auto limit = [](std::uint64_t bytes) { return bytes == kNoSizeLimit ? Json(nullptr) : Json(bytes); };
  return {{"inline_bytes", limit(modes.inline_bytes)},
          {"push_bytes", limit(modes.push_bytes)},
          {"pull_bytes", limit(modes.pull_bytes)}};
}

void add_auto_modes(const Hca& hca, const ModeOptions& options, const QueueShape& shape, Json& described) {
  const auto choice = choose_modes(hca.name(), options, shape);
  const auto& path = choice ? choice->site.path : std::nullopt;
  described["path_class"] = path ? Json(name(*path)) : Json(nullptr);
  described["auto"] = choice ? Json(describe(choice->modes)) : Json(nullptr);
  described["auto_limits"] = choice ? limits_json(choice->modes) : Json(nullptr);
  described["auto_why"] = choice ? choice->why : choice.error().message;
}

// Describes a GPU, and how this HCA would serve it.
Json describe_gpu(const Hca& hca, const QueueShape& shape, int ordinal) {
  const auto gpu = Gpu::open(ordinal);
  if (!gpu) return {{"ordinal", ordinal}, {"reason", gpu.error().message}};
  const auto facts = read_registration_facts(hca, {PointerKind::kDevice, ordinal});
  if (!facts) return {{"ordinal", ordinal}, {"reason", facts.error().message}};
  const RegistrationWay way = decide_registration(*facts);
  Json described{{"ordinal", ordinal},
                 {"name", gpu->name()},
                 {"pci", gpu->pci_bus_id()},
                 {"compute_capability", gpu->compute_capability()},
                 {"allocation", gpu->creates_rdma_memory() ? "cuMemCreate" : "cuMemAlloc"},
                 {"registration", registration_name(way)},
                 {"queue_placements", {"host"}}};
  if (way == RegistrationWay::kRefused) {
    described["reason"] = refusal_advice(*facts);
  } else {
    described["queue_placements"].push_back("gpu");
  }
  const ModeOptions modes{.kernels = Processor::kGpu, .gpu = gpu->pci_bus_id()};
  add_auto_modes(hca, modes, shape, described);
  if (way != RegistrationWay::kRefused) {
    QueueShape beside = shape;
    beside.queues = Placement::kGpu;
    add_auto_modes(hca, modes, beside, described["with_queues_in_gpu_memory"]);
  }
  return described;
}

// Describes the GPUs, or says why there are none.
Json describe_gpus(const Hca& hca, const QueueShape& shape) {
  const auto count = Gpu::count();
  if (!count) return {{"none", count.error().message}};
  Json described{{"driver", cuda::version_text((*cuda::driver())->version)}, {"gpus", Json::array()}};
  for (int ordinal = 0; ordinal < *count; ++ordinal)
    described["gpus"].push_back(describe_gpu(hca, shape, ordinal));
  return described;
}

}  // namespace

Json describe_hca(const Hca& hca) {
  Json described = {{"name", hca.name()}, {"gdx_version", GDX_VERSION},
                    {"usable", true},     {"kind", hca.is_software() ? "software" : "hardware"},
                    {"devx", true},       {"firmware", hca.firmware()}};
  described["qp_timestamps"] = timestamps_of(hca);
  add_place(hca, described);
  described["port"] = describe_port(hca);
  described["address"] = hca.address_text();
  described["gid"] = gid_text(hca.gid());
  described["gid_index"] = hca.gid_index();
  described["path_mtu_bytes"] = hca.path_mtu_bytes();
  described["data_order"] = describe_order(hca);
  described["doorbell"] = describe_doorbell(hca);
  described["device_memory_bytes"] = hca.device_memory_bytes();
  described["device_memory_mapping"] = device_memory_mapping(hca);
  // Stands for ordinary host memory, in which queues, signals and bounce slots lie.
  static std::byte ordinary;
  described["host_memory_mapping"] = mapping_of(&ordinary, sizeof ordinary);
  const QueueShape shape = default_shape(hca, described["doorbell"]["kind"] == "BlueFlame");
  described["staging"] = {{"slot_count", shape.slot_count},
                          {"slot_bytes", shape.slot_bytes},
                          {"bounce_slot_count", shape.bounce_slot_count},
                          {"bounce_slot_bytes", shape.bounce_slot_bytes}};
  add_auto_modes(hca, {}, shape, described);  // before the driver is loaded, as for an endpoint made first
  described["cuda"] = describe_gpus(hca, shape);
  return described;
}

}  // namespace gdx
