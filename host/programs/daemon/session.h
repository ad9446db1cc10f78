// One client of gdxd: its requests and its objects. No request of objects reaches another client's, and a bad
// one changes nothing. kKick and kDrain end connections, as far as the user's rights go.
//
//   state     requests it permits                     then
//   kNew      kHello                                  kGreeted
//   kGreeted  kOpenHca                                kOpen
//             kReadStatistics, kReadFlight,
//             kKick, kDrain                           kGreeted
//   kOpen     all but kHello, kOpenHca and kNotice    kOpen
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

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/flight_recorder.h"
#include "base/mapped_pages.h"
#include "host/bootstrap/local_socket.h"
#include "host/ipc/message.h"
#include "host/programs/daemon/group.h"
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
  std::uint32_t posted_blocks = 0;     // rung to the HCA so far, modulo 2^32, like the next
  std::uint32_t completed_blocks = 0;  // known by the client to be complete
  std::uint64_t stalls = 0;            // pushes that waited for a slot
  std::uint8_t syndrome = 0;           // syndrome of the first fault that a kernel has left; 0: none
};
struct EndpointFlight {
  std::uint32_t qpn = 0;
  std::string peer;
  Result<FlightRecord> record;
};
struct SessionFlights {
  std::string program;
  std::string hca;
  std::vector<EndpointFlight> endpoints;
  std::size_t left_out = 0;  // endpoints of the choice that are not among them
};
struct SessionFigures {
  std::string program;
  std::string hca;  // empty: not open yet
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
  // Returns JSON of the newest events of endpoints that `viewer` may see; a process or QPN of 0 is all.
  [[nodiscard]] virtual std::string flights(uid_t viewer, pid_t process, std::uint32_t qpn) = 0;
  // Errors: kNotFound, kUnsupported (not for this user).
  [[nodiscard]] virtual Result<void> kick(uid_t who, pid_t process) = 0;
  [[nodiscard]] virtual Result<void> drain(uid_t who) = 0;
  [[nodiscard]] virtual bool draining() const = 0;
  // Returns whether `viewer` may read the counters of `hca`. Those of a software HCA count what others'
  // packets do, from which a forger would learn how near a guess came. So users read them while no other user
  // has that HCA open.
  [[nodiscard]] virtual bool may_see_counters(uid_t viewer, const Hca& hca) = 0;
};

// Threads: answer(), is_open() and leave_seat() by one thread; figures(), flights() and tell() by any.
class Session {
 public:
  // `client` is this client's part of the group's quota.
  Session(std::shared_ptr<Group> group, Quota::Share client, Operator* of_gdxd = nullptr)
      : group_(std::move(group)),
        client_(std::move(client)),
        operator_(of_gdxd),
        tenant_(++group_->last_tenant) {}
  // Refuses each HCA that the client wants to open, with this reason.
  void keep_from_hcas(Error why) { no_hca_ = std::move(why); }
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // The client's part of the group's quota.
  struct Seat {
    std::shared_ptr<Group> group;
    Quota::Share share;
  };
  // Returns the client's part, which then lasts longer than the session.
  [[nodiscard]] Seat leave_seat() { return {group_, std::move(client_)}; }

  // Does what a message asks for, and returns the answer. Takes the message's files.
  [[nodiscard]] Answer answer(bootstrap::LocalMessage message);
  [[nodiscard]] bool may_open() const { return !no_hca_; }
  [[nodiscard]] bool is_open() const { return state_ == State::kOpen; }
  [[nodiscard]] SessionFigures figures() const;
  // Tells the client, if it has that HCA open or `hca` is null, which is returned.
  bool tell(const GroupHca* hca, const ipc::Notice& notice);
  // Takes one of the group's turns to ask. Returns the time until it comes. A client's kWake needs none once
  // in kWakeEveryNs. `message`: null for what is none.
  [[nodiscard]] std::uint64_t take_turn(const bootstrap::LocalMessage* message);
  // Returns the newest events of the endpoint `qpn`, or of all for 0; of `most` at most. The client's
  // removals of endpoints wait for it, and nothing else.
  [[nodiscard]] SessionFlights flights(std::uint32_t qpn, std::size_t most) const;

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
    Sharing sharing = Sharing::kExclusive;
    std::shared_ptr<void> listed;  // ends before the queue pair, whose number another group may get next

    [[nodiscard]] std::uint8_t syndrome() const;
    void log_fault(const std::string& program, Rate& warnings) const noexcept;
  };

  using Files = std::vector<Descriptor>;
  [[nodiscard]] bool may_wake(std::uint64_t now_ns) const;
  void wake();
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
  Result<Answer> text_answer(ipc::Kind kind, const std::string& text);
  Result<Answer> read_flight(const ipc::ReadFlight& request);
  Result<Answer> connect_endpoint(const ipc::ConnectEndpoint& request);
  Result<ServedEndpoint*> endpoint(std::uint32_t number);
  Result<std::shared_ptr<GroupPool>> pool(std::uint32_t number);
  static EndpointFigures figures_of(const ServedEndpoint& served);

  std::shared_ptr<Group> group_;
  Quota::Share client_;
  Operator* operator_;
  std::optional<Error> no_hca_;
  std::uint32_t tenant_;
  Descriptor text_;  // text of the last answer
  State state_ = State::kNew;
  std::uint64_t woken_ns_ = 0;
  Descriptor notices_;          // refuses what is sent there: in a queue that nobody drains, a client's own
                                // connection would outlive its process
  Descriptor client_notices_;   // end for the client, kept until the client has it
  mutable std::mutex removal_;  // guards the removal of endpoints; locked before mutex_
  mutable std::mutex mutex_;    // guards the members below, which figures() reads
  std::string program_;
  // Members go in reverse order: endpoints before the pools and the HCA that they use.
  std::shared_ptr<GroupHca> hca_;
  std::uint32_t last_number_ = 0;
  std::map<std::uint32_t, std::shared_ptr<GroupPool>> pools_;
  std::map<std::uint32_t, Region> regions_;
  std::map<std::uint32_t, std::unique_ptr<ServedEndpoint>> endpoints_;
};

}  // namespace gdx::daemon
