// A rank's place where members of a group of its team meet, if this rank is the group's first. The others
// connect there, so that ranks which are no members need not take part. Any number of groups may be made at
// once, by threads of a rank, too.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "host/bootstrap/connection.h"
#include "host/bootstrap/frame.h"
#include "host/bootstrap/reception.h"
#include "host/bootstrap/world.h"

namespace gdx::bootstrap {

// Place at which the other ranks find a rank. Trivially copyable, because ranks exchange it as bytes.
struct GroupAddress {
  std::uint64_t token = 0;         // random; rank 0's names the team
  std::array<char, 64> address{};  // numeric HOST:PORT or unix:NAME, ended by 0; empty: in a team of one
};

// Threads: any may call meet().
class GroupPlace {
 public:
  // Listens as a rank of `world`, by whose secret or local sockets members recognise each other. Errors:
  // those of listen_on; kSystem.
  [[nodiscard]] static Result<std::unique_ptr<GroupPlace>> listen(const World& world);

  [[nodiscard]] const GroupAddress& address() const { return own_; }
  // Takes the addresses of all ranks, by rank. The first meet() needs them.
  void start(std::span<const GroupAddress> all);

  // Returns the world of `ranks`, numbered in their order, once all have called it. This rank is among them,
  // and each is there once. Errors: kInvalidArgument where a member that came gave another list under the
  // same key; kTimeout naming who is missing, as far as this rank can tell; kPeerGone.
  [[nodiscard]] Result<World> meet(const GroupKey& key, const std::vector<std::uint32_t>& ranks,
                                   std::uint64_t timeout_ns);

 private:
  struct Guest {
    Connection connection;
    GroupHello hello;
  };
  struct Gathering;

  GroupPlace(std::uint32_t rank, Secret::Ptr secret) : rank_(rank), secret_(std::move(secret)) {}
  [[nodiscard]] Result<std::vector<Connection>> gather(const GroupHello& mine, std::uint64_t timeout_ns);
  // Takes the group's guests. Needs mutex_.
  [[nodiscard]] Result<void> receive();
  [[nodiscard]] Result<void> admit(Gathering& group);
  [[nodiscard]] Result<std::vector<Connection>> join(const GroupHello& mine, std::uint64_t timeout_ns) const;

  std::uint32_t rank_;
  Secret::Ptr secret_;
  Descriptor listener_;  // listens until start() takes it over
  GroupAddress own_;
  std::vector<GroupAddress> all_;

  std::mutex mutex_;
  std::optional<Reception> reception_;  // guarded by mutex_
  std::vector<Guest> guests_;           // guarded by mutex_: whose group no thread here has made yet
};

}  // namespace gdx::bootstrap
