// gdxd: owns this machine's HCAs and shows them to programs (host/programs/daemon/README.md).
#include <fmt/format.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/command_line.h"
#include "base/log.h"
#include "base/output.h"
#include "host/ipc/daemon.h"
#include "host/programs/cli/launcher.h"
#include "host/programs/daemon/configuration.h"
#include "host/programs/daemon/metrics.h"
#include "host/programs/daemon/server.h"
#include "host/programs/daemon/service.h"

namespace gdx::daemon {
namespace {

constexpr char kProgram[] = "gdxd";
constexpr unsigned kEndPatienceS = 10;

std::atomic<Server*> running{nullptr};

void on_signal(int) {
  if (Server* const server = running.load()) server->stop();
}

int report(const Error& error) {
  print_error("{}: {}\n", kProgram, error.message);
  return error.status == Status::kInvalidArgument ? command_line::kExitUsage : EXIT_FAILURE;
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

// Beyond it, the kernel refuses a client that is within its quotas.
void warn_of_mappings(const Limits& limits) {
  std::uint64_t permitted = 0;
  std::ifstream("/proc/sys/vm/max_map_count") >> permitted;
  const GroupLimits& group = limits.group;
  const std::uint64_t most =
      limits.max_groups * (2 * std::uint64_t{group.max_endpoints} + group.max_regions + group.max_pools) +
      2 * std::uint64_t{limits.max_clients};
  if (permitted == 0 || most <= permitted) return;
  log::warn("gdxd's quotas permit {} mappings, and vm.max_map_count is {}: raise it by sysctl, or lower them",
            most, permitted);
}

// Listens where a service manager does, which changes the path, or at the path of the options.
Result<std::unique_ptr<Server>> make_server(ServerOptions& options) {
  if (auto passed = GDX_TRY(take_passed_listener())) {
    options.path = passed->path;
    return Server::adopt(std::move(passed->socket), options);
  }
  std::error_code error;
  if (options.path == ipc::default_socket_path())
    std::filesystem::create_directories(std::filesystem::path(options.path).parent_path(), error);
  return Server::listen(options);
}

Result<std::unique_ptr<Metrics>> serve_metrics(const std::string& text, Server& server) {
  const auto address = parse_metrics_address(text);
  if (!address) return nullptr;
  if (!address->loopback)
    log::warn("gdxd's metrics at {} show every user's programs to whoever reaches that address", text);
  return Metrics::serve(
      *address, [&server] { return server.statistics(0); },
      [&server](uid_t user) { return server.sees_all(user); });
}

Result<void> serve(const Configuration& configuration) {
  raise_file_limit();
  ServerOptions options = configuration.server();
  warn_of_mappings(options.limits);
  auto server = GDX_TRY(make_server(options));
  auto metrics = GDX_TRY(serve_metrics(configuration.metrics(), *server));
  running.store(server.get());
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  signal(SIGPIPE, SIG_IGN);  // a client can cause a line of the log, whose reader may have gone
  const bool software = std::getenv(kOnSoftwareVariable) != nullptr;
  print_error("gdxd listens at {}{}\n", options.path, software ? ", with a software HCA" : "");
  tell_manager("READY=1");
  auto done = server->run();
  tell_manager("STOPPING=1");
  signal(SIGINT, SIG_IGN);
  signal(SIGTERM, SIG_IGN);
  running.store(nullptr);
  // The end of a client's files may wait for the client.
  signal(SIGALRM, [](int) { _exit(EXIT_FAILURE); });
  alarm(kEndPatienceS);
  metrics.reset();
  server.reset();
  alarm(0);
  return done;
}

int run(const std::vector<std::string>& command) {
  Configuration configuration;
  bool print_configuration = false;
  command_line::App app("gdxd: owns this machine's RDMA HCAs, and shows them to programs and their GPUs",
                        kProgram);
  app.add_version("gdxd " GDX_VERSION);
  configuration.add_options(app);
  app.add_flag("--print-config", print_configuration, "Print the configuration in effect, as a file of it");
  app.show_examples({"gdxd &", "GDX_DAEMON=unix:/run/gdx/gdxd.sock ./put", "gdxd --print-config"});
  if (const auto status = app.parse(kProgram, {command.begin() + 1, command.end()})) return *status;
  auto done = configuration.read();
  if (done && print_configuration) {
    write_output(configuration.text());
    return EXIT_SUCCESS;
  }
  if (done) done = find_hcas(configuration.hardware(), command);
  if (done) done = serve(configuration);
  return done ? EXIT_SUCCESS : report(done.error());
}

}  // namespace
}  // namespace gdx::daemon

int main(int argc, char** argv) {
  return gdx::run_program("gdxd", [&] { return gdx::daemon::run({argv, argv + argc}); });
}
