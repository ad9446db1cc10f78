#include "tests/sim/link.h"

#include <algorithm>
#include <cstring>

#include "driver-shim/softhca/wire/icrc.h"
#include "proto/roce/headers.h"

namespace gdx::sim {
namespace {

std::uint32_t icrc_of(std::size_t from, std::span<const std::byte> bth_to_padding) {
  constexpr std::uint32_t kFirstAddress = 0x0a000001;
  constexpr std::uint16_t kSourcePort = 49152;
  const auto side = static_cast<std::uint32_t>(from);
  return softhca::wire::icrc_ipv4(kFirstAddress + side, kFirstAddress + 1 - side, kSourcePort, 0,
                                  bth_to_padding);
}

}  // namespace

Fate Link::transmit(std::uint64_t now_ns, std::size_t from, std::vector<std::byte> datagram,
                    const Deliver& deliver) {
  ++outcome_.packets;
  digest(now_ns, from, datagram);
  if (random_.chance(faults_.loss)) {
    ++outcome_.dropped;
    return {.gone = true};
  }
  Fate fate;
  const std::uint32_t icrc = icrc_of(from, datagram);
  datagram.resize(datagram.size() + sizeof icrc);
  std::memcpy(datagram.data() + datagram.size() - sizeof icrc, &icrc, sizeof icrc);
  if (random_.chance(faults_.corruption)) {
    damage(datagram);
    fate.gone = true;
  }
  std::uint64_t copy_ns = kNever;
  if (random_.chance(faults_.duplication)) {
    ++outcome_.repeated;
    fate.repeated = true;
    // Some copies arrive long after the original has been dealt with.
    const std::uint64_t lag_ns = random_.chance(0.3) ? random_.between(0, 300 * kMicrosecondNs) : 0;
    copy_ns = arrival_ns(now_ns) + lag_ns;
    deliver(copy_ns, datagram);
  }
  const std::uint64_t original_ns = arrival_ns(now_ns);
  deliver(original_ns, std::move(datagram));
  fate.delay_ns = std::min(copy_ns, original_ns) - now_ns - faults_.delay_ns;
  return fate;
}

void Link::digest(std::uint64_t now_ns, std::size_t from, std::span<const std::byte> datagram) {
  constexpr std::uint64_t kFnvPrime = 0x100000001b3;
  const auto fold = [this](std::uint64_t word) { outcome_.digest = (outcome_.digest ^ word) * kFnvPrime; };
  fold(now_ns);
  fold(from);
  for (const std::byte byte : datagram) fold(std::to_integer<std::uint64_t>(byte));
}

void Link::damage(std::vector<std::byte>& datagram) {
  ++outcome_.damaged;
  for (std::uint64_t bits = random_.between(1, 3); bits > 0; --bits) {
    const std::uint64_t bit = random_.between(0, 8 * datagram.size() - 1);
    datagram[bit / 8] ^= std::byte{1} << bit % 8;
  }
}

// Without reordering packets keep their order: the age of an event breaks ties.
std::uint64_t Link::arrival_ns(std::uint64_t now_ns) {
  std::uint64_t time_ns = now_ns + faults_.delay_ns;
  if (random_.chance(faults_.reordering)) {
    ++outcome_.delayed;
    time_ns += random_.between(0, faults_.jitter_ns + 2000);
  }
  return time_ns;
}

std::span<const std::byte> Link::open(std::size_t from, std::span<const std::byte> datagram) {
  std::uint32_t icrc;
  const std::span<const std::byte> inside = datagram.first(datagram.size() - sizeof icrc);
  std::memcpy(&icrc, datagram.data() + inside.size(), sizeof icrc);
  return icrc == icrc_of(from, inside) ? inside : std::span<const std::byte>();
}

}  // namespace gdx::sim
