// Capabilities of an HCA for bonds and for the order of data. Bits: UCX, ib_mlx5_ifc.h.
#include <gtest/gtest.h>

#include <array>
#include <optional>

#include "host/hca/hca.h"
#include "host/queue/queue_objects.h"
#include "proto/mlx5/prm.h"

namespace gdx {
namespace routing_test {

namespace prm = mlx5::prm;

class Told : public testing::Test {
 protected:
  [[nodiscard]] Routing read() const { return read_routing(general, general_2, lag); }

  prm::Mailbox<prm::kQueryHcaCapOutBytes> general{};
  prm::Mailbox<prm::kQueryHcaCapOutBytes> general_2{};
  prm::Mailbox<prm::kQueryHcaCapOutBytes> lag{};
};

TEST_F(Told, nothing_offers_nothing) {
  EXPECT_EQ(read(), (Routing{.any_order = false, .has_lag = false}));
  EXPECT_EQ(read_routing({}, {}, {}), Routing{}) << "nor that order is kept";
  EXPECT_EQ(read_routing({}, {}, lag), Routing{}) << "no capabilities, no word on a bond";
}

TEST_F(Told, order_of_data_by_its_bits) {
  general[0x10 + 0x39] = 0x20;
  EXPECT_EQ(read(), (Routing{.any_order = true, .has_lag = false}));
  general_2[0x10 + 0x11] = 0x80;
  EXPECT_EQ(read(), (Routing{.any_order = true, .order_forced = true, .has_lag = false}));
  general = {};
  general[0x10 + 0x66] = 0x08;
  EXPECT_TRUE(*read().any_order) << "of all operations alone";
}

// By whether the HCA says that it has another order, on either link layer.
TEST(Order, is_kept_only_where_it_is_forced_or_there_is_no_other) {
  constexpr auto kEthernet = LinkLayer::kEthernet;
  constexpr auto kInfiniBand = LinkLayer::kInfiniBand;
  for (const std::optional<bool> any : {std::optional<bool>(), std::optional(false), std::optional(true)}) {
    for (const LinkLayer layer : {kEthernet, kInfiniBand}) {
      const Routing unforced{.any_order = any};
      const Routing forced{.any_order = any, .order_forced = true};
      const bool no_other = layer == kEthernet && any == false;
      EXPECT_EQ(data_order_of(unforced, layer, false), no_other ? DataOrder::kKept : DataOrder::kAny);
      EXPECT_EQ(data_order_of(forced, layer, false), DataOrder::kKept);
      for (const Routing& routing : {unforced, forced})
        EXPECT_EQ(data_order_of(routing, layer, true), DataOrder::kAny);
    }
  }
}

TEST_F(Told, ports_of_a_bond_count_where_it_is_active_and_queue_pairs_may_choose) {
  general[0x10 + 0x4f] = 2;  // num_lag_ports
  lag[0x0b] = 3;             // lag_state: both ports
  EXPECT_EQ(read().lag_ports, 0) << "queue pairs may not choose";
  EXPECT_EQ(read().has_lag, true);
  general[0x10 + 0x3f] = 0x80;
  EXPECT_EQ(read().lag_ports, 2);
  lag[0x0b] = 0;
  EXPECT_EQ(read().lag_ports, 0) << "no bond";
}

}  // namespace routing_test
}  // namespace gdx
