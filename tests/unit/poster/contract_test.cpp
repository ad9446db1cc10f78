// The contract of ports with each property and without it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "host/poster/contract.h"

namespace gdx {
namespace {

PortTraits traits() {
  PortTraits made;
  made.provider = "any";
  made.immediate_bytes = 4;
  made.most_bytes = 4096;
  return made;
}

ContractRow row(const PortTraits& of, const std::string& subject) {
  for (const ContractRow& one : contract_of(of, signal_order_of(of))) {
    if (one.subject == subject) return one;
  }
  ADD_FAILURE() << subject;
  return {};
}

TEST(Contract, signals_wait_in_the_cheapest_way_that_there_is) {
  PortTraits port = traits();
  EXPECT_EQ(signal_order_of(port), SignalOrder::kSequence);
  EXPECT_EQ(row(port, "signal after put").support, Support::kEmulated);
  port.immediate_bytes = 2;
  EXPECT_EQ(signal_order_of(port), SignalOrder::kDelivery);
  EXPECT_NE(row(port, "signal after put").how.find("2 B of immediate data"), std::string::npos);
  port.message_after_write = true;
  EXPECT_EQ(signal_order_of(port), SignalOrder::kMessage);
  EXPECT_EQ(row(port, "signal after put").support, Support::kNative);
}

TEST(Contract, flush_asks_the_agent_where_writes_complete_early) {
  PortTraits port = traits();
  EXPECT_EQ(row(port, "flush").support, Support::kNative);
  port.message_after_write = true;
  EXPECT_EQ(row(port, "flush").support, Support::kNative);
  port.early_writes = true;
  EXPECT_EQ(row(port, "flush").support, Support::kEmulated);
  EXPECT_NE(row(port, "flush").how.find("GDX_EMULATION=refuse"), std::string::npos);
}

TEST(Contract, each_property_shows_in_its_row) {
  PortTraits port = traits();
  EXPECT_EQ(row(port, "get after put").support, Support::kEmulated);
  EXPECT_EQ(row(port, "signal after signal").support, Support::kEmulated);
  EXPECT_EQ(row(port, "check of writers").support, Support::kNative);
  EXPECT_NE(row(port, "check of writers").how.find("keys that the provider chooses"), std::string::npos);
  EXPECT_NE(row(port, "put").how.find("up to 4 KiB each"), std::string::npos);
  EXPECT_NE(row(port, "atomics").how.find("the provider has none"), std::string::npos);
  port.read_after_write = port.messages_in_order = port.software = port.random_keys = port.atomics = true;
  EXPECT_EQ(row(port, "get after put").support, Support::kNative);
  EXPECT_EQ(row(port, "signal after signal").support, Support::kNative);
  EXPECT_EQ(row(port, "check of writers").support, Support::kAbsent);
  EXPECT_NE(row(port, "check of writers").how.find("GDX_INSECURE=1"), std::string::npos);
  EXPECT_NE(row(port, "check of writers").how.find("random keys of 64 bits"), std::string::npos);
  // A NIC's atomics beside signals that add would lose some.
  EXPECT_EQ(row(port, "atomics").support, Support::kEmulated);
  port.within_host = true;
  EXPECT_EQ(row(port, "check of writers").support, Support::kNative);
}

// iWARP.
TEST(Contract, port_whose_writes_complete_at_departure_asks_the_agent_for_a_flush) {
  PortTraits port = traits();
  EXPECT_EQ(row(port, "flush").support, Support::kNative);
  port.delivery_complete = false;
  port.message_after_write = true;
  port.order_source = "RFC 5040";
  EXPECT_EQ(row(port, "flush").support, Support::kEmulated);
  EXPECT_NE(row(port, "signal after put").how.find("(RFC 5040)"), std::string::npos);
}

TEST(Contract, variables_take_their_words_alone) {
  setenv("GDX_EMULATION", "refuse", 1);
  EXPECT_EQ(emulation_from_environment().value(), Emulation::kRefuse);
  setenv("GDX_EMULATION", "no", 1);
  EXPECT_EQ(emulation_from_environment().error().message, "GDX_EMULATION is 'no': use permit or refuse");
  unsetenv("GDX_EMULATION");
  EXPECT_EQ(emulation_from_environment().value(), Emulation::kPermit);
  setenv("GDX_INSECURE", "1", 1);
  EXPECT_TRUE(insecure_from_environment().value());
  setenv("GDX_INSECURE", "yes", 1);
  EXPECT_FALSE(insecure_from_environment());
  unsetenv("GDX_INSECURE");
  EXPECT_FALSE(insecure_from_environment().value());
}

}  // namespace
}  // namespace gdx
