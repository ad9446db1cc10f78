#include "driver-shim/softhca/uverbs/adapter.h"

#include <fmt/format.h>

#include <cstring>
#include <random>

namespace gdx::softhca::uverbs {
namespace {

Result<std::unique_ptr<Adapter>> open_adapter(const HcaConfig& config) {
  ErrnoOr<DevicePages> pages = DevicePages::create(config.device_memory_bytes);
  if (!pages) {
    return fail(Status::kSystem, fmt::format("cannot map the device memory of {}: {}", config.name,
                                             std::strerror(pages.error())));
  }
  auto adapter = std::make_unique<Adapter>(std::move(*pages));
  adapter->hca = GDX_TRY(open_hca(config, adapter->device_memory.memory()));
  return adapter;
}

// Adds to `adapters` up to the configured number.
Result<void> open_siblings(const Configuration& configuration, Adapters& adapters) {
  auto first = GDX_TRY(open_adapter(configuration.first));
  adapters.push_back(std::move(first));
  const wire::Address address = adapters.front()->hca->address();
  for (std::uint32_t index = 1; index < configuration.hcas; ++index) {
    auto sibling = GDX_TRY(open_adapter(sibling_config(configuration.first, address, index)));
    adapters.push_back(std::move(sibling));
  }
  return {};
}

}  // namespace

Result<Adapters> open_adapters(const Configuration& configuration) {
  constexpr int kAttempts = 64;
  constexpr std::uint32_t kFirstLoopback = 0x7f000002;  // 127.0.0.2, of 65,532 that are given out
  constexpr std::uint32_t kLoopbacks = 0xfffc;
  const bool any_address = configuration.first.udp.address.empty();
  Configuration tried = configuration;
  std::random_device entropy;
  for (int attempt = 1;; ++attempt) {
    Adapters adapters;
    const Result<void> opened = open_siblings(tried, adapters);
    if (opened) return adapters;
    const bool again = any_address && opened.error().status == Status::kBusy && attempt < kAttempts;
    if (!again) return tl::unexpected(opened.error());
    // Anywhere else: processes that start together and search on side by side would stay in each other's way.
    const std::uint32_t first = kFirstLoopback + entropy() % (kLoopbacks - configuration.hcas);
    tried.first.udp.address = wire::Address::ipv4(first).text();
  }
}

}  // namespace gdx::softhca::uverbs
