#include "tests/sim/credits/world.h"

#include <algorithm>
#include <bit>

namespace gdx::sim {
namespace {

constexpr std::size_t kFirstTenantsNodes = 2;

CreditRules rules_from(Random& random, Sharers sharers) {
  const auto slots = std::uint32_t{1} << random.between(2, 5);
  const std::uint32_t thresholds[] = {25, 100, 100, 300, 10'000};
  const auto minimum = static_cast<std::uint32_t>(random.between(1, slots / 4));
  const bool tenants = sharers == Sharers::kTenants;
  return {slots, tenants || sharers == Sharers::kTeam ? 0 : minimum, thresholds[random.between(0, 4)],
          tenants ? std::optional(tenant_slots_of(slots)) : std::nullopt};
}

}  // namespace

CreditNode::CreditNode(std::uint32_t slot_count)
    : granted_slots(slot_count), returned_slots(slot_count), held(slot_count) {
  handle.grants = &grants;
  handle.granted_slots = granted_slots.data();
  handle.requests = &requests;
  handle.returned_slots = returned_slots.data();
  handle.held = held.data();
  handle.slot_count = slot_count;
}

CreditChannel CreditNode::channel() {
  return {&grants, granted_slots.data(), &requests, returned_slots.data()};
}

void CreditOutcome::add(const CreditOutcome& other) {
  steps += other.steps;
  pushes += other.pushes;
  stalls += other.stalls;
  errors += other.errors;
  deaths += other.deaths;
  bad_returns += other.bad_returns;
  thread_steps += other.thread_steps;
  waits += other.waits;
}

std::string CreditOutcome::course() const {
  return fmt::format("{} {} {} {} {} {} {}", pushes, stalls, errors, deaths, bad_returns, thread_steps,
                     waits);
}

CreditWorld::CreditWorld(std::uint64_t seed, Sharers sharers)
    : random_(seed),
      sharers_(sharers),
      running_(tenants() - 1),
      rules_(rules_from(random_, sharers)),
      exchange_(rules_, "the simulation"),
      most_nodes_(static_cast<std::uint32_t>(random_.between(1, 8))),
      memory_(rules_.slot_count),
      sending_(rules_.slot_count),
      counted_(rules_.slot_count) {}

void CreditWorld::expect(bool holds, const char* what) {
  if (!holds && outcome_.problem.empty()) outcome_.problem = what;
}

CreditOutcome CreditWorld::run(std::uint32_t steps) {
  set_publish_witness(this);
  for (std::uint32_t i = 0; i < steps && outcome_.problem.empty(); ++i) {
    step();
    check();
    ++outcome_.steps;
  }
  if (outcome_.problem.empty()) everybody_alive_gets_on();
  if (outcome_.problem.empty()) everything_comes_home();
  outcome_.bad_returns = exchange_.bad_returns();
  set_publish_witness(nullptr);
  return outcome_;
}

void CreditWorld::pass_time() { now_ns = ++now_ * kStepNs; }

void CreditWorld::step() {
  pass_time();
  if (nodes_.empty() || (nodes_.size() < most_nodes_ && random_.chance(0.01))) return open();
  if (random_.chance(0.2)) return poll();
  const std::size_t place = random_.between(0, nodes_.size() - 1);
  Node& node = *nodes_[place];
  if (node.dead) {
    // Retires first, or destroys the queue pair at once, because the cleanup of a client may do either.
    if (random_.chance(0.05)) {
      exchange_.retire(node.number);
      node.retired = true;
    }
    if (random_.chance(0.05)) return destroy(place);
    return serve(node);
  }
  if (!has_teams() && random_.chance(0.001)) {
    if (node.kernel) end_kernel(node);
    bury(node);
    return destroy(place);
  }
  act(node);
}

void CreditWorld::act(Node& node) {
  if (node.shared && !runs(node)) return;
  if (has_teams() && random_.chance(0.002)) node.shared->set_idle(!node.shared->idles());
  if (!has_teams() && random_.chance(0.0005)) {
    node.dead = true;
    node.kernel.reset();
    bury(node);
    ++outcome_.deaths;
    return;
  }
  if (random_.chance(0.0005)) {
    node.in_error = true;
    ++outcome_.errors;
  }
  if (!has_teams() && random_.chance(0.0002)) node.hostile = true;
  if (random_.chance(0.002)) node.stalled = !node.stalled;
  if (node.hostile) {
    node.kernel.reset();
    bury(node);
    return random_.chance(0.2) ? scribble(node) : serve(node);
  }
  if (node.shared) return act_shared(node);
  if (!node.kernel) return random_.chance(0.3) ? begin_kernel(node) : serve(node);
  switch (random_.between(0, 12)) {
    case 0:
    case 1:
    case 2:
    case 3: return push(node);
    case 4: return ring(node);
    case 5:
    case 6:
    case 7: return serve(node);
    case 8:
    case 9: return drain(node);
    case 10:
      if (!node.knows_error) poll_grants(node);
      return;
    case 11:
      if (random_.chance(0.02)) return end_kernel(node);
      return;
    default:  // a work request without a slot
      node.posted.push_back({node.producer++, kNoSlot, 0});
  }
}

void CreditWorld::open() {
  auto node = std::make_unique<Node>(rules_.slot_count);
  const auto at_most = static_cast<std::uint32_t>(random_.between(1, rules_.slot_count));
  // Counters start anywhere, most of them where they wrap soon.
  const auto start = [&] {
    return static_cast<std::uint32_t>(random_.chance(0.7) ? 0 - random_.between(0, 300) : random_.next());
  };
  node->producer = node->rung = node->completed = start();
  const std::uint32_t granted = start();
  const std::uint32_t position = start();
  node->state = {position, position, position, granted, granted, 0, 0, 0};
  node->grants = pack_grants(granted, 0);
  node->requests.wanted = node->requests.returned = granted;
  node->seen = node->requests;
  CreditChannel channel = node->channel();
  channel.requests = &node->seen;
  const std::uint32_t tenant = nodes_.size() < kFirstTenantsNodes ? 0 : tenants() - 1;
  const auto number = exchange_.open(channel, at_most, tenant);
  if (!number) return expect(!nodes_.empty(), "an endpoint was refused although the pool has no other");
  node->number = *number;
  node->at_most = at_most;
  node->handle.minimum_slots = exchange_.scheduler().minimum(*number);
  if (has_teams() || (sharers_ == Sharers::kSome && random_.chance(0.5))) {
    node->shared = std::make_unique<SharedKernel>(*this, random_, node->handle, node->state, node->producer);
    node->shared->set_number(*number, tenant);
    if (has_teams()) teams_[tenant].push_back(node->shared.get());
  }
  nodes_.push_back(std::move(node));
}

void CreditWorld::push(Node& node) {
  if (node.knows_error) return;
  device::impl::Credits& credits = *node.kernel;
  if (!credits.available()) {
    drain(node);
    if (credits.available() || node.knows_error) return;
    ++outcome_.stalls;
    return credits.stall(random_.between(1, 2 * rules_.slot_count));
  }
  const std::uint32_t slot = credits.next_slot();
  expect(slot < rules_.slot_count && exchange_.scheduler().holder(slot) == node.number,
         "a slot was stored to that the books do not lease to the endpoint");
  expect(slot < rules_.slot_count && !sending_[slot], "a slot was stored to that a NIC has yet to send");
  if (!outcome_.problem.empty()) return;
  memory_[slot] = ++payloads_;
  sending_[slot] = true;
  credits.consume();
  credits.bind(node.producer);
  node.posted.push_back({node.producer++, slot, payloads_});
  ++node.pushes;
  ++outcome_.pushes;
}

void CreditWorld::serve(Node& node) {
  if (node.shared) {
    for (const SharedKernel::Request& request : node.shared->fetch()) {
      if (request.slot != kNoSlot && memory_[request.slot] != request.payload)
        expect(false, "the NIC fetches a slot that is not full yet");
      node.posted.push_back({request.index, request.slot, request.payload});
      node.producer = node.rung = request.index + 1;
    }
  }
  const bool rung =
      !node.posted.empty() && static_cast<std::int32_t>(node.posted.front().index - node.rung) < 0;
  if (!rung || (node.stalled && !node.in_error)) return;
  const Node::Work work = node.posted.front();
  node.posted.pop_front();
  node.completed = work.index + 1;
  if (work.slot != kNoSlot) {
    expect(memory_[work.slot] == work.payload, "the NIC finds another payload than the one that was pushed");
    sending_[work.slot] = false;
  }
  if (node.shared) node.shared->complete(work.index, node.in_error);
}

void CreditWorld::poll_grants(Node& node) {
  const std::uint64_t polled_ns = node.kernel->state().polled_ns;
  const std::uint32_t held_before = node.kernel->held();
  node.kernel->poll();
  const StagingState state = node.kernel->state();
  const std::uint32_t held = state.ready - state.returned;
  expect(state.polled_ns == polled_ns || held_before == 0 || state.polled_ns - polled_ns >= kHostPollNs,
         "an endpoint asks the scheduler's words more often than they can change");
  expect(state.ready == state.filled || held <= state.limit, "an endpoint keeps credits above its limit");
  if ((now_ - node.told_at) * kStepNs < kHostPollNs) return;
  expect(state.ready == state.filled || held <= limit_of(node.grants), "an endpoint does not read its limit");
  expect(state.taken == granted_of(node.grants), "an endpoint does not read its grants");
}

void CreditWorld::drain(Node& node) {
  node.kernel->on_completed(node.completed);
  if (!node.in_error) return poll_grants(node);
  node.knows_error = true;
  while (!node.posted.empty() && static_cast<std::int32_t>(node.posted.back().index - node.rung) >= 0) {
    if (node.posted.back().slot != kNoSlot) sending_[node.posted.back().slot] = false;
    node.posted.pop_back();
  }
  node.kernel->on_failed(node.rung);
  const StagingState state = node.kernel->state();
  expect(state.ready == state.filled, "a failed endpoint keeps credits that it can never use");
}

void CreditWorld::begin_kernel(Node& node) {
  if (lacks(node)) return;  // its creation has not ended yet
  node.kernel.emplace(node.handle);
  node.kernel->open(node.state);
}

void CreditWorld::end_kernel(Node& node) {
  if (!node.knows_error) ring(node);
  drain(node);
  if (!node.knows_error) {
    const std::uint32_t kept = std::min(node.kernel->held(), node.handle.minimum_slots);
    node.kernel->close();
    const StagingState state = node.kernel->state();
    expect(state.ready == state.filled || state.ready - state.returned <= node.handle.minimum_slots,
           "a kernel that ended keeps credits above the minimum");
    expect(state.ready - state.returned >= kept, "a kernel that ended gives its minimum back");
    expect(state.wanted == state.taken, "a kernel that ended wants slots");
  }
  node.state = node.kernel->state();
  node.kernel.reset();
}

// Stores anything, but names no slot that it holds, because returning those is permitted, and harms only
// itself.
void CreditWorld::scribble(Node& node) {
  for (std::uint32_t& slot : node.returned_slots) {
    do {
      slot = static_cast<std::uint32_t>(random_.chance(0.1) ? random_.next()
                                                            : random_.between(0, rules_.slot_count));
    } while (slot < rules_.slot_count && exchange_.scheduler().holder(slot) == node.number);
  }
  node.requests.returned += static_cast<std::uint32_t>(
      random_.chance(0.3) ? random_.next() : random_.between(0, rules_.slot_count + 1));
  node.requests.wanted = static_cast<std::uint32_t>(random_.next());
  node.seen = node.requests;
  node.unseen.clear();
  poll();
}

void CreditWorld::destroy(std::size_t place) {
  Node& node = *nodes_[place];
  bury(node);
  if (node.shared) {
    outcome_.thread_steps += node.shared->steps();
    outcome_.waits += node.shared->waits();
    for (const std::uint32_t slot : node.shared->filling()) sending_[slot] = false;
  }
  for (const Node::Work& work : node.posted) {
    if (work.slot != kNoSlot) sending_[work.slot] = false;
  }
  exchange_.destroy(node.number);
  nodes_.erase(nodes_.begin() + static_cast<std::ptrdiff_t>(place));
}

void CreditWorld::published(const std::uint32_t* to, std::uint32_t value) {
  for (const auto& node : nodes_) {
    for (const auto word : {&CreditRequests::returned, &CreditRequests::wanted, &CreditRequests::failed}) {
      if (to == &(node->requests.*word)) node->unseen.push_back({word, value});
    }
    if (to != &node->requests.returned || node->shared) continue;
    expect(!node->knows_error || node->requests.failed != 0, "slots return before their failure is told");
  }
}

// Stores become visible late, but in the order of their releases.
void CreditWorld::show(Node& node) {
  for (; !node.unseen.empty() && !random_.chance(0.1); node.unseen.pop_front()) {
    node.seen.*node.unseen.front().word = node.unseen.front().value;
  }
}

void CreditWorld::poll() {
  for (const auto& node : nodes_) show(*node);
  std::vector<std::uint32_t> before;
  std::vector<std::uint64_t> told;
  for (const auto& node : nodes_) {
    before.push_back(exchange_.scheduler().leased(node->number));
    told.push_back(node->grants);
  }
  const std::uint64_t bad_returns = exchange_.bad_returns();
  (void)exchange_.poll();
  const bool honest = std::none_of(nodes_.begin(), nodes_.end(), [](const auto& n) { return n->hostile; });
  expect(!honest || exchange_.bad_returns() == bad_returns, "an honest endpoint is taken for a liar");
  std::uint32_t granted = 0;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {  // the count of the failed falls back to what they took
    if (!retired(*nodes_[i])) granted += granted_of(nodes_[i]->grants) - granted_of(told[i]);
    if (nodes_[i]->grants != told[i]) nodes_[i]->told_at = now_;
  }
  check_growth(before);
  check_threshold(before, granted);
  check_limits();
  expect(exchange_.poll() == 0, "a second poll found something to do although nobody did anything");
}

bool CreditWorld::lacks(const Node& node) const {
  const CreditScheduler& scheduler = exchange_.scheduler();
  return scheduler.leased(node.number) < scheduler.minimum(node.number);
}

bool CreditWorld::waits(const Node& node) const {
  const bool wants = static_cast<std::int32_t>(node.seen.wanted - granted_of(node.grants)) > 0;
  return !retired(node) &&
         (lacks(node) || (wants && exchange_.scheduler().leased(node.number) < node.at_most));
}

void CreditWorld::check_growth(const std::vector<std::uint32_t>& before) {
  const CreditScheduler& scheduler = exchange_.scheduler();
  if (std::none_of(nodes_.begin(), nodes_.end(), [&](const auto& node) { return lacks(*node); })) return;
  expect(scheduler.free() == 0, "slots are free while an endpoint lacks its minimum");
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const std::uint32_t leased = scheduler.leased(nodes_[i]->number);
    expect(leased <= before[i] || leased <= scheduler.minimum(nodes_[i]->number),
           "an endpoint grew above its minimum while another lacked its own");
  }
}

std::uint64_t CreditWorld::spare(std::uint64_t free) const {
  std::uint64_t reserved = 0;
  for (const auto& node : nodes_) {
    const std::uint32_t minimum = retired(*node) ? 0 : exchange_.scheduler().minimum(node->number);
    reserved += minimum - std::min(minimum, exchange_.scheduler().leased(node->number));
  }
  return free - std::min(free, reserved);
}

// Checks that no endpoint grows above its minimum while it holds a share or more of the free slots. At most
// `granted` slots more were free when the first of them was granted.
void CreditWorld::check_threshold(const std::vector<std::uint32_t>& before, std::uint32_t granted) {
  const CreditScheduler& scheduler = exchange_.scheduler();
  const std::uint64_t share = spare(scheduler.free() + granted) * rules_.threshold_percent;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const std::uint64_t leased = scheduler.leased(nodes_[i]->number);
    if (leased <= before[i] || leased <= scheduler.minimum(nodes_[i]->number)) continue;
    expect((leased - 1) * 100 < share, "an endpoint grew beyond its share of the free slots");
  }
}

// Checks that while an endpoint waits, every other is asked for slots that would not be granted again.
void CreditWorld::check_limits() {
  const CreditScheduler& scheduler = exchange_.scheduler();
  std::uint64_t expected = scheduler.free();
  std::size_t waiting = 0;
  for (const auto& node : nodes_) {
    const std::uint32_t leased = scheduler.leased(node->number);
    expected += leased - std::min(leased, scheduler.limit(node->number));
    waiting += waits(*node) ? 1 : 0;
  }
  for (const auto& node : nodes_) {
    const std::uint64_t limit = std::min(scheduler.limit(node->number), scheduler.leased(node->number));
    if (retired(*node) || waiting == (waits(*node) ? 1u : 0u) || limit <= scheduler.minimum(node->number))
      continue;
    expect((limit - 1) * 100 < spare(expected + 1) * rules_.threshold_percent,
           "an endpoint keeps more than its share while another waits");
  }
}

void CreditWorld::check() {
  ++checks_;
  const char* const broken = exchange_.scheduler().check_invariants();
  expect(broken == nullptr, broken);
  for (const auto& node : nodes_) {
    if (!node->dead && !node->hostile) check_node(*node);
  }
}

// Every slot that the books show with an endpoint is in exactly one place on its side.
void CreditWorld::check_node(const Node& node) {
  if (node.shared && !node.shared->quiet()) return check_shared(node);
  const StagingState state = node.credits();
  const std::uint32_t leased = exchange_.scheduler().leased(node.number);
  const std::uint32_t held = state.ready - state.returned;
  const std::uint32_t untaken = granted_of(node.grants) - state.taken;
  expect(
      lacks(node) || exchange_.scheduler().limit(node.number) >= exchange_.scheduler().minimum(node.number),
      "an endpoint is asked for its minimum");
  if (held + untaken > leased)
    return expect(false, "an endpoint holds more slots than the books lease to it");
  expect(node.requests.returned == state.taken - held, "a slot was lost on its way back");
  const std::uint32_t returning = leased - held - untaken;
  for (std::uint32_t i = 0; i < held; ++i) {
    count_slot(node,
               node.held[(state.returned + i) & (rules_.slot_count - 1)].slot & device::impl::kSlotNumber);
  }
  check_ring(node, node.granted_slots, state.taken, untaken);
  check_ring(node, node.returned_slots, node.requests.returned - returning, returning);
}

void CreditWorld::check_ring(const Node& node, const std::vector<std::uint32_t>& ring, std::uint32_t first,
                             std::uint32_t count) {
  for (std::uint32_t i = 0; i < count; ++i) count_slot(node, ring[(first + i) & (rules_.slot_count - 1)]);
}

void CreditWorld::count_slot(const Node& node, std::uint32_t slot) {
  if (slot >= rules_.slot_count || exchange_.scheduler().holder(slot) != node.number) {
    return expect(false, "an endpoint has a slot that the books do not lease to it");
  }
  expect(counted_[slot] != checks_, "a slot is in two places");
  counted_[slot] = checks_;
}

// Each stuck endpoint of a team may hold its first slot of the pool's half that none grows into; of two
// tenants one may have a single slot, with one that has failed.
bool CreditWorld::may_all_be_stuck() const {
  if (!has_teams()) return false;
  const auto keeps_a_slot = [&](const auto& node) {
    return runs(*node) && (node->stalled || (tenants() != 1 && node->in_error));
  };
  const auto stuck = std::count_if(nodes_.begin(), nodes_.end(), keeps_a_slot);
  return static_cast<std::uint32_t>(stuck) >= (tenants() == 1 ? rules_.slot_count / 2 : 1);
}

// Ends chance. Stalled peers stay stalled, the dead are not cleaned up, and every other endpoint progresses.
void CreditWorld::everybody_alive_gets_on() {
  const std::uint64_t pushes = has_teams() ? 1 : 4;
  const std::uint32_t rounds = 50 * (rules_.slot_count + 10);
  running_ = 0;
  std::vector<std::uint64_t> before;
  for (const auto& node : nodes_) before.push_back(pushes_of(*node));
  for (std::uint32_t round = 0; round < rounds && outcome_.problem.empty(); ++round) {
    for (const auto& node : nodes_) {
      if (node->dead || node->hostile) continue;
      pass_time();
      if (node->shared) {
        if (lacks(*node)) continue;
        for (int i = 0; i < 4; ++i) {
          if (runs(*node)) (void)node->shared->step_all();
          serve(*node);
          check();
        }
        continue;
      }
      if (!node->kernel) begin_kernel(*node);
      if (!node->kernel) continue;
      push(*node);
      ring(*node);
      for (int i = 0; i < 4; ++i) serve(*node);
      drain(*node);
    }
    poll();
    check();
  }
  const bool any_stuck = std::any_of(nodes_.begin(), nodes_.end(),
                                     [](const auto& n) { return n->stalled || n->dead || n->hostile; });
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = *nodes_[i];
    if (!healthy(node) || (node.shared && !runs(node))) continue;
    if (lacks(node)) {  // never ended its creation: only where others sit on what it was promised
      expect(any_stuck, "an endpoint never got its minimum");
      continue;
    }
    if (may_all_be_stuck()) continue;
    expect(pushes_of(node) >= before[i] + pushes, "an endpoint with a live peer got no credit");
  }
}

void CreditWorld::everything_comes_home() {
  for (const auto& node : nodes_) {
    if (node->dead || node->hostile || !node->in_error) continue;
    if (node->shared) {
      come_home(*node);
      continue;
    }
    // Only what is flushed brings the endpoint back to its credits: whoever has failed waits for nothing
    // else.
    if (!node->knows_error || node->credits().returned != node->credits().filled) {
      while (!node->posted.empty()) serve(*node);
      if (!node->kernel) begin_kernel(*node);
      if (!node->kernel) continue;
      drain(*node);
    }
    while (node->seen.returned != node->requests.returned) poll();
    expect(exchange_.scheduler().leased(node->number) == 0, "a failed endpoint keeps slots after the flush");
  }
  while (!nodes_.empty()) destroy(nodes_.size() - 1);
  check();
  expect(exchange_.scheduler().free() == rules_.slot_count, "not every slot came home");
}

}  // namespace gdx::sim
