#include "host/poster/contract.h"

#include <fmt/format.h>

#include "base/environment.h"
#include "base/size_text.h"

namespace gdx {
namespace {

constexpr std::uint32_t kSequenceBytes = 4;  // of immediate data
constexpr std::uint64_t kAnyLength = std::uint64_t{1} << 40;

// Returns what promises an order: `flag` of libfabric, or the port's own source.
const std::string& source_of(const PortTraits& traits, const std::string& flag) {
  return traits.order_source.empty() ? flag : traits.order_source;
}

ContractRow signal_row(const PortTraits& traits, SignalOrder order) {
  switch (order) {
    case SignalOrder::kMessage:
      return {"signal after put", Support::kNative,
              fmt::format("the provider delivers a message after earlier writes ({})",
                          source_of(traits, "FI_ORDER_SAW"))};
    case SignalOrder::kSequence:
      return {"signal after put", Support::kEmulated,
              "each write brings a sequence number as immediate data; the target's agent stores the signal "
              "once all "
              "earlier numbers are there"};
    case SignalOrder::kDelivery: break;
  }
  return {"signal after put", Support::kEmulated,
          fmt::format(
              "the poster holds the signal until earlier writes are delivered, a round trip more ({} B of "
              "immediate data are too few for sequence numbers)",
              traits.immediate_bytes)};
}

ContractRow flush_row(const PortTraits& traits, SignalOrder order) {
  if (!traits.delivery_complete)
    return {"flush", Support::kEmulated,
            "the target's agent answers a message that was delivered after all writes; "
            "a write's own completion says only that its source is free"};
  const std::string delivered =
      fmt::format("writes complete when delivered ({})", source_of(traits, "FI_DELIVERY_COMPLETE"));
  if (order != SignalOrder::kMessage || !traits.early_writes)
    return {"flush", Support::kNative, delivered + "; the agent answers for signals"};
  return {"flush", Support::kEmulated,
          "the target's agent answers a message behind all signals once the number of each write is there; "
          "with GDX_EMULATION=refuse " +
              delivered};
}

ContractRow writers_row(const PortTraits& traits) {
  const std::string keys = traits.random_keys ? "random keys of 64 bits" : "keys that the provider chooses";
  const std::string_view places = traits.offsets ? "offsets" : "addresses";
  if (traits.within_host)
    return {"check of writers", Support::kNative,
            fmt::format("processes of this host that know the key: {}, {}", keys, places)};
  if (!traits.software)
    return {"check of writers", Support::kNative,
            fmt::format("peers that the NIC connected and that know the key: {}, {}", keys, places)};
  return {
      "check of writers", Support::kAbsent,
      fmt::format(
          "nobody is authenticated: who guesses or overhears a key writes ({}, {}); loopback only, unless "
          "GDX_INSECURE=1",
          keys, places)};
}

}  // namespace

SignalOrder signal_order_of(const PortTraits& traits) {
  if (traits.message_after_write) return SignalOrder::kMessage;
  return traits.immediate_bytes >= kSequenceBytes ? SignalOrder::kSequence : SignalOrder::kDelivery;
}

std::vector<ContractRow> contract_of(const PortTraits& traits, SignalOrder order) {
  std::vector<ContractRow> rows{
      {"put", Support::kNative,
       traits.most_bytes >= kAnyLength
           ? "a write of the provider"
           : fmt::format("a write of the provider, up to {} each; longer ones in parts",
                         size_text(traits.most_bytes))},
      {"get", Support::kNative, "a read of the provider"},
      signal_row(traits, order),
      {"signal", Support::kEmulated, "a message, which the target's agent turns into the word"},
      {"signal after signal", traits.messages_in_order ? Support::kNative : Support::kEmulated,
       traits.messages_in_order
           ? fmt::format("the provider keeps messages in order ({})", source_of(traits, "FI_ORDER_SAS"))
           : "messages are numbered, and the target's agent sorts them"},
      {"get after put", traits.read_after_write ? Support::kNative : Support::kEmulated,
       traits.read_after_write
           ? fmt::format("a read sees earlier writes ({}); the agent has answered signals",
                         source_of(traits, "FI_ORDER_RMA_RAW"))
           : "the poster holds the read until earlier writes are delivered"},
      {"atomics", Support::kEmulated,
       traits.atomics
           ? "by the target's agent; the provider's are not used, because they are not atomic with signals "
             "that add"
           : "by the target's agent; the provider has none"},
      flush_row(traits, order),
      {"immediate data", traits.immediate_bytes != 0 ? Support::kNative : Support::kAbsent,
       fmt::format("{} B a write", traits.immediate_bytes)},
      {"GPU memory", Support::kAbsent,
       traits.gpu_memory
           ? "the provider reaches it (FI_HMEM), the poster does not use that: windows lie in host memory"
           : "windows lie in host memory"},
  };
  rows.push_back(writers_row(traits));
  return rows;
}

Result<Emulation> emulation_from_environment() {
  return choice_from_environment<Emulation>("GDX_EMULATION",
                                            {{"permit", Emulation::kPermit}, {"refuse", Emulation::kRefuse}});
}

Result<bool> insecure_from_environment() {
  return choice_from_environment<bool>("GDX_INSECURE", {{"0", false}, {"1", true}});
}

}  // namespace gdx
