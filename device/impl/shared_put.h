// Posting on a shared endpoint, and the modes of its puts.
#pragma once

#include <cstdint>

#include "device/impl/open_shared_endpoint.h"
#include "device/impl/signal.h"
#include "device/options.h"
#include "proto/gpu/memory.h"

namespace gdx::device::impl {

// Slow paths of a post. Who meets the endpoint's failure gives its credits back, though this call had none:
// there may be no other call.
GDX_OUT_OF_LINE Status wait_room_or_give_back(QueueState* state, std::uint32_t goal) {
  const Status status = wait_shared_room(state, goal);
  return status == Status::kOk ? status : give_back_shared(state);
}
template <Placement Observed>
GDX_OUT_OF_LINE Status publish_late_or_give_back(QueueState* state, std::uint32_t first, std::uint32_t end,
                                                 std::uint64_t doorbell_value) {
  const Status status = publish_late<Observed>(state, first, end, doorbell_value);
  return status == Status::kOk ? status : give_back_shared(state);
}

// `store(first)` stores the WQEs of `blocks` blocks and returns the doorbell value of the last. `Observed` is
// the memory that the NIC reads, payload included. A status is compared only in its slow branch, because a
// GPU's compiler does not thread jumps.
template <Placement Observed, Placement P, typename Store>
GDX_DEVICE Status post_shared_at(OpenSharedEndpoint<P>& endpoint, std::uint32_t blocks, Store store) {
  if (endpoint.status() != Status::kOk) return endpoint.status();
  QueueState* const state = endpoint.handle().state;
  const std::uint32_t first = endpoint.take_blocks(blocks);
  const std::uint32_t end = first + blocks;
  if (!endpoint.has_room(end)) {
    const Status status = wait_room_or_give_back(state, endpoint.room_goal(end));
    if (status != Status::kOk) return status;
  }
  const std::uint64_t doorbell_value = store(first);
  if (!endpoint.is_next_and_last(first, end))
    return publish_late_or_give_back<Observed>(state, first, end, doorbell_value);
  publish_in_turn<Observed>(endpoint.handle(), *state, end, doorbell_value);
  return Status::kOk;
}
template <Placement P, typename Store>
GDX_DEVICE Status post_shared(OpenSharedEndpoint<P>& endpoint, std::uint32_t blocks, Store store) {
  return post_shared_at<P>(endpoint, blocks, store);
}

// A WRITE at `first` and what follows it.
template <typename Tail, Placement P>
GDX_DEVICE std::uint64_t store_put(const OpenSharedEndpoint<P>& endpoint, std::uint32_t first,
                                   const RemoteMemory& to, const LocalMemory& from, std::uint32_t bytes,
                                   const Tail& tail) {
  const std::uint64_t doorbell = endpoint.store_transfer(first, mlx5::WqeOpcode::kRdmaWrite, to, from, bytes);
  if constexpr (Tail::kBlocks == 0) {
    return doorbell;
  } else {
    return endpoint.store_signal(first + 1, tail.word, tail.value, tail.op);
  }
}

// Makes `call` in the leader of the scope once all have arrived. Returns its Status in every thread.
template <Scope S, typename Call>
GDX_DEVICE Status shared_by_leader(Call call) {
  exec::gather<S>();
  std::uint32_t status = 0;
  if (exec::thread_rank<S>() == 0) status = static_cast<std::uint32_t>(call());
  return static_cast<Status>(exec::broadcast<S>(status));
}

// A put of no bytes sends its signal alone.
template <Scope S, Placement P>
GDX_DEVICE Status put_nothing_shared(OpenSharedEndpoint<P>& endpoint, const NoSignal&) {
  return endpoint.status();
}
template <Scope S, Placement P>
GDX_DEVICE Status put_nothing_shared(OpenSharedEndpoint<P>& endpoint, const Signal& signal) {
  // Host scope, as pushes and bounces of more bytes have.
  return shared_by_leader<S>([&] {
    return post_shared_at<Placement::kHost>(endpoint, 1, [&](std::uint32_t first) {
      return endpoint.store_signal(first, signal.word, signal.value, signal.op);
    });
  });
}

// A pull from every lane with arguments of its own. A lane without bytes posts nothing.
template <Placement P>
GDX_DEVICE Status put_warp_shared(OpenSharedEndpoint<P>& endpoint, const RemoteMemory& to,
                                  const LocalMemory& from, std::uint64_t bytes) {
  constexpr Scope kWarp = Scope::kWarp;
  if (endpoint.status() != Status::kOk) return endpoint.status();
  exec::Lanes posting{exec::thread_count<kWarp>(), exec::thread_rank<kWarp>()};
  bool posts = true;
  if (exec::any<kWarp>(!is_message_length(bytes))) {
    posts = bytes != 0;
    if (exec::any<kWarp>(posts && !is_message_length(bytes))) return Status::kInvalidLength;
    posting = exec::lanes_with(posts);
    if (posting.count == 0) return Status::kOk;
  }
  const bool leads = exec::thread_rank<kWarp>() == 0;
  std::uint32_t first = 0;
  Status status = Status::kOk;
  if (leads) {
    status = endpoint.reserve(posting.count, &first);
    if (status != Status::kOk) status = give_back_shared(endpoint.handle().state);
  }
  status = static_cast<Status>(exec::broadcast<kWarp>(static_cast<std::uint32_t>(status)));
  if (status != Status::kOk) return status;
  first = exec::broadcast<kWarp>(first);
  if (posts)
    endpoint.store_transfer(first + posting.before, mlx5::WqeOpcode::kRdmaWrite, to, from,
                            static_cast<std::uint32_t>(bytes));
  exec::sync<kWarp>();  // the release below covers every lane's payload and WQE
  if (leads) {
    const std::uint32_t end = first + posting.count;
    status = endpoint.publish(first, end, endpoint.write_doorbell(end - 1));
    if (status != Status::kOk) status = give_back_shared(endpoint.handle().state);
  }
  return static_cast<Status>(exec::broadcast<kWarp>(static_cast<std::uint32_t>(status)));
}

// A message in WQEs of one block each, because a shared queue has no others. One doorbell covers up to
// kInlineStep of them.
inline constexpr std::uint32_t kInlineStep = 16;
template <typename Tail, Placement P>
GDX_DEVICE Status put_inline_shared(OpenSharedEndpoint<P>& endpoint, const RemoteMemory& to,
                                    const LocalMemory& from, std::uint64_t bytes, const Tail& tail) {
  for (std::uint64_t at = 0; at < bytes;) {
    const std::uint64_t left = (bytes - at - 1) / kShortInlineBytes + 1;
    const bool last = left <= kInlineStep;
    const std::uint32_t count = last ? static_cast<std::uint32_t>(left) : kInlineStep;
    const Status status = post_shared(endpoint, count + (last ? Tail::kBlocks : 0), [&](std::uint32_t first) {
      std::uint64_t doorbell = 0;
      for (std::uint32_t k = 0; k < count; ++k, at += kShortInlineBytes) {
        const std::uint64_t rest = bytes - at;
        const std::uint32_t n =
            rest < kShortInlineBytes ? static_cast<std::uint32_t>(rest) : kShortInlineBytes;
        doorbell = endpoint.store_inline(first + k, to + at, from.address + at, n);
      }
      if constexpr (Tail::kBlocks != 0) {
        if (last) return endpoint.store_signal(first + count, tail.word, tail.value, tail.op);
      }
      return doorbell;
    });
    if (status != Status::kOk) return status;
  }
  return Status::kOk;
}

// Sends a slot that was filled. One that cannot be sent is nobody's again.
template <typename Tail, Placement P>
GDX_DEVICE Status send_slot(OpenSharedEndpoint<P>& endpoint, HeldSlot& held, const RemoteMemory& to,
                            const LocalMemory& from, std::uint32_t bytes, const Tail& tail) {
  std::uint32_t first = 0;
  Status status = endpoint.reserve(1 + Tail::kBlocks, &first);
  if (status == Status::kOk) {
    const std::uint64_t doorbell = store_put(endpoint, first, to, from, bytes, tail);
    // Host scope: the payload is in NIC or host memory, which no GPU-scope release orders.
    status = endpoint.template publish<Placement::kHost>(first, first + 1 + Tail::kBlocks, doorbell);
  }
  if (status == Status::kOk) {
    bind(held, first);
    return status;
  }
  abandon(held);
  return give_back_shared(endpoint.handle().state);
}

// Each chunk under a credit, and each with a doorbell: nobody else would ring for a thread that comes no
// more.
template <typename Pool, Scope S, typename Tail, Placement P, typename Help>
GDX_DEVICE Status put_staged_shared(OpenSharedEndpoint<P>& endpoint, const RemoteMemory& to,
                                    const LocalMemory& from, std::uint64_t bytes, const Tail& tail,
                                    Help help) {
  if (endpoint.status() != Status::kOk) return endpoint.status();
  const StagingHandle& staging = Pool::of(endpoint.handle());
  if (staging.slot_count == 0) return Status::kUnsupported;
  const bool leads = exec::thread_rank<S>() == 0;
  for (std::uint64_t at = 0; at < bytes; at += staging.slot_bytes) {
    const bool last = bytes - at <= staging.slot_bytes;
    const std::uint32_t n = last ? static_cast<std::uint32_t>(bytes - at) : staging.slot_bytes;
    TakenCredit credit{Status::kOk, 0};
    exec::gather<S>();
    if (leads) {
      credit = endpoint.template take_credit<Pool>((bytes - at - 1) / staging.slot_bytes + 1, help);
      QueueState* const state = endpoint.handle().state;
      if (credit.status != Status::kOk && shared_failure(*state) != Status::kOk)
        static_cast<void>(give_back_shared(state));  // the call ends with the credit's status
    }
    Status status = static_cast<Status>(exec::broadcast<S>(static_cast<std::uint32_t>(credit.status)));
    if (status != Status::kOk) return status;
    HeldSlot& held = staging.held[exec::broadcast<S>(credit.position) & (staging.slot_count - 1)];
    const std::uint64_t offset = std::uint64_t{held.slot} * staging.slot_bytes;
    exec::fill_slot<S>(staging.base + offset, from.address + at, n);
    exec::gather<S>();  // the leader's release must cover every thread's part of the slot
    if (leads) {
      const LocalMemory slot{reinterpret_cast<std::byte*>(staging.nic_offset + offset), n, staging.lkey, 0};
      status = last ? send_slot(endpoint, held, to + at, slot, n, tail)
                    : send_slot(endpoint, held, to + at, slot, n, NoSignal{});
    }
    status = static_cast<Status>(exec::broadcast<S>(static_cast<std::uint32_t>(status)));
    if (status != Status::kOk) return status;
  }
  return Status::kOk;
}

// A pull of a length that is_message_length().
template <Scope S, typename Tail, Placement P>
GDX_DEVICE Status pull_shared(OpenSharedEndpoint<P>& endpoint, const RemoteMemory& to,
                              const LocalMemory& from, std::uint64_t bytes, const Tail& tail) {
  return shared_by_leader<S>([&] {
    return post_shared(endpoint, 1 + Tail::kBlocks, [&](std::uint32_t first) {
      return store_put(endpoint, first, to, from, static_cast<std::uint32_t>(bytes), tail);
    });
  });
}

// A put, and behind it `tail`: NoSignal, or a Signal.
template <Mode M, Scope S, typename Tail, Placement P, typename Help = NoHelp>
GDX_DEVICE Status put_shared(OpenSharedEndpoint<P>& endpoint, const RemoteMemory& to, const LocalMemory& from,
                             std::uint64_t bytes, const Tail& tail, Help help = {}) {
  if constexpr (M == Mode::kPull) {
    if (!is_message_length(bytes))
      return bytes == 0 ? put_nothing_shared<S>(endpoint, tail) : Status::kInvalidLength;
    return pull_shared<S>(endpoint, to, from, bytes, tail);
  }
  if (bytes == 0) return put_nothing_shared<S>(endpoint, tail);
  if constexpr (M == Mode::kPush)
    return put_staged_shared<SharedNicPool, S>(endpoint, to, from, bytes, tail, help);
  if constexpr (M == Mode::kBounce)
    return put_staged_shared<SharedHostPool, S>(endpoint, to, from, bytes, tail, help);
  if constexpr (M == Mode::kInline)
    return shared_by_leader<S>([&] { return put_inline_shared(endpoint, to, from, bytes, tail); });
  static_assert(kSharedInlineBytes == kShortInlineBytes);
  const ModeTable& modes = endpoint.handle().modes;
  if (bytes <= modes.inline_bytes) return put_shared<Mode::kInline, S>(endpoint, to, from, bytes, tail);
  if (bytes <= modes.push_bytes) return put_shared<Mode::kPush, S>(endpoint, to, from, bytes, tail, help);
  if (bytes <= modes.pull_bytes) return put_shared<Mode::kPull, S>(endpoint, to, from, bytes, tail, help);
  return put_shared<Mode::kBounce, S>(endpoint, to, from, bytes, tail, help);
}

// Takes note of completions up to the newest published WQE, without a wait. Returns the endpoint's failure.
GDX_DEVICE Status poll_shared(QueueState& state) {
  if (const Status failed = shared_failure(state); failed != Status::kOk) return failed;
  const std::uint32_t published = exec::load_counter(&state.shared.published);
  if (reached(exec::load_counter(&state.shared.completed), published)) return Status::kOk;
  switch (poll_completion(state.handle, published - 1)) {
    case Completion::kDone: raise_completed(state.shared, published); return Status::kOk;
    case Completion::kError: return report_error(state, published - 1);
    case Completion::kNotThere: return Status::kOk;
  }
  return Status::kOk;
}

// Finds the failure of an endpoint on which a thread waits since `began_ns`. Of all threads that wait, one
// posts the probe of a silent peer. It posts none while others' work is outstanding, because that probes the
// peer too.
template <Placement P>
GDX_DEVICE Status probe_shared(QueueState* state, std::uint64_t began_ns) {
  if (poll_shared(*state) != Status::kOk) return give_back_shared(state);
  const std::uint64_t now_ns = exec::now_ns();
  const std::uint64_t probed_ns = exec::load_counter(&state->shared.probed_ns);
  const std::uint64_t silent_since_ns = probed_ns < began_ns ? began_ns : probed_ns;
  const bool idle =
      exec::load_counter(&state->shared.completed) == exec::load_counter(&state->shared.reserved);
  if (!idle || now_ns < silent_since_ns + state->handle.probe_after_ns ||
      exec::compare_swap(&state->shared.probed_ns, probed_ns, now_ns) != probed_ns) {
    return Status::kOk;
  }
  OpenSharedEndpoint<P> endpoint(state->handle);
  return post_shared(endpoint, 1, [&](std::uint32_t first) { return endpoint.store_probe(first); });
}

// Waits for a signal.
template <Placement P>
GDX_OUT_OF_LINE Status wait_signal_shared(QueueState* state, const std::uint64_t* signal, Compare how,
                                          std::uint64_t value) {
  const std::uint64_t began_ns = exec::now_ns();
  while (!holds(signal, how, value)) {
    if (const Status failed = probe_shared<P>(state, began_ns); failed != Status::kOk) return failed;
    if (const Status ended = may_wait_since(*state, began_ns); ended != Status::kOk) return ended;
  }
  return Status::kOk;
}

}  // namespace gdx::device::impl
