// HTTP/1.1 of one page, /metrics, on one thread. Whoever reaches the address may call: a caller has some
// seconds for its request and its answer, and of too many callers the oldest is dropped, because a scraper
// asks at once. Users of this host are told apart; callers of other hosts are not.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <thread>

#include "base/descriptor.h"
#include "base/result.h"
#include "host/programs/daemon/metrics.h"

namespace gdx::daemon {

class MetricsListener {
 public:
  // `admits`: whether a user of this host may see the page.
  // Errors: kSystem, kBusy, kInvalidArgument, kNoMemory.
  [[nodiscard]] static Result<std::unique_ptr<MetricsListener>> listen(const MetricsAddress& address,
                                                                       std::function<std::string()> page,
                                                                       std::function<bool(uid_t)> admits);
  ~MetricsListener();
  MetricsListener(const MetricsListener&) = delete;
  MetricsListener& operator=(const MetricsListener&) = delete;
  // Returns "127.0.0.1:9464".
  [[nodiscard]] std::string place() const;

 private:
  struct Caller {
    Descriptor socket;
    std::uint64_t deadline_ns = 0;
    std::string request;
    std::string unsent;  // rest of the answer; empty: it is not made yet
  };
  MetricsListener(Descriptor listener, Descriptor stop, std::function<std::string()> page,
                  std::function<bool(uid_t)> admits)
      : listener_(std::move(listener)),
        stop_(std::move(stop)),
        page_(std::move(page)),
        admits_(std::move(admits)) {}
  void run();
  void accept_some();
  // Returns whether the caller stays.
  [[nodiscard]] bool serve(Caller& caller) const;
  [[nodiscard]] std::string answer_to(const Caller& caller) const;

  Descriptor listener_;
  Descriptor stop_;  // an eventfd
  std::function<std::string()> page_;
  std::function<bool(uid_t)> admits_;
  std::list<Caller> callers_;  // oldest first
  std::thread thread_;
};

}  // namespace gdx::daemon
