// Runs the credit scheduler of one pool for this process: a thread that looks now and then, and anybody who
// waits and calls progress() (host/staging/progress.h).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "host/staging/credit_exchange.h"

namespace gdx {

// The thread's cost is bounded: it sleeps while no endpoint is open, pauses 20 us between two looks while
// somebody wants more than he has, 1 ms when nobody does, and 10 ms while somebody else does its work. A
// first grant takes up to that long; the reserved minimum keeps the endpoint going. Threads: all methods from
// any thread.
class CreditService {
 public:
  CreditService(const CreditRules& rules, std::string name);
  ~CreditService();
  CreditService(const CreditService&) = delete;
  CreditService& operator=(const CreditService&) = delete;

  // As CreditExchange, and the endpoint has its minimum when open() returns. Where others grew into it, they
  // are asked back what they have above their share, and waited for, 100 ms at most. Errors: then kBusy.
  [[nodiscard]] Result<CreditEndpoint> open(const CreditChannel& channel, std::uint32_t at_most);
  void retire(CreditEndpoint endpoint);
  void destroy(CreditEndpoint endpoint);

  // Looks once, on the caller's thread. 0: nothing to do, or somebody else is at it.
  int progress();

  [[nodiscard]] std::uint32_t leased_slots() const;
  [[nodiscard]] std::uint32_t free_slots() const;
  [[nodiscard]] std::uint64_t bad_returns() const;

 private:
  void serve();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  CreditExchange exchange_;   // guarded by mutex_, like all below
  std::uint64_t driven_ = 0;  // looks by others than the thread
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace gdx
