// Records of a team's ranks for kernels, in host memory that a GPU can reach.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "host/gpu/gpu.h"
#include "proto/gpu/team.h"

namespace gdx::team {

// Whole pages of zeroed host memory, mapped to a GPU if there is one.
class HostPages {
 public:
  // Errors: kNoMemory; those of Gpu::map.
  [[nodiscard]] static Result<HostPages> allocate(std::size_t bytes, const Gpu* gpu);

  [[nodiscard]] std::byte* data() const { return pages_.get(); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  // Ends a GPU's access to them.
  void unmap() { mapping_.reset(); }

 private:
  struct Free {
    void operator()(std::byte* pages) const { std::free(pages); }
  };
  std::unique_ptr<std::byte, Free> pages_;
  std::size_t bytes_ = 0;
  std::shared_ptr<GpuMapping> mapping_;  // ends before the pages do
};

// The parts of a table that its end, or a fork, takes from kernels.
struct TableRecords {
  std::span<TeamPeer> peers;
  TeamHandle* copy;

  // Makes all ranks unreachable, and their queues and rings unknown.
  void forget_peers() const;
};

// Threads: one at a time, beside kernels. The newest records stay after their end, so that kernels of the CPU
// layer that are given the handle of a closed team are refused: with kInvalidArgument, or kOk for a flush. A
// child by fork has the records of its parent's teams in that state.
class Table {
 public:
  // Makes records for `members`, ranks of the world, on each of `lanes`. Errors: those of HostPages.
  [[nodiscard]] static Result<Table> create(std::vector<std::uint32_t> members, std::uint32_t lanes,
                                            const Gpu* gpu);

  Table(Table&&) noexcept = default;
  Table& operator=(Table&&) = delete;
  ~Table();

  [[nodiscard]] const std::vector<std::uint32_t>& members() const { return members_; }
  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(members_.size()); }
  [[nodiscard]] TeamPeer* peers() const { return reinterpret_cast<TeamPeer*>(pages_.data()); }
  [[nodiscard]] TeamPeer& peer(std::uint32_t lane, std::uint32_t index) const {
    return peers()[std::size_t{lane} * size() + index];
  }
  [[nodiscard]] TeamFault* fault() const { return reinterpret_cast<TeamFault*>(pages_.data() + fault_at_); }
  // Makes all ranks unreachable, and their queues and rings unknown.
  void forget_peers() const { records().forget_peers(); }
  // Returns the handle in memory, which kernels' code out of line reads.
  [[nodiscard]] TeamHandle* copy() const { return reinterpret_cast<TeamHandle*>(fault() + 1); }

 private:
  Table() = default;
  [[nodiscard]] TableRecords records() const {
    return {std::span(peers(), fault_at_ / sizeof(TeamPeer)), copy()};
  }

  std::vector<std::uint32_t> members_;
  std::size_t fault_at_ = 0;
  HostPages pages_;
};

// "rank 2"; with the number in the world where that differs: "rank 2 (rank 5 of the first team)".
[[nodiscard]] std::string name_of(const Table& table, std::uint32_t index);

// Sets the way as the last part of a record.
void set_way(TeamPeer& peer, PeerWay way);
[[nodiscard]] PeerWay way_of(TeamPeer& peer);

}  // namespace gdx::team
