// Result<T>: a value, or a status and a message for a person.
#pragma once

#include <string>
#include <tl/expected.hpp>
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
};

inline tl::unexpected<Error> fail(Status status, std::string message) {
  return tl::unexpected<Error>(Error{status, std::move(message)});
}

}  // namespace gdx
