#include <fmt/format.h>

#include <limits>
#include <memory>

#include "base/command_line.h"
#include "host/programs/cli/commands.h"
#include "host/programs/cli/launcher.h"
#include "proto/bootstrap/messages.h"

namespace gdx {
namespace {

constexpr double kNsPerSecond = 1e9;
constexpr double kMinTimeoutSeconds = 0.001;
constexpr double kMaxTimeoutSeconds = 1e6;

using command_line::real;
using command_line::whole;

}  // namespace

void add_softhca_options(command_line::Command command, SofthcaOptions& softhca) {
  const auto probability = [&](const char* name, std::optional<double>& value, const char* what) {
    command.add_option(name, value, fmt::format("Probability that a packet {}, 0 to 1", what))
        .check(real(0, 1));
  };
  command.add_option("--addr", softhca.address, "IP address of the HCA (a free one of 127.0.0.0/8)");
  command.add_option("--wire", softhca.wire, "To HCAs of this host: udp, shm, or auto (shm where offered)")
      .check(command_line::one_of({"udp", "shm", "auto"}));
  command
      .add_option("--mtu", softhca.mtu_bytes, "Path MTU in bytes: 256 to 4096 (what the interface carries)")
      .check(command_line::one_of({"256", "512", "1024", "2048", "4096"}));
  probability("--loss", softhca.loss, "is lost");
  probability("--corrupt", softhca.corrupt, "is corrupted");
  probability("--duplicate", softhca.duplicate, "arrives twice");
  probability("--reorder", softhca.reorder, "is overtaken");
  probability("--mark", softhca.mark, "is marked as congested (ECN)");
  probability("--death", softhca.death, "is where its HCA dies: from it on nothing leaves or arrives");
  command.add_option("--rate-gbps", softhca.rate_gbps, "Rate of each HCA's link in Gb/s (no limit)")
      .check(real(0.001, 10'000));
  command
      .add_option("--congestion-control", softhca.congestion_control,
                  "What marked packets lead to: dcqcn or none (dcqcn)")
      .check(command_line::one_of({"dcqcn", "none"}));
  command.add_option("--seed", softhca.seed, "Seed of the faults; rank R uses SEED + R")
      .check(whole(0, std::numeric_limits<std::uint64_t>::max()));
  command.add_option("--pcap", softhca.pcap,
                     "RoCE packets of rank 0, both ways; rank R: NAME.rankR.EXT, HCA gdx1: NAME.gdx1.EXT");
  command
      .add_option("--device-memory-bytes", softhca.device_memory_bytes,
                  "On-NIC memory, a multiple of 4096 (131072)")
      .check(whole(0, kMaxDeviceMemoryBytes));
}

void add_place_options(command_line::Command command, LaunchOptions& launch) {
  command.add_flag("--hardware", launch.hardware,
                   "No software HCA: each rank has a GPU of this machine and the NIC nearest to it");
  command.add_flag(
      "--pin", launch.pins,
      "Each rank keeps to an equal share of this program's processors, by their numbers, not by NUMA node");
}

void add_run_command(command_line::Command app, const std::vector<std::string>& program, int& exit_status) {
  struct Chosen {
    LaunchOptions launch;
    double timeout_s = 0;
    std::optional<double> grace_s;
  };
  auto chosen = std::make_shared<Chosen>();
  const command_line::Command run = app.add_command("run",
                                                    "Run a program on the software HCA, or with --hardware "
                                                    "on this machine's: gdx run [OPTIONS] -- PROGRAM");
  run.keep_unknown();
  run.add_option("--ranks", chosen->launch.ranks, "How many ranks to start (1)")
      .check(whole(1, bootstrap::kMaxRanks));
  run.add_option("--hcas", chosen->launch.softhca.hcas,
                 "How many HCAs the program has, gdx0 and up; their addresses follow each other (1)")
      .check(whole(1, kMaxHcas));
  add_softhca_options(run, chosen->launch.softhca);
  add_place_options(run, chosen->launch);
  run.add_option("--timeout-s", chosen->timeout_s, "End all ranks after this many seconds (never)")
      .check(real(kMinTimeoutSeconds, kMaxTimeoutSeconds));
  run.add_option("--grace-s", chosen->grace_s, "Seconds from SIGTERM to SIGKILL when ranks are ended (2)")
      .check(real(kMinTimeoutSeconds, kMaxTimeoutSeconds));
  run.add_flag(
      "--label", chosen->launch.label,
      "Begin each line that a rank prints with its number, as srun --label; the rank prints into a pipe");
  run.show_examples({"gdx run -- ibv_devinfo", "gdx run --ranks 2 --label --timeout-s 60 -- ./put",
                     "gdx run --loss 0.01 --seed 7 --pcap run.pcap -- ib_write_bw"});
  run.when_chosen([run, chosen, &program, &exit_status] {
    LaunchOptions& options = chosen->launch;
    if (const std::vector<std::string> unknown = run.unknown(); !unknown.empty()) {
      const std::string fault = run.fault_of_unknown(unknown.front(), "use gdx run [OPTIONS] -- PROGRAM");
      exit_status = report({Status::kInvalidArgument, fault + "; see gdx run --help"});
      return;
    }
    options.command = program;
    options.timeout_ns = static_cast<std::uint64_t>(chosen->timeout_s * kNsPerSecond);
    if (chosen->grace_s) options.grace_ns = static_cast<std::uint64_t>(*chosen->grace_s * kNsPerSecond);
    if (options.ranks == 1 && options.timeout_ns == 0 && !chosen->grace_s && !options.label) {
      exit_status = report(run_in_place(options));
      return;
    }
    const auto status = run_ranks(options);
    exit_status = status ? *status : report(status.error());
  });
}

}  // namespace gdx
