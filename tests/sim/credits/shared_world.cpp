// The part of shared endpoints in the credits' world.
#include <algorithm>

#include "tests/sim/credits/world.h"

namespace gdx::sim {

void CreditWorld::act_shared(Node& node) {
  if (lacks(node)) return;  // its creation has not ended yet
  switch (random_.between(0, 9)) {
    case 0: return serve(node);
    default: return node.shared->step();
  }
}

void CreditWorld::begin_fill(CreditEndpoint endpoint, std::uint32_t slot) {
  const bool leased = slot < rules_.slot_count && exchange_.scheduler().holder(slot) == endpoint;
  expect(leased, "a slot was stored to that the books do not lease to the endpoint");
  if (!leased) return;
  expect(!sending_[slot], "a slot was stored to that a NIC has yet to send, or another thread fills");
  sending_[slot] = true;
  memory_[slot] = 0;
  ++outcome_.pushes;
}

// Its threads are no more.
void CreditWorld::bury(Node& node) {
  if (!node.shared) return;
  node.shared->kill();
}

// Amid a poll: what threads may take, and what was given back, is the endpoint's, idle, and nowhere else.
void CreditWorld::check_shared(const Node& node) {
  const StagingState state = node.credits();
  const auto idle = [&](std::uint32_t slot) {
    count_slot(node, slot);
    if (slot < rules_.slot_count) expect(!sending_[slot], "a credit is for a slot in use");
  };
  for (std::uint32_t p = state.filled; p != state.ready && outcome_.problem.empty(); ++p)
    idle(node.held[p & (rules_.slot_count - 1)].slot & device::impl::kSlotNumber);
}

// A failed endpoint: each thread meets the failure, with whatever call, and that brings all slots back.
void CreditWorld::come_home(Node& node) {
  running_ = node.shared->tenant();
  // Skips an endpoint that never got its minimum: it is not made yet, and has posted nothing that could fail.
  if (!node.shared->patient() || lacks(node)) return;
  // A thread that waits for the slots of stuck endpoints posts nothing, and meets no failure.
  if (!node.shared->failed() && may_all_be_stuck()) return;
  node.shared->set_idle(false);
  constexpr std::uint32_t kMaxRounds = 200'000;
  bool runs = true;
  for (std::uint32_t round = 0; runs && round < kMaxRounds && outcome_.problem.empty(); ++round) {
    pass_time();
    runs = node.shared->step_all();
    for (SharedKernel* const other :
         teams_[node.shared->tenant()]) {  // one that helps may be amid a poll of this endpoint
      if (other != node.shared.get()) (void)other->step_all();
    }
    for (const auto& other : nodes_) serve(*other);  // a thread may wait for any of their slots
    if (round % 16 == 0) poll();
    check();
  }
  expect(!runs, "a thread of a failed endpoint never ends its call");
  while (outcome_.problem.empty() && node.seen.returned != node.requests.returned) poll();
  expect(exchange_.scheduler().leased(node.number) == 0, "a failed endpoint keeps slots after the flush");
}

}  // namespace gdx::sim
