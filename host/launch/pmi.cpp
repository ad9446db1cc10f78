// Client of PMI-1's wire: lines of "cmd=NAME key=value ...". hydra (MPICH, Intel MPI) and srun --mpi=pmi2
// answer it. Source: MPICH, doc/wiki "PMI-1 wire protocol"; Slurm, src/plugins/mpi/pmi2/pmi1.c.
#include <dlfcn.h>
#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/parse_number.h"
#include "host/launch/meeting.h"

namespace gdx::launch {
namespace {

constexpr std::uint64_t kNsPerMs = 1'000'000;
constexpr std::uint64_t kFarewellNs = 2'000 * kNsPerMs;
constexpr std::uint64_t kMaxWaitMs = 60'000;
constexpr std::size_t kMaxLineBytes = 4096;

// Returns the value of `key` in a line; nullopt without one.
std::optional<std::string> value_of(std::string_view line, std::string_view key) {
  const std::string wanted = fmt::format(" {}=", key);
  const std::string padded = fmt::format(" {}", line);
  const std::size_t at = padded.find(wanted);
  if (at == std::string::npos) return std::nullopt;
  const std::size_t begin = at + wanted.size();
  return padded.substr(begin, padded.find(' ', begin) - begin);
}

// Waits for events of a socket; false once the deadline has passed.
bool wait_for(int socket, short events, std::uint64_t deadline_ns) {
  for (;;) {
    const std::uint64_t now_ns = monotonic_ns();
    if (now_ns >= deadline_ns) return false;
    const std::uint64_t left_ms = std::min((deadline_ns - now_ns) / kNsPerMs + 1, kMaxWaitMs);
    pollfd ready{socket, events, 0};
    if (::poll(&ready, 1, static_cast<int>(left_ms)) > 0) return true;
  }
}

class Pmi final : public Meeting {
 public:
  Pmi(const Launcher& launcher, Descriptor socket)
      : name_(launcher.name), socket_(std::move(socket)), owner_(getpid()) {
    rank_ = launcher.rank.value_or(0);
    size_ = launcher.size.value_or(1);
    one_host_ = launcher.size && launcher.local_size == launcher.size;
  }
  ~Pmi() override;

  Result<void> introduce(bool by_port, std::uint64_t deadline_ns);
  Result<std::string> exchange(const std::string& text, std::uint64_t deadline_ns) override;

 private:
  Result<void> send(const std::string& line, std::uint64_t deadline_ns);
  Result<std::string> receive(std::uint64_t deadline_ns);
  // Sends a line and returns the answer, whose name is `answer`. Errors: kSystem where its rc is not 0.
  Result<std::string> ask(const std::string& line, std::string_view answer, std::uint64_t deadline_ns);
  Result<void> take_place(std::uint64_t deadline_ns);

  std::string name_;
  Descriptor socket_;
  pid_t owner_;
  std::string received_;  // bytes after the last whole line
  std::string space_;
  std::uint32_t worlds_ = 0;
};

// Ends the connection in words, because hydra takes one that just closes for a failed rank and ends the job.
Pmi::~Pmi() {
  if (owner_ == getpid())
    static_cast<void>(ask("cmd=finalize", "finalize_ack", monotonic_ns() + kFarewellNs));
}

Result<void> Pmi::send(const std::string& line, std::uint64_t deadline_ns) {
  const std::string whole = line + "\n";
  for (std::size_t sent = 0; sent < whole.size();) {
    const ssize_t n =
        ::send(socket_.value(), whole.data() + sent, whole.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      sent += static_cast<std::size_t>(n);
    } else if (errno != EAGAIN && errno != EINTR) {
      return fail(Status::kPeerGone,
                  fmt::format("the connection to {} ended: {}", name_, std::strerror(errno)));
    } else if (!wait_for(socket_.value(), POLLOUT, deadline_ns)) {
      return fail(Status::kTimeout, fmt::format("{} takes no data: see whether it is stopped", name_));
    }
  }
  return {};
}

Result<std::string> Pmi::receive(std::uint64_t deadline_ns) {
  for (;;) {
    if (const std::size_t end = received_.find('\n'); end != std::string::npos) {
      std::string line = received_.substr(0, end);
      received_.erase(0, end + 1);
      return line;
    }
    if (received_.size() > kMaxLineBytes)
      return fail(Status::kVersionMismatch, fmt::format("{} sends what is no line of PMI-1", name_));
    std::array<char, 1024> bytes{};
    const ssize_t n = ::recv(socket_.value(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (n > 0) {
      received_.append(bytes.data(), static_cast<std::size_t>(n));
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
      return fail(Status::kPeerGone, fmt::format("{} ended the connection: see which rank it names", name_));
    } else if (!wait_for(socket_.value(), POLLIN, deadline_ns)) {
      return fail(Status::kTimeout, fmt::format("{} does not answer: see whether it is stopped", name_));
    }
  }
}

Result<std::string> Pmi::ask(const std::string& line, std::string_view answer, std::uint64_t deadline_ns) {
  GDX_TRY(send(line, deadline_ns));
  auto answered = GDX_TRY(receive(deadline_ns));
  if (value_of(answered, "cmd") == answer && value_of(answered, "rc").value_or("0") == "0") return answered;
  return fail(Status::kSystem, fmt::format("{} answers '{}' to '{}'", name_, answered, line));
}

// Reads rank and size, which a server at a port tells after the introduction.
Result<void> Pmi::take_place(std::uint64_t deadline_ns) {
  std::optional<std::uint64_t> rank;
  std::optional<std::uint64_t> size;
  while (!rank || !size) {
    const auto line = GDX_TRY(receive(deadline_ns));
    const auto number = [&](const char* key) {
      const auto text = value_of(line, key);
      return text ? parse_unsigned(*text) : std::nullopt;
    };
    if (value_of(line, "cmd") != "set")
      return fail(Status::kVersionMismatch,
                  fmt::format("{} sends '{}', where rank and size are due", name_, line));
    if (const auto told = number("rank")) rank = told;
    if (const auto told = number("size")) size = told;
  }
  rank_ = static_cast<std::uint32_t>(*rank);
  size_ = static_cast<std::uint32_t>(*size);
  // A line that has no part in this, and that hydra sends last.
  GDX_TRY(receive(deadline_ns));
  return {};
}

Result<void> Pmi::introduce(bool by_port, std::uint64_t deadline_ns) {
  if (by_port) {
    GDX_TRY(ask(fmt::format("cmd=initack pmiid={}", rank_), "initack", deadline_ns));
    GDX_TRY(take_place(deadline_ns));
  }
  GDX_TRY(ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init", deadline_ns));
  const auto line = GDX_TRY(ask("cmd=get_my_kvsname", "my_kvsname", deadline_ns));
  space_ = value_of(line, "kvsname").value_or("");
  return {};
}

Result<std::string> Pmi::exchange(const std::string& text, std::uint64_t deadline_ns) {
  if (text.size() > kMaxTextBytes)
    return fail(Status::kInvalidLength, fmt::format("{} bytes are too many for {}", text.size(), name_));
  const std::string key = fmt::format("gdx-root-{}", worlds_++);
  if (rank_ == 0)
    GDX_TRY(
        ask(fmt::format("cmd=put kvsname={} key={} value={}", space_, key, text), "put_result", deadline_ns));
  auto met = ask("cmd=barrier_in", "barrier_out", deadline_ns);
  if (!met && met.error().status == Status::kTimeout)
    return fail(
        Status::kTimeout,
        fmt::format("{} of {} waited at the barrier of {}, and a rank has not come, which PMI does not name: "
                    "start the same program on all, or raise the timeout (GDX_BOOTSTRAP_TIMEOUT_S)",
                    place_text(rank_, std::nullopt), size_, name_));
  GDX_TRY(met);
  const auto line =
      GDX_TRY(ask(fmt::format("cmd=get kvsname={} key={}", space_, key), "get_result", deadline_ns));
  return value_of(line, "value").value_or("");
}

// Connects to HOST:PORT of a launcher, mostly on this host. Blocks for the bound at most.
Result<Descriptor> connect_to_port(const std::string& place, std::uint64_t deadline_ns) {
  const std::size_t colon = place.rfind(':');
  const std::string port = colon == std::string::npos ? "" : place.substr(colon + 1);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error =
      port.empty() ? EAI_NONAME : getaddrinfo(place.substr(0, colon).c_str(), port.c_str(), &hints, &found);
  if (error != 0)
    return fail(Status::kInvalidArgument,
                fmt::format("{} = '{}': {}", kPmiPortVariable, place, gai_strerror(error)));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> list(found, &freeaddrinfo);
  int reason = ENETUNREACH;
  for (const addrinfo* one = list.get(); one != nullptr; one = one->ai_next) {
    Descriptor socket = Descriptor::keep(::socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const std::uint64_t now_ns = monotonic_ns();
    const std::uint64_t left_ms = deadline_ns > now_ns ? (deadline_ns - now_ns) / kNsPerMs : 0;
    const timeval bound{.tv_sec = static_cast<time_t>(left_ms / 1000 + 1), .tv_usec = 0};
    setsockopt(socket.value(), SOL_SOCKET, SO_SNDTIMEO, &bound, sizeof bound);
    if (socket && ::connect(socket.value(), one->ai_addr, one->ai_addrlen) == 0) return socket;
    reason = errno;
  }
  return fail(Status::kPeerGone,
              fmt::format("no launcher at {} = {}: {}", kPmiPortVariable, place, std::strerror(reason)));
}

// Returns a descriptor of its own, because the number is the launcher's and other code may close it.
Result<Descriptor> inherited(const char* number) {
  const auto value = parse_unsigned(number);
  Descriptor own;
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (value && *value <= 1U << 20U &&
      ::getsockname(static_cast<int>(*value), reinterpret_cast<sockaddr*>(&address), &length) == 0)
    own = Descriptor::keep(::dup(static_cast<int>(*value)));
  if (own) return own;
  return fail(
      Status::kInvalidArgument,
      fmt::format("{} = '{}' is no open socket: a program between the launcher and this one closed it; start "
                  "this one by the launcher itself",
                  kPmiDescriptorVariable, number));
}

}  // namespace

Result<std::shared_ptr<Meeting>> open_pmi(const Launcher& launcher, std::uint64_t deadline_ns) {
  if (dlsym(RTLD_DEFAULT, "MPI_Init") != nullptr)
    return fail(
        Status::kUnsupported,
        fmt::format(
            "this program uses MPI, to which the connection to {} belongs: give gdx its MPI_Allgather, "
            "by WorldOptions::by_allgather (examples/mpi_allgather)",
            launcher.name));
  const char* const number = std::getenv(kPmiDescriptorVariable);
  const char* const port = std::getenv(kPmiPortVariable);
  const bool by_port = number == nullptr;
  auto socket =
      GDX_TRY(by_port ? connect_to_port(port == nullptr ? "" : port, deadline_ns) : inherited(number));
  auto pmi = std::make_shared<Pmi>(launcher, std::move(socket));
  GDX_TRY(pmi->introduce(by_port, deadline_ns));
  return std::shared_ptr<Meeting>(std::move(pmi));
}

}  // namespace gdx::launch
