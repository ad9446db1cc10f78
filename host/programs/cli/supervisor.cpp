#include "host/programs/cli/supervisor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <vector>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/output.h"
#include "host/programs/cli/process_tree.h"

namespace gdx {
namespace {

constexpr std::size_t kReportBytes = 32 * 1024;  // less than a pipe holds, because it is read only at the end

struct ReportHeader {
  int exit_status = 0;
  Status error = Status::kOk;
};

void write_report(const Descriptor& pipe, const Result<int>& done) {
  const ReportHeader header{done.value_or(0), done ? Status::kOk : done.error().status};
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  if (!done) bytes += done.error().message.substr(0, kReportBytes - sizeof header);
  [[maybe_unused]] const ssize_t written = ::write(pipe.value(), bytes.data(), bytes.size());
}

Result<int> read_report(const Descriptor& pipe) {
  std::array<char, kReportBytes> bytes{};
  const ssize_t got = ::read(pipe.value(), bytes.data(), bytes.size());
  ReportHeader header;
  if (got < static_cast<ssize_t>(sizeof header)) {
    return fail(Status::kSystem, "the supervisor ended without a report: run it again with GDX_LOG=debug");
  }
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.error == Status::kOk) return header.exit_status;
  return fail(header.error, std::string(bytes.data() + sizeof header, bytes.data() + got));
}

// Makes this process adopt orphans during the object's lifetime.
class OrphanKeeper {
 public:
  OrphanKeeper() {
    prctl(PR_GET_CHILD_SUBREAPER, &before_);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
  }
  ~OrphanKeeper() { prctl(PR_SET_CHILD_SUBREAPER, before_); }
  OrphanKeeper(const OrphanKeeper&) = delete;
  OrphanKeeper& operator=(const OrphanKeeper&) = delete;

 private:
  int before_ = 0;
};

[[noreturn]] void run_supervisor(const Supervision& supervision, const Descriptor& report,
                                 const std::function<Result<int>(const Supervision&)>& work) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  prctl(PR_SET_NAME, "rank-supervisor");  // so that `pkill -KILL gdx` leaves it to end the ranks
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  if (getppid() != supervision.launcher) _exit(kSignalBase + SIGKILL);
  // Without a group that ranks could be given (one of another PID namespace) all stay in the present one.
  if (supervision.group != 0) setpgid(0, 0);
  const auto done = [&]() -> Result<int> {
    try {
      return work(supervision);
    } catch (const std::exception& error) {  // no memory; the frames below are the launcher's
      return fail(Status::kNoMemory,
                  fmt::format("{}; raise the limits on memory and processes (ulimit -v, -u)", error.what()));
    }
  }();
  write_report(report, done);
  _exit(0);
}

}  // namespace

Result<Pipe> make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    return fail(Status::kSystem,
                fmt::format("cannot make a pipe: {}; raise ulimit -n", std::strerror(errno)));
  return Pipe{Descriptor(ends[0]), Descriptor(ends[1])};
}

Result<int> supervise(const std::string& what, const SignalGuard& signals,
                      const std::function<Result<int>(const Supervision&)>& work) {
  const OrphanKeeper keeper;
  const auto spared = descendants();  // children that a shell had when it executed this program in its place
  auto [reader, writer] = GDX_TRY(make_pipe());
  const Supervision supervision{getpid(), getpgrp()};
  const pid_t supervisor = fork();
  if (supervisor < 0)
    return fail(Status::kSystem,
                fmt::format("cannot start a process: {}; raise ulimit -u", std::strerror(errno)));
  if (supervisor == 0) run_supervisor(supervision, writer, work);
  writer.close();
  int wait_status = 0;
  while (waitpid(supervisor, &wait_status, WNOHANG) == 0) {
    const int signal = signals.wait(kNeverNs);
    if (signal != 0 && signal != SIGCHLD) kill(supervisor, signal);
  }
  if (!WIFSIGNALED(wait_status)) return read_report(reader);
  const std::size_t left = kill_descendants(monotonic_ns() + kKillBoundNs, spared);
  print_error("gdx: the supervisor of {} was killed: {}; {}\n", what, strsignal(WTERMSIG(wait_status)),
              left == 0 ? "its processes were ended" : fmt::format("{} processes are left: end them", left));
  return kSignalBase + WTERMSIG(wait_status);
}

}  // namespace gdx
