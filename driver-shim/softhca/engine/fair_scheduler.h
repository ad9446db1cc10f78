// Chooses the next sender among the queue pairs of one HCA. The rule is deficit round robin by bytes
// (Shreedhar and Varghese, SIGCOMM 1995). A turn is worth a quantum. The packet that uses it up may overdraw
// it, and the queue's next turn pays the debt. So a packet's size need not be known before it is sent. Pure:
// no time, no memory but its list.
//
// Between two queues that can always send, the lead is at most a quantum and a packet. A queue may be held
// back by its window, an unready receiver, a full wire or its rate. It costs the others nothing. The
// scheduler passes it over; it keeps its place and the rest of its turn, and collects nothing meanwhile.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>

namespace gdx::softhca {

// State of a queue in the scheduler.
struct Turn {
  std::int64_t deficit_bytes = 0;  // bytes that it may still send; negative: its debt
  bool begun = false;              // the quantum of the present turn has been granted
  bool listed = false;
};

// Requires of `Queue` a member `Turn turn`.
template <typename Queue>
class FairScheduler {
 public:
  explicit FairScheduler(std::uint32_t quantum_bytes) : quantum_bytes_(quantum_bytes) {}

  // Puts the queue at the end of the round. Does nothing if it is listed.
  void add(Queue& queue) {
    if (queue.turn.listed) return;
    queue.turn.listed = true;
    order_.push_back(&queue);
  }
  void remove(Queue& queue) {
    std::erase(order_, &queue);
    leave(queue);
  }
  // Removes the queues for which keep(queue) is false. A queue without packets keeps a debt, but no claim.
  template <typename Keep>
  void retain(Keep keep) {
    std::erase_if(order_, [&](Queue* queue) {
      if (keep(*queue)) return false;
      leave(*queue);
      return true;
    });
  }
  [[nodiscard]] const std::deque<Queue*>& queues() const { return order_; }

  // Gives turns until `budget_bytes` have been sent, or no queue can send. A turn that the budget interrupts
  // continues in the next call.
  //  ready(queue): returns whether it could send now. If that is wrong, send() returns 0.
  //  send(queue, allowance_bytes): sends until the allowance is used up or it is held back. Returns bytes;
  //  the last packet may go beyond.
  // Returns the bytes sent.
  template <typename Ready, typename Send>
  std::uint64_t run(std::uint64_t budget_bytes, Ready ready, Send send) {
    std::uint64_t sent_bytes = 0;
    std::size_t held_back = 0;  // queues in a row that were held back
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
  // Keeps the rest of a turn that has begun. A new quantum would let the first of several waiting queues take
  // all that a shared window opens.
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

// The same among owners, and then among the queues of one, so that nobody gains by having more queues.
// Requires of `Queue` a member `Turn turn` and owner(), which never changes.
template <typename Queue>
class OwnerScheduler {
 public:
  explicit OwnerScheduler(std::uint32_t quantum_bytes)
      : quantum_bytes_(quantum_bytes), owners_in_turn_(quantum_bytes) {}

  void add(Queue& queue) {
    Owner& owner = owners_.try_emplace(queue.owner(), quantum_bytes_).first->second;
    owner.queues.add(queue);
    owners_in_turn_.add(owner);
  }
  // Removes a queue, because it ends.
  void remove(Queue& queue) {
    const auto found = owners_.find(queue.owner());
    if (found == owners_.end()) return;
    Owner& owner = found->second;
    owner.queues.remove(queue);
    if (!owner.queues.queues().empty()) return;
    owners_in_turn_.remove(owner);
    owners_.erase(found);
  }
  template <typename Keep>
  void retain(Keep keep) {
    owners_in_turn_.retain([&](Owner& owner) {
      owner.queues.retain(keep);
      return !owner.queues.queues().empty();
    });
  }
  [[nodiscard]] bool empty() const { return owners_in_turn_.queues().empty(); }
  template <typename Visit>
  void visit(Visit visit) const {
    for (const Owner* owner : owners_in_turn_.queues()) {
      for (Queue* queue : owner->queues.queues()) visit(*queue);
    }
  }

  // See FairScheduler::run.
  template <typename Ready, typename Send>
  std::uint64_t run(std::uint64_t budget_bytes, Ready ready, Send send) {
    return owners_in_turn_.run(
        budget_bytes, [](const Owner&) { return true; },
        [&](Owner& owner, std::uint64_t allowance) { return owner.queues.run(allowance, ready, send); });
  }

 private:
  struct Owner {
    explicit Owner(std::uint32_t quantum_bytes) : queues(quantum_bytes) {}
    Turn turn;
    FairScheduler<Queue> queues;
  };

  std::uint32_t quantum_bytes_;
  std::map<std::uint32_t, Owner> owners_;  // those who have, or had, queues with packets
  FairScheduler<Owner> owners_in_turn_;
};

}  // namespace gdx::softhca
