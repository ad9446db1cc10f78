#include "host/programs/cli/launcher.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/output.h"
#include "host/bootstrap/admission.h"
#include "host/bootstrap/connection.h"
#include "host/bootstrap/socket.h"
#include "host/bootstrap/world.h"
#include "host/programs/cli/labelled_output.h"
#include "host/programs/cli/process_tree.h"
#include "host/programs/cli/rank_place.h"
#include "host/programs/cli/supervisor.h"

namespace gdx {
namespace {

constexpr std::uint64_t kNsPerSecond = 1'000'000'000;
constexpr std::uint64_t kLeftoverNs = 2 * kNsPerSecond;
constexpr std::uint64_t kOutputNs = 10 * kNsPerSecond;  // for stdout to take what ended ranks printed
constexpr std::uint64_t kLatecomersNs = 100'000'000;    // between two looks for latecomers
constexpr int kExitCannotRun = 127;
constexpr std::size_t kMaxNamedRanks = 8;

struct Root {
  Descriptor socket;
  std::string name;  // "127.0.0.1:PORT"
};

// Reserves a port where only rank 0 can listen. Linux lets others have it too, for as long as this socket
// does not listen, but only processes of the same user that ask for it by SO_REUSEPORT, as listen_at() does.
// So rank 0 needs nothing from the launcher, whatever process lies between them. Source: socket(7),
// SO_REUSEPORT.
Result<Root> reserve_root() {
  Root root;
  root.socket = Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int one = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const int descriptor = root.socket.value();
  if (::setsockopt(descriptor, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one) != 0 ||
      ::bind(descriptor, generic, length) != 0 || ::getsockname(descriptor, generic, &length) != 0) {
    return fail(Status::kSystem,
                fmt::format("no loopback port for the ranks to meet: {}", std::strerror(errno)));
  }
  GDX_TRY(bootstrap::check_route(*generic));
  root.name = fmt::format("127.0.0.1:{}", ntohs(address.sin_port));
  return root;
}

// A child's argv and envp, complete before fork(): after it nothing may allocate.
class ExecArguments {
 public:
  ExecArguments(const std::vector<std::string>& command, const std::vector<std::string>& overrides)
      : command_(command), environment_(overrides) {
    for (char** present = environ; *present != nullptr; ++present) {
      const std::string_view variable(*present);
      const auto name = variable.substr(0, variable.find('=') + 1);
      const bool replaced = std::any_of(overrides.begin(), overrides.end(),
                                        [&](const std::string& given) { return given.starts_with(name); });
      if (!replaced) environment_.emplace_back(variable);
    }
    for (auto& argument : command_) argv_.push_back(argument.data());
    for (auto& variable : environment_) envp_.push_back(variable.data());
    argv_.push_back(nullptr);
    envp_.push_back(nullptr);
  }
  ExecArguments(const ExecArguments&) = delete;
  ExecArguments& operator=(const ExecArguments&) = delete;

  // Returns only on failure, with errno set. Async-signal-safe.
  void exec() const { ::execvpe(argv_[0], argv_.data(), envp_.data()); }

 private:
  std::vector<std::string> command_;
  std::vector<std::string> environment_;
  std::vector<char*> argv_;
  std::vector<char*> envp_;
};

// The dynamic linker preloads the software HCA, and a program without one runs without it.
void warn_of_static(const LaunchOptions& options) {
  const std::string& program = options.command.front();
  if (options.hardware || !is_static_program(program)) return;
  print_error(
      "gdx: {} is linked statically and sees no software HCA: link it dynamically (without -static)\n",
      program);
}

// Prints to stderr, unless that takes nothing for a second: ranks must end even then.
template <typename... T>
void tell(fmt::format_string<T...> format, T&&... values) {
  pollfd room{STDERR_FILENO, POLLOUT, 0};
  if (poll(&room, 1, 1000) != 0) print_error(format, std::forward<T>(values)...);
}

double seconds(std::uint64_t ns) { return static_cast<double>(ns) / kNsPerSecond; }

Error exec_error(const std::string& program, int error) {
  return {Status::kNotFound,
          fmt::format("cannot run {}: {}; give the path of a program, or the name of one in PATH", program,
                      std::strerror(error))};
}

// Phase of a launch. Only forward: kRunning -> kGrace -> kEnding, any of them skipped.
enum class Phase : std::uint8_t {
  kRunning,  // all well
  kGrace,    // a rank failed, or all ended: remaining processes may end by themselves and report why
  kEnding,   // SIGTERM sent
};

class Launch {
 public:
  Launch(const LaunchOptions& options, const SignalGuard& signals, const Supervision& supervision)
      : options_(options), signals_(signals), supervision_(supervision) {}
  ~Launch();
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  Result<void> start();
  int wait();

 private:
  void allow_pipes();
  Result<void> start_rank(const ExecArguments& arguments, const std::optional<cpu_set_t>& processors);
  void reap(std::uint64_t now_ns);
  void on_exit(pid_t pid, int wait_status, std::uint64_t now_ns);
  void tell_failure(pid_t pid, int wait_status) const;
  [[nodiscard]] std::string name_of(pid_t pid) const;
  [[nodiscard]] std::string running_ranks() const;
  void tell_stop(pid_t pid, int signal) const;
  void stand_in_for_rank_0(int status);
  void answer_latecomers();
  void on_deadline(std::uint64_t now_ns);
  void allow_leftovers(std::uint64_t now_ns);
  void end(int status, const std::string& why, std::uint64_t now_ns);
  void kill_unended();
  void kill_all();
  int finish_output();

  const LaunchOptions& options_;
  const SignalGuard& signals_;
  const Supervision supervision_;
  Root root_;                      // meeting place of several ranks
  bootstrap::Secret::Ptr secret_;  // secret of a job of several ranks; null with GDX_INSECURE=1
  Descriptor shared_secret_;       // file with the secret, which ranks inherit
  std::string end_of_rank_0_;      // answer to latecomers, empty while it runs
  std::deque<bootstrap::Connection>
      answered_;  // closed at the end: else what they sent would undo the answer
  std::optional<LabelledOutput> output_;
  rlimit user_descriptors_{};   // the limit that ranks get
  std::vector<pid_t> started_;  // by rank
  std::vector<pid_t> running_;
  bool any_left_ = true;  // true while a rank, or anything that ranks started, runs
  Phase phase_ = Phase::kRunning;
  int status_ = 0;                          // exit status of the first failure
  std::uint64_t timeout_at_ns_ = kNeverNs;  // the user's bound
  std::uint64_t phase_end_ns_ = kNeverNs;   // end of the present phase
};

// Reached with ranks running only when a later rank could not be started.
Launch::~Launch() {
  if (!running_.empty()) kill_all();
}

Result<void> Launch::start() {
  if (options_.ranks > 1) {
    root_ = GDX_TRY(reserve_root());
    secret_ = GDX_TRY(bootstrap::secret_to_hand_on());
    if (secret_) shared_secret_ = GDX_TRY(secret_->share());
  }
  if (options_.label) {
    output_.emplace(options_.ranks);
    allow_pipes();
  }
  for (std::uint32_t rank = 0; rank < options_.ranks; ++rank) {
    auto variables = GDX_TRY(launch_environment(options_, rank));
    if (options_.ranks > 1) {
      variables.push_back(fmt::format("{}={}", kRankVariable, rank));
      variables.push_back(fmt::format("{}={}", kWorldSizeVariable, options_.ranks));
      variables.push_back(fmt::format("{}={}", kRootVariable, root_.name));
      if (secret_)
        variables.push_back(fmt::format("{}={}", kSecretDescriptorVariable, shared_secret_.value()));
    }
    std::optional<cpu_set_t> processors;
    if (options_.pins) {
      cpu_set_t all;
      if (sched_getaffinity(0, sizeof all, &all) != 0)
        return fail(Status::kSystem,
                    fmt::format("--pin: cannot read the processors: {}; leave it out", std::strerror(errno)));
      processors = GDX_TRY(share_of_processors(all, rank, options_.ranks));
    }
    if (auto started = start_rank(ExecArguments(options_.command, variables), processors); !started)
      return started;
  }
  if (options_.timeout_ns != 0) timeout_at_ns_ = monotonic_ns() + options_.timeout_ns;
  return output_ ? output_->start() : Result<void>{};
}

// Raises the limit of descriptors, because the pipes of labelled ranks stay open here.
void Launch::allow_pipes() {
  getrlimit(RLIMIT_NOFILE, &user_descriptors_);
  rlimit raised = user_descriptors_;
  raised.rlim_cur = raised.rlim_max;
  setrlimit(RLIMIT_NOFILE, &raised);
}

Result<void> Launch::start_rank(const ExecArguments& arguments, const std::optional<cpu_set_t>& processors) {
  std::array<Descriptor, 2> printed;  // its stdout and stderr, where they are labelled
  if (output_) {
    printed = GDX_TRY(output_->add_rank());
  }
  // The child writes errno here if it cannot exec, and -errno if it cannot be pinned; exec closes it.
  auto [reader, writer] = GDX_TRY(make_pipe());
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0)
    return fail(Status::kSystem,
                fmt::format("cannot start a process: {}; raise ulimit -u", std::strerror(errno)));
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(kExitCannotRun);
    if (supervision_.group != 0) setpgid(0, supervision_.group);
    if (shared_secret_) fcntl(shared_secret_.value(), F_SETFD, 0);
    if (output_) {
      dup2(printed[0].value(), STDOUT_FILENO);
      dup2(printed[1].value(), STDERR_FILENO);
      setrlimit(RLIMIT_NOFILE, &user_descriptors_);
    }
    pthread_sigmask(SIG_SETMASK, &signals_.previous(), nullptr);
    const bool pinned = !processors || sched_setaffinity(0, sizeof *processors, &*processors) == 0;
    if (pinned) arguments.exec();
    const int error = pinned ? errno : -errno;
    [[maybe_unused]] const ssize_t written = write(writer.value(), &error, sizeof error);
    _exit(kExitCannotRun);
  }
  started_.push_back(pid);
  running_.push_back(pid);
  writer.close();
  int error = 0;
  ssize_t got = 0;
  do {
    got = read(reader.value(), &error, sizeof error);
  } while (got < 0 && errno == EINTR);
  if (got == static_cast<ssize_t>(sizeof error) && error < 0) {
    return fail(Status::kSystem, fmt::format("--pin: a rank cannot keep to its processors: {}; leave it out",
                                             std::strerror(-error)));
  }
  if (got == static_cast<ssize_t>(sizeof error)) {
    return tl::unexpected(exec_error(options_.command.front(), error));
  }
  return {};
}

int Launch::wait() {
  for (reap(monotonic_ns()); any_left_; reap(monotonic_ns())) {
    const std::uint64_t bound_ns = phase_ < Phase::kEnding ? timeout_at_ns_ : kNeverNs;
    const std::uint64_t look_ns = end_of_rank_0_.empty() ? kNeverNs : monotonic_ns() + kLatecomersNs;
    const int signal = signals_.wait(std::min({bound_ns, phase_end_ns_, look_ns}));
    const std::uint64_t now_ns = monotonic_ns();
    answer_latecomers();
    // Ends the ranks: no process waits for them any more, and their resources are needed.
    if (getppid() != supervision_.launcher) {
      kill_all();
      return kSignalBase + SIGKILL;
    }
    if (signal != 0 && signal != SIGCHLD) end(kSignalBase + signal, strsignal(signal), now_ns);
    reap(now_ns);
    allow_leftovers(now_ns);
    on_deadline(now_ns);
  }
  return output_ ? finish_output() : status_;
}

// Takes note of all children that have ended. Orphans of the ranks are children of this process, too.
void Launch::reap(std::uint64_t now_ns) {
  int wait_status = 0;
  pid_t pid = 0;
  while ((pid = waitpid(-1, &wait_status, WNOHANG | WUNTRACED)) > 0) {
    if (WIFSTOPPED(wait_status)) {
      tell_stop(pid, WSTOPSIG(wait_status));
    } else if (std::erase(running_, pid) != 0) {
      on_exit(pid, wait_status, now_ns);
    }
  }
  any_left_ = pid == 0;
}

// Lets leftover processes of the ranks finish, as the reader of a pipe does, but not stay.
void Launch::allow_leftovers(std::uint64_t now_ns) {
  if (!running_.empty() || phase_ == Phase::kEnding) return;
  phase_ = Phase::kGrace;
  phase_end_ns_ = std::min(phase_end_ns_, now_ns + kLeftoverNs);
}

void Launch::on_exit(pid_t pid, int wait_status, std::uint64_t now_ns) {
  const int status =
      WIFSIGNALED(wait_status) ? kSignalBase + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
  if (pid == started_.front() && !running_.empty()) stand_in_for_rank_0(status);
  if (status == 0 || phase_ != Phase::kRunning) return;
  tell_failure(pid, wait_status);
  status_ = status;
  phase_ = Phase::kGrace;
  phase_end_ns_ = now_ns + options_.follow_ns;
}

// Listens in rank 0's place, because other ranks would try its port until their timeout.
// Shares the port with no other listener, because a process that rank 0 has left may listen there in its
// place.
void Launch::stand_in_for_rank_0(int status) {
  const int on = 1;
  const int off = 0;
  ::setsockopt(root_.socket.value(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  ::setsockopt(root_.socket.value(), SOL_SOCKET, SO_REUSEPORT, &off, sizeof off);
  if (::listen(root_.socket.value(), bootstrap::kMaxRanks) != 0) return;
  end_of_rank_0_ = fmt::format(
      "its process ended with status {} before this rank came: let every rank run the same program", status);
}

void Launch::answer_latecomers() {
  while (!end_of_rank_0_.empty()) {
    auto socket = bootstrap::accept_one(root_.socket);
    if (!socket || !*socket) break;
    auto latecomer = bootstrap::Connection::answer(std::move(*socket), secret_, {});
    if (!latecomer) continue;
    latecomer->queue(bootstrap::encode_failure({Status::kPeerGone, 0, end_of_rank_0_}));
    answered_.push_back(std::move(*latecomer));
    if (answered_.size() > bootstrap::kMaxRanks) answered_.pop_front();
  }
  // Sends the rest of each answer. With a secret it cannot be sent at once, because the handshake comes
  // first.
  for (bootstrap::Connection& latecomer : answered_) {
    if (!latecomer.has_unsent()) continue;
    static_cast<void>(latecomer.flush());
    if (!latecomer.has_unsent()) latecomer.finish();
  }
}

// Names a rank that others will wait for in vain. The terminal's own stop reaches the whole job, this process
// too, and its user knows of it.
void Launch::tell_stop(pid_t pid, int signal) const {
  if (signal == SIGTSTP || std::ranges::find(running_, pid) == running_.end()) return;
  tell("gdx: {} of {} stands still: {}; continue it with kill -CONT {}\n", name_of(pid),
       options_.command.front(), strsignal(signal), pid);
}

std::string Launch::name_of(pid_t pid) const {
  return fmt::format("rank {} (pid {})", std::ranges::find(started_, pid) - started_.begin(), pid);
}

std::string Launch::running_ranks() const {
  const std::size_t named = std::min(running_.size(), kMaxNamedRanks);
  std::string text;
  for (std::size_t i = 0; i < named; ++i) text += (i == 0 ? "" : ", ") + name_of(running_[i]);
  if (named < running_.size()) text += fmt::format(" and {} more", running_.size() - named);
  return text;
}

// Reports the failure of the first rank to fail, because the others follow from it.
void Launch::tell_failure(pid_t pid, int wait_status) const {
  const bool killed = WIFSIGNALED(wait_status);
  if (!killed && (options_.ranks == 1 || options_.ranks_explain)) return;
  const std::string how = killed ? fmt::format("was killed: {}", strsignal(WTERMSIG(wait_status)))
                                 : fmt::format("ended with status {}", WEXITSTATUS(wait_status));
  const std::size_t others = running_.size();
  const std::string next = others == 0
                               ? ""
                               : fmt::format("; {} other rank{} {} s to end", others,
                                             others == 1 ? " has" : "s have", seconds(options_.follow_ns));
  tell("gdx: {} of {} {}{}\n", name_of(pid), options_.command.front(), how, next);
}

void Launch::on_deadline(std::uint64_t now_ns) {
  if (now_ns >= timeout_at_ns_ && phase_ < Phase::kEnding) {
    const char* const remedy = phase_ == Phase::kRunning ? " (allow it more time)" : "";
    return end(kExitTimeout,
               fmt::format("{} still ran after {} s{}", options_.command.front(),
                           seconds(options_.timeout_ns), remedy),
               now_ns);
  }
  if (!any_left_ || now_ns < phase_end_ns_) return;
  if (phase_ == Phase::kEnding) return kill_unended();
  if (status_ == 0) {
    tell("gdx: {} processes that {} had started still ran after it and were ended\n", descendants().size(),
         options_.command.front());
  }
  end(status_, fmt::format("{} s have passed since that failure", seconds(options_.follow_ns)), now_ns);
}

void Launch::end(int status, const std::string& why, std::uint64_t now_ns) {
  if (phase_ >= Phase::kEnding || !any_left_) return;
  if (phase_ == Phase::kRunning) status_ = status;
  // Ranks that /proc does not show, too: a mount option can hide them.
  const auto shown = signal_descendants(SIGTERM);
  for (const pid_t pid : running_) {
    if (std::ranges::find(shown, pid, &Process::pid) == shown.end()) kill(pid, SIGTERM);
  }
  phase_ = Phase::kEnding;
  phase_end_ns_ = now_ns + options_.grace_ns;
  if (!running_.empty()) tell("gdx: {}: ending {}\n", why, running_ranks());
}

void Launch::kill_unended() {
  const std::string left =
      running_.empty() ? fmt::format("{} processes of its ranks", descendants().size()) : running_ranks();
  kill_all();
  tell("gdx: killed, because SIGTERM did not end them within {} s: {}\n", seconds(options_.grace_ns), left);
}

// Waits until stdout has taken all that ranks printed. After a forced end the wait is bounded. Loss is a
// failure.
int Launch::finish_output() {
  output_->finish();
  std::uint64_t deadline_ns = phase_ == Phase::kEnding ? monotonic_ns() + kOutputNs : kNeverNs;
  while (!output_->is_finished() && monotonic_ns() < deadline_ns) {
    const int signal = signals_.wait(deadline_ns);
    if (signal == 0 || signal == SIGCHLD) continue;
    deadline_ns = std::min(deadline_ns, monotonic_ns() + kLeftoverNs);
    if (status_ == 0) status_ = kSignalBase + signal;
  }
  const bool whole = output_->is_finished();
  const int lost = output_->lost_errno();
  if (whole && lost == 0) return status_;
  tell("gdx: what ranks printed was lost: {}; give it another place than this stdout\n",
       whole ? std::strerror(lost) : "stdout takes nothing");
  if (status_ != 0) return status_;
  return lost == EPIPE ? kSignalBase + SIGPIPE : 1;
}

void Launch::kill_all() {
  for (const pid_t pid : running_) kill(pid, SIGKILL);
  const std::size_t left = kill_descendants(monotonic_ns() + kKillBoundNs);
  if (left != 0) {
    tell("gdx: {} processes of {} could not be ended: end them as the user that they run as\n", left,
         options_.command.front());
  }
  for (const pid_t pid : running_) waitpid(pid, nullptr, WNOHANG);
  running_.clear();
  any_left_ = false;
}

}  // namespace

Result<int> run_ranks(const LaunchOptions& options) {
  GDX_TRY(check_launch_options(options));
  warn_of_static(options);
  const SignalGuard signals;
  return supervise(options.command.front(), signals, [&](const Supervision& supervision) -> Result<int> {
    Launch running(options, signals, supervision);
    GDX_TRY(running.start());
    return running.wait();
  });
}

Error run_in_place(const LaunchOptions& options) {
  if (auto checked = check_launch_options(options); !checked) return checked.error();
  const auto variables = launch_environment(options, 0);
  if (!variables) return variables.error();
  warn_of_static(options);
  ExecArguments(options.command, *variables).exec();
  return exec_error(options.command.front(), errno);
}

}  // namespace gdx
