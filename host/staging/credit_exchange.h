// Carries decisions and requests between a pool's scheduler and its endpoints, through the words and queues
// of proto/gpu/staging.h. Owns no thread and no memory of the endpoints.
//
// Treats an endpoint's words as hostile. It reads a count once. It accepts a slot number only if the endpoint
// holds that slot by the books. A bad return is counted, reported once per endpoint, and has no effect.
//
//   endpoint --requests, returned_slots--> poll() --books--> CreditScheduler
//   endpoint <--grants, granted_slots----- poll() <--actions-- CreditScheduler
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/flight_recorder.h"
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

// For research: returns the state of an endpoint with unlimited credits. It may always push, to the slots in
// turn, without regard to their holders. Fills the rings of `staging`, whose word is `grants`. Its
// minimum_slots must be kUnlimitedSlots, and no scheduler may manage it. Slots are then
// overwritten while the HCA reads them, which credits would prevent.
[[nodiscard]] StagingState unlimited_credits(const StagingHandle& staging, std::uint64_t* grants);

// Threads: callers synchronise among themselves; the endpoints' kernels run concurrently.
class CreditExchange {
 public:
  // Takes `rules` as CreditScheduler does, with a power of two of slots. `name` is for messages.
  CreditExchange(const CreditRules& rules, std::string name) : scheduler_(rules), name_(std::move(name)) {}

  // Opens an endpoint. The channel must stay until destroy(). Errors: those of CreditScheduler::open.
  [[nodiscard]] Result<CreditEndpoint> open(const CreditChannel& channel, std::uint32_t at_most,
                                            std::uint32_t tenant = 0);
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
  // Returns the newest grants, returns and limits of an endpoint.
  [[nodiscard]] FlightRecord flight(CreditEndpoint number) const { return flights_[number].read("credits"); }

 private:
  static constexpr std::size_t kFlightEvents = 64;
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
  bool take_back(CreditEndpoint number, std::uint32_t slot);
  void note(CreditEndpoint number, FlightKind kind, std::uint32_t word);
  void report(CreditEndpoint number, const char* what, std::uint32_t slots);

  CreditScheduler scheduler_;
  std::string name_;
  std::vector<Client> clients_;                         // by endpoint number
  std::vector<FlightRecorder<kFlightEvents>> flights_;  // by number; apart, because poll() walks the clients
  std::uint64_t now_ns_ = 0;                            // time of the poll in progress
  std::vector<CreditAction> actions_;
  std::size_t open_ = 0;
  std::uint64_t bad_returns_ = 0;
};

}  // namespace gdx
