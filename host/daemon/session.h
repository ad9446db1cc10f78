// One client of gdxd: its requests and its objects. No request can change another client's objects, and a bad
// one changes nothing.
//
//   state     requests it permits                     then
//   kNew      kHello                                  kGreeted
//   kGreeted  kOpenHca                                kOpen
//   kOpen     all but kHello and kOpenHca             kOpen
//
// A request that its state forbids, or one that is malformed, is refused; the session stays as it was.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <sys/types.h>

#include "base/descriptor.h"
#include "base/mapped_pages.h"
#include "host/bootstrap/local_socket.h"
#include "host/daemon/group.h"
#include "host/ipc/message.h"
#include "host/queue/queue_objects.h"

namespace gdx::daemon {

// An answer: bytes, and the file that goes with them, which the session keeps open; -1: none.
struct Answer {
  std::vector<std::byte> bytes;
  int file = -1;
};

struct EndpointFigures {
  std::uint32_t qpn = 0;
  std::string peer;  // empty: not connected
  std::uint32_t send_queue_blocks = 0;
  std::uint16_t announced_blocks = 0;  // doorbell record: WQEBBs announced so far, modulo 2^16
  std::uint8_t syndrome = 0;           // of the first fault that a kernel has left; 0: none
};
struct SessionFigures {
  std::string program;
  std::vector<EndpointFigures> endpoints;
  std::size_t regions = 0;
  std::uint64_t registered_bytes = 0;
};

// Answers what a client asks about gdxd as a whole. Threads: any.
class Operator {
 public:
  virtual ~Operator() = default;
  // Returns JSON of what `viewer` may see.
  [[nodiscard]] virtual std::string statistics(uid_t viewer) = 0;
  // Errors: kNotFound, kUnsupported (not for this user).
  [[nodiscard]] virtual Result<void> kick(uid_t who, pid_t process) = 0;
  [[nodiscard]] virtual Result<void> drain(uid_t who) = 0;
  [[nodiscard]] virtual bool draining() const = 0;
};

// Threads: answer() and is_open() by one thread; figures() by any.
class Session {
 public:
  // `client` is this client's part of the group's quota.
  Session(std::shared_ptr<Group> group, Quota::Share client, Operator* of_gdxd = nullptr)
      : group_(std::move(group)), client_(std::move(client)), operator_(of_gdxd) {}
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Does what a message asks for, and returns the answer. Takes the message's files.
  [[nodiscard]] Answer answer(bootstrap::LocalMessage message);
  [[nodiscard]] bool is_open() const { return state_ == State::kOpen; }
  [[nodiscard]] SessionFigures figures() const;

 private:
  enum class State : std::uint8_t { kNew, kGreeted, kOpen };
  struct Region {
    Quota::Share count;
    Quota::Share share;
    std::uint64_t bytes = 0;
    MappedPages pages;
    MrHandle mr;  // after the pages: deregistered before they are unmapped
  };
  struct ServedEndpoint {
    Quota::Share count;
    Quota::Share share;
    std::shared_ptr<GroupPool> pool;
    std::shared_ptr<GroupPool> bounce;
    QueueMemory memory;
    std::unique_ptr<QueueObjects> queue;
    bool connected = false;
    std::string peer;
    std::uint32_t blocks = 0;
  };

  using Files = std::vector<Descriptor>;
  Answer handle(const ipc::Parsed& message, Files& files);
  template <typename Request, typename Act>
  Result<Answer> with(const ipc::Parsed& message, Act act);
  Result<Answer> act_on(const ipc::Parsed& message, Files& files);
  Result<Answer> act_on_object(const ipc::Parsed& message);
  Result<Answer> act_for_operator(const ipc::Parsed& message);
  [[nodiscard]] bool permits(ipc::Kind kind) const;
  Result<Answer> greet(const ipc::Hello& hello);
  Result<Answer> open_hca(const ipc::OpenHca& request);
  Result<Answer> register_memory(const ipc::RegisterMemory& request, Files& files);
  Result<Answer> open_pool(const ipc::OpenPool& request);
  Result<Answer> create_endpoint(const ipc::CreateEndpoint& request, Files& files);
  Result<Answer> read_statistics();
  Result<Answer> connect_endpoint(const ipc::ConnectEndpoint& request);
  Result<ServedEndpoint*> endpoint(std::uint32_t number);
  Result<std::shared_ptr<GroupPool>> pool(std::uint32_t number);

  std::shared_ptr<Group> group_;
  Quota::Share client_;
  Operator* operator_;
  Descriptor text_;  // of the last answer
  State state_ = State::kNew;
  Descriptor notices_;
  Descriptor client_notices_;  // until the client has it
  mutable std::mutex mutex_;   // of the members below, which figures() reads
  std::string program_;
  // Members go in reverse order: endpoints before the pools and the HCA that they use.
  std::shared_ptr<GroupHca> hca_;
  std::uint32_t last_number_ = 0;
  std::map<std::uint32_t, std::shared_ptr<GroupPool>> pools_;
  std::map<std::uint32_t, Region> regions_;
  std::map<std::uint32_t, std::unique_ptr<ServedEndpoint>> endpoints_;
};

}  // namespace gdx::daemon
