// gdxd_client cycles N | hostile SEED | idle N | after_idle SECONDS: clients of the gdxd that GDX_DAEMON
// names.
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "device/endpoint.h"
#include "host/bootstrap/local_socket.h"
#include "host/gdx.h"
#include "host/ipc/daemon.h"
#include "host/queue/queue_memory.h"
#include "tests/fuzz/daemon_attacker.h"

namespace gdx {
namespace {

using program::or_exit;

constexpr std::size_t kBytes = 64 * 1024;
constexpr std::uint64_t kPatienceNs = 200'000'000'000;
constexpr std::size_t kMaxInputBytes = 2048;
constexpr int kMostHoarded = 4096;  // more than any quota of gdxd permits
constexpr int kUnreadRequests = 1000;

// A pair of endpoints of one process, and what a program does with it in its life.
class Program {
 public:
  explicit Program(std::uint32_t reserved_slots = 1)
      : hca_(or_exit(Hca::open())),
        pool_(or_exit(StagingPool::create(hca_, {.minimum_slots = reserved_slots}))),
        from_(or_exit(allocate_memory(hca_, kBytes))),
        to_(or_exit(allocate_memory(hca_, kBytes))),
        a_(or_exit(Endpoint::create(hca_, {&pool_}, {.slot_count = reserved_slots == 0 ? 0u : 4u}))),
        b_(or_exit(Endpoint::create(hca_, {}))) {
    or_exit(a_.connect(b_.address()));
    or_exit(b_.connect(a_.address()));
  }
  // Puts `bytes` of `value`, and verifies that they arrived.
  void put(std::uint64_t bytes, unsigned value, bool pushes) {
    const auto byte = static_cast<std::byte>(value);
    std::fill_n(from_.data(), bytes, byte);
    Status status = Status::kPending;
    const auto kernel = [&](const EndpointHandle& handle, RemoteMemory to, LocalMemory from) {
      device::Endpoint<Scope::kThread> endpoint(handle);
      status = pushes ? gdx_put<Mode::kPush>(endpoint, to, from, bytes)
                      : gdx_put<Mode::kPull>(endpoint, to, from, bytes);
      if (status == Status::kOk) status = gdx_flush(endpoint);
    };
    const Status ran = exec::launch({.progress = progress}, kernel, a_.handle(), to_.remote(), from_.local());
    if (ran != Status::kOk || status != Status::kOk)
      give_up(std::string("a put ended with ") + status_name(status));
    if (std::count(to_.data(), to_.data() + bytes, byte) != static_cast<std::ptrdiff_t>(bytes)) {
      give_up("a put left other bytes than were sent");
    }
  }

  [[noreturn]] static void give_up(const std::string& why) {
    std::fprintf(stderr, "gdxd_client: %s\n", why.c_str());
    std::exit(1);
  }

 private:
  Hca hca_;
  StagingPool pool_;
  Memory from_;
  Memory to_;
  Endpoint a_;
  Endpoint b_;
};

void cycles(unsigned count) {
  for (unsigned i = 0; i < count; ++i) {
    Program program;
    program.put(256, i, false);
    program.put(256, i + 1, true);
  }
}

void idle(unsigned count) {
  std::vector<std::unique_ptr<Program>> programs;
  programs.reserve(count);
  for (unsigned i = 0; i < count; ++i) programs.push_back(std::make_unique<Program>(0));
  std::puts("idle");
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
}

void after_idle(unsigned seconds) {
  Program program;
  program.put(8, 1, false);
  std::this_thread::sleep_for(std::chrono::seconds(seconds));
  const std::uint64_t start_ns = monotonic_ns();
  program.put(8, 2, false);
  std::printf("%.1f\n", static_cast<double>(monotonic_ns() - start_ns) / 1e3);
}

// A connection that gdxd may end at any time.
class Connection {
 public:
  Connection() : socket_(or_exit(bootstrap::connect_local(path()))) {}

  void open() {
    call<ipc::HelloAnswer>(ipc::Hello{1, 1, 0, "hostile"});
    call<ipc::HcaAnswer>(ipc::OpenHca{{}, -1, 0});
  }
  void send(const std::vector<std::byte>& bytes, const std::vector<int>& files) { exchange(bytes, files); }
  template <typename Answer, typename Request>
  std::optional<Answer> call(const Request& request, const std::vector<int>& files = {}) {
    if (!exchange(ipc::encode(Request::kKind, request), files)) return std::nullopt;
    const auto parsed = ipc::parse_message(received_.bytes);
    if (parsed && parsed->status == Status::kNoMemory)
      std::puts(ipc::decode_refusal(*parsed).message.c_str());
    if (!parsed || parsed->status != Status::kOk) return std::nullopt;
    const auto body = ipc::parse_body<Answer>(*parsed);
    if (!body) return std::nullopt;
    return *body;
  }
  [[nodiscard]] int file() const {
    return received_.descriptors.empty() ? -1 : received_.descriptors.front().value();
  }
  // Sends requests until the socket is full, and reads no answer.
  void never_listen() {
    const auto request = ipc::encode(ipc::Kind::kReadStatistics, ipc::ReadStatistics{});
    for (int i = 0; i < kUnreadRequests; ++i) {
      if (!bootstrap::send_local(socket_, request, {}, monotonic_ns())) return;
    }
  }

 private:
  static std::string path() {
    const char* const place = std::getenv(ipc::kDaemonVariable);
    constexpr std::string_view kPrefix = "unix:";
    if (place == nullptr || !std::string_view(place).starts_with(kPrefix))
      Program::give_up("set GDX_DAEMON=unix:PATH");
    return place + kPrefix.size();
  }
  bool exchange(const std::vector<std::byte>& bytes, const std::vector<int>& files) {
    if (bytes.empty()) return false;
    const std::uint64_t deadline_ns = monotonic_ns() + kPatienceNs;
    if (!bootstrap::send_local(socket_, bytes, files, deadline_ns)) return false;
    const auto request = ipc::parse_message(bytes);
    if (request && request->kind == ipc::Kind::kWake) return false;  // has no answer
    auto answer = bootstrap::receive_local(socket_, deadline_ns);
    if (!answer) return false;
    received_ = std::move(*answer);
    return true;
  }

  Descriptor socket_;
  bootstrap::LocalMessage received_;
};

// Asks for more of one thing until gdxd refuses it.
template <typename Answer, typename Request>
void hoard(Connection& connection, const Request& request, int file) {
  for (int i = 0; i < kMostHoarded; ++i) {
    if (!connection.call<Answer>(request, {file})) return;
  }
  Program::give_up("gdxd has no quota");
}

// Meets the quotas of clients, of bytes, of regions, and of endpoints, in this order. Large regions leave
// room for small ones.
void hoard_all() {
  constexpr int kConnections = 16;
  std::vector<std::unique_ptr<Connection>> connections;
  for (int i = 0; i < kConnections; ++i) {
    connections.push_back(std::make_unique<Connection>());
    connections.back()->open();
  }
  for (const std::size_t bytes : {std::size_t{5} << 20, std::size_t{4096}}) {
    const SharedFile file = or_exit(make_shared_file(bytes));
    const ipc::RegisterMemory region{0, bytes, 0x10000, static_cast<std::uint32_t>(Access::kAll), 0};
    hoard<ipc::RegisterAnswer>(*connections.front(), region, file.file.value());
  }
  const QueueMemory queues = or_exit(QueueMemory::allocate_in_file(16, 0, 0));
  const auto endpoint = daemon::plain_endpoint(queues.host_memory().size());
  hoard<ipc::EndpointAnswer>(*connections.front(), endpoint, queues.file());
}

// Until it is killed.
[[noreturn]] void hostile(unsigned seed) {
  std::minstd_rand random(seed);
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  std::vector<std::uint8_t> bytes(kMaxInputBytes);
  hoard_all();
  for (;;) {
    for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random());
    fuzz::Input input(bytes.data(), bytes.size());
    Connection first;
    Connection second;
    daemon::Attacker attacker(input, first, second, [] {});
    while (!input.empty()) attacker.step();
    if (random() % 4 == 0) first.never_listen();
  }
}

}  // namespace
}  // namespace gdx

int main(int argc, char** argv) {
  const std::string what = argc == 3 ? argv[1] : "";
  const std::string text = argc == 3 ? argv[2] : "";
  unsigned number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_number = read.ec == std::errc() && read.ptr == text.data() + text.size();
  if (is_number && what == "cycles") {
    gdx::cycles(number);
  } else if (is_number && what == "hostile") {
    gdx::hostile(number);
  } else if (is_number && what == "idle") {
    gdx::idle(number);
  } else if (is_number && what == "after_idle") {
    gdx::after_idle(number);
  } else {
    std::fputs("usage: gdxd_client cycles N | hostile SEED | idle N | after_idle SECONDS\n", stderr);
    return 2;
  }
  return 0;
}
