// Starts a program, or several ranks of it, on the software HCA or on this machine's own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace gdx {

// Settings of the software HCA, passed in GDX_SOFTHCA_* variables. Absent: its own default.
struct SofthcaOptions {
  std::optional<std::uint32_t> hcas;   // software HCAs in each process: gdx0, gdx1, ...
  std::optional<std::string> address;  // address of gdx0, which those of the other HCAs follow
  std::optional<std::string> wire;     // udp, shm or auto
  std::optional<std::uint32_t> mtu_bytes;
  std::optional<double> loss;  // probabilities per packet, 0..1
  std::optional<double> corrupt;
  std::optional<double> duplicate;
  std::optional<double> reorder;
  std::optional<double> mark;
  std::optional<double> death;
  std::optional<double> rate_gbps;                // rate of the link, outwards
  std::optional<std::string> congestion_control;  // dcqcn or none
  std::optional<std::uint64_t> seed;              // rank r gets seed + r
  std::optional<std::string> pcap;                // rank 0 writes here, rank R to NAME.rankR.EXTENSION
  std::optional<std::uint64_t> device_memory_bytes;

  friend bool operator==(const SofthcaOptions&, const SofthcaOptions&) = default;
};

// Limits of the software HCA's library.
inline constexpr std::uint32_t kMaxHcas = 16;  // in one process
inline constexpr std::uint64_t kMaxDeviceMemoryBytes = 1 << 20;

struct LaunchOptions {
  std::vector<std::string> command;  // a program, searched in PATH, and its arguments
  std::uint32_t ranks = 1;
  std::uint64_t timeout_ns = 0;  // 0: none; otherwise all ranks are ended after it
  std::uint64_t follow_ns =
      10'000'000'000;                      // time for other ranks to end by themselves after one rank failed
  std::uint64_t grace_ns = 2'000'000'000;  // time from SIGTERM to SIGKILL
  bool label = false;                      // each line that a rank prints begins with the rank
  bool ranks_explain = false;              // a rank itself reports why it ends with another status than 0
  SofthcaOptions softhca;
  bool pins = false;      // each rank keeps to its share of the processors, which are at least as many
  bool hardware = false;  // on this machine's own HCAs: nothing is preloaded, and ranks are placed
};

inline constexpr int kExitTimeout = 124;  // the status of timeout(1)

// Variable with the path of libgdx_softhca.so, if that is not beside the executable.
inline constexpr char kSofthcaLibraryVariable[] = "GDX_SOFTHCA_LIBRARY";

// Validates the options. Errors: kInvalidArgument naming the option.
[[nodiscard]] Result<void> check_launch_options(const LaunchOptions& options);

// Returns the file of rank `rank`'s capture.
[[nodiscard]] std::string pcap_path(const std::string& path, std::uint32_t rank);

// Returns the variables that rank `index` of this launch needs beyond this process's own: "NAME=VALUE". On
// hardware they are its place (place_of_rank). A single rank that another launcher has started is that one's.
// Errors: kNotFound when libgdx_softhca.so is at none of its possible places.
[[nodiscard]] Result<std::vector<std::string>> launch_environment(const LaunchOptions& options,
                                                                  std::uint32_t index);

// Returns whether the program that exec would find is an ELF file without a dynamic linker.
[[nodiscard]] bool is_static_program(const std::string& program);

// Runs the command and waits. SIGINT, SIGTERM and SIGHUP end the ranks first.
// Returns the exit status for the shell. It is 0 when every rank returned 0, and kExitTimeout after
// timeout_ns. Otherwise it is that of the first rank to fail (128 + signal when killed). Lines on stderr name
// the cause, the ranks that are ended, and those killed because SIGTERM did not suffice. Errors:
// kInvalidArgument, kNotFound (no such program, no software HCA), kSystem. Threads: once at a time; it takes
// the process's signals while it runs.
[[nodiscard]] Result<int> run_ranks(const LaunchOptions& options);

// Replaces this process by the command; returns only if it cannot.
[[nodiscard]] Error run_in_place(const LaunchOptions& options);

}  // namespace gdx
