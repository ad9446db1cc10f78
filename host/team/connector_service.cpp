#include "host/team/connector_service.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <system_error>

#include "base/clock.h"
#include "base/library_thread.h"
#include "base/log.h"
#include "host/bootstrap/socket.h"

namespace gdx {

using bootstrap::ConnectorIdentity;
using bootstrap::FrameType;

namespace {

constexpr std::uint64_t kBusyPauseNs = 50'000;
constexpr std::uint64_t kIdlePauseNs = 8'000'000;
// Most time between two looks that counts towards deadlines.
constexpr std::uint64_t kMostCountedNs = 100'000'000;
constexpr int kMostBegun = 16;  // pairs between two looks at the sockets
// Rest of the listener after the descriptors were used up.
constexpr std::uint64_t kListenerRestNs = 100'000'000;
constexpr std::uint64_t kNsPerSecond = 1'000'000'000;

Result<void> check_options(const ConnectorOptions& options) {
  const auto refuse = [](const char* option, std::uint64_t value, const char* wanted) {
    return fail(Status::kInvalidArgument,
                fmt::format("connector option {} = {}: use {}", option, value, wanted));
  };
  if (options.rank >= options.size) return refuse("rank", options.rank, "one below the size");
  if (options.lanes == 0) return refuse("lanes", 0, "1 or more");
  if (options.rules.deadline_ns == 0) return refuse("deadline_ns", 0, "1 or more");
  if (options.rules.most_dialled == 0) return refuse("most_dialled", 0, "1 or more");
  return {};
}

Error no_answer(const std::string& at, const Error& why) {
  return {why.status, fmt::format("no answer at {}: {}", at, why.message)};
}

Result<std::string> address_of(const ConnectorIdentity& identity, std::size_t rank) {
  if (identity.version != bootstrap::kConnectorVersion) {
    return fail(Status::kVersionMismatch,
                fmt::format("rank {} has connector version {}, this rank {}: run the same gdx on all ranks",
                            rank, std::uint32_t{identity.version}, bootstrap::kConnectorVersion));
  }
  std::string address(identity.address, strnlen(identity.address, sizeof identity.address));
  if (!bootstrap::check_root(address)) {
    return fail(Status::kInvalidArgument,
                fmt::format("rank {} published an impossible connector address: gather the identities of "
                            "all ranks, by rank",
                            rank));
  }
  return address;
}

}  // namespace

ConnectorService::ConnectorService(const ConnectorOptions& options, Descriptor listener, std::uint64_t token)
    : place_{0, options.rank, options.size, options.lanes},
      rules_(options.rules),
      secret_(options.secret),
      token_(token),
      listener_(std::move(listener)),
      address_(bootstrap::own_text(listener_)) {}

ConnectorService::~ConnectorService() {
  stopping_ = true;
  if (thread_.joinable()) thread_.join();
}

Result<std::unique_ptr<ConnectorService>> ConnectorService::listen(const ConnectorOptions& options) {
  GDX_TRY(check_options(options));
  std::uint64_t token = 0;
  if (getrandom(&token, sizeof token, 0) != static_cast<ssize_t>(sizeof token)) {
    return fail(Status::kSystem, fmt::format("no random bytes to be had: {}", std::strerror(errno)));
  }
  auto listener = GDX_TRY(bootstrap::listen_on(options.host));
  return std::unique_ptr<ConnectorService>(new ConnectorService(options, std::move(listener), token));
}

ConnectorIdentity ConnectorService::identity() const {
  ConnectorIdentity identity{};
  identity.version = bootstrap::kConnectorVersion;
  identity.token = token_;
  std::memcpy(identity.address, address_.data(), std::min(address_.size(), sizeof identity.address - 1));
  return identity;
}

Result<void> ConnectorService::start(std::span<const ConnectorIdentity> identities, ConnectorHost& host,
                                     std::uint32_t* asked) {
  if (thread_.joinable() || identities.size() != place_.size) {
    return fail(
        Status::kInvalidArgument,
        fmt::format("a connector of {} ranks cannot start with {} identities: start it once, with those "
                    "of all ranks",
                    place_.size, identities.size()));
  }
  std::vector<std::string> addresses;
  addresses.reserve(identities.size());
  for (const ConnectorIdentity& identity : identities) {
    addresses.push_back(GDX_TRY(address_of(identity, addresses.size())));
  }
  addresses_ = std::move(addresses);
  place_.team = identities.front().token;
  reception_.emplace(std::move(listener_), channel_place(), secret_);
  host_ = &host;
  asked_ = asked;
  connector_.emplace(place_, rules_, static_cast<ConnectorPort&>(*this));
  try {
    thread_ = start_library_thread([this] { serve(); });
  } catch (const std::system_error& error) {
    return fail(Status::kNoMemory,
                fmt::format("no thread for the connections of a team: {}; raise the limits on processes and "
                            "memory (ulimit -u, -v)",
                            error.what()));
  }
  return {};
}

Result<void> ConnectorService::connect(std::uint32_t rank, std::uint32_t lane, std::uint64_t timeout_ns) {
  if (rank >= place_.size || lane >= place_.lanes || !thread_.joinable()) {
    return fail(Status::kInvalidArgument,
                fmt::format("no connection to rank {} on lane {}: use ranks below {} and lanes below {}, and "
                            "start the connector",
                            rank, lane, place_.size, place_.lanes));
  }
  const Key key{rank, lane};
  std::unique_lock lock(mutex_);
  requests_.push_back(key);
  const bool done = changed_.wait_for(lock, std::chrono::nanoseconds(timeout_ns),
                                      [&] { return aborted_ || outcomes_.find(key) != outcomes_.end(); });
  if (!done) {
    return fail(Status::kTimeout, fmt::format("rank {} was not connected on lane {} in {:.3f} s: wait longer",
                                              rank, lane, static_cast<double>(timeout_ns) / kNsPerSecond));
  }
  if (const auto found = outcomes_.find(key); found != outcomes_.end())
    return found->second ? tl::unexpected(*found->second) : Result<void>{};
  return fail(Status::kAborted,
              fmt::format("the wait for rank {} on lane {} was aborted: make a new team", rank, lane));
}

void ConnectorService::abort() {
  const std::lock_guard lock(mutex_);
  aborted_ = true;
  changed_.notify_all();
}

Result<EndpointAddress> ConnectorService::create(std::uint32_t rank, std::uint32_t lane) {
  return host_->create(rank, lane);
}

Result<void> ConnectorService::connect(std::uint32_t rank, std::uint32_t lane, const EndpointAddress& peer) {
  return host_->connect(rank, lane, peer);
}

void ConnectorService::ready(std::uint32_t rank, std::uint32_t lane) {
  host_->ready(rank, lane);
  const std::lock_guard lock(mutex_);
  outcomes_[{rank, lane}] = std::nullopt;
  changed_.notify_all();
}

void ConnectorService::gone(std::uint32_t rank, std::uint32_t lane, const Error& why) {
  log::warn("team: {}", why.message);
  host_->gone(rank, lane, why);
  const std::lock_guard lock(mutex_);
  outcomes_[{rank, lane}] = why;
  changed_.notify_all();
}

bootstrap::ChannelPlace ConnectorService::channel_place() const {
  return {FrameType::kConnector, place_.team, place_.rank};
}

Result<bootstrap::Connection> ConnectorService::begin_connection(std::uint32_t rank) const {
  auto socket = GDX_TRY(bootstrap::begin_connect(addresses_[rank]));
  return bootstrap::Connection::dial(std::move(socket), secret_, channel_place(), rank);
}

ChannelId ConnectorService::dial(std::uint32_t rank) {
  const ChannelId id = ++last_channel_;
  const std::string& to = addresses_[rank];
  auto connection = begin_connection(rank);
  if (connection) {
    channels_[id] = {std::move(*connection), true, false, to};
  } else {
    refused_.emplace_back(id, no_answer(to, connection.error()));
  }
  return id;
}

// Sends a letter. A failure is not told here, because it is found when the channel is read.
void ConnectorService::send(ChannelId channel, std::uint32_t rank, const ConnectorLetter& letter) {
  const auto found = channels_.find(channel);
  if (found == channels_.end()) return;
  const auto message = encode_letter(letter, place_, rank);
  bootstrap::Connection& connection = found->second.connection;
  connection.queue(
      bootstrap::encode_frame(FrameType::kConnector, place_.rank, 0, std::as_bytes(std::span(&message, 1))));
  (void)connection.flush();
}

void ConnectorService::close(ChannelId channel) { channels_.erase(channel); }

void ConnectorService::lose(ChannelId id, const Error& why) {
  channels_.erase(id);
  connector_->lost(id, why);
}

void ConnectorService::serve() {
  std::uint64_t pause_ns = kBusyPauseNs;
  bool ready = false;
  while (!stopping_) {
    bool active = take_asks();
    active |= take_requests();
    // Letters may have come while endpoints were made: they count before deadlines up to this time.
    const std::uint64_t now_ns = running_ns();
    if (ready || active || monotonic_ns() >= reception_->next_deadline_ns()) {
      active |= take_arrivals();
      active |= serve_channels();
    }
    connector_->tick(now_ns);
    for (const auto& [id, why] : std::exchange(refused_, {})) connector_->lost(id, why);
    pause_ns = active ? kBusyPauseNs : std::min(2 * pause_ns, kIdlePauseNs);
    ready = wait(pause_ns);
  }
}

// Begins behind this rank's own word, so that ranks that ask for all do not ask the same one first. A word
// that asks again, as waiting kernels store it, costs nothing and counts for nothing.
bool ConnectorService::take_asks() {
  if (asked_ == nullptr) return false;
  int begun = 0;
  for (std::uint32_t lane = 0; lane < place_.lanes; ++lane) {
    for (std::uint32_t i = 1; i <= place_.size && begun < kMostBegun; ++i) {
      const std::uint32_t rank = (place_.rank + i) % place_.size;
      std::atomic_ref word(asked_[std::size_t{lane} * place_.size + rank]);
      if (word.load(std::memory_order_relaxed) == 0) continue;
      word.store(0, std::memory_order_relaxed);
      if (connector_->state(rank, lane) != PairState::kIdle) continue;
      connector_->ask(running_ns(), rank, lane);
      ++begun;
    }
  }
  return begun != 0;
}

bool ConnectorService::take_requests() {
  std::vector<Key> requests;
  {
    const std::lock_guard lock(mutex_);
    requests.swap(requests_);
  }
  for (const auto& [rank, lane] : requests) connector_->ask(running_ns(), rank, lane);
  return !requests.empty();
}

std::uint64_t ConnectorService::running_ns() {
  const std::uint64_t now_ns = monotonic_ns();
  running_ns_ += std::min(now_ns - looked_ns_, kMostCountedNs);
  looked_ns_ = now_ns;
  return running_ns_;
}

bool ConnectorService::wait(std::uint64_t pause_ns) {
  const std::uint64_t now_ns = monotonic_ns();
  std::vector<pollfd> set;
  set.reserve(channels_.size() + bootstrap::kMaxStrangers + 1);
  const auto until = [](std::uint64_t due_ns, std::uint64_t from_ns) {
    return due_ns - std::min(due_ns, from_ns);
  };
  std::uint64_t left_ns = std::min(pause_ns, until(connector_->next_ns(), running_ns()));
  if (now_ns >= listen_again_ns_) {
    reception_->add_to(set);
    left_ns = std::min(left_ns, until(reception_->next_deadline_ns(), now_ns));
  }
  for (const auto& [id, channel] : channels_) {
    const short events = channel.connecting ? POLLOUT : channel.connection.events();
    set.push_back({channel.connection.socket().value(), events, 0});
  }
  const timespec left{0, static_cast<long>(left_ns)};
  return ::ppoll(set.data(), set.size(), &left, nullptr) > 0;
}

bool ConnectorService::take_arrivals() {
  if (monotonic_ns() < listen_again_ns_) return false;
  auto arrivals = reception_->receive();
  if (!arrivals) {
    log::warn("team: accepts no new ranks for a while: {}", arrivals.error().message);
    listen_again_ns_ = monotonic_ns() + kListenerRestNs;
    return false;
  }
  for (auto& arrival : *arrivals) {
    // Keeps the connection alive by probes, because a dialler that lost power never closes it.
    bootstrap::keep_alive(arrival.connection.socket());
    const ChannelId id = ++last_channel_;
    channels_[id] = {std::move(arrival.connection), false, true, {}};
    (void)take_frame(id, arrival.hello);
  }
  return !arrivals->empty();
}

bool ConnectorService::serve_channels() {
  std::vector<ChannelId> ids;
  ids.reserve(channels_.size());
  for (const auto& [id, channel] : channels_) ids.push_back(id);
  bool active = false;
  for (const ChannelId id : ids) {
    if (stopping_) break;
    active |= serve_channel(id);
  }
  return active;
}

bool ConnectorService::serve_channel(ChannelId id) {
  bool active = false;
  for (;;) {
    const auto found = channels_.find(id);
    if (found == channels_.end()) return true;
    Channel& channel = found->second;
    if (channel.connecting) {
      pollfd writable{channel.connection.socket().value(), POLLOUT, 0};
      if (::poll(&writable, 1, 0) != 1) return false;
      if (auto connected = bootstrap::finish_connect(channel.connection.socket()); !connected) {
        lose(id, no_answer(channel.to, connected.error()));
        return true;
      }
      channel.connecting = false;
      active = true;
    }
    if (!channel.opened && channel.connection.is_open()) {
      channel.opened = true;
      connector_->opened(id);
      continue;
    }
    (void)channel.connection.flush();
    auto frame = channel.connection.receive({FrameType::kConnector});
    if (!frame) {
      lose(id, {Status::kPeerGone, fmt::format("it {}", frame.error().message)});
      return true;
    }
    if (!*frame && !channel.opened && channel.connection.is_open()) continue;
    if (!*frame) return active;
    if (!take_frame(id, **frame)) return true;
    active = true;
  }
}

bool ConnectorService::take_frame(ChannelId id, const bootstrap::Frame& frame) {
  auto letter = decode_letter(frame.payload, place_);
  const auto proven = channels_[id].connection.proven_rank();
  if (letter && proven && *proven != letter->from)
    letter = fail(Status::kInvalidArgument,
                  fmt::format("sent a letter of rank {} with the key of rank {}", letter->from, *proven));
  if (!letter) {
    reception_->drop(channels_[id].connection, letter.error().message);
    lose(id, {Status::kPeerGone, fmt::format("it {}", letter.error().message)});
    return false;
  }
  connector_->received(running_ns(), id, *letter);
  return true;
}

}  // namespace gdx
