// Teams: set-up, heap, windows, refusals, atomics, GPUs.
#include "tests/e2e/team_of_ranks.h"

namespace gdx {
namespace team_test {

// First of all, because it takes all of the HCA's memory until it ends.
TEST(TeamByDefault, one_call_sets_up_everything) {
  Team team = must(Team::create({.heap_bytes = kHeapBytes, .timeout_ns = kPatienceNs}));
  EXPECT_LT(team.rank(), team.size());
  EXPECT_EQ(team.heap().size(), kHeapBytes);
  EXPECT_EQ(team.describe_fault(), "ok");
  const std::uint64_t all_free = team.bytes_free();
  auto* const x = must(team.allocate<float>(1000));
  EXPECT_EQ(reinterpret_cast<std::byte*>(x), team.heap().data());
  EXPECT_TRUE(std::all_of(x, x + 1000, [](float f) { return f == 0; }));
  EXPECT_EQ(team.bytes_free(), all_free - 4096);
  std::fill_n(x, 1000, 1.0f);

  const TeamHandle handle = team.handle();
  EXPECT_EQ(handle.layout, team_layout(Placement::kHost));
  EXPECT_EQ(handle.rank, team.rank());
  EXPECT_EQ(handle.size, team.size());
  EXPECT_EQ(handle.lanes, 1u);
  EXPECT_EQ(handle.window_count, 1u);
  EXPECT_EQ(handle.most_bytes, kHeapBytes);
  EXPECT_EQ(handle.windows[0].address, handle.area);
  EXPECT_EQ(handle.windows[0].address + handle.windows[0].bytes, team.heap().data() + kHeapBytes);
  EXPECT_EQ(*handle.abort, 0u);
  for (std::uint32_t rank = 0; rank < handle.size; ++rank) {
    EXPECT_EQ(std::atomic_ref(*handle.peers[rank].asked).load(), 0u);
    EXPECT_EQ(team.endpoint(0, rank).layout_version, 0u) << "no kernel has asked";
    EXPECT_EQ(team.way(rank), PeerWay::kMapped);
  }
  EXPECT_EQ(team.connections(), 0u);
  ASSERT_TRUE(team.barrier()) << "no rank connects before all have counted";
  ASSERT_TRUE(team.connect(0));
  EXPECT_EQ(team.way(0), PeerWay::kDirect);
  EXPECT_EQ(handle.peers[0].endpoint.sharing, Sharing::kShared);
  EXPECT_EQ(handle.peers[0].endpoint.qpn, team.endpoint(0, 0).qpn);
  EXPECT_EQ(team.endpoint(1, 0).layout_version, 0u);
  EXPECT_EQ(team.endpoint(0, team.size()).layout_version, 0u);

  ASSERT_TRUE(team.free(x));
  EXPECT_EQ(team.bytes_free(), all_free);
  auto* const again = must(team.allocate<float>(1000));
  EXPECT_EQ(again, x);
  EXPECT_TRUE(std::all_of(again, again + 1000, [](float f) { return f == 0; })) << "zeroed anew";
  const auto closed = team.close();
  EXPECT_TRUE(closed) << closed.error().message;
  EXPECT_TRUE(team.close());
  EXPECT_EQ(team.handle().peers, nullptr);
  EXPECT_EQ(team.allocate<int>(1).error().status, Status::kInvalidArgument);
  EXPECT_EQ(team.describe_fault(), "the team is closed");
}

TEST_F(TeamOfRanks, allocations_have_the_same_offset_everywhere) {
  Team team = made();
  for (int i = 1; i < 20; ++i) {
    const auto* const piece = static_cast<std::byte*>(must(team.allocate_bytes(i * 100u, 1u << i % 12)));
    const std::uint64_t offset = piece - team.heap().data();
    for (const std::uint64_t other : must(world().allgather_value(offset, kPatienceNs)))
      EXPECT_EQ(other, offset);
  }
}

TEST_F(TeamOfRanks, ranks_of_a_node_are_direct_and_atomics_are_the_processors) {
  Team team = made({.direct = DirectChoice::kOn});
  EXPECT_EQ(team.atomics(), TeamAtomics::kProcessor);
  const TeamHandle handle = team.handle();
  EXPECT_EQ(handle.atomics, TeamAtomics::kProcessor);
  auto* const ranks = must(team.allocate<std::uint64_t>(team.size()));
  const std::uint64_t offset = reinterpret_cast<std::byte*>(ranks) - handle.windows[0].address;
  for (std::uint32_t rank = 0; rank < team.size(); ++rank) {
    EXPECT_EQ(team.way(rank), PeerWay::kMapped);
    std::byte* const mapped = handle.peers[rank].windows[0].mapped;
    ASSERT_NE(mapped, nullptr);
    reinterpret_cast<std::uint64_t*>(mapped + offset)[team.rank()] = 100 + team.rank();
  }
  EXPECT_EQ(handle.peers[team.rank()].windows[0].mapped, handle.area);
  ASSERT_TRUE(team.barrier());
  for (std::uint32_t rank = 0; rank < team.size(); ++rank) EXPECT_EQ(ranks[rank], 100 + rank);
}

TEST_F(TeamOfRanks, one_rank_that_is_not_direct_moves_all_atomics_to_the_nic) {
  const bool off = world().rank() == 0;
  Team team = made({.direct = off ? DirectChoice::kOff : DirectChoice::kAuto});
  EXPECT_EQ(team.atomics(), TeamAtomics::kNic);
  for (std::uint32_t rank = 0; rank < team.size(); ++rank) {
    const bool direct = !off && rank != 0;
    EXPECT_EQ(team.way(rank), direct ? PeerWay::kMapped : PeerWay::kNone);
    EXPECT_EQ(team.handle().peers[rank].windows[0].mapped != nullptr, direct);
  }
  EXPECT_EQ(team.way(team.size()), PeerWay::kNone);
}

// One thread for each rank and lane puts its value into that rank's word for it.
TEST_F(TeamOfRanks, every_endpoint_reaches_its_rank_and_this_one) {
  Team team = connected({.lanes = 2, .direct = DirectChoice::kOff});
  const std::uint32_t size = team.size();
  EXPECT_EQ(team.connections(), 2 * size);
  auto* const words = must(team.allocate<std::uint64_t>(2 * size));
  const std::uint64_t offset = reinterpret_cast<std::byte*>(words) - team.handle().windows[0].address;
  std::vector<Status> ends(2 * size);
  const auto kernel = [&](const TeamHandle& handle) {
    const TeamPeer& peer = handle.peers[threadIdx.x];
    const std::uint64_t at = offset + 8 * (threadIdx.x / handle.size * handle.size + handle.rank);
    device::SharedEndpoint<> endpoint(peer.endpoint);
    const RemoteMemory target{peer.windows[0].address, kHeapBytes, peer.windows[0].rkey, 0};
    Status status = gdx_put_value(endpoint, target + at, std::uint64_t{handle.rank} + 100);
    if (status == Status::kOk) status = gdx_flush(endpoint);
    ends[threadIdx.x] = status;
  };
  const exec::LaunchConfig config{.grid = {1}, .block = {2 * size}, .progress = progress};
  ASSERT_EQ(exec::launch(config, kernel, team.handle()), Status::kOk);
  for (const Status end : ends) EXPECT_EQ(end, Status::kOk) << team.describe_fault();
  ASSERT_TRUE(team.barrier());
  for (std::uint32_t i = 0; i < 2 * size; ++i) EXPECT_EQ(arrived(words[i]), 100 + i % size);
  EXPECT_EQ(team.describe_fault(), "ok");
}

// A put with a wrong key to the next rank. Of two such puts on one pair of queues, one may be flushed.
TEST_F(TeamOfRanks, fault_is_described_with_the_rank) {
  if (world().size() < 3) GTEST_SKIP() << "needs three ranks";
  Team team = connected({.direct = DirectChoice::kOff});
  const std::uint32_t next = (team.rank() + 1) % team.size();
  const auto kernel = [&](const TeamHandle& handle) {
    const TeamPeer& peer = handle.peers[next];
    device::SharedEndpoint<> endpoint(peer.endpoint);
    const RemoteMemory target{peer.windows[0].address, 8, Be32{}, 0};
    static_cast<void>(gdx_put_value(endpoint, target, std::uint64_t{1}));
    static_cast<void>(gdx_flush(endpoint));  // the endpoint's description tells how it ended
    handle.fault->status = Status::kRemoteAccess;
    handle.fault->rank = next;
    handle.fault->address = reinterpret_cast<std::uintptr_t>(team.heap().data() + 128);
    handle.fault->bytes = 8;
  };
  const exec::LaunchConfig config{.grid = {1}, .block = {1}, .progress = progress};
  ASSERT_EQ(exec::launch(config, kernel, team.handle()), Status::kOk);
  const std::string rank = "rank " + std::to_string(next);
  EXPECT_THAT(team.describe_fault(), AllOf(HasSubstr(rank + ", 8 bytes at heap offset 0x80"),
                                           HasSubstr("endpoint towards " + rank + ", lane 0: remote access"),
                                           HasSubstr("RDMA WRITE")));
  const auto text_of = [&](Status status, std::uint32_t of, std::uint64_t address, std::uint64_t bytes,
                           std::uint32_t waited = 0) {
    *team.handle().fault = {status, of, address, bytes, 0, waited};
    return team.describe_fault();
  };
  const auto heap = reinterpret_cast<std::uintptr_t>(team.heap().data());
  EXPECT_THAT(text_of(Status::kTimeout, kAnyTeamRank, 0, 0),
              HasSubstr("timed out: any rank, after 200.000 s; endpoint"));
  EXPECT_THAT(text_of(Status::kTimeout, next, heap + 8, 8, 1),
              HasSubstr("the word at heap offset 0x8 to be == 8, now 0; endpoint"));
  EXPECT_THAT(text_of(Status::kTimeout, next, heap + 3, 8),
              HasSubstr("8 bytes at heap offset 0x3, after 200.000 s; endpoint"));
  EXPECT_THAT(text_of(Status::kRemoteInvalid, next, heap + 4, 8), HasSubstr("0x4: not 8-byte aligned;"));
  EXPECT_THAT(text_of(Status::kInvalidLength, next, heap, 1ull << 31), HasSubstr("1 to 1073741824 bytes;"));
  constexpr Status kBad = Status::kInvalidArgument;
  EXPECT_THAT(text_of(kBad, 77, heap, 8), HasSubstr("rank 77, 8 bytes at heap offset 0x0: the team has"));
  EXPECT_THAT(text_of(kBad, next, heap + 8, kHeapBytes), HasSubstr("ends 8 bytes beyond that memory;"));
  EXPECT_THAT(text_of(kBad, next, heap + 8, 8), HasSubstr("0x8: the lane does not exist, or"));
  EXPECT_THAT(text_of(kBad, kAnyTeamRank, 4096, 8), HasSubstr("any rank, 8 bytes at 0x1000: neither of"));
  EXPECT_THAT(text_of(kBad, next, 4096, 8), HasSubstr("0x1000: neither of the heap nor of a window;"));
}

TEST_F(TeamOfRanks, options_that_differ_or_are_impossible_are_refused_everywhere) {
  if (world().size() < 2) GTEST_SKIP() << "needs two ranks";
  const bool differs = world().rank() == last();
  const std::string named = "rank " + std::to_string(last());
  const auto heaps = create({.heap_bytes = differs ? 2 * kHeapBytes : kHeapBytes});
  ASSERT_FALSE(heaps);
  EXPECT_EQ(heaps.error().status, Status::kInvalidArgument);
  EXPECT_THAT(heaps.error().message, AllOf(HasSubstr(named + ": create with heap_bytes = 2097152, lanes = 1"),
                                           HasSubstr("of rank 0: create with heap_bytes = 1048576")));
  const auto lanes = create({.lanes = differs ? 2u : 1u});
  ASSERT_FALSE(lanes);
  EXPECT_THAT(lanes.error().message, HasSubstr(named));
  const auto impossible = create({.timeout_ns = differs ? 0 : kPatienceNs});
  ASSERT_FALSE(impossible);
  EXPECT_THAT(impossible.error().message,
              HasSubstr((differs ? "" : named + ": ") + std::string("team option timeout_ns = 0: use 1 to")));
  made();
}

TEST_F(TeamOfRanks, allocations_that_differ_are_refused_and_take_nothing) {
  Team team = made();
  const std::uint64_t before = team.bytes_free();
  const auto all = team.allocate<char>(2 * kHeapBytes);
  ASSERT_FALSE(all);
  EXPECT_EQ(all.error().status, Status::kNoMemory);
  EXPECT_THAT(all.error().message, AllOf(HasSubstr("1048576 of 1048576"), HasSubstr("heap_bytes")));
  EXPECT_EQ(team.allocate<std::uint64_t>(~std::size_t{0} / 2).error().status, Status::kNoMemory);
  EXPECT_EQ(team.allocate<char>(0).error().status, Status::kInvalidArgument);
  EXPECT_EQ(team.free(nullptr).error().status, Status::kInvalidArgument);
  if (world().size() < 2) return;
  const bool differs = world().rank() == last();
  const std::string named = "rank " + std::to_string(last());
  const auto sizes = team.allocate<int>(differs ? 2 : 1);
  ASSERT_FALSE(sizes);
  EXPECT_EQ(sizes.error().status, Status::kInvalidArgument);
  EXPECT_THAT(sizes.error().message, HasSubstr(named + ": allocate of 8 bytes"));
  const auto calls = differs ? team.barrier() : team.free(team.heap().data() + 128);
  ASSERT_FALSE(calls);
  EXPECT_EQ(team.bytes_free(), before);
  int* const piece = must(team.allocate<int>(1));
  const auto wild = team.free(differs ? piece + 1 : piece);
  ASSERT_FALSE(wild);
  EXPECT_THAT(wild.error().message, HasSubstr(differs ? "cannot free" : named + ": cannot free"));
  EXPECT_EQ(team.bytes_free(), before - 128) << "free at no rank";
  EXPECT_TRUE(team.free(piece));
}

TEST_F(TeamOfRanks, calls_on_different_teams_are_refused) {
  if (world().size() < 2) GTEST_SKIP() << "needs two ranks";
  Team first = made();
  Team second = made();
  const bool differs = world().rank() == last();
  const auto met = (differs ? second : first).barrier();
  ASSERT_FALSE(met);
  EXPECT_EQ(met.error().status, Status::kInvalidArgument);
  EXPECT_THAT(met.error().message, HasSubstr("rank " + std::to_string(last()) + ": barrier (team "));
  EXPECT_FALSE((differs ? second : first).allocate<int>(1));
  EXPECT_EQ(first.bytes_free(), second.bytes_free());
  EXPECT_TRUE(first.barrier()) << "the world goes on";
}

TEST_F(TeamOfRanks, windows_are_known_to_every_rank) {
  alignas(4096) static std::byte memory[7][4096];
  Team team = made({.direct = DirectChoice::kOff});
  const TeamHandle before = team.handle();
  const Team part = must(team.split(0, 0));
  for (int w = 0; w < 7; ++w) {
    const auto added = team.register_window(memory[w], 4096);
    ASSERT_TRUE(added) << added.error().message;
  }
  EXPECT_EQ(before.window_count, 1u);
  EXPECT_EQ(before.copy->window_count, 8u) << "for kernels that run";
  const TeamHandle handle = team.handle();
  ASSERT_EQ(handle.window_count, 8u);
  EXPECT_EQ(handle.windows[7].address, memory[6]);
  const auto places = must(world().allgather_value(reinterpret_cast<std::uintptr_t>(memory[2]), kPatienceNs));
  for (std::uint32_t rank = 0; rank < team.size(); ++rank) {
    EXPECT_EQ(handle.peers[rank].windows[3].address, places[rank]);
    EXPECT_NE(handle.peers[rank].windows[3].rkey.raw, 0u);
    EXPECT_EQ(part.handle().peers[rank].windows[3].address, places[rank]);
    EXPECT_EQ(part.handle().peers[rank].windows[3].rkey, handle.peers[rank].windows[3].rkey);
  }
  static std::byte eighth[64];
  const auto beyond = team.register_window(eighth, sizeof eighth);
  ASSERT_FALSE(beyond);
  EXPECT_THAT(beyond.error().message, HasSubstr("at most 7"));
}

TEST_F(TeamOfRanks, windows_that_differ_overlap_or_cannot_be_mapped_are_refused) {
  static std::byte memory[4096];
  Team native = made({.direct = DirectChoice::kOff});
  EXPECT_THAT(native.register_window(native.heap().data(), 64).error().message, HasSubstr("already"));
  EXPECT_EQ(native.register_window(nullptr, 64).error().status, Status::kInvalidArgument);
  if (world().size() < 2) return;
  const bool differs = world().rank() == last();
  EXPECT_THAT(native.register_window(memory, differs ? 128 : 64).error().message,
              HasSubstr("rank " + std::to_string(last()) + ": register_window of 128 bytes"));
  Team direct = made({.direct = DirectChoice::kOn});
  const auto unmapped = made({.direct = DirectChoice::kAuto}).register_window(memory, sizeof memory);
  ASSERT_FALSE(unmapped);
  EXPECT_EQ(unmapped.error().status, Status::kUnsupported);
  EXPECT_THAT(unmapped.error().message, AllOf(HasSubstr("is direct"), HasSubstr("GDX_DIRECT=off")));
  EXPECT_EQ(direct.register_window(memory, sizeof memory).error().status, Status::kUnsupported);
  EXPECT_EQ(direct.handle().window_count, 1u);
}

TEST_F(TeamOfRanks, split_teams_have_records_of_their_ranks_in_the_order_of_keys) {
  Team team = connected({.lanes = 2});
  const std::uint32_t size = team.size();
  const std::uint32_t colour = team.rank() % 2;
  Team part = must(team.split(colour, size - team.rank()));
  std::vector<std::uint32_t> members;
  for (std::uint32_t rank = size; rank-- > 0;) {
    if (rank % 2 == colour) members.push_back(rank);
  }
  ASSERT_EQ(part.size(), members.size());
  ASSERT_EQ(members[part.rank()], team.rank());
  const TeamHandle all = team.handle();
  const TeamHandle some = part.handle();
  EXPECT_EQ(some.rank, part.rank());
  EXPECT_NE(some.fault, all.fault);
  for (std::uint32_t i = 0; i < members.size(); ++i) {
    for (std::uint32_t lane = 0; lane < 2; ++lane) {
      const TeamPeer& copy = some.peers[lane * some.size + i];
      const TeamPeer& record = all.peers[lane * size + members[i]];
      EXPECT_TRUE(
          std::ranges::equal(std::as_bytes(std::span(&copy, 1)), std::as_bytes(std::span(&record, 1))));
      EXPECT_EQ(part.endpoint(lane, i).qpn, record.endpoint.qpn);
    }
  }
  EXPECT_TRUE(part.barrier());
  {
    Team same = must(team.split(0, 7));
    EXPECT_EQ(same.rank(), team.rank()) << "equal keys keep the order";
    EXPECT_TRUE(same.close());
    EXPECT_EQ(same.handle().peers, nullptr);
  }
  EXPECT_TRUE(team.close());
  EXPECT_EQ(part.handle().peers, nullptr) << "it ends with the team";
}

TEST_F(TeamOfRanks, abort_reaches_every_wait) {
  Team team = connected();
  team.abort();
  EXPECT_EQ(*team.handle().abort, 1u);
  for (std::uint32_t rank = 0; rank < team.size(); ++rank) EXPECT_EQ(*team.endpoint(0, rank).abort, 1u);
}

TEST_F(TeamOfRanks, abort_reaches_endpoints_that_are_made_after_it) {
  Team team = made();
  team.abort();
  std::atomic_ref(*team.handle().peers[team.rank()].asked).store(1);
  const auto is_pending = [&] {
    return team.endpoint(0, team.rank()).layout_version == 0 && team.way(team.rank()) != PeerWay::kGone;
  };
  while (is_pending() && all_here()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ASSERT_NE(team.endpoint(0, team.rank()).layout_version, 0u) << team.describe_fault();
  EXPECT_EQ(*team.endpoint(0, team.rank()).abort, 1u);
}

TEST_F(TeamOfRanks, heap_and_queues_can_be_in_gpu_memory) {
  if (!Gpu::open()) GTEST_SKIP() << "needs a GPU, or the fake driver";
  Team team =
      connected({.heap_memory = HeapMemory::kGpu, .gpu = 0, .endpoint = {.placement = Placement::kGpu}});
  EXPECT_EQ(team.handle().layout, team_layout(Placement::kGpu));
  EXPECT_EQ(team.connections(), team.size()) << "made by the connector's thread";
  EXPECT_EQ(team.endpoint(0, 0).placement, Placement::kGpu);
  auto* const piece = must(team.allocate<std::uint64_t>(4));
  EXPECT_EQ(reinterpret_cast<std::byte*>(piece), team.heap().data());
  EXPECT_TRUE(team.free(piece));
  EXPECT_EQ(team.describe_fault(), "ok");
}

TEST_F(TeamOfRanks, each_gpu_of_a_process_has_a_team) {
  if (!Gpu::open(1)) GTEST_SKIP() << "needs two GPUs, or the fake driver's: e2e_team_test.gpu";
  std::vector<Team> teams;
  std::vector<std::uint64_t*> words;
  for (const int gpu : {0, 1}) {
    teams.push_back(connected({.gpu = gpu}));
    EXPECT_EQ(teams.back().atomics(), TeamAtomics::kNic) << "GPUs and host have no atomics between them";
    words.push_back(must(teams.back().allocate<std::uint64_t>(1)));
  }
  for (const std::size_t i : {1u, 0u}) {
    Status ends[2] = {Status::kPending, Status::kPending};
    launch(teams[i], [&](const TeamHandle& handle) {
      const std::uint32_t next = (handle.rank + 1) % handle.size;
      ends[0] = gdx_signal(handle, words[i], i + 1, SignalOp::kAdd, next);
      ends[1] = gdx_wait(handle, words[i], Compare::kEqual, i + 1, next);
    });
    for (const Status end : ends) EXPECT_EQ(end, Status::kOk) << teams[i].describe_fault();
  }
  for (Team& team : teams) EXPECT_TRUE(team.close()) << team.describe_fault();
}

// Pages that the GPU still had could not be mapped with others.
TEST_F(TeamOfRanks, refused_window_leaves_no_pages_to_the_gpu) {
  if (!Gpu::open() || world().size() < 2) GTEST_SKIP() << "needs a GPU, or the fake driver, and two ranks";
  alignas(4096) static std::byte memory[8192];
  Team team = made({.gpu = 0, .direct = DirectChoice::kOff});
  const auto refused = team.register_window(memory, world().rank() == last() ? 128 : 64);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("register_window of 128 bytes"));
  const auto mapped = must(Gpu::open()).map(memory, sizeof memory);
  EXPECT_TRUE(mapped) << mapped.error().message;
}

}  // namespace team_test
}  // namespace gdx
