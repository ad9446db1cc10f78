#include "host/hca/hca.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <net/if.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/environment.h"
#include "base/log.h"
#include "base/trace.h"
#include "host/gpu/gpu.h"
#include "host/hca/hca_events.h"
#include "host/ipc/daemon.h"
#include "host/launch/launcher.h"
#include "host/topo/nearest_nic.h"
#include "proto/mlx5/prm.h"
#include "proto/softhca.h"

namespace gdx {
namespace {

constexpr std::uint32_t kSmallestMtuBytes = 128;  // unit of enum ibv_mtu, which counts doublings

struct DeviceListDelete {
  void operator()(ibv_device** list) const { ibv_free_device_list(list); }
};

struct DeviceList {
  std::unique_ptr<ibv_device*, DeviceListDelete> owner;
  std::vector<ibv_device*> devices;

  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (ibv_device* device : devices) result.emplace_back(ibv_get_device_name(device));
    return result;
  }
};

Result<DeviceList> read_device_list() {
  int count = 0;
  DeviceList list;
  list.owner.reset(ibv_get_device_list(&count));
  if (!list.owner) {
    // A kernel without the RDMA subsystem: no devices, and nothing else is wrong.
    if (errno == ENOSYS || errno == ENOENT) return list;
    return fail(Status::kSystem, fmt::format("cannot list RDMA devices: {}", std::strerror(errno)));
  }
  list.devices.assign(list.owner.get(), list.owner.get() + count);
  return list;
}

// Returns the rank of an address: IPv4 first, because every RoCE v2 peer has it; 0: never.
int gid_preference(const ibv_gid_entry& entry) {
  if (entry.gid_type != IBV_GID_TYPE_ROCE_V2) return 0;
  in6_addr address{};
  std::memcpy(&address, entry.gid.raw, sizeof address);
  if (IN6_IS_ADDR_UNSPECIFIED(&address)) return 0;
  if (IN6_IS_ADDR_V4MAPPED(&address)) return 3;
  return IN6_IS_ADDR_LINKLOCAL(&address) ? 1 : 2;
}

// Returns whether the interface of a GID is of this network namespace. Namespaces that share HCAs see all
// GIDs. The name and the number of an interface elsewhere may each be one of an interface here, but hardly
// both of the same. Source: Linux drivers/infiniband/core/uverbs_std_types_device.c, which looks at no
// namespace.
bool is_of_this_namespace(const std::string& port_path, const ibv_gid_entry& entry) {
  std::ifstream file(fmt::format("{}/gid_attrs/ndevs/{}", port_path, entry.gid_index));
  std::string name;
  if (entry.ndev_ifindex == 0 || !(file >> name)) return true;
  return if_nametoindex(name.c_str()) == entry.ndev_ifindex;
}

Result<ContextHandle> open_with_devx(ibv_device* device) {
  const char* name = ibv_get_device_name(device);
  if (!mlx5dv_is_supported(device)) {
    return fail(Status::kUnsupported,
                fmt::format("HCA {} is not an mlx5 device: gdx drives mlx5 only", name));
  }
  mlx5dv_context_attr attributes{};
  attributes.flags = MLX5DV_CONTEXT_FLAGS_DEVX;
  ContextHandle context(mlx5dv_open_device(device, &attributes));
  if (!context) {
    return fail(Status::kUnsupported, fmt::format("cannot open HCA {} with DevX: {}; check the driver, and "
                                                  "that this user may open its /dev/infiniband/uverbs device",
                                                  name, std::strerror(errno)));
  }
  return context;
}

std::string wanted_name(const HcaOptions& options) {
  if (!options.name.empty()) return options.name;
  const char* from_environment = std::getenv(kHcaVariable);
  return from_environment != nullptr ? from_environment : "";
}

// Nothing is preloaded into a process that runs, so that its launcher's line must say it.
std::string softhca_command() {
  const auto launcher = launch::find_launcher();
  return launcher && !launcher->command.empty() ? launcher->command : "`gdx run -- PROGRAM`";
}

Place place_of(const HcaOptions& options) {
  const auto gpu = options.gpu ? Gpu::open(*options.gpu) : Gpu::current();
  if (gpu) return {.gpu = gpu->pci_bus_id()};
  return {.processors = allowed_processors()};
}

// Returns the HCAs to be tried of those that exist, in this order.
std::vector<RankedNic> rank_hcas(const HcaOptions& options, const std::vector<std::string>& names) {
  const std::string wanted = wanted_name(options);
  if (!wanted.empty())
    return {{wanted, options.name.empty() ? fmt::format("by {}", kHcaVariable) : "by the program"}};
  if (names.empty()) return {};
  if (names.size() == 1) return {{names.front(), "as the only one"}};
  return rank_nics(this_machine(), place_of(options), names, options.rank);
}

// Reads the counter set from a verbs queue pair, as UCX does, because the kernel attaches those to port
// counters. It does so when they leave RESET.
std::uint8_t read_counter_set(ibv_pd* pd, std::uint8_t port) {
  namespace prm = mlx5::prm;
  const std::unique_ptr<ibv_cq, CallDestroy<ibv_destroy_cq>> cq(
      ibv_create_cq(pd->context, 1, nullptr, nullptr, 0));
  if (!cq) return 0;
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = cq.get();
  wanted.cap.max_send_wr = wanted.cap.max_recv_wr = wanted.cap.max_send_sge = wanted.cap.max_recv_sge = 1;
  wanted.qp_type = IBV_QPT_RC;
  const std::unique_ptr<ibv_qp, CallDestroy<ibv_destroy_qp>> qp(ibv_create_qp(pd, &wanted));
  if (!qp) return 0;
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = port;
  if (ibv_modify_qp(qp.get(), &attributes,
                    IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS) != 0) {
    return 0;
  }
  prm::Mailbox<prm::kShortCommandBytes> input{};
  prm::Mailbox<prm::kQueryQpOutBytes> output{};
  prm::set(input, prm::kOpcode, static_cast<std::uint64_t>(prm::Opcode::kQueryQp));
  prm::set(input, prm::kObjectId, qp->qp_num);
  if (mlx5dv_devx_qp_query(qp.get(), input.data(), input.size(), output.data(), output.size()) != 0) return 0;
  return static_cast<std::uint8_t>(prm::get32(output, prm::qp::kCounterSet));
}

// Returns the answer; empty where the HCA refuses. `output_bytes`: the length of the command's output.
std::vector<std::uint8_t> query(ibv_context* context, mlx5::prm::Opcode opcode, std::size_t output_bytes,
                                std::uint32_t op_mod = 0) {
  namespace prm = mlx5::prm;
  prm::Mailbox<prm::kShortCommandBytes> input{};
  std::vector<std::uint8_t> output(output_bytes);
  prm::set(input, prm::kOpcode, static_cast<std::uint64_t>(opcode));
  prm::set(input, prm::kOpMod, op_mod);
  if (mlx5dv_devx_general_cmd(context, input.data(), input.size(), output.data(), output.size()) != 0)
    return {};
  return output;
}

Routing query_routing(ibv_context* context) {
  namespace prm = mlx5::prm;
  const auto capability = [context](prm::cap::Capability which) {
    return query(context, prm::Opcode::kQueryHcaCap, prm::kQueryHcaCapOutBytes,
                 prm::cap::op_mod_current(which));
  };
  return read_routing(capability(prm::cap::kGeneral), capability(prm::cap::kGeneral2),
                      query(context, prm::Opcode::kQueryLag, prm::kShortCommandBytes));
}

}  // namespace

Routing read_routing(std::span<const std::uint8_t> general, std::span<const std::uint8_t> general_2,
                     std::span<const std::uint8_t> lag) {
  namespace prm = mlx5::prm;
  namespace cap = mlx5::prm::cap;
  const bool has_lag = prm::get(lag, prm::kLagState) != 0;
  const bool chooses = has_lag && prm::get(general, cap::kLagPortAffinityInit) != 0;
  return {.any_order = general.empty() ? std::nullopt
                                       : std::optional(prm::get(general, cap::kAnyOrderRc) != 0 ||
                                                       prm::get(general, cap::kAnyOrderOfAllRc) != 0),
          .order_forced = prm::get(general_2, cap::kOrderingForced) != 0,
          .has_lag = general.empty() || lag.empty() ? std::nullopt : std::optional(has_lag),
          .lag_ports = static_cast<std::uint8_t>(chooses ? prm::get(general, cap::kLagPorts) : 0)};
}

void warn_of_undestroyed() {
  log::warn_of_others("an HCA object could not be destroyed ({}): the HCA may be in a fatal error",
                      std::strerror(errno));
}

Result<std::vector<std::string>> list_hcas() {
  auto list = GDX_TRY(read_device_list());
  return list.names();
}

// ThreadSanitizer sees no atomics in code that is compiled without it.
static void warn_of_false_races() {
#if !defined(__SANITIZE_THREAD__)
  static std::atomic<bool> said = false;
  if (dlsym(RTLD_DEFAULT, "__tsan_init") == nullptr || said.exchange(true)) return;
  log::warn(
      "this program has ThreadSanitizer and its gdx has not, so that races reported within gdx are false: "
      "link "
      "a gdx of the preset tsan (docs/DEBUGGING.md, Sanitizers)");
#endif
}

Result<Hca> Hca::open(const HcaOptions& options) {
  const TraceSpan span("Hca::open");
  warn_of_false_races();
  if (options.in_this_process) return open_here(options);
  const auto places = GDX_TRY(ipc::daemon_places_from_environment());
  std::string refusals;
  for (const std::string& path : places.paths) {
    auto daemon = ipc::Daemon::connect(path);
    auto hca = daemon ? open_by(std::move(*daemon), options) : Result<Hca>(tl::unexpected(daemon.error()));
    if (hca || places.required) return hca;
    // A gdxd without a place now may have one for others of the same job.
    const bool is_full = hca.error().status == Status::kBusy || hca.error().status == Status::kNoMemory;
    log::line(is_full ? log::Level::kWarn : log::Level::kInfo, "this process opens its HCA by itself: {}",
              hca.error().message);
    refusals += fmt::format("; gdxd at {}: {}", path, hca.error().message);
  }
  auto own = open_here(options);
  if (!own) return fail(own.error().status, own.error().message + refusals);
  return own;
}

Result<Hca> Hca::open_by(std::shared_ptr<ipc::Daemon> daemon, const HcaOptions& options) {
  ipc::OpenHca request{};
  std::optional<std::uint64_t> gid_index = options.gid_index;
  if (!gid_index) gid_index = GDX_TRY(number_from_environment(kGidIndexVariable, 0, UINT8_MAX));
  request.gid_index = gid_index ? static_cast<std::int32_t>(*gid_index) : -1;
  request.without_port = options.without_port ? 1 : 0;
  auto ranked = rank_hcas(options, list_hcas().value_or(std::vector<std::string>{}));
  // gdxd may have other HCAs than those that this process sees.
  if (wanted_name(options).empty()) ranked.push_back({"", "by gdxd"});
  auto one = ranked.begin();
  const auto ask = [&] {
    ipc::set_text(request.name, one->name);
    return daemon->call<ipc::HcaAnswer>(request);
  };
  auto reply = ask();
  while (!reply && ++one != ranked.end()) reply = ask();
  if (!reply) return tl::unexpected(reply.error());
  const ipc::HcaAnswer& answer = reply->answer;
  Hca hca;
  hca.name_ = ipc::text_of(answer.name);
  hca.firmware_ = ipc::text_of(answer.firmware);
  std::memcpy(hca.gid_.raw, answer.gid, sizeof hca.gid_.raw);
  hca.gid_index_ = answer.gid_index;
  hca.lid_ = answer.lid;
  hca.grh_required_ = answer.grh_required != 0;
  hca.path_mtu_bytes_ = answer.path_mtu_bytes;
  hca.device_memory_bytes_ = answer.device_memory_bytes;
  hca.is_software_ = answer.is_software != 0;
  hca.chosen_ = one->why;
  log::info("HCA {} by gdxd at {}: chosen {}", hca.name_, daemon->path(), hca.chosen_);
  hca.daemon_ = std::move(daemon);
  return hca;
}

Result<Hca> Hca::open_here(const HcaOptions& options) {
  auto list = GDX_TRY(read_device_list());
  std::optional<std::uint64_t> gid_index = options.gid_index;
  if (!gid_index) {
    gid_index = GDX_TRY(number_from_environment(kGidIndexVariable, 0, UINT8_MAX));
  }
  if (list.devices.empty()) {
    if (dlsym(RTLD_DEFAULT, kSofthcaProgressSymbol) != nullptr)
      return fail(Status::kNoDevice,
                  "no RDMA HCA: the software HCA is loaded and did not start; its line above says why");
    const std::string wanted = wanted_name(options);
    return fail(Status::kNoDevice,
                fmt::format("no RDMA HCA on this machine{}: run it under {} to use the software HCA",
                            wanted.empty() ? "" : fmt::format(" (asked for {})", wanted), softhca_command()));
  }
  std::vector<Error> refusals;
  const std::vector<std::string> names = list.names();
  for (const RankedNic& one : rank_hcas(options, names)) {
    const auto found = std::ranges::find(names, one.name);
    if (found == names.end()) {
      return fail(Status::kNotFound,
                  fmt::format("no HCA named {}: there are {}", one.name, fmt::join(names, ", ")));
    }
    Hca hca;
    auto opened = hca.open_on(list.devices[static_cast<std::size_t>(found - names.begin())]);
    if (opened && !options.without_port) opened = hca.read_port(gid_index);
    if (opened) {
      hca.chosen_ = one.why;
      if (options.name.empty()) log::info("HCA {}: chosen {}", hca.name_, hca.chosen_);
      return hca;
    }
    refusals.push_back(opened.error());
  }
  if (refusals.size() == 1) return tl::unexpected(refusals.front());
  std::string reasons = refusals.front().message;
  for (std::size_t i = 1; i < refusals.size(); ++i) reasons += "; " + refusals[i].message;
  return fail(Status::kUnsupported, reasons);
}

Result<void> Hca::open_on(ibv_device* device) {
  name_ = ibv_get_device_name(device);
  sysfs_path_ = device->ibdev_path;
  auto context = GDX_TRY(open_with_devx(device));
  device_ = std::make_unique<Device>();
  device_->context = std::move(context);
  device_->events = std::make_shared<HcaEvents>(this->context(), name_, port());
  return read_device();
}

Result<void> Hca::read_device() {
  ibv_device_attr_ex attributes{};
  if (const int error = ibv_query_device_ex(context(), nullptr, &attributes); error != 0) {
    return fail(Status::kSystem, fmt::format("cannot query HCA {}: {}", name_, std::strerror(error)));
  }
  const auto resent = counter("softhca_retransmitted_packets");  // hardware lacks it
  if (!resent && resent.error().status != Status::kNotFound) return tl::unexpected(resent.error());
  is_software_ = resent.has_value();
  device_memory_bytes_ = attributes.max_dm_size;
  firmware_ = attributes.orig_attr.fw_ver;
  device_->pd.reset(ibv_alloc_pd(context()));
  if (!device_->pd) {
    return fail(Status::kSystem, fmt::format("cannot allocate a protection domain on HCA {}: {}", name_,
                                             std::strerror(errno)));
  }
  mlx5dv_pd details{};
  mlx5dv_obj object{};
  object.pd.in = pd();
  object.pd.out = &details;
  if (const int error = mlx5dv_init_obj(&object, MLX5DV_OBJ_PD); error != 0) {
    return fail(Status::kSystem,
                fmt::format("cannot read the protection domain of HCA {}: {}", name_, std::strerror(error)));
  }
  pdn_ = details.pdn;
  if (mlx5dv_devx_query_eqn(context(), 0, &eqn_) != 0) {
    return fail(Status::kUnsupported,
                fmt::format("HCA {} has no event queue for DevX: {}; check that DevX is "
                            "enabled in its driver",
                            name_, std::strerror(errno)));
  }
  return {};
}

Result<void> Hca::read_port(std::optional<std::uint64_t> gid_index) {
  ibv_port_attr attributes{};
  if (const int error = ibv_query_port(context(), port(), &attributes); error != 0) {
    return fail(Status::kSystem,
                fmt::format("cannot query port 1 of HCA {}: {}", name_, std::strerror(error)));
  }
  if (attributes.state != IBV_PORT_ACTIVE) {
    return fail(Status::kUnsupported, fmt::format("port 1 of HCA {} is {}: bring its link up", name_,
                                                  ibv_port_state_str(attributes.state)));
  }
  const bool infiniband = attributes.link_layer == IBV_LINK_LAYER_INFINIBAND;
  if (infiniband && attributes.lid == 0) {
    return fail(Status::kUnsupported,
                fmt::format("port 1 of HCA {} is InfiniBand and has no LID: start a subnet manager", name_));
  }
  if (infiniband) lid_ = attributes.lid;
  grh_required_ = (attributes.flags & IBV_QPF_GRH_REQUIRED) != 0;
  path_mtu_bytes_ = kSmallestMtuBytes << attributes.active_mtu;
  counter_set_ = read_counter_set(pd(), port());
  routing_ = query_routing(context());
  if (counter_set_ == 0)
    log::debug("the hardware counters of HCA {} will not count this process's endpoints", name_);
  return choose_gid(attributes.gid_tbl_len, gid_index);
}

Result<void> Hca::choose_gid(int gid_count, std::optional<std::uint64_t> wanted) {
  if (lid_ != 0) {
    constexpr std::uint8_t kRoutableIndex = 1;  // at which a subnet manager puts a GID with a FLID
    ibv_gid_entry entry{};
    const auto has_gid = [&](std::uint8_t index) {
      return ibv_query_gid_ex(context(), port(), index, &entry, 0) == 0;
    };
    const bool routable = !wanted && has_gid(kRoutableIndex) && flid_of(entry.gid.raw) != 0;
    gid_index_ = routable ? kRoutableIndex : static_cast<std::uint8_t>(wanted.value_or(0));
    if (has_gid(gid_index_)) {
      gid_ = entry.gid;
      return {};
    }
    return fail(Status::kUnsupported, fmt::format("port 1 of HCA {} has no GID at index {}: leave out {}",
                                                  name_, gid_index_, kGidIndexVariable));
  }
  const std::string port_path = fmt::format("{}/ports/{}", sysfs_path_, port());
  int best = 0;
  std::vector<int> usable;
  std::vector<int> elsewhere;
  for (int index = 0; index < gid_count && index <= UINT8_MAX; ++index) {
    ibv_gid_entry entry{};
    if (ibv_query_gid_ex(context(), port(), static_cast<std::uint32_t>(index), &entry, 0) != 0) continue;
    const int preference = gid_preference(entry);
    if (preference == 0) continue;
    const bool is_wanted = wanted && static_cast<std::uint64_t>(index) == *wanted;
    const bool is_here = is_of_this_namespace(port_path, entry);
    (is_here ? usable : elsewhere).push_back(index);
    if (wanted ? !is_wanted : !is_here || preference <= best) continue;
    best = preference;
    gid_ = entry.gid;
    gid_index_ = static_cast<std::uint8_t>(index);
  }
  if (best != 0) return {};
  if (wanted && !usable.empty()) {
    return fail(Status::kUnsupported,
                fmt::format("port 1 of HCA {} has no RoCE v2 address at GID index {}: it has some at {}",
                            name_, *wanted, fmt::join(usable, ", ")));
  }
  if (!elsewhere.empty()) {
    return fail(Status::kUnsupported,
                fmt::format("all RoCE v2 addresses of port 1 of HCA {} are of interfaces in other network "
                            "namespaces: give this one an interface, or name a GID index, {}, by {}",
                            name_, fmt::join(elsewhere, ", "), kGidIndexVariable));
  }
  return fail(Status::kUnsupported, fmt::format("port 1 of HCA {} has no RoCE v2 address: give its network "
                                                "interface an IP address",
                                                name_));
}

std::uint16_t flid_of(const std::uint8_t (&gid)[16]) {
  const bool site_local = gid[0] == 0xfe && gid[1] == 0xc0 && gid[2] == 0 && gid[3] == 0;
  return site_local ? static_cast<std::uint16_t>(gid[4] << 8 | gid[5]) : std::uint16_t{0};
}

std::string address_text(const std::uint8_t (&gid)[16]) {
  in6_addr address{};
  std::memcpy(&address, gid, sizeof address);
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (IN6_IS_ADDR_V4MAPPED(&address)) {
    inet_ntop(AF_INET, gid + 12, text.data(), text.size());
  } else {
    inet_ntop(AF_INET6, &address, text.data(), text.size());
  }
  return text.data();
}

Result<std::shared_ptr<void>> Hca::on_loss(std::function<void()> act) const {
  if (daemon_) {
    const std::uint64_t number = daemon_->on_loss(std::move(act));
    return std::shared_ptr<void>(nullptr,
                                 [daemon = daemon_, number](std::nullptr_t) { daemon->forget(number); });
  }
  auto watch = GDX_TRY(events()->watch());
  auto acts = events()->on_failure(nullptr, [act = std::move(act)](ibv_event_type) { act(); });
  return std::shared_ptr<void>(nullptr, [watch, acts](std::nullptr_t) {});
}

Result<std::uint64_t> Hca::counter(std::string_view counter_name) const {
  if (daemon_) {
    ipc::ReadCounter request{};
    ipc::set_text(request.name, counter_name);
    return GDX_TRY(daemon_->call<ipc::CounterAnswer>(request)).answer.value;
  }
  if (counter_name.empty() || counter_name.find('/') != std::string_view::npos) {
    return fail(Status::kNotFound, fmt::format("HCA {} has no counter '{}'", name_, counter_name));
  }
  std::ifstream file(fmt::format("{}/ports/{}/hw_counters/{}", sysfs_path_, port(), counter_name));
  if (!file) return fail(Status::kNotFound, fmt::format("HCA {} has no counter '{}'", name_, counter_name));
  std::uint64_t value = 0;
  if (!(file >> value)) {
    return fail(Status::kSystem, fmt::format("counter '{}' of HCA {} is not a number", counter_name, name_));
  }
  return value;
}

}  // namespace gdx
