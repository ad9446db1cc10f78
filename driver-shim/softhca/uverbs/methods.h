// The methods of the uverbs ioctl interface, by the file that implements them.
// Source: Linux drivers/infiniband/core/uverbs_std_types_*.c, drivers/infiniband/hw/mlx5.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>

#include "driver-shim/softhca/uverbs/attributes.h"
#include "driver-shim/softhca/uverbs/context.h"

namespace gdx::softhca::uverbs {

struct Method {
  std::uint16_t object;
  std::uint16_t method;
  bool before_context;  // allowed before GET_CONTEXT
  Errno (*handler)(Context&, Attributes&);
  // Attributes that the handler uses. Others are refused if the program marks them mandatory.
  std::initializer_list<std::uint16_t> attributes;
};

std::span<const Method> device_methods();                   // methods_device.cpp
std::span<const Method> memory_methods();                   // methods_memory.cpp
std::span<const Method> import_methods();                   // methods_imports.cpp
std::span<const Method> queue_methods();                    // methods_queue.cpp
std::span<const Method> devx_methods();                     // methods_devx.cpp
Errno invoke_write(Context& context, Attributes& request);  // write_commands.cpp

// Runs one request. Errors: as the kernel's, EPROTONOSUPPORT for a method that is not there.
Errno dispatch(Context& context, std::uint64_t request_address);

// Destroys the object whose handle is in attribute `id`.
Errno destroy_object(Context& context, const Attributes& request, std::uint16_t id, ObjectType type);

}  // namespace gdx::softhca::uverbs
