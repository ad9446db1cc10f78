// Runs the credit scheduler of one pool for this process: on a thread that polls at intervals, and on any
// thread that waits and calls progress() (host/staging/progress.h).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "host/staging/credit_exchange.h"
#include "host/staging/progress.h"

namespace gdx {

// Bounds the thread's cost. It sleeps while no endpoint is open. It pauses 20 us between two polls while an
// endpoint waits for slots, and up to 1 ms otherwise. It pauses 4 ms after a second without any event, and 10
// ms while other threads call progress(). A first grant takes up to that pause; the reserved minimum serves
// the endpoint meanwhile. Threads: any thread may call any method.
class CreditService final : public ProgressService {
 public:
  CreditService(const CreditRules& rules, std::string name);
  ~CreditService() override;
  CreditService(const CreditService&) = delete;
  CreditService& operator=(const CreditService&) = delete;

  // Opens an endpoint as CreditExchange does; it has its minimum when open() returns. Endpoints that have
  // grown into that minimum are asked to return slots above their share. open() waits for them, 100 ms at
  // most. Errors: then kBusy.
  [[nodiscard]] Result<CreditEndpoint> open(const CreditChannel& channel, std::uint32_t at_most,
                                            std::uint32_t tenant = 0);
  void retire(CreditEndpoint endpoint);
  void destroy(CreditEndpoint endpoint);
  [[nodiscard]] FlightRecord flight(CreditEndpoint endpoint) const;

  // Polls once, on the caller's thread. Returns 0 when there is nothing to do or another thread holds the
  // lock.
  int progress() override;

  [[nodiscard]] std::uint32_t leased_slots() const;
  [[nodiscard]] std::uint32_t free_slots() const;
  [[nodiscard]] std::uint64_t bad_returns() const;

 private:
  void serve();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  CreditExchange exchange_;   // guarded by mutex_, like all below
  std::uint64_t driven_ = 0;  // polls by other threads than its own
  bool stopping_ = false;
  bool opened_ = false;  // since the thread last looked
  std::thread thread_;
};

}  // namespace gdx
