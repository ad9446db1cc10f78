#include "host/staging/credit_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "base/clock.h"
#include "base/log.h"

namespace gdx {
namespace {

std::uint32_t load(const std::uint32_t& word, std::memory_order order) {
  return std::atomic_ref<std::uint32_t>(const_cast<std::uint32_t&>(word)).load(order);
}

}  // namespace

// Fills 2^31 credits (a multiple of any pool). So ring position p is slot p modulo the pool for ever.
StagingState unlimited_credits(const StagingHandle& staging, std::uint64_t* grants) {
  for (std::uint32_t slot = 0; slot < staging.slot_count; ++slot) staging.held[slot] = {slot, 0};
  *grants = pack_grants(0, kUnlimitedSlots);
  return {0, 0, 1u << 31, 0, 0, kUnlimitedSlots, 0, 0};
}

Result<CreditEndpoint> CreditExchange::open(const CreditChannel& channel, std::uint32_t at_most,
                                            std::uint32_t tenant) {
  const auto number = scheduler_.open(at_most, tenant);
  if (!number) return number;
  if (clients_.size() <= *number) {
    clients_.resize(*number + 1);
    flights_.resize(*number + 1);
  }
  const std::uint32_t returned = load(channel.requests->returned, std::memory_order_relaxed);
  clients_[*number] = {channel, true, false, false, granted_of(*channel.grants), returned};
  flights_[*number] = {};
  ++open_;
  return number;
}

void CreditExchange::destroy(CreditEndpoint number) {
  scheduler_.destroy(number);
  clients_[number] = {};
  --open_;
}

int CreditExchange::poll() {
  int done = 0;
  now_ns_ = monotonic_ns();
  for (CreditEndpoint number = 0; number < clients_.size(); ++number) {
    if (clients_[number].exists) done += read_requests(number);
  }
  actions_.clear();
  scheduler_.decide(actions_);
  const std::uint32_t mask = scheduler_.rules().slot_count - 1;
  for (const CreditAction& action : actions_) {
    const bool grants = action.kind == CreditAction::Kind::kGrant;
    note(action.endpoint, grants ? FlightKind::kGrant : FlightKind::kLimit, action.value);
    if (!grants) continue;
    Client& client = clients_[action.endpoint];
    client.channel.granted_slots[client.granted++ & mask] = action.value;
  }
  for (const CreditAction& action : actions_) show_grants(action.endpoint);
  return done + static_cast<int>(actions_.size());
}

void CreditExchange::show_grants(CreditEndpoint number) {
  const Client& client = clients_[number];
  std::atomic_ref<std::uint64_t>(*client.channel.grants)
      .store(pack_grants(client.granted, scheduler_.limit(number)), std::memory_order_release);
}

int CreditExchange::read_requests(CreditEndpoint number) {
  Client& client = clients_[number];
  const CreditRequests& requests = *client.channel.requests;
  const std::uint32_t returned = load(requests.returned, std::memory_order_acquire);
  // Read before the endpoint's returns, or the scheduler would grant its minimum again.
  int done = 0;
  if (load(requests.failed, std::memory_order_acquire) != 0 && !std::exchange(client.failed, true)) {
    scheduler_.retire(number);
    done = take_back_untaken(number, load(requests.wanted, std::memory_order_relaxed));
  }
  done += take_returns(number, returned);
  const auto more =
      static_cast<std::int32_t>(load(requests.wanted, std::memory_order_relaxed) - client.granted);
  const std::uint32_t wants = more > 0 ? static_cast<std::uint32_t>(more) : 0;
  scheduler_.want(number, std::min(wants, scheduler_.rules().slot_count));
  return done;
}

// Takes back slots granted during the endpoint's failure, which its owner has declared untaken.
int CreditExchange::take_back_untaken(CreditEndpoint number, std::uint32_t taken) {
  Client& client = clients_[number];
  const std::uint32_t slot_count = scheduler_.rules().slot_count;
  const std::uint32_t count = client.granted - taken;
  if (count > slot_count) {
    report(number, "has failed and says that it took {} slots that nobody granted", taken - client.granted);
    return 1;
  }
  for (client.granted = taken; taken != client.granted + count; ++taken) {
    const std::uint32_t slot =
        load(client.channel.granted_slots[taken & (slot_count - 1)], std::memory_order_relaxed);
    if (!take_back(number, slot)) {
      report(number, "leaves slot {}, which it was not granted", slot);
    }
  }
  show_grants(number);  // its limit may be 0 already, which then is no action
  return static_cast<int>(count);
}

int CreditExchange::take_returns(CreditEndpoint number, std::uint32_t returned) {
  Client& client = clients_[number];
  const std::uint32_t slot_count = scheduler_.rules().slot_count;
  const std::uint32_t count = returned - client.returned;
  if (count > slot_count) {
    client.returned = returned;
    report(number, "gives back {} slots at once", count);
    return 1;
  }
  for (; client.returned != returned; ++client.returned) {
    const std::uint32_t slot =
        load(client.channel.returned_slots[client.returned & (slot_count - 1)], std::memory_order_relaxed);
    if (!take_back(number, slot)) {
      report(number, "gives back slot {}, which it does not hold", slot);
    }
  }
  return static_cast<int>(count);
}

bool CreditExchange::take_back(CreditEndpoint number, std::uint32_t slot) {
  if (!scheduler_.take_back(number, slot)) return false;
  note(number, FlightKind::kReturn, slot);
  return true;
}

void CreditExchange::note(CreditEndpoint number, FlightKind kind, std::uint32_t word) {
  flights_[number].record(now_ns_, {.kind = kind, .word = word});
}

// Formats the first report of an endpoint only: a hostile one makes many.
void CreditExchange::report(CreditEndpoint number, const char* what, std::uint32_t slots) {
  ++bad_returns_;
  if (std::exchange(clients_[number].reported, true)) return;
  log::warn_of_others("staging of {}: endpoint {} {}; ignored, and not reported again: close that endpoint",
                      name_, number, fmt::format(fmt::runtime(what), slots));
}

}  // namespace gdx
