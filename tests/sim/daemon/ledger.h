// The oracle of gdxd's simulation: what each client owns, and what gdxd must answer. It keeps no sums: each
// figure is counted anew from what the clients own.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "host/programs/daemon/limits.h"
#include "proto/ipc/messages.h"
#include "proto/status.h"

namespace gdx::sim {

// The files that came with a message.
struct FilesFacts {
  unsigned count = 0;
  std::uint64_t bytes = 0;  // of the first
  bool holds = true;        // it is sealed and has its pages
};

struct PoolBook {
  ipc::OpenPool rules;
  uid_t user = 0;
  std::uint64_t bytes = 0;
  [[nodiscard]] std::uint32_t slots() const { return static_cast<std::uint32_t>(bytes / rules.slot_bytes); }
};

struct EndpointBook {
  std::uint64_t bytes = 0;
  std::uint32_t qpn = 0;
  std::shared_ptr<PoolBook> nic;
  std::shared_ptr<PoolBook> host;
  std::uint32_t nic_slots = 0;  // leased
  std::uint32_t host_slots = 0;
  bool connected = false;
};

struct ClientBook {
  enum class State : std::uint8_t { kNew, kGreeted, kOpen };
  uid_t user = 0;
  pid_t process = 0;
  std::optional<Status> no_hca;  // of kOpenHca: an operator beyond the limits
  State state = State::kNew;
  bool lives = true;      // has its session
  bool has_place = true;  // longer: until it has read its answers
  bool kicked = false;
  std::string program;
  std::map<std::uint32_t, std::uint64_t> regions;  // their bytes
  std::map<std::uint32_t, std::shared_ptr<PoolBook>> pools;
  std::map<std::uint32_t, EndpointBook> endpoints;
};

struct HcaFacts {
  std::uint64_t device_memory_bytes = 0;
  std::uint64_t context_bytes = 0;  // of the file of a context
};

class Ledger {
 public:
  Ledger(const daemon::Limits& limits, const HcaFacts& hca) : limits_(limits), hca_(hca) {}

  // Books a connection. An error: gdxd has to refuse it with this status.
  Result<ClientBook*> admit(uid_t user, pid_t process);
  void end(ClientBook& client);
  void forget(const ClientBook& client);

  // Returns the statuses of which the answer has one. None: the message has no answer.
  [[nodiscard]] std::vector<Status> expect(const ClientBook& client, std::span<const std::byte> message,
                                           const FilesFacts& files) const;
  // Books an answer that grants what `message` asks for. Returns what is wrong with it.
  std::string book(ClientBook& client, std::span<const std::byte> message, std::span<const std::byte> answer);

  // Returns what gdxd's statistics have to tell, a line for each thing.
  [[nodiscard]] std::vector<std::string> figures() const;
  // Returns what statistics tell, likewise.
  [[nodiscard]] static std::vector<std::string> figures_in(const std::string& statistics);
  [[nodiscard]] bool draining() const { return draining_; }
  [[nodiscard]] std::size_t open_clients() const;

 private:
  struct Sums {
    std::uint64_t clients = 0, endpoints = 0, regions = 0, bytes = 0, open = 0;
    std::vector<const PoolBook*> pools;
    [[nodiscard]] std::uint64_t nic_pools() const;
  };
  using Statuses = std::vector<Status>;
  [[nodiscard]] Sums sums_of(uid_t user) const;
  [[nodiscard]] std::vector<uid_t> users() const;
  [[nodiscard]] std::uint32_t leased(const PoolBook& pool) const;
  [[nodiscard]] std::shared_ptr<PoolBook> shared_pool(uid_t user, const ipc::OpenPool& rules) const;
  [[nodiscard]] bool may_kick(const ClientBook& client, pid_t process) const;
  [[nodiscard]] Statuses expect_region(const ClientBook& client, const ipc::RegisterMemory& request,
                                       const FilesFacts& files) const;
  [[nodiscard]] Statuses expect_pool(const ClientBook& client, const ipc::OpenPool& request) const;
  [[nodiscard]] Statuses expect_endpoint(const ClientBook& client, const ipc::CreateEndpoint& request,
                                         const FilesFacts& files) const;
  [[nodiscard]] Statuses expect_connection(const ClientBook& client,
                                           const ipc::ConnectEndpoint& request) const;
  [[nodiscard]] Statuses expect_peer(uid_t user, std::uint32_t qpn) const;
  [[nodiscard]] Statuses expect_of_object(const ClientBook& client, ipc::Kind kind,
                                          std::span<const std::byte> body) const;
  std::string book_endpoint(ClientBook& client, const ipc::CreateEndpoint& request,
                            const ipc::EndpointAnswer& answer);
  std::string book_pool(ClientBook& client, const ipc::OpenPool& request, const ipc::PoolAnswer& answer);

  daemon::Limits limits_;
  HcaFacts hca_;
  bool draining_ = false;
  std::list<ClientBook> clients_;  // those of threads that gdxd has not joined
};

}  // namespace gdx::sim
