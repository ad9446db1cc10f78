#include "host/poster/agent.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

namespace gdx {
namespace {

using agent::Kind;
using agent::Message;

constexpr std::uint64_t kNumberMask = (1u << agent::kNumberBits) - 1;

// Changes the word as the message says, and returns what was there. Ordering: the payload is visible to who
// acquires the new value, because the provider placed it in this thread or before it told this one.
std::uint64_t change(std::uint64_t& word, const Message& message) {
  const std::atomic_ref shared(word);
  std::uint64_t old = message.compare;
  switch (message.kind) {
    case Kind::kSet: return shared.exchange(message.value, std::memory_order_acq_rel);
    case Kind::kAdd:
    case Kind::kFetchAdd: return shared.fetch_add(message.value, std::memory_order_acq_rel);
    case Kind::kCompareSwap:
      shared.compare_exchange_strong(old, message.value, std::memory_order_acq_rel);
      return old;
    default: return 0;
  }
}

}  // namespace

std::uint64_t* word_at(std::span<const PosterWindow> windows, std::uint32_t window, std::uint64_t offset) {
  constexpr std::uint64_t kWord = sizeof(std::uint64_t);
  if (window >= windows.size() || offset % kWord != 0) return nullptr;
  if (windows[window].bytes < kWord || offset > windows[window].bytes - kWord) return nullptr;
  return reinterpret_cast<std::uint64_t*>(windows[window].address + offset);
}

void Agent::hide(const PosterWindow& memory) {
  const auto found = std::ranges::find_if(shown_, [&](const PosterWindow& one) {
    return one.address == memory.address && one.bytes == memory.bytes;
  });
  if (found != shown_.end()) shown_.erase(found);
}

std::uint64_t* Agent::word_of(const Message& message, std::span<const PosterWindow> windows) const {
  if (message.window != agent::kByAddress) return word_at(windows, message.window, message.offset);
  // An address below the memory gives an offset beyond its end.
  if (message.offset % sizeof(std::uint64_t) != 0) return nullptr;
  for (const PosterWindow& memory : shown_) {
    const std::uint64_t offset = message.offset - reinterpret_cast<std::uintptr_t>(memory.address);
    if (memory.bytes >= sizeof(std::uint64_t) && offset <= memory.bytes - sizeof(std::uint64_t))
      return reinterpret_cast<std::uint64_t*>(memory.address + offset);
  }
  return nullptr;
}

Message Agent::apply(const Message& message, std::span<const PosterWindow> windows) const {
  Message answer{};
  answer.kind = Kind::kAnswer;
  answer.sequence = message.sequence;
  answer.request = message.request;
  if (message.kind == Kind::kEcho) return answer;
  std::uint64_t* const word = word_of(message, windows);
  if (word == nullptr) {
    answer.refused = 1;
  } else {
    answer.value = change(*word, message);
  }
  return answer;
}

Result<void> Agent::on_write(std::uint32_t immediate, std::span<const PosterWindow> windows,
                             std::vector<Answer>& answers) {
  const std::uint32_t number = immediate >> agent::kNumberBits;
  if (number >= flows_.size())
    return fail(Status::kRemoteInvalid, fmt::format("a write came with the number of flow {}", number));
  Placed& placed = flows_[number].placed;
  const std::uint64_t ahead = (immediate - placed.next) & kNumberMask;
  const std::size_t size = placed.marked.size();
  if (ahead >= size || placed.marked[(placed.next + ahead) % size]) {
    return fail(Status::kRemoteInvalid,
                fmt::format("a write of flow {} came with a number {} ahead of its turn", number, ahead));
  }
  placed.marked.set((placed.next + ahead) % size);
  while (placed.marked[placed.next % size]) placed.marked.reset(placed.next++ % size);
  apply_due(number, windows, answers);
  return {};
}

Result<void> Agent::on_message(const Message& message, std::span<const PosterWindow> windows,
                               std::vector<Answer>& answers) {
  if (message.flow >= flows_.size())
    return fail(Status::kRemoteInvalid, fmt::format("a message came for flow {}", message.flow));
  Flow& flow = flows_[message.flow];
  std::optional<Message>& place = flow.waiting[message.sequence % agent::kMostUnanswered];
  if (message.sequence - flow.next_message >= agent::kMostUnanswered || place) {
    return fail(Status::kRemoteInvalid, fmt::format("message {} of flow {} came when message {} was due",
                                                    message.sequence, message.flow, flow.next_message));
  }
  place = message;
  apply_due(message.flow, windows, answers);
  return {};
}

void Agent::apply_due(std::uint32_t number, std::span<const PosterWindow> windows,
                      std::vector<Answer>& answers) {
  Flow& flow = flows_[number];
  for (;;) {
    std::optional<Message>& due = flow.waiting[flow.next_message % agent::kMostUnanswered];
    if (!due || due->after > flow.placed.next) return;
    const Message answer = apply(*due, windows);
    if (due->wants_answer != 0 || answer.refused != 0) answers.push_back({number, answer});
    due.reset();
    ++flow.next_message;
  }
}

}  // namespace gdx
