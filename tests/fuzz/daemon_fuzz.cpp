// A client of gdxd that sends what it likes, and stores what it likes in the files that it shares, beside a
// client of another group that must lose nothing.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <optional>
#include <vector>

#include "host/daemon/session.h"
#include "host/memory/memory.h"
#include "host/memory/shared_file.h"
#include "host/staging/progress.h"
#include "proto/mlx5/prm.h"
#include "tests/fuzz/input.h"

namespace gdx::daemon {
namespace {

using fuzz::Input;

constexpr std::size_t kPage = 4096;
constexpr std::size_t kFilePages = 8;
constexpr int kMaxSteps = 64;

template <typename T>
T sure(Result<T> result) {
  fuzz::expect(result.has_value(), result ? "" : result.error().message.c_str());
  return std::move(*result);
}

Limits small_limits() {
  Limits limits;
  limits.pools_per_hca = 2;
  limits.group = {.max_clients = 2,
                  .max_endpoints = 4,
                  .max_regions = 4,
                  .max_registered_bytes = 4 << 20,
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

ipc::CreateEndpoint plain_endpoint(std::uint64_t bytes) {
  ipc::CreateEndpoint request{};
  request.queue_bytes = bytes;
  request.queue_address = 0x100000;
  request.send_queue_blocks = 16;
  request.ack_timeout = 14;
  request.retry_count = 5;
  request.rnr_retry = 7;
  request.min_rnr_timer = 12;
  request.hop_limit = 64;
  return request;
}

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

class Attacker {
 public:
  explicit Attacker(Input& input)
      : input_(input),
        group_(std::make_shared<Group>(2, small_limits())),
        good_(sure(make_shared_file(kFilePages * kPage))) {
    clients_[0].emplace(group_);
    clients_[1].emplace(group_);
    if (input.take<std::uint8_t>() % 8 != 0) {
      for (auto& client : clients_) client->open();
    }
  }
  ~Attacker() {
    for (auto& client : clients_) client.reset();
    fuzz::expect(group_->clients.used() == 0 && group_->endpoints.used() == 0 &&
                     group_->regions.used() == 0 && group_->registered_bytes.used() == 0 &&
                     group_->pools.used() == 0,
                 "a client that ends gives back all that it had");
    if (device_ != MAP_FAILED) munmap(device_, kPage);
  }

  void step() {
    Client& client = *clients_[input_.take<std::uint8_t>() % clients_.size()];
    switch (input_.take<std::uint8_t>() % 12) {
      case 0: client.send(raw_message(), files()); break;
      case 1: client.call<ipc::RegisterAnswer>(region(), files()); break;
      case 2: client.call<ipc::Done>(ipc::DeregisterMemory{number()}); break;
      case 3: open_pool(client); break;
      case 4: client.call<ipc::Done>(ipc::ClosePool{number()}); break;
      case 5: create_endpoint(client); break;
      case 6: connect(client); break;
      case 7: client.call<ipc::Done>(ipc::RetireEndpoint{number()}); break;
      case 8: client.call<ipc::Done>(ipc::DestroyEndpoint{number()}); break;
      case 9: scribble(good_.pages.get(), kFilePages * kPage); break;
      case 10:
        if (device_ != MAP_FAILED) scribble(static_cast<std::byte*>(device_), kPage);
        break;
      default: static_cast<void>(gdx::progress()); break;
    }
  }

 private:
  std::uint32_t number() { return input_.take<std::uint8_t>() % 16; }
  std::vector<int> files() {
    switch (input_.take<std::uint8_t>() % 8) {
      case 0: return {};
      case 1: return {0};
      case 2: return {good_.file.value(), good_.file.value()};
      default: return {good_.file.value()};
    }
  }
  std::vector<std::byte> raw_message() {
    const auto body = input_.take_bytes(input_.take<std::uint8_t>());
    const auto kind = static_cast<ipc::Kind>(input_.take<std::uint8_t>() % (ipc::kLastKind + 2));
    auto bytes = ipc::encode_message(kind, Status::kOk, std::as_bytes(body));
    if (input_.take<std::uint8_t>() % 4 == 0) bytes.resize(input_.take<std::uint8_t>());
    return bytes;
  }
  ipc::RegisterMemory region() {
    ipc::RegisterMemory request{};
    request.file_offset = input_.take_amount() * 8;
    request.bytes = input_.take_amount();
    request.iova = input_.take_amount() * 16;
    request.access = input_.take<std::uint8_t>() % 32u;
    request.source = input_.take<std::uint8_t>() % 8 == 0 ? 1 : 0;
    return request;
  }
  void open_pool(Client& client) {
    ipc::OpenPool request{};
    request.pool_bytes = input_.take<std::uint8_t>() % 4 == 0 ? input_.take_amount() : 0;
    request.on_host = input_.take<std::uint8_t>() % 2;
    request.slot_bytes = 1u << (input_.take<std::uint8_t>() % 20);
    request.minimum_slots = input_.take<std::uint8_t>() % 4;
    request.threshold_percent = 100;
    if (client.call<ipc::PoolAnswer>(request)) map_device(client.file(), 0);
  }
  // Queues of 16 blocks without pools are as long as the file has room for.
  void create_endpoint(Client& client) {
    auto request = plain_endpoint(input_.take<std::uint8_t>() % 8 == 0 ? input_.take_amount() : 4 * kPage);
    const auto changed = input_.take_bytes(input_.take<std::uint8_t>() % 8 == 0 ? sizeof request : 0);
    if (!changed.empty()) std::memcpy(&request, changed.data(), changed.size());
    if (input_.take<std::uint8_t>() % 4 == 0) {
      request.slot_count = 1;
      request.pool = number();
    }
    const auto made = client.call<ipc::EndpointAnswer>(request, files());
    if (!made) return;
    qpn_ = made->qpn;
    map_device(client.file(), made->map_offset);
  }
  void connect(Client& client) {
    ipc::ConnectEndpoint request{number(), {}};
    EndpointAddress peer{kEndpointAddressVersion, qpn_, input_.take<std::uint16_t>(), 1024, 0, {}};
    const std::uint8_t loopback[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
    std::copy(std::begin(loopback), std::end(loopback), std::begin(peer.gid));
    std::memcpy(request.peer, &peer, sizeof peer);
    const auto changed = input_.take_bytes(input_.take<std::uint8_t>() % 8 == 0 ? sizeof request.peer : 0);
    if (!changed.empty()) std::memcpy(request.peer, changed.data(), changed.size());
    client.call<ipc::Done>(request);
  }
  void map_device(int file, std::uint64_t offset) {
    if (device_ != MAP_FAILED) munmap(device_, kPage);
    device_ = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file, static_cast<off_t>(offset));
  }
  void scribble(std::byte* memory, std::size_t bytes) {
    const auto what = input_.take_bytes(input_.take<std::uint8_t>() % 65);
    const std::size_t at = input_.take<std::uint16_t>() * 8 % bytes;
    if (what.size() <= bytes - at) std::memcpy(memory + at, what.data(), what.size());
  }

  Input& input_;
  std::shared_ptr<Group> group_;
  SharedFile good_;
  std::array<std::optional<Client>, 2> clients_;
  std::uint32_t qpn_ = 1;
  void* device_ = MAP_FAILED;
};

}  // namespace
}  // namespace gdx::daemon

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static gdx::daemon::Victim victim;
  gdx::fuzz::Input input(data, size);
  {
    gdx::daemon::Attacker attacker(input);
    for (int step = 0; step < gdx::daemon::kMaxSteps && !input.empty(); ++step) attacker.step();
  }
  victim.expect_untouched();
  return 0;
}
