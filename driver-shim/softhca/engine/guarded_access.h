// Accesses to memory that the program may unmap or protect at any moment, although it has registered it:
// nothing pins its pages, unlike on hardware. An access that faults ends there and says so, and no signal
// ends the program.
#pragma once

#include <csignal>
#include <cstddef>
#include <cstdint>

namespace gdx::softhca {

using SetAction = int (*)(int signal, const struct sigaction* next, struct sigaction* previous);
using SetMask = int (*)(int how, const sigset_t* next, sigset_t* previous);

// Takes SIGSEGV and SIGBUS for guarded accesses, once in a process. All other faults go to the action that
// was there, or that exchange_fault_action() has put in its place. `set` and `mask` are
// sigaction(2) and pthread_sigmask(3) themselves. Threads: safe.
void install_fault_guard(SetAction set, SetMask mask);
// Makes this thread one that is guarded: a fault whose signal is blocked ends the process. Returns whether
// the guard is there, so that mask_signals() keeps it so.
bool unblock_faults();
// Acts as pthread_sigmask(3), but leaves the guard's signals unblocked, and answers as if they were not.
// Async-signal-safe.
int mask_signals(int how, const sigset_t* next, sigset_t* previous);
// Keeps the guard in a child by fork, whose first act calls it.
void begin_guard_in_child();
// Returns whether the guard has taken this signal. Not in a child by vfork, whose actions are its own and
// whose memory is the parent's.
[[nodiscard]] bool guards_faults(int signal);
// Acts as sigaction(2) on the action to which the guard of `signal` leaves all other faults. Requires
// guards_faults(signal). Async-signal-safe.
void exchange_fault_action(int signal, const struct sigaction* next, struct sigaction* previous);

// Runs access(state), which touches the range, allocates nothing and holds nothing. False: it has faulted,
// and may have done a part. Costs some instructions and no system call.
[[nodiscard]] bool run_guarded(const void* first, std::size_t length_bytes, void (*access)(void*),
                               void* state);

// Runs copy(to, from, length_bytes), of which the side that starts at `first` is the program's. False: as
// run_guarded().
using Copy = void(std::byte* to, const std::byte* from, std::size_t length_bytes);
[[nodiscard]] bool guarded_copy(Copy* copy, std::byte* to, const std::byte* from, std::size_t length_bytes,
                                const void* first);

// Copy words one after the other, each at once, and the last one as the last. The side in the program's
// memory is aligned. False: as run_guarded(). Cheaper than that, for what is short. Ordering: acquire and
// release.
[[nodiscard]] bool load_words(std::byte* to, const std::byte* from, std::size_t words);
[[nodiscard]] bool store_words(std::byte* to, const std::byte* from, std::size_t words);
[[nodiscard]] bool load_half_word(std::uint32_t& to, std::uint32_t& from);

// Runs a function object as run_guarded() runs a function.
template <typename Access>
[[nodiscard]] bool guarded(const void* first, std::size_t length_bytes, Access access) {
  return run_guarded(
      first, length_bytes, [](void* state) { (*static_cast<Access*>(state))(); }, &access);
}

}  // namespace gdx::softhca
