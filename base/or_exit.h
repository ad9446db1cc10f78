// The value of a Result, or the end of the program: for programs whose set-up has no other answer to a
// failure. In a namespace of its own, so that `using namespace gdx` leaves a program its own or_exit.
#pragma once

#include <errno.h>

#include <cstdio>
#include <cstdlib>

#include "base/result.h"

namespace gdx::program {

// Returns the value. A failure ends the program with status 1, after "program: message" on stderr.
template <typename T>
T or_exit(Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, result.error().message.c_str());
    std::exit(1);
  }
  return std::move(result).take();
}

}  // namespace gdx::program
