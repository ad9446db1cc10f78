// Settings from the environment, and refusals of them.
#include "driver-shim/softhca/uverbs/config.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

namespace gdx::softhca::uverbs {
namespace config_test {

using testing::AllOf;
using testing::HasSubstr;

Result<Configuration> configure(const std::map<std::string, std::string>& variables) {
  return config_from(
      [&](const char* name) {
        const auto found = variables.find(name);
        return found == variables.end() ? nullptr : found->second.c_str();
      },
      42);
}

TEST(Config, nothing_said_is_dcqcn_on_a_link_without_a_rate) {
  const auto config = configure({});
  ASSERT_TRUE(config);
  EXPECT_EQ(config->hcas, 1u);
  EXPECT_EQ(config->first.congestion_control, CongestionControl::kDcqcn);
  EXPECT_EQ(config->first.carrier, wire::Carrier::kUdp);
  EXPECT_EQ(config->first.rate_gbps, 0);
  EXPECT_FALSE(config->first.strict);
  EXPECT_EQ(config->first.spoiled_copies, 0);
}

TEST(Config, strict_spoils_copies_unless_told_otherwise) {
  EXPECT_TRUE(configure({{"GDX_STRICT", "1"}})->first.strict);
  EXPECT_GT(configure({{"GDX_STRICT", "1"}})->first.spoiled_copies, 0);
  EXPECT_EQ(configure({{"GDX_STRICT", "1"}, {"GDX_SOFTHCA_SPOILED_COPIES", "0"}})->first.spoiled_copies, 0);
  EXPECT_EQ(configure({{"GDX_SOFTHCA_SPOILED_COPIES", "0.5"}})->first.spoiled_copies, 0.5);
  EXPECT_FALSE(configure({{"GDX_SOFTHCA_SPOILED_COPIES", "2"}}));
}

TEST(Config, named_choices_are_taken) {
  const auto config = configure({{"GDX_SOFTHCA_CONGESTION_CONTROL", "none"},
                                 {"GDX_SOFTHCA_WIRE", "shm"},
                                 {"GDX_SOFTHCA_RATE_GBPS", "0.5"}});
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->first.congestion_control, CongestionControl::kNone);
  EXPECT_EQ(config->first.carrier, wire::Carrier::kSharedMemory);
  EXPECT_EQ(config->first.rate_gbps, 0.5);
  EXPECT_EQ(configure({{"GDX_SOFTHCA_CONGESTION_CONTROL", "dcqcn"}})->first.congestion_control,
            CongestionControl::kDcqcn);
}

TEST(Config, link_layer_goes_by_name) {
  EXPECT_FALSE(configure({})->first.infiniband);
  EXPECT_TRUE(configure({{"GDX_SOFTHCA_LINK_LAYER", "infiniband"}})->first.infiniband);
  EXPECT_FALSE(configure({{"GDX_SOFTHCA_LINK_LAYER", "ib"}}));
}

TEST(Config, p_keys_are_a_list_that_begins_with_the_default_partition) {
  const auto pkeys = [](const char* list, const char* layer = "infiniband") {
    return configure({{"GDX_SOFTHCA_PKEYS", list}, {"GDX_SOFTHCA_LINK_LAYER", layer}});
  };
  using Table = std::vector<std::uint16_t>;
  EXPECT_EQ(configure({})->first.pkeys, Table{0xffff});
  EXPECT_EQ(pkeys("0x7fff")->first.pkeys, Table{0x7fff});
  EXPECT_EQ(pkeys("0xffff,0x8001,0x0,0x2", "infiniband_grh")->first.pkeys, (Table{0xffff, 0x8001, 0, 2}));
  std::string longest = "0xffff";
  for (int i = 1; i < 128; ++i) longest += ",0x1";
  EXPECT_EQ(pkeys(longest.c_str())->first.pkeys.size(), 128u);
  longest += ",0x1";
  for (const char* const wrong :
       {"0x8001,0xffff", "ffff", "0xffff,", "0xffff,,0x1", "0xffff,0x10000", "0xffff,0x1 ", longest.c_str()})
    EXPECT_FALSE(pkeys(wrong)) << wrong;
  EXPECT_EQ(
      pkeys("0xffff,0x8001", "ethernet").error().message,
      "GDX_SOFTHCA_PKEYS=0xffff,0x8001: must be 1 to 128 P_Keys of an InfiniBand port, as 0xffff,0x8001; the "
      "first 0xffff or 0x7fff");
}

TEST(Config, planted_faults_go_by_name) {
  EXPECT_EQ(configure({})->fault, PlantedFault::kNone);
  EXPECT_EQ(configure({{"GDX_SOFTHCA_FAULT", "lost_add"}})->fault, PlantedFault::kLostAdd);
  EXPECT_THAT(configure({{"GDX_SOFTHCA_FAULT", "lost"}}).error().message,
              AllOf(HasSubstr("GDX_SOFTHCA_FAULT=lost: must be one of no_device, port_down, "),
                    HasSubstr("lost_add")));
}

TEST(Config, further_hcas_have_names_addresses_seeds_and_captures_of_their_own) {
  const auto config = configure({{"GDX_SOFTHCA_SEED", "7"}, {"GDX_SOFTHCA_PCAP", "out/run.pcap"}});
  ASSERT_TRUE(config) << config.error().message;
  const wire::Address first = *wire::Address::parse("127.0.0.255");
  EXPECT_EQ(sibling_config(config->first, first, 0).udp.faults.seed, 7u);
  EXPECT_EQ(sibling_config(config->first, first, 0).udp.pcap_path, "out/run.pcap");
  const HcaConfig third = sibling_config(config->first, first, 2);
  EXPECT_EQ(third.name, "gdx2");
  EXPECT_EQ(third.udp.address, "127.0.1.1");
  EXPECT_EQ(third.udp.pcap_path, "out/run.gdx2.pcap");
  EXPECT_NE(third.udp.faults.seed, sibling_config(config->first, first, 1).udp.faults.seed);
  EXPECT_GT(third.udp.faults.seed, 7u + 1024) << "ranks count up from the first one's";
}

// Members of a configuration as text.
std::vector<std::string> members_of(const Configuration& all) {
  const HcaConfig& first = all.first;
  const wire::FaultConfig& faults = first.udp.faults;
  return {fmt::format("hcas {}", all.hcas),
          fmt::format("fault {}", static_cast<int>(all.fault)),
          fmt::format("counters {}", all.counters_path),
          fmt::format("address {}", first.udp.address),
          fmt::format("receive_buffer {}", first.udp.receive_buffer_bytes),
          fmt::format("pcap {}", first.udp.pcap_path),
          fmt::format("loss {}", faults.loss),
          fmt::format("corrupt {}", faults.corrupt),
          fmt::format("duplicate {}", faults.duplicate),
          fmt::format("reorder {}", faults.reorder),
          fmt::format("mark {}", faults.mark),
          fmt::format("death {}", faults.death),
          fmt::format("seed {}", faults.seed),
          fmt::format("carrier {}", static_cast<int>(first.carrier)),
          fmt::format("mtu {}", first.mtu_bytes),
          fmt::format("device_memory {}", first.device_memory_bytes),
          fmt::format("quantum {}", first.quantum_bytes),
          fmt::format("congestion_control {}", static_cast<int>(first.congestion_control)),
          fmt::format("receive_credits {}", first.receive_credits),
          fmt::format("receive_window {}", first.receive_window),
          fmt::format("rate {}", first.rate_gbps),
          fmt::format("infiniband {}{}", first.infiniband, first.grh_required ? " with GRHs" : ""),
          fmt::format("data_order {}", static_cast<int>(first.data_order)),
          fmt::format("strict {}", first.strict),
          fmt::format("record {}", name(first.record)),
          fmt::format("spoiled_copies {}", first.spoiled_copies)};
}

struct Variable {
  const char* name;
  const char* member;
  std::vector<const char*> taken;
  std::vector<const char*> refused;
  const char* allowed;
};

TEST(Config, each_variable_sets_its_member_alone_up_to_its_limits) {
  constexpr char kProbability[] = "a probability from 0 to 1";
  const std::vector<const char*> chances = {"1", "0.25", "0.5"};
  const std::vector<const char*> no_chances = {"-0.1", "1.001", "nan", "inf", "0.5x", " 0.5"};
  const Variable variables[] = {
      {"GDX_SOFTHCA_LOSS", "loss", chances, no_chances, kProbability},
      {"GDX_SOFTHCA_CORRUPT", "corrupt", chances, no_chances, kProbability},
      {"GDX_SOFTHCA_DUPLICATE", "duplicate", chances, no_chances, kProbability},
      {"GDX_SOFTHCA_REORDER", "reorder", chances, no_chances, kProbability},
      {"GDX_SOFTHCA_MARK", "mark", chances, no_chances, kProbability},
      {"GDX_SOFTHCA_DEATH", "death", chances, no_chances, kProbability},
      {"GDX_SOFTHCA_SPOILED_COPIES", "spoiled_copies", chances, no_chances, kProbability},
      {"GDX_SOFTHCA_SEED",
       "seed",
       {"7", "18446744073709551615"},
       {"18446744073709551616", "-1", "7x"},
       "an unsigned integer"},
      {"GDX_SOFTHCA_MTU",
       "mtu",
       {"256", "512", "1024", "2048", "4096"},
       {"0", "255", "1500", "8192"},
       "256, 512, 1024, 2048 or 4096"},
      {"GDX_SOFTHCA_RECEIVE_BUFFER_BYTES",
       "receive_buffer",
       {"131072", "268435456"},
       {"131071", "268435457"},
       "131072 to 268435456"},
      {"GDX_SOFTHCA_DEVICE_MEMORY_BYTES",
       "device_memory",
       {"0", "4096", "1048576"},
       {"4095", "1052672", "6144"},
       "a multiple of 4096 from 0 to 1048576"},
      {"GDX_SOFTHCA_QUANTUM_BYTES", "quantum", {"256", "16777216"}, {"255", "16777217"}, "256 to 16777216"},
      {"GDX_SOFTHCA_RATE_GBPS",
       "rate",
       {"0.001", "10000"},
       {"0.0009", "10000.1", "nan", "0"},
       "a rate from 0.001 to 10000, in 10^9 bits a second"},
      {"GDX_SOFTHCA_HCAS", "hcas", {"2", "16"}, {"0", "17"}, "1 to 16"},
      {"GDX_SOFTHCA_ADDR",
       "address",
       {"127.0.0.5"},
       {"localhost", "127.0.0"},
       "an IP address of this host, such as 127.0.0.5"},
      {"GDX_SOFTHCA_COUNTERS", "counters", {"run.txt", "run-42.txt"}, {}, ""},
      {"GDX_SOFTHCA_PCAP", "pcap", {"run.pcap", "run-42.pcap"}, {}, ""}};
  const std::vector<std::string> otherwise = members_of(*configure({}));
  for (const Variable& variable : variables) {
    for (const char* const value : variable.taken) {
      std::vector<std::string> expected = otherwise;
      const auto is = [&](const std::string& text) {
        return text.starts_with(variable.member + std::string(" "));
      };
      *std::ranges::find_if(expected, is) = fmt::format("{} {}", variable.member, value);
      EXPECT_EQ(members_of(*configure({{variable.name, value}})), expected);
    }
    for (const char* const value : variable.refused) {
      const auto config = configure({{variable.name, value}});
      ASSERT_FALSE(config) << variable.name << "=" << value;
      EXPECT_EQ(config.error().status, Status::kInvalidArgument);
      EXPECT_EQ(config.error().message,
                fmt::format("{}={}: must be {}", variable.name, value, variable.allowed));
    }
    EXPECT_EQ(members_of(*configure({{variable.name, ""}})), otherwise) << variable.name;
  }
  EXPECT_EQ(configure({{"GDX_SOFTHCA_PCAP", "run-%p.pcap"}})->first.udp.pcap_path, "run-42.pcap");
}

TEST(Config, each_choice_is_either_value_and_nothing_else) {
  const Variable variables[] = {
      {"GDX_SOFTHCA_RECEIVE_CREDITS", "receive_credits", {"0=false", "1=true"}, {"2", "-1", "on"}, "0 or 1"},
      {"GDX_SOFTHCA_RECEIVE_WINDOW", "receive_window", {"0=false", "1=true"}, {"2", "-1", "on"}, "0 or 1"},
      {"GDX_SOFTHCA_WIRE", "carrier", {"udp=0", "shm=2", "auto=1"}, {"UDP", "tcp"}, "udp, shm or auto"},
      {"GDX_SOFTHCA_LINK_LAYER",
       "infiniband",
       {"ethernet=false", "infiniband=true", "infiniband_grh=true with GRHs"},
       {"ib"},
       "ethernet, infiniband or infiniband_grh"},
      {"GDX_SOFTHCA_DATA_ORDER",
       "data_order",
       {"chosen=0", "kept=1", "any=2"},
       {"ANY", "forced"},
       "chosen, kept or any"},
      {"GDX_SOFTHCA_RECORD", "record", {"read=read", "unread=unread"}, {"0", "none"}, "read or unread"},
      {"GDX_SOFTHCA_CONGESTION_CONTROL",
       "congestion_control",
       {"none=0", "dcqcn=1"},
       {"DCQCN"},
       "dcqcn or none"}};
  const std::vector<std::string> otherwise = members_of(*configure({}));
  for (const Variable& variable : variables) {
    for (const std::string row : variable.taken) {
      const std::size_t equals = row.find('=');
      std::vector<std::string> expected = otherwise;
      const auto is = [&](const std::string& text) {
        return text.starts_with(variable.member + std::string(" "));
      };
      *std::ranges::find_if(expected, is) = fmt::format("{} {}", variable.member, row.substr(equals + 1));
      EXPECT_EQ(members_of(*configure({{variable.name, row.substr(0, equals)}})), expected);
    }
    for (const char* const value : variable.refused) {
      EXPECT_EQ(configure({{variable.name, value}}).error().message,
                fmt::format("{}={}: must be {}", variable.name, value, variable.allowed));
    }
  }
}

TEST(Config, other_names_are_refused_with_those_that_there_are) {
  const auto refused = configure({{"GDX_SOFTHCA_CONGESTION_CONTROL", "DCQCN"}});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, Status::kInvalidArgument);
  EXPECT_EQ(refused.error().message, "GDX_SOFTHCA_CONGESTION_CONTROL=DCQCN: must be dcqcn or none");
  EXPECT_THAT(configure({{"GDX_SOFTHCA_WIRE", "tcp"}}).error().message,
              AllOf(HasSubstr("GDX_SOFTHCA_WIRE=tcp"), HasSubstr("udp, shm or auto")));
}

}  // namespace config_test
}  // namespace gdx::softhca::uverbs
