// Posting of commands: what each becomes at the port, and what it waits for.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "host/poster/executor.h"

namespace gdx {
namespace {

using agent::Kind;

// The longest part of a put or get. Short, because only the end of a part shows that the rank still takes
// them.
constexpr std::uint64_t kMostPart = std::uint64_t{1} << 24;
constexpr std::uint8_t kSignals = kCommandSignalSet | kCommandSignalAdd;
constexpr std::size_t kKeptForAnswers = 64;  // operations that commands leave
constexpr std::uint64_t kNoRequest = ~std::uint64_t{0};

}  // namespace

// A rank holds no more than are free, so that any number of ranks that stand still leave a share to the next.
bool Executor::may_hold(std::uint32_t rank, std::size_t more, bool answers) const {
  const std::size_t kept = answers ? 0 : kKeptForAnswers;
  return peers_[rank].held + 2 * more <= std::max(free_.size(), kept) - kept + 1;
}

Executor::Operation* Executor::new_operation(std::uint32_t rank, Flow* flow, Entry* entry,
                                             Operation::Kind kind, std::uint64_t bytes) {
  if (!may_hold(rank, 1, flow == nullptr)) return nullptr;
  ++peers_[rank].held;
  Operation* const operation = free_.back();
  free_.pop_back();
  operation->rank = rank;
  operation->flow = flow;
  operation->entry = entry;
  operation->kind = kind;
  operation->bytes = bytes;
  return operation;
}

void Executor::give_back(Operation* operation) {
  --peers_[operation->rank].held;
  free_.push_back(operation);
}

// Counts what was posted; otherwise gives the operation back.
Executor::Step Executor::finish(Flow& flow, Entry* entry, Operation* operation, Result<Posting> posting,
                                const char* what) {
  if (posting && *posting == Posting::kPosted) {
    if (entry != nullptr) ++entry->in_flight;
    return Step::kDone;
  }
  const std::uint64_t bytes = operation->bytes;
  give_back(operation);
  if (!posting) {
    fail_flow(flow, {posting.error().status, fmt::format("{} of {} B to rank {}: {}", what, bytes, flow.rank,
                                                         posting.error().message)});
  }
  return Step::kLater;
}

int Executor::post_all(Flow& flow) {
  int done = 0;
  while (flow.failure.status == Status::kOk && flow.posted < flow.entries.size()) {
    Entry& entry = flow.entries[flow.posted];
    if (post(flow, entry) == Step::kLater) return done;
    entry.posted = true;
    ++flow.posted;
    ++done;
  }
  return done;
}

Executor::Step Executor::post(Flow& flow, Entry& entry) {
  switch (entry.command.operation) {
    case CommandOperation::kPut:
    case CommandOperation::kPutValue: return post_put(flow, entry);
    case CommandOperation::kGet: return post_get(flow, entry);
    case CommandOperation::kFetchAdd: return post_message(flow, entry, Kind::kFetchAdd, true);
    case CommandOperation::kCompareSwap: return post_message(flow, entry, Kind::kCompareSwap, true);
    case CommandOperation::kFlush:
      // The echo comes after all before it, so its answer says that messages were applied and writes placed.
      return is_proven(flow) ? Step::kDone : post_message(flow, entry, Kind::kEcho, true);
  }
  fail_flow(flow, {Status::kInvalidArgument,
                   fmt::format("a command for rank {} has operation {}: the ring was overwritten", flow.rank,
                               static_cast<unsigned>(entry.command.operation))});
  return Step::kLater;
}

PortSource Executor::source_of(const Entry& entry) const {
  const Command& command = entry.command;
  if (entry.ends) return {entry.ends->local.address + entry.bytes_posted, entry.ends->local.region};
  return {windows_[command.local_window].address + command.local_offset + entry.bytes_posted,
          regions_[command.local_window].local};
}

PortTarget Executor::target_of(const Flow& flow, const Entry& entry) const {
  const Command& command = entry.command;
  if (entry.ends) return {entry.ends->remote.address + entry.bytes_posted, entry.ends->remote.key};
  const agent::CardWindow& window = peers_[flow.rank].card.windows[command.remote_window];
  return {window.base + command.remote_offset + entry.bytes_posted, window.key};
}

bool Executor::may_follow(const Flow& flow, const Entry& entry, std::uint64_t bytes_posted) const {
  if (!may_hold(flow.rank, 1, false)) return false;
  const bool may_write = flow.writes_in_flight + 1 < agent::kMostWrites;
  if (bytes_posted < entry.command.bytes) return may_write;
  if ((entry.command.flags & kSignals) != 0)
    return order_ != SignalOrder::kDelivery && flow.messages - flow.answered < agent::kMostUnanswered;
  if ((entry.command.flags & kCommandMore) == 0 || flow.posted + 1 >= flow.entries.size()) return false;
  const Command& next = flow.entries[flow.posted + 1].command;
  const bool writes =
      next.operation == CommandOperation::kPut || next.operation == CommandOperation::kPutValue;
  return writes && next.bytes != 0 && may_write;
}

Executor::Step Executor::post_put(Flow& flow, Entry& entry) {
  const Command& command = entry.command;
  const bool signals = (command.flags & kSignals) != 0;
  const std::uint64_t most = std::min(traits().most_bytes, kMostPart);
  while (entry.bytes_posted < command.bytes) {
    if (flow.writes_in_flight == agent::kMostWrites) return Step::kLater;
    const std::uint64_t part = std::min(most, command.bytes - entry.bytes_posted);
    Operation* const operation = new_operation(flow.rank, &flow, &entry, Operation::Kind::kWrite, part);
    if (operation == nullptr) return Step::kLater;
    PortSource source{reinterpret_cast<std::byte*>(&operation->message), operation_region_.local};
    if (command.operation == CommandOperation::kPutValue) {
      std::memcpy(source.address, &command.value, sizeof command.value);
    } else {
      source = source_of(entry);
    }
    const PortTarget target = target_of(flow, entry);
    const bool more = may_follow(flow, entry, entry.bytes_posted + part);
    const bool numbered = is_numbered(entry);
    const bool early = completes_early(entry);
    const std::uint32_t own_flow = flow.lane * options_.ranks + options_.rank;
    const std::uint32_t flags =
        (more ? kPortMore : 0) | (numbered ? kPortImmediate : 0) | (early ? kPortSourceFree : 0);
    const Step step = finish(flow, &entry, operation,
                             port_->write(flow.rank, source, target, part, flags,
                                          agent::pack_number(own_flow, flow.numbered), &operation->context),
                             "write");
    if (step == Step::kLater) return step;
    flow.unproven = flow.unproven || early || !traits().delivery_complete;
    ++flow.writes_in_flight;
    if (numbered) ++flow.numbered;
    entry.bytes_posted += part;
  }
  if (!signals) return Step::kDone;
  return post_message(flow, entry, (command.flags & kCommandSignalSet) != 0 ? Kind::kSet : Kind::kAdd, false);
}

Executor::Step Executor::settle(Flow& flow, Entry& entry) {
  if (!traits().read_after_write && flow.writes_in_flight != 0) return Step::kLater;
  const bool sees_writes = traits().read_after_write || !flow.unproven;
  if (flow.answered == flow.messages && sees_writes) return Step::kDone;
  if (!entry.asked && post_message(flow, entry, Kind::kEcho, true) == Step::kDone) entry.asked = true;
  return Step::kLater;
}

Executor::Step Executor::post_get(Flow& flow, Entry& entry) {
  const Command& command = entry.command;
  if (entry.bytes_posted == 0 && settle(flow, entry) == Step::kLater) return Step::kLater;
  const std::uint64_t most = std::min(traits().most_bytes, kMostPart);
  while (entry.bytes_posted < command.bytes) {
    const std::uint64_t part = std::min(most, command.bytes - entry.bytes_posted);
    Operation* const operation = new_operation(flow.rank, &flow, &entry, Operation::Kind::kRead, part);
    if (operation == nullptr) return Step::kLater;
    const Step step = finish(
        flow, &entry, operation,
        port_->read(flow.rank, source_of(entry), target_of(flow, entry), part, &operation->context), "read");
    if (step == Step::kLater) return step;
    entry.bytes_posted += part;
  }
  return Step::kDone;
}

// Sends the message of `entry`. With an answer that completes the entry, else its own completion does.
Executor::Step Executor::post_message(Flow& flow, Entry& entry, Kind kind, bool wants_answer) {
  const Command& command = entry.command;
  const bool signal = kind == Kind::kSet || kind == Kind::kAdd;
  agent::Message message{};
  message.offset = signal ? command.signal_offset : command.remote_offset;
  message.window = signal ? command.signal_window : command.remote_window;
  message.value = command.value;
  message.compare = command.bytes;
  message.request = wants_answer ? entry.index : kNoRequest;
  message.kind = kind;
  message.wants_answer = wants_answer ? 1 : 0;
  const Step step = send_message(flow, wants_answer ? nullptr : &entry, message);
  if (step == Step::kDone && wants_answer) ++entry.in_flight;
  return step;
}

Executor::Step Executor::send_message(Flow& flow, Entry* entry, const agent::Message& message) {
  if (flow.messages - flow.answered == agent::kMostUnanswered) return Step::kLater;
  if (order_ == SignalOrder::kDelivery && flow.writes_in_flight != 0) return Step::kLater;
  Operation* const operation =
      new_operation(flow.rank, &flow, entry, Operation::Kind::kMessage, sizeof(agent::Message));
  if (operation == nullptr) return Step::kLater;
  operation->message = message;
  operation->message.token = peers_[flow.rank].card.token;
  operation->message.sequence = flow.messages;
  operation->message.after = flow.numbered;
  operation->message.flow = flow.lane * options_.ranks + options_.rank;
  if ((flow.messages + 1) % agent::kAnswerEvery == 0) operation->message.wants_answer = 1;
  const PortSource source{reinterpret_cast<std::byte*>(&operation->message), operation_region_.local};
  const Step step =
      finish(flow, entry, operation, port_->send(flow.rank, source, &operation->context), "message");
  if (step == Step::kDone) {
    ++flow.messages;
    flow.unproven = false;
  }
  return step;
}

// A rank to which nothing can be sent counts as silent from now on.
void Executor::want_echo(Flow& flow) {
  if (flow.echo_wanted) return;
  flow.echo_wanted = true;
  if (flow.entries.empty()) flow.progress_ns = ran_ns_;
  send_echo(flow);
}

void Executor::send_echo(Flow& flow) {
  if (flow.echoed > flow.answered) return;
  agent::Message message{};
  message.kind = Kind::kEcho;
  message.request = kNoRequest;
  message.wants_answer = 1;
  if (send_message(flow, nullptr, message) == Step::kDone) flow.echoed = flow.messages;
}

// Posts each answer, or keeps it for the next turn: a rank that takes none holds up no other's.
int Executor::post_answers() {
  int done = 0;
  for (std::size_t left = answers_.size(); left != 0; --left) {
    const Agent::Answer answer = answers_.front();
    answers_.pop_front();
    const std::uint32_t lane = answer.flow / options_.ranks;
    const std::uint32_t rank = answer.flow % options_.ranks;
    if (!peers_[rank].connected) continue;
    Operation* const operation =
        new_operation(rank, nullptr, nullptr, Operation::Kind::kMessage, sizeof(agent::Message));
    if (operation == nullptr) {
      answers_.push_back(answer);
      continue;
    }
    operation->message = answer.message;
    operation->message.token = peers_[rank].card.token;
    operation->message.flow = lane * options_.ranks + options_.rank;
    const PortSource source{reinterpret_cast<std::byte*>(&operation->message), operation_region_.local};
    const auto posting = port_->send(rank, source, &operation->context);
    if (posting && *posting == Posting::kPosted) {
      ++done;
      continue;
    }
    give_back(operation);
    if (!posting && is_gone(flow_of(lane, rank), posting.error())) continue;
    answers_.push_back(answer);
  }
  return done;
}

// Tells of the first answer that `rank` could not be sent, and returns whether later turns are in vain, too.
bool Executor::is_gone(const Flow& flow, const Error& error) {
  const bool gone = error.status == Status::kPeerUnreachable || error.status == Status::kFlushed ||
                    flow.failure.status == Status::kPeerUnreachable;
  bool& told = peers_[flow.rank].answer_failure_told;
  if (!std::exchange(told, true)) {
    log::warn_of_others("poster: an answer to rank {}: {}: {}", flow.rank, error.message,
                        gone ? "it is left out, because the rank is gone" : "it is sent again later");
  }
  return gone;
}

}  // namespace gdx
