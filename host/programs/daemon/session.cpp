#include "host/programs/daemon/session.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <limits>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/page_size.h"
#include "host/bootstrap/frame.h"
#include "host/ipc/daemon.h"
#include "host/memory/memory.h"
#include "host/programs/daemon/client_file.h"
#include "host/queue/flight.h"
#include "host/staging/progress.h"
#include "proto/ipc/messages.h"
#include "proto/mlx5/doorbell.h"

namespace gdx::daemon {
namespace {

using ipc::Kind;

template <typename Body>
Answer answer_of(Kind kind, const Body& body, int file = -1) {
  return {ipc::encode(kind, body), file};
}

// Returns whether the request is one by which an operator looks after gdxd. Such a request needs no HCA.
bool of_operators(Kind kind) {
  return kind == Kind::kReadStatistics || kind == Kind::kKick || kind == Kind::kDrain ||
         kind == Kind::kReadFlight;
}

constexpr int kTriesOfFigures = 4;
constexpr auto kAllRights = static_cast<std::uint32_t>(Access::kAll | Access::kRelaxedOrdering);

Result<void> check_rights(std::uint32_t access) {
  if ((access & ~kAllRights) == 0) return check_access(static_cast<Access>(access));
  return fail(Status::kInvalidArgument, fmt::format("access rights {:#x} are none that gdx has", access));
}

std::uint64_t saturating_sum(std::uint64_t a, std::uint64_t b) {
  return a + b < a ? std::numeric_limits<std::uint64_t>::max() : a + b;
}

Result<void> check_pool_limits(const StagingOptions& options, const Hca& hca, const Group& group) {
  const auto bytes = GDX_TRY(resolve_staging_bytes(options, hca.device_memory_bytes()));
  if (bytes / options.slot_bytes > group.limits().max_slots) {
    return fail(Status::kInvalidArgument,
                fmt::format("gdxd gives a staging pool no more than {} slots: use larger ones",
                            group.limits().max_slots));
  }
  const std::uint64_t part_bytes = hca.device_memory_bytes() / group.pools_per_hca();
  if (options.memory == StagingMemory::kHost || bytes <= part_bytes || options.pool_bytes == 0) return {};
  return fail(Status::kNoMemory,
              fmt::format("gdxd gives a staging pool {} of the NIC's {} bytes: ask for no more", part_bytes,
                          hca.device_memory_bytes()));
}

Result<EndpointOptions> options_of(const ipc::CreateEndpoint& request, const Hca& hca) {
  const bool known = request.sharing <= static_cast<std::uint8_t>(Sharing::kShared) &&
                     request.doorbell <= static_cast<std::uint8_t>(DoorbellKind::kBlueFlame);
  if (!known) return fail(Status::kInvalidArgument, "an endpoint's sharing and doorbell are 0 or 1");
  EndpointOptions options;
  options.send_queue_blocks = request.send_queue_blocks;
  options.slot_count = request.slot_count;
  options.bounce_slot_count = request.bounce_slot_count;
  options.sharing = static_cast<Sharing>(request.sharing);
  options.doorbell = static_cast<DoorbellKind>(request.doorbell);
  options.ack_timeout = request.ack_timeout;
  options.retry_count = request.retry_count;
  options.rnr_retry = request.rnr_retry;
  options.min_rnr_timer = request.min_rnr_timer;
  options.hop_limit = request.hop_limit;
  options.traffic_class = request.traffic_class;
  options.service_level = request.service_level;
  if (request.pkey != 0) options.pkey = request.pkey;
  options.adaptive_routing = request.adaptive_routing != 0;
  options.timeout_ns = kMaxWaitNs;  // the client's own affair
  options.may_time_out_before_retries = true;
  return resolve_endpoint_options(options, hca.is_software(), hca.link_layer());
}

}  // namespace

// Reads memory that the client may change meanwhile. Extends the 16 bits of the doorbell record by the
// completed count, since a queue has fewer than 2^16 blocks. Reads again where many have completed between
// the two.
EndpointFigures Session::figures_of(const ServedEndpoint& served) {
  EndpointFigures figures;
  figures.qpn = served.queue->facts().qpn;
  figures.peer = served.peer;
  figures.send_queue_blocks = served.blocks;
  // An endpoint with its queue in GPU memory has these words there, too, which the host does not read.
  if (!served.memory.has_kernel_words()) return figures;
  const auto load = [](auto& word) { return std::atomic_ref(word).load(std::memory_order_acquire); };
  ControlPage& control = *served.memory.control();
  QueueState& state = control.state;
  auto& completed = served.sharing == Sharing::kShared ? state.shared.completed : state.completed;
  for (int tries = 0; tries < kTriesOfFigures; ++tries) {
    figures.completed_blocks = load(completed);
    const std::uint32_t record = byte_swap(load(control.queue_pair_record[mlx5::kSendRecord].raw));
    figures.posted_blocks =
        figures.completed_blocks + static_cast<std::uint16_t>(record - figures.completed_blocks);
    if (load(completed) - figures.completed_blocks < kMaxSendQueueBlocks) break;
  }
  figures.stalls = load(state.staging.stalls) + load(state.bounce.stalls);
  figures.syndrome = served.syndrome();
  return figures;
}

bool Session::tell(const GroupHca* hca, const ipc::Notice& notice) {
  const std::lock_guard lock(mutex_);
  if (hca != nullptr && hca_.get() != hca) return false;
  // A client that reads no notices has no room for more, and misses this one.
  const auto sent = bootstrap::send_local(notices_, ipc::encode(Kind::kNotice, notice), {}, monotonic_ns());
  if (!sent) log::info("gdxd: {} has missed a notice: {}", program_, sent.error().message);
  return true;
}

SessionFigures Session::figures() const {
  const std::lock_guard lock(mutex_);
  SessionFigures figures;
  figures.program = program_;
  if (hca_) figures.hca = hca_->hca.name();
  figures.regions = regions_.size();
  for (const auto& [number, region] : regions_) figures.registered_bytes += region.bytes;
  figures.endpoints.reserve(endpoints_.size());
  for (const auto& [number, served] : endpoints_) figures.endpoints.push_back(figures_of(*served));
  return figures;
}

SessionFlights Session::flights(std::uint32_t qpn, std::size_t most) const {
  const std::lock_guard no_removal(removal_);
  SessionFlights all;
  std::vector<const QueueObjects*> queues;
  {
    const std::lock_guard lock(mutex_);
    all.program = program_;
    if (hca_) all.hca = hca_->hca.name();
    for (const auto& [number, served] : endpoints_) {
      const std::uint32_t own_qpn = served->queue->facts().qpn;
      if (qpn != 0 && own_qpn != qpn) continue;
      if (all.endpoints.size() == most) {
        ++all.left_out;
        continue;
      }
      all.endpoints.push_back({own_qpn, served->peer, {}});
      queues.push_back(served->queue.get());
    }
  }
  for (std::size_t i = 0; i < queues.size(); ++i) all.endpoints[i].record = queues[i]->flight();
  return all;
}

// Returns the syndrome of the first fault that a kernel has left; 0: none, or in GPU memory.
std::uint8_t Session::ServedEndpoint::syndrome() const {
  if (!memory.has_kernel_words()) return 0;
  return std::atomic_ref(memory.control()->state.fault.syndrome).load(std::memory_order_relaxed);
}

// Warns of few, because clients can store faults as they like. Logs nothing where there is no memory for the
// line.
void Session::ServedEndpoint::log_fault(const std::string& program, Rate& warnings) const noexcept {
  const std::uint8_t fault = syndrome();
  if (fault == 0) return;
  const bool warns = warnings.take(monotonic_ns()) == 0;
  if (!log::enabled(warns ? log::Level::kWarn : log::Level::kInfo)) return;
  try {
    const auto text =
        fmt::format("gdxd: {}, QP {:#x} towards {} ends with syndrome {:#04x}; its newest events:\n{}",
                    program, queue->facts().qpn, peer, fault, fault_text(queue->flight()));
    warns ? log::warn_of_others("{}", text) : log::info("{}", text);
  } catch (const std::exception&) {
    return;
  }
}

Session::~Session() {
  for (const auto& [number, served] : endpoints_) served->log_fault(program_, group_->fault_warnings);
}

bool Session::permits(Kind kind) const {
  switch (state_) {
    case State::kNew: return kind == Kind::kHello;
    case State::kGreeted: return kind == Kind::kOpenHca || of_operators(kind);
    case State::kOpen: return kind != Kind::kHello && kind != Kind::kOpenHca && kind != Kind::kNotice;
  }
  return false;
}

// Turns an exception into a refusal: a client's lack of memory must not end gdxd.
Answer Session::answer(bootstrap::LocalMessage message) {
  const auto parsed = ipc::parse_message(message.bytes);
  if (!parsed) return {ipc::encode_refusal(Kind::kHello, parsed.error())};
  if (parsed->kind == Kind::kWake) {
    wake();
    return {};
  }
  try {
    return handle(*parsed, message.descriptors);
  } catch (const std::exception& error) {
    return {ipc::encode_refusal(parsed->kind, {Status::kNoMemory, fmt::format("gdxd: {}", error.what())})};
  }
}

bool Session::may_wake(std::uint64_t now_ns) const {
  return state_ == State::kOpen && now_ns - woken_ns_ >= ipc::kWakeEveryNs;
}

std::uint64_t Session::take_turn(const bootstrap::LocalMessage* message) {
  const std::uint64_t now_ns = monotonic_ns();
  if (message != nullptr && may_wake(now_ns)) {
    const auto parsed = ipc::parse_message(message->bytes);
    if (parsed && parsed->kind == ipc::Kind::kWake) return 0;
  }
  return group_->owner()->requests.take(now_ns);
}

void Session::wake() {
  const std::uint64_t now_ns = monotonic_ns();
  if (!may_wake(now_ns)) return;
  woken_ns_ = now_ns;
  wake_software_hca();
}

Answer Session::handle(const ipc::Parsed& message, Files& files) {
  if (!permits(message.kind)) {
    return {ipc::encode_refusal(
        message.kind,
        {Status::kInvalidArgument, fmt::format("gdxd cannot answer a request of kind {} now: say hello, then "
                                               "open one HCA",
                                               static_cast<unsigned>(message.kind))})};
  }
  auto answer = act_on(message, files);
  if (answer) return std::move(*answer);
  return {ipc::encode_refusal(message.kind, answer.error())};
}

template <typename Request, typename Act>
Result<Answer> Session::with(const ipc::Parsed& message, Act act) {
  const auto request = GDX_TRY(ipc::parse_body<Request>(message));
  return act(request);
}

Result<Answer> Session::act_on(const ipc::Parsed& message, Files& files) {
  switch (message.kind) {
    case Kind::kHello: return with<ipc::Hello>(message, [&](const auto& it) { return greet(it); });
    case Kind::kOpenHca: return with<ipc::OpenHca>(message, [&](const auto& it) { return open_hca(it); });
    case Kind::kRegisterMemory:
      return with<ipc::RegisterMemory>(message, [&](const auto& it) { return register_memory(it, files); });
    case Kind::kOpenPool: return with<ipc::OpenPool>(message, [&](const auto& it) { return open_pool(it); });
    case Kind::kCreateEndpoint:
      return with<ipc::CreateEndpoint>(message, [&](const auto& it) { return create_endpoint(it, files); });
    case Kind::kConnectEndpoint:
      return with<ipc::ConnectEndpoint>(message, [&](const auto& it) { return connect_endpoint(it); });
    case Kind::kReadCounter:
      return with<ipc::ReadCounter>(message, [&](const auto& it) -> Result<Answer> {
        if (operator_ != nullptr && !operator_->may_see_counters(group_->user(), hca_->hca))
          return fail(Status::kUnsupported,
                      fmt::format("other users' packets count on {} of gdxd, too: root, gdxd's own user and "
                                  "monitor_group read its counters, by gdx stat",
                                  hca_->hca.name()));
        const auto value = GDX_TRY(hca_->hca.counter(ipc::text_of(it.name)));
        return answer_of(message.kind, ipc::CounterAnswer{value});
      });
    case Kind::kReadFlight:
      return with<ipc::ReadFlight>(message, [&](const auto& it) { return read_flight(it); });
    case Kind::kReadStatistics:
    case Kind::kKick:
    case Kind::kDrain: return act_for_operator(message);
    default: return act_on_object(message);
  }
}

// Answers requests that name one object of this client.
Result<Answer> Session::act_on_object(const ipc::Parsed& message) {
  const auto done = [&] { return answer_of(message.kind, ipc::Done{}); };
  switch (message.kind) {
    case Kind::kDeregisterMemory:
      return with<ipc::DeregisterMemory>(message, [&](const auto& it) -> Result<Answer> {
        const std::lock_guard lock(mutex_);
        if (regions_.erase(it.region) != 0) return done();
        return fail(Status::kNotFound, fmt::format("this client has no region {}", it.region));
      });
    case Kind::kClosePool:
      return with<ipc::ClosePool>(message, [&](const auto& it) -> Result<Answer> {
        const std::lock_guard lock(mutex_);
        if (pools_.erase(it.pool) != 0) return done();
        return fail(Status::kNotFound, fmt::format("this client has no staging pool {}", it.pool));
      });
    case Kind::kReadPool:
      return with<ipc::ReadPool>(message, [&](const auto& it) -> Result<Answer> {
        const auto found = GDX_TRY(pool(it.pool));
        return answer_of(message.kind, ipc::PoolFigures{found->pool.leased_slots(), found->pool.free_slots(),
                                                        found->pool.bad_returns()});
      });
    case Kind::kRetireEndpoint:
      return with<ipc::RetireEndpoint>(message, [&](const auto& it) -> Result<Answer> {
        GDX_TRY(endpoint(it.endpoint))->queue->retire();
        return done();
      });
    case Kind::kQueryEndpoint:
      return with<ipc::QueryEndpoint>(message, [&](const auto& it) -> Result<Answer> {
        const ServedEndpoint* const found = GDX_TRY(endpoint(it.endpoint));
        const auto output = GDX_TRY(found->queue->query());
        ipc::QueryAnswer answer{};
        std::copy_n(output.begin(), std::min(output.size(), sizeof answer.output), std::begin(answer.output));
        return answer_of(message.kind, answer);
      });
    case Kind::kDestroyEndpoint:
      return with<ipc::DestroyEndpoint>(message, [&](const auto& it) -> Result<Answer> {
        GDX_TRY(endpoint(it.endpoint))->log_fault(program_, group_->fault_warnings);
        const std::scoped_lock lock(removal_, mutex_);
        endpoints_.erase(it.endpoint);
        return done();
      });
    default: break;
  }
  return fail(Status::kUnsupported,
              fmt::format("gdxd does not know requests of kind {}", static_cast<unsigned>(message.kind)));
}

Result<Answer> Session::act_for_operator(const ipc::Parsed& message) {
  if (operator_ == nullptr) return fail(Status::kUnsupported, "nobody looks after gdxd here");
  if (message.kind == Kind::kKick) {
    const auto request = GDX_TRY(ipc::parse_body<ipc::Kick>(message));
    GDX_TRY(operator_->kick(group_->user(), static_cast<pid_t>(request.process)));
    return answer_of(message.kind, ipc::Done{});
  }
  if (!message.body.empty()) return fail(Status::kInvalidArgument, "the request has no body");
  if (message.kind == Kind::kReadStatistics)
    return text_answer(message.kind, operator_->statistics(group_->user()));
  GDX_TRY(operator_->drain(group_->user()));
  return answer_of(message.kind, ipc::Done{});
}

Result<Answer> Session::greet(const ipc::Hello& hello) {
  if (hello.oldest_version > ipc::kVersion || hello.newest_version < ipc::kVersion) {
    return fail(
        Status::kVersionMismatch,
        fmt::format(
            "gdxd {} has protocol version {}, and this program has {} to {}: use gdxd and libgdx of one "
            "release",
            GDX_VERSION, ipc::kVersion, hello.oldest_version, hello.newest_version));
  }
  int ends[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0 ||
      ::shutdown(ends[0], SHUT_RD) != 0)
    return fail(Status::kNoMemory, fmt::format("gdxd has no socket for notices: {}", std::strerror(errno)));
  notices_ = Descriptor::keep(ends[0]);
  client_notices_ = Descriptor::keep(ends[1]);
  {
    const std::lock_guard lock(mutex_);
    const std::string name = ipc::text_of(hello.program);  // an operator's terminal shows it
    program_ = bootstrap::decode_text(std::as_bytes(std::span(name)));
  }
  state_ = State::kGreeted;
  ipc::HelloAnswer answer{};
  answer.version = ipc::kVersion;
  answer.max_endpoints = group_->limits().max_endpoints;
  answer.max_registered_bytes = group_->limits().max_registered_bytes;
  ipc::set_text(answer.daemon_version, GDX_VERSION);
  return answer_of(Kind::kHello, answer, client_notices_.value());
}

Result<Answer> Session::open_hca(const ipc::OpenHca& request) {
  client_notices_.close();
  if (no_hca_) return tl::unexpected(*no_hca_);
  if (operator_ != nullptr && operator_->draining())
    return fail(Status::kBusy, "gdxd ends with the clients that it has: start another");
  HcaOptions options;
  options.name = ipc::text_of(request.name);
  if (request.gid_index > std::numeric_limits<std::uint8_t>::max())
    return fail(Status::kInvalidArgument,
                fmt::format("no GID has index {}: use 0 to 255", request.gid_index));
  if (request.gid_index >= 0) options.gid_index = static_cast<std::uint8_t>(request.gid_index);
  options.without_port = request.without_port != 0;
  options.in_this_process = true;
  auto opened = GDX_TRY(group_->open_hca(options));
  wake_software_hca();
  const Hca& hca = opened->hca;
  ipc::HcaAnswer answer{};
  ipc::set_text(answer.name, hca.name());
  ipc::set_text(answer.firmware, hca.firmware());
  std::memcpy(answer.gid, hca.gid().raw, sizeof answer.gid);
  answer.device_memory_bytes = hca.device_memory_bytes();
  answer.path_mtu_bytes = hca.path_mtu_bytes();
  answer.gid_index = hca.gid_index();
  answer.lid = hca.lid();
  answer.grh_required = hca.grh_required() ? 1 : 0;
  answer.is_software = hca.is_software() ? 1 : 0;
  const std::lock_guard lock(mutex_);
  hca_ = std::move(opened);
  // A failure before that line was told to those who had it open already.
  if (group_->has_failed(*hca_)) {
    hca_.reset();
    return fail(Status::kHcaFailed, fmt::format("HCA {} has just failed: try again", answer.name));
  }
  state_ = State::kOpen;
  return answer_of(Kind::kOpenHca, answer);
}

Result<Answer> Session::register_memory(const ipc::RegisterMemory& request, Files& files) {
  GDX_TRY(check_rights(request.access));
  const std::uint64_t within_page = request.iova % page_bytes();
  if (request.file_offset % page_bytes() != within_page || request.iova + request.bytes < request.iova) {
    return fail(
        Status::kInvalidArgument,
        fmt::format("a region at offset {} of a file cannot have the address {:#x}: both lie at one place of "
                    "their pages",
                    request.file_offset, request.iova));
  }
  Region region;
  region.count = GDX_TRY(group_->regions.take(1));
  region.share = GDX_TRY(group_->registered_bytes.take(request.bytes));
  region.bytes = request.bytes;
  if (request.source == static_cast<std::uint32_t>(ipc::Source::kDmabuf)) {
    region.mr = GDX_TRY(register_dmabuf(hca_->hca, request, files));
  } else {
    const std::uint64_t first = request.file_offset - within_page;
    region.pages = GDX_TRY(map_client_file(files, hca_->command_file.value(), first,
                                           saturating_sum(request.bytes, within_page)));
    refuse_client_holes(region.pages.get(), region.pages.get_deleter().length_bytes);
    region.mr = GDX_TRY(register_host_pages(hca_->hca, {region.pages.get() + within_page, request.bytes,
                                                        request.iova, static_cast<Access>(request.access)}));
  }
  const std::lock_guard lock(mutex_);
  const ipc::RegisterAnswer answer{++last_number_, region.mr->lkey, region.mr->rkey, 0};
  regions_.emplace(answer.region, std::move(region));
  return answer_of(Kind::kRegisterMemory, answer);
}

Result<Answer> Session::open_pool(const ipc::OpenPool& request) {
  StagingOptions options;
  options.memory = request.on_host != 0 ? StagingMemory::kHost : StagingMemory::kNic;
  options.pool_bytes = request.pool_bytes;
  options.slot_bytes = request.slot_bytes;
  options.minimum_slots = request.minimum_slots;
  options.threshold_percent = request.threshold_percent;
  GDX_TRY(check_pool_limits(options, hca_->hca, *group_));
  if (pools_.size() >= group_->limits().max_pools)
    return fail(Status::kNoMemory,
                fmt::format("a client may have {} staging pools: close one", pools_.size()));
  const auto opened = GDX_TRY(group_->open_pool(hca_, options));
  const StagingPool& pool = opened->pool;
  ipc::PoolAnswer answer{};
  answer.lkey = pool.lkey();
  answer.bytes = pool.bytes();
  answer.nic_offset = pool.nic_offset();
  answer.within_page = static_cast<std::uint32_t>(opened->offset % page_bytes());
  answer.map_offset = opened->offset - answer.within_page;
  const std::lock_guard lock(mutex_);
  answer.pool = ++last_number_;
  pools_.emplace(answer.pool, opened);
  return answer_of(Kind::kOpenPool, answer, opened->file);
}

Result<std::shared_ptr<GroupPool>> Session::pool(std::uint32_t number) {
  const auto found = pools_.find(number);
  if (found != pools_.end()) return found->second;
  return fail(Status::kNotFound, fmt::format("this client has no staging pool {}", number));
}

Result<Session::ServedEndpoint*> Session::endpoint(std::uint32_t number) {
  const auto found = endpoints_.find(number);
  if (found != endpoints_.end()) return found->second.get();
  return fail(Status::kNotFound, fmt::format("this client has no endpoint {}", number));
}

Result<Answer> Session::create_endpoint(const ipc::CreateEndpoint& request, Files& files) {
  const EndpointOptions options = GDX_TRY(options_of(request, hca_->hca));
  auto count = GDX_TRY(group_->endpoints.take(1));
  auto share = GDX_TRY(group_->registered_bytes.take(request.queue_bytes));
  auto nic = options.slot_count != 0 ? GDX_TRY(pool(request.pool)) : nullptr;
  auto host = options.bounce_slot_count != 0 ? GDX_TRY(pool(request.bounce_pool)) : nullptr;
  const StagingPools pools(nic ? &nic->pool : nullptr, host ? &host->pool : nullptr);
  const auto slots = GDX_TRY(check_pools(pools, options));
  std::optional<SharedRegion> queue;
  if (request.queue_in_dmabuf != 0 && files.size() == 2) {
    const auto least_bytes = 2 * std::uint64_t{request.send_queue_blocks} * mlx5::kWqeBasicBlockBytes;
    GDX_TRY(check_dmabuf(files.back().value(), request.dmabuf_offset, least_bytes));
    queue = SharedRegion{std::move(files.back()), request.dmabuf_offset};
    files.pop_back();
  }
  auto pages = GDX_TRY(map_client_file(files, hca_->command_file.value(), 0, request.queue_bytes));
  auto memory = GDX_TRY(QueueMemory::adopt(std::move(pages), options.send_queue_blocks, slots.nic, slots.host,
                                           std::move(queue)));
  if (memory.base() != nullptr) refuse_client_holes(memory.base(), memory.queue_pair_record_offset());
  auto served = std::make_unique<ServedEndpoint>(ServedEndpoint{std::move(count),
                                                                std::move(share),
                                                                std::move(nic),
                                                                std::move(host),
                                                                std::move(memory),
                                                                nullptr,
                                                                false,
                                                                {},
                                                                options.send_queue_blocks,
                                                                options.sharing,
                                                                {}});
  served->queue =
      GDX_TRY(make_queue_objects(hca_->hca, pools, options, served->memory, request.queue_address, tenant_));
  const QueueFacts& facts = served->queue->facts();
  served->listed = group_->list_queue_pair(hca_->hca.name(), facts.qpn);
  const std::lock_guard lock(mutex_);
  const ipc::EndpointAnswer answer{
      .endpoint = ++last_number_,
      .qpn = facts.qpn,
      .psn = facts.psn,
      .scratch_lkey = facts.scratch_lkey,
      .map_offset = facts.doorbell_place.map_offset,
      .register_offset = facts.doorbell_place.register_offset,
      .blueflame_half_bytes = static_cast<std::uint16_t>(facts.blueflame_half_bytes),
      .data_order = static_cast<std::uint16_t>(facts.data_order),
      .pkey = facts.pkey,
      .reserved = {}};
  endpoints_.emplace(answer.endpoint, std::move(served));
  return answer_of(Kind::kCreateEndpoint, answer, hca_->command_file.value());
}

Result<Answer> Session::read_flight(const ipc::ReadFlight& request) {
  if (request.endpoint != 0) {
    const ServedEndpoint* const found = GDX_TRY(endpoint(request.endpoint));
    const auto record = GDX_TRY(found->queue->flight());
    return text_answer(Kind::kReadFlight, encode_flight(record));
  }
  if (operator_ == nullptr) return fail(Status::kUnsupported, "nobody looks after gdxd here");
  return text_answer(Kind::kReadFlight,
                     operator_->flights(group_->user(), static_cast<pid_t>(request.process), request.qpn));
}

Result<Answer> Session::text_answer(Kind kind, const std::string& text) {
  text_ = Descriptor::keep(memfd_create("gdxd answer", MFD_CLOEXEC));
  if (!text_ || ::write(text_.value(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    return fail(Status::kNoMemory, fmt::format("gdxd has no room for its answer: {}", std::strerror(errno)));
  return answer_of(kind, ipc::StatisticsAnswer{text.size()}, text_.value());
}

Result<Answer> Session::connect_endpoint(const ipc::ConnectEndpoint& request) {
  ServedEndpoint* const served = GDX_TRY(endpoint(request.endpoint));
  if (served->connected) return fail(Status::kBusy, "the endpoint is connected already: make another");
  EndpointAddress peer{};
  std::memcpy(&peer, request.peer, sizeof peer);
  GDX_TRY(check_endpoint_address(peer));
  GDX_TRY(group_->check_peer(hca_->hca, peer));
  {
    const std::lock_guard lock(mutex_);
    served->peer = peer_text(peer);
  }
  served->connected = true;  // after a failure, too: the queue pair has left RESET
  GDX_TRY(served->queue->connect(peer));
  return answer_of(Kind::kConnectEndpoint, ipc::Done{});
}

}  // namespace gdx::daemon
