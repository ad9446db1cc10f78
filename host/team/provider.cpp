#include "host/team/provider.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "host/bootstrap/socket.h"
#include "host/ipc/daemon.h"
#include "host/poster/contract.h"
#include "host/poster/libfabric_port.h"
#include "host/poster/verbs_port.h"
#include "host/team/connections.h"

namespace gdx::team {
namespace {

// The provider that works between any two hosts, and needs no NIC.
constexpr const char* kAnywhere = "tcp";

std::string shown(const ProviderChoice& choice) {
  return choice.text().empty() ? "no provider" : fmt::format("provider '{}'", choice.text());
}

Result<void> check_reach(const PortTraits& traits, bool insecure, const PosterParts& parts) {
  const peer::NodeIdentity& here = parts.nodes[parts.world->rank()];
  for (std::uint32_t rank = 0; rank < parts.nodes.size(); ++rank) {
    const peer::NodeIdentity& there = parts.nodes[rank];
    const bool same_host = std::ranges::equal(there.boot_id, here.boot_id);
    const bool same_network =
        there.network_device == here.network_device && there.network_inode == here.network_inode;
    if (same_host && (same_network || !traits.software)) continue;
    if (traits.within_host) {
      return fail(Status::kUnsupported,
                  fmt::format("rank {} is on another host, which provider {} does not reach: use {}={}", rank,
                              traits.provider, kProviderVariable, kAnywhere));
    }
    if (traits.software && !insecure) {
      return fail(
          Status::kUnsupported,
          fmt::format("rank {} is on another host or network, and provider {} authenticates nobody: set "
                      "GDX_INSECURE=1 at all ranks on a network that you trust",
                      rank, traits.provider));
    }
  }
  return {};
}

// Opens the port, if it reaches all ranks.
Result<std::unique_ptr<Port>> open_port(const std::string& provider, const PosterParts& parts) {
  if (auto verbs = verbs_options_of(provider)) {
    verbs->ack_timeout = *parts.options->endpoint.ack_timeout;
    verbs->retry_count = *parts.options->endpoint.retry_count;
    return open_verbs_port(*verbs);
  }
  const bool insecure = GDX_TRY(insecure_from_environment());
  LibfabricOptions port_options{.provider = provider, .address = {}, .insecure = insecure};
  const PortTraits traits = GDX_TRY(libfabric_traits(port_options));
  GDX_TRY(check_reach(traits, insecure, parts));
  // TCP is known to work at that address.
  if (traits.software && insecure && !bootstrap::is_local(parts.world->options().root))
    port_options.address = parts.world->address();
  return open_libfabric_port(port_options);
}

}  // namespace

Result<ProviderChoice> provider_choice(const TeamOptions& options) {
  const char* const variable = std::getenv(kProviderVariable);
  const std::string asked = options.provider ? *options.provider : variable == nullptr ? "" : variable;
  ProviderChoice choice;
  if (asked.size() >= choice.asked.size()) {
    return fail(
        Status::kInvalidArgument,
        fmt::format("{} '{}' is longer than {} bytes: use auto, ibverbs, or a name that fi_info prints",
                    kProviderVariable, asked, choice.asked.size() - 1));
  }
  std::ranges::copy(asked, choice.asked.begin());
  choice.takes = choice.tries_hca() ? 0 : 1;
  if (choice.takes != 0 && GDX_TRY(ipc::daemon_places_from_environment()).required) {
    return fail(
        Status::kUnsupported,
        fmt::format("{}={} is a way of this process, and {} asks for gdxd, which has none: set {}=off",
                    kProviderVariable, asked, ipc::kDaemonVariable, ipc::kDaemonVariable));
  }
  return choice;
}

Result<std::string> provider_of(std::span<const ProviderChoice> ranks) {
  const auto taker = std::ranges::find_if(ranks, [](const ProviderChoice& rank) { return rank.takes != 0; });
  if (taker == ranks.end()) return std::string();
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].asked == taker->asked) continue;
    return fail(Status::kInvalidArgument,
                fmt::format("rank {} was given {}, rank {} {}: give all ranks the same {}", rank,
                            shown(ranks[rank]), taker - ranks.begin(), shown(*taker), kProviderVariable));
  }
  return taker->is_auto() ? std::string(kAnywhere) : taker->text();
}

Result<void> check_proxied_options(const std::string& provider, const TeamOptions& options) {
  if (options.heap_memory != HeapMemory::kGpu && options.endpoint.placement != Placement::kGpu) return {};
  return fail(
      Status::kUnsupported,
      fmt::format("provider {} is driven by a thread of the host, from host memory: leave team options "
                  "heap_memory and endpoint.placement at host",
                  provider));
}

Result<std::unique_ptr<Poster>> start_poster(const std::string& provider, const PosterParts& parts) {
  const TeamOptions& options = *parts.options;
  ExecutorOptions executor_options;
  executor_options.rank = parts.world->rank();
  executor_options.ranks = parts.world->size();
  executor_options.lanes = options.lanes;
  executor_options.emulation = GDX_TRY(emulation_from_environment());
  executor_options.peer_timeout_ns = deadline_of(options.endpoint);
  auto port = GDX_TRY(open_port(provider, parts));
  auto executor = GDX_TRY(Executor::create(std::move(port), executor_options));
  PosterOptions poster_options;
  poster_options.timeout_ns = *options.endpoint.timeout_ns;
  poster_options.abort = parts.abort;
  poster_options.asked = parts.asked;
  return Poster::start(std::move(executor), poster_options);
}

std::string describe_proxied(const Poster& poster) {
  std::string emulated;
  for (const ContractRow& row : contract_of(poster.traits(), poster.order())) {
    if (row.support != Support::kEmulated) continue;
    emulated += fmt::format("{}{}", emulated.empty() ? "" : ", ", row.subject);
  }
  return fmt::format("proxied: by a host thread over provider {} {}; emulated: {}", poster.traits().provider,
                     poster.traits().version, emulated);
}

}  // namespace gdx::team
