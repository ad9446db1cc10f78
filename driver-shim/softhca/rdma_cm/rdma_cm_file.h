// One open of /dev/infiniband/rdma_cm: a descriptor that is readable while events wait, and the events.
#pragma once

#include <rdma/rdma_user_cm.h>

#include <cstdint>
#include <deque>
#include <memory>

#include "base/descriptor.h"
#include "base/file_identity.h"
#include "driver-shim/softhca/rdma_cm/rdma_cm_address.h"

namespace gdx::softhca::uverbs {

struct CmId;
class CmPort;

enum class ProgramEvent : std::uint32_t {  // enum rdma_cm_event_type of librdmacm
  kAddressResolved = 0,
  kAddressError = 1,
  kRouteResolved = 2,
  kConnectRequest = 4,
  kConnectResponse = 5,
  kUnreachable = 7,
  kRejected = 8,
  kEstablished = 9,
  kDisconnected = 10,
  kTimeWaitExit = 15,
};

struct CmEvent {
  std::uint32_t id = 0;  // its id; of a request: the listener
  rdma_ucm_event_resp record{};
  // Connection of a request; it becomes an id when the program reads the event.
  CmPort* port = nullptr;
  std::uint32_t connection = 0;
  CmAddress source;
  CmAddress destination;
};

// Threads: the caller serialises.
class CmFile {
 public:
  // `flags` of open(2): O_CLOEXEC and O_NONBLOCK count. Errors: the errno of socketpair(2).
  static ErrnoOr<std::shared_ptr<CmFile>> open(int flags);
  CmFile(const CmFile&) = delete;
  CmFile& operator=(const CmFile&) = delete;

  // The program's end. It belongs to the program, who closes it.
  [[nodiscard]] int user_fd() const { return user_fd_; }
  [[nodiscard]] std::deque<CmEvent>& events() { return events_; }
  // To be called after a change of events(): the descriptor is readable while there are any.
  void signal();

 private:
  CmFile(int user_fd, Descriptor own)
      : user_fd_(user_fd), own_(std::move(own)), user_identity_(identity_of(user_fd)) {}

  const int user_fd_;
  const Descriptor own_;
  const FileIdentity user_identity_;
  bool signalled_ = false;
  std::deque<CmEvent> events_;
};

// Waits as a read of the descriptor would: for ever or not at all by its flags, ended by signals and by the
// thread's cancellation. Holds no lock. Errors: EAGAIN, EINTR.
[[nodiscard]] Errno wait_for_event(int user_fd);

}  // namespace gdx::softhca::uverbs
