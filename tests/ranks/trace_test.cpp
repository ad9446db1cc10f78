// Whole small runs: the time and headers of every packet, what each endpoint did, and each transfer across
// PCIe.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/expected_text.h"
#include "tests/hca_text.h"
#include "tests/ranks/simulation.h"

namespace gdx::ranks {
namespace trace_test {

// Writes packets as lines. Addresses are counted from the first one that goes to their rank.
class Packets {
 public:
  void add(const Passed& passed) {
    const auto origin_of = [&](std::uint64_t address) {
      return origins_.try_emplace(passed.destination, address).first->second;
    };
    text_ += fmt::format("{} {}>{} {}{}\n", passed.at_ns, passed.source, passed.destination,
                         packet_text(passed.datagram, origin_of), passed.dropped ? " dropped" : "");
  }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::map<std::uint32_t, std::uint64_t> origins_;
};

void write_transfers(const char* what, const std::array<pcie::Traffic, pcie::kPurposes>& traffic,
                     std::string& out) {
  for (std::size_t purpose = 0; purpose < pcie::kPurposes; ++purpose) {
    const pcie::Traffic& one = traffic[purpose];
    if (one.transfers == 0) continue;
    out += fmt::format("PCIe {} of {}: {} transfers, {} packets, {} B\n", what, pcie::kPurposeNames[purpose],
                       one.transfers, one.packets, one.bytes);
  }
}

std::string trace(SimulationConfig config) {
  Packets packets;
  config.network.witness = [&packets](const Passed& passed) { packets.add(passed); };
  config.trace = true;
  EXPECT_TRUE(Simulation::check(config));
  Simulation simulation(config);
  const Report report = simulation.run();
  std::string text = packets.text();
  for (std::size_t i = 0; i < simulation.outcomes().size(); ++i) {
    const Outcome& outcome = simulation.outcomes()[i];
    text += fmt::format("endpoint {}: {}, {} messages, {} wrong words, last at {}\n", i,
                        status_name(outcome.status), outcome.messages, outcome.wrong_words, outcome.seen_ns);
    for (const Action& action : simulation.actions()[i]) {
      text += fmt::format("  {} {} B at {}\n", action.kind == Action::Kind::kSend ? "sends" : "receives",
                          action.bytes, action.at_ns);
    }
  }
  for (const softhca::HcaCounters& counters : report.hcas)
    text += fmt::format("HCA:{}\n", counters_text(counters));
  write_transfers("reads", report.pcie.reads, text);
  write_transfers("writes", report.pcie.writes, text);
  text += fmt::format("{} ns, {} rounds, delivered at {}, {} packets of {} B, {} dropped\n",
                      report.virtual_ns, report.rounds, report.delivered_ns, report.network.packets,
                      report.network.bytes, report.network.dropped);
  return text;
}

SimulationConfig pair_of(pcie::Mode mode) {
  SimulationConfig config;
  config.ranks = 2;
  config.endpoints_per_rank = 2;
  config.messages = 3;
  config.message_bytes = 8192;
  config.slots = 4;
  config.mode = mode;
  return config;
}

SimulationConfig across(pcie::Mode mode, PathClass path, pcie::DoorbellKind doorbell,
                        pcie::QueuePlacement queues) {
  SimulationConfig config = pair_of(mode);
  config.message_bytes = mode == pcie::Mode::kInline ? 400 : 10000;
  config.doorbell = doorbell;
  config.bus = BusConfig{.path = path, .queues = queues};
  return config;
}

TEST(Trace, of_each_mode_without_a_bus) {
  expect_text("pull.txt", trace(pair_of(pcie::Mode::kPull)));
  expect_text("push.txt", trace(pair_of(pcie::Mode::kPush)));
  SimulationConfig words = pair_of(pcie::Mode::kInline);
  words.message_bytes = 200;
  expect_text("inline.txt", trace(words));
}

TEST(Trace, of_each_mode_across_a_bus) {
  using pcie::DoorbellKind;
  using pcie::Mode;
  using pcie::QueuePlacement;
  expect_text("pull_pix.txt",
              trace(across(Mode::kPull, PathClass::kPix, DoorbellKind::kPlain, QueuePlacement::kGpu)));
  expect_text("pull_sys_host_queues.txt",
              trace(across(Mode::kPull, PathClass::kSys, DoorbellKind::kBlueFlame, QueuePlacement::kHost)));
  expect_text("push_sys.txt",
              trace(across(Mode::kPush, PathClass::kSys, DoorbellKind::kBlueFlame, QueuePlacement::kGpu)));
  expect_text("push_pix_host_queues.txt",
              trace(across(Mode::kPush, PathClass::kPix, DoorbellKind::kPlain, QueuePlacement::kHost)));
  expect_text("inline_sys.txt",
              trace(across(Mode::kInline, PathClass::kSys, DoorbellKind::kBlueFlame, QueuePlacement::kGpu)));
  expect_text("bounce_sys.txt",
              trace(across(Mode::kBounce, PathClass::kSys, DoorbellKind::kPlain, QueuePlacement::kGpu)));
}

TEST(Trace, of_a_slow_link_that_makes_hcas_wait) {
  SimulationConfig config = pair_of(pcie::Mode::kPull);
  config.pattern = Pattern::kStream;
  config.message_bytes = 32768;
  config.network.link.bits_per_s = 10e9;
  config.network.nic_queue_bytes = 8192;
  expect_text("slow_link.txt", trace(config));
}

TEST(Trace, of_a_switch_that_drops) {
  SimulationConfig config = pair_of(pcie::Mode::kPull);
  config.ranks = 3;
  config.endpoints_per_rank = 4;
  config.message_bytes = 16384;
  config.jitter_ns = 2000;
  config.network.port_buffer_bytes = 1000;
  expect_text("drops.txt", trace(config));
}

TEST(Trace, of_a_dead_rank) {
  SimulationConfig config = pair_of(pcie::Mode::kPull);
  config.ranks = 3;
  config.messages = 2;
  config.message_bytes = 64;
  config.dead_rank = 1;
  expect_text("dead_rank.txt", trace(config));
}

// A kernel that has waited for half its timeout probes its peer with a put of no bytes.
TEST(Trace, of_late_peers_that_are_probed) {
  SimulationConfig config = pair_of(pcie::Mode::kPull);
  config.ranks = 4;
  config.messages = 6;
  config.message_bytes = 64;
  config.jitter_ns = 49'000'000;
  expect_text("late_peers.txt", trace(config));
}

}  // namespace trace_test
}  // namespace gdx::ranks
