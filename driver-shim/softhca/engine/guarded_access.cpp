#include "driver-shim/softhca/engine/guarded_access.h"

#include <pthread.h>
#include <ucontext.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <thread>

// Sanitizers must see the accesses, so they have the general way.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define GDX_WORDS_BY_ADDRESS 1

// Copies that a fault ends at gdx_copy_gone, by the address of the instruction and at no cost before: they
// keep nothing on the stack. Returns 1; 0 for gone.
asm(R"(
  .pushsection .text
  .hidden gdx_copy_words
  .hidden gdx_copy_half_word
  .hidden gdx_copy_gone
  .globl gdx_copy_words
  .globl gdx_copy_half_word
  .globl gdx_copy_gone
  .p2align 4
  .type gdx_copy_words, @function
gdx_copy_words:
  .cfi_startproc
1:
  movq (%rsi), %rax
  movq %rax, (%rdi)
  addq $8, %rsi
  addq $8, %rdi
  decq %rdx
  jnz 1b
  movl $1, %eax
  ret
  .cfi_endproc
  .size gdx_copy_words, . - gdx_copy_words
  .type gdx_copy_half_word, @function
gdx_copy_half_word:
  .cfi_startproc
  movl (%rsi), %eax
  movl %eax, (%rdi)
  movl $1, %eax
  ret
  .cfi_endproc
  .size gdx_copy_half_word, . - gdx_copy_half_word
  .type gdx_copy_gone, @function
gdx_copy_gone:
  .cfi_startproc
  xorl %eax, %eax
  ret
  .cfi_endproc
  .size gdx_copy_gone, . - gdx_copy_gone
  .popsection
)");
extern "C" {
[[gnu::visibility("hidden")]] int gdx_copy_words(void* to, const void* from, std::size_t words);
[[gnu::visibility("hidden")]] int gdx_copy_half_word(void* to, const void* from);
[[gnu::visibility("hidden")]] int gdx_copy_gone();
}
#endif

namespace gdx::softhca {
namespace {

constexpr std::uintptr_t kFaultPageBytes = 4096;  // the least of any processor here: a fault is a page's
constexpr std::array kSignals{SIGSEGV, SIGBUS};

constinit std::atomic<SetAction> set_action{nullptr};
constinit std::atomic<SetMask> set_mask{pthread_sigmask};

// Action that a program has set for a signal. Written beside the one that holds, so that a child finds it
// whole wherever a fork met the writer.
struct Kept {
  std::array<struct sigaction, 2> actions{};
  std::atomic<unsigned> holding{0};
};
constinit std::array<Kept, kSignals.size()> kept_actions{};
std::atomic_flag actions_busy;                    // held for a copy, with all signals blocked
constinit std::atomic<pid_t> guarded_process{0};  // 0: none yet
// Of the guard's signals, those that the program has blocked on this thread, as far as it can tell.
[[gnu::tls_model("initial-exec")]] constinit thread_local std::array<bool, kSignals.size()> hidden{};

// Place to which a fault in [first, first + length_bytes) leads.
struct Landing {
  std::array<void*, 5> place{};
  std::uintptr_t first = 0;
  std::size_t length_bytes = 0;
};
// Of the access that this thread is in; null outside. In the static block, because any other costs a call.
[[gnu::tls_model("initial-exec")]] constinit thread_local Landing* landing = nullptr;

std::size_t place_of(int signal) { return signal == kSignals[0] ? 0 : 1; }

bool covers(const Landing& here, const void* address) {
  const std::uintptr_t page = reinterpret_cast<std::uintptr_t>(address) & ~(kFaultPageBytes - 1);
  return page + kFaultPageBytes > here.first && page < here.first + here.length_bytes;
}

void restore_default(int signal) {
  struct sigaction fatal {};
  fatal.sa_handler = SIG_DFL;
  set_action.load()(signal, &fatal, nullptr);
}

// Acts as the kernel would without the guard. What is blocked here, the return from the handler restores.
void pass_on(int signal, siginfo_t* info, void* context) {
  struct sigaction action {};
  exchange_fault_action(signal, nullptr, &action);
  if ((action.sa_flags & SA_RESETHAND) != 0) {
    struct sigaction once {};
    once.sa_handler = SIG_DFL;
    exchange_fault_action(signal, &once, nullptr);
  }
  const bool own = info->si_code > 0;  // a fault of this thread, and not a signal that somebody sent
  const bool informed = (action.sa_flags & SA_SIGINFO) != 0;
  if (!informed && action.sa_handler == SIG_IGN && !own) return;
  if (!informed && (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN)) {
    restore_default(signal);  // the instruction faults again
    if (!own) raise(signal);
    return;
  }
  if ((action.sa_flags & SA_NODEFER) == 0) sigaddset(&action.sa_mask, signal);
  set_mask.load()(SIG_BLOCK, &action.sa_mask, nullptr);
  if (informed) {
    action.sa_sigaction(signal, info, context);
  } else {
    action.sa_handler(signal);
  }
}

// Leads a fault in a copy of words to its end. False: it is another's.
bool ends_copy([[maybe_unused]] void* context) {
#ifdef GDX_WORDS_BY_ADDRESS
  greg_t& at = static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP];
  const auto gone = reinterpret_cast<greg_t>(&gdx_copy_gone);
  if (at < reinterpret_cast<greg_t>(&gdx_copy_words) || at >= gone) return false;
  at = gone;
  return true;
#else
  return false;
#endif
}

// Jumps out of the handler: it blocks no signal, and the kernel keeps no note of a handler that runs.
void on_fault(int signal, siginfo_t* info, void* context) {
  if (info->si_code > 0 && ends_copy(context)) return;
  Landing* const here = landing;
  if (here == nullptr || info->si_code <= 0 || !covers(*here, info->si_addr))
    return pass_on(signal, info, context);
  landing = nullptr;
  __builtin_longjmp(here->place.data(), 1);
}

}  // namespace

// Hides the callee from the compiler, which else drops the landing where it sees no call that could jump
// there.
bool run_guarded(const void* first, std::size_t length_bytes, void (*access)(void*), void* state) {
  Landing here;
  here.first = reinterpret_cast<std::uintptr_t>(first);
  here.length_bytes = length_bytes;
  if (__builtin_setjmp(here.place.data()) != 0) return false;
  asm volatile("" : "+r"(access) : : "memory");
  landing = &here;
  access(state);
  landing = nullptr;
  return true;
}

// Repeats run_guarded(), because a further call between costs large copies a percent.
bool guarded_copy(Copy* copy, std::byte* to, const std::byte* from, std::size_t length_bytes,
                  const void* first) {
  Landing here;
  here.first = reinterpret_cast<std::uintptr_t>(first);
  here.length_bytes = length_bytes;
  if (__builtin_setjmp(here.place.data()) != 0) return false;
  asm volatile("" : "+r"(copy) : : "memory");
  landing = &here;
  copy(to, from, length_bytes);
  landing = nullptr;
  return true;
}

#ifdef GDX_WORDS_BY_ADDRESS
bool load_words(std::byte* to, const std::byte* from, std::size_t words) {
  return gdx_copy_words(to, from, words) != 0;
}
bool store_words(std::byte* to, const std::byte* from, std::size_t words) {
  return gdx_copy_words(to, from, words) != 0;
}
bool load_half_word(std::uint32_t& to, std::uint32_t& from) { return gdx_copy_half_word(&to, &from) != 0; }
#else
bool load_words(std::byte* to, const std::byte* from, std::size_t words) {
  return guarded(from, words * sizeof(std::uint64_t), [=] {
    auto* const source = reinterpret_cast<std::uint64_t*>(const_cast<std::byte*>(from));
    for (std::size_t i = 0; i < words; ++i) {
      const std::uint64_t word = std::atomic_ref(source[i]).load(std::memory_order_acquire);
      std::memcpy(to + i * sizeof word, &word, sizeof word);
    }
  });
}
bool store_words(std::byte* to, const std::byte* from, std::size_t words) {
  return guarded(to, words * sizeof(std::uint64_t), [=] {
    for (std::size_t i = 0; i < words; ++i) {
      std::uint64_t word = 0;
      std::memcpy(&word, from + i * sizeof word, sizeof word);
      std::atomic_ref(reinterpret_cast<std::uint64_t*>(to)[i])
          .store(word, i + 1 < words ? std::memory_order_relaxed : std::memory_order_release);
    }
  });
}
bool load_half_word(std::uint32_t& to, std::uint32_t& from) {
  return guarded(&from, sizeof from,
                 [&to, &from] { to = std::atomic_ref(from).load(std::memory_order_acquire); });
}
#endif

bool guards_faults(int signal) {
  return (signal == SIGSEGV || signal == SIGBUS) &&
         guarded_process.load(std::memory_order_relaxed) == getpid();
}

void begin_guard_in_child() {
  if (guarded_process.load() == 0) return;
  actions_busy.clear();
  guarded_process.store(getpid());
}

bool unblock_faults() {
  sigset_t faults;
  sigemptyset(&faults);
  for (const int signal : kSignals) sigaddset(&faults, signal);
  sigset_t before;
  if (set_mask.load()(SIG_UNBLOCK, &faults, &before) != 0) return false;
  for (const int signal : kSignals) hidden[place_of(signal)] |= sigismember(&before, signal) == 1;
  return guarded_process.load() != 0;
}

int mask_signals(int how, const sigset_t* next, sigset_t* previous) {
  const auto before = hidden;
  auto after = before;
  sigset_t others;
  if (next != nullptr) others = *next;
  for (const int signal : kSignals) {
    if (next == nullptr) break;
    const bool named = sigismember(next, signal) == 1;
    if (named || how == SIG_SETMASK) after[place_of(signal)] = named && how != SIG_UNBLOCK;
    if (how != SIG_UNBLOCK) sigdelset(&others, signal);
  }
  const int error = set_mask.load()(how, next != nullptr ? &others : nullptr, previous);
  if (error != 0) return error;
  hidden = after;
  for (const int signal : kSignals) {
    if (previous != nullptr && before[place_of(signal)]) sigaddset(previous, signal);
  }
  return 0;
}

void install_fault_guard(SetAction set, SetMask mask) {
  static std::once_flag once;
  std::call_once(once, [set, mask] {
    set_mask.store(mask);
    struct sigaction guard {};
    guard.sa_sigaction = on_fault;
    guard.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    for (const int signal : kSignals) {
      set(signal, nullptr, kept_actions[place_of(signal)].actions.data());
    }
    set_action.store(set);
    guarded_process.store(getpid());
    for (const int signal : kSignals) set(signal, &guard, nullptr);
  });
}

void exchange_fault_action(int signal, const struct sigaction* next, struct sigaction* previous) {
  struct sigaction wanted {};
  if (next != nullptr) wanted = *next;
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  set_mask.load()(SIG_SETMASK, &all, &before);
  while (actions_busy.test_and_set(std::memory_order_acquire)) std::this_thread::yield();
  Kept& kept = kept_actions[place_of(signal)];
  const unsigned holding = kept.holding.load(std::memory_order_relaxed);
  const struct sigaction was = kept.actions[holding];
  if (next != nullptr) {
    kept.actions[1 - holding] = wanted;
    kept.holding.store(1 - holding, std::memory_order_release);
  }
  actions_busy.clear(std::memory_order_release);
  set_mask.load()(SIG_SETMASK, &before, nullptr);
  if (previous != nullptr) *previous = was;
}

}  // namespace gdx::softhca
