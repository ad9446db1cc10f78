// The production scheduler, the exchange and the device's credit code in virtual time, against an oracle. For
// every slot the oracle records who may store to it and what the NIC must still find there. A seed chooses
// all events: pushes, completions, stalls of peers, errors, ends of kernels, and destroyed queue pairs. It
// chooses clients that die or turn hostile, and the order in which each side reads the other's words.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/impl/credits.h"
#include "host/staging/credit_exchange.h"
#include "tests/sim/credits/shared_kernel.h"
#include "tests/sim/credits/steps.h"
#include "tests/sim/random.h"
#include "tests/sim/seeds.h"

namespace gdx::sim {

// Kinds of endpoints: only exclusive ones; shared ones among them, whose threads run step by step; shared
// ones of one process without minima, as a team has them; those of two processes that share a pool, the
// tenants. A team's endpoints stay until it ends, some of them idle. A thread that waits for a slot takes
// back the others' slots. The first tenant begins when the kernels of the second have ended.
enum class Sharers { kNone, kSome, kTeam, kTenants };
inline constexpr std::uint32_t kMostTenants = 2;

// One endpoint: the client's credits on one side, its queue pair on the other.
struct CreditNode {
  explicit CreditNode(std::uint32_t slot_count);
  [[nodiscard]] CreditChannel channel();
  [[nodiscard]] StagingState credits() const {
    if (shared) return shared->credits();
    return kernel ? kernel->state() : state;
  }

  struct Work {
    std::uint32_t index;
    std::uint32_t slot;
    std::uint64_t payload;
  };

  CreditEndpoint number = 0;
  StagingHandle handle{};
  std::optional<device::impl::Credits> kernel;  // runs now
  StagingState state{};                         // between kernels
  std::unique_ptr<SharedKernel> shared;         // instead of both

  std::deque<Work> posted;
  std::uint32_t producer = 0;
  std::uint32_t rung = 0;
  std::uint32_t completed = 0;
  bool stalled = false;  // the peer never answers
  bool in_error = false;
  bool knows_error = false;
  bool dead = false;
  bool hostile = false;
  bool retired = false;
  std::uint32_t at_most = 0;
  std::uint64_t pushes = 0;

  std::uint64_t grants = 0;
  std::uint64_t told_at = 0;  // the scheduler's newest word to the endpoint
  CreditRequests requests{};
  CreditRequests seen{};  // values that have reached the scheduler
  struct Store {
    std::uint32_t CreditRequests::*word;
    std::uint32_t value;
  };
  std::deque<Store> unseen;  // and what is on its way, in the order in which it was published
  std::vector<std::uint32_t> granted_slots;
  std::vector<std::uint32_t> returned_slots;
  std::vector<HeldSlot> held;
};

struct CreditOutcome {
  std::string problem;  // empty: every promise was kept
  std::uint64_t steps = 0;
  std::uint64_t pushes = 0;
  std::uint64_t stalls = 0;
  std::uint64_t errors = 0;
  std::uint64_t deaths = 0;
  std::uint64_t bad_returns = 0;
  std::uint64_t thread_steps = 0;  // of shared endpoints
  std::uint64_t waits = 0;         // of their threads, for a credit

  void add(const CreditOutcome& other);
  // Returns the counters that a course tells, below kCourseHead.
  [[nodiscard]] std::string course() const;
};
inline constexpr char kCourseHead[] = "pushes stalls errors deaths bad_returns thread_steps waits";

class CreditWorld final : public SlotBooks, public PublishWitness {
 public:
  explicit CreditWorld(std::uint64_t seed, Sharers sharers = Sharers::kNone);

  // `steps` of chance, then those that can must get on, then everything must come home.
  [[nodiscard]] CreditOutcome run(std::uint32_t steps);

 private:
  using Node = CreditNode;

  void step();
  void pass_time();
  void act(Node& node);
  void act_shared(Node& node);
  void open();
  void push(Node& node);
  void ring(Node& node) { node.rung = node.producer; }
  void serve(Node& node);  // the NIC, one work request
  void poll_grants(Node& node);
  void drain(Node& node);
  void begin_kernel(Node& node);
  void end_kernel(Node& node);
  void scribble(Node& node);
  void destroy(std::size_t place);
  void poll();
  void show(Node& node);

  void check();
  void check_threshold(const std::vector<std::uint32_t>& before, std::uint32_t granted);
  void check_limits();
  void check_node(const Node& node);
  void check_ring(const Node& node, const std::vector<std::uint32_t>& ring, std::uint32_t first,
                  std::uint32_t count);
  void check_shared(const Node& node);
  void check_growth(const std::vector<std::uint32_t>& before);
  void count_slot(const Node& node, std::uint32_t slot);
  [[nodiscard]] bool may_all_be_stuck() const;
  [[nodiscard]] bool has_teams() const { return sharers_ == Sharers::kTeam || sharers_ == Sharers::kTenants; }
  [[nodiscard]] std::uint32_t tenants() const { return sharers_ == Sharers::kTenants ? kMostTenants : 1; }
  // Returns whether the node's threads run. Of two tenants, one at a time does.
  [[nodiscard]] bool runs(const Node& node) const { return node.shared->tenant() == running_; }
  void everybody_alive_gets_on();
  void everything_comes_home();
  void come_home(Node& node);
  void expect(bool holds, const char* what) override;
  void begin_fill(CreditEndpoint endpoint, std::uint32_t slot) override;
  void end_fill(std::uint32_t slot, std::uint64_t payload) override { memory_[slot] = payload; }
  void abandon(std::uint32_t slot) override { sending_[slot] = false; }
  [[nodiscard]] std::uint64_t now() const override { return now_; }
  [[nodiscard]] std::span<SharedKernel* const> team(std::uint32_t tenant) const override {
    return teams_[tenant];
  }
  void published(const std::uint32_t* to, std::uint32_t value) override;
  void bury(Node& node);
  [[nodiscard]] static std::uint64_t pushes_of(const Node& node) {
    return node.shared ? node.shared->least_pushes() : node.pushes;
  }
  [[nodiscard]] bool lacks(const Node& node) const;
  [[nodiscard]] bool retired(const Node& node) const { return node.retired || node.seen.failed != 0; }
  [[nodiscard]] bool waits(const Node& node) const;
  // Returns the `free` slots beyond those that open endpoints lack of their minima.
  [[nodiscard]] std::uint64_t spare(std::uint64_t free) const;
  [[nodiscard]] static bool healthy(const Node& node) {
    const bool patient = !node.shared || (node.shared->patient() && !node.shared->failed());
    const bool idles = node.shared && node.shared->idles();
    return !node.dead && !node.hostile && !node.in_error && !node.stalled && patient && !idles;
  }

  Random random_;
  Sharers sharers_;
  std::uint32_t running_;  // the tenant whose kernels run
  CreditRules rules_;
  CreditExchange exchange_;
  std::uint32_t most_nodes_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::array<std::vector<SharedKernel*>, kMostTenants> teams_;
  std::vector<std::uint64_t> memory_;   // content of each slot
  std::vector<bool> sending_;           // a queue pair that exists has yet to send the slot
  std::vector<std::uint64_t> counted_;  // the check that saw the slot last
  std::uint64_t checks_ = 0;
  std::uint64_t payloads_ = 0;
  std::uint64_t now_ = 0;  // steps of the world, kStepNs each
  CreditOutcome outcome_;
};

}  // namespace gdx::sim
