#include "host/bootstrap/caller.h"

#include <fmt/format.h>

namespace gdx {

Result<void> Caller::check_process() const {
  if (is_here()) return {};
  return fail(Status::kInvalidArgument,
              fmt::format("process {} was forked from process {}, which is the rank: make the call there, or "
                          "begin with another program by exec",
                          getpid(), process_.id()));
}

Result<Caller::Turn> Caller::begin() {
  GDX_TRY(check_process());
  if (!busy_.test_and_set(std::memory_order_acquire)) return Turn(&busy_);
  return fail(Status::kBusy,
              "another thread of this process is in a collective call of the same ranks: let one thread make "
              "them, one after the other");
}

}  // namespace gdx
