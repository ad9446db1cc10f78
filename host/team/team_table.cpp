#include "host/team/team_table.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <mutex>
#include <span>
#include <utility>

#include "base/fork_mutex.h"
#include "base/page_size.h"

namespace gdx::team {
namespace {

// The records of all tables of this process.
struct AllRecords {
  // Keeps the pages of an ended table, the newest 4 MiB of them.
  void end(const TeamHandle* copy, HostPages pages) {
    constexpr std::size_t kMostBytes = 4 << 20;
    const std::lock_guard lock(mutex);
    std::erase_if(live, [&](const TableRecords& each) { return each.copy == copy; });
    bytes += pages.bytes();
    kept.push_back(std::move(pages));
    for (; bytes > kMostBytes; kept.pop_front()) bytes -= kept.front().bytes();
  }

  ForkMutex mutex;
  std::vector<TableRecords> live;
  std::deque<HostPages> kept;
  std::size_t bytes = 0;
};

AllRecords& all_records() {
  static auto* const all = new AllRecords;
  return *all;
}

// A child by fork has copies of the parent's queues, which no HCA reads: what is posted there is lost. The
// launch of a kernel sees the handle without progress.
[[maybe_unused]] const int watches_forks = pthread_atfork(nullptr, nullptr, [] {
  if (!ForkMutex::fork_had_all()) return;
  for (const TableRecords& each : all_records().live) {
    each.forget_peers();
    each.copy->window_count = 0;
    each.copy->progress = nullptr;
  }
});

}  // namespace

Result<HostPages> HostPages::allocate(std::size_t bytes, const Gpu* gpu) {
  const std::size_t whole = (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
  HostPages made;
  made.pages_.reset(static_cast<std::byte*>(std::aligned_alloc(page_bytes(), whole)));
  if (!made.pages_)
    return fail(Status::kNoMemory,
                fmt::format("no memory for {} bytes of a team's records: use fewer lanes", whole));
  made.bytes_ = whole;
  std::memset(made.pages_.get(), 0, whole);
  if (gpu != nullptr) made.mapping_ = GDX_TRY(gpu->map(made.pages_.get(), whole));
  return made;
}

Result<Table> Table::create(std::vector<std::uint32_t> members, std::uint32_t lanes, const Gpu* gpu) {
  Table table;
  table.fault_at_ = members.size() * lanes * sizeof(TeamPeer);
  table.members_ = std::move(members);
  table.pages_ = GDX_TRY(HostPages::allocate(table.fault_at_ + sizeof(TeamFault) + sizeof(TeamHandle), gpu));
  AllRecords& all = all_records();
  const std::lock_guard lock(all.mutex);
  all.live.push_back(table.records());
  return table;
}

void TableRecords::forget_peers() const {
  for (TeamPeer& peer : peers) {
    set_way(peer, PeerWay::kGone);
    peer.state = nullptr;
    peer.commands = nullptr;
  }
}

// Without windows every range is refused, and without a queue nothing is there to flush.
Table::~Table() {
  if (pages_.data() == nullptr) return;
  pages_.unmap();
  forget_peers();
  copy()->window_count = 0;
  all_records().end(copy(), std::move(pages_));
}

std::string name_of(const Table& table, std::uint32_t index) {
  if (index >= table.size() || table.members()[index] == index) return fmt::format("rank {}", index);
  return fmt::format("rank {} (rank {} of the first team)", index, table.members()[index]);
}

static std::atomic_ref<std::uint64_t> first_word_of(TeamPeer& peer) {
  return std::atomic_ref<std::uint64_t>(reinterpret_cast<std::uint64_t&>(peer));
}

void set_way(TeamPeer& peer, PeerWay way) {
  first_word_of(peer).store(peer.first_word(way), std::memory_order_release);
}
PeerWay way_of(TeamPeer& peer) {
  return static_cast<PeerWay>(first_word_of(peer).load(std::memory_order_acquire) & 0xffffffff);
}

}  // namespace gdx::team
