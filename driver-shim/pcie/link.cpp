#include "driver-shim/pcie/link.h"

#include <fmt/format.h>

#include <array>
#include <optional>

namespace gdx::pcie {
namespace {

constexpr double kGigatransfersGen3 = 8e9;  // a lane, doubled by every generation since
constexpr double kLineEncoding = 128.0 / 130.0;
constexpr double kFlitEncoding = 236.0 / 256.0;
constexpr double kBitsPerByte = 8;
constexpr double kSkipShare = 4.0 / 1538.0;
constexpr double kDllpBytes = 8;  // 2 B start, 4 B content, 2 B CRC

constexpr std::array<std::uint32_t, 3> kLanes = {4, 8, 16};
constexpr std::array<std::uint32_t, 4> kMpsBytes = {128, 256, 512, 1024};
// Symbol times after which an ACK is due, by lanes and MPS.
constexpr double kAckLimitSymbols[kLanes.size()][kMpsBytes.size()] = {
    {169, 214, 250, 378}, {163, 203, 182, 246}, {144, 168, 182, 246}};

template <std::size_t kSize>
std::optional<std::size_t> position(const std::array<std::uint32_t, kSize>& values, std::uint32_t value) {
  for (std::size_t i = 0; i < kSize; ++i) {
    if (values[i] == value) return i;
  }
  return std::nullopt;
}

}  // namespace

Result<void> check(const LinkConfig& link) {
  if (link.generation < Generation::kGen3 || link.generation > Generation::kGen6) {
    return fail(Status::kInvalidArgument, fmt::format("generation {} is not modelled: use 3, 4, 5 or 6",
                                                      static_cast<int>(link.generation)));
  }
  if (!position(kLanes, link.lanes)) {
    return fail(Status::kInvalidArgument, fmt::format("width {}: use 4, 8 or 16 lanes", link.lanes));
  }
  if (!position(kMpsBytes, link.mps_bytes)) {
    return fail(Status::kInvalidArgument,
                fmt::format("maximum payload size {}: use 128, 256, 512 or 1024 B", link.mps_bytes));
  }
  return {};
}

double raw_bytes_per_s(const LinkConfig& link) {
  const int doublings = static_cast<int>(link.generation) - static_cast<int>(Generation::kGen3);
  const double encoding = has_flits(link.generation) ? kFlitEncoding : kLineEncoding;
  return kGigatransfersGen3 * (1 << doublings) * link.lanes * encoding / kBitsPerByte;
}

double skip_share(const LinkConfig& link) { return has_flits(link.generation) ? 0 : kSkipShare; }

double dllp_share(const LinkConfig& link) {
  if (has_flits(link.generation)) return 0;
  const auto lanes = position(kLanes, link.lanes);
  const auto mps = position(kMpsBytes, link.mps_bytes);
  if (!lanes || !mps) return 0;
  const double bytes_per_symbol_time = link.dllp == DllpAccounting::kBothWays ? 1 : link.lanes;
  return 2 * kDllpBytes / (kAckLimitSymbols[*lanes][*mps] * bytes_per_symbol_time);
}

double tlp_bytes_per_s(const LinkConfig& link) {
  const double both_ways = link.dllp == DllpAccounting::kBothWays ? dllp_share(link) : 0;
  return raw_bytes_per_s(link) * (1 - skip_share(link) - both_ways);
}

}  // namespace gdx::pcie
