#include "host/team/connections.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "host/bootstrap/socket.h"

namespace gdx::team {
namespace {

// Share of a bound within which work ends, so that its reason is told before the bound.
constexpr std::uint64_t kDeadlineTenths = 8;

}  // namespace

std::uint64_t deadline_of(const EndpointOptions& options) {
  const std::uint64_t bound_ns = *options.timeout_ns;
  const std::uint64_t silence_ns = options.probe_after_ns;
  const std::uint64_t left_ns = bound_ns > silence_ns ? bound_ns - silence_ns : bound_ns;
  return std::max<std::uint64_t>(left_ns / 10 * kDeadlineTenths, 1);
}

Connections::Connections(const Hca* hca, StagingPools pools, const TeamOptions& options,
                         const std::optional<Gpu>& gpu, const World& world)
    : hca_(hca),
      pools_(pools),
      options_(&options),
      gpu_(gpu),
      rank_(world.rank()),
      size_(world.size()),
      mapped_(world.size()),
      ends_(std::size_t{options.lanes} * world.size()) {}

// At the address by which rank 0 knows this rank, because TCP is known to work there; the NIC's network may
// carry RoCE alone.
Result<std::unique_ptr<Connections>> Connections::listen(const Hca* hca, StagingPools pools,
                                                         const TeamOptions& options,
                                                         const std::optional<Gpu>& gpu, const World& world) {
  std::unique_ptr<Connections> made(new Connections(hca, pools, options, gpu, world));
  const std::size_t words = 1 + made->ends_.size();
  made->words_ = GDX_TRY(HostPages::allocate(words * sizeof(std::uint32_t), gpu ? &*gpu : nullptr));
  if (hca == nullptr) return made;
  made->on_loss_ = GDX_TRY(hca->on_loss([raw = made.get()] { raw->set_abort(); }));
  ConnectorOptions at;
  at.rank = world.rank();
  at.size = world.size();
  at.lanes = options.lanes;
  at.host = bootstrap::is_local(world.options().root) ? "unix:" : world.address();
  at.secret = world.options().secret;
  at.rules.deadline_ns = deadline_of(options.endpoint);
  made->connector_ = GDX_TRY(ConnectorService::listen(at));
  return made;
}

Result<void> Connections::start(std::span<const bootstrap::ConnectorIdentity> identities,
                                const std::vector<bool>& mapped, TeamAtomics atomics) {
  mapped_ = mapped;
  atomics_ = atomics;
  for (std::uint32_t rank = 0; rank < size_; ++rank) {
    if (!mapped_[rank]) continue;
    for (std::uint32_t lane = 0; lane < options_->lanes; ++lane) end(lane, rank).way = PeerWay::kMapped;
  }
  serves_ = true;
  return connector_->start(identities, *this, asked());
}

void Connections::leave_hca() {
  on_loss_.reset();
  connector_.reset();
  std::atomic_ref(*words()).store(0);  // clears the abort by a loss of the HCA meanwhile
  hca_ = nullptr;
  pools_ = {};
}

Result<void> Connections::start_proxied(const std::vector<bool>& mapped, std::unique_ptr<Poster> poster) {
  mapped_ = mapped;
  if (gpu_) rings_on_gpu_ = GDX_TRY(gpu_->map(poster->memory().data(), poster->memory().size()));
  poster_ = std::move(poster);
  atomics_ = TeamAtomics::kAgent;
  for (End& each : ends_) each.way = PeerWay::kProxied;
  return {};
}

Result<void> Connections::start_mapped(const PeerMapping& mapping) {
  mapped_.assign(size_, true);
  atomics_ = TeamAtomics::kProcessor;
  for (End& each : ends_) each.way = PeerWay::kMapped;
  std::map<std::uint32_t, int> processes;
  for (std::uint32_t rank = 0; rank < size_; ++rank) {
    if (mapping.process(rank) >= 0) {
      processes[rank] = mapping.process(rank);
    } else if (rank != rank_) {
      log::info(
          "team: nothing tells the end of rank {}'s process here: a wait for it lasts until its timeout",
          rank);
    }
  }
  processes_ =
      GDX_TRY(ProcessWatch::start(std::move(processes), [this](std::uint32_t rank) { process_ended(rank); }));
  return {};
}

void Connections::process_ended(std::uint32_t rank) {
  const std::lock_guard lock(mutex_);
  for (std::uint32_t lane = 0; lane < options_->lanes; ++lane) {
    end(lane, rank).why_gone = "its process has ended";
    set_way_of(rank, lane, PeerWay::kGone);
  }
}

// Kernels that are given the handle of a closed team must not find rings that are gone.
Connections::~Connections() {
  if (!poster_) return;
  for_each_table([](const Table& table) { table.forget_peers(); });
}

void Connections::ask(std::uint32_t rank, std::uint32_t lane) const {
  std::atomic_ref(asked()[std::size_t{lane} * size_ + rank]).store(1, std::memory_order_relaxed);
}

Result<void> Connections::connect(std::uint32_t rank, std::uint64_t deadline_ns) {
  if (!serves_) return check_without_hca(rank);
  for (std::uint32_t lane = 0; lane < options_->lanes; ++lane) ask(rank, lane);
  for (std::uint32_t lane = 0; lane < options_->lanes; ++lane) {
    const std::uint64_t now_ns = monotonic_ns();
    GDX_TRY(connector_->connect(rank, lane, deadline_ns - std::min(now_ns, deadline_ns)));
  }
  return {};
}

// Returns the first failure towards a rank that needs no connection.
Result<void> Connections::check_without_hca(std::uint32_t rank) const {
  for (std::uint32_t lane = 0; poster_ && lane < options_->lanes; ++lane) {
    std::string failure = poster_->describe_failure(lane, rank);
    if (!failure.empty()) return fail(Status::kPeerUnreachable, std::move(failure));
  }
  const std::lock_guard lock(mutex_);
  if (const std::string& why = end(0, rank).why_gone; !why.empty())
    return fail(Status::kPeerUnreachable, fmt::format("rank {}: {}", rank, why));
  return is_aborted() ? fail(Status::kAborted, "the team was aborted") : Result<void>{};
}

// Connects all ranks. Asks for this rank and those of higher numbers at once, because those of lower numbers
// ask for this one. Ends within 8/10 of the timeout, before the other ranks' wait for this one does, so that
// they are told the reason of a failure.
Result<void> Connections::connect_all() {
  if (!serves_) return {};
  for (std::uint32_t lane = 0; lane < options_->lanes; ++lane) {
    for (std::uint32_t rank = rank_; rank < size_; ++rank) ask(rank, lane);
  }
  const std::uint64_t deadline_ns = monotonic_ns() + options_->timeout_ns / 10 * kDeadlineTenths;
  for (std::uint32_t i = 0; i < size_; ++i) GDX_TRY(connect((rank_ + i) % size_, deadline_ns));
  return {};
}

// Waits for 8/10 of the timeout at most, so that the other ranks can still be told of a failure.
Result<void> Connections::flush(std::span<const std::uint32_t> ranks) {
  const std::uint64_t deadline_ns = monotonic_ns() + options_->timeout_ns / 10 * kDeadlineTenths;
  if (poster_) {
    auto done = poster_->flush(ranks, deadline_ns);
    if (!done) done.error().message = fmt::format("what kernels posted: {}", done.error().message);
    return done;
  }
  for (std::uint32_t lane = 0; lane < options_->lanes; ++lane) {
    for (const std::uint32_t rank : ranks) {
      if (is_aborted()) return {};
      const Endpoint* const endpoint = known_endpoint(lane, rank);
      auto done = endpoint != nullptr ? endpoint->flush(deadline_ns) : Result<void>{};
      if (done) continue;
      done.error().message =
          fmt::format("what kernels posted to rank {}, lane {}: {}", rank, lane, done.error().message);
      return done;
    }
  }
  return {};
}

void Connections::abort() {
  {
    const std::lock_guard lock(mutex_);
    set_abort();
    for (End& each : ends_) {
      if (each.endpoint) each.endpoint->abort();
    }
  }
  if (serves_) connector_->abort();
}

Result<EndpointAddress> Connections::create(std::uint32_t rank, std::uint32_t lane) {
  auto endpoint = GDX_TRY(Endpoint::create(*hca_, pools_, options_->endpoint));
  if (gpu_) {
    GDX_TRY(endpoint.map_to(*gpu_));
  }
  const EndpointAddress address = endpoint.address();
  const std::lock_guard lock(mutex_);
  if (is_aborted()) endpoint.abort();
  end(lane, rank).endpoint = std::move(endpoint);
  return address;
}

// Without the lock: other threads leave an endpoint alone that kernels do not know yet.
Result<void> Connections::connect(std::uint32_t rank, std::uint32_t lane, const EndpointAddress& peer) {
  return end(lane, rank).endpoint->connect(peer);
}

void Connections::ready(std::uint32_t rank, std::uint32_t lane) {
  const std::lock_guard lock(mutex_);
  set_way_of(rank, lane, mapped_[rank] ? PeerWay::kDirect : PeerWay::kNative);
}

// Kernels may still be using an endpoint that was ready. A mapped rank whose atomics are the processors'
// needs none: it stays mapped, unless it is unreachable because it has ended or stands still.
void Connections::gone(std::uint32_t rank, std::uint32_t lane, const Error& why) {
  const std::lock_guard lock(mutex_);
  End& lost = end(lane, rank);
  if (!lost.is_known()) lost.endpoint.reset();
  lost.why_gone = why.message;
  const bool goes_on =
      mapped_[rank] && atomics_ == TeamAtomics::kProcessor && why.status != Status::kPeerUnreachable;
  set_way_of(rank, lane, goes_on ? PeerWay::kMapped : PeerWay::kGone);
}

void Connections::set_way_of(std::uint32_t rank, std::uint32_t lane, PeerWay way) {
  end(lane, rank).way = way;
  for (const auto& table : tables()) {
    const auto at = std::ranges::find(table->members(), rank);
    if (at != table->members().end())
      write(*table, lane, static_cast<std::uint32_t>(at - table->members().begin()));
  }
}

std::vector<std::shared_ptr<Table>> Connections::tables() const {
  std::vector<std::shared_ptr<Table>> alive;
  alive.reserve(tables_.size());
  for (const auto& known : tables_) {
    if (auto table = known.lock()) alive.push_back(std::move(table));
  }
  return alive;
}

std::shared_ptr<Table> Connections::first_table() const {
  const std::lock_guard lock(mutex_);
  return tables_.front().lock();
}

// The way comes last, because a kernel reads the rest of the record after it. Kernels may be reading an
// endpoint that is in the record already.
void Connections::write(const Table& table, std::uint32_t lane, std::uint32_t index) const {
  const End& known = end(lane, table.members()[index]);
  TeamPeer& peer = table.peer(lane, index);
  if (known.is_known() && peer.state == nullptr) peer.set_endpoint(known.endpoint->handle());
  if (poster_) {
    peer.commands = &poster_->ring(lane);
    peer.command_rank = table.members()[index];
  }
  set_way(peer, known.way);
}

void Connections::add(const std::shared_ptr<Table>& table) {
  const std::lock_guard lock(mutex_);
  for (std::uint32_t i = 0; i < table->size(); ++i) {
    for (std::uint32_t lane = 0; lane < options_->lanes; ++lane) {
      table->peer(lane, i).asked = asked() + std::size_t{lane} * size_ + table->members()[i];
      write(*table, lane, i);
    }
  }
  std::erase_if(tables_, [](const auto& known) { return known.expired(); });
  tables_.push_back(table);
}

const Endpoint* Connections::known_endpoint(std::uint32_t lane, std::uint32_t rank) const {
  const std::lock_guard lock(mutex_);
  const End& known = end(lane, rank);
  return known.is_known() ? &*known.endpoint : nullptr;
}

EndpointHandle Connections::endpoint_handle(std::uint32_t lane, std::uint32_t rank) const {
  if (lane >= options_->lanes || rank >= size_) return {};
  const Endpoint* const endpoint = known_endpoint(lane, rank);
  return endpoint != nullptr ? endpoint->handle() : EndpointHandle{};
}

std::uint32_t Connections::count(const Table& table) const {
  const std::lock_guard lock(mutex_);
  std::uint32_t count = 0;
  for (std::uint32_t lane = 0; lane < options_->lanes; ++lane) {
    for (const std::uint32_t rank : table.members()) count += end(lane, rank).endpoint ? 1 : 0;
  }
  return count;
}

bool Connections::answers(std::uint32_t rank) const {
  const std::lock_guard lock(mutex_);
  for (std::uint32_t lane = 0; lane < options_->lanes; ++lane) {
    if (end(lane, rank).works()) return true;
  }
  return false;
}

std::string Connections::describe_failures(const Table& table) const {
  std::string text;
  const auto tell = [&](const char* what, std::uint32_t index, std::uint32_t lane, const std::string& why) {
    text +=
        fmt::format("{}{} {}, lane {}: {}", text.empty() ? "" : "; ", what, name_of(table, index), lane, why);
  };
  const std::lock_guard lock(mutex_);
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    for (std::uint32_t lane = 0; lane < options_->lanes; ++lane) {
      const End& each = end(lane, table.members()[i]);
      if (!each.why_gone.empty()) tell("connection to", i, lane, each.why_gone);
      const std::string failure = poster_ ? poster_->describe_failure(lane, table.members()[i]) : "";
      if (!failure.empty()) tell("proxied", i, lane, failure);
      if (each.is_known() && !each.works())
        tell("endpoint towards", i, lane, each.endpoint->describe_fault());
    }
  }
  for (std::uint32_t lane = 0; poster_ && lane < options_->lanes; ++lane) {
    const std::string call = poster_->describe_fault(lane);
    if (!call.empty()) text += fmt::format("{}{}", text.empty() ? "" : "; ", call);
  }
  return text;
}

void Connections::clear_faults() const {
  for (std::uint32_t lane = 0; poster_ && lane < options_->lanes; ++lane) poster_->clear_fault(lane);
}

}  // namespace gdx::team
