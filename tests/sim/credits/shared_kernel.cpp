#include "tests/sim/credits/shared_kernel.h"

#include <algorithm>

#include "proto/byte_order.h"

namespace gdx::sim {
namespace {

constexpr std::uint32_t kLogBlocks =
    device::impl::OpenSharedEndpoint<Scope::kThread, Placement::kHost>::kMinLogSendQueue;
constexpr std::uint32_t kBlocks = 1u << kLogBlocks;
constexpr std::uint32_t kSlotBytes = kMinSlotBytes;
constexpr std::uint32_t kQpn = 0x123456;
constexpr std::uint32_t kPoolLkey = 0x51a61000;
constexpr std::uint64_t kNever = 1ull << 60;
constexpr std::uint64_t kSignal = 1ull << 50;
constexpr std::uint32_t kLogMessageBytes = 20;  // messages lie that far apart at the peer

// Help of a thread that waits for a slot, as device/team has it.
struct WorldHelp {
  const SlotBooks* books;
  std::uint32_t tenant;
  std::size_t next;

  template <typename Pool>
  void step() {
    const std::span<SharedKernel* const> team = books->team(tenant);
    if (team.empty()) return;
    next = (next + 1) % team.size();
    team[next]->poll_for_others<Pool>();
  }
};

}  // namespace

SharedKernel::SharedKernel(SlotBooks& books, Random& random, const StagingHandle& staging,
                           const StagingState& begin, std::uint32_t first_block)
    : books_(books),
      random_(random),
      memory_(std::size_t{staging.slot_count} * kSlotBytes),
      send_queue_(kBlocks),
      completion_queue_(kBlocks),
      patient_(random.chance(0.7)),
      first_ticket_(first_block),
      fetched_(first_block),
      rung_(static_cast<std::uint16_t>(first_block - 1)),
      threads_(random.between(2, 6)) {
  for (mlx5::Cqe64& cqe : completion_queue_)
    cqe.op_own = static_cast<std::uint8_t>(0xf1 ^ (first_block >> kLogBlocks & 1));
  record_.raw = byte_swap(first_block & 0xffff);
  state_.staging = begin;
  state_.shared.staging.use = device::impl::pack_credits(begin.filled, begin.ready);
  state_.shared.staging.arrived = state_.shared.staging.left = first_block;
  state_.shared.reserved = state_.shared.published = state_.shared.completed = first_block;
  EndpointHandle& handle = state_.handle;
  handle.layout_version = kQueueLayoutVersion;
  handle.qpn = kQpn;
  handle.send_queue = send_queue_.data();
  handle.completion_queue = completion_queue_.data();
  handle.send_record = &record_;
  handle.doorbell = &doorbell_;
  handle.scratch = &scratch_;
  handle.state = &state_;
  handle.owner = &owner_;
  handle.abort = &abort_;
  handle.timeout_ns = patient_ ? kNever : random.between(100, 20'000) * kStepNs;
  handle.log_send_queue = handle.log_completion_queue = kLogBlocks;
  handle.sharing = Sharing::kShared;
  handle.staging = staging;
  handle.staging.base = memory_.data();
  handle.staging.lkey = kPoolLkey;
  handle.staging.slot_bytes = kSlotBytes;
  for (Thread& thread : threads_)
    thread.runs = std::make_unique<StepThread>(*this, [this, &thread] { live(thread); });
}

// Ends once it has seen the endpoint fail, and one call more.
void SharedKernel::live(Thread& thread) {
  device::SharedEndpoint<> endpoint(state_.handle);
  for (bool last = false; !last;) {
    if (!books_.team(tenant_).empty()) {
      thread.is_between_calls = true;
      sim::step();
      thread.is_between_calls = false;
    }
    last = shut();
    const Status status = call(endpoint, thread);
    books_.expect(!last || status != Status::kOk, "a call on a failed endpoint succeeds");
  }
  thread.ended = true;
}

Status SharedKernel::call(device::SharedEndpoint<>& endpoint, Thread& thread) {
  const std::uint64_t at = ++messages_ << kLogMessageBytes;
  const RemoteMemory to{at, 1u << kLogMessageBytes, 0x77, 0};
  const LocalMemory from{reinterpret_cast<std::byte*>(at), 1u << kLogMessageBytes, 0x88, 0};
  const std::uint64_t bytes = random_.between(1, 3 * kSlotBytes);
  auto& open = device::impl::Access::state_of(endpoint);
  const WorldHelp help{&books_, tenant_, number_};
  switch (random_.between(0, 9)) {
    case 0: return gdx_put(endpoint, to, from, bytes);
    case 1: return gdx_put_value(endpoint, to, std::uint64_t{1});
    case 2: return gdx_flush(endpoint);
    case 3:
    case 4: {
      const device::impl::Signal signal{{kSignal, 8, 0x77, 0}, 1, SignalOp::kSet};
      const Status status =
          device::impl::put<Mode::kPush, Copy::kStores>(open, to, from, bytes, signal, Doorbell::kRing, help);
      thread.pushes += status == Status::kOk;
      return status;
    }
    default: {
      const Status status = device::impl::put<Mode::kPush, Copy::kStores>(
          open, to, from, bytes, device::impl::NoSignal{}, Doorbell::kRing, help);
      thread.pushes += status == Status::kOk;
      return status;
    }
  }
}

bool SharedKernel::shut() const {
  return state_.shared.failure == device::impl::kFailed &&
         state_.shared.reserved - state_.shared.completed > device::impl::kOutOfReach / 2;
}

void SharedKernel::step() {
  if (!patient_ && random_.chance(0.0001)) abort_ ^= 1;
  check_tickets();
  Thread& thread = threads_[random_.between(0, threads_.size() - 1)];
  if (books_.now() < thread.sleeps_until || rests(thread)) return;
  if (random_.chance(0.002)) thread.sleeps_until = books_.now() + random_.between(1, 3'000);
  ++steps_;
  (void)thread.runs->step();
}

bool SharedKernel::step_all() {
  bool any = false;
  for (Thread& thread : threads_) {
    if (rests(thread)) continue;
    ++steps_;
    any |= thread.runs->step();
  }
  return any;
}

// Checks that no more tickets are out than there are threads.
void SharedKernel::check_tickets() {
  const SharedCredits& credits = state_.shared.staging;
  books_.expect(credits.arrived - credits.left <= threads_.size(),
                "a thread that waits no more keeps its ticket");
}

std::uint32_t SharedKernel::slot_at(const std::byte* place) const {
  return static_cast<std::uint32_t>(place - memory_.data()) / kSlotBytes;
}

void SharedKernel::begin_fill(const std::byte* to) {
  filling_.push_back(slot_at(to));
  books_.begin_fill(number_, slot_at(to));
}

void SharedKernel::end_fill(const std::byte* to, const std::byte* from) {
  books_.end_fill(slot_at(to), reinterpret_cast<std::uintptr_t>(from));
}

void SharedKernel::forget(std::uint32_t slot) {
  const auto found = std::find(filling_.begin(), filling_.end(), slot);
  books_.expect(found != filling_.end(), "a slot is sent or abandoned that nobody fills");
  if (found != filling_.end()) filling_.erase(found);
}

bool SharedKernel::owns(const void* word) const {
  const auto within = [&](const void* first, std::size_t bytes) {
    const auto* const begin = static_cast<const std::byte*>(first);
    return word >= begin && word < begin + bytes;
  };
  const StagingHandle& staging = state_.handle.staging;
  return within(&state_, sizeof state_) || within(staging.held, staging.slot_count * sizeof *staging.held) ||
         word == staging.grants;
}

// A thread that helps writes the words of another endpoint.
SharedKernel& SharedKernel::owner_of(const void* word) {
  for (SharedKernel* const member : books_.team(tenant_)) {
    if (member->owns(word)) return *member;
  }
  return *this;
}

void SharedKernel::stored(const std::uint32_t* to, std::uint32_t value) {
  owner_of(to).check_stored(to, value);
}

void SharedKernel::check_stored(const std::uint32_t* to, std::uint32_t value) {
  const SharedCredits& credits = state_.shared.staging;
  const auto* const held = reinterpret_cast<const std::uint32_t*>(state_.handle.staging.held);
  if (to >= held && to < held + 2 * state_.handle.staging.slot_count &&
      (value & device::impl::kAbandoned) != 0) {
    forget(value & device::impl::kSlotNumber);
    books_.abandon(value & device::impl::kSlotNumber);
  }
  if (to != &credits.busy) return;
  const StagingState after = this->credits();
  // Without a minimum, one slot is left to a thread that waited when the poll began.
  const bool is_kept =
      state_.handle.staging.minimum_slots == 0 && read_limit_ == 0 && after.ready - after.filled == 1;
  books_.expect(after.ready == after.filled || after.ready - after.returned <= read_limit_ || is_kept,
                "a shared endpoint keeps credits above its limit");
}

void SharedKernel::loaded(const std::uint64_t* from, std::uint64_t value) {
  SharedKernel& owner = owner_of(from);
  if (from == owner.state_.handle.staging.grants) owner.read_limit_ = limit_of(value);
}

// A NIC may go by the index in a doorbell.
void SharedKernel::rang(std::uint64_t doorbell) {
  mlx5::ControlSegment control{};
  control.opmod_index_opcode.raw = static_cast<std::uint32_t>(doorbell);
  const auto ahead = static_cast<std::int16_t>(mlx5::wqe_index(control) - rung_);
  books_.expect(ahead > 0, "a doorbell goes backwards");
  rung_ = static_cast<std::uint16_t>(rung_ + ahead);
}

std::vector<SharedKernel::Request> SharedKernel::fetch() {
  std::vector<Request> requests;
  if (doorbell_ == 0) return requests;
  doorbell_ = 0;
  const auto published = static_cast<std::uint16_t>(byte_swap(record_.raw) - fetched_);
  books_.expect(published <= kBlocks, "the doorbell record went back, or beyond the queue");
  for (const std::uint32_t end = fetched_ + published; fetched_ != end; ++fetched_) {
    requests.push_back(request_at(fetched_));
    if (requests.back().slot != kNoSlot) forget(requests.back().slot);
  }
  return requests;
}

SharedKernel::Request SharedKernel::request_at(std::uint32_t index) const {
  const mlx5::PutWqe wqe = mlx5::read_put_wqe(send_queue_[index % kBlocks].bytes);
  books_.expect(mlx5::wqe_index(wqe.control) == (index & 0xffff),
                "the NIC fetches a WQE that is not there yet");
  const bool staged = (wqe.data.byte_count & mlx5::kInlineFlag) == 0 && wqe.data.lkey == kPoolLkey;
  if (!staged) return {index, kNoSlot, 0};
  return {index, static_cast<std::uint32_t>(wqe.data.address / kSlotBytes), wqe.remote.address};
}

void SharedKernel::complete(std::uint32_t index, bool in_error) {
  mlx5::Cqe64& cqe = completion_queue_[index % kBlocks];
  if (in_error)
    reinterpret_cast<mlx5::ErrorCqe&>(cqe).syndrome = static_cast<std::uint8_t>(mlx5::Syndrome::kFlushed);
  const auto opcode =
      static_cast<unsigned>(in_error ? mlx5::CqeOpcode::kRequesterError : mlx5::CqeOpcode::kRequester);
  cqe.op_own = static_cast<std::uint8_t>(opcode << mlx5::kCqeOpcodeShift | (index >> kLogBlocks & 1));
}

StagingState SharedKernel::credits() const {
  StagingState state = state_.staging;
  state.filled = device::impl::filled_of(state_.shared.staging.use);
  state.ready = device::impl::ready_of(state_.shared.staging.use);
  return state;
}

std::uint64_t SharedKernel::least_pushes() const {
  std::uint64_t least = kNever;
  for (const Thread& thread : threads_) least = std::min(least, thread.pushes);
  return least;
}

}  // namespace gdx::sim
