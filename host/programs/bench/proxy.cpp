// Device code on the CPU layer, whatever runs the requesting kernel.
#include "host/programs/bench/proxy.h"

#include "host/programs/bench/poster.h"

namespace gdx::bench {
namespace {

// Returns the number of messages that are requested, once it is above `posted`; `posted` when the kernel has
// ended.
std::uint64_t wait_until_asked(const Lane& lane, std::uint64_t posted) {
  for (;;) {
    const std::uint64_t asked = exec::load_acquire(&lane.proxy->asked);
    if (asked > posted || exec::load_acquire(&lane.proxy->over) != 0) return asked;
    exec::relax();
  }
}

template <Operation O>
Status post_messages(const Lane& lane, const Load& load) {
  // Answers of the peer to puts with a signal are messages, too.
  const bool posts = load.sends || (O == Operation::kPutSignal && load.latency);
  const std::uint64_t all = posts ? load.messages : 0;
  Poster<O, Mode::kPull, Scope::kThread> poster(lane, load);
  // Flushes where a kernel that posts by itself does; between answers neither does.
  const std::uint64_t window = O == Operation::kPutSignal && load.latency ? load.messages : load.depth;
  Status status = poster.status();
  for (std::uint64_t posted = 0; posted < all && status == Status::kOk;) {
    const std::uint64_t asked = wait_until_asked(lane, posted);
    if (asked <= posted) return Status::kAborted;
    while (posted < asked && status == Status::kOk) {
      status = poster.post(posted++);
      if (posted % window != 0 && posted != all) continue;
      if (status == Status::kOk) status = poster.flush();
      if (status == Status::kOk) exec::publish(&lane.proxy->sent, posted);
    }
  }
  return status == Status::kOk && load.sends ? poster.finish() : status;
}

Status post_operation(const Lane& lane, const Load& load) {
  switch (load.operation) {
    case Operation::kPut: return post_messages<Operation::kPut>(lane, load);
    case Operation::kPutSignal: return post_messages<Operation::kPutSignal>(lane, load);
    case Operation::kGet: return post_messages<Operation::kGet>(lane, load);
    case Operation::kFetchAdd: return post_messages<Operation::kFetchAdd>(lane, load);
    default: return Status::kInvalidArgument;
  }
}

}  // namespace

Status post_for_kernel(const Lane& lane, const Load& load, int (*progress)()) {
  Status status = Status::kOk;
  const Status launched =
      exec::run_grid({.progress = progress}, [&] { status = post_operation(lane, load); });
  if (status == Status::kOk) status = launched;
  if (status != Status::kOk) exec::publish(&lane.proxy->failure, static_cast<std::uint64_t>(status));
  return status;
}

}  // namespace gdx::bench
