#include "tests/sim/daemon/ledger.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "host/queue/endpoint_address.h"
#include "host/queue/queue_memory.h"

namespace gdx::sim {
namespace {

using ipc::Kind;
using Json = nlohmann::json;

constexpr std::uint64_t kPage = 4096;
constexpr std::uint32_t kBlocks = 16;             // of each queue that is not flawed
constexpr std::uint32_t kKnownRights = 0x10000f;  // local write, remote ones, relaxed ordering

template <typename T>
T read(std::span<const std::byte> bytes) {
  T value{};
  if constexpr (!std::is_empty_v<T>) std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

// Bytes of a body; nothing for a kind without a fixed one.
std::optional<std::size_t> body_bytes(Kind kind) {
  switch (kind) {
    case Kind::kHello: return sizeof(ipc::Hello);
    case Kind::kOpenHca: return sizeof(ipc::OpenHca);
    case Kind::kRegisterMemory: return sizeof(ipc::RegisterMemory);
    case Kind::kOpenPool: return sizeof(ipc::OpenPool);
    case Kind::kCreateEndpoint: return sizeof(ipc::CreateEndpoint);
    case Kind::kConnectEndpoint: return sizeof(ipc::ConnectEndpoint);
    case Kind::kReadCounter: return sizeof(ipc::ReadCounter);
    case Kind::kReadFlight: return sizeof(ipc::ReadFlight);
    case Kind::kReadStatistics:
    case Kind::kDrain: return 0;
    case Kind::kNotice:
    case Kind::kWake: return std::nullopt;
    default: return sizeof(std::uint32_t);  // the number of an object, or of a process
  }
}

std::uint64_t queue_bytes(std::uint32_t nic_slots, std::uint32_t host_slots) {
  static std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t> known;
  auto& bytes = known[{nic_slots, host_slots}];
  if (bytes == 0) bytes = QueueMemory::allocate_in_file(kBlocks, nic_slots, host_slots)->host_memory().size();
  return bytes;
}

bool rules(uid_t user) { return user == 0 || user == ::geteuid(); }

std::vector<Status> refused_or_ok(const std::vector<Status>& refused) {
  return refused.empty() ? std::vector{Status::kOk} : refused;
}

std::string pool_line(uid_t user, const char* memory, std::uint64_t bytes, std::uint64_t slots,
                      std::uint64_t leased, std::uint64_t bad) {
  return fmt::format("pool of {}: {} {} bytes, {} slots, {} leased, {} bad returns", user, memory, bytes,
                     slots, leased, bad);
}
std::string user_line(uid_t user, std::uint64_t clients, std::uint64_t endpoints, std::uint64_t regions,
                      std::uint64_t bytes, std::uint64_t hcas) {
  return fmt::format("user {}: {} clients, {} endpoints, {} regions, {} bytes, {} HCAs", user, clients,
                     endpoints, regions, bytes, hcas);
}
std::string client_line(pid_t process, uid_t user, const std::string& program, bool open,
                        std::uint64_t regions, std::uint64_t bytes) {
  return fmt::format("client {} of {}, '{}'{}: {} regions of {} bytes", process, user, program,
                     open ? " with an HCA" : "", regions, bytes);
}
std::string endpoint_line(pid_t process, std::uint32_t qpn, bool connected) {
  return fmt::format("endpoint of {}: QP {:#x}{}", process, qpn, connected ? ", connected" : "");
}

}  // namespace

std::uint64_t Ledger::Sums::nic_pools() const {
  return static_cast<std::uint64_t>(
      std::ranges::count_if(pools, [](const PoolBook* pool) { return pool->rules.on_host == 0; }));
}

Ledger::Sums Ledger::sums_of(uid_t user) const {
  Sums sums;
  std::set<const PoolBook*> pools;
  for (const ClientBook& client : clients_) {
    if (client.user != user || !client.has_place) continue;
    sums.clients += client.no_hca ? 0 : 1;
    if (!client.lives) continue;
    sums.open += client.state == ClientBook::State::kOpen ? 1 : 0;
    sums.regions += client.regions.size();
    sums.endpoints += client.endpoints.size();
    for (const auto& [number, bytes] : client.regions) sums.bytes += bytes;
    for (const auto& [number, pool] : client.pools) pools.insert(pool.get());
    for (const auto& [number, endpoint] : client.endpoints) {
      sums.bytes += endpoint.bytes;
      pools.insert({endpoint.nic.get(), endpoint.host.get()});
    }
  }
  pools.erase(nullptr);
  sums.pools.assign(pools.begin(), pools.end());
  for (const PoolBook* const pool : sums.pools) sums.bytes += pool->rules.on_host != 0 ? pool->bytes : 0;
  if (sums.open != 0) sums.bytes += hca_.context_bytes;  // one file for all
  return sums;
}

std::vector<uid_t> Ledger::users() const {
  std::set<uid_t> users;
  for (const ClientBook& client : clients_) {
    if (client.has_place) users.insert(client.user);
  }
  return {users.begin(), users.end()};
}

std::uint32_t Ledger::leased(const PoolBook& pool) const {
  std::uint32_t slots = 0;
  for (const ClientBook& client : clients_) {
    for (const auto& [number, endpoint] : client.endpoints) {
      if (endpoint.nic.get() == &pool) slots += endpoint.nic_slots;
      if (endpoint.host.get() == &pool) slots += endpoint.host_slots;
    }
  }
  return slots;
}

std::shared_ptr<PoolBook> Ledger::shared_pool(uid_t user, const ipc::OpenPool& rules) const {
  const auto fits = [&](const std::shared_ptr<PoolBook>& pool) {
    return pool && std::memcmp(&pool->rules, &rules, sizeof rules) == 0;
  };
  for (const ClientBook& client : clients_) {
    if (client.user != user) continue;
    for (const auto& [number, pool] : client.pools)
      if (fits(pool)) return pool;
    for (const auto& [number, endpoint] : client.endpoints) {
      if (fits(endpoint.nic)) return endpoint.nic;
      if (fits(endpoint.host)) return endpoint.host;
    }
  }
  return nullptr;
}

Result<ClientBook*> Ledger::admit(uid_t user, pid_t process) {
  const auto is_served = [](const ClientBook& client) { return !client.no_hca; };
  const auto served = static_cast<std::uint64_t>(std::ranges::count_if(clients_, is_served));
  auto all = users();
  std::erase_if(all, [&](uid_t one) { return sums_of(one).clients == 0; });
  const bool is_new = std::ranges::find(all, user) == all.end();
  std::optional<Status> refusal;
  if (served >= limits_.max_clients || (is_new && all.size() >= limits_.max_groups)) {
    refusal = Status::kBusy;
  } else if (sums_of(user).clients >= limits_.group.max_clients) {
    refusal = Status::kNoMemory;
  }
  std::optional<Status> no_hca;
  const auto is_operator = [&](const ClientBook& client) { return client.no_hca && client.user == user; };
  if (rules(user) && std::ranges::count_if(clients_, is_operator) < daemon::kOperatorPlaces)
    std::swap(no_hca, refusal);
  if (refusal) return fail(*refusal, "no place");
  ClientBook& client = clients_.emplace_back();
  client.user = user;
  client.process = process;
  client.no_hca = no_hca;
  return &client;
}

void Ledger::end(ClientBook& client) {
  client.lives = false;
  client.regions.clear();
  client.pools.clear();
  client.endpoints.clear();
}

void Ledger::forget(const ClientBook& client) {
  clients_.remove_if([&](const ClientBook& one) { return &one == &client; });
}

std::size_t Ledger::open_clients() const {
  return static_cast<std::size_t>(std::ranges::count_if(clients_, [](const ClientBook& client) {
    return client.lives && client.state == ClientBook::State::kOpen;
  }));
}

bool Ledger::may_kick(const ClientBook& client, pid_t process) const {
  return std::ranges::any_of(clients_, [&](const ClientBook& one) {
    return process != 0 && one.process == process && (rules(client.user) || one.user == client.user);
  });
}

Ledger::Statuses Ledger::expect(const ClientBook& client, std::span<const std::byte> message,
                                const FilesFacts& files) const {
  ipc::Header header{};
  if (message.size() < sizeof header || message.size() > ipc::kMaxMessageBytes)
    return {Status::kInvalidArgument};
  header = read<ipc::Header>(message);
  if (header.magic != ipc::kMagic) return {Status::kInvalidArgument};
  if (header.version != ipc::kVersion) return {Status::kVersionMismatch};
  if (header.kind == 0 || header.kind > ipc::kLastKind) return {Status::kInvalidArgument};
  const auto kind = static_cast<Kind>(header.kind);
  if (kind == Kind::kWake) return {};
  using State = ClientBook::State;
  const bool of_operators = kind == Kind::kReadStatistics || kind == Kind::kKick || kind == Kind::kDrain ||
                            kind == Kind::kReadFlight;
  const bool in_turn = client.state == State::kNew       ? kind == Kind::kHello
                       : client.state == State::kGreeted ? kind == Kind::kOpenHca || of_operators
                                                         : kind != Kind::kHello && kind != Kind::kOpenHca;
  const auto body = message.subspan(sizeof header);
  if (!in_turn || body_bytes(kind) != body.size()) return {Status::kInvalidArgument};
  switch (kind) {
    case Kind::kHello: {
      const auto hello = read<ipc::Hello>(body);
      const bool meets = hello.oldest_version <= ipc::kVersion && hello.newest_version >= ipc::kVersion;
      return {meets ? Status::kOk : Status::kVersionMismatch};
    }
    case Kind::kOpenHca: return {client.no_hca.value_or(draining_ ? Status::kBusy : Status::kOk)};
    case Kind::kRegisterMemory: return expect_region(client, read<ipc::RegisterMemory>(body), files);
    case Kind::kOpenPool: return expect_pool(client, read<ipc::OpenPool>(body));
    case Kind::kCreateEndpoint: return expect_endpoint(client, read<ipc::CreateEndpoint>(body), files);
    case Kind::kConnectEndpoint: return expect_connection(client, read<ipc::ConnectEndpoint>(body));
    case Kind::kDrain: return {rules(client.user) ? Status::kOk : Status::kUnsupported};
    case Kind::kReadCounter:
    case Kind::kReadStatistics: return {Status::kOk};
    case Kind::kReadFlight:
      if (read<ipc::ReadFlight>(body).endpoint == 0) return {Status::kOk};
      [[fallthrough]];
    default: return expect_of_object(client, kind, body);
  }
}

Ledger::Statuses Ledger::expect_of_object(const ClientBook& client, Kind kind,
                                          std::span<const std::byte> body) const {
  const auto number = read<std::uint32_t>(body);
  bool found = false;
  switch (kind) {
    case Kind::kDeregisterMemory: found = client.regions.contains(number); break;
    case Kind::kClosePool:
    case Kind::kReadPool: found = client.pools.contains(number); break;
    case Kind::kKick: found = may_kick(client, static_cast<pid_t>(number)); break;
    default: found = client.endpoints.contains(number); break;
  }
  return {found ? Status::kOk : Status::kNotFound};
}

Ledger::Statuses Ledger::expect_region(const ClientBook& client, const ipc::RegisterMemory& request,
                                       const FilesFacts& files) const {
  Statuses refused;
  const Sums sums = sums_of(client.user);
  const std::uint64_t within = request.iova % kPage;
  const bool sound = (request.access & ~kKnownRights) == 0 && request.file_offset % kPage == within &&
                     request.bytes != 0 && files.count == 1 && files.holds &&
                     request.file_offset + request.bytes <= files.bytes;
  if (!sound) refused.push_back(Status::kInvalidArgument);
  if (sums.regions >= limits_.group.max_regions ||
      sums.bytes + request.bytes > limits_.group.max_registered_bytes)
    refused.push_back(Status::kNoMemory);
  return refused_or_ok(refused);
}

Ledger::Statuses Ledger::expect_pool(const ClientBook& client, const ipc::OpenPool& request) const {
  const bool on_host = request.on_host != 0;
  if (!std::has_single_bit(request.slot_bytes) || request.slot_bytes > request.pool_bytes ||
      request.minimum_slots > request.pool_bytes / request.slot_bytes || request.threshold_percent == 0)
    return {Status::kInvalidArgument};
  if (request.pool_bytes / request.slot_bytes > limits_.group.max_slots) return {Status::kInvalidArgument};
  Statuses refused;
  const bool is_too_large = !on_host && request.pool_bytes > hca_.device_memory_bytes / limits_.pools_per_hca;
  const Sums sums = sums_of(client.user);
  const bool finds_none = shared_pool(client.user, request) == nullptr;
  const bool has_room = sums.pools.size() < limits_.group.max_pools &&
                        (on_host ? sums.bytes + request.pool_bytes <= limits_.group.max_registered_bytes
                                 : sums.nic_pools() < limits_.group.max_nic_pools);
  if (is_too_large || client.pools.size() >= limits_.group.max_pools || (finds_none && !has_room))
    refused.push_back(Status::kNoMemory);
  return refused_or_ok(refused);
}

Ledger::Statuses Ledger::expect_endpoint(const ClientBook& client, const ipc::CreateEndpoint& request,
                                         const FilesFacts& files) const {
  Statuses refused;
  const Sums sums = sums_of(client.user);
  std::uint32_t slots[2] = {0, 0};
  const auto look = [&](std::uint32_t at_most, std::uint32_t number, bool host) {
    if (at_most == 0) return;
    const auto found = client.pools.find(number);
    if (found == client.pools.end()) {
      refused.push_back(Status::kNotFound);
      return;
    }
    const PoolBook& pool = *found->second;
    slots[host ? 1 : 0] = pool.slots();
    if ((pool.rules.on_host != 0) != host || at_most > pool.slots() || pool.rules.minimum_slots == 0) {
      refused.push_back(Status::kInvalidArgument);
    } else if (leased(pool) + std::min(at_most, pool.rules.minimum_slots) > pool.slots()) {
      refused.push_back(Status::kBusy);
    }
  };
  look(request.slot_count, request.pool, false);
  look(request.bounce_slot_count, request.bounce_pool, true);
  const bool sound = request.send_queue_blocks == kBlocks && request.sharing <= 1 && files.count == 1 &&
                     files.holds && request.queue_bytes <= files.bytes;
  if (!sound || (refused.empty() && request.queue_bytes != queue_bytes(slots[0], slots[1])))
    refused.push_back(Status::kInvalidArgument);
  if (sums.endpoints >= limits_.group.max_endpoints ||
      sums.bytes + request.queue_bytes > limits_.group.max_registered_bytes)
    refused.push_back(Status::kNoMemory);
  return refused_or_ok(refused);
}

Ledger::Statuses Ledger::expect_connection(const ClientBook& client,
                                           const ipc::ConnectEndpoint& request) const {
  const auto found = client.endpoints.find(request.endpoint);
  if (found == client.endpoints.end()) return {Status::kNotFound};
  if (found->second.connected) return {Status::kBusy};
  EndpointAddress peer{};
  std::memcpy(&peer, request.peer, sizeof peer);
  if (const auto sound = check_endpoint_address(peer); !sound) return {sound.error().status};
  return expect_peer(client.user, peer.qpn);
}

// All peers are at gdxd's own HCA, so they must be of the user's group. A queue pair whose client ends may be
// gone already.
Ledger::Statuses Ledger::expect_peer(uid_t user, std::uint32_t qpn) const {
  bool ending = false;
  for (const ClientBook& client : clients_) {
    const bool owns = client.user == user && std::ranges::any_of(client.endpoints, [qpn](const auto& one) {
                        return one.second.qpn == qpn;
                      });
    if (owns && client.lives) return {Status::kOk};
    ending = ending || owns;
  }
  return ending ? Statuses{Status::kOk, Status::kNotFound} : Statuses{Status::kNotFound};
}

std::string Ledger::book_endpoint(ClientBook& client, const ipc::CreateEndpoint& request,
                                  const ipc::EndpointAnswer& answer) {
  EndpointBook book;
  book.bytes = request.queue_bytes;
  book.qpn = answer.qpn;
  if (request.slot_count != 0) {
    book.nic = client.pools.at(request.pool);
    book.nic_slots = std::min(request.slot_count, book.nic->rules.minimum_slots);
  }
  if (request.bounce_slot_count != 0) {
    book.host = client.pools.at(request.bounce_pool);
    book.host_slots = std::min(request.bounce_slot_count, book.host->rules.minimum_slots);
  }
  const bool is_new = client.endpoints.emplace(answer.endpoint, std::move(book)).second;
  return is_new ? "" : fmt::format("the number {} is another endpoint's", answer.endpoint);
}

std::string Ledger::book_pool(ClientBook& client, const ipc::OpenPool& request,
                              const ipc::PoolAnswer& answer) {
  auto pool = shared_pool(client.user, request);
  if (!pool) pool = std::make_shared<PoolBook>(PoolBook{request, client.user, request.pool_bytes});
  if (answer.bytes != pool->bytes)
    return fmt::format("a pool of {} bytes instead of {}", answer.bytes, pool->bytes);
  const bool is_new = client.pools.emplace(answer.pool, std::move(pool)).second;
  return is_new ? "" : fmt::format("the number {} is another pool's", answer.pool);
}

std::string Ledger::book(ClientBook& client, std::span<const std::byte> message,
                         std::span<const std::byte> answer) {
  const auto kind = static_cast<Kind>(read<ipc::Header>(message).kind);
  const auto asked = message.subspan(sizeof(ipc::Header));
  const auto told = answer.subspan(sizeof(ipc::Header));
  switch (kind) {
    case Kind::kHello:
      client.state = ClientBook::State::kGreeted;
      client.program = read<ipc::Hello>(asked).program;
      return "";
    case Kind::kOpenHca: client.state = ClientBook::State::kOpen; return "";
    case Kind::kRegisterMemory:
      client.regions[read<ipc::RegisterAnswer>(told).region] = read<ipc::RegisterMemory>(asked).bytes;
      return "";
    case Kind::kDeregisterMemory: client.regions.erase(read<std::uint32_t>(asked)); return "";
    case Kind::kOpenPool: return book_pool(client, read<ipc::OpenPool>(asked), read<ipc::PoolAnswer>(told));
    case Kind::kClosePool: client.pools.erase(read<std::uint32_t>(asked)); return "";
    case Kind::kReadPool: {
      const PoolBook& pool = *client.pools.at(read<std::uint32_t>(asked));
      const auto figures = read<ipc::PoolFigures>(told);
      if (figures.leased_slots == leased(pool) && figures.free_slots == pool.slots() - leased(pool))
        return "";
      return fmt::format("a pool with {} leased slots instead of {}", figures.leased_slots, leased(pool));
    }
    case Kind::kCreateEndpoint:
      return book_endpoint(client, read<ipc::CreateEndpoint>(asked), read<ipc::EndpointAnswer>(told));
    case Kind::kConnectEndpoint: client.endpoints.at(read<std::uint32_t>(asked)).connected = true; return "";
    case Kind::kDestroyEndpoint: client.endpoints.erase(read<std::uint32_t>(asked)); return "";
    case Kind::kKick:
      for (ClientBook& one : clients_) {
        const bool may = rules(client.user) || one.user == client.user;
        if (may && one.process == static_cast<pid_t>(read<std::uint32_t>(asked))) one.kicked = true;
      }
      return "";
    case Kind::kDrain: draining_ = true; return "";
    default: return "";
  }
}

std::vector<std::string> Ledger::figures() const {
  std::vector<std::string> lines;
  for (const uid_t user : users()) {
    const Sums sums = sums_of(user);
    lines.push_back(
        user_line(user, sums.clients, sums.endpoints, sums.regions, sums.bytes, sums.open != 0 ? 1 : 0));
    for (const PoolBook* const pool : sums.pools) {
      lines.push_back(pool_line(user, pool->rules.on_host != 0 ? "host" : "nic", pool->bytes, pool->slots(),
                                leased(*pool), 0));
    }
  }
  for (const ClientBook& client : clients_) {
    if (!client.lives) continue;
    std::uint64_t bytes = 0;
    for (const auto& [number, one] : client.regions) bytes += one;
    lines.push_back(client_line(client.process, client.user, client.program,
                                client.state == ClientBook::State::kOpen, client.regions.size(), bytes));
    for (const auto& [number, endpoint] : client.endpoints)
      lines.push_back(endpoint_line(client.process, endpoint.qpn, endpoint.connected));
  }
  std::ranges::sort(lines);
  return lines;
}

std::vector<std::string> Ledger::figures_in(const std::string& statistics) {
  std::vector<std::string> lines;
  const Json all = Json::parse(statistics);
  for (const Json& user : all["users"]) {
    const uid_t id = user["uid"];
    lines.push_back(user_line(id, user["clients"], user["endpoints"], user["regions"],
                              user["registered_bytes"], user["hcas"].size()));
    for (const Json& pool : user["pools"]) {
      const std::string memory = pool["memory"];
      lines.push_back(pool_line(id, memory.c_str(), pool["bytes"], pool["slots"], pool["leased_slots"],
                                pool["bad_returns"]));
    }
  }
  for (const Json& client : all["clients"]) {
    const std::string hca = client["hca"];
    lines.push_back(client_line(client["pid"], client["uid"], client["program"], !hca.empty(),
                                client["regions"], client["registered_bytes"]));
    for (const Json& endpoint : client["endpoints"]) {
      const std::string peer = endpoint["peer"];
      lines.push_back(endpoint_line(client["pid"], endpoint["qpn"], !peer.empty()));
    }
  }
  std::ranges::sort(lines);
  return lines;
}

}  // namespace gdx::sim
