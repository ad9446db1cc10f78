#include "driver-shim/softhca/engine/qp_parts.h"

#include "proto/mlx5/doorbell.h"

namespace gdx::softhca {
namespace {

AddressVectorUse vectors_of(QpType type, const HcaConfig& config) {
  if (type != QpType::kUd) return AddressVectorUse::kNone;
  return config.infiniband ? AddressVectorUse::kByLid : AddressVectorUse::kByGid;
}

}  // namespace

QpParts::QpParts(std::uint32_t number, const QueuePairSpec& queue_pair, HcaParts& shared)
    : qpn(number),
      spec(queue_pair),
      hca(shared),
      states(spec.type, qpn),
      memory({spec.pd, qpn}, {.keys = hca.memory,
                              .foreign = hca.foreign,
                              .pcie = hca.counters.pcie,
                              .wire = *hca.wire,
                              .device = {hca.device_memory, hca.config.device_memory_bytes},
                              .two_step_atomics = hca.config.strict}),
      sends({.qpn = qpn,
             .vectors = vectors_of(spec.type, hca.config),
             .ring = spec.send_ring,
             .blocks = spec.send_blocks,
             .record = &spec.doorbell_record[mlx5::kSendRecord],
             .record_use = hca.config.record},
            hca.foreign, hca.staging),
      pacer(spec.type, states.attributes(), hca.config, hca.windows, *hca.wire) {}

}  // namespace gdx::softhca
