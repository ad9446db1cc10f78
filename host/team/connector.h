// Connects a rank to the used ranks of its team, one endpoint on each side for each rank and lane. Pure:
// events in with their time, calls of a port out; no socket, thread or clock.
//
// Both ranks may ask at once, and no rank yields. An endpoint is made once for a rank and lane. A message
// states its sender's progress, which only rises. So a message may come twice, late, or by another channel.
// The messages are in proto/bootstrap/connector.h.
//
//   state       own endpoint    peer        leaves for
//   kIdle       none            unknown     kWanted: asked here or by the peer
//   kWanted     none yet        unknown     kOffering: created; waits and tries again while it is kBusy
//   kOffering   created         unknown     kConnected: the peer's address came
//   kConnected  can receive     address     kReady: the peer's endpoint can receive
//   kReady      can receive     can receive
//   kGone       the host's      refused, or not ready by the deadline; final
//
// Each state but kIdle and kGone goes to kGone on a refusal. All between kIdle and kReady do so at the
// deadline, and where nobody listens at the peer's address.
//
// A channel is a TCP connection. The rank that dialled it closes it once nothing waits on it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "host/queue/endpoint_address.h"
#include "host/team/connector_letter.h"

namespace gdx {

inline constexpr std::uint64_t kFirstRetryPauseNs = 10'000'000;  // doubled by each further try
inline constexpr std::uint64_t kMostRetryPauseNs = 320'000'000;
inline constexpr std::uint32_t kMostRefusals = 6;  // dials in a row for which nobody listened: 0.3 s
// Time that a dialled channel may be silent while other ranks wait.
inline constexpr std::uint64_t kDialTurnNs = 500'000'000;

struct ConnectorRules {
  std::uint64_t deadline_ns = 4'000'000'000;  // from asking until the pair is ready or gone
  std::uint32_t most_dialled = 64;            // channels that this rank holds by dialling; 1 or more
};

// The endpoints of a rank, as its connector uses them. Calls come one at a time.
class ConnectorHost {
 public:
  virtual ~ConnectorHost() = default;
  // Creates the endpoint for `rank` on `lane`. Called again only after kBusy.
  // Errors: kBusy (tried again until the deadline); any other is final.
  [[nodiscard]] virtual Result<EndpointAddress> create(std::uint32_t rank, std::uint32_t lane) = 0;
  // Connects that endpoint; once. For this process's own rank `peer` is the endpoint's own address. Errors:
  // all are final.
  [[nodiscard]] virtual Result<void> connect(std::uint32_t rank, std::uint32_t lane,
                                             const EndpointAddress& peer) = 0;
  // Tells that both endpoints can receive, so that kernels may post.
  virtual void ready(std::uint32_t rank, std::uint32_t lane) = 0;
  // Tells that the rank cannot be connected on this lane, or after ready() that the peer has given up. No
  // further call names this rank and lane, so the endpoint, if there is one, is the host's to destroy. kBusy:
  // an endpoint was not to be had by the deadline; kPeerUnreachable: no answer came.
  virtual void gone(std::uint32_t rank, std::uint32_t lane, const Error& why) = 0;
};

// Number of a channel, of the port's choice: not 0, and never used again.
using ChannelId = std::uint64_t;

// Surroundings of a connector. No call may lead back into the connector.
class ConnectorPort : public ConnectorHost {
 public:
  // Begins to open a channel to `rank`: opened() or lost() follows.
  [[nodiscard]] virtual ChannelId dial(std::uint32_t rank) = 0;
  virtual void send(ChannelId channel, std::uint32_t rank, const ConnectorLetter& letter) = 0;
  // Ends the channel behind what was sent. No event of it may follow.
  virtual void close(ChannelId channel) = 0;
};

enum class PairState : std::uint8_t { kIdle, kWanted, kOffering, kConnected, kReady, kGone };

// Threads: externally synchronised.
class Connector {
 public:
  Connector(const ConnectorPlace& place, const ConnectorRules& rules, ConnectorPort& port)
      : place_(place), rules_(rules), port_(port) {}

  // A kernel or the host needs the connection; no effect after the first time.
  void ask(std::uint64_t now_ns, std::uint32_t rank, std::uint32_t lane);
  // Takes note that a dialled channel is open.
  void opened(ChannelId channel);
  // Takes note that a channel has ended or was not opened, and why. kNotFound: nobody listens there, so the
  // rank, which listened before it told its address, has ended. It is given up when that is so again and
  // again.
  void lost(ChannelId channel, const Error& why);
  // Handles a letter. One on an unknown channel is the first on a channel that its sender has dialled.
  void received(std::uint64_t now_ns, ChannelId channel, const ConnectorLetter& letter);
  // Does what is due by now, and dials.
  void tick(std::uint64_t now_ns);
  // Returns the time of the next tick that is needed; the largest value without one.
  [[nodiscard]] std::uint64_t next_ns() const;

  [[nodiscard]] PairState state(std::uint32_t rank, std::uint32_t lane) const;

 private:
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};

  struct Pair {
    PairState state = PairState::kIdle;
    EndpointAddress mine{};
    EndpointAddress theirs{};
    std::uint64_t deadline_ns = kNever;
    std::uint64_t retry_ns = kNever;  // kWanted: of the next creation
    std::uint64_t pause_ns = kFirstRetryPauseNs;
    // Reason for which one end has no endpoint yet, and then of the deadline.
    std::optional<Error> shortage = std::nullopt;
    ChannelId told = 0;  // channel that has the newest letter of this side; 0: none, so one is due
    Error why;           // kGone: for the peer
  };
  struct Peer {
    std::vector<Pair> lanes;
    ChannelId dialled = 0;
    bool open = false;  // `dialled` is
    ChannelId accepted = 0;
    std::uint64_t dialled_ns = 0;  // time of the newest dialling
    std::uint64_t dial_ns = 0;     // the next is not before
    std::uint64_t pause_ns = kFirstRetryPauseNs;
    std::uint32_t refusals = 0;  // dials in a row for which nobody listened
    // The last since all its pairs were at rest, for the deadline's message.
    Error problem = {Status::kPeerUnreachable, "it did not answer"};
  };

  [[nodiscard]] static bool making(const Pair& pair);
  [[nodiscard]] static bool making_any(const Peer& peer);
  [[nodiscard]] static ChannelId open_channel(const Peer& peer) {
    return peer.open ? peer.dialled : peer.accepted;
  }
  [[nodiscard]] static bool must_dial(const Peer& peer);
  Peer& peer_of(std::uint32_t rank);

  void begin(std::uint64_t now_ns, std::uint32_t rank, Pair& pair);
  // Creates the endpoint of a pair in kWanted; false when that failed.
  [[nodiscard]] bool create(std::uint64_t now_ns, std::uint32_t rank, std::uint32_t lane);
  [[nodiscard]] bool connect(std::uint32_t rank, std::uint32_t lane, const EndpointAddress& theirs);
  void publish_ready(std::uint32_t rank, std::uint32_t lane);
  void give_up(std::uint32_t rank, std::uint32_t lane, Error why, bool by_peer = false);

  void take(std::uint64_t now_ns, ChannelId channel, const ConnectorLetter& letter);
  void take_address(std::uint64_t now_ns, ChannelId channel, const ConnectorLetter& letter);
  // Brings the pair to kConnected. Returns whether it is there.
  [[nodiscard]] bool meet(std::uint64_t now_ns, ChannelId channel, const ConnectorLetter& letter);
  void send_address(ChannelId channel, std::uint32_t rank, std::uint32_t lane);
  void send_reason(ChannelId channel, std::uint32_t rank, std::uint32_t lane, ConnectorKind kind, Error why);

  // Sends the letters that are due, and closes the channel on which nothing waits.
  void send_due_or_close(std::uint32_t rank);
  void tick_pair(std::uint64_t now_ns, std::uint32_t rank, std::uint32_t lane);
  void dial_waiting(std::uint64_t now_ns);
  // Ends the turn of the channel that was dialled first, if its turn is over.
  [[nodiscard]] bool end_turn(std::uint64_t now_ns);
  // Forgets a channel that has ended.
  void drop(std::uint32_t rank, ChannelId channel);

  ConnectorPlace place_;
  ConnectorRules rules_;
  ConnectorPort& port_;
  std::map<std::uint32_t, Peer> peers_;  // those that were ever asked for, or that asked
  std::map<ChannelId, std::uint32_t> channels_;
  std::set<std::uint32_t> busy_;  // peers that a pair is being made with
  std::uint32_t dialled_ = 0;
};

}  // namespace gdx
