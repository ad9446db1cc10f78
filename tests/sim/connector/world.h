// Production connectors of a whole team in virtual time, against an oracle. Channels keep their order as TCP
// does. A seed chooses who asks for whom and when, delays, and broken and cut channels. It also chooses ranks
// that pause or die, and endpoints that are refused or must wait. The oracle knows every endpoint of every
// rank.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "host/team/connector.h"
#include "tests/sim/random.h"
#include "tests/sim/seeds.h"

namespace gdx::sim {

struct ConnectorOutcome {
  std::string problem;      // empty: every promise was kept
  std::uint64_t used = 0;   // pairs and lanes that somebody asked for
  std::uint64_t ready = 0;  // ends of pairs
  std::uint64_t gone = 0;
  std::uint64_t crossed = 0;  // pairs that both ranks asked for
  std::uint64_t letters = 0;
  std::uint64_t dials = 0;
  std::uint64_t breaks = 0;
  std::uint64_t deaths = 0;
  std::uint64_t busy = 0;        // creations put off
  std::uint64_t refusals = 0;    // creations and connections refused for good
  std::uint64_t longest_ns = 0;  // from an ask to ready

  void add(const ConnectorOutcome& other);
};

class ConnectorWorld {
 public:
  // `ranks` of 0: the seed chooses 2 to 24.
  explicit ConnectorWorld(std::uint64_t seed, std::uint32_t ranks = 0);
  ~ConnectorWorld();
  [[nodiscard]] ConnectorOutcome run();

 private:
  class Rank;
  using Key = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>;  // owner, peer, lane

  struct Endpoint {
    EndpointAddress address{};
    std::uint32_t connected_qpn = 0;
    bool destroyed = false;
  };
  // One end of a pair, as its rank's host sees it.
  struct End {
    std::uint64_t begun_ns = 0;
    std::optional<Endpoint> endpoint;
    std::uint32_t busy_left = 0;  // creations that will find no room yet
    bool refuses = false;         // this host, for good
    bool asked = false;
    bool ready = false;
    bool gone = false;
  };
  // A TCP connection; side 0 dialled it.
  struct Link {
    std::uint32_t rank[2] = {};
    bool ended[2] = {};                // to the machine of that side
    bool known[2] = {};                // to the machine of that side
    bool broken = false;               // nothing more arrives
    std::uint64_t arrives_ns[2] = {};  // of the last letter of this side
  };
  struct Event {
    std::uint64_t time_ns = 0;
    std::uint64_t order = 0;
    std::uint32_t rank = 0;  // waits until this rank is awake
    std::function<void()> act;
    bool operator>(const Event& other) const {
      return time_ns != other.time_ns ? time_ns > other.time_ns : order > other.order;
    }
  };

  void at(std::uint64_t time_ns, std::uint32_t rank, std::function<void()> act);
  void plan_traffic();
  void plan_hub();
  void plan_misfortune();
  void ask(std::uint32_t rank, std::uint32_t peer, std::uint32_t lane);
  void die(std::uint32_t rank, bool vanishes);
  void break_link(ChannelId channel);
  void report_loss(ChannelId channel, int side, std::uint64_t time_ns, const char* why,
                   Status status = Status::kPeerGone);
  void after_event(std::uint32_t rank);
  [[nodiscard]] std::uint64_t delay_ns();
  [[nodiscard]] std::uint64_t arrival_ns(Link& link, int side);
  [[nodiscard]] bool cut(std::uint32_t a, std::uint32_t b) const;
  End& end_of(std::uint32_t owner, std::uint32_t peer, std::uint32_t lane);
  [[nodiscard]] bool excused(std::uint32_t a, std::uint32_t b, std::uint32_t lane);

  // The ranks' port.
  Result<EndpointAddress> create(std::uint32_t owner, std::uint32_t peer, std::uint32_t lane);
  Result<void> connect(std::uint32_t owner, std::uint32_t peer, std::uint32_t lane,
                       const EndpointAddress& to);
  void ready(std::uint32_t owner, std::uint32_t peer, std::uint32_t lane);
  void gone(std::uint32_t owner, std::uint32_t peer, std::uint32_t lane, const Error& why);
  ChannelId dial(std::uint32_t owner, std::uint32_t peer);
  void send(std::uint32_t owner, ChannelId channel, std::uint32_t to, const ConnectorLetter& letter);
  void close(std::uint32_t owner, ChannelId channel);

  void check_in_time(const Key& key, const End& end);
  void check_end();
  void check_pairs();
  void check_links();
  void expect(bool holds, const std::string& what);

  Random random_;
  ConnectorRules rules_;
  std::uint32_t lanes_;
  bool large_;
  double breaks_;
  double trouble_;  // chance that a host refuses, or has no room yet
  std::uint64_t base_delay_ns_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::map<Key, End> ends_;
  std::map<std::uint32_t, Key> owners_;  // of endpoints, by QPN
  std::map<ChannelId, Link> links_;
  std::set<std::pair<std::uint32_t, std::uint32_t>> cut_;
  std::uint64_t cut_ns_ = 0;  // from then on
  std::uint64_t now_ns_ = 1'000'000;
  std::uint64_t order_ = 0;
  std::uint64_t slept_ns_ = 0;  // the longest that a rank pauses, in all
  ChannelId last_channel_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  ConnectorOutcome outcome_;
};

}  // namespace gdx::sim
