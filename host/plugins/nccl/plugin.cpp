// The functions that NCCL's net transport calls, and the structs by which it finds them.
#include <algorithm>
#include <cstring>

#include "host/messaging/matching.h"
#include "host/plugins/nccl/calls.h"

namespace gdx::nccl {
namespace {

Communicator* communicator_of(void* pointer) { return static_cast<Communicator*>(pointer); }

Outcome init_net(void** context, std::uint64_t /*communicator*/, void* /*config*/, Logger logger,
                 ProfilerCallback /*profiler*/) {
  return init(context, logger);
}

Outcome listen(void* context, int device, void* handle, void** listener) {
  return listen_by(context, handle, listener,
                   [&](Context& own, Handle& made) { return own.listen(device, made); });
}

Outcome connect(void* context, int device, void* handle, void** sender, void** /*device_handle*/) {
  return guarded([&] {
    *sender = nullptr;
    const auto found = context_of(context);
    if (!found) return told(found.error());
    Handle copy{};
    std::memcpy(&copy, handle, sizeof copy);
    auto connected = (*found)->connect(device, copy);
    std::memcpy(handle, &copy, sizeof copy);
    if (!connected) return told(connected.error());
    *sender = connected->release();
    return Outcome::kSuccess;
  });
}

Outcome accept(void* listener, void** receiver, void** /*device_handle*/) {
  return guarded([&] {
    *receiver = nullptr;
    auto peer = static_cast<Listener*>(listener)->host->accept();
    if (!peer) return told(peer.error());
    if (*peer) *receiver = new Communicator(std::move(*peer), Direction::kReceive);
    return Outcome::kSuccess;
  });
}

Outcome register_memory(void* communicator, void* data, std::size_t bytes, int type, void** memory) {
  return guarded([&] {
    const auto registered = communicator_of(communicator)->register_memory(data, bytes, type);
    if (!registered) return told(registered.error());
    *memory = *registered;
    return Outcome::kSuccess;
  });
}

Outcome register_dmabuf(void* communicator, void* data, std::size_t bytes, int /*type*/,
                        std::uint64_t /*offset*/, int /*descriptor*/, void** memory) {
  return register_memory(communicator, data, bytes, kDmabufMemory, memory);
}

Outcome forget_memory(void* communicator, void* memory) {
  return guarded([&] {
    communicator_of(communicator)->forget_memory(static_cast<Memory*>(memory));
    return Outcome::kSuccess;
  });
}

Outcome send(void* sender, void* data, std::size_t bytes, int tag, void* memory, void* /*phandle*/,
             void** request) {
  return guarded([&] {
    *request = nullptr;
    const auto posted = communicator_of(sender)->send(data, bytes, tag, static_cast<Memory*>(memory));
    if (!posted) return communicator_of(sender)->told(posted.error());
    *request = *posted;
    return Outcome::kSuccess;
  });
}

Outcome receive(void* receiver, int count, void** data, std::size_t* bytes, int* tags, void** memories,
                void** /*phandles*/, void** request) {
  return guarded([&] {
    *request = nullptr;
    const auto n = static_cast<std::size_t>(std::max(count, 0));
    const auto posted = communicator_of(receiver)->receive({data, n}, {bytes, n}, {tags, n}, {memories, n});
    if (!posted) return communicator_of(receiver)->told(posted.error());
    *request = *posted;
    return Outcome::kSuccess;
  });
}

// Host memory that a request has told of is readable, so there is nothing to wait for.
Outcome flush(void* /*receiver*/, int /*count*/, void** /*data*/, int* /*bytes*/, void** /*memories*/,
              void** request) {
  *request = nullptr;
  return Outcome::kSuccess;
}

Outcome test(void* pointer, int* done, int* bytes) {
  return guarded([&] {
    *done = 0;
    auto* const request = static_cast<Request*>(pointer);
    Communicator* const communicator = request->communicator;
    const auto complete = communicator->test(request, bytes);
    if (!complete) return communicator->told(complete.error());
    *done = *complete ? 1 : 0;
    return Outcome::kSuccess;
  });
}

Outcome close_communicator(void* communicator) {
  return guarded([&] {
    delete communicator_of(communicator);
    return Outcome::kSuccess;
  });
}

Outcome close_listen(void* listener) {
  return guarded([&] {
    delete static_cast<Listener*>(listener);
    return Outcome::kSuccess;
  });
}

template <typename Properties>
constexpr Net<Properties> net() {
  return {.name = "gdx",
          .init = init_net,
          .devices = count_devices,
          .get_properties = get_properties<Properties, kHostDevice, messaging::kMostParts>,
          .listen = listen,
          .connect = connect,
          .accept = accept,
          .register_memory = register_memory,
          .register_dmabuf = register_dmabuf,
          .forget_memory = forget_memory,
          .send = send,
          .receive = receive,
          .flush = flush,
          .test = test,
          .close_send = close_communicator,
          .close_receive = close_communicator,
          .close_listen = close_listen,
          .get_device_memory = nullptr,
          .receive_consumed = nullptr,
          .make_virtual_device = nullptr,
          .finalize = finalize,
          .set_attributes = nullptr};
}

}  // namespace
}  // namespace gdx::nccl

// NOLINTBEGIN(readability-identifier-naming): the names are NCCL's
extern "C" {
extern const gdx::nccl::NetV11 ncclNetPlugin_v11;
extern const gdx::nccl::NetV12 ncclNetPlugin_v12;
const gdx::nccl::NetV11 ncclNetPlugin_v11 = gdx::nccl::net<gdx::nccl::PropertiesV11>();
const gdx::nccl::NetV12 ncclNetPlugin_v12 = gdx::nccl::net<gdx::nccl::PropertiesV12>();
}
// NOLINTEND(readability-identifier-naming)
