// An HCA, opened through libibverbs and libmlx5 alone: whatever stands below them, a ConnectX or the
// software HCA, is reached on the same path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "host/hca/handles.h"

namespace gdx {

inline constexpr char kHcaVariable[] = "GDX_HCA";

struct HcaOptions {
  std::string name;  // empty: $GDX_HCA, and failing that the first mlx5 HCA that offers DevX
};

// The names of the RDMA devices that libibverbs sees, in its order.
// Errors: kSystem when the list cannot be read. Threads: any.
[[nodiscard]] Result<std::vector<std::string>> list_hcas();

// One open device: context, protection domain, port 1 and its RoCE v2 address.
// It must outlive every Memory, StagingPool and Endpoint made from it.
// Threads: const methods from any thread.
class Hca {
 public:
  // Errors: kNoDevice (none at all), kNotFound (not that one; the message lists those that exist),
  // kUnsupported (not mlx5, no DevX, no RoCE v2 address, port not active), kSystem.
  [[nodiscard]] static Result<Hca> open(const HcaOptions& options = {});

  Hca(Hca&&) noexcept = default;
  Hca& operator=(Hca&&) noexcept = default;
  Hca(const Hca&) = delete;
  Hca& operator=(const Hca&) = delete;

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] ibv_context* context() const { return device_->context.get(); }
  [[nodiscard]] ibv_pd* pd() const { return device_->pd.get(); }
  [[nodiscard]] std::uint32_t pdn() const { return pdn_; }
  [[nodiscard]] std::uint8_t port() const { return 1; }
  [[nodiscard]] const ibv_gid& gid() const { return gid_; }
  [[nodiscard]] std::uint8_t gid_index() const { return gid_index_; }
  // "127.0.0.2" for an IPv4-mapped GID, the IPv6 notation for any other.
  [[nodiscard]] std::string address_text() const;
  [[nodiscard]] std::uint32_t path_mtu_bytes() const { return path_mtu_bytes_; }
  [[nodiscard]] std::uint32_t eqn() const { return eqn_; }
  [[nodiscard]] std::uint64_t device_memory_bytes() const { return device_memory_bytes_; }  // 0: has none
  [[nodiscard]] const std::string& firmware() const { return firmware_; }

  // A hardware counter of the port as sysfs shows it (hw_counters/<counter_name>), cumulative.
  // Errors: kNotFound when this HCA has no such counter, kSystem when it cannot be read.
  [[nodiscard]] Result<std::uint64_t> counter(std::string_view counter_name) const;

 private:
  // One object, so that an Hca that is assigned to lets go of both in the right order.
  struct Device {
    ContextHandle context;
    PdHandle pd;
  };
  Hca() = default;
  Result<void> open_on(ibv_device* device);
  Result<void> read_device();
  Result<void> read_port();
  Result<void> choose_gid(int gid_count);

  std::string name_;
  std::string sysfs_path_;
  std::string firmware_;
  std::unique_ptr<Device> device_;
  std::uint32_t pdn_ = 0;
  std::uint32_t eqn_ = 0;
  ibv_gid gid_{};
  std::uint8_t gid_index_ = 0;
  std::uint32_t path_mtu_bytes_ = 0;
  std::uint64_t device_memory_bytes_ = 0;
};

}  // namespace gdx
