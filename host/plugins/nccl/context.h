// Context of NCCL's init: the devices, and connections that are under way.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/result.h"
#include "host/messaging/meeting.h"
#include "host/plugins/nccl/abi.h"
#include "host/plugins/nccl/communicator.h"
#include "host/plugins/nccl/device.h"
#include "host/plugins/nccl/group.h"

namespace gdx::nccl {

// End that accepts, of one device.
struct Listener {
  std::unique_ptr<messaging::Host> host;
};

// End at which the ranks of a group meet, if it is that of rank 0.
struct GroupListener {
  std::shared_ptr<messaging::Keeper> keeper;
  messaging::Door door;
  messaging::Inviting inviting;
};

// Handle as NCCL carries it. The words behind the invitation are the connecting side's own.
struct Handle {
  messaging::Invitation invitation;
  std::uint64_t guest;  // 0: none under way
  std::uint64_t reserved;
};
static_assert(sizeof(Handle) == kHandleBytes);

// Threads: any.
class Context {
 public:
  Context();
  // Errors: kInvalidArgument for a device that is not there; those of Host::open.
  [[nodiscard]] Result<std::unique_ptr<Listener>> listen(int device, Handle& handle);
  // Errors: kInvalidArgument for a device that is not there; those of invite.
  [[nodiscard]] Result<std::unique_ptr<GroupListener>> listen_for_group(int device, Handle& handle);
  // Returns null while it is under way; NCCL then calls again with the same handle. Errors: those of Guest.
  [[nodiscard]] Result<std::unique_ptr<Communicator>> connect(int device, Handle& handle);

 private:
  std::shared_ptr<messaging::Keeper> keeper_;
  std::mutex mutex_;
  std::map<std::uint64_t, std::unique_ptr<messaging::Guest>> guests_;
  std::uint64_t next_guest_ = 1;
};

// Returns the devices, found at the first call that finds any. Errors: those of find_devices. Threads: any.
[[nodiscard]] Result<const std::vector<Device>*> devices();
// Errors: those of devices(); kInvalidArgument for a number that none has.
[[nodiscard]] Result<const Device*> device_at(int number);

// Makes a context and ends it, by a handle that no other has had: NCCL may end one twice, and an address
// would be another's by then. Ending one that has ended does nothing. Errors: kInvalidArgument for no
// context. Threads: any.
[[nodiscard]] void* begin_context();
[[nodiscard]] Result<std::shared_ptr<Context>> context_of(void* handle);
void end_context(void* handle);

}  // namespace gdx::nccl
