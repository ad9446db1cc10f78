#include "host/hca/hca.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/trace.h"

namespace gdx {
namespace {

constexpr std::uint32_t kSmallestMtuBytes = 128;  // enum ibv_mtu counts doublings of it

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

// How gladly an address is taken: IPv4 first, since every RoCE v2 peer has it; 0: never.
int gid_preference(const ibv_gid_entry& entry) {
  if (entry.gid_type != IBV_GID_TYPE_ROCE_V2) return 0;
  in6_addr address{};
  std::memcpy(&address, entry.gid.raw, sizeof address);
  if (IN6_IS_ADDR_UNSPECIFIED(&address)) return 0;
  if (IN6_IS_ADDR_V4MAPPED(&address)) return 3;
  return IN6_IS_ADDR_LINKLOCAL(&address) ? 1 : 2;
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

}  // namespace

Result<std::vector<std::string>> list_hcas() {
  auto list = read_device_list();
  if (!list) return tl::unexpected(list.error());
  return list->names();
}

Result<Hca> Hca::open(const HcaOptions& options) {
  const TraceSpan span("Hca::open");
  auto list = read_device_list();
  if (!list) return tl::unexpected(list.error());
  const std::string wanted = wanted_name(options);
  if (list->devices.empty()) {
    return fail(Status::kNoDevice,
                fmt::format("no RDMA HCA on this machine{}: run it under `gdx run -- PROGRAM` to use the "
                            "software HCA",
                            wanted.empty() ? "" : fmt::format(" (asked for {})", wanted)));
  }
  std::vector<Error> refusals;
  for (ibv_device* device : list->devices) {
    if (!wanted.empty() && wanted != ibv_get_device_name(device)) continue;
    Hca hca;
    const auto opened = hca.open_on(device);
    if (opened) return hca;
    refusals.push_back(opened.error());
  }
  if (refusals.empty()) {
    return fail(Status::kNotFound,
                fmt::format("no HCA named {}: there are {}", wanted, fmt::join(list->names(), ", ")));
  }
  if (refusals.size() == 1) return tl::unexpected(refusals.front());
  std::string reasons = refusals.front().message;
  for (std::size_t i = 1; i < refusals.size(); ++i) reasons += "; " + refusals[i].message;
  return fail(Status::kUnsupported, reasons);
}

Result<void> Hca::open_on(ibv_device* device) {
  name_ = ibv_get_device_name(device);
  sysfs_path_ = device->ibdev_path;
  auto context = open_with_devx(device);
  if (!context) return tl::unexpected(context.error());
  device_ = std::make_unique<Device>();
  device_->context = std::move(*context);
  if (auto read = read_device(); !read) return read;
  return read_port();
}

Result<void> Hca::read_device() {
  ibv_device_attr_ex attributes{};
  if (const int error = ibv_query_device_ex(context(), nullptr, &attributes); error != 0) {
    return fail(Status::kSystem, fmt::format("cannot query HCA {}: {}", name_, std::strerror(error)));
  }
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

Result<void> Hca::read_port() {
  ibv_port_attr attributes{};
  if (const int error = ibv_query_port(context(), port(), &attributes); error != 0) {
    return fail(Status::kSystem,
                fmt::format("cannot query port 1 of HCA {}: {}", name_, std::strerror(error)));
  }
  if (attributes.state != IBV_PORT_ACTIVE) {
    return fail(Status::kUnsupported, fmt::format("port 1 of HCA {} is {}: bring its link up", name_,
                                                  ibv_port_state_str(attributes.state)));
  }
  path_mtu_bytes_ = kSmallestMtuBytes << attributes.active_mtu;
  return choose_gid(attributes.gid_tbl_len);
}

Result<void> Hca::choose_gid(int gid_count) {
  int best = 0;
  for (int index = 0; index < gid_count && index <= UINT8_MAX; ++index) {
    ibv_gid_entry entry{};
    if (ibv_query_gid_ex(context(), port(), static_cast<std::uint32_t>(index), &entry, 0) != 0) continue;
    const int preference = gid_preference(entry);
    if (preference <= best) continue;
    best = preference;
    gid_ = entry.gid;
    gid_index_ = static_cast<std::uint8_t>(index);
  }
  if (best != 0) return {};
  return fail(Status::kUnsupported, fmt::format("port 1 of HCA {} has no RoCE v2 address: give its network "
                                                "interface an IP address",
                                                name_));
}

std::string Hca::address_text() const {
  in6_addr address{};
  std::memcpy(&address, gid_.raw, sizeof address);
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (IN6_IS_ADDR_V4MAPPED(&address)) {
    inet_ntop(AF_INET, gid_.raw + 12, text.data(), text.size());
  } else {
    inet_ntop(AF_INET6, &address, text.data(), text.size());
  }
  return text.data();
}

Result<std::uint64_t> Hca::counter(std::string_view counter_name) const {
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
