// Contracts of the host's poster, as text and as JSON.
#pragma once

#include <string>
#include <vector>

#include "host/poster/contract.h"
#include "host/poster/port.h"

namespace gdx::proxy {

// A provider, with its contract, or the reason for which the poster cannot use it.
struct Explained {
  std::string provider;
  PortTraits traits;
  std::vector<ContractRow> rows;  // empty: not usable
  std::string unusable;
};

[[nodiscard]] std::string text_of(const std::vector<Explained>& all);
[[nodiscard]] std::string json_of(const std::vector<Explained>& all);

}  // namespace gdx::proxy
