#include <arpa/inet.h>

#include <limits>

#include "base/parse_number.h"
#include "host/programs/daemon/metrics.h"

namespace gdx::daemon {

std::optional<MetricsAddress> parse_metrics_address(std::string_view text) {
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const auto port = parse_unsigned(text.substr(colon + 1));
  if (!port || *port > std::numeric_limits<std::uint16_t>::max()) return std::nullopt;
  const std::string host(text.substr(0, colon));
  in_addr four{};
  if (inet_pton(AF_INET, host.c_str(), &four) == 1)
    return MetricsAddress{std::string(text), host, ntohl(four.s_addr) >> 24 == IN_LOOPBACKNET};
  if (!host.starts_with('[') || !host.ends_with(']')) return std::nullopt;
  in6_addr six{};
  if (inet_pton(AF_INET6, host.substr(1, host.size() - 2).c_str(), &six) != 1) return std::nullopt;
  return MetricsAddress{std::string(text), host, IN6_IS_ADDR_LOOPBACK(&six) != 0};
}

}  // namespace gdx::daemon
