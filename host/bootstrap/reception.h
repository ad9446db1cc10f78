// A rank's listening socket, and connections there that have not yet sent a hello. Ports get scanned, so any
// process may connect. A connection is dropped after other bytes, or after a while without bytes. Of too many
// connections the oldest is dropped first, because a rank sends its hello at once. With a secret a hello
// takes a round trip, for which a rank keeps its place once its first message has shown the secret.
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
// Beyond those, connections that are likely to be ranks': in the midst of their handshake, or at a local
// socket, where all are this user's.
inline constexpr std::size_t kMaxLikely = kMaxRanks;

class Reception {
 public:
  struct Arrival {
    Connection connection;
    Frame hello;
  };

  // Answers as the rank at `place`, whose first frame the others send. Ranks are those who have the secret.
  // Without one they are processes of `user`, as far as they are on this host; other users' are dropped.
  // After another frame than kHello the job has begun, so drops are logged as information.
  explicit Reception(Descriptor listener, const ChannelPlace& place = {}, Secret::Ptr secret = nullptr,
                     uid_t user = geteuid())
      : listener_(std::move(listener)),
        place_(place),
        secret_(std::move(secret)),
        user_(user),
        local_(is_local(own_text(listener_))) {}

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
  // Accepts a connection, and drops one of another user's process. Errors: those of accept_one.
  [[nodiscard]] Result<Connection> accept_connection();
  void drop_oldest(const std::string& why);
  void drop_at(const std::deque<Stranger>::iterator& stranger, const std::string& why);
  // Makes room for one more.
  void limit_strangers();

  Descriptor listener_;
  ChannelPlace place_;
  Secret::Ptr secret_;
  uid_t user_;
  bool local_;                      // at a local socket, which tells the user at once
  std::deque<Stranger> strangers_;  // oldest first
  std::size_t dropped_ = 0;
  std::string last_dropped_;
};

}  // namespace gdx::bootstrap
