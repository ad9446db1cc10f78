// Carries what the scheduler and the endpoints of a pool say to each other through the words and queues of
// proto/gpu/staging.h. Owns no thread and no memory of the endpoints.
//
// What an endpoint writes is hostile: a count is read once, a slot number is taken for one only if the books
// say that the endpoint holds it. A bad return is counted, reported once per endpoint, and has no effect.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "host/staging/credit_scheduler.h"
#include "proto/gpu/staging.h"

namespace gdx {

// One endpoint's shared words and queues. Its counters go on from where they stand when it opens, all grants
// taken. A client's lie in one region of memory that both sides map.
struct CreditChannel {
  std::uint64_t* grants = nullptr;
  std::uint32_t* granted_slots = nullptr;  // ring, as long as the pool has slots
  const CreditRequests* requests = nullptr;
  const std::uint32_t* returned_slots = nullptr;  // likewise
};

inline constexpr std::uint32_t kUnlimitedSlots = ~std::uint32_t{0};

// For research: gives the state of an endpoint that may always push, to the slots in turn and whoever's they
// are, and fills its rings (those of `staging`, with `grants` its word) accordingly. Its minimum_slots must
// be kUnlimitedSlots, and no scheduler may know of it. What credits prevent then happens.
[[nodiscard]] StagingState unlimited_credits(const StagingHandle& staging, std::uint64_t* grants);

// Threads: externally synchronised among its callers; the endpoints' kernels run beside it.
class CreditExchange {
 public:
  // `rules` as for CreditScheduler, the slot count a power of two. `name` is for messages.
  CreditExchange(const CreditRules& rules, std::string name) : scheduler_(rules), name_(std::move(name)) {}

  // The channel must stay until destroy(). Errors: as CreditScheduler::open.
  [[nodiscard]] Result<CreditEndpoint> open(const CreditChannel& channel, std::uint32_t at_most);
  // See CreditScheduler. destroy() is for when the queue pair is gone; the channel is not touched any more.
  void retire(CreditEndpoint endpoint) { scheduler_.retire(endpoint); }
  void destroy(CreditEndpoint endpoint);

  // Hears all endpoints, decides, tells them. Returns the number of things done, 0 when there was nothing.
  int look();

  [[nodiscard]] const CreditScheduler& scheduler() const { return scheduler_; }
  [[nodiscard]] std::size_t endpoints() const { return open_; }
  [[nodiscard]] std::uint64_t bad_returns() const { return bad_returns_; }

 private:
  struct Client {
    CreditChannel channel;
    bool exists = false;
    bool reported = false;
    bool failed = false;
    std::uint32_t granted = 0;   // cumulative, as the endpoint reads it
    std::uint32_t returned = 0;  // cumulative, how far its returns were taken
  };

  int hear(CreditEndpoint number);
  int take_back_untaken(CreditEndpoint number, std::uint32_t taken);
  int take_returns(CreditEndpoint number, std::uint32_t returned);
  void report(CreditEndpoint number, const std::string& what);

  CreditScheduler scheduler_;
  std::string name_;
  std::vector<Client> clients_;  // by endpoint number
  std::vector<CreditAction> actions_;
  std::size_t open_ = 0;
  std::uint64_t bad_returns_ = 0;
};

}  // namespace gdx
