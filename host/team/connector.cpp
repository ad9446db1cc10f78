#include "host/team/connector.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <utility>

namespace gdx {
namespace {

constexpr double kNsPerSecond = 1e9;

Error named(std::uint32_t rank, std::uint32_t lane, const Error& why) {
  return {why.status, fmt::format("rank {} cannot be connected on lane {}: {}", rank, lane, why.message)};
}

std::uint64_t longer(std::uint64_t pause_ns) { return std::min(2 * pause_ns, kMostRetryPauseNs); }

}  // namespace

bool Connector::making(const Pair& pair) {
  switch (pair.state) {
    case PairState::kWanted:
    case PairState::kOffering:
    case PairState::kConnected: return true;
    case PairState::kIdle:
    case PairState::kReady:
    case PairState::kGone: return false;
  }
  return false;
}

bool Connector::making_any(const Peer& peer) {
  return std::any_of(peer.lanes.begin(), peer.lanes.end(), making);
}

// Returns whether a channel to the peer is needed. A pair without an endpoint needs none, because it has
// nothing to say yet.
bool Connector::must_dial(const Peer& peer) {
  if (peer.dialled != 0 || peer.accepted != 0) return false;
  return std::any_of(peer.lanes.begin(), peer.lanes.end(),
                     [](const Pair& pair) { return making(pair) && pair.state != PairState::kWanted; });
}

Connector::Peer& Connector::peer_of(std::uint32_t rank) {
  assert(rank < place_.size);
  Peer& peer = peers_[rank];
  if (peer.lanes.empty()) peer.lanes.resize(place_.lanes);
  return peer;
}

PairState Connector::state(std::uint32_t rank, std::uint32_t lane) const {
  const auto peer = peers_.find(rank);
  return peer == peers_.end() ? PairState::kIdle : peer->second.lanes[lane].state;
}

void Connector::ask(std::uint64_t now_ns, std::uint32_t rank, std::uint32_t lane) {
  Pair& pair = peer_of(rank).lanes[lane];
  if (pair.state != PairState::kIdle) return;
  begin(now_ns, rank, pair);
  // An endpoint for this process itself is connected to itself.
  if (create(now_ns, rank, lane) && rank == place_.rank && connect(rank, lane, pair.mine)) {
    publish_ready(rank, lane);
  }
  send_due_or_close(rank);
}

void Connector::begin(std::uint64_t now_ns, std::uint32_t rank, Pair& pair) {
  pair.state = PairState::kWanted;
  pair.deadline_ns = now_ns + rules_.deadline_ns;
  busy_.insert(rank);
}

bool Connector::create(std::uint64_t now_ns, std::uint32_t rank, std::uint32_t lane) {
  Pair& pair = peers_[rank].lanes[lane];
  assert(pair.state == PairState::kWanted);
  auto address = port_.create(rank, lane);
  if (address) {
    pair.mine = *address;
    pair.shortage.reset();
    pair.state = PairState::kOffering;
    return true;
  }
  if (address.error().status == Status::kBusy) {
    pair.shortage = address.error();
    pair.retry_ns = now_ns + pair.pause_ns;
    pair.pause_ns = longer(pair.pause_ns);
  } else {
    give_up(rank, lane, named(rank, lane, address.error()));
  }
  return false;
}

bool Connector::connect(std::uint32_t rank, std::uint32_t lane, const EndpointAddress& theirs) {
  Pair& pair = peers_[rank].lanes[lane];
  assert(pair.state == PairState::kOffering);
  if (auto connected = port_.connect(rank, lane, theirs); !connected) {
    give_up(rank, lane, named(rank, lane, connected.error()));
    return false;
  }
  pair.theirs = theirs;
  pair.shortage.reset();
  pair.state = PairState::kConnected;
  return true;
}

void Connector::publish_ready(std::uint32_t rank, std::uint32_t lane) {
  Pair& pair = peers_[rank].lanes[lane];
  assert(pair.state == PairState::kConnected);
  pair.state = PairState::kReady;
  port_.ready(rank, lane);
}

// The peer learns it now, if a channel is open, or else when it asks.
void Connector::give_up(std::uint32_t rank, std::uint32_t lane, Error why, bool by_peer) {
  Peer& peer = peers_[rank];
  Pair& pair = peer.lanes[lane];
  assert(pair.state != PairState::kIdle && pair.state != PairState::kGone);
  pair.state = PairState::kGone;
  pair.why = why;
  port_.gone(rank, lane, why);
  const ChannelId channel = open_channel(peer);
  if (!by_peer && channel != 0) send_reason(channel, rank, lane, ConnectorKind::kRefusal, std::move(why));
}

void Connector::opened(ChannelId channel) {
  const auto found = channels_.find(channel);
  if (found == channels_.end()) return;
  peers_[found->second].open = true;
  peers_[found->second].refusals = 0;
  send_due_or_close(found->second);
}

void Connector::drop(std::uint32_t rank, ChannelId channel) {
  Peer& peer = peers_[rank];
  channels_.erase(channel);
  if (peer.dialled == channel) {
    peer.dialled = 0;
    peer.open = false;
    --dialled_;
  } else {
    peer.accepted = 0;
  }
  for (Pair& pair : peer.lanes) {
    if (pair.told == channel) pair.told = 0;
  }
}

void Connector::lost(ChannelId channel, const Error& why) {
  const auto found = channels_.find(channel);
  if (found == channels_.end()) return;
  const std::uint32_t rank = found->second;
  Peer& peer = peers_[rank];
  peer.problem = {Status::kPeerUnreachable, why.message};
  peer.refusals = why.status == Status::kNotFound ? peer.refusals + 1 : 0;
  drop(rank, channel);
  for (std::uint32_t lane = 0; peer.refusals == kMostRefusals && lane < place_.lanes; ++lane) {
    if (!making(peer.lanes[lane])) continue;
    give_up(rank, lane,
            {Status::kPeerUnreachable,
             fmt::format("rank {} was not connected on lane {} ({}, {} times): it has ended, see why", rank,
                         lane, why.message, kMostRefusals)});
  }
  send_due_or_close(rank);
}

void Connector::received(std::uint64_t now_ns, ChannelId channel, const ConnectorLetter& letter) {
  assert(letter.from < place_.size && letter.from != place_.rank && letter.lane < place_.lanes);
  const std::uint32_t rank = letter.from;
  Peer& peer = peer_of(rank);
  peer.refusals = 0;
  const auto [entry, is_new] = channels_.emplace(channel, rank);
  if (is_new) {
    // A rank dials only when it has no other channel, so an older one is about to be lost.
    if (const ChannelId older = peer.accepted; older != 0) {
      drop(rank, older);
      port_.close(older);
    }
    peer.accepted = channel;
  } else if (entry->second != rank) {
    port_.close(channel);
    return lost(channel, {Status::kPeerGone, fmt::format("it spoke as rank {}", rank)});
  }
  take(now_ns, channel, letter);
  send_due_or_close(rank);
}

void Connector::take(std::uint64_t now_ns, ChannelId channel, const ConnectorLetter& letter) {
  const std::uint32_t rank = letter.from;
  Peer& peer = peers_[rank];
  Pair& pair = peer.lanes[letter.lane];
  switch (letter.kind) {
    case ConnectorKind::kAsk:
    case ConnectorKind::kAnswer:
    case ConnectorKind::kDone: return take_address(now_ns, channel, letter);
    case ConnectorKind::kNotNow:
      // Keeps the reason and waits, because the peer asks by itself once its endpoint exists.
      if (making(pair)) pair.shortage = letter.why;
      return;
    case ConnectorKind::kRefusal:
      if (pair.state == PairState::kIdle || pair.state == PairState::kGone) return;
      return give_up(rank, letter.lane,
                     {letter.why.status, fmt::format("rank {} refused the connection on lane {}: {}", rank,
                                                     letter.lane, letter.why.message)},
                     true);
  }
}

void Connector::take_address(std::uint64_t now_ns, ChannelId channel, const ConnectorLetter& letter) {
  if (!meet(now_ns, channel, letter)) return;
  const Pair& pair = peers_[letter.from].lanes[letter.lane];
  if (letter.kind != ConnectorKind::kAsk && pair.state == PairState::kConnected) {
    publish_ready(letter.from, letter.lane);
  }
  if (letter.kind != ConnectorKind::kDone) send_address(channel, letter.from, letter.lane);
}

bool Connector::meet(std::uint64_t now_ns, ChannelId channel, const ConnectorLetter& letter) {
  const std::uint32_t rank = letter.from;
  Pair& pair = peers_[rank].lanes[letter.lane];
  const auto forbid = [&](const char* what) {
    give_up(rank, letter.lane,
            {Status::kInvalidArgument, fmt::format("rank {} {} on lane {}: end it, and run the same gdx on "
                                                   "all ranks",
                                                   rank, what, letter.lane)});
    return false;
  };
  switch (pair.state) {
    case PairState::kGone:
      send_reason(channel, rank, letter.lane, ConnectorKind::kRefusal, pair.why);
      return false;
    case PairState::kIdle: begin(now_ns, rank, pair); [[fallthrough]];
    case PairState::kWanted:
      if (letter.kind != ConnectorKind::kAsk) return forbid("connected to an endpoint that does not exist");
      if (!create(now_ns, rank, letter.lane)) {
        if (pair.state == PairState::kWanted) {
          send_reason(channel, rank, letter.lane, ConnectorKind::kNotNow,
                      {Status::kBusy, pair.shortage->message});
        }
        return false;
      }
      [[fallthrough]];
    case PairState::kOffering:
      if (letter.kind == ConnectorKind::kDone) return forbid("took this side's endpoint for connected");
      if (letter.kind == ConnectorKind::kAnswer && letter.connected_qpn != pair.mine.qpn)
        return forbid("connected to another endpoint");
      return connect(rank, letter.lane, letter.address);
    case PairState::kConnected:
    case PairState::kReady:
      if (letter.address != pair.theirs) return forbid("named another endpoint than before");
      if (letter.kind != ConnectorKind::kAsk && letter.connected_qpn != pair.mine.qpn)
        return forbid("connected to another endpoint");
      return true;
  }
  return false;
}

void Connector::send_address(ChannelId channel, std::uint32_t rank, std::uint32_t lane) {
  Pair& pair = peers_[rank].lanes[lane];
  ConnectorLetter letter;
  letter.kind = pair.state == PairState::kOffering    ? ConnectorKind::kAsk
                : pair.state == PairState::kConnected ? ConnectorKind::kAnswer
                                                      : ConnectorKind::kDone;
  letter.from = place_.rank;
  letter.lane = lane;
  letter.connected_qpn = pair.state == PairState::kOffering ? 0 : pair.theirs.qpn;
  letter.address = pair.mine;
  pair.told = channel;
  port_.send(channel, rank, letter);
}

void Connector::send_reason(ChannelId channel, std::uint32_t rank, std::uint32_t lane, ConnectorKind kind,
                            Error why) {
  ConnectorLetter letter;
  letter.kind = kind;
  letter.from = place_.rank;
  letter.lane = lane;
  letter.why = std::move(why);
  port_.send(channel, rank, letter);
}

void Connector::send_due_or_close(std::uint32_t rank) {
  Peer& peer = peers_[rank];
  const ChannelId channel = open_channel(peer);
  bool busy = false;
  for (std::uint32_t lane = 0; lane < place_.lanes; ++lane) {
    const Pair& pair = peer.lanes[lane];
    if (!making(pair)) continue;
    busy = true;
    const bool due = pair.told == 0 && pair.state != PairState::kWanted;
    if (due && channel != 0) send_address(channel, rank, lane);
  }
  if (busy) return;
  busy_.erase(rank);
  peer.problem = Peer().problem;
  peer.pause_ns = kFirstRetryPauseNs;
  peer.refusals = 0;
  if (const ChannelId idle = peer.dialled; idle != 0) {
    drop(rank, idle);
    port_.close(idle);
  }
}

void Connector::tick(std::uint64_t now_ns) {
  const std::vector<std::uint32_t> busy(busy_.begin(), busy_.end());
  for (const std::uint32_t rank : busy) {
    for (std::uint32_t lane = 0; lane < place_.lanes; ++lane) tick_pair(now_ns, rank, lane);
    send_due_or_close(rank);
  }
  dial_waiting(now_ns);
}

void Connector::tick_pair(std::uint64_t now_ns, std::uint32_t rank, std::uint32_t lane) {
  Peer& peer = peers_[rank];
  Pair& pair = peer.lanes[lane];
  if (!making(pair)) return;
  if (pair.deadline_ns <= now_ns) {
    const Error& why = pair.shortage ? *pair.shortage : peer.problem;
    return give_up(
        rank, lane,
        {why.status,
         fmt::format("rank {} was not connected on lane {} within {:.3f} s ({}): see "
                     "whether it still runs",
                     rank, lane, static_cast<double>(rules_.deadline_ns) / kNsPerSecond, why.message)});
  }
  if (pair.state != PairState::kWanted || pair.retry_ns > now_ns) return;
  pair.retry_ns = kNever;
  if (create(now_ns, rank, lane) && rank == place_.rank && connect(rank, lane, pair.mine)) {
    publish_ready(rank, lane);
  }
}

void Connector::dial_waiting(std::uint64_t now_ns) {
  std::vector<std::uint32_t> waiting;
  for (const std::uint32_t rank : busy_) {
    const Peer& peer = peers_[rank];
    if (must_dial(peer) && peer.dial_ns <= now_ns) waiting.push_back(rank);
  }
  std::stable_sort(waiting.begin(), waiting.end(), [this](std::uint32_t a, std::uint32_t b) {
    return peers_[a].dial_ns < peers_[b].dial_ns;
  });
  for (const std::uint32_t rank : waiting) {
    if (dialled_ >= rules_.most_dialled && !end_turn(now_ns)) return;
    Peer& peer = peers_[rank];
    peer.dialled = port_.dial(rank);
    peer.open = false;
    peer.dialled_ns = now_ns;
    peer.dial_ns = now_ns + peer.pause_ns;
    peer.pause_ns = longer(peer.pause_ns);
    channels_.emplace(peer.dialled, rank);
    ++dialled_;
  }
}

bool Connector::end_turn(std::uint64_t now_ns) {
  const auto age = [this](std::uint32_t rank) {
    const Peer& peer = peers_.at(rank);
    return peer.dialled == 0 ? kNever : peer.dialled_ns;
  };
  const auto oldest = std::min_element(busy_.begin(), busy_.end(),
                                       [&](std::uint32_t a, std::uint32_t b) { return age(a) < age(b); });
  if (oldest == busy_.end() || age(*oldest) == kNever || age(*oldest) + kDialTurnNs > now_ns) return false;
  Peer& peer = peers_[*oldest];
  const ChannelId channel = peer.dialled;
  peer.dial_ns = now_ns + peer.pause_ns;
  drop(*oldest, channel);
  port_.close(channel);
  return true;
}

std::uint64_t Connector::next_ns() const {
  std::uint64_t next_ns = kNever;
  std::uint64_t dial_ns = kNever;  // time to dial the first that waits
  std::uint64_t turn_ns = dialled_ < rules_.most_dialled ? 0 : kNever;
  for (const std::uint32_t rank : busy_) {
    const Peer& peer = peers_.at(rank);
    if (must_dial(peer)) dial_ns = std::min(dial_ns, peer.dial_ns);
    if (peer.dialled != 0) turn_ns = std::min(turn_ns, peer.dialled_ns + kDialTurnNs);
    for (const Pair& pair : peer.lanes) {
      if (making(pair)) next_ns = std::min(next_ns, pair.deadline_ns);
      if (pair.state == PairState::kWanted) next_ns = std::min(next_ns, pair.retry_ns);
    }
  }
  return std::min(next_ns, std::max(dial_ns, turn_ns));
}

}  // namespace gdx
