#include "host/staging/credit_service.h"
#include "base/library_thread.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace gdx {
namespace {

using std::chrono::microseconds;
constexpr microseconds kBusyPause{kHostPollNs / 1'000};
constexpr microseconds kIdlePause{1'000};
constexpr microseconds kRestPause{4'000};  // each wake-up costs some 40 us of a processor
constexpr int kPollsBeforeRest = 1'000;    // polls in vain before a rest, which take a second
constexpr microseconds kDrivenPause{10'000};
constexpr std::chrono::milliseconds kAdmissionPatience{100};

}  // namespace

CreditService::CreditService(const CreditRules& rules, std::string name)
    : exchange_(rules, std::move(name)), thread_(start_library_thread([this] { serve(); })) {
  detail::add_service(*this);
}

CreditService::~CreditService() {
  detail::remove_service(*this);
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Result<CreditEndpoint> CreditService::open(const CreditChannel& channel, std::uint32_t at_most,
                                           std::uint32_t tenant) {
  std::unique_lock lock(mutex_);
  auto endpoint = exchange_.open(channel, at_most, tenant);
  if (!endpoint) return endpoint;
  opened_ = true;
  changed_.notify_all();
  const CreditScheduler& scheduler = exchange_.scheduler();
  const auto give_up = std::chrono::steady_clock::now() + kAdmissionPatience;
  for (;;) {
    (void)exchange_.poll();
    if (scheduler.leased(*endpoint) >= scheduler.minimum(*endpoint)) return endpoint;
    if (std::chrono::steady_clock::now() >= give_up) break;
    lock.unlock();
    std::this_thread::sleep_for(kBusyPause);
    lock.lock();
  }
  exchange_.destroy(*endpoint);
  return fail(Status::kBusy,
              fmt::format("the staging slots reserved for another endpoint have not come back within {} ms: "
                          "their holders compute, or their peers do not answer; try again",
                          kAdmissionPatience.count()));
}

void CreditService::retire(CreditEndpoint endpoint) {
  const std::lock_guard lock(mutex_);
  exchange_.retire(endpoint);
  (void)exchange_.poll();
}

void CreditService::destroy(CreditEndpoint endpoint) {
  const std::lock_guard lock(mutex_);
  exchange_.destroy(endpoint);
  (void)exchange_.poll();
}

FlightRecord CreditService::flight(CreditEndpoint endpoint) const {
  const std::lock_guard lock(mutex_);
  return exchange_.flight(endpoint);
}

int CreditService::progress() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return 0;
  ++driven_;
  return exchange_.poll();
}

void CreditService::serve() {
  std::unique_lock lock(mutex_);
  microseconds pause = kBusyPause;
  int vain = 0;
  while (!stopping_) {
    if (exchange_.endpoints() == 0) {
      changed_.wait(lock, [&] { return stopping_ || exchange_.endpoints() != 0; });
      opened_ = true;
      continue;
    }
    const std::uint64_t driven = driven_;
    changed_.wait_for(lock, pause, [&] { return stopping_ || opened_; });
    if (std::exchange(opened_, false)) {
      pause = kBusyPause;
      vain = 0;
    } else if (driven_ != driven) {
      pause = kDrivenPause;
      vain = 0;
    } else if (exchange_.poll() != 0 || exchange_.scheduler().anybody_waits()) {
      pause = kBusyPause;
      vain = 0;
    } else {
      vain = std::min(vain + 1, kPollsBeforeRest);
      pause = std::min(2 * pause, vain < kPollsBeforeRest ? kIdlePause : kRestPause);
    }
  }
}

std::uint32_t CreditService::leased_slots() const {
  const std::lock_guard lock(mutex_);
  return exchange_.scheduler().leased();
}
std::uint32_t CreditService::free_slots() const {
  const std::lock_guard lock(mutex_);
  return exchange_.scheduler().free();
}
std::uint64_t CreditService::bad_returns() const {
  const std::lock_guard lock(mutex_);
  return exchange_.bad_returns();
}

}  // namespace gdx
