// Values that a rank of a test cannot go on without.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <type_traits>
#include <utility>

#include "base/result.h"

namespace gdx {

// Returns the value. A failure ends the process, because the other ranks must not wait.
template <typename T>
T must(Result<T> result) {
  if (!result) ADD_FAILURE() << result.error().message;
  if (!result) _exit(1);
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

}  // namespace gdx
