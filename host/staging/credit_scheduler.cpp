#include "host/staging/credit_scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>

namespace gdx {
namespace {

constexpr CreditEndpoint kNobody = ~CreditEndpoint{0};

}  // namespace

Result<void> check_credit_rules(const CreditRules& rules) {
  if (rules.slot_count == 0 || rules.minimum_slots > rules.slot_count) {
    return fail(
        Status::kInvalidArgument,
        fmt::format("a minimum of {} staging slots per endpoint is impossible: use 0 to the pool's {}",
                    rules.minimum_slots, rules.slot_count));
  }
  if (rules.threshold_percent < kMinThresholdPercent || rules.threshold_percent > kMaxThresholdPercent) {
    return fail(Status::kInvalidArgument,
                fmt::format("a threshold of {} percent of the free staging slots is impossible: use {} to {}",
                            rules.threshold_percent, kMinThresholdPercent, kMaxThresholdPercent));
  }
  return {};
}

CreditScheduler::CreditScheduler(const CreditRules& rules)
    : rules_(rules), lessee_(rules.slot_count, kNobody) {
  assert(check_credit_rules(rules));
  for (std::uint32_t slot = rules.slot_count; slot-- > 0;) free_.push_back(slot);
}

Result<CreditEndpoint> CreditScheduler::open(std::uint32_t at_most, std::uint32_t tenant) {
  if (at_most == 0 || at_most > rules_.slot_count) {
    return fail(Status::kInvalidArgument, fmt::format("an endpoint with up to {} staging slots is "
                                                      "impossible: use a slot_count of at most the pool's {}",
                                                      at_most, rules_.slot_count));
  }
  const std::uint32_t minimum = std::min(rules_.minimum_slots, at_most);
  if (promised_ + minimum > rules_.slot_count) {
    return fail(
        Status::kBusy,
        fmt::format(
            "no {} of {} staging slots can be reserved for another endpoint: {} are promised "
            "to those that exist; close one, make the pool larger, the slots smaller or minimum_slots 0",
            minimum, rules_.slot_count, promised_));
  }
  if (rules_.tenant_slots && minimum == 0 && !tenants_.contains(tenant) &&
      tenants_.size() > *rules_.tenant_slots) {
    return fail(Status::kBusy,
                fmt::format("{} programs share a pool of {} staging slots without minima: end one, or make "
                            "the pool larger or the slots smaller",
                            tenants_.size(), rules_.slot_count));
  }
  const auto unused = std::find_if(endpoints_.begin(), endpoints_.end(),
                                   [](const Endpoint& e) { return e.state == State::kAbsent; });
  const auto number = static_cast<CreditEndpoint>(unused - endpoints_.begin());
  if (unused == endpoints_.end()) endpoints_.emplace_back();
  Endpoint& endpoint = endpoints_[number];
  const bool queued = endpoint.queued;  // true if the number's last owner is still in waiting_
  endpoint = {State::kOpen, minimum, at_most, 0, 0, 0, queued, tenant};
  ++tenants_[tenant].endpoints;
  promised_ += minimum;
  reserved_ += minimum;
  queue_if_waiting(number);
  return number;
}

void CreditScheduler::want(CreditEndpoint number, std::uint32_t slots) {
  Endpoint& endpoint = endpoints_[number];
  assert(endpoint.state != State::kAbsent);
  if (endpoint.state != State::kOpen) return;
  endpoint.wants = slots;
  queue_if_waiting(number);
}

void CreditScheduler::queue_if_waiting(CreditEndpoint number) {
  Endpoint& endpoint = endpoints_[number];
  if (!waits(endpoint) || endpoint.queued) return;
  endpoint.queued = true;
  waiting_.push_back(number);
}

bool CreditScheduler::take_back(CreditEndpoint number, std::uint32_t slot) {
  assert(endpoints_[number].state != State::kAbsent);
  if (slot >= rules_.slot_count || lessee_[slot] != number) return false;
  lessee_[slot] = kNobody;
  free_.push_back(slot);
  set_leased(endpoints_[number], endpoints_[number].leased - 1);
  queue_if_waiting(number);
  return true;
}

void CreditScheduler::retire(CreditEndpoint number) {
  Endpoint& endpoint = endpoints_[number];
  assert(endpoint.state != State::kAbsent);
  if (endpoint.state == State::kRetired) return;
  promised_ = promised_ - endpoint.minimum + endpoint.leased;
  reserved_ -= endpoint.minimum - std::min(endpoint.minimum, endpoint.leased);
  endpoint.state = State::kRetired;
  endpoint.minimum = endpoint.wants = 0;
}

void CreditScheduler::destroy(CreditEndpoint number) {
  retire(number);
  for (std::uint32_t slot = 0; slot < rules_.slot_count; ++slot) {
    if (lessee_[slot] == number) (void)take_back(number, slot);
  }
  assert(endpoints_[number].leased == 0);
  endpoints_[number].state = State::kAbsent;
  const auto tenant = tenants_.find(endpoints_[number].tenant);
  if (--tenant->second.endpoints == 0) tenants_.erase(tenant);
}

std::optional<CreditEndpoint> CreditScheduler::holder(std::uint32_t slot) const {
  if (lessee_[slot] == kNobody) return std::nullopt;
  return lessee_[slot];
}

void CreditScheduler::decide(std::vector<CreditAction>& actions) {
  for (CreditEndpoint number = 0; number < endpoints_.size(); ++number) {
    Endpoint& endpoint = endpoints_[number];
    if (endpoint.state != State::kRetired || endpoint.limit == 0) continue;
    endpoint.limit = 0;
    actions.push_back({CreditAction::Kind::kLimit, number, 0});
  }
  grant_all(actions);
  shrink(actions);
}

bool CreditScheduler::waits(const Endpoint& endpoint) const {
  if (endpoint.state != State::kOpen) return false;
  return endpoint.leased < endpoint.minimum || (endpoint.wants != 0 && endpoint.leased < endpoint.at_most);
}

bool CreditScheduler::below_threshold(std::uint32_t slots, std::uint32_t free_slots) const {
  const std::uint64_t spare = free_slots > reserved_ ? free_slots - reserved_ : 0;
  return std::uint64_t{slots} * 100 < spare * rules_.threshold_percent;
}

bool CreditScheduler::is_kept_from(const Endpoint& endpoint) const {
  return endpoint.minimum == 0 && free() <= rules_.tenant_slots.value_or(0) &&
         tenants_.at(endpoint.tenant).leased != 0;
}

bool CreditScheduler::may_have(const Endpoint& endpoint) const {
  if (free_.empty() || is_kept_from(endpoint)) return false;
  // Half of a pool without minima is for endpoints that have none, though others may be stuck with theirs.
  if (endpoint.minimum == 0 && endpoint.leased != 0 && free() <= rules_.slot_count / 2) return false;
  return endpoint.leased < endpoint.minimum || below_threshold(endpoint.leased, free());
}

void CreditScheduler::grant(CreditEndpoint number, std::vector<CreditAction>& actions) {
  Endpoint& endpoint = endpoints_[number];
  const std::uint32_t slot = free_.back();
  free_.pop_back();
  lessee_[slot] = number;
  set_leased(endpoint, endpoint.leased + 1);
  if (endpoint.wants != 0) --endpoint.wants;
  if (endpoint.limit < endpoint.leased) {  // also takes back slots that were asked back
    endpoint.limit = endpoint.leased;
    actions.push_back({CreditAction::Kind::kLimit, number, endpoint.limit});
  }
  actions.push_back({CreditAction::Kind::kGrant, number, slot});
}

// Grants one slot a turn, until a whole round has granted none.
void CreditScheduler::grant_all(std::vector<CreditAction>& actions) {
  std::size_t refused = 0;
  while (refused < waiting_.size()) {
    const CreditEndpoint number = waiting_.front();
    Endpoint& endpoint = endpoints_[number];
    waiting_.pop_front();
    const bool granted = waits(endpoint) && may_have(endpoint);
    if (granted) grant(number, actions);
    endpoint.queued = waits(endpoint);
    if (endpoint.queued) waiting_.push_back(number);
    refused = granted ? 0 : refused + (endpoint.queued ? 1 : 0);
  }
}

void CreditScheduler::shrink(std::vector<CreditAction>& actions) {
  if (waiting_.empty()) return;
  std::uint32_t expected = free();  // once every endpoint has returned the slots that were asked back
  for (const Endpoint& endpoint : endpoints_) {
    if (endpoint.state != State::kAbsent && endpoint.leased > endpoint.limit)
      expected += endpoint.leased - endpoint.limit;
  }
  for (CreditEndpoint number = 0; number < endpoints_.size(); ++number) {
    Endpoint& endpoint = endpoints_[number];
    if (endpoint.state != State::kOpen || waiting_.size() == (endpoint.queued ? 1u : 0u)) continue;
    std::uint32_t limit = std::min(endpoint.limit, endpoint.leased);
    if (limit <= endpoint.minimum || below_threshold(limit - 1, expected + 1)) continue;
    while (limit > endpoint.minimum && !below_threshold(limit - 1, expected + 1)) {
      --limit;
      ++expected;
    }
    endpoint.limit = limit;
    actions.push_back({CreditAction::Kind::kLimit, number, limit});
  }
  if (anybody_has_none()) ask_for_all(actions);
}

bool CreditScheduler::anybody_has_none() const {
  return std::any_of(waiting_.begin(), waiting_.end(),
                     [&](CreditEndpoint number) { return endpoints_[number].leased == 0; });
}

// Not of some endpoints alone, because each may be stuck with a dead peer.
void CreditScheduler::ask_for_all(std::vector<CreditAction>& actions) {
  for (CreditEndpoint number = 0; number < endpoints_.size(); ++number) {
    Endpoint& endpoint = endpoints_[number];
    if (endpoint.state != State::kOpen || endpoint.minimum != 0 || endpoint.limit == 0) continue;
    endpoint.limit = 0;
    actions.push_back({CreditAction::Kind::kLimit, number, 0});
  }
}

void CreditScheduler::set_leased(Endpoint& endpoint, std::uint32_t leased) {
  const auto lack = [&] { return endpoint.minimum - std::min(endpoint.minimum, endpoint.leased); };
  reserved_ -= lack();
  if (endpoint.state == State::kRetired) promised_ -= endpoint.leased - leased;
  Tenant& tenant = tenants_[endpoint.tenant];
  tenant.leased = tenant.leased - endpoint.leased + leased;
  endpoint.leased = leased;
  reserved_ += lack();
}

const char* CreditScheduler::check_invariants() const {
  std::vector<std::uint32_t> leased(endpoints_.size());
  std::uint32_t nobodys = 0;
  for (const CreditEndpoint number : lessee_) {
    if (number == kNobody) {
      ++nobodys;
    } else if (number >= endpoints_.size() || endpoints_[number].state == State::kAbsent) {
      return "a slot is leased to an endpoint that does not exist";
    } else {
      ++leased[number];
    }
  }
  if (nobodys != free_.size()) return "slots held and slots free are not the pool";
  for (const std::uint32_t slot : free_) {
    if (slot >= lessee_.size() || lessee_[slot] != kNobody) return "a slot is free and leased";
  }
  std::uint32_t reserved = 0;
  std::uint32_t promised = 0;
  std::map<std::uint32_t, Tenant> tenants;
  for (std::size_t i = 0; i < endpoints_.size(); ++i) {
    const Endpoint& endpoint = endpoints_[i];
    if (endpoint.leased != leased[i]) return "an endpoint's slots are miscounted";
    if (endpoint.leased > endpoint.at_most) return "an endpoint holds more slots than it may";
    if (endpoint.queued != (std::count(waiting_.begin(), waiting_.end(), i) == 1))
      return "an endpoint waits twice, or its place among those that wait is lost";
    if (waits(endpoint) && !endpoint.queued) return "an endpoint waits that nobody will serve";
    if (endpoint.state == State::kRetired) promised += endpoint.leased;
    if (endpoint.state == State::kAbsent) continue;
    ++tenants[endpoint.tenant].endpoints;
    tenants[endpoint.tenant].leased += endpoint.leased;
    if (endpoint.state != State::kOpen) continue;
    promised += endpoint.minimum;
    reserved += endpoint.minimum - std::min(endpoint.minimum, endpoint.leased);
  }
  if (reserved != reserved_) return "slots that endpoints lack of their minima are miscounted";
  if (promised != promised_) return "slots promised to endpoints are miscounted";
  const auto equal = [](const auto& a, const auto& b) {
    return a.first == b.first && a.second.endpoints == b.second.endpoints &&
           a.second.leased == b.second.leased;
  };
  return std::ranges::equal(tenants, tenants_, equal) ? nullptr : "tenants are miscounted";
}

}  // namespace gdx
