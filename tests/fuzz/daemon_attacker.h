// A client of gdxd that sends what it likes, and stores what it likes in the files that it shares. Its input
// chooses both.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <vector>

#include "host/ipc/message.h"
#include "host/memory/shared_file.h"
#include "host/queue/endpoint_address.h"
#include "tests/fuzz/input.h"

namespace gdx::daemon {

inline constexpr std::size_t kAttackedPage = 4096;
inline constexpr std::size_t kAttackedPages = 8;

inline ipc::CreateEndpoint plain_endpoint(std::uint64_t bytes) {
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

// `Connection` answers requests as a connection to gdxd does:
//   void open()                                        greets gdxd and opens the HCA
//   void send(bytes, files)                            sends what need not be a message
//   std::optional<Answer> call<Answer>(request, files) returns nothing where the request was refused
//   int file()                                         returns the file of the last answer, -1 without one
template <typename Connection>
class Attacker {
 public:
  // `first` and `second` are of one group. `turn` gives other parties a step.
  Attacker(fuzz::Input& input, Connection& first, Connection& second, void (*turn)())
      : input_(input),
        good_(make_shared_file(kAttackedPages * kAttackedPage)),
        clients_{&first, &second},
        turn_(turn) {
    fuzz::expect(good_.has_value(), "a file is made");
    if (input.take<std::uint8_t>() % 8 == 0) return;
    first.open();
    second.open();
  }
  ~Attacker() {
    if (device_ != MAP_FAILED) munmap(device_, kAttackedPage);
  }
  Attacker(const Attacker&) = delete;
  Attacker& operator=(const Attacker&) = delete;

  void step() {
    Connection& client = *clients_[input_.take<std::uint8_t>() % clients_.size()];
    switch (input_.take<std::uint8_t>() % 12) {
      case 0: client.send(raw_message(), files()); break;
      case 1: client.template call<ipc::RegisterAnswer>(region(), files()); break;
      case 2: client.template call<ipc::Done>(ipc::DeregisterMemory{number()}); break;
      case 3: open_pool(client); break;
      case 4: client.template call<ipc::Done>(ipc::ClosePool{number()}); break;
      case 5: create_endpoint(client); break;
      case 6: connect(client); break;
      case 7: retire_and_read(client); break;
      case 8: client.template call<ipc::Done>(ipc::DestroyEndpoint{number()}); break;
      case 9: scribble(good_->pages.get(), kAttackedPages * kAttackedPage); break;
      case 10:
        if (device_ != MAP_FAILED) scribble(static_cast<std::byte*>(device_), kAttackedPage);
        break;
      default: turn_(); break;
    }
  }

 private:
  std::uint32_t number() { return input_.take<std::uint8_t>() % 16; }
  std::vector<int> files() {
    switch (input_.take<std::uint8_t>() % 8) {
      case 0: return {};
      case 1: return {0};
      case 2: return {good_->file.value(), good_->file.value()};
      default: return {good_->file.value()};
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
  void open_pool(Connection& client) {
    ipc::OpenPool request{};
    request.pool_bytes = input_.take<std::uint8_t>() % 4 == 0 ? input_.take_amount() : 0;
    request.on_host = input_.take<std::uint8_t>() % 2;
    request.slot_bytes = 1u << (input_.take<std::uint8_t>() % 20);
    request.minimum_slots = input_.take<std::uint8_t>() % 4;
    request.threshold_percent = 100;
    if (client.template call<ipc::PoolAnswer>(request)) map_device(client.file(), 0);
  }
  // Queues of 16 blocks without pools are as long as the file has room for.
  void create_endpoint(Connection& client) {
    auto request =
        plain_endpoint(input_.take<std::uint8_t>() % 8 == 0 ? input_.take_amount() : 4 * kAttackedPage);
    const auto changed = input_.take_bytes(input_.take<std::uint8_t>() % 8 == 0 ? sizeof request : 0);
    if (!changed.empty()) std::memcpy(&request, changed.data(), changed.size());
    if (input_.take<std::uint8_t>() % 4 == 0) {
      request.slot_count = 1;
      request.pool = number();
    }
    const auto made = client.template call<ipc::EndpointAnswer>(request, files());
    if (!made) return;
    qpn_ = made->qpn;
    map_device(client.file(), made->map_offset);
  }
  void connect(Connection& client) {
    ipc::ConnectEndpoint request{number(), {}};
    EndpointAddress peer{
        kEndpointAddressVersion, DataOrder::kAny, 0, qpn_, input_.take<std::uint16_t>(), 1024, 0, {}};
    const std::uint8_t loopback[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
    std::copy(std::begin(loopback), std::end(loopback), std::begin(peer.gid));
    std::memcpy(request.peer, &peer, sizeof peer);
    const auto changed = input_.take_bytes(input_.take<std::uint8_t>() % 8 == 0 ? sizeof request.peer : 0);
    if (!changed.empty()) std::memcpy(request.peer, changed.data(), changed.size());
    client.template call<ipc::Done>(request);
  }
  void retire_and_read(Connection& client) {
    const std::uint32_t endpoint = number();
    client.template call<ipc::Done>(ipc::RetireEndpoint{endpoint});
    client.template call<ipc::StatisticsAnswer>(ipc::ReadFlight{endpoint, 0, qpn_});
  }
  void map_device(int file, std::uint64_t offset) {
    if (device_ != MAP_FAILED) munmap(device_, kAttackedPage);
    device_ =
        mmap(nullptr, kAttackedPage, PROT_READ | PROT_WRITE, MAP_SHARED, file, static_cast<off_t>(offset));
  }
  void scribble(std::byte* memory, std::size_t bytes) {
    const auto what = input_.take_bytes(input_.take<std::uint8_t>() % 65);
    const std::size_t at = input_.take<std::uint16_t>() * 8 % bytes;
    if (what.size() <= bytes - at) std::memcpy(memory + at, what.data(), what.size());
  }

  fuzz::Input& input_;
  Result<SharedFile> good_;
  std::array<Connection*, 2> clients_;
  void (*turn_)();
  std::uint32_t qpn_ = 1;
  void* device_ = MAP_FAILED;
};

}  // namespace gdx::daemon
