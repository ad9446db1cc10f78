#include <fmt/format.h>

#include <bit>
#include <memory>
#include <random>

#include "driver-shim/softhca/engine/engine.h"
#include "driver-shim/softhca/wire/interface.h"
#include "driver-shim/softhca/wire/mortal_wire.h"

namespace gdx::softhca {
namespace {

Result<HcaConfig> with_mtu_of(const wire::Wire& wire, HcaConfig config) {
  const std::uint32_t carried_bytes = wire.mtu_bytes();
  const std::string where = fmt::format("{}: the interface of {}", config.name, wire.local().text());
  if (carried_bytes == 0) {
    return fail(Status::kInvalidArgument, where + " carries no RoCE packet: raise its MTU to 1500");
  }
  if (config.mtu_bytes > carried_bytes) {
    return fail(
        Status::kInvalidArgument,
        fmt::format("{} carries an MTU of {}, not of {}: ask for that, or raise the interface's to {}", where,
                    carried_bytes, config.mtu_bytes, wire::ip_mtu_for(config.mtu_bytes)));
  }
  if (config.mtu_bytes == 0) config.mtu_bytes = carried_bytes;
  return config;
}

}  // namespace

Random system_random() {
  return [entropy = std::make_shared<std::random_device>()] { return (*entropy)(); };
}

Result<std::unique_ptr<Hca>> open_hca(const HcaConfig& wanted, std::byte* device_memory) {
  const bool is_mtu =
      std::has_single_bit(wanted.mtu_bytes) && wanted.mtu_bytes >= 256 && wanted.mtu_bytes <= 4096;
  if (wanted.mtu_bytes != 0 && !is_mtu) {
    return fail(Status::kInvalidArgument, wanted.name + ": an MTU is 256, 512, 1024, 2048 or 4096 bytes");
  }
  if (wanted.quantum_bytes == 0 || !(wanted.rate_gbps >= 0)) {
    return fail(Status::kInvalidArgument,
                wanted.name + ": a turn has at least a byte, a link's rate is not negative");
  }
  Result<std::unique_ptr<wire::Wire>> wire = wire::open_wire(wanted.carrier, wanted.udp);
  if (!wire) return tl::unexpected<Error>(wire.error());
  Result<HcaConfig> config = with_mtu_of(**wire, wanted);
  if (!config) return tl::unexpected<Error>(config.error());
  const wire::FaultConfig& faults = wanted.udp.faults;
  if (faults.death > 0) *wire = std::make_unique<wire::MortalWire>(std::move(*wire), faults);
  return std::make_unique<Engine>(*config, std::move(*wire), device_memory, system_random());
}

}  // namespace gdx::softhca
