// gdx_model, which `gdx model` runs: the ways onto the wire over a modelled PCIe path.
#include <fmt/format.h>

#include <cstdio>

#include "base/command_line.h"
#include "base/output.h"
#include "driver-shim/pcie/model/plot.h"
#include "driver-shim/pcie/model/report.h"

namespace gdx::pcie {
namespace {

constexpr int kExitFailure = 1;
constexpr int kExitNotFound = 127;

int report_error(const Error& error) {
  print_error("gdx model: {}\n", error.message);
  if (error.status == Status::kInvalidArgument) return command_line::kExitUsage;
  return error.status == Status::kNotFound ? kExitNotFound : kExitFailure;
}

// Bound up to which a simulation takes seconds.
constexpr std::uint64_t kMaxEndpoints = 1024;
constexpr std::uint64_t kMaxBatch = 64;
constexpr std::uint64_t kMaxNs = 1'000'000'000;

void add_options(command_line::Command app, ModelOptions& options) {
  using command_line::one_of;
  using command_line::real;
  using command_line::whole;
  app.add_option("--path", options.path, "PIX, PXB, PHB, NODE or SYS (PIX)");
  app.add_option("--gen", options.generation, "PCIe generation, 3 to 6 (the platform's: 5)")
      .check(whole(3, 6));
  app.add_option("--width", options.lanes, "PCIe lanes: 4, 8 or 16 (16)").check(one_of({"4", "8", "16"}));
  app.add_option("--mode", options.modes,
                 "pull, push, inline, proxy, bounce, push-flags, push-ordered, a list of them, or all (all)");
  app.add_option("--size-bytes", options.sizes_bytes, "Message sizes (8 B to 16 MiB)")
      .list(',')
      .check(whole(1, kLargestBytes));
  app.add_option("--platform", options.platform,
                 "generic, epyc-7452, ivy-bridge, intel-client, a100 or a30 (generic)");
  app.add_option("--queues", options.queues, "Where rings and records lie: host or gpu (host)");
  app.add_option("--doorbell", options.doorbell,
                 "plain, or blueflame: a work request of one block comes with it (blueflame)");
  app.add_option(
      "--record", options.record,
      "Doorbell records, for doorbells without their work request: the NIC has them read or unread (read)");
  app.add_option("--wire-gbps", options.wire_gbps, "Rate of the wire in Gb/s (400)").check(real(1, 10'000));
  app.add_option("--wire-latency-ns", options.wire_latency_ns, "Latency of the wire, one way (800)")
      .check(whole(1, kMaxNs));
  app.add_option("--mtu", options.mtu_bytes, "Payload of a packet on the wire in bytes (4096)")
      .check(one_of({"256", "512", "1024", "2048", "4096"}));
  app.add_option("--store-bytes", options.store_bytes, "Largest packet of a GPU's stores to a BAR (256)")
      .check(whole(1, 4096));
  app.add_option("--mps", options.mps_bytes, "Maximum payload size (256)").check(whole(128, 4096));
  app.add_option("--mrrs", options.mrrs_bytes, "Maximum read request size of the NIC (512)")
      .check(whole(128, 4096));
  app.add_option("--rcb-bytes", options.rcb_bytes,
                 "Bytes of a completion from host memory, a multiple of the read completion boundary (64)")
      .check(one_of({"64", "128", "256", "512"}));
  app.add_option("--peer-read-lines", options.peer_read_lines,
                 "Lines of 64 B that a root complex keeps outstanding when it reads a peer (48)")
      .check(whole(1, 65'536));
  app.add_option("--socket-gbps", options.socket_gbps, "Rate between sockets, each way, in Gb/s (320)")
      .check(real(1, 10'000));
  app.add_option("--tags", options.tags, "Read requests the NIC may have outstanding (256)")
      .check(whole(1, 65'536));
  app.add_option("--pool-bytes", options.pool_bytes, "Staging memory on the NIC, a power of two (131072)")
      .check(whole(64, 1 << 30));
  app.add_option("--slot-bytes", options.slot_bytes, "Size of a staging slot (4096)")
      .check(whole(64, 1 << 30));
  app.add_option("--order-ns", options.order_ns,
                 "What a put's fences cost, at any scope (700 GPU, 2620 system)")
      .check(whole(0, kMaxNs));
  app.add_option("--endpoints", options.endpoints, "Endpoints that post at once, for rates (32)")
      .check(whole(1, kMaxEndpoints));
  app.add_option("--batch", options.batch,
                 "Puts of one endpoint that share their fences and one plain doorbell (1)")
      .check(whole(1, kMaxBatch));
  app.add_flag("--json", options.as_json, "As JSON");
  app.add_option("--plot", options.plot, "Draw to this file, .svg or .png, with gnuplot")
      .check(command_line::not_empty("the name of a file"));
  app.show_examples({"gdx model --path SYS --gen 5 --queues gpu",
                     "gdx model --mode push,pull --size-bytes 8,4096 --json",
                     "gdx model --path PIX --plot pix.svg"});
}

int run_command_line(int argc, char** argv) {
  ModelOptions options;
  command_line::App app(
      "Latency, rate and PCIe transactions of a put, modelled: interprets a table of PCIe steps for\n"
      "each mode (driver-shim/pcie/world/modes.h), not the code that posts. Against that code, which\n"
      "./run ranks --point runs on the same paths, papers/push-vs-pull/production-code.txt holds it",
      "gdx model");
  add_options(app, options);
  if (const auto ends = app.parse("gdx model", argc, argv)) return *ends;
  const auto request = to_request(options);
  if (!request) return report_error(request.error());
  if (!options.plot.empty()) {
    if (auto checked = check_plot(request->sizes_bytes, options.plot); !checked)
      return report_error(checked.error());
  }
  const Report report = run_model(*request);
  if (report.rows.empty() && !options.as_json) {
    for (const std::string& why : report.not_possible) print_error("gdx model: not possible: {}\n", why);
    return kExitFailure;
  }
  print("{}", options.as_json ? to_json(report) : to_text(report));
  if (report.rows.empty()) return kExitFailure;
  if (!options.plot.empty()) {
    if (auto drawn = plot(report, options.plot); !drawn) return report_error(drawn.error());
  }
  return 0;
}

}  // namespace
}  // namespace gdx::pcie

int main(int argc, char** argv) {
  return gdx::run_program("gdx model", [&] { return gdx::pcie::run_command_line(argc, argv); });
}
