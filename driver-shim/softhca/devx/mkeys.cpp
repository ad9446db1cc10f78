#include "driver-shim/softhca/devx/commands.h"
#include "driver-shim/softhca/devx/limits.h"

namespace gdx::softhca::devx {
namespace prm = mlx5::prm;
namespace {

Outcome refuse_mkey(Syndrome syndrome) { return refuse_with(prm::CommandStatus::kBadParameter, syndrome); }

std::uint32_t access_of(Input in) {
  return (prm::get32(in, prm::mkey::kLocalWrite) ? kLocalWrite : 0u) |
         (prm::get32(in, prm::mkey::kRemoteWrite) ? kRemoteWrite : 0u) |
         (prm::get32(in, prm::mkey::kRemoteRead) ? kRemoteRead : 0u) |
         (prm::get32(in, prm::mkey::kAtomic) ? kRemoteAtomic : 0u);
}

bool is_fixed_size(Input in) {
  return prm::get32(in, prm::mkey::kAccessModeHigh) == 0 &&
         prm::get32(in, prm::mkey::kAccessMode) == prm::mkey::kModeFixedSize &&
         prm::get32(in, prm::mkey::kFree) == 0 && prm::get32(in, prm::mkey::kUmrEnabled) == 0 &&
         prm::get32(in, prm::mkey::kSignature) == 0 && prm::get32(in, prm::mkey::kLength64) == 0;
}

// Returns whether the key is made for UMR WQEs to lay out, with entries of any size.
bool is_for_umr(Input in) {
  return prm::get32(in, prm::mkey::kAccessModeHigh) == 0 &&
         prm::get32(in, prm::mkey::kAccessMode) == prm::mkey::kModeAnySize &&
         prm::get32(in, prm::mkey::kFree) == 1 && prm::get32(in, prm::mkey::kUmrEnabled) == 1 &&
         prm::get32(in, prm::mkey::kSignature) == 0 && prm::get32(in, prm::mkey::kCrypto) == 0 &&
         prm::get32(in, prm::mkey::kLength64) == 0;
}

Outcome add_mkey(Hca& hca, const MemoryRegionSpec& spec, Object& object) {
  const ErrnoOr<std::uint32_t> mkey = hca.register_memory(spec);
  if (!mkey) return outcome_of(mkey.error());
  object = {ObjectKind::kMkey, *mkey, {}, std::make_shared<ObjectEvents>(), spec.pd, spec.length_bytes};
  return {};
}

// Ignores the context's range and rights, because the first UMR sets them anew.
Outcome create_umr_mkey(Hca& hca, Input in, Object& object) {
  const std::uint32_t entries = prm::get32(in, prm::mkey::kMaxEntries);
  if (entries == 0 || entries > 1u << kLogMaxTranslations) return refuse_mkey(Syndrome::kUnsupportedMkey);
  MemoryRegionSpec spec;
  spec.pd = prm::get32(in, prm::mkey::kPd);
  spec.iova = prm::get(in, prm::mkey::kStartAddress);
  spec.access = access_of(in);
  spec.key_tag = static_cast<std::uint8_t>(prm::get32(in, prm::mkey::kTag));
  spec.umr = UmrKey{.peer_may_invalidate = prm::get32(in, prm::mkey::kRemoteInvalidate) == 1,
                    .max_entries = entries};
  return add_mkey(hca, spec, object);
}

}  // namespace

// Keys that UMR lays out, and the fixed kind that gives memory a second key (UCX: atomics, invalidation,
// registration by several threads).
Outcome create_mkey(Hca& hca, Input in, Object& object) {
  if (in.size() < prm::mkey::kEntriesByte) {
    return refuse_with(prm::CommandStatus::kBadInputLength, Syndrome::kUnsupportedMkey);
  }
  if (is_for_umr(in)) return create_umr_mkey(hca, in, object);
  if (!is_fixed_size(in)) return refuse_mkey(Syndrome::kUnsupportedMkey);
  const std::uint32_t entries = prm::get32(in, prm::mkey::kEntries);
  if (entries == 0 || entries > 1u << kLogMaxTranslations) return refuse_mkey(Syndrome::kUnsupportedMkey);
  if (in.size() - prm::mkey::kEntriesByte < entries * prm::mkey::kEntryBytes) {
    return refuse_with(prm::CommandStatus::kBadInputLength, Syndrome::kUnsupportedMkey);
  }
  MemoryRegionSpec spec;
  spec.pd = prm::get32(in, prm::mkey::kPd);
  spec.iova = prm::get(in, prm::mkey::kStartAddress);
  spec.length_bytes = prm::get(in, prm::mkey::kLengthBytes);
  spec.access = access_of(in);
  spec.key_tag = static_cast<std::uint8_t>(prm::get32(in, prm::mkey::kTag));
  const std::uint32_t log_piece_bytes = prm::get32(in, prm::mkey::kLogEntityBytes);
  if (spec.length_bytes > std::uint64_t{entries} << log_piece_bytes) {
    return refuse_mkey(Syndrome::kUnsupportedMkey);
  }
  for (std::uint32_t i = 0; i < entries; ++i) {
    const Input entry = in.subspan(prm::mkey::kEntriesByte + i * prm::mkey::kEntryBytes);
    spec.pieces.push_back({.mkey = prm::get32(entry, prm::mkey::kEntryMkey),
                           .address = prm::get(entry, prm::mkey::kEntryAddress),
                           .start_bytes = std::uint64_t{i} << log_piece_bytes});
  }
  return add_mkey(hca, spec, object);
}

}  // namespace gdx::softhca::devx
