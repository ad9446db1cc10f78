// Carries decisions and requests between a pool's scheduler and its endpoints, through the words and queues
// of proto/gpu/staging.h. Owns no thread and no memory of the endpoints.
//
// Treats an endpoint's words as hostile: reads a count once, and accepts a slot number only if the books show
// it with the endpoint. A bad return is counted, reported once per endpoint, and has no effect.
//
//   endpoint --requests, returned_slots--> poll() --books--> CreditScheduler
//   endpoint <--grants, granted_slots----- poll() <--actions-- CreditScheduler
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "host/staging/credit_scheduler.h"
#include "proto/gpu/staging.h"

namespace gdx {

// Shared words and queues of one endpoint. Its counters continue from their values at open(), all grants
// taken. A client's words lie in one region of memory that both sides map.
struct CreditChannel {
  std::uint64_t* grants = nullptr;
  std::uint32_t* granted_slots = nullptr;  // ring with the pool's number of slots
  const CreditRequests* requests = nullptr;
  const std::uint32_t* returned_slots = nullptr;  // ring with the pool's number of slots
};

inline constexpr std::uint32_t kUnlimitedSlots = ~std::uint32_t{0};

// For research: returns the state of an endpoint that may always push, to the slots in turn, without regard
// to their holders. Fills its rings (those of `staging`, with `grants` its word) accordingly. Its
// minimum_slots must be kUnlimitedSlots, and no scheduler may manage it. The damage that credits prevent then
// happens.
[[nodiscard]] StagingState unlimited_credits(const StagingHandle& staging, std::uint64_t* grants);

// Threads: callers synchronise among themselves; the endpoints' kernels run concurrently.
class CreditExchange {
 public:
  // Takes `rules` as CreditScheduler does, with a power of two of slots. `name` is for messages.
  CreditExchange(const CreditRules& rules, std::string name) : scheduler_(rules), name_(std::move(name)) {}

  // Opens an endpoint. The channel must stay until destroy(). Errors: those of CreditScheduler::open.
  [[nodiscard]] Result<CreditEndpoint> open(const CreditChannel& channel, std::uint32_t at_most);
  // Forward to CreditScheduler. destroy() requires that the queue pair is gone; the channel is not used
  // afterwards.
  void retire(CreditEndpoint endpoint) { scheduler_.retire(endpoint); }
  void destroy(CreditEndpoint endpoint);

  // Reads all endpoints' words, decides, and publishes grants. Returns the number of things done, 0 without
  // any.
  int poll();

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
    std::uint32_t returned = 0;  // cumulative count of the endpoint's returns taken so far
  };

  int read_requests(CreditEndpoint number);
  void show_grants(CreditEndpoint number);
  int take_back_untaken(CreditEndpoint number, std::uint32_t taken);
  int take_returns(CreditEndpoint number, std::uint32_t returned);
  void report(CreditEndpoint number, const char* what, std::uint32_t slots);

  CreditScheduler scheduler_;
  std::string name_;
  std::vector<Client> clients_;  // by endpoint number
  std::vector<CreditAction> actions_;
  std::size_t open_ = 0;
  std::uint64_t bad_returns_ = 0;
};

}  // namespace gdx
