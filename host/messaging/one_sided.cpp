#include "host/messaging/one_sided.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>

namespace gdx::messaging {
namespace {

constexpr std::uint64_t kWord = sizeof(std::uint64_t);
// Bound of a rank that answers nothing, though its process is there. Below it a host that is busy is waited
// for.
constexpr std::uint64_t kSilenceNs = 30'000'000'000;

Result<void> check_part(const MemoryPart& part, std::uint32_t rank, std::uint64_t bytes, const char* what) {
  if (part.memory == nullptr || part.memory->places.empty())
    return fail(Status::kInvalidArgument, fmt::format("{}: no registered memory", what));
  const std::uint64_t size = part.memory->places[rank].bytes;
  if (part.offset <= size && bytes <= size - part.offset) return {};
  return fail(Status::kInvalidArgument, fmt::format("{}: {} B at offset {} are not within {} B of rank {}",
                                                    what, bytes, part.offset, size, rank));
}

}  // namespace

Result<std::unique_ptr<OneSided>> OneSided::open(std::unique_ptr<Port> port, std::uint32_t rank,
                                                 std::uint32_t ranks) {
  ExecutorOptions options;
  options.rank = rank;
  options.ranks = ranks;
  options.peer_timeout_ns = kSilenceNs;
  auto executor = GDX_TRY(Executor::create(std::move(port), options));
  return std::unique_ptr<OneSided>(new OneSided(std::move(executor), rank, ranks));
}

Result<SharedMemory*> OneSided::add_memory(std::span<std::byte> own) {
  auto memory = std::make_unique<SharedMemory>();
  memory->own = own;
  memory->region = GDX_TRY(executor_->register_memory(own.data(), own.size(), true));
  memory->begun_by.resize(ranks_);
  executor_->show_words(own.data(), own.size());
  return memories_.emplace_back(std::move(memory)).get();
}

MemoryPlace OneSided::place_of(const SharedMemory& memory) const {
  return {reinterpret_cast<std::uintptr_t>(memory.own.data()), memory.region.base, memory.region.key,
          memory.own.size()};
}

void OneSided::share(SharedMemory& memory, std::span<const MemoryPlace> places, std::uint64_t number) {
  memory.places.assign(places.begin(), places.end());
  memory.number = number;
}

SharedMemory* OneSided::use_again(std::span<const std::byte> own) {
  const auto found = std::ranges::find_if(memories_, [&](const std::unique_ptr<SharedMemory>& one) {
    return one->number != 0 && !one->is_ending && one->own.data() == own.data() &&
           one->own.size() >= own.size();
  });
  if (found == memories_.end()) return nullptr;
  ++(*found)->users;
  return found->get();
}

void OneSided::forget_memory(SharedMemory* memory) {
  if (std::ranges::find(memories_, memory, &std::unique_ptr<SharedMemory>::get) == memories_.end()) return;
  memory->is_ending = true;
  leave_memory(memory);
}

void OneSided::leave_memory(SharedMemory* memory) {
  if (--memory->users != 0) return;
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    if (memory->begun_by[rank] <= executor_->completed(0, rank)) continue;
    lose({Status::kInvalidArgument, "memory of open requests was deregistered: end them before"});
  }
  executor_->hide_words(memory->own.data(), memory->own.size());
  executor_->forget_memory(memory->region);
  std::erase_if(memories_, [&](const std::unique_ptr<SharedMemory>& one) { return one.get() == memory; });
}

void OneSided::forget_all() {
  while (!memories_.empty()) {
    memories_.back()->users = 1;
    forget_memory(memories_.back().get());
  }
}

Result<void> OneSided::check(std::uint32_t rank) const {
  if (rank >= ranks_) return fail(Status::kInvalidArgument, fmt::format("rank {} of {}", rank, ranks_));
  if (lost_) return tl::unexpected(*failure_);
  const Error& failure = executor_->failure(0, rank);
  if (failure.status != Status::kOk) return tl::unexpected(failure);
  return {};
}

Result<OneSidedRequest> OneSided::transfer(const Command& command, const MemoryPart& here,
                                           const MemoryPart& there) {
  TransferEnds ends{};
  if (command.bytes != 0) {
    const MemoryPlace& place = there.memory->places[command.rank];
    ends = {{here.memory->own.data() + here.offset, here.memory->region.local},
            {place.base + there.offset, place.key}};
    here.memory->begun_by[command.rank] = next_index_ + 1;
  }
  executor_->take_transfer(0, next_index_, command, ends);
  return OneSidedRequest{command.rank, next_index_++};
}

Result<OneSidedRequest> OneSided::put(std::uint32_t rank, const MemoryPart& from, const MemoryPart& to,
                                      std::uint64_t bytes, const std::optional<WordSignal>& signal,
                                      bool more) {
  GDX_TRY(check(rank));
  if (bytes != 0) {
    GDX_TRY(check_part(from, rank_, bytes, "source of a put"));
    GDX_TRY(check_part(to, rank, bytes, "target of a put"));
  }
  Command command{};
  if (signal) {
    GDX_TRY(check_part(signal->word, rank, kWord, "word of a signal"));
    command.signal_window = agent::kByAddress;
    command.signal_offset = signal->word.memory->places[rank].address + signal->word.offset;
    if (command.signal_offset % kWord != 0)
      return fail(Status::kInvalidArgument, fmt::format("word of a signal: offset {} is not aligned to {} B",
                                                        signal->word.offset, kWord));
    command.flags = kCommandSignalAdd;
    command.value = signal->value;
  }
  if (rank == rank_) return put_here(from, to, bytes, signal);
  command.operation = CommandOperation::kPut;
  command.flags = static_cast<std::uint8_t>(command.flags | (more ? kCommandMore : 0));
  command.rank = rank;
  command.bytes = bytes;
  return transfer(command, from, to);
}

Result<OneSidedRequest> OneSided::put_here(const MemoryPart& from, const MemoryPart& to, std::uint64_t bytes,
                                           const std::optional<WordSignal>& signal) const {
  if (bytes != 0)
    std::memmove(to.memory->own.data() + to.offset, from.memory->own.data() + from.offset, bytes);
  if (signal) {
    auto* const word =
        reinterpret_cast<std::uint64_t*>(signal->word.memory->own.data() + signal->word.offset);
    std::atomic_ref(*word).fetch_add(signal->value, std::memory_order_acq_rel);
  }
  return OneSidedRequest{rank_, 0};
}

Result<OneSidedRequest> OneSided::get(std::uint32_t rank, const MemoryPart& from, const MemoryPart& to,
                                      std::uint64_t bytes) {
  GDX_TRY(check(rank));
  if (bytes != 0) {
    GDX_TRY(check_part(from, rank, bytes, "source of a get"));
    GDX_TRY(check_part(to, rank_, bytes, "target of a get"));
  }
  if (rank == rank_) return put_here(from, to, bytes, std::nullopt);
  Command command{};
  command.operation = CommandOperation::kGet;
  command.rank = rank;
  command.bytes = bytes;
  return transfer(command, to, from);
}

Result<OneSidedRequest> OneSided::flush(std::uint32_t rank) {
  GDX_TRY(check(rank));
  if (rank == rank_) return OneSidedRequest{rank_, 0};
  Command command{};
  command.operation = CommandOperation::kFlush;
  command.rank = rank;
  executor_->take(0, next_index_, command);
  return OneSidedRequest{rank, next_index_++};
}

Result<bool> OneSided::is_complete(const OneSidedRequest& request) const {
  if (request.rank == rank_ || request.index < executor_->completed(0, request.rank)) return true;
  GDX_TRY(check(request.rank));
  return false;
}

bool OneSided::progress(std::uint64_t now_ns) {
  if (lost_) return false;
  const auto done = executor_->progress(now_ns);
  for (std::uint32_t rank = 0; rank < ranks_ && !failure_; ++rank) {
    const Error& failure = executor_->failure(0, rank);
    if (failure.status != Status::kOk) failure_ = failure;
  }
  if (!done) lose(done.error());
  return !done || *done != 0;
}

void OneSided::lose(Error error) {
  lost_ = true;
  if (!failure_) failure_ = std::move(error);
}

}  // namespace gdx::messaging
