// gdx stat, top, trace, kick and drain: gdxd as its operator sees it.
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/command_line.h"
#include "base/output.h"
#include "host/ipc/daemon.h"
#include "host/programs/cli/commands.h"
#include "host/programs/cli/stat_text.h"
#include "host/programs/cli/trace_text.h"

namespace gdx {
namespace {

using Json = nlohmann::ordered_json;

struct Chosen {
  std::string socket;
  bool as_json = false;
  double interval_s = 1;
  std::uint64_t count = 0;  // pictures to print; 0: until a signal
  std::uint32_t process = 0;
  std::uint32_t qpn = 0;
  std::string output;
};

// Connects to --socket, or to where $GDX_DAEMON says.
Result<std::shared_ptr<ipc::Daemon>> connect(const Chosen& chosen) {
  if (!chosen.socket.empty()) return ipc::Daemon::connect(chosen.socket);
  const auto places = GDX_TRY(ipc::daemon_places_from_environment());
  if (!places.paths.empty()) return ipc::Daemon::connect(places.paths.front());
  return fail(Status::kNotFound,
              fmt::format("no gdxd at {}: start it, or give its --socket", ipc::default_socket_path()));
}

Result<std::string> read_statistics(const Chosen& chosen) {
  const auto daemon = GDX_TRY(connect(chosen));
  const auto reply = GDX_TRY(daemon->call<ipc::StatisticsAnswer>(ipc::ReadStatistics{}));
  return ipc::read_text(reply);
}

Result<void> stat(const Chosen& chosen) {
  const std::string text = GDX_TRY(read_statistics(chosen));
  write_output(chosen.as_json ? text : stat_text(Json::parse(text), Json::object(), 0));
  return {};
}

Result<void> top(const Chosen& chosen) {
  Json before = Json::object();
  std::uint64_t before_ns = 0;
  for (std::uint64_t shown = 0; chosen.count == 0 || shown < chosen.count; ++shown) {
    if (shown != 0) ::poll(nullptr, 0, static_cast<int>(chosen.interval_s * 1e3));
    Json now = Json::parse(GDX_TRY(read_statistics(chosen)));
    const std::uint64_t now_ns = monotonic_ns();
    const double seconds = shown == 0 ? 0 : static_cast<double>(now_ns - before_ns) / 1e9;
    // On a terminal each picture takes the place of the one before.
    write_output((isatty(STDOUT_FILENO) != 0 ? "\x1b[H\x1b[2J" : "") + stat_text(now, before, seconds));
    flush_output();
    before = std::move(now);
    before_ns = now_ns;
  }
  return {};
}

Result<void> trace(const Chosen& chosen) {
  const auto daemon = GDX_TRY(connect(chosen));
  const auto reply =
      GDX_TRY(daemon->call<ipc::StatisticsAnswer>(ipc::ReadFlight{0, chosen.process, chosen.qpn}));
  const std::string text = GDX_TRY(ipc::read_text(reply));
  const Trace trace = GDX_TRY(parse_trace(text));
  if (trace.endpoints.empty())
    return fail(Status::kNotFound, "gdxd has no such endpoint now: gdx stat shows those that it has");
  write_output((chosen.output.empty() ? trace_text(trace) : "") + left_out_text(trace));
  if (chosen.output.empty()) return {};
  const std::string events = trace_events(trace);
  std::ofstream file(chosen.output);
  file << events;
  if (file.flush()) return {};
  return fail(Status::kSystem, fmt::format("cannot write {}: {}", chosen.output, std::strerror(errno)));
}

template <typename Request>
Result<void> tell(const Chosen& chosen, const Request& request) {
  const auto daemon = GDX_TRY(connect(chosen));
  GDX_TRY(daemon->call<ipc::Done>(request));
  return {};
}

template <typename Act>
void add(command_line::Command command, const std::shared_ptr<Chosen>& chosen, int& exit_status, Act act) {
  command.add_option("--socket", chosen->socket, "Path of gdxd's socket (where GDX_DAEMON says)");
  command.when_chosen([chosen, &exit_status, act] {
    const Result<void> done = act(*chosen);
    const int status = done ? 0 : report(done.error());
    // 127 is the shell's status of a missing program.
    exit_status = status == kExitNotFound ? kExitFailure : status;
  });
}

}  // namespace

void add_daemon_commands(command_line::Command app, int& exit_status) {
  const auto chosen = std::make_shared<Chosen>();
  const auto stat_command = app.add_command("stat", "What gdxd does, and for whom");
  stat_command.add_flag("--json", chosen->as_json, "One JSON document instead of the table");
  add(stat_command, chosen, exit_status, stat);
  const auto top_command = app.add_command("top", "As stat, again and again, with rates");
  top_command.add_option("--interval-s", chosen->interval_s, "Seconds between two pictures (1)")
      .check(command_line::real(0.05, 3600));
  top_command.add_option("--count", chosen->count, "Pictures to show (no end)")
      .check(command_line::whole(1, 1'000'000'000));
  add(top_command, chosen, exit_status, top);
  const auto trace_command = app.add_command(
      "trace", "The newest events of endpoints: doorbells, WQEs, resends, completions, credits");
  trace_command.add_option("--pid", chosen->process, "Only of this process, as stat shows it (all)");
  trace_command.add_option("--qp", chosen->qpn, "Only of this queue pair, as stat shows it (all)");
  trace_command.add_option("--output", chosen->output,
                           "JSON file to write instead, which ui.perfetto.dev opens");
  add(trace_command, chosen, exit_status, trace);
  const auto kick_command = app.add_command("kick", "End the connection of one of gdxd's clients");
  kick_command.add_option("pid", chosen->process, "Its process id, as stat shows it");
  add(kick_command, chosen, exit_status, [](const Chosen& it) -> Result<void> {
    if (it.process == 0)
      return fail(Status::kInvalidArgument, "gdx kick: give a process id, as gdx stat shows it");
    return tell(it, ipc::Kick{it.process});
  });
  const auto drain_command =
      app.add_command("drain", "Let gdxd take no more clients, and end with its last one");
  add(drain_command, chosen, exit_status, [](const Chosen& it) { return tell(it, ipc::Drain{}); });
}

}  // namespace gdx
