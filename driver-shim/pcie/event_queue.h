// Discrete events in virtual time. Events of one instant run in the order of their scheduling. So a run is a
// function of its inputs alone.
#pragma once

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "driver-shim/pcie/time.h"

namespace gdx::pcie {

class EventQueue {
 public:
  using Handler = std::function<void(TimePs now)>;

  [[nodiscard]] TimePs now() const { return now_; }
  [[nodiscard]] std::uint64_t events_run() const { return events_run_; }
  [[nodiscard]] bool empty() const { return heap_.empty(); }
  // Returns the time of the next event; requires one.
  [[nodiscard]] TimePs next_at() const { return heap_.front().when; }

  // Adds an event. A `when` before now() means now.
  void at(TimePs when, Handler handler) {
    heap_.push_back({std::max(when, now_), next_sequence_++, std::move(handler)});
    std::push_heap(heap_.begin(), heap_.end(), later);
  }

  // Executes the next event. Returns false if there is none.
  bool step() {
    if (heap_.empty()) return false;
    std::pop_heap(heap_.begin(), heap_.end(), later);
    Event event = std::move(heap_.back());
    heap_.pop_back();
    now_ = event.when;
    ++events_run_;
    event.handler(now_);
    return true;
  }

  void run() {
    while (step()) {
    }
  }

  // Executes all events up to and at `when`, which is now() afterwards.
  void run_until(TimePs when) {
    while (!empty() && next_at() <= when) step();
    now_ = std::max(now_, when);
  }

 private:
  struct Event {
    TimePs when;
    std::uint64_t sequence;
    Handler handler;
  };
  static bool later(const Event& a, const Event& b) {
    return a.when != b.when ? a.when > b.when : a.sequence > b.sequence;
  }

  std::vector<Event> heap_;
  TimePs now_ = 0;
  std::uint64_t next_sequence_ = 0;
  std::uint64_t events_run_ = 0;
};

}  // namespace gdx::pcie
