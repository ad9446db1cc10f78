// gdx_overload_bench: the overload experiment on the software HCA, N senders in rank 0 and a rank for each of
// their peers. Prints "NAME VALUE" lines; run it as `gdx run --ranks N+1 --rate-gbps R --
// gdx_overload_bench`.
#include <fmt/format.h>

#include <map>
#include <string>

#include "base/command_line.h"
#include "perf/overload.h"

namespace gdx::perf {
namespace {

void print(const OverloadFigures& figures) {
  fmt::print("senders {}\n", figures.senders);
  fmt::print("failed_senders {}\n", figures.failed_senders);
  fmt::print("chunks_pushed {}\n", figures.pushed);
  fmt::print("chunks_whole {}\n", figures.whole);
  fmt::print("chunks_damaged {}\n", figures.damaged);
  fmt::print("staging_violations {}\n", figures.violations);
  fmt::print("lost_slots {}\n", figures.lost_slots);
  fmt::print("retransmitted_packets {}\n", figures.retransmitted);
  fmt::print("goodput_gbps {:.6g}\n", figures.goodput_gbps);
  fmt::print("worst_other_gbps {:.6g}\n", figures.worst_other_gbps);
  if (!figures.failure.empty()) fmt::print("failure {}\n", figures.failure);
}

Result<void> run(const OverloadOptions& options) {
  const auto world_options = GDX_TRY(WorldOptions::from_environment());
  const std::uint32_t ranks = world_options.size;
  if (ranks < 2 || ranks > kMaxOverloadSenders + 1) {
    return fail(
        Status::kInvalidArgument,
        fmt::format("a world of {} ranks: use 2 to {}, as in `gdx run --ranks 5 -- gdx_overload_bench`",
                    ranks, kMaxOverloadSenders + 1));
  }
  const auto hca = GDX_TRY(Hca::open());
  auto world = GDX_TRY(World::join(world_options));
  if (world.rank() != 0) return receive_pushes(world, hca, options);
  const auto figures = GDX_TRY(push_to_all(world, hca, options));
  print(figures);
  return {};
}

}  // namespace
}  // namespace gdx::perf

int main(int argc, char** argv) {
  using namespace gdx;
  using perf::Stall;
  constexpr std::uint64_t kMinChunks = 1'000;
  constexpr std::uint64_t kMaxChunks = 1u << 20;
  const std::map<std::string, Stall> stalls{
      {"none", Stall::kNone}, {"while", Stall::kForAWhile}, {"end", Stall::kToTheEnd}};
  perf::OverloadOptions options;
  std::string stall = "while";
  command_line::App app{"The overload experiment, one rank of it"};
  app.add_option("--chunks", options.chunks, "4 KiB puts of all senders together")
      .check(command_line::whole(kMinChunks, kMaxChunks));
  app.add_option("--stall", stall,
                 "the first peer is stopped: none (never), while (half of the run), end (to the end)")
      .check(command_line::one_of({"none", "while", "end"}));
  app.add_flag("--without-credits", options.without_credits, "push into any slot, whoever holds it");
  app.add_option("--ack-timeout", options.ack_timeout, "4.096 us * 2^N before a resend")
      .check(command_line::whole(1, 31));
  app.add_option("--retry-count", options.retry_count, "resends before a peer is given up")
      .check(command_line::whole(0, 7));
  if (const auto status = app.parse("gdx_overload_bench", argc, argv)) return *status;
  options.stall = stalls.at(stall);
  const auto done = perf::run(options);
  if (done) return 0;
  fmt::print(stderr, "gdx_overload_bench: {}\n", done.error().message);
  return 1;
}
