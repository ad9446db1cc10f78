// Result<T>: a value, or a status and a message for a person.
//
//   if (!result) return result.error().message;    the Error
//   use(*result);                                  the value
#pragma once

#include <string>
#include <tl/expected.hpp>
#include <type_traits>
#include <utility>

#include "proto/status.h"

namespace gdx {

// `message` is one line: the event, its object, the remedy.
struct Error {
  Status status = Status::kSystem;
  std::string message;
};

template <typename T>
class [[nodiscard]] Result : public tl::expected<T, Error> {
 public:
  using tl::expected<T, Error>::expected;

  // Gives the value away: there must be one.
  T take() && {
    if constexpr (!std::is_void_v<T>) return *std::move(*this);
  }
};

// Makes the error of a Result: `return fail(Status::kBusy, "...");`.
inline tl::unexpected<Error> fail(Status status, std::string message) {
  return tl::unexpected<Error>(Error{status, std::move(message)});
}

}  // namespace gdx

// Evaluates to the value of a Result, or returns its error from the function.
//
//   auto hca = GDX_TRY(Hca::open(name));
//
// Stands alone or initialises a variable, because leaving a larger expression may skip destructors.
#define GDX_TRY(...)                                                       \
  __extension__({                                                          \
    auto gdx_result = (__VA_ARGS__);                                       \
    if (!gdx_result) return tl::unexpected(std::move(gdx_result).error()); \
    std::move(gdx_result).take();                                          \
  })
