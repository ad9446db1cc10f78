// The printed contract of a port: what it does itself, what the poster emulates above it and how, and what
// there is not.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "host/poster/port.h"

namespace gdx {

// Way in which a signal comes after the payload before it.
enum class SignalOrder {
  kMessage,   // the port delivers a message after the writes before it
  kSequence,  // writes bring sequence numbers, for which the target's agent waits
  kDelivery,  // the poster holds the message until the writes are delivered
};

// Returns the cheapest that the port's properties permit.
[[nodiscard]] SignalOrder signal_order_of(const PortTraits& traits);

enum class Support { kNative, kEmulated, kAbsent };
[[nodiscard]] constexpr std::string_view name(Support support) {
  return support == Support::kNative ? "native" : support == Support::kEmulated ? "emulated" : "absent";
}

struct ContractRow {
  std::string subject;  // "signal after put"
  Support support = Support::kNative;
  std::string how;
};
[[nodiscard]] std::vector<ContractRow> contract_of(const PortTraits& traits, SignalOrder order);

// Returns the word of GDX_EMULATION: permit (the default) or refuse. Errors: kInvalidArgument for another
// word.
enum class Emulation { kPermit, kRefuse };
[[nodiscard]] Result<Emulation> emulation_from_environment();

// Returns whether GDX_INSECURE is 1, not 0 (the default). Errors: kInvalidArgument for another word.
[[nodiscard]] Result<bool> insecure_from_environment();

}  // namespace gdx
