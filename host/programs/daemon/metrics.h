// Metrics for Prometheus, made of gdxd's statistics at each request for them.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace gdx::daemon {

// ADDRESS:PORT or [ADDRESS]:PORT, in numbers.
struct MetricsAddress {
  std::string listening;  // address as it was given
  std::string host;       // host, with its brackets
  bool loopback;          // reached from this machine alone
};
[[nodiscard]] std::optional<MetricsAddress> parse_metrics_address(std::string_view text);

class Metrics {
 public:
  // Listens, and tells where in one line. `statistics` returns Server::statistics() of all users, `admits`
  // whether a user of this host may see them. The thread of the HTTP server calls both until this ends.
  // Errors: kUnsupported (built without prometheus-cpp), kSystem.
  [[nodiscard]] static Result<std::unique_ptr<Metrics>> serve(const MetricsAddress& address,
                                                              std::function<std::string()> statistics,
                                                              std::function<bool(uid_t)> admits);
  virtual ~Metrics() = default;
};

}  // namespace gdx::daemon
