// No exception passes through the C frames of a program that calls a hook: where memory is short, the hook
// fails as libc's function would.
#pragma once

#include <cerrno>
#include <exception>

namespace gdx::softhca::uverbs {

// Returns the result of `body`, or `failed` with errno `error` after an exception. The end of a thread
// (pthread_exit) is no std::exception.
template <typename Value, typename Body>
Value or_no_memory(Value failed, Body body, int error = ENOMEM) {
  try {
    return body();
  } catch (const std::exception&) {
    errno = error;
    return failed;
  }
}

}  // namespace gdx::softhca::uverbs
