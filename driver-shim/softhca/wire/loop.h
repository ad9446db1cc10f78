// Packets of a wire to its own address, which wait in memory as they would in the socket. Pure.
#pragma once

#include <cstddef>
#include <deque>
#include <span>
#include <vector>

namespace gdx::softhca::wire {

// Consecutive datagrams, equal in size except that the last may be shorter.
struct LoopedRun {
  std::vector<std::byte> bytes;
  std::size_t segment_bytes = 0;
  bool marked = false;
  bool bare = false;  // unset bytes take the place of each ICRC
};

class Loop {
 public:
  // Charge of a packet beyond its bytes, for the records of a run that it may be alone in.
  static constexpr std::size_t kPacketBytes = 1024;

  explicit Loop(std::size_t bound_bytes) : bound_bytes_(bound_bytes) {}

  [[nodiscard]] bool empty() const { return runs_.empty(); }
  // Appends a run with a copy of `bytes`. False: there is no room for it.
  [[nodiscard]] bool push(std::span<const std::byte> bytes, const LoopedRun& like);
  // Removes the oldest run and returns it, valid until the next call. Precondition: not empty.
  [[nodiscard]] LoopedRun& take();

 private:
  [[nodiscard]] static std::size_t charge_bytes(std::size_t length_bytes, std::size_t segment_bytes);

  std::size_t bound_bytes_;
  std::size_t charged_bytes_ = 0;
  std::deque<LoopedRun> runs_;
  LoopedRun taken_;
  std::vector<std::vector<std::byte>>
      spare_;  // memory of long runs, because fresh pages cost more than a copy
};

}  // namespace gdx::softhca::wire
