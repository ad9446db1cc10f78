#include "driver-shim/softhca/devx/events.h"

#include <algorithm>
#include <array>

namespace gdx::softhca::devx {
namespace {

using mlx5::prm::Event;

struct EventNumber {
  int event_type;  // enum ib_event_type
  Event event;
};

constexpr std::array<EventNumber, 5> kEventNumbers{{{1, Event::kQpFatal},
                                                    {2, Event::kQpRequestError},
                                                    {3, Event::kQpAccessError},
                                                    {4, Event::kCommunicationEstablished},
                                                    {16, Event::kLastWqeReached}}};

}  // namespace

Event prm_event(int event_type) {
  const auto* const found =
      std::find_if(kEventNumbers.begin(), kEventNumbers.end(),
                   [event_type](const EventNumber& it) { return it.event_type == event_type; });
  return found == kEventNumbers.end() ? Event::kQpFatal : found->event;
}

bool is_raised_here(ObjectKind kind, std::uint16_t event) {
  const auto is = [event](Event candidate) { return static_cast<std::uint16_t>(candidate) == event; };
  switch (kind) {
    case ObjectKind::kCq: return is(Event::kCompletion) || is(Event::kCqError);
    case ObjectKind::kQp:
      return std::any_of(kEventNumbers.begin(), kEventNumbers.end(),
                         [is](const EventNumber& it) { return is(it.event); });
    // There is no command that would set the limit of a receive pool.
    case ObjectKind::kRmp:
    case ObjectKind::kMkey: return false;
  }
  return false;
}

void ObjectEvents::subscribe(std::uint16_t event, Sink sink) {
  const std::lock_guard lock(mutex_);
  subscriptions_.push_back({event, std::move(sink)});
}

void ObjectEvents::raise(Event event) {
  const std::lock_guard lock(mutex_);
  for (const Subscription& subscription : subscriptions_) {
    if (subscription.event == static_cast<std::uint16_t>(event)) subscription.sink();
  }
}

}  // namespace gdx::softhca::devx
