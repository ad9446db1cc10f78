// Shares the slots of one staging pool among its endpoints. Pure: events in, actions out; no HCA, thread,
// clock, or memory of others.
//
// Every open endpoint has a minimum reserved. Above it, an endpoint may grow while it holds less than a share
// of the free slots. This is the dynamic threshold of Choudhury and Hahne. More waiting endpoints thus lower
// each one's bound, and some slots always stay free for new ones. While an endpoint waits, the limit of each
// endpoint above the threshold sinks.
// Growing and shrinking are exact complements. A reclaimed slot would not be granted to its holder again, so
// no slot oscillates.
//
//   12 free unreserved slots, threshold 100 %: an endpoint with 11 slots may grow, one with 12 may not
//
// Without a minimum an endpoint may have no slot at all. While such an endpoint waits and no slot is free,
// every endpoint must return all of its slots. Each gets one again in its turn. Programs that share such a
// pool are its tenants. Some slots are kept for tenants that have none, because threads of other tenants may
// never run to return one.
//
// Source: docs/staging.md, "Sharing the staging pool"; proved by tests/model/staging_credits.pml.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "base/result.h"

namespace gdx {

struct CreditRules {
  std::uint32_t slot_count = 0;           // slots of the pool
  std::uint32_t minimum_slots = 1;        // reserved for every open endpoint; may be 0
  std::uint32_t threshold_percent = 100;  // share of the free slots; kMin to kMaxThresholdPercent
  // Slots kept for tenants that have none, one fewer than there may be tenants. It has a value for a pool of
  // several tenants without a minimum.
  std::optional<std::uint32_t> tenant_slots = std::nullopt;
};

// Returns the tenant_slots of a pool that several programs share: a quarter of it.
[[nodiscard]] constexpr std::uint32_t tenant_slots_of(std::uint32_t slot_count) {
  return slot_count < 4 ? slot_count / 2 : slot_count / 4;
}

inline constexpr std::uint32_t kMinThresholdPercent = 1;
inline constexpr std::uint32_t kMaxThresholdPercent = 10'000;

// Validates the rules. Errors: kInvalidArgument naming the rule, its value and its range.
[[nodiscard]] Result<void> check_credit_rules(const CreditRules& rules);

// Number of an endpoint: small, reused once its endpoint is destroyed.
using CreditEndpoint = std::uint32_t;

struct CreditAction {
  enum class Kind : std::uint8_t {
    kGrant,  // lease slot `value` to the endpoint
    kLimit,  // the endpoint may hold `value` slots; above them it returns slots
  };
  Kind kind;
  CreditEndpoint endpoint;
  std::uint32_t value;
};

// States of an endpoint:
//            open()           retire()          destroy()
//   absent ---------> open ------------> retired ---------> absent
//                       \__________ destroy() ____________/
// Open: gets grants. Retired (closing, failed, its client dead): gets none and is owed none. Its queue pair
// may still send, so only the endpoint's own returns free its slots. Destroyed: the queue pair is gone, so
// every slot that the books show with the endpoint is free. Other transitions are bugs of the caller.
// Threads: externally synchronised.
class CreditScheduler {
 public:
  // Requires rules that passed check_credit_rules.
  explicit CreditScheduler(const CreditRules& rules);

  // Admits an endpoint that may hold `at_most` slots (1 or more). Its minimum is granted without a request.
  // Errors: kInvalidArgument when `at_most` is 0 or beyond the pool. kBusy when open endpoints' minima and
  // retired ones' slots leave no room for its minimum. kBusy also when too many tenants share the pool.
  [[nodiscard]] Result<CreditEndpoint> open(std::uint32_t at_most, std::uint32_t tenant = 0);
  // Sets the number of slots that the endpoint requests beyond those granted; replaces the earlier number.
  void want(CreditEndpoint endpoint, std::uint32_t slots);
  // Frees `slot`, which the endpoint returns. False, and no effect, when the endpoint does not hold that
  // slot.
  [[nodiscard]] bool take_back(CreditEndpoint endpoint, std::uint32_t slot);
  void retire(CreditEndpoint endpoint);  // idempotent
  void destroy(CreditEndpoint endpoint);

  // Appends the actions that are due. Idempotent: without an event between them a second call adds none.
  void decide(std::vector<CreditAction>& actions);

  // After decide(): returns whether an endpoint waits for a slot that it requested or that its minimum lacks.
  [[nodiscard]] bool anybody_waits() const { return !waiting_.empty(); }

  [[nodiscard]] const CreditRules& rules() const { return rules_; }
  [[nodiscard]] std::uint32_t free() const { return static_cast<std::uint32_t>(free_.size()); }
  [[nodiscard]] std::uint32_t leased() const { return rules_.slot_count - free(); }
  [[nodiscard]] std::uint32_t leased(CreditEndpoint endpoint) const { return endpoints_[endpoint].leased; }
  // Returns the holder of `slot`, which must be one of the pool; nullopt when it is free.
  [[nodiscard]] std::optional<CreditEndpoint> holder(std::uint32_t slot) const;
  [[nodiscard]] std::uint32_t limit(CreditEndpoint endpoint) const { return endpoints_[endpoint].limit; }
  [[nodiscard]] std::uint32_t minimum(CreditEndpoint endpoint) const { return endpoints_[endpoint].minimum; }

  // Returns the first broken invariant; nullptr: all hold.
  [[nodiscard]] const char* check_invariants() const;

 private:
  enum class State : std::uint8_t { kAbsent, kOpen, kRetired };
  struct Endpoint {
    State state = State::kAbsent;
    std::uint32_t minimum = 0;
    std::uint32_t at_most = 0;
    std::uint32_t leased = 0;
    std::uint32_t limit = 0;
    std::uint32_t wants = 0;
    bool queued = false;  // is in waiting_
    std::uint32_t tenant = 0;
  };
  struct Tenant {
    std::uint32_t endpoints = 0;  // endpoints that exist
    std::uint32_t leased = 0;
  };

  [[nodiscard]] bool waits(const Endpoint& endpoint) const;
  void queue_if_waiting(CreditEndpoint number);
  [[nodiscard]] bool is_kept_from(const Endpoint& endpoint) const;
  [[nodiscard]] bool may_have(const Endpoint& endpoint) const;
  [[nodiscard]] bool below_threshold(std::uint32_t slots, std::uint32_t free_slots) const;
  void grant(CreditEndpoint number, std::vector<CreditAction>& actions);
  void grant_all(std::vector<CreditAction>& actions);
  void shrink(std::vector<CreditAction>& actions);
  [[nodiscard]] bool anybody_has_none() const;
  void ask_for_all(std::vector<CreditAction>& actions);
  void set_leased(Endpoint& endpoint, std::uint32_t leased);

  CreditRules rules_;
  std::vector<std::uint32_t> free_;  // the slots, the last is granted next
  std::vector<CreditEndpoint> lessee_;
  std::vector<Endpoint> endpoints_;
  std::map<std::uint32_t, Tenant> tenants_;  // tenants that have endpoints
  // FIFO of requesters, a turn each; may hold some that no longer request
  std::deque<CreditEndpoint> waiting_;
  std::uint32_t reserved_ = 0;  // slots that open endpoints lack of their minima
  std::uint32_t promised_ = 0;  // minima of the open endpoints, and slots of the retired ones
};

}  // namespace gdx
