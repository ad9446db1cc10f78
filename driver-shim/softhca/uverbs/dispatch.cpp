#include <fmt/format.h>

#include <cerrno>

#include "driver-shim/softhca/devx/refusals.h"
#include "driver-shim/softhca/uverbs/methods.h"

namespace gdx::softhca::uverbs {
namespace {

const Method* find_method(std::uint16_t object, std::uint16_t method) {
  for (const auto& methods :
       {device_methods(), memory_methods(), import_methods(), queue_methods(), devx_methods()}) {
    for (const Method& candidate : methods) {
      if (candidate.object == object && candidate.method == method) return &candidate;
    }
  }
  return nullptr;
}

}  // namespace

Errno dispatch(Context& context, std::uint64_t request_address) {
  context.objects.forget_touched();
  ErrnoOr<Attributes> request = Attributes::read(request_address);
  if (!request) return request.error();
  const Method* const method = find_method(request->object(), request->method());
  if (method == nullptr) {
    name_refusal(fmt::format("uverbs method {:#x} on object {:#x}", request->method(), request->object()));
    return EPROTONOSUPPORT;
  }
  if (const Errno error = request->check(method->attributes)) return error;
  if (!context.opened && !method->before_context) return EINVAL;
  return method->handler(context, *request);
}

Errno publish(Context& context, Attributes& request, std::uint16_t id, std::unique_ptr<Object> object) {
  Object& added = *object;
  const Errno error = request.write_handle(id, context.objects.add(std::move(object)));
  if (error != 0) static_cast<void>(context.objects.remove(added));
  return error;
}

Errno destroy_object(Context& context, const Attributes& request, std::uint16_t id, ObjectType type) {
  const ErrnoOr<std::uint32_t> handle = request.handle(id);
  if (!handle) return handle.error();
  const ErrnoOr<Object*> object = context.objects.find(*handle, type);
  if (!object) return object.error();
  return context.objects.remove(**object);
}

}  // namespace gdx::softhca::uverbs
