#include <fcntl.h>
#include <poll.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/mlx5_user_ioctl_cmds.h>
#include <rdma/mlx5_user_ioctl_verbs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "driver-shim/softhca/devx/limits.h"
#include "driver-shim/softhca/devx/refusals.h"
#include "driver-shim/softhca/uverbs/dmabuf.h"
#include "driver-shim/softhca/uverbs/methods.h"
#include "driver-shim/softhca/uverbs/queue_objects.h"
#include "driver-shim/softhca/uverbs/user_memory.h"

namespace gdx::softhca::uverbs {
namespace {

constexpr std::size_t kMaxEventsPerCall = 16;

struct UmemObject : Object {
  std::byte* base = nullptr;
  std::optional<DmabufMapping> mapping;
  std::unique_ptr<ForeignRange> foreign;
};

// A command's mailboxes. The output is filled and returned even when the device refuses the command.
struct Mailboxes {
  std::vector<std::uint8_t> in;
  std::vector<std::uint8_t> out;
};

ErrnoOr<Mailboxes> mailboxes(const Context& context, const Attributes& request, std::uint16_t in_id,
                             std::uint16_t out_id) {
  if (!context.devx) return refuse(EPERM);
  ErrnoOr<std::vector<std::uint8_t>> in = request.blob(in_id);
  if (!in) return refuse(in.error());
  if (!request.has(out_id)) return refuse(EINVAL);
  return Mailboxes{std::move(*in), std::vector<std::uint8_t>(request.length(out_id))};
}

Errno write_back(Attributes& request, std::uint16_t out_id, const Mailboxes& boxes, Errno outcome) {
  if (outcome != 0 && outcome != EREMOTEIO) return outcome;
  const Errno error = request.write_bytes(out_id, boxes.out.data(), boxes.out.size());
  return error != 0 ? error : outcome;
}

Errno general_command(Context& context, Attributes& request) {
  ErrnoOr<Mailboxes> boxes =
      mailboxes(context, request, MLX5_IB_ATTR_DEVX_OTHER_CMD_IN, MLX5_IB_ATTR_DEVX_OTHER_CMD_OUT);
  if (!boxes) return boxes.error();
  const Errno outcome = context.commands.general(boxes->in, boxes->out);
  return write_back(request, MLX5_IB_ATTR_DEVX_OTHER_CMD_OUT, *boxes, outcome);
}

// Returns a duplicate of the program's eventfd. Errors, as of Linux's eventfd_ctx_fdget(): EBADF; EINVAL for
// another file.
ErrnoOr<std::shared_ptr<const Descriptor>> keep_eventfd(int fd) {
  constexpr std::string_view kEventfd = "anon_inode:[eventfd]";
  std::array<char, 64> target{};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = readlink(link.c_str(), target.data(), target.size());
  if (length < 0) return refuse(EBADF);
  if (std::string_view(target.data(), static_cast<std::size_t>(length)) != kEventfd) return refuse(EINVAL);
  auto kept = std::make_shared<const Descriptor>(Descriptor::keep(fcntl(fd, F_DUPFD_CLOEXEC, 0)));
  if (!*kept) return refuse(EMFILE);
  return kept;
}

// Adds 1. A counter without room stays as it is, because the engine raises events and must not wait.
void signal_eventfd(const Descriptor& eventfd) {
  constexpr std::uint64_t kOne = 1;
  pollfd room{.fd = eventfd.value(), .events = POLLOUT, .revents = 0};
  if (!eventfd.refers() || poll(&room, 1, 0) != 1 || (room.revents & POLLOUT) == 0) return;
  static_cast<void>(::write(eventfd.value(), &kOne, sizeof kOne) == sizeof kOne);
}

Errno query_eqn(Context& context, Attributes& request) {
  if (!context.devx) return EPERM;
  const ErrnoOr<std::uint32_t> vector = request.value<std::uint32_t>(MLX5_IB_ATTR_DEVX_QUERY_EQN_USER_VEC);
  if (!vector) return vector.error();
  if (*vector >= devx::kCompletionVectors) return EINVAL;
  return request.write(MLX5_IB_ATTR_DEVX_QUERY_EQN_DEV_EQN, devx::kFirstEqn + *vector);
}

Errno create_object(Context& context, Attributes& request) {
  ErrnoOr<Mailboxes> boxes =
      mailboxes(context, request, MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_IN, MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT);
  if (!boxes) return boxes.error();
  const ErrnoOr<devx::Object> created = context.commands.create(boxes->in, boxes->out);
  const Errno outcome =
      write_back(request, MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT, *boxes, created ? 0 : created.error());
  if (!created) return outcome;
  auto object = std::make_unique<DevxObject>();
  object->type = ObjectType::kDevx;
  object->number = created->number;
  object->devx = *created;
  object->release = [&commands = context.commands, devx = *created] { return commands.destroy(devx); };
  if (outcome != 0) {
    static_cast<void>(object->release());
    return outcome;
  }
  return publish(context, request, MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE, std::move(object));
}

Errno destroy_devx(Context& context, Attributes& request) {
  return destroy_object(context, request, MLX5_IB_ATTR_DEVX_OBJ_DESTROY_HANDLE, ObjectType::kDevx);
}

// Finds verbs queues as well as DevX ones for modify and query, because both are objects of one device.
ErrnoOr<devx::Object> any_queue(Context& context, const Attributes& request, std::uint16_t id) {
  const ErrnoOr<std::uint32_t> handle = request.handle(id);
  if (!handle) return refuse(handle.error());
  const ErrnoOr<Object*> found = context.objects.find_any(*handle);
  if (!found) return refuse(found.error());
  switch ((*found)->type) {
    case ObjectType::kDevx: return static_cast<const DevxObject&>(**found).devx;
    case ObjectType::kQp: return devx::Object{devx::ObjectKind::kQp, (*found)->number, {}};
    case ObjectType::kCq: return devx::Object{devx::ObjectKind::kCq, (*found)->number, {}};
    case ObjectType::kSrq: return devx::Object{devx::ObjectKind::kRmp, (*found)->number, {}};
    default: return refuse(EINVAL);
  }
}

Errno modify_object(Context& context, Attributes& request) {
  ErrnoOr<Mailboxes> boxes =
      mailboxes(context, request, MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_IN, MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_OUT);
  if (!boxes) return boxes.error();
  const ErrnoOr<devx::Object> object = any_queue(context, request, MLX5_IB_ATTR_DEVX_OBJ_MODIFY_HANDLE);
  if (!object) return object.error();
  const Errno outcome = context.commands.modify(*object, boxes->in, boxes->out);
  return write_back(request, MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_OUT, *boxes, outcome);
}

Errno query_object(Context& context, Attributes& request) {
  ErrnoOr<Mailboxes> boxes =
      mailboxes(context, request, MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_IN, MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_OUT);
  if (!boxes) return boxes.error();
  const ErrnoOr<devx::Object> object = any_queue(context, request, MLX5_IB_ATTR_DEVX_OBJ_QUERY_HANDLE);
  if (!object) return object.error();
  const Errno outcome = context.commands.query(*object, boxes->in, boxes->out);
  return write_back(request, MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_OUT, *boxes, outcome);
}

// Ignores the requested access, because a completion queue may lie there.
ErrnoOr<std::unique_ptr<UmemObject>> umem_of(Context& context, const Attributes& request,
                                             std::uint64_t address, std::uint64_t length_bytes) {
  auto object = std::make_unique<UmemObject>();
  if (!request.has(MLX5_IB_ATTR_DEVX_UMEM_REG_DMABUF_FD)) {
    auto foreign = context.gpus.claim(address, length_bytes);
    if (!foreign) return refuse(foreign.error());
    object->foreign = std::move(*foreign);
    const bool checked = object->foreign != nullptr;
    if (const Errno error = checked ? 0 : check_access(address, length_bytes, Use::kReadWrite))
      return refuse(error);
    object->base = reinterpret_cast<std::byte*>(address);
    return object;
  }
  const ErrnoOr<int> descriptor = request.raw_descriptor(MLX5_IB_ATTR_DEVX_UMEM_REG_DMABUF_FD);
  if (!descriptor) return refuse(descriptor.error());
  // The address is the offset within the buffer.
  if (address % kPageBytes != 0) return refuse(EINVAL);
  auto mapping = DmabufMapping::map(*descriptor, address, length_bytes, true);
  if (!mapping) return refuse(mapping.error());
  object->base = mapping->first();
  object->mapping.emplace(std::move(*mapping));
  return object;
}

Errno register_umem(Context& context, Attributes& request) {
  if (!context.devx) return EPERM;
  const ErrnoOr<std::uint64_t> address = request.value<std::uint64_t>(MLX5_IB_ATTR_DEVX_UMEM_REG_ADDR);
  const ErrnoOr<std::uint64_t> length_bytes = request.value<std::uint64_t>(MLX5_IB_ATTR_DEVX_UMEM_REG_LEN);
  if (!address || !length_bytes) return EINVAL;
  std::uint64_t page_sizes = 0;
  if (request.has(MLX5_IB_ATTR_DEVX_UMEM_REG_PGSZ_BITMAP)) {
    const auto given = request.value<std::uint64_t>(MLX5_IB_ATTR_DEVX_UMEM_REG_PGSZ_BITMAP);
    if (!given || *given < kPageBytes) return EINVAL;
    page_sizes = *given;
  }
  auto object = umem_of(context, request, *address, *length_bytes);
  if (!object) return object.error();
  const ErrnoOr<std::uint32_t> id = context.umems.add((*object)->base, *length_bytes, page_sizes);
  if (!id) return id.error();
  (*object)->type = ObjectType::kUmem;
  (*object)->number = *id;
  (*object)->release = [&umems = context.umems, number = *id] { return umems.remove(number); };
  if (const Errno error = request.write(MLX5_IB_ATTR_DEVX_UMEM_REG_OUT_ID, *id)) {
    static_cast<void>((*object)->release());
    return error;
  }
  return publish(context, request, MLX5_IB_ATTR_DEVX_UMEM_REG_HANDLE, std::move(*object));
}

Errno deregister_umem(Context& context, Attributes& request) {
  return destroy_object(context, request, MLX5_IB_ATTR_DEVX_UMEM_DEREG_HANDLE, ObjectType::kUmem);
}

Errno allocate_event_fd(Context& context, Attributes& request) {
  if (!context.devx) return EPERM;
  std::uint32_t flags = 0;
  if (request.has(MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_FLAGS)) {
    const auto given = request.value<std::uint32_t>(MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_FLAGS);
    if (!given) return given.error();
    flags = *given;
  }
  if ((flags & ~std::uint32_t{MLX5_IB_UAPI_DEVX_CR_EV_CH_FLAGS_OMIT_DATA}) != 0) return EINVAL;
  const ErrnoOr<std::shared_ptr<EventChannel>> channel = context.channels.open_channel();
  if (!channel) return channel.error();
  if (flags != 0) (*channel)->leave_out_device_data();
  return request.write_handle(MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_HANDLE,
                              static_cast<std::uint32_t>((*channel)->user_fd()));
}

// Refuses events that this device never raises, and all without an object, as a device without their
// capabilities.
Errno subscribe_event(Context& context, Attributes& request) {
  if (!context.devx) return EPERM;
  const ErrnoOr<std::uint32_t> fd = request.handle(MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_FD_HANDLE);
  if (!fd) return fd.error();
  const auto channel = context.channels.find_channel(static_cast<int>(*fd));
  if (!channel) return channel.error();
  if (!request.has(MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_OBJ_HANDLE)) return EINVAL;
  const auto handle = request.handle(MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_OBJ_HANDLE);
  if (!handle) return handle.error();
  const ErrnoOr<Object*> found = context.objects.find(*handle, ObjectType::kDevx);
  if (!found) return found.error();
  std::shared_ptr<const Descriptor> eventfd;
  if (request.has(MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_FD_NUM)) {
    if (request.has(MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_COOKIE)) return EINVAL;
    const auto given = request.value<std::uint32_t>(MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_FD_NUM);
    if (!given) return given.error();
    auto kept = keep_eventfd(static_cast<int>(*given));
    if (!kept) return kept.error();
    eventfd = std::move(*kept);
  }
  std::uint64_t cookie = 0;
  if (request.has(MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_COOKIE)) {
    const auto given = request.value<std::uint64_t>(MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_COOKIE);
    if (!given) return given.error();
    cookie = *given;
  }
  const auto list = request.blob(MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_TYPE_NUM_LIST);
  if (!list) return list.error();
  std::vector<std::uint16_t> events(list->size() / sizeof(std::uint16_t));
  if (events.empty() || events.size() > kMaxEventsPerCall || list->size() % sizeof(std::uint16_t) != 0) {
    return EINVAL;
  }
  std::memcpy(events.data(), list->data(), list->size());
  const devx::Object& object = static_cast<const DevxObject&>(**found).devx;
  const auto raised = [&object](std::uint16_t event) { return devx::is_raised_here(object.kind, event); };
  if (!std::ranges::all_of(events, raised)) return EINVAL;
  if (eventfd) (*channel)->keep(eventfd);
  for (const std::uint16_t event : events) {
    if (eventfd) {
      object.events->subscribe(event, [kept = std::weak_ptr(eventfd)] {
        if (const auto open = kept.lock()) signal_eventfd(*open);
      });
      continue;
    }
    object.events->subscribe(event, [channel = *channel, cookie, event, number = object.number] {
      channel->push_device_event(cookie, event, number);
    });
  }
  return 0;
}

constexpr Method kMethods[] = {
    {MLX5_IB_OBJECT_DEVX,
     MLX5_IB_METHOD_DEVX_OTHER,
     false,
     general_command,
     {MLX5_IB_ATTR_DEVX_OTHER_CMD_IN, MLX5_IB_ATTR_DEVX_OTHER_CMD_OUT}},
    {MLX5_IB_OBJECT_DEVX,
     MLX5_IB_METHOD_DEVX_QUERY_EQN,
     false,
     query_eqn,
     {MLX5_IB_ATTR_DEVX_QUERY_EQN_USER_VEC, MLX5_IB_ATTR_DEVX_QUERY_EQN_DEV_EQN}},
    {MLX5_IB_OBJECT_DEVX,
     MLX5_IB_METHOD_DEVX_SUBSCRIBE_EVENT,
     false,
     subscribe_event,
     {MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_FD_HANDLE, MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_OBJ_HANDLE,
      MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_TYPE_NUM_LIST, MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_FD_NUM,
      MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_COOKIE}},
    {MLX5_IB_OBJECT_DEVX_OBJ,
     MLX5_IB_METHOD_DEVX_OBJ_CREATE,
     false,
     create_object,
     {MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE, MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_IN,
      MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT}},
    {MLX5_IB_OBJECT_DEVX_OBJ,
     MLX5_IB_METHOD_DEVX_OBJ_DESTROY,
     false,
     destroy_devx,
     {MLX5_IB_ATTR_DEVX_OBJ_DESTROY_HANDLE}},
    {MLX5_IB_OBJECT_DEVX_OBJ,
     MLX5_IB_METHOD_DEVX_OBJ_MODIFY,
     false,
     modify_object,
     {MLX5_IB_ATTR_DEVX_OBJ_MODIFY_HANDLE, MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_IN,
      MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_OUT}},
    {MLX5_IB_OBJECT_DEVX_OBJ,
     MLX5_IB_METHOD_DEVX_OBJ_QUERY,
     false,
     query_object,
     {MLX5_IB_ATTR_DEVX_OBJ_QUERY_HANDLE, MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_IN,
      MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_OUT}},
    {MLX5_IB_OBJECT_DEVX_UMEM,
     MLX5_IB_METHOD_DEVX_UMEM_REG,
     false,
     register_umem,
     {MLX5_IB_ATTR_DEVX_UMEM_REG_HANDLE, MLX5_IB_ATTR_DEVX_UMEM_REG_ADDR, MLX5_IB_ATTR_DEVX_UMEM_REG_LEN,
      MLX5_IB_ATTR_DEVX_UMEM_REG_ACCESS, MLX5_IB_ATTR_DEVX_UMEM_REG_OUT_ID,
      MLX5_IB_ATTR_DEVX_UMEM_REG_PGSZ_BITMAP, MLX5_IB_ATTR_DEVX_UMEM_REG_DMABUF_FD}},
    {MLX5_IB_OBJECT_DEVX_UMEM,
     MLX5_IB_METHOD_DEVX_UMEM_DEREG,
     false,
     deregister_umem,
     {MLX5_IB_ATTR_DEVX_UMEM_DEREG_HANDLE}},
    {MLX5_IB_OBJECT_DEVX_ASYNC_EVENT_FD,
     MLX5_IB_METHOD_DEVX_ASYNC_EVENT_FD_ALLOC,
     false,
     allocate_event_fd,
     {MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_HANDLE, MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_FLAGS}},
};

}  // namespace

bool owns(const Context& context, devx::Named kind, std::uint32_t number) {
  struct Types {
    ObjectType verbs;
    std::optional<devx::ObjectKind> devx;
  };
  constexpr std::array kTypes{Types{ObjectType::kPd, std::nullopt}, Types{ObjectType::kUar, std::nullopt},
                              Types{ObjectType::kCq, devx::ObjectKind::kCq},
                              Types{ObjectType::kSrq, devx::ObjectKind::kRmp}};
  const Types types = kTypes[static_cast<std::size_t>(kind)];
  bool found = false;
  context.objects.visit([&](const Object& object) {
    const bool is_kind = object.type == ObjectType::kDevx
                             ? static_cast<const DevxObject&>(object).devx.kind == types.devx
                             : object.type == types.verbs;
    found = found || (is_kind && object.number == number);
  });
  return found;
}

std::span<const Method> devx_methods() { return kMethods; }

}  // namespace gdx::softhca::uverbs
