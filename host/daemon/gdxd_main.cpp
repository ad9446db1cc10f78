// gdxd: owns this machine's HCAs and shows them to programs (host/daemon/README.md).
#include <fmt/format.h>
#include <grp.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "base/command_line.h"
#include "base/log.h"
#include "base/output.h"
#include "host/cli/launcher.h"
#include "host/daemon/server.h"
#include "host/ipc/daemon.h"

namespace gdx::daemon {
namespace {

constexpr char kProgram[] = "gdxd";
constexpr unsigned kEndPatienceS = 10;
// Set for the second start, under the software HCA.
constexpr char kOnSoftwareVariable[] = "GDXD_ON_SOFTWARE_HCA";

struct Options {
  ServerOptions server;
  std::string mode = "0600";
  std::string group;
  bool hardware = false;
};

std::atomic<Server*> running{nullptr};

void on_signal(int) {
  if (Server* const server = running.load()) server->stop();
}

int report(const Error& error) {
  print_error("{}: {}\n", kProgram, error.message);
  return error.status == Status::kInvalidArgument ? command_line::kExitUsage : EXIT_FAILURE;
}

Result<void> read_rights(Options& options) {
  char* end = nullptr;
  const auto mode = std::strtoul(options.mode.c_str(), &end, 8);
  if (options.mode.empty() || *end != 0 || mode > 0777) {
    return fail(Status::kInvalidArgument,
                fmt::format("--mode: '{}' is no mode of a file: use an octal number as 0660", options.mode));
  }
  options.server.mode = static_cast<std::uint32_t>(mode);
  if (options.group.empty()) return {};
  const group* const found = getgrnam(options.group.c_str());
  if (found == nullptr) {
    return fail(
        Status::kInvalidArgument,
        fmt::format("--group: this machine has no group '{}': add it, or name another", options.group));
  }
  options.server.group = found->gr_gid;
  return {};
}

// Without a NIC the same program runs again with the software HCA below it.
Result<void> find_hcas(bool hardware, const std::vector<std::string>& command) {
  setenv(ipc::kDaemonVariable, "off", 1);  // gdxd is no client of another
  const auto hcas = GDX_TRY(list_hcas());
  if (!hcas.empty()) return {};
  if (hardware || std::getenv(kOnSoftwareVariable) != nullptr)
    return fail(Status::kNoDevice,
                "no RDMA HCA on this machine: leave out --hardware to use the software HCA");
  setenv(kOnSoftwareVariable, "1", 1);
  LaunchOptions launch;
  launch.command = command;
  return tl::unexpected(run_in_place(launch));
}

// Each client costs two descriptors, and each context and pool some more.
void raise_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) log::info("the limit on open files stays");
}

Result<void> serve(const ServerOptions& options) {
  raise_file_limit();
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(options.path).parent_path(), error);
  auto server = GDX_TRY(Server::listen(options));
  running.store(server.get());
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  print_error("gdxd listens at {}\n", options.path);
  auto done = server->run();
  signal(SIGINT, SIG_IGN);
  signal(SIGTERM, SIG_IGN);
  running.store(nullptr);
  // The end of a client's files may wait for the client.
  signal(SIGALRM, [](int) { _exit(EXIT_FAILURE); });
  alarm(kEndPatienceS);
  server.reset();
  alarm(0);
  return done;
}

int run(const std::vector<std::string>& command) {
  Options options;
  options.server.path = ipc::default_socket_path();
  command_line::App app("gdxd: owns this machine's RDMA HCAs, and shows them to programs and their GPUs",
                        kProgram);
  app.add_version("gdxd " GDX_VERSION);
  app.add_option("--socket", options.server.path,
                 fmt::format("Absolute path of its socket ({})", options.server.path))
      .check(command_line::not_empty("use an absolute path"));
  app.add_option("--mode", options.mode, "Rights of the socket, octal: who may connect (0600)");
  app.add_option("--group", options.group, "Group of the socket");
  app.add_option("--pools", options.server.limits.pools_per_hca,
                 "Staging pools that may divide a NIC's memory: users, and kinds of rules (1)")
      .check(command_line::whole(1, kMaxProcessesPerHca));
  app.add_flag("--hardware", options.hardware, "Never the software HCA");
  app.show_examples({"gdxd &", "GDX_DAEMON=unix:/run/gdx/gdxd.sock ./put"});
  if (const auto status = app.parse(kProgram, {command.begin() + 1, command.end()})) return *status;
  if (!options.server.path.starts_with('/'))
    return report(
        {Status::kInvalidArgument, fmt::format("--socket: '{}': use an absolute path", options.server.path)});
  auto done = read_rights(options);
  if (done) done = find_hcas(options.hardware, command);
  if (done) done = serve(options.server);
  return done ? EXIT_SUCCESS : report(done.error());
}

}  // namespace
}  // namespace gdx::daemon

int main(int argc, char** argv) {
  return gdx::run_program("gdxd", [&] { return gdx::daemon::run({argv, argv + argc}); });
}
