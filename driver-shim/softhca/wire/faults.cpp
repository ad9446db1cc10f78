#include "driver-shim/softhca/wire/faults.h"

namespace gdx::softhca::wire {

bool FaultInjector::active() const {
  return config_.loss > 0 || config_.corrupt > 0 || config_.duplicate > 0 || config_.reorder > 0 ||
         config_.mark > 0;
}

bool draw(std::mt19937_64& random, double probability) {
  // Uses 53 bits of the generator as a double in [0, 1), because standard distributions differ between
  // libraries.
  return static_cast<double>(random() >> 11) * 0x1p-53 < probability;
}

Fault FaultInjector::next(std::size_t length_bytes) {
  const bool lose = draw(random_, config_.loss);
  const bool corrupt = draw(random_, config_.corrupt);
  const bool duplicate = draw(random_, config_.duplicate);
  const bool reorder = draw(random_, config_.reorder);
  const std::uint64_t position = random_();
  const bool mark = draw(marks_, config_.mark);
  if (lose) return Fault{.lose = true};
  Fault fault;
  fault.duplicate = duplicate;
  fault.hold_back = reorder;
  fault.damage.mark = mark;
  if (corrupt && length_bytes > 0) fault.damage.corrupt_bit = position % (length_bytes * 8);
  return fault;
}

}  // namespace gdx::softhca::wire
