// Requests of one client of gdxd, drawn from a seed: mostly what an honest one asks for, and on demand
// flawed in one way.
#pragma once

#include <cstring>
#include <span>
#include <variant>
#include <vector>

#include "base/descriptor.h"
#include "host/ipc/message.h"
#include "host/memory/shared_file.h"
#include "host/queue/queue_memory.h"
#include "tests/sim/daemon/ledger.h"
#include "tests/sim/random.h"

namespace gdx::sim {

template <typename Request>
struct AnswerTo {
  using Type = ipc::Done;
};
template <>
struct AnswerTo<ipc::RegisterMemory> {
  using Type = ipc::RegisterAnswer;
};
template <>
struct AnswerTo<ipc::OpenPool> {
  using Type = ipc::PoolAnswer;
};
template <>
struct AnswerTo<ipc::ReadPool> {
  using Type = ipc::PoolFigures;
};
template <>
struct AnswerTo<ipc::CreateEndpoint> {
  using Type = ipc::EndpointAnswer;
};
template <>
struct AnswerTo<ipc::QueryEndpoint> {
  using Type = ipc::QueryAnswer;
};
template <>
struct AnswerTo<ipc::ReadCounter> {
  using Type = ipc::CounterAnswer;
};
template <>
struct AnswerTo<ipc::ReadStatistics> {
  using Type = ipc::StatisticsAnswer;
};
template <>
struct AnswerTo<ipc::ReadFlight> {
  using Type = ipc::StatisticsAnswer;
};

using Body = std::variant<ipc::RegisterMemory, ipc::DeregisterMemory, ipc::OpenPool, ipc::ClosePool,
                          ipc::ReadPool, ipc::CreateEndpoint, ipc::ConnectEndpoint, ipc::RetireEndpoint,
                          ipc::QueryEndpoint, ipc::DestroyEndpoint, ipc::ReadCounter, ipc::ReadStatistics,
                          ipc::ReadFlight, ipc::Kick, ipc::Drain>;
struct Request {
  Body body;
  std::vector<int> files;
  FilesFacts facts;
};

// A client's own view: what gdxd has granted it.
class Requests {
 public:
  explicit Requests(Random& random);
  // Draws the next request.
  [[nodiscard]] Request draw(double flawed);
  // Draws bytes that are no message, or none that is in turn.
  [[nodiscard]] std::vector<std::byte> no_message();

  void granted(const ipc::OpenPool& request, const ipc::PoolAnswer& answer);
  void granted(const ipc::RegisterMemory& request, const ipc::RegisterAnswer& answer);
  void granted(const ipc::CreateEndpoint& request, const ipc::EndpointAnswer& answer);
  template <typename Asked, typename Told>
  void granted(const Asked&, const Told&) {}
  void granted(const Request& request, std::span<const std::byte> answer);
  void set_gid(const std::uint8_t (&gid)[16]) { std::memcpy(gid_, gid, sizeof gid_); }

 private:
  struct KnownPool {
    std::uint32_t number;
    std::uint32_t slots;
    bool on_host;
  };
  struct KnownEndpoint {
    std::uint32_t number;
    std::uint32_t qpn;
  };
  Request region(bool flawed);
  Request pool(bool flawed);
  Request endpoint(bool flawed);
  Request connection(bool flawed);
  template <typename T>
  std::uint32_t one_of(const std::vector<T>& things);
  const QueueMemory& queues(std::uint32_t nic_slots, std::uint32_t host_slots);

  Random& random_;
  SharedFile payload_;
  Descriptor loose_;  // a file that can shrink
  std::vector<QueueMemory> queues_;
  std::vector<std::uint32_t> regions_;
  std::vector<KnownPool> pools_;
  std::vector<KnownEndpoint> endpoints_;
  std::uint8_t gid_[16] = {};
};

}  // namespace gdx::sim
