// The one executor of commands: carries them out over a port in the order that the contract promises, with
// what the port lacks emulated above it, and answers for peers' signals and atomics on this rank's words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "host/poster/agent.h"
#include "host/poster/contract.h"
#include "host/poster/port.h"
#include "proto/gpu/command_ring.h"

namespace gdx {

struct ExecutorOptions {
  std::uint32_t rank = 0;
  std::uint32_t ranks = 1;
  std::uint32_t lanes = 1;
  // Period after which a peer that completes nothing is given up: of the time in which progress() is called,
  // so that a pause of this process is none of its peers'. Below the kernels' own bound, so that they are
  // told the reason. All ones: never.
  std::uint64_t peer_timeout_ns = 4'000'000'000;
  Emulation emulation = Emulation::kPermit;
  std::optional<SignalOrder> order;  // of signals; absent: the cheapest that the port permits
};

// Ends of a put or get that lie in no window.
struct TransferEnds {
  PortSource local;   // registered by register_memory()
  PortTarget remote;  // as its owner has told it
};

// Threads: one at a time.
class Executor {
 public:
  // Errors: kInvalidArgument for a shape that has no numbers; kUnsupported for an order that the port does
  // not permit.
  [[nodiscard]] static Result<std::unique_ptr<Executor>> create(std::unique_ptr<Port> port,
                                                                const ExecutorOptions& options);

  // Adds memory that commands name by the returned number, and peers may read and write. It must outlive the
  // executor. `number`: of an earlier window, which ends and which no command names any more, or the next.
  // Errors: kInvalidArgument for too many windows; the port's.
  [[nodiscard]] Result<std::uint8_t> add_window(std::byte* address, std::uint64_t bytes,
                                                std::optional<std::size_t> number = std::nullopt);
  // Ends the window of that number, if it is the newest: peers can reach it no more. No command may name it.
  void drop_window(std::size_t number);
  // Registers memory for TransferEnds alone; `remote`: peers may read and write it. Errors: the port's.
  [[nodiscard]] Result<PortRegion> register_memory(std::byte* address, std::uint64_t bytes, bool remote) {
    return port_->register_memory(address, bytes, remote);
  }
  // Ends that; no transfer between it and a peer may be in flight.
  void forget_memory(const PortRegion& region) { port_->forget_memory(region); }
  // Lets peers signal words of that memory by their addresses (agent::kByAddress), until hide_words().
  void show_words(std::byte* address, std::uint64_t bytes) { agent_.show({address, bytes}); }
  void hide_words(std::byte* address, std::uint64_t bytes) { agent_.hide({address, bytes}); }
  // Returns this rank's card, with all windows added so far, for connect() of peers. Peers alone may see it.
  [[nodiscard]] agent::Card card() const;
  // A later card of a rank renews its windows. Errors: kVersionMismatch, kInvalidArgument for a card that
  // cannot be; kUnsupported for a rank with another provider or shape; the port's.
  [[nodiscard]] Result<void> connect(std::uint32_t rank, const agent::Card& card);

  // Names the words, one for each rank, into which the state of this lane's commands goes.
  void set_done(std::uint32_t lane, std::uint64_t* words) { done_[lane] = words; }
  [[nodiscard]] bool has_room(std::uint32_t lane, std::uint32_t rank) const;
  // Takes command `index` of the lane's ring; has_room() has said so.
  void take(std::uint32_t lane, std::uint64_t index, const Command& command);
  // Takes a put or get between `ends` in place of the command's windows. Ordering: as of take(). The caller
  // bounds how many are open.
  void take_transfer(std::uint32_t lane, std::uint64_t index, const Command& command,
                     const TransferEnds& ends);
  // Finds out whether an idle rank still answers: it fails unless it does within the bound.
  void probe(std::uint32_t lane, std::uint32_t rank);
  // Commands of a lane before `index`, and the messages that ranks' agents must have applied for them to be
  // complete; by rank, all ones until it is known.
  struct Target {
    std::uint32_t lane;
    std::uint64_t index;
    std::vector<std::uint32_t> ranks;     // that have the commands
    std::vector<std::uint64_t> messages;  // of each of them, once they are sent
  };
  // Returns whether they are complete, and asks agents that have not answered. Errors: a rank's failure.
  [[nodiscard]] Result<bool> is_complete(Target& target);
  // Posts and polls once. Returns the number of things done. Errors: the port's failure, which is final.
  [[nodiscard]] Result<int> progress(std::uint64_t now_ns);

  [[nodiscard]] bool idle() const { return busy_flows_ == 0 && answers_.empty(); }
  [[nodiscard]] const PortTraits& traits() const { return port_->traits(); }
  [[nodiscard]] SignalOrder order() const { return order_; }
  [[nodiscard]] const ExecutorOptions& options() const { return options_; }
  // Returns the operations and flags that GDX_EMULATION=refuse forbids: bit n of operation n; flags above.
  [[nodiscard]] std::uint32_t refused() const;
  // Returns the first failure of the lane towards `rank`; kOk without one.
  [[nodiscard]] const Error& failure(std::uint32_t lane, std::uint32_t rank) const {
    return flows_[std::size_t{lane} * options_.ranks + rank].failure;
  }
  // Returns the index before which all of the lane's commands to `rank` were complete, before any failure.
  [[nodiscard]] std::uint64_t completed(std::uint32_t lane, std::uint32_t rank) const {
    return flows_[std::size_t{lane} * options_.ranks + rank].completed;
  }

 private:
  // One command that is not complete.
  struct Entry {
    Command command;
    std::optional<TransferEnds> ends;  // absent: in windows
    std::uint64_t index = 0;
    std::uint64_t bytes_posted = 0;
    std::uint32_t in_flight = 0;  // parts whose completion or answer is due
    bool asked = false;           // an echo was sent
    bool posted = false;          // all parts are
  };
  // The commands of one lane to one rank.
  struct Flow {
    std::uint32_t lane = 0;
    std::uint32_t rank = 0;
    std::deque<Entry> entries;  // by index
    std::size_t posted = 0;     // entries at the front of which all parts are posted
    std::uint64_t completed = 0;
    std::uint32_t writes_in_flight = 0;
    std::uint64_t numbered = 0;  // writes that brought a number
    std::uint64_t messages = 0;  // sent
    bool unproven = false;       // writes that may complete before their delivery are behind the newest
    std::uint64_t answered = 0;  // messages known to be applied
    bool echo_wanted = false;    // one of no command, which is answered or not even sent yet
    std::uint64_t echoed = 0;    // messages that the newest of these asks for; not above `answered`: not sent
    std::uint64_t progress_ns = 0;  // of ran_ns_, at the newest sign of the rank
    Error failure{Status::kOk, {}};
  };
  struct Peer {
    bool connected = false;
    bool answer_failure_told = false;
    std::size_t held = 0;  // operations in flight, of failed flows, too
    agent::Card card{};
  };
  // Target of an event's context. Holds what the port reads or sends meanwhile.
  struct Operation {
    PortContext context;
    enum class Kind { kWrite, kRead, kMessage } kind = Kind::kWrite;
    std::uint32_t rank = 0;
    Flow* flow = nullptr;    // null: an answer
    Entry* entry = nullptr;  // null: its completion completes nothing
    std::uint64_t bytes = 0;
    alignas(64) agent::Message message{};
  };
  enum class Step { kDone, kLater };

  Executor(std::unique_ptr<Port> port, const ExecutorOptions& options, SignalOrder order);

  [[nodiscard]] Flow& flow_of(std::uint32_t lane, std::uint32_t rank) {
    return flows_[std::size_t{lane} * options_.ranks + rank];
  }
  [[nodiscard]] Status refusal_of(const Flow& flow, const Command& command, bool in_windows) const;
  void add_entry(std::uint32_t lane, Entry entry);
  // Returns whether that many operations of commands, or one of an answer, may be in flight to the rank, too.
  [[nodiscard]] bool may_hold(std::uint32_t rank, std::size_t more, bool answers) const;
  // Returns null where may_hold() says no. `flow`: null for an answer.
  Operation* new_operation(std::uint32_t rank, Flow* flow, Entry* entry, Operation::Kind kind,
                           std::uint64_t bytes);
  void give_back(Operation* operation);

  // Return both ends of the part that is posted next.
  [[nodiscard]] PortSource source_of(const Entry& entry) const;
  [[nodiscard]] PortTarget target_of(const Flow& flow, const Entry& entry) const;
  // Returns whether writes of the entry complete when their source is free, since an answer to a message
  // behind them tells of their delivery.
  [[nodiscard]] bool completes_early(const Entry& entry) const {
    return traits().early_writes && traits().immediate_bytes >= sizeof(std::uint32_t) &&
           order_ == SignalOrder::kMessage && options_.emulation == Emulation::kPermit &&
           flows_.size() <= agent::kMostFlows && !entry.ends;
  }
  // Returns whether writes of the entry bring their number, for which messages behind them wait. Those that
  // complete early do, because a provider may drop what the peer refuses, and deliver the message.
  [[nodiscard]] bool is_numbered(const Entry& entry) const {
    return order_ == SignalOrder::kSequence || completes_early(entry);
  }
  // Returns whether the rank is known to have all puts and signals that were posted.
  [[nodiscard]] static bool is_proven(const Flow& flow) {
    return flow.answered == flow.messages && !flow.unproven;
  }
  Step post(Flow& flow, Entry& entry);
  // Returns whether, behind a write up to `bytes_posted` of the entry, another posting follows at once: a
  // provider may hold the write back until then.
  [[nodiscard]] bool may_follow(const Flow& flow, const Entry& entry, std::uint64_t bytes_posted) const;
  Step post_put(Flow& flow, Entry& entry);
  Step post_get(Flow& flow, Entry& entry);
  Step post_message(Flow& flow, Entry& entry, agent::Kind kind, bool wants_answer);
  // Sends `message`, numbered, whose own completion completes `entry`, unless null.
  Step send_message(Flow& flow, Entry* entry, const agent::Message& message);
  void want_echo(Flow& flow);
  void send_echo(Flow& flow);
  // Waits until the rank has all writes and signals before `entry`.
  Step settle(Flow& flow, Entry& entry);
  Step finish(Flow& flow, Entry* entry, Operation* operation, Result<Posting> posting, const char* what);
  int post_all(Flow& flow);
  int post_answers();
  bool is_gone(const Flow& flow, const Error& error);
  void complete(Flow& flow);
  void fail_flow(Flow& flow, Error error);
  void count_time(std::uint64_t now_ns);
  void check_silence(Flow& flow);
  void publish(const Flow& flow, std::uint64_t done);

  void on_event(const PortEvent& event);
  void on_operation(const PortEvent& event);
  void on_message(const agent::Message& message);
  void on_answer(const agent::Message& answer);

  ExecutorOptions options_;
  SignalOrder order_;
  std::uint64_t token_;
  std::vector<PosterWindow> windows_;
  std::vector<PortRegion> regions_;
  std::vector<Peer> peers_;
  std::vector<Flow> flows_;
  std::vector<std::uint64_t*> done_;  // by lane
  std::size_t busy_flows_ = 0;        // with entries
  std::uint64_t now_ns_ = 0;          // of the newest progress()
  std::uint64_t ran_ns_ = 0;          // time in which progress() is called
  std::uint32_t busy_turns_ = 0;      // with events, since ranks' silence was looked at
  Agent agent_;
  std::vector<Agent::Answer> new_answers_;
  std::deque<Agent::Answer> answers_;
  std::vector<PortEvent> events_;
  std::vector<Operation> operations_;
  std::vector<Operation*> free_;
  PortRegion operation_region_;
  std::unique_ptr<Port> port_;  // ends first, because it may use the operations
};

}  // namespace gdx
