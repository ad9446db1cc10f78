#include "host/programs/bench/peer_ends.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "base/descriptor.h"
#include "base/find_program.h"
#include "base/output.h"

namespace gdx::bench {
namespace {

constexpr int kRunSeconds = 60;   // of all tries; less than the other rank waits
constexpr int kMostFailures = 2;  // of a program, after which it is not run any more
constexpr std::size_t kAddressBytes = 64;

// Arguments of format: seconds, the command. Both leave a rank's capture of packets alone, and kill a program
// that ignores SIGTERM.
// Ends its program as soon as its input ends.
constexpr char kServer[] = R"sh(exec 2>/dev/null
unset GDX_SOFTHCA_PCAP
timeout -k 5 {0} sh -c 'exec {1}' >/dev/null &
read -r line
kill $!
wait
)sh";
// Tries until the server listens.
constexpr char kClient[] = R"sh(exec 2>/dev/null
unset GDX_SOFTHCA_PCAP
exec timeout -s KILL {0} sh -c '
for try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30; do
  if printed=$({1}); then printf "%s\n" "$printed"; exit 0; fi
  sleep 0.1
done
exit 1'
)sh";

using Pipe = std::unique_ptr<FILE, int (*)(FILE*)>;

// Returns a TCP port that is free now; 0 without one.
std::uint16_t free_port() {
  const Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t length = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(socket.value(), generic, length) != 0 || ::getsockname(socket.value(), generic, &length) != 0)
    return 0;
  return ntohs(address.sin_port);
}

std::string read_all(FILE* stream) {
  std::string text;
  std::array<char, 4096> part{};
  for (std::size_t got = 0; (got = fread(part.data(), 1, part.size(), stream)) > 0;)
    text.append(part.data(), got);
  return text;
}

// Address and port of a server, for its client.
struct Place {
  std::uint16_t port;
  std::array<char, kAddressBytes> address;
};

// Returns the address that the other rank gave; it becomes part of a command for a shell.
Result<std::string> address_of(const Place& place) {
  std::string address(place.address.begin(), std::ranges::find(place.address, '\0'));
  if (is_address(address)) return address;
  return fail(Status::kInvalidArgument, "a rank's address is none: use the same gdx at both ends");
}

}  // namespace

Result<PeerEnds> PeerEnds::find(World& world, const std::string& caller, std::vector<PeerRun> runs, Nic nic) {
  PeerEnds ends;
  ends.caller_ = caller;
  ends.nic_ = std::move(nic);
  ends.runs_here_.reserve(runs.size());
  std::vector<std::string> told;
  for (const PeerRun& run : runs) {
    const auto found =
        GDX_TRY(world.allgather_value<int>(!find_program(run.program).empty(), kExchangeTimeoutNs));
    const bool everywhere = std::ranges::count(found, 0) == 0;
    ends.runs_here_.push_back(everywhere);
    if (everywhere || world.rank() != kReportingRank || std::ranges::count(told, run.program) != 0) continue;
    told.push_back(run.program);
    print_error("{}: {} is not installed, so it does not stand beside gdx: install Debian's {}\n", caller,
                run.program, package_of(run.program));
  }
  ends.runs_ = std::move(runs);
  return ends;
}

Result<std::optional<PeerFigures>> PeerEnds::run(World& world, std::size_t index) {
  const PeerRun& run = runs_[index];
  if (!runs_here_[index] || failures_[run.program] >= kMostFailures) return std::nullopt;
  const bool client = world.rank() == kReportingRank;
  Place mine{client ? std::uint16_t{0} : free_port(), {}};
  const std::string address = world.address();
  std::copy_n(address.begin(), std::min(address.size(), kAddressBytes - 1), mine.address.begin());
  const auto places = GDX_TRY(world.allgather_value(mine, kExchangeTimeoutNs));
  const Place& server = places[1 - kReportingRank];
  const auto host = GDX_TRY(address_of(server));
  const std::string command = peer_command(run, nic_, server.port, client ? host : "");
  std::optional<PeerFigures> figures;
  Pipe end(nullptr, pclose);
  if (client) {
    end.reset(popen(fmt::format(kClient, kRunSeconds, command).c_str(), "re"));
    if (end) figures = parse_peer(run, read_all(end.get()));
  } else {
    end.reset(popen(fmt::format(kServer, kRunSeconds, command).c_str(), "we"));
  }
  // The server is ended after that.
  const auto gave = GDX_TRY(world.allgather_value<int>(figures.has_value(), kExchangeTimeoutNs));
  if (gave[kReportingRank] != 0) return figures;
  runs_here_[index] = false;
  const bool all = ++failures_[run.program] == kMostFailures;
  if (client)
    print_error("{}: {} gave no figures and is left out{}: to see why, run both ends by hand: {}\n", caller_,
                run.program, all ? " from now on" : " here", command);
  return std::nullopt;
}

}  // namespace gdx::bench
