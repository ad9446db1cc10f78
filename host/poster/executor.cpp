#include "host/poster/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>

#include "base/log.h"

namespace gdx {
namespace {

constexpr std::size_t kOperations = 2048;
constexpr std::size_t kMostEntries = 1024;  // of a flow
constexpr std::uint64_t kForever = ~std::uint64_t{0};
constexpr std::uint64_t kTurnsOfBound = 8;  // the fewest calls of progress() in which a rank is given up
constexpr std::uint32_t kMostBusyTurns = 64;
constexpr std::uint64_t kWord = sizeof(std::uint64_t);

constexpr std::uint8_t kSignals = kCommandSignalSet | kCommandSignalAdd;

bool within(std::uint64_t offset, std::uint64_t bytes, std::uint64_t size) {
  return offset <= size && bytes <= size - offset;
}

bool changes_word(const Command& command) {
  return command.operation == CommandOperation::kFetchAdd ||
         command.operation == CommandOperation::kCompareSwap;
}

const char* name_of(const Command& command) {
  switch (command.operation) {
    case CommandOperation::kPut: return (command.flags & kSignals) == 0 ? "put" : "put with signal";
    case CommandOperation::kPutValue: return "put of a value";
    case CommandOperation::kGet: return "get";
    case CommandOperation::kFetchAdd: return "fetch-and-add";
    case CommandOperation::kCompareSwap: return "compare-and-swap";
    case CommandOperation::kFlush: return "flush";
  }
  return "unknown command";
}

std::uint64_t random_token() {
  std::random_device random;
  return std::uint64_t{random()} << 32 | random();
}

}  // namespace

Executor::Executor(std::unique_ptr<Port> port, const ExecutorOptions& options, SignalOrder order)
    : options_(options),
      order_(order),
      token_(random_token()),
      peers_(options.ranks),
      flows_(std::size_t{options.ranks} * options.lanes),
      done_(options.lanes, nullptr),
      agent_(options.ranks * options.lanes),
      operations_(kOperations),
      port_(std::move(port)) {
  for (std::uint32_t i = 0; i < flows_.size(); ++i) {
    flows_[i].lane = i / options.ranks;
    flows_[i].rank = i % options.ranks;
  }
  for (Operation& operation : operations_) free_.push_back(&operation);
}

Result<std::unique_ptr<Executor>> Executor::create(std::unique_ptr<Port> port,
                                                   const ExecutorOptions& options) {
  const PortTraits& traits = port->traits();
  if (options.ranks == 0 || options.lanes == 0 || options.rank >= options.ranks)
    return fail(Status::kInvalidArgument,
                fmt::format("rank {} of {} with {} lanes", options.rank, options.ranks, options.lanes));
  SignalOrder order = options.order.value_or(signal_order_of(traits));
  const std::uint64_t flows = std::uint64_t{options.ranks} * options.lanes;
  if (!options.order && order == SignalOrder::kSequence && flows > agent::kMostFlows)
    order = SignalOrder::kDelivery;
  const bool possible = (order == SignalOrder::kDelivery && traits.delivery_complete) ||
                        (order == SignalOrder::kMessage && traits.message_after_write) ||
                        (order == SignalOrder::kSequence && traits.immediate_bytes >= sizeof(std::uint32_t) &&
                         flows <= agent::kMostFlows);
  if (!possible)
    return fail(Status::kUnsupported,
                fmt::format("provider {} cannot order signals that way: leave the order to the contract",
                            traits.provider));
  std::unique_ptr<Executor> executor(new Executor(std::move(port), options, order));
  executor->operation_region_ = GDX_TRY(executor->port_->register_memory(
      reinterpret_cast<std::byte*>(executor->operations_.data()), kOperations * sizeof(Operation), false));
  return executor;
}

Result<std::uint8_t> Executor::add_window(std::byte* address, std::uint64_t bytes,
                                          std::optional<std::size_t> number) {
  const std::size_t at = number.value_or(windows_.size());
  if (at >= agent::kMostWindows || at > windows_.size())
    return fail(Status::kInvalidArgument,
                fmt::format("a poster has {} windows at most", agent::kMostWindows));
  const PortRegion region = GDX_TRY(port_->register_memory(address, bytes, true));
  windows_.resize(std::max(windows_.size(), at + 1));
  regions_.resize(windows_.size());
  if (windows_[at].address != nullptr) port_->forget_memory(regions_[at]);
  regions_[at] = region;
  windows_[at] = {address, bytes};
  return static_cast<std::uint8_t>(at);
}

void Executor::drop_window(std::size_t number) {
  if (number + 1 != windows_.size()) return;
  port_->forget_memory(regions_.back());
  regions_.pop_back();
  windows_.pop_back();
}

agent::Card Executor::card() const {
  agent::Card card{};
  card.version = agent::kVersion;
  card.ranks = options_.ranks;
  card.lanes = options_.lanes;
  card.order = static_cast<std::uint32_t>(order_);
  card.token = token_;
  traits().provider.copy(card.provider, sizeof card.provider - 1);
  card.window_count = static_cast<std::uint32_t>(windows_.size());
  for (std::size_t i = 0; i < windows_.size(); ++i)
    card.windows[i] = {regions_[i].base, regions_[i].key, windows_[i].bytes};
  card.address_bytes =
      static_cast<std::uint32_t>(std::min<std::size_t>(port_->address().size(), sizeof card.address));
  const auto address = std::as_bytes(std::span(port_->address())).first(card.address_bytes);
  std::ranges::copy(address, std::as_writable_bytes(std::span(card.address)).begin());
  return card;
}

Result<void> Executor::connect(std::uint32_t rank, const agent::Card& card) {
  if (card.version != agent::kVersion)
    return fail(Status::kVersionMismatch,
                fmt::format("rank {} has poster version {}, this rank {}: run the same gdx", rank,
                            card.version, agent::kVersion));
  const std::string_view theirs(card.provider, strnlen(card.provider, sizeof card.provider));
  const agent::Card own = this->card();
  if (theirs != own.provider || card.order != own.order) {
    return fail(
        Status::kUnsupported,
        fmt::format("rank {} uses provider {} (order {}), this rank {} (order {}): give all ranks the same",
                    rank, theirs, card.order, own.provider, own.order));
  }
  const bool fits = rank < options_.ranks && card.ranks == own.ranks && card.lanes == own.lanes &&
                    card.window_count <= agent::kMostWindows &&
                    card.address_bytes <= agent::kMostAddressBytes;
  if (!fits)
    return fail(Status::kInvalidArgument,
                fmt::format("the card of rank {} is not of this team's shape", rank));
  if (!peers_[rank].connected)
    GDX_TRY(port_->connect(rank, std::as_bytes(std::span(card.address, card.address_bytes))));
  peers_[rank].connected = true;
  peers_[rank].card = card;
  return {};
}

std::uint32_t Executor::refused() const {
  if (options_.emulation == Emulation::kPermit) return 0;
  const auto bit = [](CommandOperation operation) { return 1u << static_cast<std::uint32_t>(operation); };
  std::uint32_t refused = bit(CommandOperation::kFetchAdd) | bit(CommandOperation::kCompareSwap);
  if (!traits().read_after_write) refused |= bit(CommandOperation::kGet);
  if (!traits().delivery_complete) refused |= bit(CommandOperation::kFlush);
  return refused | std::uint32_t{kSignals} << kCommandRefusedFlagsShift;
}

bool Executor::has_room(std::uint32_t lane, std::uint32_t rank) const {
  return flows_[std::size_t{lane} * options_.ranks + rank].entries.size() < kMostEntries;
}

Status Executor::refusal_of(const Flow& flow, const Command& command, bool in_windows) const {
  if (!peers_[flow.rank].connected) return Status::kNotConnected;
  const CommandOperation operation = command.operation;
  if (operation == CommandOperation::kFlush) return Status::kOk;
  const agent::Card& card = peers_[flow.rank].card;
  const bool value = operation == CommandOperation::kPutValue;
  if (value && command.bytes > kWord) return Status::kInvalidLength;
  if (value && (command.flags & kSignals) != 0)
    return Status::kInvalidArgument;  // one field holds both values
  const std::uint64_t bytes = changes_word(command) ? kWord : command.bytes;
  if (bytes != 0 && !value && in_windows) {
    if (command.local_window >= windows_.size() ||
        !within(command.local_offset, bytes, windows_[command.local_window].bytes))
      return Status::kLocalProtection;
  }
  if (bytes != 0 && in_windows) {
    if (command.remote_window >= card.window_count ||
        !within(command.remote_offset, bytes, card.windows[command.remote_window].bytes))
      return Status::kRemoteAccess;
  }
  const bool word = changes_word(command);
  if (word && (command.remote_offset % kWord != 0 || command.local_offset % kWord != 0))
    return Status::kInvalidArgument;
  if ((command.flags & kSignals) != 0) {
    const bool by_address = command.signal_window == agent::kByAddress;  // then the rank itself looks
    if (!by_address && (command.signal_window >= card.window_count ||
                        !within(command.signal_offset, kWord, card.windows[command.signal_window].bytes)))
      return Status::kRemoteAccess;
    if (command.signal_offset % kWord != 0) return Status::kInvalidArgument;
  }
  return Status::kOk;
}

void Executor::take(std::uint32_t lane, std::uint64_t index, const Command& command) {
  add_entry(lane, {.command = command, .ends = {}, .index = index});
}

void Executor::take_transfer(std::uint32_t lane, std::uint64_t index, const Command& command,
                             const TransferEnds& ends) {
  add_entry(lane, {.command = command, .ends = ends, .index = index});
}

void Executor::add_entry(std::uint32_t lane, Entry added) {
  const Command& command = added.command;
  Flow& flow = flow_of(lane, command.rank);
  if (flow.failure.status != Status::kOk) return publish(flow, added.index + 1);
  const Status refusal = refusal_of(flow, command, !added.ends);
  if (flow.entries.empty()) {
    ++busy_flows_;
    flow.progress_ns = ran_ns_;
  }
  flow.entries.push_back(added);
  if (refusal != Status::kOk) {
    fail_flow(flow, {refusal, fmt::format("{} of {} B at offset {} of window {} of rank {}: {}",
                                          name_of(command), command.bytes, command.remote_offset,
                                          command.remote_window, flow.rank, status_name(refusal))});
  }
}

// Gives up a rank from which commands, or an echo, are due, and nothing came.
void Executor::check_silence(Flow& flow) {
  constexpr std::uint64_t kNsPerMs = 1'000'000;
  const bool waits = !flow.entries.empty() || flow.echo_wanted;
  if (flow.failure.status != Status::kOk || !waits || ran_ns_ - flow.progress_ns < options_.peer_timeout_ns)
    return;
  fail_flow(flow,
            {Status::kPeerUnreachable,
             fmt::format("{} to rank {} is not complete, and nothing was for {} ms (provider {}): the rank "
                         "is dead, or its poster does not run",
                         flow.entries.empty() ? "an echo" : name_of(flow.entries.front().command), flow.rank,
                         (ran_ns_ - flow.progress_ns) / kNsPerMs, traits().provider)});
}

void Executor::probe(std::uint32_t lane, std::uint32_t rank) {
  Flow& flow = flow_of(lane, rank);
  if (flow.failure.status == Status::kOk && peers_[rank].connected && flow.entries.empty()) want_echo(flow);
}

Result<bool> Executor::is_complete(Target& target) {
  bool complete = true;
  target.messages.resize(target.ranks.size(), ~std::uint64_t{0});
  for (std::size_t i = 0; i < target.ranks.size(); ++i) {
    const std::uint32_t rank = target.ranks[i];
    Flow& flow = flow_of(target.lane, rank);
    if (flow.failure.status != Status::kOk) {
      return fail(flow.failure.status,
                  fmt::format("to rank {}, lane {}: {}", rank, target.lane, flow.failure.message));
    }
    if (!peers_[rank].connected) continue;
    const bool sent = flow.entries.empty() || flow.entries.front().index >= target.index;
    // Writes that are not proven need one more message.
    if (sent && target.messages[i] > flow.messages)
      target.messages[i] = flow.messages + (flow.unproven ? 1 : 0);
    if (sent && flow.answered >= target.messages[i]) continue;
    complete = false;
    if (sent) want_echo(flow);
  }
  return complete;
}

// A turn that comes late counts for little: this process stood still, and peers may have answered meanwhile.
void Executor::count_time(std::uint64_t now_ns) {
  const std::uint64_t since_ns = now_ns > now_ns_ ? now_ns - now_ns_ : 0;
  ran_ns_ += std::min(since_ns, options_.peer_timeout_ns / kTurnsOfBound);
  now_ns_ = std::max(now_ns, now_ns_);
}

Result<int> Executor::progress(std::uint64_t now_ns) {
  count_time(now_ns);
  int done = post_answers();
  for (Flow& flow : flows_) {
    if (flow.entries.empty() && !flow.echo_wanted) continue;
    done += post_all(flow);
    if (flow.echo_wanted) send_echo(flow);
    complete(flow);
  }
  events_.clear();
  const auto polled = port_->poll(events_);
  for (const PortEvent& event : events_) on_event(event);  // those before a failure, too
  GDX_TRY(polled);
  // Signs of a rank may lie behind these events, though not behind any number of them.
  if (options_.peer_timeout_ns != kForever && (events_.empty() || ++busy_turns_ == kMostBusyTurns)) {
    busy_turns_ = 0;
    for (Flow& flow : flows_) check_silence(flow);
  }
  return done + static_cast<int>(events_.size());
}

void Executor::publish(const Flow& flow, std::uint64_t done) {
  if (done_[flow.lane] == nullptr) return;
  std::atomic_ref(done_[flow.lane][flow.rank])
      .store(pack_done(done, flow.failure.status), std::memory_order_release);
}

// Completes commands in their order, because the word that kernels poll counts them.
void Executor::complete(Flow& flow) {
  std::uint64_t done = 0;
  while (!flow.entries.empty() && flow.entries.front().posted && flow.entries.front().in_flight == 0) {
    done = flow.entries.front().index + 1;
    flow.entries.pop_front();
    --flow.posted;
  }
  if (done == 0) return;
  flow.completed = done;
  flow.progress_ns = ran_ns_;
  if (flow.entries.empty()) --busy_flows_;
  publish(flow, done);
}

void Executor::fail_flow(Flow& flow, Error error) {
  if (flow.failure.status != Status::kOk) return;
  log::warn_of_others("poster: {}", error.message);
  flow.failure = std::move(error);
  const std::uint64_t done = flow.entries.empty() ? 0 : flow.entries.back().index + 1;
  if (!flow.entries.empty()) --busy_flows_;
  flow.entries.clear();
  flow.echo_wanted = false;
  flow.posted = 0;
  publish(flow, done);
}

void Executor::on_event(const PortEvent& event) {
  switch (event.kind) {
    case PortEvent::Kind::kDone:
    case PortEvent::Kind::kFailed: return on_operation(event);
    case PortEvent::Kind::kImmediate: {
      const auto taken = agent_.on_write(event.immediate, windows_, new_answers_);
      if (!taken) log::warn_of_others("poster: {}", taken.error().message);
      break;
    }
    case PortEvent::Kind::kMessage: {
      agent::Message message{};
      std::memcpy(&message, event.message.data(), sizeof message);
      on_message(message);
      break;
    }
  }
  answers_.insert(answers_.end(), new_answers_.begin(), new_answers_.end());
  new_answers_.clear();
}

void Executor::on_operation(const PortEvent& event) {
  const bool failed = event.kind == PortEvent::Kind::kFailed;
  if (event.context == nullptr) {
    if (failed) log::warn_of_others("poster: {}", event.error.message);
    return;
  }
  auto* const operation = reinterpret_cast<Operation*>(event.context);
  Flow* const flow = operation->flow;
  give_back(operation);
  if (flow == nullptr) {
    if (failed) log::warn_of_others("poster: an answer was not delivered: {}", event.error.message);
    return;
  }
  if (operation->kind == Operation::Kind::kWrite) --flow->writes_in_flight;
  if (flow->failure.status != Status::kOk) return;
  if (failed) {
    const char* const what = operation->kind == Operation::Kind::kWrite  ? "write"
                             : operation->kind == Operation::Kind::kRead ? "read"
                                                                         : "message";
    return fail_flow(*flow,
                     {event.error.status, fmt::format("{} of {} B to rank {}: {}", what, operation->bytes,
                                                      flow->rank, event.error.message)});
  }
  flow->progress_ns = ran_ns_;
  if (operation->entry != nullptr) --operation->entry->in_flight;
  complete(*flow);
}

void Executor::on_message(const agent::Message& message) {
  if (message.token != token_) {
    log::warn_of_others("poster: a message without this rank's token was dropped: it came from no peer");
    return;
  }
  if (message.kind == agent::Kind::kAnswer) return on_answer(message);
  const auto taken = agent_.on_message(message, windows_, new_answers_);
  if (!taken) log::warn_of_others("poster: {}", taken.error().message);
}

void Executor::on_answer(const agent::Message& answer) {
  if (answer.flow >= flows_.size()) return;
  Flow& flow = flows_[answer.flow];
  if (flow.failure.status != Status::kOk) return;
  if (answer.refused != 0) {
    return fail_flow(flow, {Status::kRemoteAccess,
                            fmt::format("rank {} has no such word for a signal or an atomic", flow.rank)});
  }
  flow.progress_ns = ran_ns_;
  flow.answered = std::max(flow.answered, answer.sequence + 1);
  if (flow.answered >= flow.echoed) flow.echo_wanted = false;
  const auto found = std::ranges::lower_bound(flow.entries, answer.request, {}, &Entry::index);
  if (found == flow.entries.end() || found->index != answer.request || found->in_flight == 0) return;
  if (changes_word(found->command)) {
    std::uint64_t* const to = word_at(windows_, found->command.local_window, found->command.local_offset);
    if (to != nullptr) std::atomic_ref(*to).store(answer.value, std::memory_order_release);
  }
  --found->in_flight;
  complete(flow);
}

}  // namespace gdx
