// Who sends next among the queue pairs of one HCA: deficit round robin by bytes (Shreedhar and Varghese,
// SIGCOMM 1995). A turn is worth a quantum. The packet that uses it up may overdraw it, and the debt is taken
// from the queue's next turn, so nobody need know a packet's size before it is sent.
// Pure: no time, no memory but its list.
//
// Of two queues that could send all the time, neither is ever ahead by more than a quantum and a packet. One
// that is held back (by its window, a receiver that is not ready, a full wire, its rate) costs the others
// nothing: it is passed over, keeps its place and what is left of its turn, and collects nothing while it
// waits.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>

namespace gdx::softhca {

// A queue's own part of the scheduler's state.
struct Turn {
  std::int64_t deficit_bytes = 0;  // what it may still send, or its debt
  bool begun = false;              // the quantum of the present turn has been granted
  bool listed = false;
};

// `Queue` has a member `Turn turn`.
template <typename Queue>
class FairScheduler {
 public:
  explicit FairScheduler(std::uint32_t quantum_bytes) : quantum_bytes_(quantum_bytes) {}

  // Puts the queue at the end of the round. Does nothing where it is listed.
  void add(Queue& queue) {
    if (queue.turn.listed) return;
    queue.turn.listed = true;
    order_.push_back(&queue);
  }
  void remove(Queue& queue) {
    std::erase(order_, &queue);
    leave(queue);
  }
  // Removes the queues of which keep(queue) is false: who has nothing to send keeps a debt, but no claim.
  template <typename Keep>
  void retain(Keep keep) {
    std::erase_if(order_, [&](Queue* queue) {
      if (keep(*queue)) return false;
      leave(*queue);
      return true;
    });
  }
  [[nodiscard]] const std::deque<Queue*>& queues() const { return order_; }

  // Gives turns until `budget_bytes` have been sent, or nobody can send. A turn that the budget interrupts
  // goes on in the next call.
  //   ready(queue): it could send now. May be wrong about it; then send() returns 0.
  //   send(queue, allowance_bytes): sends until the allowance is used up or it is held back. Returns bytes;
  //   the last packet may go beyond.
  // Returns the bytes sent.
  template <typename Ready, typename Send>
  std::uint64_t run(std::uint64_t budget_bytes, Ready ready, Send send) {
    std::uint64_t sent_bytes = 0;
    std::size_t held_back = 0;  // in a row
    while (sent_bytes < budget_bytes && held_back < order_.size()) {
      Queue& queue = *order_.front();
      Turn& turn = queue.turn;
      if (!ready(queue)) {
        ++held_back;
        pass_over();
        continue;
      }
      if (!turn.begun) turn.deficit_bytes += quantum_bytes_;
      turn.begun = true;
      const bool in_debt = turn.deficit_bytes <= 0;
      const std::uint64_t left = budget_bytes - sent_bytes;
      const std::uint64_t bytes =
          in_debt ? 0 : send(queue, std::min(left, static_cast<std::uint64_t>(turn.deficit_bytes)));
      turn.deficit_bytes -= static_cast<std::int64_t>(bytes);
      sent_bytes += bytes;
      held_back = in_debt || bytes > 0 ? 0 : held_back + 1;
      if (turn.deficit_bytes <= 0) turn.begun = false;
      if (!turn.begun || bytes == 0) pass_over();
    }
    return sent_bytes;
  }

 private:
  // A turn that has begun goes on at the next look: if it were granted anew, the first of several that wait
  // for the same window would take all that it opens by.
  void pass_over() {
    order_.push_back(order_.front());
    order_.pop_front();
  }
  static void leave(Queue& queue) {
    queue.turn = {.deficit_bytes = std::min<std::int64_t>(queue.turn.deficit_bytes, 0)};
  }

  std::uint32_t quantum_bytes_;
  std::deque<Queue*> order_;  // the front has the turn
};

}  // namespace gdx::softhca
