// A hostile client of gdxd beside a client of another group that must lose nothing.
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <optional>
#include <vector>

#include "host/memory/memory.h"
#include "host/memory/shared_file.h"
#include "host/programs/daemon/session.h"
#include "host/staging/progress.h"
#include "proto/mlx5/prm.h"
#include "tests/fuzz/daemon_attacker.h"

namespace gdx::daemon {
namespace {

constexpr std::size_t kPage = kAttackedPage;
constexpr int kMaxSteps = 64;

template <typename T>
T sure(Result<T> result) {
  fuzz::expect(result.has_value(), result ? "" : result.error().message.c_str());
  return std::move(*result);
}

// Bytes that a client can fill in the file of its context.
std::uint64_t context_bytes() {
  const Hca own = sure(Hca::open({.in_this_process = true}));
  return static_cast<std::uint64_t>(lseek(own.context()->cmd_fd, 0, SEEK_END));
}

Limits small_limits() {
  static const std::uint64_t taken_bytes = context_bytes();
  Limits limits;
  limits.pools_per_hca = 2;
  limits.group = {.max_clients = 2,
                  .max_endpoints = 4,
                  .max_regions = 4,
                  .max_registered_bytes = (4 << 20) + taken_bytes,
                  .max_pools = 2,
                  .max_slots = 1024};
  return limits;
}

class Client {
 public:
  explicit Client(const std::shared_ptr<Group>& group) : session_(group, sure(group->clients.take(1))) {}

  Answer send(std::vector<std::byte> bytes, const std::vector<int>& files) {
    bootstrap::LocalMessage message{std::move(bytes), {}};
    for (const int file : files) message.descriptors.emplace_back(fcntl(file, F_DUPFD_CLOEXEC, 0));
    return session_.answer(std::move(message));
  }
  template <typename AnswerBody, typename Request>
  std::optional<AnswerBody> call(const Request& request, const std::vector<int>& files = {}) {
    const Answer answer = send(ipc::encode(Request::kKind, request), files);
    const auto parsed = ipc::parse_message(answer.bytes);
    fuzz::expect(parsed.has_value(), "an answer is a message");
    if (parsed->status != Status::kOk) return std::nullopt;
    file_ = answer.file;
    return sure(ipc::parse_body<AnswerBody>(*parsed));
  }
  void open() {
    fuzz::expect(call<ipc::HelloAnswer>(ipc::Hello{1, 1, 0, {}}).has_value(), "a client is greeted");
    fuzz::expect(call<ipc::HcaAnswer>(ipc::OpenHca{{}, -1, 0}).has_value(), "a client opens the HCA");
  }
  [[nodiscard]] int file() const { return file_; }  // of the last answer

 private:
  Session session_;
  int file_ = -1;
};

// A loopback endpoint and a region, of a group of its own.
class Victim {
 public:
  Victim()
      : group_(std::make_shared<Group>(1, small_limits())),
        client_(group_),
        region_(sure(make_shared_file(kPage))),
        queue_(sure(QueueMemory::allocate_in_file(16, 0, 0))) {
    std::memset(region_.pages.get(), kMark, kPage);
    client_.open();
    const auto registered = client_.call<ipc::RegisterAnswer>(
        ipc::RegisterMemory{0, kPage, 0x10000, static_cast<std::uint32_t>(Access::kAll), 0},
        {region_.file.value()});
    fuzz::expect(registered.has_value(), "the victim registers");
    const auto made =
        client_.call<ipc::EndpointAnswer>(plain_endpoint(queue_.host_memory().size()), {queue_.file()});
    fuzz::expect(made.has_value(), "the victim makes an endpoint");
    endpoint_ = made->endpoint;
    before_ = state();
  }
  void expect_untouched() {
    for (std::size_t i = 0; i < kPage; ++i)
      fuzz::expect(region_.pages.get()[i] == std::byte{kMark}, "nobody writes another group's memory");
    fuzz::expect(state() == before_, "nobody changes another group's queue pair");
  }

 private:
  static constexpr std::uint8_t kMark = 0x5a;
  std::vector<std::uint8_t> state() {
    const auto answer = client_.call<ipc::QueryAnswer>(ipc::QueryEndpoint{endpoint_});
    fuzz::expect(answer.has_value(), "the victim's queue pair is there");
    return {std::begin(answer->output), std::end(answer->output)};
  }

  std::shared_ptr<Group> group_;
  Client client_;
  SharedFile region_;
  QueueMemory queue_;
  std::uint32_t endpoint_ = 0;
  std::vector<std::uint8_t> before_;
};

// The attacker's group, of two clients. What ends must have given everything back.
class AttackedGroup {
 public:
  AttackedGroup() : group_(std::make_shared<Group>(2, small_limits())) {
    for (auto& client : clients_) client.emplace(group_);
  }
  ~AttackedGroup() {
    for (auto& client : clients_) client.reset();
    fuzz::expect(group_->clients.used() == 0 && group_->endpoints.used() == 0 &&
                     group_->regions.used() == 0 && group_->registered_bytes.used() == 0 &&
                     group_->pools.used() == 0,
                 "a client that ends gives back all that it had");
  }
  AttackedGroup(const AttackedGroup&) = delete;
  AttackedGroup& operator=(const AttackedGroup&) = delete;
  Client& operator[](std::size_t i) { return *clients_[i]; }

 private:
  std::shared_ptr<Group> group_;
  std::array<std::optional<Client>, 2> clients_;
};

}  // namespace
}  // namespace gdx::daemon

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static gdx::daemon::Victim victim;
  gdx::fuzz::Input input(data, size);
  {
    gdx::daemon::AttackedGroup group;
    gdx::daemon::Attacker attacker(input, group[0], group[1], [] { static_cast<void>(gdx::progress()); });
    for (int step = 0; step < gdx::daemon::kMaxSteps && !input.empty(); ++step) attacker.step();
  }
  victim.expect_untouched();
  return 0;
}
