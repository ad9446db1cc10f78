// Shares the slots of one staging pool among its endpoints. Pure: events in, actions out; no HCA, thread,
// clock, or memory of others.
//
// Every open endpoint has a minimum reserved. Above it, one that wants more may grow while it holds less
// than a share of the slots that are free (the dynamic threshold of Choudhury and Hahne): the more are
// hungry, the less each may hold, and some slots always stay free for who comes next. When somebody has to
// wait, the limit of whoever is above the threshold sinks. Growing and shrinking are exact complements: a
// slot that is asked back would not be granted again, so none wanders to and fro. Source: papers/design.md,
// "Sharing the staging pool"; proved by tests/model/staging_credits.pml.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "base/result.h"

namespace gdx {

struct CreditRules {
  std::uint32_t slot_count = 0;           // of the pool
  std::uint32_t minimum_slots = 1;        // reserved for every open endpoint; 1 or more
  std::uint32_t threshold_percent = 100;  // of the free slots; kMin to kMaxThresholdPercent
};

inline constexpr std::uint32_t kMinThresholdPercent = 1;
inline constexpr std::uint32_t kMaxThresholdPercent = 10'000;

// Errors: kInvalidArgument naming the rule, its value and what it may be.
[[nodiscard]] Result<void> check_credit_rules(const CreditRules& rules);

// A small number, used again once its endpoint is destroyed.
using CreditEndpoint = std::uint32_t;

struct CreditAction {
  enum class Kind : std::uint8_t {
    kGrant,  // lease slot `value` to the endpoint
    kLimit,  // the endpoint may hold `value` slots: above it, it gives back
  };
  Kind kind;
  CreditEndpoint endpoint;
  std::uint32_t value;
};

// An endpoint's life:
//            open()           retire()          destroy()
//   absent ---------> open ------------> retired ---------> absent
//                       \__________ destroy() ____________/
// Open: granted to. Retired (closing, failed, its client dead): granted nothing and owed nothing, but its
// queue pair may still send, so only what it gives back by itself comes home. Destroyed means that the queue
// pair is: now every slot in the books comes home. Everything else is forbidden, and a bug of the caller.
// Threads: externally synchronised.
class CreditScheduler {
 public:
  // The rules must have passed check_credit_rules.
  explicit CreditScheduler(const CreditRules& rules);

  // Admits an endpoint that may hold `at_most` slots (1 or more). Its minimum it gets unasked.
  // Errors: kInvalidArgument when `at_most` is 0 or beyond the pool; kBusy when the minima of all open
  // endpoints and what the retired still hold leave no room for its minimum.
  [[nodiscard]] Result<CreditEndpoint> open(std::uint32_t at_most);
  // How many slots more than granted the endpoint wants now. Replaces what it wanted before.
  void want(CreditEndpoint endpoint, std::uint32_t slots);
  // The endpoint says that it gives `slot` back. False, and no effect, when it does not hold that slot.
  [[nodiscard]] bool take_back(CreditEndpoint endpoint, std::uint32_t slot);
  void retire(CreditEndpoint endpoint);  // idempotent
  void destroy(CreditEndpoint endpoint);

  // Appends what has to be done now. Idempotent: without an event between them a second call adds nothing.
  void decide(std::vector<CreditAction>& actions);

  // After decide(): somebody wants a slot, or lacks one of his minimum.
  [[nodiscard]] bool anybody_waits() const { return !waiting_.empty(); }

  [[nodiscard]] const CreditRules& rules() const { return rules_; }
  [[nodiscard]] std::uint32_t free() const { return static_cast<std::uint32_t>(free_.size()); }
  [[nodiscard]] std::uint32_t leased() const { return rules_.slot_count - free(); }
  [[nodiscard]] std::uint32_t leased(CreditEndpoint endpoint) const { return endpoints_[endpoint].leased; }
  // Who holds `slot`, which must be one of the pool; nothing when it is free.
  [[nodiscard]] std::optional<CreditEndpoint> holder(std::uint32_t slot) const;
  [[nodiscard]] std::uint32_t limit(CreditEndpoint endpoint) const { return endpoints_[endpoint].limit; }
  [[nodiscard]] std::uint32_t minimum(CreditEndpoint endpoint) const { return endpoints_[endpoint].minimum; }

  // The books agree: every slot is free or leased to exactly one endpoint that exists, and all sums are
  // right.
  [[nodiscard]] bool invariant_holds() const;

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
  };

  [[nodiscard]] bool waits(const Endpoint& endpoint) const;
  void queue_if_waiting(CreditEndpoint number);
  [[nodiscard]] bool may_have(const Endpoint& endpoint) const;
  [[nodiscard]] bool below_threshold(std::uint32_t slots, std::uint32_t free_slots) const;
  void grant(CreditEndpoint number, std::vector<CreditAction>& actions);
  void grant_all(std::vector<CreditAction>& actions);
  void shrink(std::vector<CreditAction>& actions);
  void set_leased(Endpoint& endpoint, std::uint32_t leased);

  CreditRules rules_;
  std::vector<std::uint32_t> free_;  // the slots, the last is granted next
  std::vector<CreditEndpoint> lessee_;
  std::vector<Endpoint> endpoints_;
  std::deque<CreditEndpoint> waiting_;  // who wants; a turn each. May hold some who no longer do
  std::uint32_t reserved_ = 0;          // what open endpoints lack of their minima
  std::uint32_t promised_ = 0;          // minima of the open, and what the retired hold
};

}  // namespace gdx
