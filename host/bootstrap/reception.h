// A rank's listening socket, and connections there that have not yet sent a hello. Ports get scanned, so any
// process may connect. A connection is dropped after other bytes, or after a while without bytes. Of too many
// connections the oldest is dropped first, because a rank sends its hello at once.
#pragma once

#include <poll.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "base/result.h"
#include "host/bootstrap/connection.h"

namespace gdx::bootstrap {

inline constexpr std::uint64_t kHelloBoundNs = 5'000'000'000;
inline constexpr std::size_t kMaxStrangers = 64;  // connections without a hello

class Reception {
 public:
  struct Arrival {
    Connection connection;
    Frame hello;
  };

  // A hello is the first frame of a connection. One of kHello comes from processes of `user` alone, as far as
  // they are on this host; other users' are dropped. After any other kind the job has begun, and the hello
  // holds a number that only its ranks have; drops are logged as information.
  explicit Reception(Descriptor listener, FrameType hello = FrameType::kHello, uid_t user = geteuid())
      : listener_(std::move(listener)), hello_(hello), user_(user) {}

  // Adds the descriptors to wait for, and returns the latest time to wait.
  void add_to(std::vector<pollfd>& set) const;
  [[nodiscard]] std::uint64_t next_deadline_ns() const;

  // Returns the connections whose hello is complete. Drops are logged. An error of the listener waits until
  // there are none.
  // Errors: kNoMemory (no descriptors left), kSystem.
  [[nodiscard]] Result<std::vector<Arrival>> receive();

  // Counts a connection that its reader refuses, and logs the first of them.
  void drop(const Connection& connection, const std::string& why);

  // Describes the connections that came, for a message about a missing rank; empty without any.
  [[nodiscard]] std::string seen() const;

 private:
  struct Stranger {
    Connection connection;
    std::uint64_t deadline_ns = 0;
  };

  // Reads a connection; true while its hello is incomplete. Otherwise it was dropped or moved to `arrivals`.
  [[nodiscard]] bool receive_hello(Connection& connection, std::vector<Arrival>& arrivals);
  [[nodiscard]] Result<void> accept_all(std::vector<Arrival>& arrivals);
  void drop_oldest(const std::string& why);

  Descriptor listener_;
  FrameType hello_;
  uid_t user_;
  std::deque<Stranger> strangers_;  // oldest first
  std::size_t dropped_ = 0;
  std::string last_dropped_;
};

}  // namespace gdx::bootstrap
