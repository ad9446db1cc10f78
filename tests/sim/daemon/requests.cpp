#include "tests/sim/daemon/requests.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "host/queue/endpoint_address.h"

namespace gdx::sim {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kPayloadPages = 4;
constexpr std::uint32_t kBlocks = 16;
constexpr std::uint64_t kPoolBytes = 16384;
constexpr std::uint32_t kAllRights = 15;

std::uint32_t number_of(std::uint32_t region) { return region; }
template <typename Thing>
std::uint32_t number_of(const Thing& thing) {
  return thing.number;
}

}  // namespace

Requests::Requests(Random& random)
    : random_(random),
      payload_(make_shared_file(kPayloadPages * kPage).take()),
      loose_(memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
  if (::ftruncate(loose_.value(), static_cast<off_t>(kPayloadPages * kPage)) != 0) loose_.close();
}

// Mostly a thing that this client has had; gdxd may have taken it back since.
template <typename T>
std::uint32_t Requests::one_of(const std::vector<T>& things) {
  if (things.empty() || random_.chance(0.1)) return static_cast<std::uint32_t>(random_.between(0, 12));
  return number_of(things[random_.between(0, things.size() - 1)]);
}

Request Requests::region(bool flawed) {
  ipc::RegisterMemory request{};
  request.bytes = random_.between(1, kPayloadPages * kPage);
  request.iova = kPage * random_.between(1, 1000);
  request.access = kAllRights;
  Request drawn{request, {payload_.file.value()}, {1, kPayloadPages * kPage, true}};
  if (!flawed) return drawn;
  auto& body = std::get<ipc::RegisterMemory>(drawn.body);
  switch (random_.between(0, 6)) {
    case 0: drawn.files.clear(); break;
    case 1: drawn.files = {loose_.value()}; break;
    case 2: drawn.files.push_back(payload_.file.value()); break;
    case 3: body.bytes = random_.chance(0.5) ? 0 : (kPayloadPages + 1) * kPage; break;
    case 4: body.iova += 8; break;
    case 5: body.access = 1u << 31; break;
    default: body.file_offset = kPayloadPages * kPage; break;
  }
  drawn.facts = {static_cast<unsigned>(drawn.files.size()), kPayloadPages * kPage,
                 drawn.files.empty() || drawn.files.front() != loose_.value()};
  return drawn;
}

Request Requests::pool(bool flawed) {
  ipc::OpenPool request{};
  request.on_host = random_.chance(0.3) ? 1 : 0;
  request.pool_bytes = kPoolBytes;
  request.slot_bytes = random_.chance(0.5) ? 4096 : 2048;
  request.minimum_slots = static_cast<std::uint32_t>(random_.between(1, 2));
  request.threshold_percent = 100;
  if (flawed) {
    switch (random_.between(0, 3)) {
      case 0: request.slot_bytes = 3000; break;
      case 1: request.threshold_percent = 0; break;
      case 2: request.minimum_slots = 1000; break;
      default: request.pool_bytes = 1 << 20; break;
    }
  }
  return {request, {}, {}};
}

const QueueMemory& Requests::queues(std::uint32_t nic_slots, std::uint32_t host_slots) {
  queues_.push_back(QueueMemory::allocate_in_file(kBlocks, nic_slots, host_slots).take());
  return queues_.back();
}

Request Requests::endpoint(bool flawed) {
  ipc::CreateEndpoint request{};
  request.queue_address = 0x100000;
  request.send_queue_blocks = kBlocks;
  request.ack_timeout = 14;
  request.retry_count = 5;
  request.rnr_retry = 7;
  request.min_rnr_timer = 12;
  request.hop_limit = 64;
  std::uint32_t nic_slots = 0;
  std::uint32_t host_slots = 0;
  for (const KnownPool& pool : pools_) {
    if (random_.chance(0.4)) continue;
    (pool.on_host ? host_slots : nic_slots) = pool.slots;
    (pool.on_host ? request.bounce_pool : request.pool) = pool.number;
    (pool.on_host ? request.bounce_slot_count : request.slot_count) =
        static_cast<std::uint32_t>(random_.between(1, pool.slots));
  }
  const QueueMemory& memory = queues(nic_slots, host_slots);
  request.queue_bytes = memory.host_memory().size();
  Request drawn{request, {memory.file()}, {1, request.queue_bytes, true}};
  if (!flawed) return drawn;
  auto& body = std::get<ipc::CreateEndpoint>(drawn.body);
  switch (random_.between(0, 4)) {
    case 0: body.send_queue_blocks = kBlocks + 1; break;
    case 1: body.sharing = 9; break;
    case 2: body.queue_bytes += kPage; break;
    case 3: drawn.files.clear(); break;
    default:
      body.slot_count = 1;
      body.pool = 999;
      break;
  }
  drawn.facts.count = static_cast<unsigned>(drawn.files.size());
  return drawn;
}

Request Requests::connection(bool flawed) {
  ipc::ConnectEndpoint request{one_of(endpoints_), {}};
  const std::uint32_t qpn =
      endpoints_.empty() ? 1 : endpoints_[random_.between(0, endpoints_.size() - 1)].qpn;
  EndpointAddress peer{kEndpointAddressVersion, DataOrder::kAny, 0, qpn, 7, 1024, 0, {}};
  std::memcpy(peer.gid, gid_, sizeof gid_);
  if (flawed) peer.version = 99;
  std::memcpy(request.peer, &peer, sizeof peer);
  return {request, {}, {}};
}

Request Requests::draw(double flawed) {
  const bool flaw = random_.chance(flawed);
  switch (random_.between(0, 19)) {
    case 0:
    case 1:
    case 2:
    case 3: return region(flaw);
    case 4:
    case 5: return {ipc::DeregisterMemory{one_of(regions_)}, {}, {}};
    case 6:
    case 7: return pool(flaw);
    case 8: return {ipc::ClosePool{one_of(pools_)}, {}, {}};
    case 9: return {ipc::ReadPool{one_of(pools_)}, {}, {}};
    case 10:
    case 11:
    case 12: return endpoint(flaw);
    case 13: return connection(flaw);
    case 14: return {ipc::RetireEndpoint{one_of(endpoints_)}, {}, {}};
    case 15:
    case 16: return {ipc::DestroyEndpoint{one_of(endpoints_)}, {}, {}};
    case 17: return {ipc::QueryEndpoint{one_of(endpoints_)}, {}, {}};
    case 18: return {ipc::ReadStatistics{}, {}, {}};
    default: return {ipc::ReadFlight{random_.chance(0.5) ? 0 : one_of(endpoints_), 0, 0}, {}, {}};
  }
}

std::vector<std::byte> Requests::no_message() {
  auto kind = static_cast<std::uint16_t>(random_.between(0, ipc::kLastKind + 3));
  // Kind 0 in place of one that has no answer, whatever is wrong with it.
  if (kind == static_cast<std::uint16_t>(ipc::Kind::kWake)) kind = 0;
  ipc::Header header{ipc::kMagic, ipc::kVersion, kind, 0, 0};
  std::size_t body_bytes = random_.between(0, 300);
  switch (random_.between(0, 4)) {
    case 0: header.magic ^= 1u << random_.between(0, 31); break;
    case 1: header.version = static_cast<std::uint16_t>(random_.between(2, 9)); break;
    case 2: body_bytes = ipc::kMaxMessageBytes + random_.between(0, 100); break;
    case 3: return std::vector<std::byte>(random_.between(1, sizeof header - 1));
    default: body_bytes = body_bytes * 8 + 1; break;  // no body is as long
  }
  std::vector<std::byte> bytes(sizeof header + body_bytes);
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes;
}

void Requests::granted(const ipc::OpenPool& request, const ipc::PoolAnswer& answer) {
  pools_.push_back(
      {answer.pool, static_cast<std::uint32_t>(answer.bytes / request.slot_bytes), request.on_host != 0});
}
void Requests::granted(const ipc::RegisterMemory&, const ipc::RegisterAnswer& answer) {
  regions_.push_back(answer.region);
}
void Requests::granted(const ipc::CreateEndpoint&, const ipc::EndpointAnswer& answer) {
  endpoints_.push_back({answer.endpoint, answer.qpn});
}

void Requests::granted(const Request& request, std::span<const std::byte> answer) {
  std::visit(
      [&](const auto& body) {
        typename AnswerTo<std::remove_cvref_t<decltype(body)>>::Type told{};
        if constexpr (!std::is_empty_v<decltype(told)>)
          std::memcpy(&told, answer.data() + sizeof(ipc::Header), sizeof told);
        granted(body, told);
      },
      request.body);
}

}  // namespace gdx::sim
