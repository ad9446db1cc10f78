// Rank 0's listening socket and those who connect there, until each has sent its hello. Ports get scanned,
// and anybody may connect: who sends something else is dropped, who sends nothing is dropped after a while,
// and of too many the oldest goes first, since a rank sends its hello at once.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "base/result.h"
#include "host/bootstrap/connection.h"

namespace gdx::bootstrap {

inline constexpr std::uint64_t kHelloBoundNs = 3'000'000'000;
inline constexpr std::size_t kMaxStrangers = 64;  // connections without a hello

class Reception {
 public:
  struct Arrival {
    Connection connection;
    Frame hello;
  };

  explicit Reception(Descriptor listener) : listener_(std::move(listener)) {}

  // What to wait for, and until when at most.
  void add_to(std::vector<pollfd>& set) const;
  [[nodiscard]] std::uint64_t next_deadline_ns() const;

  // Those whose hello is whole now. Whoever is dropped goes to the log.
  // Errors: kVersionMismatch, kNoMemory (no descriptors left), kSystem.
  [[nodiscard]] Result<std::vector<Arrival>> receive();

  // For a message of who never came: who came instead. Nothing where nobody did.
  [[nodiscard]] std::string seen() const;

 private:
  struct Stranger {
    Connection connection;
    std::uint64_t deadline_ns = 0;
  };

  // Whether it is still a stranger; otherwise it has been dropped or is among `arrivals`.
  [[nodiscard]] Result<bool> hear(Connection& connection, std::vector<Arrival>& arrivals);
  [[nodiscard]] Result<void> accept_all(std::vector<Arrival>& arrivals);
  void drop(const Connection& connection, const std::string& why);
  void drop_oldest(const std::string& why);

  Descriptor listener_;
  std::deque<Stranger> strangers_;  // oldest first
  std::size_t dropped_ = 0;
  std::string last_dropped_;
};

}  // namespace gdx::bootstrap
