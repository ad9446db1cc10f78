// Environment of a launch: checked options in, variables out.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "base/find_program.h"
#include "base/log.h"
#include "host/ipc/daemon.h"
#include "host/launch/launcher.h"
#include "host/programs/cli/launcher.h"
#include "host/programs/cli/rank_place.h"
#include "host/topo/topology.h"
#include "proto/bootstrap/messages.h"

namespace gdx {
namespace {

constexpr std::uint64_t kPageBytes = 4096;

tl::unexpected<Error> refuse(const char* option, const std::string& value, const std::string& wanted) {
  return fail(Status::kInvalidArgument, fmt::format("{}: '{}': {}", option, value, wanted));
}

Result<void> check_probability(const char* option, const std::optional<double>& value) {
  if (!value || (*value >= 0.0 && *value <= 1.0)) return {};
  return refuse(option, fmt::format("{}", *value), "use a probability from 0 to 1");
}

// Returns whether the address is one interface's: no broadcast, multicast or wildcard address.
bool is_unicast(const std::string& text) {
  in_addr v4{};
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) {
    const std::uint32_t address = ntohl(v4.s_addr);
    return address >> 24 != 0 && address < INADDR_UNSPEC_GROUP;
  }
  in6_addr v6{};
  return inet_pton(AF_INET6, text.c_str(), &v6) == 1 && !IN6_IS_ADDR_MULTICAST(&v6) &&
         !IN6_IS_ADDR_UNSPECIFIED(&v6);
}

// Checks all ranks' files before the start, so that a fault is reported once.
Result<void> check_capture(const std::string& path, std::uint32_t ranks) {
  if (path.empty()) return refuse("--pcap", "", "give a file name");
  std::error_code error;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const std::string file = pcap_path(path, rank);
    if (std::filesystem::is_directory(file, error)) {
      return refuse("--pcap", file, "a folder; give a file name");
    }
    if (access(file.c_str(), F_OK) == 0 && access(file.c_str(), W_OK) != 0) {
      return refuse("--pcap", file,
                    fmt::format("cannot be written ({}); choose another file", std::strerror(errno)));
    }
  }
  const auto folder = std::filesystem::absolute(path, error).parent_path();
  if (access(folder.c_str(), W_OK | X_OK) == 0) return {};
  return refuse(
      "--pcap", path,
      fmt::format("no file can be written there ({}); choose another folder", std::strerror(errno)));
}

// Returns whether ranks use gdxd: somebody asked for it by name. What happens to run there is for programs
// that nobody launches.
Result<bool> through_daemon() { return GDX_TRY(ipc::daemon_places_from_environment()).required; }

Result<void> check_softhca(const SofthcaOptions& options, std::uint32_t ranks) {
  if (GDX_TRY(through_daemon()) && options != SofthcaOptions{}) {
    return fail(
        Status::kInvalidArgument,
        fmt::format("options of the software HCA do nothing to gdxd's: give them to gdxd, or set {}=off",
                    ipc::kDaemonVariable));
  }
  if (options.address && !is_unicast(*options.address)) {
    return refuse("--addr", *options.address, "use an IP address of this machine, for instance 127.0.0.5");
  }
  if (options.hcas && (*options.hcas == 0 || *options.hcas > kMaxHcas)) {
    return refuse("--hcas", fmt::format("{}", *options.hcas),
                  fmt::format("use a whole number from 1 to {}", kMaxHcas));
  }
  if (options.wire && *options.wire != "udp" && *options.wire != "shm" && *options.wire != "auto") {
    return refuse("--wire", *options.wire, "use udp, shm or auto");
  }
  if (options.mtu_bytes &&
      (!std::has_single_bit(*options.mtu_bytes) || *options.mtu_bytes < 256 || *options.mtu_bytes > 4096)) {
    return refuse("--mtu", fmt::format("{}", *options.mtu_bytes), "use 256, 512, 1024, 2048 or 4096");
  }
  if (auto done = check_probability("--loss", options.loss); !done) return done;
  if (auto done = check_probability("--corrupt", options.corrupt); !done) return done;
  if (auto done = check_probability("--duplicate", options.duplicate); !done) return done;
  if (auto done = check_probability("--reorder", options.reorder); !done) return done;
  if (auto done = check_probability("--mark", options.mark); !done) return done;
  if (auto done = check_probability("--death", options.death); !done) return done;
  if (options.rate_gbps && !(*options.rate_gbps >= 0.001 && *options.rate_gbps <= 10'000)) {
    return refuse("--rate-gbps", fmt::format("{}", *options.rate_gbps), "use 0.001 to 10000");
  }
  if (options.congestion_control && *options.congestion_control != "dcqcn" &&
      *options.congestion_control != "none") {
    return refuse("--congestion-control", *options.congestion_control, "use dcqcn or none");
  }
  if (options.pcap) {
    if (auto writable = check_capture(*options.pcap, ranks); !writable) return writable;
  }
  if (options.device_memory_bytes && (*options.device_memory_bytes > kMaxDeviceMemoryBytes ||
                                      *options.device_memory_bytes % kPageBytes != 0)) {
    return refuse("--device-memory-bytes", fmt::format("{}", *options.device_memory_bytes),
                  fmt::format("use a multiple of 4096 from 0 to {}", kMaxDeviceMemoryBytes));
  }
  return {};
}

template <typename T>
void add(std::vector<std::string>& variables, const char* name, const std::optional<T>& value) {
  if (value) variables.push_back(fmt::format("{}={}", name, *value));
}

// The dynamic linker skips what it cannot preload, and the program would run without the software HCA.
bool is_elf_file(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return false;
  std::array<char, 4> magic{};
  std::ifstream(path, std::ios::binary).read(magic.data(), magic.size());
  return magic == std::array<char, 4>{'\x7f', 'E', 'L', 'F'};
}

// Beside the executable, in the build tree and in an installation.
Result<std::string> find_softhca() {
  if (const char* given = std::getenv(kSofthcaLibraryVariable); given != nullptr) {
    if (is_elf_file(given)) return std::string(given);
    return fail(Status::kNotFound,
                fmt::format("{} = '{}' is no shared library: unset it, or name the path of "
                            "libgdx_softhca.so",
                            kSofthcaLibraryVariable, given));
  }
  std::error_code error;
  const auto here = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  for (const char* relative : {GDX_SOFTHCA_BUILD_PATH, GDX_SOFTHCA_INSTALL_PATH}) {
    const auto candidate = (here / relative).lexically_normal();
    if (std::filesystem::exists(candidate, error)) return candidate.string();
  }
  return fail(Status::kNotFound,
              fmt::format("no libgdx_softhca.so for the executable in {}: build the target "
                          "gdx_softhca, or name the file in {}",
                          here.string(), kSofthcaLibraryVariable));
}

// Returns the list of libraries for LD_PRELOAD. The user's own come before the software HCA, because
// sanitizers and allocators insist on the first place, and the software HCA works in any.
Result<std::string> preload_list() {
  auto library = find_softhca();
  if (!library) return library;
  if (library->find_first_of(" :") != std::string::npos) {
    return fail(
        Status::kInvalidArgument,
        fmt::format("the path {} cannot be preloaded: move gdx to one without spaces and colons", *library));
  }
  std::string list = GDX_SANITIZER_RUNTIME;
  if (!list.empty()) list += ':';
  if (const char* present = std::getenv("LD_PRELOAD"); present != nullptr && *present != '\0') {
    list += present;
    list += ':';
  }
  return list + *library;
}

// Lets AddressSanitizer start in a program that is linked to it, which any preloaded library precedes. What
// the user has set comes last and wins.
std::string sanitizer_options() {
  const char* const present = std::getenv("ASAN_OPTIONS");
  return fmt::format("ASAN_OPTIONS=verify_asan_link_order=0:{}", present == nullptr ? "" : present);
}

// Returns whether executing `file` adds rights beyond this process's.
bool gains_rights(const std::string& file) {
  struct stat found {};
  if (::stat(file.c_str(), &found) != 0) return false;
  const bool as_other = (found.st_mode & S_ISUID) != 0 && found.st_uid != getuid();
  const bool as_other_group = (found.st_mode & S_ISGID) != 0 && found.st_gid != getgid();
  return as_other || as_other_group ||
         (getuid() != 0 && getxattr(file.c_str(), "security.capability", nullptr, 0) > 0);
}

// Number of a rank in its job, its place on this host, and the count of ranks here.
struct Seat {
  std::uint32_t rank;
  std::uint32_t local_rank;
  std::uint32_t local_size;
};

// Ranks of mpirun or srun have a `gdx run` each, and must not all be the first.
Seat seat_of(const LaunchOptions& options, std::uint32_t index) {
  const auto launcher = launch::find_launcher();
  if (options.ranks > 1 || !launcher || !launcher->rank) return {index, index, options.ranks};
  const std::uint32_t local_rank = launcher->local_rank.value_or(*launcher->rank);
  return {*launcher->rank, local_rank, launcher->local_size.value_or(local_rank + 1)};
}

}  // namespace

Result<void> check_launch_options(const LaunchOptions& options) {
  if (options.command.empty() || options.command.front().empty()) {
    return fail(Status::kInvalidArgument, "no program to run: use gdx run [OPTIONS] -- PROGRAM [ARGUMENTS]");
  }
  if (options.ranks == 0 || options.ranks > bootstrap::kMaxRanks) {
    return refuse("--ranks", fmt::format("{}", options.ranks),
                  fmt::format("use a whole number from 1 to {}", bootstrap::kMaxRanks));
  }
  if (options.softhca.address && options.ranks > 1) {
    return refuse("--addr", *options.softhca.address, "each of several ranks needs its own; leave it out");
  }
  if (options.hardware) {
    if (options.softhca == SofthcaOptions{}) return {};
    return fail(Status::kInvalidArgument,
                "--hardware: options of the software HCA have no meaning there; leave them out");
  }
  if (gains_rights(find_program(options.command.front()))) {
    log::warn(
        "{} runs with the rights of another user or group, so nothing is preloaded into it and it sees no "
        "software HCA: start a copy without them",
        options.command.front());
  }
  return check_softhca(options.softhca, options.ranks);
}

std::string pcap_path(const std::string& path, std::uint32_t rank) {
  if (rank == 0) return path;
  const std::filesystem::path file(path);
  auto named = file.parent_path() / file.stem();
  named += fmt::format(".rank{}", rank);
  named += file.extension();
  return named.string();
}

Result<std::vector<std::string>> launch_environment(const LaunchOptions& options, std::uint32_t index) {
  const auto [rank, local_rank, local_size] = seat_of(options, index);
  if (options.hardware) return place_of_rank(this_machine(), local_rank, local_size);
  if (GDX_TRY(through_daemon())) return std::vector<std::string>{};
  const auto preload = GDX_TRY(preload_list());
  std::vector<std::string> variables{"LD_PRELOAD=" + preload, sanitizer_options(),
                                     fmt::format("{}=off", ipc::kDaemonVariable)};
  const SofthcaOptions& softhca = options.softhca;
  add(variables, "GDX_SOFTHCA_HCAS", softhca.hcas);
  add(variables, "GDX_SOFTHCA_ADDR", softhca.address);
  add(variables, "GDX_SOFTHCA_WIRE", softhca.wire);
  add(variables, "GDX_SOFTHCA_MTU", softhca.mtu_bytes);
  add(variables, "GDX_SOFTHCA_LOSS", softhca.loss);
  add(variables, "GDX_SOFTHCA_CORRUPT", softhca.corrupt);
  add(variables, "GDX_SOFTHCA_DUPLICATE", softhca.duplicate);
  add(variables, "GDX_SOFTHCA_REORDER", softhca.reorder);
  add(variables, "GDX_SOFTHCA_MARK", softhca.mark);
  add(variables, "GDX_SOFTHCA_DEATH", softhca.death);
  add(variables, "GDX_SOFTHCA_RATE_GBPS", softhca.rate_gbps);
  add(variables, "GDX_SOFTHCA_CONGESTION_CONTROL", softhca.congestion_control);
  if (softhca.seed) variables.push_back(fmt::format("GDX_SOFTHCA_SEED={}", *softhca.seed + rank));
  if (softhca.pcap) variables.push_back("GDX_SOFTHCA_PCAP=" + pcap_path(*softhca.pcap, rank));
  add(variables, "GDX_SOFTHCA_DEVICE_MEMORY_BYTES", softhca.device_memory_bytes);
  return variables;
}

}  // namespace gdx
