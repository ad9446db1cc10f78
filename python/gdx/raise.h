// Raises gdx.Error.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string_view.h>

#include <cstdint>
#include <optional>
#include <string_view>

#include "proto/status.h"

namespace gdx::python {

using Rank = std::optional<std::uint32_t>;
using Syndrome = std::optional<std::uint32_t>;

[[noreturn]] inline void raise(Status status, std::string_view message, Rank rank, Syndrome syndrome = {}) {
  const nanobind::object type = nanobind::module_::import_("gdx._error").attr("Error");
  const nanobind::object error = type(message, static_cast<std::uint32_t>(status), rank, syndrome);
  PyErr_SetObject(type.ptr(), error.ptr());
  throw nanobind::python_error();
}

}  // namespace gdx::python
