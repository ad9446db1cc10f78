// An HCA, opened through libibverbs and libmlx5 alone, so a ConnectX and the software HCA share one path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "host/hca/handles.h"

namespace gdx {

class HcaEvents;
namespace ipc {
class Daemon;
}

// Offers of the HCA to queue pairs about their packets' way. Source: UCX, ib_mlx5dv_md.c.
struct Routing {
  // Data of RC queue pairs on Ethernet may land so; none: the HCA did not say.
  std::optional<bool> any_order = std::nullopt;
  bool order_forced = false;  // a queue pair may permit or forbid that, whatever the HCA's administrator set
  std::optional<bool> has_lag = std::nullopt;  // an active bond; none: the HCA did not say
  std::uint8_t lag_ports = 0;  // ports of the bond, each of which a queue pair may choose; 0: no bond

  bool operator==(const Routing&) const = default;
};
// The answers to QUERY_HCA_CAP, of both general capabilities, and QUERY_LAG; an empty one: refused.
[[nodiscard]] Routing read_routing(std::span<const std::uint8_t> general,
                                   std::span<const std::uint8_t> general_2,
                                   std::span<const std::uint8_t> lag);

inline constexpr char kHcaVariable[] = "GDX_HCA";
inline constexpr char kGidIndexVariable[] = "GDX_GID_INDEX";

struct HcaOptions {
  std::string name = {};  // empty: $GDX_HCA, and failing that the nearest mlx5 HCA that serves
  // Index in the port's GID table, of a RoCE v2 address, or of any on InfiniBand. None: $GDX_GID_INDEX;
  // without it an IPv4 address before an IPv6 one before a link-local one, on InfiniBand that at index 1 if
  // it has a FLID, else the first. Peers need an address of one kind. One that is not named is of an
  // interface in this network namespace.
  std::optional<std::uint8_t> gid_index = std::nullopt;
  // Ignores the port, which may be down or without an address. For queries, and for objects that are not
  // connected. gid(), path_mtu_bytes(), counter_set() and routing() are 0.
  bool without_port = false;
  // Ignores $GDX_DAEMON: for tools that need the verbs context.
  bool in_this_process = false;
  // GPU near which an HCA without a name is looked for, by CUDA's number. None: Gpu::current(). Without a GPU
  // it is looked for near the processors on which this thread may run.
  std::optional<int> gpu = std::nullopt;
  // Number of this process among those of a job. Of HCAs at one distance it begins with that at this number
  // modulo theirs.
  std::uint32_t rank = 0;
};

// Returns the names of the RDMA devices in libibverbs's order.
// Errors: kSystem when the list cannot be read. Threads: any.
[[nodiscard]] Result<std::vector<std::string>> list_hcas();

enum class LinkLayer : std::uint8_t { kEthernet, kInfiniBand };
[[nodiscard]] constexpr const char* name(LinkLayer layer) {
  return layer == LinkLayer::kEthernet ? "Ethernet" : "InfiniBand";
}

// Returns the FLID of a site-local GID (fec0::FLID:SUBNET:EUI64), the LID by which switches of other
// InfiniBand subnets lead to it through a router; 0: it has none. Source: UCX ib_iface.c,
// uct_ib_iface_gid_extract_flid; NCCL net_ib/connect.cc, ncclIbExtractFlid.
[[nodiscard]] std::uint16_t flid_of(const std::uint8_t (&gid)[16]);

// Returns "127.0.0.2" for an IPv4-mapped GID, the IPv6 notation for any other.
[[nodiscard]] std::string address_text(const std::uint8_t (&gid)[16]);

// One open device: context, protection domain, port 1 and its address. This process opens it by itself, or
// gdxd does (GDX_DAEMON, host/ipc/daemon.h); then context() and pd() are null. It must outlive every Memory,
// StagingPool and Endpoint made from it. Threads: const methods from any thread.
class Hca {
 public:
  // Opens an HCA and its port 1. Errors: kNoDevice (none at all), kNotFound (the message lists those that
  // exist), kUnsupported, kInvalidArgument (a bad $GDX_GID_INDEX or $GDX_DAEMON), kDaemonGone, kSystem.
  // kUnsupported means not mlx5, no DevX, a port not active, or an InfiniBand port without a LID. It also
  // means no RoCE v2 address, or none at the given index.
  [[nodiscard]] static Result<Hca> open(const HcaOptions& options = {});

  Hca(Hca&&) noexcept = default;
  Hca& operator=(Hca&&) noexcept = default;
  Hca(const Hca&) = delete;
  Hca& operator=(const Hca&) = delete;

  [[nodiscard]] const std::string& name() const { return name_; }
  // gdx reads its asynchronous events. A program that wants them opens the HCA once more.
  [[nodiscard]] ibv_context* context() const { return device_ ? device_->context.get() : nullptr; }
  [[nodiscard]] ibv_pd* pd() const { return device_ ? device_->pd.get() : nullptr; }
  // The reader of those events (host/hca/hca_events.h); null where gdxd has the HCA open.
  [[nodiscard]] HcaEvents* events() const { return device_ ? device_->events.get() : nullptr; }
  // Registers a function that a thread calls once the HCA is lost: it is in a fatal error, or gdxd, which has
  // it open, has ended; at once if that was before. The function may only store and log. It is called no more
  // once the returned object has ended. Errors: kNoMemory (no thread).
  [[nodiscard]] Result<std::shared_ptr<void>> on_loss(std::function<void()> act) const;
  // The connection to gdxd; null: this process has opened the HCA.
  [[nodiscard]] const std::shared_ptr<ipc::Daemon>& daemon() const { return daemon_; }
  [[nodiscard]] std::uint32_t pdn() const { return pdn_; }
  [[nodiscard]] std::uint8_t port() const { return 1; }
  // LID of an InfiniBand port; 0: the port is Ethernet's.
  [[nodiscard]] std::uint16_t lid() const { return lid_; }
  [[nodiscard]] LinkLayer link_layer() const {
    return lid_ != 0 ? LinkLayer::kInfiniBand : LinkLayer::kEthernet;
  }
  // Packets to this port need a GRH: it is Ethernet's, or shares its LID with others, as virtual functions
  // do.
  [[nodiscard]] bool grh_required() const { return grh_required_; }
  [[nodiscard]] const ibv_gid& gid() const { return gid_; }
  [[nodiscard]] std::uint8_t gid_index() const { return gid_index_; }
  [[nodiscard]] std::string address_text() const { return gdx::address_text(gid_.raw); }
  [[nodiscard]] std::uint32_t path_mtu_bytes() const { return path_mtu_bytes_; }
  [[nodiscard]] std::uint32_t eqn() const { return eqn_; }
  // Set of the port's hardware counters, to which DevX queue pairs are attached by hand. 0: unavailable.
  [[nodiscard]] std::uint8_t counter_set() const { return counter_set_; }
  [[nodiscard]] const Routing& routing() const { return routing_; }
  [[nodiscard]] std::uint64_t device_memory_bytes() const { return device_memory_bytes_; }  // 0: has none
  [[nodiscard]] const std::string& firmware() const { return firmware_; }
  [[nodiscard]] bool is_software() const { return is_software_; }

  // Returns the reason for its choice: "as the nearest that serves: PIX from GPU 0000:3b:00.0".
  [[nodiscard]] const std::string& chosen() const { return chosen_; }

  // Path of the device in sysfs; empty for one that gdxd has open.
  [[nodiscard]] const std::string& sysfs_path() const { return sysfs_path_; }

  // Returns a hardware counter of the port as sysfs shows it (hw_counters/<counter_name>), cumulative.
  // Errors: kNotFound when this HCA has no such counter, kSystem when it cannot be read.
  [[nodiscard]] Result<std::uint64_t> counter(std::string_view counter_name) const;

 private:
  // Device objects in one structure, so that assignment to an Hca releases them in the right order.
  struct Device {
    ContextHandle context;
    std::shared_ptr<HcaEvents> events;
    PdHandle pd;
  };
  Hca() = default;
  static Result<Hca> open_here(const HcaOptions& options);
  static Result<Hca> open_by(std::shared_ptr<ipc::Daemon> daemon, const HcaOptions& options);
  Result<void> open_on(ibv_device* device);
  Result<void> read_device();
  Result<void> read_port(std::optional<std::uint64_t> gid_index);
  Result<void> choose_gid(int gid_count, std::optional<std::uint64_t> wanted);

  std::string name_;
  std::string chosen_;
  std::string sysfs_path_;
  std::string firmware_;
  std::unique_ptr<Device> device_;
  std::shared_ptr<ipc::Daemon> daemon_;
  std::uint32_t pdn_ = 0;
  std::uint32_t eqn_ = 0;
  ibv_gid gid_{};
  std::uint8_t gid_index_ = 0;
  std::uint16_t lid_ = 0;
  bool grh_required_ = false;
  std::uint32_t path_mtu_bytes_ = 0;
  std::uint8_t counter_set_ = 0;
  Routing routing_;
  bool is_software_ = false;
  std::uint64_t device_memory_bytes_ = 0;
};

}  // namespace gdx
