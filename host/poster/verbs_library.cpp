#include "host/poster/verbs_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstring>

namespace gdx::verbs {
namespace {

constexpr const char* kName = "librdmacm.so.1";

Result<Library> load() {
  Library found{};
  void* const handle = dlopen(kName, RTLD_NOW | RTLD_LOCAL);
  const auto find = [&]<typename Function>(const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(handle, name));
    return function != nullptr;
  };
  const bool whole = handle != nullptr && find("rdma_create_event_channel", found.create_event_channel) &&
                     find("rdma_destroy_event_channel", found.destroy_event_channel) &&
                     find("rdma_get_cm_event", found.get_cm_event) &&
                     find("rdma_ack_cm_event", found.ack_cm_event) &&
                     find("rdma_event_str", found.event_str) && find("rdma_create_id", found.create_id) &&
                     find("rdma_destroy_id", found.destroy_id) && find("rdma_bind_addr", found.bind_addr) &&
                     find("rdma_listen", found.listen) && find("rdma_resolve_addr", found.resolve_addr) &&
                     find("rdma_resolve_route", found.resolve_route) && find("rdma_connect", found.connect) &&
                     find("rdma_accept", found.accept) && find("rdma_reject", found.reject) &&
                     find("rdma_disconnect", found.disconnect) && find("rdma_create_qp", found.create_qp) &&
                     find("rdma_destroy_qp", found.destroy_qp) && find("rdma_set_option", found.set_option);
  if (whole) return found;
  const char* const why = dlerror();
  return fail(Status::kUnsupported, fmt::format("no librdmacm here ({}): apt-get install librdmacm1",
                                                why == nullptr ? kName : why));
}

const Result<Library>& loaded() {
  static const Result<Library> once = load();
  return once;
}

}  // namespace

Result<const Library*> load_library() {
  if (!loaded()) return tl::unexpected(loaded().error());
  return &*loaded();
}

const Library& library() { return *loaded(); }

Error error_of(std::string_view what, int number) {
  const Status status = number == ENOMEM   ? Status::kNoMemory
                        : number == ENODEV ? Status::kNoDevice
                        : number == EINVAL ? Status::kInvalidArgument
                                           : Status::kSystem;
  return {status, fmt::format("{}: {} (provider ibverbs)", what, std::strerror(number))};
}

}  // namespace gdx::verbs
