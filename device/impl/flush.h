// Waits that end calls: for completions of what was posted, and for a signal, with a probe of a silent peer.
// Both queues offer the same two.
#pragma once

#include <cstdint>

#include "device/impl/post.h"

namespace gdx::device::impl {

template <Scope S, Placement P>
GDX_DEVICE Status flush(OpenEndpoint<S, P>& queue) {
  return by_leader(queue, [&] {
    if (queue.status() != Status::kOk) return queue.status();
    queue.ring_if_deferred();
    return queue.wait_all_completed();
  });
}

template <Scope S, Placement P>
GDX_DEVICE Status wait_signal(OpenEndpoint<S, P>& queue, const std::uint64_t* signal, Compare how,
                              std::uint64_t value) {
  return by_leader(queue, [&] {
    const auto holds = [&] { return impl::holds(signal, how, value); };
    if (holds()) return Status::kOk;
    if (queue.status() != Status::kOk) return queue.status();
    queue.ring_if_deferred();
    std::uint64_t probe_at = exec::now_ns() + queue.handle().probe_after_ns;
    return queue.wait_until([&] {
      if (holds()) return true;
      if (exec::now_ns() >= probe_at && queue.all_completed()) {
        static_cast<void>(post_probe(queue));  // an exclusive queue with room posts
        probe_at = exec::now_ns() + queue.handle().probe_after_ns;
      }
      return false;
    });
  });
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
  OpenSharedEndpoint<Scope::kThread, P> queue(state->handle);
  return queue.status() == Status::kOk ? post_probe(queue) : queue.status();
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

template <Scope S, Placement P>
GDX_DEVICE Status flush(OpenSharedEndpoint<S, P>& queue) {
  return by_leader(queue, [&] {
    if (queue.status() != Status::kOk) return queue.status();
    QueueState* const state = queue.handle().state;
    return flush_shared(state, exec::load_counter(&state->shared.published), exec::now_ns());
  });
}

template <Scope S, Placement P>
GDX_DEVICE Status wait_signal(OpenSharedEndpoint<S, P>& queue, const std::uint64_t* signal, Compare how,
                              std::uint64_t value) {
  return by_leader(queue, [&] {
    if (holds(signal, how, value)) return Status::kOk;
    if (queue.status() != Status::kOk) return queue.status();
    return wait_signal_shared<P>(queue.handle().state, signal, how, value);
  });
}

}  // namespace gdx::device::impl
