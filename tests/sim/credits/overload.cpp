#include "tests/sim/credits/overload.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "tests/sim/credits/world.h"

namespace gdx::sim {
namespace {

constexpr std::uint64_t kTickNs = kSlotOnLinkNs / 8;
constexpr std::uint32_t kSendQueue = 128;  // work requests, as host/queue/endpoint.h has it

struct Sender {
  Sender() : node(kOverloadSlots) {}
  struct Ack {
    std::uint64_t at_ns;
    std::uint32_t slot;
    std::uint32_t index;
    std::uint64_t payload;
    bool whole;
  };

  CreditNode node;
  std::uint32_t first_place = 0;  // of a partition or of a window: places that are the sender's alone
  std::uint32_t places = 0;
  std::deque<Ack> acks;
  std::uint64_t may_push_ns = 0;
  std::uint64_t delivered = 0;
  std::uint64_t delivered_in_stall = 0;
};

class Overload {
 public:
  explicit Overload(const OverloadCase& shape);
  OverloadResult run();

 private:
  [[nodiscard]] bool has_places() const {
    return shape_.staging == Staging::kPartition || shape_.staging == Staging::kPull;
  }
  void open_places(std::uint32_t number, Sender& sender) const;
  void open_credits(Sender& sender);
  [[nodiscard]] std::optional<std::uint32_t> next_slot(Sender& sender);
  void push(Sender& sender);
  void acknowledge(Sender& sender);
  void send();
  [[nodiscard]] bool silent(const Sender& sender) const {
    return shape_.has_silent_peer && &sender == senders_.front().get() && is_stall();
  }
  [[nodiscard]] bool is_stall() const { return now_ns_ >= kStallBeginNs && now_ns_ < kStallEndNs; }

  OverloadCase shape_;
  CreditExchange exchange_{{kOverloadSlots, 1, 100}, "the simulation"};
  std::vector<std::unique_ptr<Sender>> senders_;
  std::vector<std::unique_ptr<Sender>> idle_;  // endpoints that hold their minimum and send nothing
  std::vector<std::uint64_t> memory_;
  std::vector<std::uint64_t> needed_;  // payload not yet acknowledged
  std::uint64_t now_ns_ = 0;
  std::uint64_t link_free_ns_ = 0;
  std::size_t turn_ = 0;
  OverloadResult result_;
};

std::uint32_t endpoints_of(const OverloadCase& shape) { return std::max(shape.senders, shape.endpoints); }

Overload::Overload(const OverloadCase& shape)
    : shape_(shape),
      memory_(shape.staging == Staging::kPull ? shape.senders * kPullWindow : kOverloadSlots),
      needed_(memory_.size()) {
  for (std::uint32_t i = 0; i < endpoints_of(shape); ++i) {
    auto& kind = i < shape.senders ? senders_ : idle_;
    Sender& sender = *kind.emplace_back(std::make_unique<Sender>());
    if (has_places()) {
      open_places(i, sender);
    } else {
      open_credits(sender);
    }
  }
}

void Overload::open_places(std::uint32_t number, Sender& sender) const {
  sender.places = shape_.staging == Staging::kPull ? kPullWindow : kOverloadSlots / endpoints_of(shape_);
  sender.first_place = number * sender.places;
}

void Overload::open_credits(Sender& sender) {
  CreditNode& node = sender.node;
  node.handle.minimum_slots = 1;
  if (shape_.staging == Staging::kCredits) {
    node.number = exchange_.open(node.channel(), kOverloadSlots).value();
  } else {
    node.handle.minimum_slots = kUnlimitedSlots;
    node.state = unlimited_credits(node.handle, &node.grants);
  }
  node.kernel.emplace(node.handle);
  node.kernel->open(node.state);
}

// Takes the sender's next place or credit. None while it has neither.
std::optional<std::uint32_t> Overload::next_slot(Sender& sender) {
  CreditNode& node = sender.node;
  if (has_places()) {
    if (node.producer - node.completed >= sender.places) return std::nullopt;
    return sender.first_place + node.producer % sender.places;
  }
  if (node.kernel->available()) return node.kernel->next_slot();
  node.kernel->stall(kSendQueue);
  return std::nullopt;
}

void Overload::push(Sender& sender) {
  CreditNode& node = sender.node;
  if (!has_places()) {
    node.kernel->on_completed(node.completed);
    node.kernel->poll();
  }
  if (now_ns_ < sender.may_push_ns || node.producer - node.completed == kSendQueue) return;
  const std::optional<std::uint32_t> next = next_slot(sender);
  if (!next) return;
  sender.may_push_ns = now_ns_ + kSlotOnLinkNs * shape_.senders / shape_.overload;
  ++result_.pushed;
  std::uint32_t slot = *next;
  if (shape_.staging == Staging::kTailDrop) {
    slot = static_cast<std::uint32_t>(std::find(needed_.begin(), needed_.end(), 0) - needed_.begin());
  }
  if (slot == memory_.size() || needed_[slot] != 0) ++result_.dropped;
  if (slot == memory_.size()) return;
  memory_[slot] = needed_[slot] = result_.pushed;
  if (!has_places()) {
    node.kernel->consume();
    node.kernel->bind(node.producer);
  }
  node.posted.push_back({node.producer++, slot, result_.pushed});
}

void Overload::acknowledge(Sender& sender) {
  while (!sender.acks.empty() && sender.acks.front().at_ns <= now_ns_ && !silent(sender)) {
    const Sender::Ack ack = sender.acks.front();
    sender.acks.pop_front();
    sender.node.completed = ack.index + 1;
    if (needed_[ack.slot] == ack.payload) needed_[ack.slot] = 0;
    if (!ack.whole) continue;
    ++sender.delivered;
    if (is_stall()) ++sender.delivered_in_stall;
  }
}

// One slot of whose turn it is. All slots are of one size, so a turn each is fair.
void Overload::send() {
  if (now_ns_ < link_free_ns_) return;
  for (std::size_t i = 0; i < senders_.size(); ++i) {
    Sender& sender = *senders_[turn_++ % senders_.size()];
    if (sender.node.posted.empty() || silent(sender)) continue;
    const CreditNode::Work work = sender.node.posted.front();
    sender.node.posted.pop_front();
    const bool whole = memory_[work.slot] == work.payload;
    if (!whole) ++result_.damaged;
    link_free_ns_ = std::max(link_free_ns_, now_ns_ - std::min(now_ns_, kTickNs)) + kSlotOnLinkNs;
    sender.acks.push_back(
        {now_ns_ + kSlotOnLinkNs + kRoundTripNs, work.slot, work.index, work.payload, whole});
    return;
  }
}

OverloadResult Overload::run() {
  for (; now_ns_ < kRunNs; now_ns_ += kTickNs) {
    now_ns = now_ns_;
    if (shape_.staging == Staging::kCredits && now_ns_ % kPollNs < kTickNs) (void)exchange_.poll();
    for (const auto& sender : senders_) {
      acknowledge(*sender);
      push(*sender);
    }
    send();
  }
  std::uint64_t delivered = 0;
  std::uint64_t least = ~std::uint64_t{0};
  for (const auto& sender : senders_) {
    delivered += sender->delivered;
    const bool is_silent = shape_.has_silent_peer && sender == senders_.front();
    if (!is_silent) least = std::min(least, sender->delivered_in_stall);
  }
  const auto on_link = [](std::uint64_t ns) { return static_cast<double>(ns) / kSlotOnLinkNs; };
  result_.goodput = static_cast<double>(delivered) / on_link(kRunNs);
  result_.worst_share = static_cast<double>(least) * shape_.senders / on_link(kStallEndNs - kStallBeginNs);
  return result_;
}

}  // namespace

OverloadResult run_overload(const OverloadCase& shape) { return Overload(shape).run(); }

}  // namespace gdx::sim
