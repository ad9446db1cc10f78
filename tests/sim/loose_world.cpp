// UC and UD: much may be lost, but nothing may arrive torn, at the wrong queue pair or, on UC, twice.
#include <algorithm>
#include <memory>
#include <queue>
#include <vector>

#include "tests/sim/link.h"
#include "tests/sim/loose_node.h"
#include "tests/sim/random.h"
#include "tests/sim/scenario.h"
#include "tests/sim/world.h"

namespace gdx::sim {
namespace {

struct LooseScenario {
  LinkFaults faults;
  Service service = Service::kUc;
  std::uint32_t pairs = 1;
  bool shared_receives = false;
  bool plenty = false;  // of receives: nothing may be lost for want of one
  std::uint32_t operations = 0;
  std::uint32_t mtu_bytes = 256;
};

LooseScenario make_loose_scenario(Random& random) {
  LooseScenario scenario;
  scenario.faults = make_faults(random);
  scenario.service = random.chance(0.6) ? Service::kUc : Service::kUd;
  scenario.pairs = static_cast<std::uint32_t>(random.between(1, 3));
  scenario.shared_receives = random.chance(0.5);
  scenario.plenty = random.chance(0.5);
  scenario.operations = static_cast<std::uint32_t>(random.between(5, 40));
  scenario.mtu_bytes = 256u << random.between(0, 2);
  return scenario;
}

class LooseWorld {
 public:
  explicit LooseWorld(Random random)
      : random_(random),
        scenario_(make_loose_scenario(random_)),
        link_(scenario_.faults, random_, outcome_),
        pools_(2 * std::size_t{scenario_.pairs}) {
    for (std::uint32_t number = 0; number < 2 * scenario_.pairs; ++number) {
      first_psns_.push_back(static_cast<std::uint32_t>(random_.between(0xfffff0, 0xffffff)));
    }
    for (std::uint32_t number = 0; number < 2 * scenario_.pairs; ++number) {
      const LooseConfig config{.service = scenario_.service,
                               .number = number,
                               .mtu_bytes = scenario_.mtu_bytes,
                               .send_psn = first_psns_[number],
                               .receive_psn = first_psns_[number ^ 1]};
      nodes_.push_back(std::make_unique<LooseNode>(
          config, pools_[pool_of(number)],
          [this, number](std::vector<std::byte> datagram) { transmit(number, std::move(datagram)); }));
      schedule(random_.between(0, 100) * kMicrosecondNs, number, Event::Kind::kPost);
      if (scenario_.plenty) {
        pools_[pool_of(number)].posted = 1 << 20;
      } else {
        schedule(0, number, Event::Kind::kReplenish);
      }
    }
    for (auto& node : nodes_) {
      for (auto& sender : nodes_) {
        if (LooseNode::may_hear(*node, *sender)) node->expect_from(*sender);
      }
    }
  }

  Outcome run() {
    while (!events_.empty() && outcome_.problem.empty()) {
      Event event = events_.top();
      events_.pop();
      now_ns_ = event.time_ns;
      dispatch(event);
    }
    conclude();
    return outcome_;
  }

 private:
  struct Event {
    enum class Kind : std::uint8_t { kDatagram, kPost, kReplenish, kPump };
    std::uint64_t time_ns = 0;
    std::uint64_t order = 0;  // ties are broken by age
    std::size_t node = 0;
    Kind kind = Kind::kPump;
    std::vector<std::byte> datagram;

    bool operator>(const Event& other) const {
      return time_ns != other.time_ns ? time_ns > other.time_ns : order > other.order;
    }
  };

  [[nodiscard]] std::size_t pool_of(std::size_t node) const {
    return scenario_.shared_receives ? node & 1 : node;
  }
  void schedule(std::uint64_t time_ns, std::size_t node, Event::Kind kind,
                std::vector<std::byte> datagram = {}) {
    events_.push({time_ns, order_++, node, kind, std::move(datagram)});
  }
  void transmit(std::size_t from, std::vector<std::byte> datagram) {
    (void)link_.transmit(now_ns_, from & 1, std::move(datagram),
                         [&](std::uint64_t time_ns, std::vector<std::byte> copy) {
                           schedule(time_ns, from ^ 1, Event::Kind::kDatagram, std::move(copy));
                         });
  }
  void dispatch(const Event& event);
  void post_some(std::size_t number);
  void conclude();

  Random random_;
  LooseScenario scenario_;
  Outcome outcome_;
  Link link_;
  std::vector<ReceivePool> pools_;
  std::vector<std::uint32_t> first_psns_;
  std::vector<std::unique_ptr<LooseNode>> nodes_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::uint64_t now_ns_ = 0;
  std::uint64_t order_ = 0;
};

void LooseWorld::post_some(std::size_t number) {
  LooseNode& node = *nodes_[number];
  for (std::uint64_t burst = random_.between(1, 6); burst > 0 && node.posted() < scenario_.operations;
       --burst) {
    node.post(random_, scenario_.pairs);
  }
  schedule(now_ns_ + random_.between(100, 2000), number, Event::Kind::kPump);
  if (node.posted() < scenario_.operations) {
    schedule(now_ns_ + random_.between(0, 100) * kMicrosecondNs, number, Event::Kind::kPost);
  }
}

void LooseWorld::dispatch(const Event& event) {
  LooseNode& node = *nodes_[event.node];
  switch (event.kind) {
    case Event::Kind::kPost: post_some(event.node); break;
    case Event::Kind::kReplenish:
      pools_[pool_of(event.node)].posted += random_.between(0, 3);
      if (node.posted() < scenario_.operations) {
        schedule(now_ns_ + random_.between(1, 60) * kMicrosecondNs, event.node, Event::Kind::kReplenish);
      }
      break;
    case Event::Kind::kPump:
      node.pump(static_cast<std::uint32_t>(random_.between(1, 8)));
      if (node.can_send()) schedule(now_ns_ + random_.between(200, 3000), event.node, Event::Kind::kPump);
      break;
    case Event::Kind::kDatagram: {
      const std::size_t host = event.node & 1;
      const std::span<const std::byte> inside = Link::open(1 - host, event.datagram);
      if (inside.empty()) break;
      for (std::size_t i = host; i < nodes_.size(); i += 2) nodes_[i]->on_datagram(inside);
      break;
    }
  }
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (outcome_.problem.empty() && !nodes_[i]->problem().empty()) {
      outcome_.problem = "node " + std::to_string(i) + ": " + nodes_[i]->problem();
    }
  }
}

void LooseWorld::conclude() {
  outcome_.scenario = text_of(scenario_.faults) + (scenario_.service == Service::kUc ? ", UC" : ", UD") +
                      ", " + std::to_string(scenario_.pairs) + " queue pairs" +
                      (scenario_.shared_receives ? " on shared receive queues" : "");
  const bool nothing_lost = scenario_.faults.none() && scenario_.plenty;
  const bool may_repeat = scenario_.service == Service::kUd && scenario_.faults.duplication > 0;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    outcome_.completions += nodes_[i]->completed();
    outcome_.loose_deliveries += nodes_[i]->received();
    if (!outcome_.problem.empty()) continue;
    const std::string problem = nodes_[i]->verdict(nothing_lost, may_repeat);
    if (!problem.empty()) outcome_.problem = "node " + std::to_string(i) + ": " + problem;
  }
  outcome_.finished = true;
}

}  // namespace

Outcome run_unacknowledged(Random random) { return LooseWorld(random).run(); }

}  // namespace gdx::sim
