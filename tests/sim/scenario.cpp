#include "tests/sim/scenario.h"

#include <fmt/format.h>

#include <array>

namespace gdx::sim {
namespace {

using softhca::transport::RcConfig;

RcConfig make_config(Random& random) {
  RcConfig config;
  config.mtu_bytes = 256u << random.between(0, 2);
  config.ack_timeout = static_cast<std::uint8_t>(random.between(5, 7));
  config.min_rnr_timer = static_cast<std::uint8_t>(random.between(1, 10));
  config.remote_write = config.remote_read = config.remote_atomic = true;
  const std::uint8_t depth = static_cast<std::uint8_t>(random.between(1, 4));
  config.max_rd_atomic = config.max_dest_rd_atomic = depth;
  static constexpr std::array<std::uint32_t, 4> kWindows{4, 16, 128, 0};
  config.max_unacked_packets = kWindows[random.between(0, 3)];
  return config;
}

// Half of all runs wrap.
std::uint32_t make_psn(Random& random) {
  const std::uint64_t lowest = random.chance(0.5) ? 0xffff80 : 0;
  return static_cast<std::uint32_t>(random.between(lowest, 0xffffff));
}

void connect(Random& random, Scenario& scenario) {
  RcConfig base = make_config(random);
  if (random.chance(0.5)) base.first_msn = static_cast<std::uint32_t>(random.between(0xffffc0, 0xffffff));
  scenario.configs.assign(2 * std::size_t{scenario.connections}, base);
  for (std::uint32_t node = 0; node < scenario.configs.size(); ++node) {
    scenario.configs[node].local_qpn = 0x10 + node;
    scenario.configs[node].remote_qpn = 0x10 + (node ^ 1);
    const std::uint32_t psn = make_psn(random);
    scenario.configs[node].send_psn = psn;
    scenario.configs[node ^ 1].receive_psn = psn;
  }
}

// A few tries, then the sender must give up; a starved one certainly does.
void limit_rnr_retries(Random& random, Scenario& scenario) {
  if (!random.chance(0.3)) return;
  for (RcConfig& config : scenario.configs) {
    config.rnr_retry = static_cast<std::uint8_t>(random.between(0, 6));
  }
  if (random.chance(0.5)) scenario.starve_ns = random.between(0, 500) * kMicrosecondNs;
}

// Timeouts that a lost tail must not wait for. With a dead peer they are shorter, and the link loses nothing:
// when the requester gives up is then certain.
void make_patient(Random random, Scenario& scenario) {
  scenario.patient = true;
  scenario.starve_ns = kNever;
  scenario.flaw = Flaw::kNone;  // else the peer would take its time to find out
  const bool dies = scenario.death_ns != kNever;
  scenario.faults.loss = dies ? 0 : 0.01;
  scenario.faults.corruption = scenario.faults.duplication = 0;
  for (RcConfig& config : scenario.configs) {
    config.ack_timeout = dies ? 14 : 20;
    if (dies) config.retry_count = 1;
    config.rnr_retry = 7;
  }
  if (!dies) scenario.operations += static_cast<std::uint32_t>(random.between(0, 60));
}

// Limits the retries, so that the link's faults use them up.
void limit_retries(Random random, Scenario& scenario) {
  const auto retries = static_cast<std::uint8_t>(random.between(0, 3));
  for (RcConfig& config : scenario.configs) config.retry_count = retries;
}

}  // namespace

LinkFaults make_faults(Random& random) {
  const double harshness = random.chance(0.2) ? 0 : 0.08;
  LinkFaults faults;
  faults.loss = harshness * static_cast<double>(random.between(0, 10)) / 10;
  faults.corruption = harshness * static_cast<double>(random.between(0, 10)) / 40;
  faults.duplication = harshness * static_cast<double>(random.between(0, 10)) / 10;
  faults.reordering = harshness * static_cast<double>(random.between(0, 10)) / 10;
  faults.delay_ns = random.between(1, 20) * kMicrosecondNs;
  faults.jitter_ns = random.between(0, 2) * random.between(1, 30) * kMicrosecondNs;
  return faults;
}

Scenario make_scenario(Random& random) {
  Scenario scenario;
  scenario.faults = make_faults(random);
  scenario.pauses = random.chance(0.3) ? 0.02 : 0;
  scenario.connections = random.chance(0.7) ? 1 : static_cast<std::uint32_t>(random.between(2, 3));
  scenario.shared_receives = scenario.connections > 1 && random.chance(0.8);
  scenario.operations = static_cast<std::uint32_t>(random.between(5, 60)) / scenario.connections + 1;
  if (random.chance(0.1)) scenario.death_ns = random.between(1, 1500) * kMicrosecondNs;
  if (random.chance(0.2)) {
    scenario.flaw = static_cast<Flaw>(random.between(1, kFlaws));
    scenario.flawed_operation = static_cast<std::uint32_t>(random.between(0, scenario.operations - 1));
  }
  for (bool& advertises : scenario.advertises) advertises = random.chance(0.75);
  connect(random, scenario);
  limit_rnr_retries(random, scenario);
  // Apart from the seed's own numbers, which stay what they are.
  Random aside(Random(random).next());
  const std::uint64_t kind = aside.between(0, 9);
  if (kind >= 8) make_patient(aside, scenario);
  if (kind == 7) limit_retries(aside, scenario);
  scenario.calm = scenario.faults.none() && scenario.pauses == 0 && scenario.death_ns == kNever &&
                  scenario.starve_ns == kNever && scenario.flaw == Flaw::kNone;
  return scenario;
}

std::string text_of(const LinkFaults& faults) {
  return fmt::format("loss {}, corruption {}, duplication {}, reordering {}, delay {} ns, jitter {} ns",
                     faults.loss, faults.corruption, faults.duplication, faults.reordering, faults.delay_ns,
                     faults.jitter_ns);
}

std::string Scenario::text() const {
  const RcConfig& config = configs[0];
  std::string text = fmt::format(
      "{}, {} connections{}, {} operations each, MTU {}, window {}, depth {}, RNR retries {}",
      text_of(faults), connections, shared_receives ? " on shared receive queues" : "", operations,
      config.mtu_bytes, config.max_unacked_packets, config.max_rd_atomic, config.rnr_retry);
  if (patient) text += ", patient";
  if (config.retry_count < 7) text += fmt::format(", {} retries", config.retry_count);
  if (flaw != Flaw::kNone) {
    text += fmt::format(", flaw {} in operation {}", static_cast<int>(flaw), flawed_operation);
  }
  if (advertises_receives(0) || advertises_receives(1)) {
    text += fmt::format(", credits of {}", !advertises[0] ? "1" : !advertises[1] ? "0" : "both");
  }
  if (death_ns != kNever) text += fmt::format(", death at {} ns", death_ns);
  if (starve_ns != kNever) text += fmt::format(", no receives from {} ns", starve_ns);
  return text;
}

}  // namespace gdx::sim
