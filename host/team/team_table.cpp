#include "host/team/team_table.h"

#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <mutex>
#include <span>
#include <utility>

#include "base/fork_mutex.h"
#include "base/page_size.h"

namespace gdx::team {

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
  return table;
}

// Keeps the pages of ended tables, the newest 4 MiB of them.
static void keep(HostPages pages) {
  constexpr std::size_t kMostBytes = 4 << 20;
  static ForkMutex mutex;
  static std::deque<HostPages> kept;
  static std::size_t bytes = 0;
  const std::lock_guard lock(mutex);
  bytes += pages.bytes();
  kept.push_back(std::move(pages));
  for (; bytes > kMostBytes; kept.pop_front()) bytes -= kept.front().bytes();
}

void Table::forget_peers() const {
  const auto records = fault_at_ / sizeof(TeamPeer);
  for (TeamPeer& peer : std::span(peers(), records)) {
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
  keep(std::move(pages_));
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
