#include "host/cli/bench_peers.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "base/descriptor.h"
#include "base/output.h"
#include "host/bench/peers.h"

namespace gdx {
namespace {

constexpr std::uint64_t kRunTimeoutNs = 60'000'000'000;
constexpr std::uint64_t kFollowNs = 1'000'000'000;  // for the other end, after one has failed

// Rank 0 is the server, whose output nobody needs. The client tries until the server listens.
// Arguments: the descriptor for its output, then program and options.
constexpr char kBothEnds[] = R"sh(
out=/proc/self/fd/$1
shift
if [ "$GDX_RANK" = 0 ]; then exec "$@" >/dev/null 2>&1; fi
for try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30; do
  if "$@" 127.0.0.1 >"$out" 2>/dev/null; then exit 0; fi
  sleep 0.1
done
exit 1
)sh";

bool is_installed(const std::string& program) {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "/usr/bin" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (access(fmt::format("{}/{}", folder, program).c_str(), X_OK) == 0) return true;
  }
  return false;
}

// Returns a port that is free now.
Result<std::uint16_t> free_port() {
  const Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(socket.value(), generic, length) != 0 || ::getsockname(socket.value(), generic, &length) != 0)
    return fail(Status::kSystem,
                fmt::format("no loopback port for a benchmark beside gdx's: {}", std::strerror(errno)));
  return ntohs(address.sin_port);
}

// Runs both ends. Errors: those of launch. An end that fails leaves no figures.
Result<std::optional<bench::PeerFigures>> run_once(const bench::PeerRun& run, const LaunchOptions& given) {
  const Descriptor output(memfd_create("gdx bench peer", 0));
  const auto port = GDX_TRY(free_port());
  LaunchOptions launched = given;
  launched.ranks = 2;
  launched.timeout_ns = kRunTimeoutNs;
  launched.follow_ns = kFollowNs;
  launched.ranks_explain = true;
  launched.command = {"sh",
                      "-c",
                      kBothEnds,
                      "sh",
                      fmt::format("{}", output.value()),
                      run.program,
                      "-p",
                      fmt::format("{}", port)};
  launched.command.insert(launched.command.end(), run.options.begin(), run.options.end());
  const auto status = GDX_TRY(launch(launched));
  if (status != 0) return std::optional<bench::PeerFigures>();
  char text[65536];
  const ssize_t got = ::pread(output.value(), text, sizeof text, 0);
  return bench::parse_perftest(std::string(text, static_cast<std::size_t>(std::max<ssize_t>(got, 0))));
}

}  // namespace

Result<void> add_peers(const bench::Plan& plan, const LaunchOptions& launch,
                       nlohmann::ordered_json& document) {
  const std::vector<bench::PeerRun> runs = bench::peer_runs(plan);
  std::vector<std::vector<bench::PeerFigures>> rounds(runs.size());
  std::vector<std::string> missing;
  const Progress progress;
  for (std::uint32_t round = 1; round <= plan.rounds; ++round) {
    for (std::size_t i = 0; i < runs.size(); ++i) {
      if (!is_installed(runs[i].program)) {
        if (std::ranges::count(missing, runs[i].program) == 0) missing.push_back(runs[i].program);
        continue;
      }
      progress.show("{} of {} B, round {} of {}", runs[i].program, runs[i].bytes, round, plan.rounds);
      const auto figures = GDX_TRY(run_once(runs[i], launch));
      if (figures) {
        rounds[i].push_back(*figures);
      } else {
        print_error("gdx bench: {} of {} B gave no figures: run it by hand, gdx run -- {} {}\n",
                    runs[i].program, runs[i].bytes, runs[i].program, fmt::join(runs[i].options, " "));
      }
    }
  }
  const std::string where = launch.hardware ? "this machine's HCA" : "the software HCA";
  for (std::size_t i = 0; i < runs.size(); ++i) bench::add_peer(document, runs[i], rounds[i], where);
  for (const std::string& program : missing)
    print_error("gdx bench: {} is not installed, so nothing stands beside it: install Debian's perftest\n",
                program);
  return {};
}

}  // namespace gdx
