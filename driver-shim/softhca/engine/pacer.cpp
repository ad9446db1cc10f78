#include "driver-shim/softhca/engine/pacer.h"

#include <algorithm>
#include <limits>

namespace gdx::softhca {
namespace {

// Time after a packet left in which an answer may still come. It is far beyond a round trip, because either
// end's process may stand still.
constexpr std::uint64_t kAnswerableNs = 100'000'000;
constexpr double kPortGbps = 100;  // the port's reported rate
// Bytes that a queue pair of limited rate may send at once.
constexpr std::uint64_t kPaceBurstBytes = 32 << 10;

}  // namespace

Pacer::Pacer(QpType type, const QpAttributes& attributes, const HcaConfig& config, PeerWindows& windows,
             wire::Wire& wire)
    : type_(type),
      attributes_(attributes),
      config_(config),
      windows_(windows),
      wire_(wire),
      congestion_({.line_rate_gbps = config.rate_gbps > 0 ? config.rate_gbps : kPortGbps}),
      pace_(0, kPaceBurstBytes) {}

void Pacer::reset(std::uint64_t now_ns) {
  congestion_.release();
  sent_ns_.reset();
  set_rate(now_ns);
}

// Returns a number of largest packets that certainly fit.
std::uint32_t Pacer::packets_of_room(const PeerWindow* window, std::uint64_t now_ns) const {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
  if (window == nullptr) return kMost;
  const std::uint32_t mtu_bytes = type_ == QpType::kUd ? config_.mtu_bytes : attributes_.mtu_bytes;
  const std::uint64_t units = transport::window_units(mtu_bytes + roce::kMaxHeaderBytes + roce::kIcrcBytes);
  return static_cast<std::uint32_t>(std::min(window->window().room_units(now_ns) / units, kMost));
}

// Towards a silent peer each connection still sends, because its own timer must detect the peer's death.
std::uint32_t Pacer::requests_permitted(std::uint64_t now_ns, std::uint32_t max_packets,
                                        const PeerWindow* window, bool timed) const {
  const bool connected = type_ != QpType::kUd;
  std::uint64_t most = max_packets;
  if (connected) most = std::min<std::uint64_t>(most, wire_.room(attributes_.remote));
  if (window == nullptr) return static_cast<std::uint32_t>(most);
  const bool stalled = window->window().stalled(now_ns);
  const bool acknowledged = type_ == QpType::kRc;
  if (!acknowledged && (stalled || !window->window().bounds_datagrams()))
    return static_cast<std::uint32_t>(most);
  std::uint64_t room = packets_of_room(window, now_ns);
  if (room == 0 && stalled && !timed) room = 1;
  if (!connected) room = std::min<std::uint64_t>(room, 1);  // the next one may have another destination
  return static_cast<std::uint32_t>(std::min(most, room));
}

std::uint32_t Pacer::responses_permitted(std::uint64_t now_ns, std::uint32_t max_packets) const {
  const std::size_t room =
      std::min<std::size_t>(wire_.room(attributes_.remote), packets_of_room(window_, now_ns));
  return static_cast<std::uint32_t>(std::min<std::size_t>(max_packets, room));
}

bool Pacer::on_notification(std::uint64_t now_ns) {
  const bool answers = sent_ns_ && now_ns - *sent_ns_ < kAnswerableNs;
  if (!controls_congestion() || !answers || !heeding_tokens_.take(now_ns)) return false;
  congestion_.on_notification(now_ns);
  set_rate(now_ns);
  return true;
}

}  // namespace gdx::softhca
