// The provider of libfabric by which a thread of the host posts for a team's kernels, in place of an HCA.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"
#include "host/bootstrap/world.h"
#include "host/poster/poster.h"
#include "host/team/team_options.h"
#include "proto/bootstrap/peer.h"

namespace gdx::team {

// A rank's choice, as it tells the others. Trivially copyable, because ranks exchange it as bytes.
struct ProviderChoice {
  std::array<char, agent::kProviderBytes> asked{};  // TeamOptions::provider or $GDX_PROVIDER, ended by 0
  std::uint32_t takes = 0;                          // nonzero: this rank needs the provider

  [[nodiscard]] std::string text() const { return asked.data(); }
  // Returns whether an HCA is to be tried first, and where none is.
  [[nodiscard]] bool tries_hca() const { return text().empty() || is_auto(); }
  [[nodiscard]] bool is_auto() const { return text() == "auto"; }
};
// Errors: kInvalidArgument for a name that no provider can have; kUnsupported beside a gdxd that was asked
// for.
[[nodiscard]] Result<ProviderChoice> provider_choice(const TeamOptions& options);

// Returns the provider of a team, which all ranks take if one needs it; empty: none does. Errors:
// kInvalidArgument, naming two ranks whose choices differ.
[[nodiscard]] Result<std::string> provider_of(std::span<const ProviderChoice> ranks);

// Parts of a team that its poster uses; they outlive it.
struct PosterParts {
  const World* world = nullptr;
  std::span<const peer::NodeIdentity> nodes;  // by rank
  const TeamOptions* options = nullptr;       // complete
  const std::uint32_t* abort = nullptr;
  std::uint32_t* asked = nullptr;  // by lane, then rank
};

// Errors: kUnsupported for options that a poster cannot serve.
[[nodiscard]] Result<void> check_proxied_options(const std::string& provider, const TeamOptions& options);

// Opens the provider and starts the poster, without windows and peers. Errors: kUnsupported for ranks that
// the provider does not reach; those of open_libfabric_port, Executor::create and Poster::start, of
// $GDX_EMULATION and $GDX_INSECURE.
[[nodiscard]] Result<std::unique_ptr<Poster>> start_poster(const std::string& provider,
                                                           const PosterParts& parts);

// Returns how the poster reaches ranks, and what it emulates: "proxied: by a host thread over ...".
[[nodiscard]] std::string describe_proxied(const Poster& poster);

}  // namespace gdx::team
