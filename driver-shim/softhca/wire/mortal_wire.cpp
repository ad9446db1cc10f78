#include "driver-shim/softhca/wire/mortal_wire.h"

#include <utility>

#include "base/log.h"
#include "driver-shim/softhca/wire/faults.h"

namespace gdx::softhca::wire {
namespace {

constexpr std::uint64_t kOfDeaths =
    0x6d6f72746c757373;  // sets this generator apart from those of other faults

}  // namespace

MortalWire::MortalWire(std::unique_ptr<Wire> living, const FaultConfig& faults)
    : living_(std::move(living)), random_(faults.seed ^ kOfDeaths), death_(faults.death) {}

void MortalWire::commit_packet(const Address& destination, std::size_t length_bytes) {
  if (!dead_ && draw(random_, death_)) {
    dead_ = true;
    log::warn("the software HCA at {} is dead from its packet {} on: GDX_SOFTHCA_DEATH", local().text(),
              committed_ + 1);
  }
  if (dead_) {
    ++lost_in_death_;
    return;
  }
  ++committed_;
  living_->commit_packet(destination, length_bytes);
}

std::size_t MortalWire::receive(std::size_t max_packets, const Sink& sink) {
  if (!dead_) return living_->receive(max_packets, sink);
  return living_->receive(max_packets, [](const Address&, std::span<const std::byte>) {});
}

const WireCounters& MortalWire::counters() const {
  sum_ = living_->counters();
  sum_.faults_lost += lost_in_death_;
  return sum_;
}

}  // namespace gdx::softhca::wire
