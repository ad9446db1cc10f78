#include <memory>

#include "host/cli/commands.h"
#include "host/cli/launcher.h"

namespace gdx {
namespace {

constexpr double kNsPerSecond = 1e9;
constexpr double kMaxTimeoutSeconds = 1e6;

}  // namespace

void add_softhca_options(CLI::App& command, SofthcaOptions& softhca) {
  command.add_option("--addr", softhca.address, "IP address of the HCA (a free one of 127.0.0.0/8)");
  command.add_option("--wire", softhca.wire, "To HCAs of this host: udp, shm, or auto (shm where offered)");
  command.add_option("--mtu", softhca.mtu_bytes, "Path MTU in bytes: 256 to 4096");
  command.add_option("--loss", softhca.loss, "Probability that a packet is lost");
  command.add_option("--corrupt", softhca.corrupt, "Probability that a packet is corrupted");
  command.add_option("--duplicate", softhca.duplicate, "Probability that a packet arrives twice");
  command.add_option("--reorder", softhca.reorder, "Probability that a packet is overtaken");
  command.add_option("--mark", softhca.mark, "Probability that a packet is marked as congested (ECN)");
  command.add_option("--rate-gbps", softhca.rate_gbps, "Rate of each HCA's link in Gb/s (no limit)");
  command.add_option("--congestion-control", softhca.congestion_control,
                     "What marked packets lead to: dcqcn or none (dcqcn)");
  command.add_option("--seed", softhca.seed, "Seed of the faults; rank R uses SEED + R");
  command.add_option("--pcap", softhca.pcap, "Write what crosses the wire; rank R to FILE.rankR");
  command.add_option("--device-memory-bytes", softhca.device_memory_bytes, "On-NIC memory (131072)");
}

void add_run_command(CLI::App& app, const std::vector<std::string>& program, int& exit_status) {
  struct Chosen {
    LaunchOptions launch;
    double timeout_s = 0;
  };
  auto chosen = std::make_shared<Chosen>();
  CLI::App* run =
      app.add_subcommand("run", "Run a program on the software HCA: gdx run [OPTIONS] -- PROGRAM");
  run->add_option("--ranks", chosen->launch.ranks, "How many ranks to start (1)");
  run->add_option("--hcas", chosen->launch.softhca.hcas,
                  "How many HCAs the program has, gdx0 and up; their addresses follow each other (1)");
  add_softhca_options(*run, chosen->launch.softhca);
  run->add_option("--timeout-s", chosen->timeout_s, "End all ranks after this many seconds (never)")
      ->check(CLI::Range(0.0, kMaxTimeoutSeconds));
  run->callback([chosen, &program, &exit_status] {
    LaunchOptions& options = chosen->launch;
    options.command = program;
    options.timeout_ns = static_cast<std::uint64_t>(chosen->timeout_s * kNsPerSecond);
    if (options.ranks == 1 && options.timeout_ns == 0) {
      exit_status = report(run_in_place(options));
      return;
    }
    const auto status = launch(options);
    exit_status = status ? *status : report(status.error());
  });
}

}  // namespace gdx
