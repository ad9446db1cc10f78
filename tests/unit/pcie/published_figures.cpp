#include "tests/unit/pcie/published_figures.h"

#include "driver-shim/pcie/world/measure.h"
#include "tests/unit/pcie/rates.h"

namespace gdx::pcie::test {
namespace {

// A rate is exact but for the rounding of each packet to a picosecond, at most 0.05 % of the shortest one
// (56 B, 1 ns). A formula's last published digit is 0.02 % of the least figure.
constexpr double kRounding = 0.0007;
constexpr double kMet = 0.02;

constexpr std::string_view kPcieModel = "pcie-bench";
constexpr std::string_view kPcieData = "pcie-bench data";
constexpr std::string_view kDissecting = "Dissecting";
constexpr std::string_view kGin = "GIN";
constexpr std::string_view kPerftest = "perftest 241";

Platform gen5(DllpAccounting dllp) {
  Platform platform = without_limits(kGeneric);
  platform.link = {.generation = Generation::kGen5, .lanes = 16, .mps_bytes = 256, .dllp = dllp};
  return platform;
}

Platform gen3_x8() {
  Platform platform = kGeneric;
  platform.link.generation = Generation::kGen3;
  platform.link.lanes = 8;
  return platform;
}

template <typename Rate>
PublishedFigure formula(std::string_view figure, double published, Rate rate) {
  return {.basis = Basis::kFormula,
          .figure = figure,
          .platform = "Gen5 x16, MPS 256 B",
          .source = kPcieModel,
          .unit = "Gb/s",
          .low = published,
          .high = published,
          .modelled = gigabits(rate(gen5(DllpAccounting::kCaused))),
          .tolerance = kRounding,
          .by_its_accounting = gigabits(rate(gen5(DllpAccounting::kBothWays)))};
}

PublishedFigure writes(std::string_view figure, std::uint32_t bytes, double published) {
  return formula(figure, published, [bytes](const Platform& platform) {
    return write_bytes_per_s(platform, PathClass::kPhb, {kNicNode, kHostNode, bytes});
  });
}

PublishedFigure reads(std::string_view figure, std::uint32_t completion_bytes, double published) {
  return formula(figure, published, [completion_bytes](Platform platform) {
    platform.host_memory.completion_bytes = completion_bytes;
    return read_bytes_per_s(platform, PathClass::kPhb, {kNicNode, kHostNode, 4096, 2048});
  });
}

PublishedFigure measured(Basis basis, std::string_view figure, std::string_view platform,
                         std::string_view source, std::string_view unit, double published, double modelled) {
  return {.basis = basis,
          .figure = figure,
          .platform = platform,
          .source = source,
          .unit = unit,
          .low = published,
          .high = published,
          .modelled = modelled,
          .tolerance = kMet,
          .by_its_accounting = std::nullopt};
}

// The device of the measurement also sends read requests, and DLLPs for the completions, the other way. So
// the truth lies between no DLLP in the direction of the data and all that the specification recommends.
PublishedFigure measured_reads() {
  Platform platform = without_limits(gen3_x8());
  platform.host_memory.completion_bytes = 256;
  PublishedFigure one = measured(
      Basis::kMissed, "reads of 2048 B", "Gen3 x8; Ivy Bridge, Haswell and Broadwell", kPcieData, "Gb/s", 0,
      gigabits(read_bytes_per_s(platform, PathClass::kPhb, {kNicNode, kHostNode, 2048, 4096})));
  one.low = 55.2;
  one.high = 55.6;
  return one;
}

// Queues in GPU memory, one machine as good as the other, a switch between GPU and NIC.
WorldConfig world_of(DoorbellKind doorbell) {
  WorldConfig world;
  world.queues = QueuePlacement::kGpu;
  world.doorbell = doorbell;
  return world;
}

double completed_us(Mode mode) {
  return measure_latency(world_of(DoorbellKind::kPlain), mode, 8).completed_ns / 1000;
}

double round_trip_us(Mode mode, DoorbellKind doorbell) {
  return 2 * measure_latency(world_of(doorbell), mode, 8).delivered_ns / 1000;
}

double lone_thread_mega_per_s() {
  WorldConfig world = world_of(DoorbellKind::kPlain);
  world.lanes = 1;
  return measure_rate(world, Mode::kInline, 8).messages_per_s / 1e6;
}

std::vector<PublishedFigure> model_all() {
  constexpr std::string_view kH200 = "H200, ConnectX-7";
  constexpr std::string_view kH100 = "H100";
  const auto missed = [](std::string_view figure, std::string_view platform, std::string_view source,
                         std::string_view unit, double published, double modelled) {
    return measured(Basis::kMissed, figure, platform, source, unit, published, modelled);
  };
  return {
      writes("writes of 32 B", 32, 259.9),
      writes("writes of 64 B", 64, 330.8),
      writes("writes of 128 B", 128, 383.0),
      writes("writes of 256 B", 256, 415.8),
      reads("reads, completions of 64 B", 64, 346.5),
      reads("reads, completions of 128 B", 128, 393.3),
      reads("reads, completions of 256 B", 256, 421.8),
      measured(Basis::kFitted, "64 B read of host memory", "Gen3 x8, E5-2620 v2", kPcieData, "ns", 440,
               read_latency_ns(gen3_x8(), PathClass::kPhb, kNicNode, kHostNode, 64)),
      // The GPU of a SYS path has the host memory of that figure on the other socket.
      measured(Basis::kFitted, "the same, on the other socket", "Gen3 x8, E5-2620 v2", kPcieData, "ns", 506,
               read_latency_ns(gen3_x8(), PathClass::kSys, kGpuNode, kHostNode, 64)),
      measured(Basis::kFitted, "RDMA write, GPU to GPU between sockets", "A30, Gen4 x16", kPerftest, "GB/s",
               11, gigabytes(write_bytes_per_s(kA30, PathClass::kSys, {kNicNode, kGpuNode, 4096}))),
      measured_reads(),
      missed("8 B inline put and completion", kH200, kDissecting, "us", 4.03, completed_us(Mode::kInline)),
      missed("round trip of 8 B inline puts", kH200, kDissecting, "us", 6.85,
             round_trip_us(Mode::kInline, DoorbellKind::kPlain)),
      missed("puts of one thread", kH200, kDissecting, "M/s", 1.79, lone_thread_mega_per_s()),
      missed("round trip of small puts, plain doorbells", kH100, kGin, "us", 16.7,
             round_trip_us(Mode::kPull, DoorbellKind::kPlain)),
      missed("round trip of small puts, BlueFlame", kH100, kGin, "us", 16.7,
             round_trip_us(Mode::kPull, DoorbellKind::kBlueFlame)),
  };
}

}  // namespace

const std::vector<PublishedFigure>& published_figures() {
  static const std::vector<PublishedFigure> all = model_all();
  return all;
}

}  // namespace gdx::pcie::test
