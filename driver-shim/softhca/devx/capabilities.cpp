#include <algorithm>
#include <bit>

#include "driver-shim/softhca/devx/commands.h"
#include "driver-shim/softhca/devx/limits.h"
#include "driver-shim/softhca/engine/planted_fault.h"
#include "driver-shim/softhca/wire/addressing.h"

namespace gdx::softhca::devx {
namespace prm = mlx5::prm;
namespace {

void fill_general(const Hca& hca, Output out) {
  namespace cap = prm::cap;
  prm::set(out, cap::kHcaCap2, 1);
  prm::set(out, cap::kLogMaxSrqSize, kLogMaxSrqEntries);
  prm::set(out, cap::kLogMaxQpSize, kLogMaxSendBlocks);
  prm::set(out, cap::kLogMaxQp, kLogMaxObjects);
  prm::set(out, cap::kLogMaxSrq, kLogMaxObjects);
  prm::set(out, cap::kLogMaxCqSize, kLogMaxCqEntries);
  prm::set(out, cap::kLogMaxCq, kLogMaxObjects);
  prm::set(out, cap::kLogMaxMkey, kLogMaxObjects);
  prm::set(out, cap::kMaxIndirection, 1);
  prm::set(out, cap::kFixedBufferSize, 1);
  prm::set(out, cap::kLogMaxTranslations, kLogMaxTranslations);
  prm::set(out, cap::kLogMaxRequesterReads, kLogMaxReads);
  prm::set(out, cap::kLogMaxResponderReads, kLogMaxReads);
  prm::set(out, cap::kGidTableSize, 0);  // encoded: 8 << n entries, of which kGidTableSize are valid
  prm::set(out, cap::kPkeyTableSize, 0);
  prm::set(out, cap::kDeviceMemorySupported, hca.config().device_memory_bytes != 0);
  prm::set(out, cap::kPortType, !hca.config().infiniband);
  prm::set(out, cap::kNumPorts, 1);
  prm::set(out, cap::kLogMaxMessage, kLogMaxMessage);
  // Offers any order on Ethernet only, because on InfiniBand the service level decides the order.
  prm::set(out, cap::kAnyOrderRc, !hca.config().infiniband && hca.config().data_order != OrderRule::kKept);
  prm::set(out, cap::kCqeVersion, 1);
  prm::set(out, cap::kCompactAddressVector, 1);
  prm::set(out, cap::kRoceSupported, !hca.config().infiniband);
  prm::set(out, cap::kAtomicSupported, 1);
  prm::set(out, cap::kCqOverrunIgnore, planted_fault != PlantedFault::kNoOverrunIgnore);
  prm::set(out, cap::kMemoryWindows, 1);
  prm::set(out, cap::kUd, 1);
  prm::set(out, cap::kUc, 1);
  prm::set(out, cap::kRc, 1);
  prm::set(out, cap::kUar4k, 1);
  prm::set(out, cap::kLogPageSize, 12);
  prm::set(out, cap::kBlueFlame, 1);
  prm::set(out, cap::kLogBlueFlameRegisterSize, kLogBlueFlameRegister);
  prm::set(out, cap::kMaxWqeSizeSq, kMaxSendWqeBytes);
  prm::set(out, cap::kMaxWqeSizeRq, kMaxReceiveWqeBytes);
  prm::set(out, cap::kLogMaxPd, kLogMaxObjects);
  prm::set(out, cap::kLogMaxRmp, kLogMaxObjects);
  prm::set(out, cap::kLogMaxRmpSize, kLogMaxSrqEntries);
  prm::set(out, cap::kUarsPerPage, 1);
  prm::set(out, cap::kCqe128Always, 1);
}

// Fills in the second general capabilities. Doorbells without a record and the reservation of queue pair
// numbers are not offered.
void fill_general_2(const Hca& hca, Output out) {
  prm::set(out, prm::cap::kOrderingForced, hca.config().data_order == OrderRule::kChosen);
}

void fill_atomic(Output out) {
  namespace cap = prm::cap;
  prm::set(out, cap::kAtomicHostEndian, 1);
  prm::set(out, cap::kAtomicHostEndianSupported, 1);
  prm::set(out, cap::kAtomicOperations,
           cap::kCompareSwap | cap::kFetchAdd | cap::kMaskedCompareSwap | cap::kMaskedFetchAdd);
  prm::set(out, cap::kAtomicSizeQp, 1u << 2 | 1u << 3);  // 4 and 8 B
}

void fill_roce(const Hca& hca, Output out) {
  namespace cap = prm::cap;
  prm::set(out, cap::kQpTimestamps, hca.config().strict ? cap::kRealTimeOnly : cap::kFreeRunningOnly);
  prm::set(out, cap::kRoceL3Type, 1);
  prm::set(out, cap::kRoceVersions, 1u << 2);
  prm::set(out, cap::kRoceDestinationUdpPort, 4791);
  prm::set(out, cap::kRoceMinSourceUdpPort, 0xc000);
  prm::set(out, cap::kRoceMaxSourceUdpPort, 0xffff);
  prm::set(out, cap::kRoceAddressTableSize, wire::kGidTableSize);
}

void fill_device_memory(const Hca& hca, Output out) {
  namespace cap = prm::cap;
  const std::size_t bytes = hca.config().device_memory_bytes;
  prm::set(out, cap::kMemic, bytes != 0);
  prm::set(out, cap::kLogMinMemicAllocation, 12);
  prm::set(out, cap::kLogMaxMemicAlignment, 12);
  prm::set(out, cap::kMaxMemicBytes, bytes);
}

}  // namespace

Outcome query_hca_cap(const Hca& hca, Input in, Output out) {
  // Ignores the low bit, which selects the maximum or the current value, because the two are equal here.
  switch (prm::get32(in, prm::kOpMod) >> 1) {
    case prm::cap::kGeneral: fill_general(hca, out); return {};
    case prm::cap::kAtomic: fill_atomic(out); return {};
    case prm::cap::kRoce: fill_roce(hca, out); return {};
    case prm::cap::kDeviceMemory: fill_device_memory(hca, out); return {};
    case prm::cap::kNicFlowTable: return {};  // zeros: nothing is steered
    case prm::cap::kGeneral2: fill_general_2(hca, out); return {};
    default: return refuse_with(prm::CommandStatus::kBadParameter, Syndrome::kUnsupportedCapability);
  }
}

Outcome query_roce_address(const Hca& hca, Input in, Output out) {
  const std::uint32_t index = prm::get32(in, prm::roce_address::kIndex);
  if (index >= wire::kGidTableSize) return refuse_with(prm::CommandStatus::kBadIndex, Syndrome::kBadIndex);
  const wire::Gid gid = wire::gid_of(hca.address(), static_cast<std::uint8_t>(index));
  std::copy(gid.begin(), gid.end(), out.begin() + prm::roce_address::kSourceGidByte);
  const wire::Mac mac = wire::mac_of(hca.address());
  prm::set(out, prm::roce_address::kSourceMacHigh, std::uint32_t{mac[0]} << 8 | mac[1]);
  prm::set(out, prm::roce_address::kSourceMacLow,
           std::uint32_t{mac[2]} << 24 | std::uint32_t{mac[3]} << 16 | std::uint32_t{mac[4]} << 8 | mac[5]);
  prm::set(out, prm::roce_address::kL3Type, index == 1 && hca.address().is_ipv4() ? 0 : 1);
  prm::set(out, prm::roce_address::kVersion, 2);
  return {};
}

Outcome query_nic_vport_context(Output out) {
  prm::set(out, prm::kNicVportRoceEnabled, 1);
  return {};
}

}  // namespace gdx::softhca::devx
