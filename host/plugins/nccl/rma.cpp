// The functions that NCCL's proxies for one-sided transfers call, and the structs by which it finds them. A
// context of NCCL is its group, because contexts share the group's order.
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>

#include "base/environment.h"
#include "host/plugins/nccl/calls.h"
#include "host/plugins/nccl/rma_abi.h"

namespace gdx::nccl {
namespace {

using messaging::MemoryPart;
using messaging::WordSignal;

constexpr int kMostRmaReceives = 32;

Group* group_of(void* pointer) { return static_cast<Group*>(pointer); }
MemoryPart part_of(void* memory, std::uint64_t offset) { return {static_cast<Window*>(memory), offset}; }

// Runs a call of a group, whose result goes to `to`; an error is told, and `to` stays empty.
template <typename Value, typename Call>
Outcome run(void* group, void** to, Call call) {
  return guarded([&] {
    *to = nullptr;
    Result<Value*> made = call(*group_of(group));
    if (!made) return group_of(group)->told(made.error());
    *to = *made;
    return Outcome::kSuccess;
  });
}

// No devices unless it is asked for, because NCCL takes an external plugin before its own, and then gives it
// memory of GPUs alone.
Outcome count_rma_devices(int* count) {
  const auto is_asked = choice_from_environment<bool>("GDX_NCCL_RMA", {{"off", false}, {"host", true}});
  if (!is_asked) return told(is_asked.error());
  if (*is_asked) return count_devices(count);
  *count = 0;
  return Outcome::kSuccess;
}

Outcome init_rma(void** context, std::uint64_t /*communicator*/, Logger logger) {
  return init(context, logger);
}

Outcome listen_for_group(void* context, int device, void* handle, void** listener) {
  return listen_by(context, handle, listener,
                   [&](Context& own, Handle& made) { return own.listen_for_group(device, made); });
}

// Takes no context, because NCCL 2.30 gives that of its net here.
Outcome connect(void* /*context*/, void** handles, int ranks, int rank, void* listener, void** group) {
  return guarded([&] {
    *group = nullptr;
    if (ranks < 1 || rank < 0 || rank >= ranks)
      return told({Status::kInvalidArgument, fmt::format("rank {} of {}", rank, ranks)});
    Handle root{};
    std::memcpy(&root, handles[0], sizeof root);
    auto* const own = static_cast<GroupListener*>(listener);
    auto connected = Group::connect(own->keeper, own->door, std::move(own->inviting), root.invitation,
                                    static_cast<std::uint32_t>(rank), static_cast<std::uint32_t>(ranks));
    if (!connected) return told(connected.error());
    *group = connected->release();
    return Outcome::kSuccess;
  });
}

Outcome create_context(void* group, RmaConfig* /*config*/, void** rma_context) {
  *rma_context = group;
  return Outcome::kSuccess;
}

Outcome destroy_context(void* /*rma_context*/) { return Outcome::kSuccess; }

Outcome register_memory(void* group, void* data, std::size_t bytes, int type, std::uint64_t /*flags*/,
                        void** memory) {
  return run<Window>(group, memory, [&](Group& all) { return all.register_memory(data, bytes, type); });
}

Outcome register_dmabuf(void* group, void* data, std::size_t bytes, int /*type*/, std::uint64_t /*offset*/,
                        int /*descriptor*/, std::uint64_t flags, void** memory) {
  return register_memory(group, data, bytes, kDmabufMemory, flags, memory);
}

Outcome forget_window(void* group, void* memory) {
  return guarded([&] {
    group_of(group)->forget_memory(static_cast<Window*>(memory));
    return Outcome::kSuccess;
  });
}

Outcome close_group(void* group) {
  return guarded([&] {
    Group::close(std::unique_ptr<Group>(group_of(group)));
    return Outcome::kSuccess;
  });
}

Outcome close_group_listener(void* listener) {
  return guarded([&] {
    delete static_cast<GroupListener*>(listener);
    return Outcome::kSuccess;
  });
}

Outcome put(void* rma_context, int /*context*/, std::uint64_t from_offset, void* from, std::size_t bytes,
            std::uint64_t to_offset, void* to, std::uint32_t rank, std::uint32_t flags, void** request) {
  return run<Group::Request>(rma_context, request, [&](Group& all) {
    return all.put(rank, part_of(from, from_offset), part_of(to, to_offset), bytes, std::nullopt,
                   (flags & kMoreFollow) != 0);
  });
}

// A weak signal may come with its own put alone; this one comes after all before it, as a strong one must.
Outcome put_signal(void* rma_context, int /*context*/, std::uint64_t from_offset, void* from,
                   std::size_t bytes, std::uint64_t to_offset, void* to, std::uint32_t rank,
                   std::uint64_t word_offset, void* word, std::uint64_t value, std::uint32_t operation,
                   bool /*is_strong*/, std::uint32_t flags, void** request) {
  return run<Group::Request>(rma_context, request, [&](Group& all) -> Result<Group::Request*> {
    if (operation != kSignalIncrement && operation != kSignalAdd)
      return fail(Status::kInvalidArgument, fmt::format("a signal of operation {}", operation));
    const WordSignal signal{part_of(word, word_offset), operation == kSignalIncrement ? 1 : value};
    return all.put(rank, part_of(from, from_offset), part_of(to, to_offset), bytes, signal,
                   (flags & kMoreFollow) != 0);
  });
}

Outcome get(void* rma_context, int /*context*/, std::uint64_t from_offset, void* from, std::size_t bytes,
            std::uint64_t to_offset, void* to, std::uint32_t rank, std::uint32_t /*flags*/, void** request) {
  return run<Group::Request>(rma_context, request, [&](Group& all) {
    return all.get(rank, part_of(from, from_offset), part_of(to, to_offset), bytes);
  });
}

Outcome flush(void* rma_context, int /*context*/, void* /*memory*/, std::uint32_t rank, void** request) {
  return run<Group::Request>(rma_context, request, [&](Group& all) { return all.flush(rank); });
}

Outcome test(void* group, void* request, int* done) {
  return guarded([&] {
    *done = 0;
    const auto complete = group_of(group)->test(static_cast<Group::Request*>(request));
    if (!complete) return group_of(group)->told(complete.error());
    *done = *complete ? 1 : 0;
    return Outcome::kSuccess;
  });
}

Outcome progress(void* rma_context) {
  return guarded([&] {
    const auto made = group_of(rma_context)->progress();
    return made ? Outcome::kSuccess : group_of(rma_context)->told(made.error());
  });
}

Outcome query_last_error(void* rma_context, bool* has_error) {
  return guarded([&] {
    *has_error = group_of(rma_context)->has_failed();
    return Outcome::kSuccess;
  });
}

// One rank's signal says nothing of the puts of another.
Outcome get_rma_properties(void* /*group*/, RmaProperties* properties) {
  properties->signals_flush_all_puts = false;
  return Outcome::kSuccess;
}

// Calls of version 14, which have no flags, and of version 13, whose signals are all strong.
template <auto call>
Outcome without_flags(void* rma_context, int context, std::uint64_t from_offset, void* from,
                      std::size_t bytes, std::uint64_t to_offset, void* to, std::uint32_t rank,
                      void** request) {
  return call(rma_context, context, from_offset, from, bytes, to_offset, to, rank, 0, request);
}

template <typename... IsStrong>
Outcome put_signal_without_flags(void* rma_context, int context, std::uint64_t from_offset, void* from,
                                 std::size_t bytes, std::uint64_t to_offset, void* to, std::uint32_t rank,
                                 std::uint64_t word_offset, void* word, std::uint64_t value,
                                 std::uint32_t operation, IsStrong... /*is_strong*/, void** request) {
  return put_signal(rma_context, context, from_offset, from, bytes, to_offset, to, rank, word_offset, word,
                    value, operation, true, 0, request);
}

Outcome create_context_v13(void* group, RmaConfigV13* /*config*/, void** rma_context, DeviceHandle** handle) {
  static DeviceHandle none{.device_type = kGinProxyDevice,
                           .device_version = 0,
                           .handle = nullptr,
                           .bytes = 0,
                           .needs_progress = 1};
  *handle = &none;
  return create_context(group, nullptr, rma_context);
}

Outcome register_memory_v13(void* group, void* data, std::size_t bytes, int type, std::uint64_t flags,
                            void** memory, void** device_memory) {
  const Outcome outcome = register_memory(group, data, bytes, type, flags, memory);
  *device_memory = *memory;
  return outcome;
}

Outcome register_dmabuf_v13(void* group, void* data, std::size_t bytes, int /*type*/,
                            std::uint64_t /*offset*/, int /*descriptor*/, std::uint64_t flags, void** memory,
                            void** device_memory) {
  return register_memory_v13(group, data, bytes, kDmabufMemory, flags, memory, device_memory);
}

constexpr RmaBegin kBegin{.name = "gdx", .init = init_rma, .devices = count_rma_devices};
constexpr RmaMeeting kMeeting{
    .get_properties = get_properties<PropertiesV12, kGinProxyDevice, kMostRmaReceives>,
    .listen = listen_for_group,
    .connect = connect};
constexpr RmaMemory kMemory{
    .create_context = create_context, .register_memory = register_memory, .register_dmabuf = register_dmabuf};
constexpr RmaMemoryV13 kMemoryV13{.create_context = create_context_v13,
                                  .register_memory = register_memory_v13,
                                  .register_dmabuf = register_dmabuf_v13};
constexpr RmaEnd kEnd{.forget_memory = forget_window,
                      .destroy_context = destroy_context,
                      .close_group = close_group,
                      .close_listen = close_group_listener};
constexpr RmaTransfer kTransfer{.put = put, .put_signal = put_signal, .get = get};
template <typename... IsStrong>
constexpr RmaTransferWithoutFlags<IsStrong...> kTransferWithoutFlags{
    .put = without_flags<put>,
    .put_signal = put_signal_without_flags<IsStrong...>,
    .get = without_flags<get>};
constexpr RmaCompletion kCompletion{.flush = flush,
                                    .test = test,
                                    .progress = progress,
                                    .query_last_error = query_last_error,
                                    .finalize = finalize};

}  // namespace
}  // namespace gdx::nccl

// NOLINTBEGIN(readability-identifier-naming): the names are NCCL's
extern "C" {
extern const gdx::nccl::RmaV13 ncclRmaPlugin_v13;
extern const gdx::nccl::RmaV14 ncclRmaPlugin_v14;
extern const gdx::nccl::RmaV15 ncclRmaPlugin_v15;
extern const gdx::nccl::RmaV16 ncclRmaPlugin_v16;
const gdx::nccl::RmaV13 ncclRmaPlugin_v13{gdx::nccl::kBegin,
                                          gdx::nccl::kMeeting,
                                          gdx::nccl::kMemoryV13,
                                          gdx::nccl::kEnd,
                                          gdx::nccl::kTransferWithoutFlags<>,
                                          gdx::nccl::kCompletion};
const gdx::nccl::RmaV14 ncclRmaPlugin_v14{gdx::nccl::kBegin,
                                          gdx::nccl::kMeeting,
                                          gdx::nccl::kMemory,
                                          gdx::nccl::kEnd,
                                          gdx::nccl::kTransferWithoutFlags<bool>,
                                          gdx::nccl::kCompletion};
const gdx::nccl::RmaV15 ncclRmaPlugin_v15{gdx::nccl::kBegin, gdx::nccl::kMeeting,  gdx::nccl::kMemory,
                                          gdx::nccl::kEnd,   gdx::nccl::kTransfer, gdx::nccl::kCompletion};
const gdx::nccl::RmaV16 ncclRmaPlugin_v16{
    gdx::nccl::kBegin, gdx::nccl::get_rma_properties, gdx::nccl::kMeeting,   gdx::nccl::kMemory,
    gdx::nccl::kEnd,   gdx::nccl::kTransfer,          gdx::nccl::kCompletion};
}
// NOLINTEND(readability-identifier-naming)
