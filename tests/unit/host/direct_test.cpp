// Sharing memory between ranks of one node. Two ranks are two threads here, each with an HCA's worth of
// regions of its own; what crosses between them crosses as between processes. tests/e2e has the processes.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/node.h"
#include "host/direct/offer_exchange.h"
#include "host/direct/peer_mapping.h"
#include "host/direct/region.h"
#include "host/hca/hca.h"
#include "tests/open_files.h"
#include "tests/unit/host/loopback.h"

namespace gdx {
namespace direct_test {

// Returns the mapping of `bytes` of `remote`; null where no window has its key, contains it and permits
// `access`.
std::byte* find(const std::vector<PeerWindow>& windows, const RemoteMemory& remote, std::uint64_t bytes,
                std::uint32_t access) {
  for (const PeerWindow& window : windows) {
    const std::uint64_t offset = remote.address - window.address;
    const bool within = offset <= window.bytes && bytes <= window.bytes - offset;
    if (window.rkey.raw == remote.rkey.raw && within && (window.access & access) == access)
      return window.mapped + offset;
  }
  return nullptr;
}

using test::kLongNs;
using test::kShortNs;
using test::LoopbackRoot;
using test::open_files;
using test::run_ranks;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::size_t kBytes = 10000;  // no whole pages

class Peers : public ::testing::Test {
 protected:
  void SetUp() override {
    unsetenv(kDirectVariable);
    auto opened = Hca::open();
    ASSERT_TRUE(opened) << opened.error().message;
    hca_ = std::make_unique<Hca>(std::move(*opened));
  }
  [[nodiscard]] Memory shareable(Access access = Access::kAll) const {
    auto memory = allocate_shareable_memory(*hca_, kBytes, access);
    EXPECT_TRUE(memory) << memory.error().message;
    return std::move(*memory);
  }
  [[nodiscard]] const Hca& hca() const { return *hca_; }

 private:
  std::unique_ptr<Hca> hca_;
};

std::vector<const Memory*> pointers(const std::vector<Memory>& memories) {
  std::vector<const Memory*> out;
  for (const Memory& memory : memories) out.push_back(&memory);
  return out;
}

TEST_F(Peers, shareable_memory_is_zeroed_sealed_and_closed_on_exec) {
  const Memory memory = shareable();
  EXPECT_EQ(memory.bytes(), kBytes);
  EXPECT_EQ(memory.access(), Access::kAll);
  EXPECT_TRUE(
      std::all_of(memory.data(), memory.data() + kBytes, [](std::byte b) { return b == std::byte{0}; }));
  EXPECT_NE(fcntl(memory.file(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_NE(::ftruncate(memory.file(), 0), 0) << "whoever has mapped it would fault";
  EXPECT_EQ(allocate_shareable_memory(hca(), 0).error().status, Status::kInvalidArgument);
}

TEST_F(Peers, shareable_memory_without_all_its_pages_is_refused) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit one_page{4096, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &one_page), 0);
  const auto memory = allocate_shareable_memory(hca(), kBytes);
  EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  ASSERT_FALSE(memory);
  EXPECT_EQ(memory.error().status, Status::kNoMemory);
}

TEST_F(Peers, shareable_memory_goes_with_its_file_when_it_is_moved_over) {
  const std::size_t before = open_files();
  {
    Memory first = shareable();
    first = shareable();
    first.data()[kBytes - 1] = std::byte{1};
    EXPECT_EQ(open_files(), before + 1);
  }
  EXPECT_EQ(open_files(), before);
}

TEST_F(Peers, ranks_of_one_node_reach_each_others_regions) {
  const LoopbackRoot root;
  std::vector<std::vector<Memory>> memories(3);
  for (auto& of_rank : memories) {
    for (int i = 0; i < 3; ++i) of_rank.push_back(shareable());
  }
  const std::size_t before = open_files();
  run_ranks(3, [&](std::uint32_t rank) {
    auto world = World::join(root.options(rank, 3));
    ASSERT_TRUE(world) << world.error().message;
    const auto mapping = PeerMapping::exchange(*world, pointers(memories[rank]), {.timeout_ns = kLongNs});
    ASSERT_TRUE(mapping) << mapping.error().message;
    for (std::uint32_t peer = 0; peer < 3; ++peer) {
      ASSERT_TRUE(mapping->is_direct(peer)) << mapping->reason(peer);
      const std::vector<PeerWindow> windows = mapping->windows(peer);
      ASSERT_EQ(windows.size(), 3u);
      for (std::uint32_t i = 0; i < 3; ++i) {
        const Memory& theirs = memories[peer][i];
        std::byte* const at =
            find(windows, theirs.remote() + (kBytes - 8 * (rank + 1)), 8, kPeerWrite | kPeerAtomic);
        ASSERT_NE(at, nullptr);
        EXPECT_EQ(at == theirs.data() + kBytes - 8 * (rank + 1), peer == rank)
            << "mapped once more, but its own";
        *at = static_cast<std::byte>(0x10 * i + rank);
        const Memory& of_another = memories[(peer + 1) % 3][i];
        EXPECT_EQ(find(windows, of_another.remote(), 8, kPeerWrite), nullptr) << "another rank's region";
      }
    }
    EXPECT_FALSE(mapping->is_direct(3));
    EXPECT_EQ(mapping->reason(3), "no such rank");
    ASSERT_TRUE(world->barrier(kLongNs));
    for (std::uint32_t i = 0; i < 3; ++i) {
      for (std::uint32_t peer = 0; peer < 3; ++peer) {
        EXPECT_EQ(memories[rank][i].data()[kBytes - 8 * (peer + 1)], static_cast<std::byte>(0x10 * i + peer));
      }
    }
  });
  EXPECT_EQ(open_files(), before);
}

struct Ends {
  std::optional<Result<PeerMapping>> mappings[2];
};

// Two ranks, with options and memory of their own.
Ends exchange(std::vector<const Memory*> first, std::vector<const Memory*> second,
              const PeerOptions& of_first = {}, const PeerOptions& of_second = {}) {
  Ends ends;
  const LoopbackRoot root;
  run_ranks(2, [&](std::uint32_t rank) {
    auto world = World::join(root.options(rank, 2));
    ASSERT_TRUE(world) << world.error().message;
    PeerOptions options = rank == 0 ? of_first : of_second;
    options.timeout_ns = kLongNs;
    ends.mappings[rank] = PeerMapping::exchange(*world, rank == 0 ? first : second, options);
    EXPECT_TRUE(world->barrier(kLongNs));
  });
  return ends;
}

Ends exchange(const Memory& first, const Memory& second, const PeerOptions& of_first = {},
              const PeerOptions& of_second = {}) {
  return exchange(std::vector{&first}, std::vector{&second}, of_first, of_second);
}

TEST_F(Peers, memory_of_ones_own_is_reached_through_the_nic_and_the_reason_says_what_to_do) {
  auto own = allocate_memory(hca(), kBytes);
  ASSERT_TRUE(own);
  const Ends ends = exchange(*own, shareable());
  ASSERT_TRUE(*ends.mappings[0]);
  ASSERT_TRUE(*ends.mappings[1]);
  EXPECT_TRUE((*ends.mappings[0])->is_direct(1)) << "each direction by itself";
  EXPECT_FALSE((*ends.mappings[1])->is_direct(0));
  EXPECT_THAT((*ends.mappings[1])->reason(0), HasSubstr("allocate_shareable_memory"));
  EXPECT_TRUE((*ends.mappings[1])->windows(0).empty());
}

TEST_F(Peers, peer_with_one_region_that_cannot_be_mapped_is_reached_through_the_nic) {
  auto own = allocate_memory(hca(), kBytes);
  ASSERT_TRUE(own);
  const Memory first = shareable();
  const Memory last = shareable();
  const Memory theirs = shareable();
  const Ends ends = exchange({&first, &*own, &last}, {&theirs});
  ASSERT_TRUE(*ends.mappings[1]);
  EXPECT_FALSE((*ends.mappings[1])->is_direct(0));
  EXPECT_THAT((*ends.mappings[1])->reason(0), HasSubstr("allocate_shareable_memory"));
  EXPECT_TRUE((*ends.mappings[1])->windows(0).empty());
}

TEST_F(Peers, either_end_may_be_told_not_to) {
  const Memory first = shareable();
  const Memory second = shareable();
  setenv(kDirectVariable, "off", 1);
  const Ends ends = exchange(first, second, {.direct = DirectChoice::kAuto});
  unsetenv(kDirectVariable);
  for (const auto& mapping : ends.mappings) ASSERT_TRUE(*mapping);
  EXPECT_FALSE((*ends.mappings[0])->is_direct(1));
  EXPECT_TRUE((*ends.mappings[0])->is_direct(0)) << "its own memory";
  EXPECT_FALSE((*ends.mappings[1])->is_direct(0));
  EXPECT_THAT((*ends.mappings[0])->reason(1), HasSubstr("told not to"));
  EXPECT_THAT((*ends.mappings[1])->reason(0), HasSubstr(kDirectVariable));
}

TEST_F(Peers, told_to_and_impossible_is_an_error_with_the_reason) {
  auto own = allocate_memory(hca(), kBytes);
  ASSERT_TRUE(own);
  const Ends ends = exchange(*own, shareable(), {}, {.direct = DirectChoice::kOn});
  EXPECT_TRUE(*ends.mappings[0]);
  ASSERT_FALSE(*ends.mappings[1]);
  EXPECT_EQ(ends.mappings[1]->error().status, Status::kUnsupported);
  EXPECT_THAT(ends.mappings[1]->error().message, HasSubstr("rank 0"));
  EXPECT_THAT(ends.mappings[1]->error().message, HasSubstr("allocate_shareable_memory"));
}

TEST_F(Peers, bad_arguments_are_refused_before_anybody_is_met) {
  auto world = World::join({});
  ASSERT_TRUE(world);
  const Memory memory = shareable();
  const std::vector<const Memory*> many(kMaxPeerWindows + 1, &memory);
  const std::vector<const Memory*> null{nullptr};
  EXPECT_EQ(PeerMapping::exchange(*world, many).error().status, Status::kInvalidArgument);
  EXPECT_EQ(PeerMapping::exchange(*world, {}).error().status, Status::kInvalidArgument);
  EXPECT_EQ(PeerMapping::exchange(*world, null).error().status, Status::kInvalidArgument);
  EXPECT_EQ(PeerMapping::exchange(*world, std::span(many).first(1), {.timeout_ns = 0}).error().status,
            Status::kInvalidArgument);
  setenv(kDirectVariable, "yes", 1);
  const auto refused = PeerMapping::exchange(*world, std::span(many).first(1));
  unsetenv(kDirectVariable);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, "GDX_DIRECT is 'yes': use auto, on or off");
  EXPECT_TRUE(PeerMapping::exchange(*world, std::span(many).first(1))->is_direct(0));
}

TEST_F(Peers, rights_of_the_registration_travel) {
  const Memory read_only = shareable(Access::kLocalWrite | Access::kRemoteRead);
  const Ends ends = exchange(read_only, shareable());
  ASSERT_TRUE(*ends.mappings[1]);
  const std::vector<PeerWindow> windows = (*ends.mappings[1])->windows(0);
  ASSERT_EQ(windows.size(), 1u);
  EXPECT_EQ(windows[0].access, kPeerRead);
  EXPECT_NE(find(windows, read_only.remote(), kBytes, kPeerRead), nullptr);
}

// The owner frees, or dies, while the peer still stores: pages live as long as anybody has them.
TEST_F(Peers, region_that_its_owner_has_freed_can_still_be_stored_to) {
  auto freed = std::make_unique<Memory>(shareable());
  const RemoteMemory remote = freed->remote();
  const Memory second = shareable();
  const Ends ends = exchange(*freed, second);
  ASSERT_TRUE(*ends.mappings[1]);
  freed.reset();
  std::byte* const at = find((*ends.mappings[1])->windows(0), remote, kBytes, kPeerWrite);
  ASSERT_NE(at, nullptr);
  std::fill_n(at, kBytes, std::byte{5});
  EXPECT_EQ(at[kBytes - 1], std::byte{5});
}

// Tells why a rank has no mapping of the rank `silent`, which gathers the identities and then says no more,
// as one that dies there.
std::string reason_beside(std::uint32_t silent, const Memory& memory, std::uint64_t timeout_ns) {
  const LoopbackRoot root;
  std::string reason;
  run_ranks(2, [&](std::uint32_t rank) {
    auto world = World::join(root.options(rank, 2));
    ASSERT_TRUE(world) << world.error().message;
    if (rank == silent) {
      auto end = OfferExchange::listen(rank);
      ASSERT_TRUE(end);
      ASSERT_TRUE(world->barrier(kLongNs));
      peer::RankIdentity identity{};
      identity.version = peer::kExchangeVersion;
      identity.willing = 1;
      identity.node = *node_identity();
      end->write_to(identity);
      (void)world->allgather_value(identity, kLongNs);
      (void)world->barrier(kLongNs);
      return;
    }
    const Memory* const mine = &memory;
    ASSERT_TRUE(world->barrier(kLongNs));
    const auto mapping = PeerMapping::exchange(*world, std::span(&mine, 1), {.timeout_ns = timeout_ns});
    reason = !mapping                     ? "no exchange: " + mapping.error().message
             : mapping->is_direct(silent) ? "direct"
                                          : mapping->reason(silent);
    const bool in_step = world->barrier(kLongNs).has_value();
    EXPECT_TRUE(in_step || !mapping) << "an exchange left the world out of step";
  });
  return reason;
}

// Repeats with more time where the ranks did not gather in time.
TEST_F(Peers, peer_that_goes_silent_is_given_up_in_time) {
  const Memory memory = shareable();
  for (const std::uint32_t silent : {0u, 1u}) {
    std::string reason = "no exchange";
    for (std::uint64_t timeout_ns = kShortNs; reason.starts_with("no exchange") && timeout_ns < kLongNs;
         timeout_ns *= 4)
      reason = reason_beside(silent, memory, timeout_ns);
    EXPECT_THAT(reason, AllOf(HasSubstr("in time"), Not(HasSubstr("no exchange"))));
  }
}

// A connection without the identity's token is not accepted, and blocks no other.
TEST_F(Peers, stranger_at_the_socket_is_ignored) {
  auto lower = OfferExchange::listen(0);
  auto higher = OfferExchange::listen(1);
  ASSERT_TRUE(lower);
  ASSERT_TRUE(higher);
  std::vector<peer::RankIdentity> identities(2);
  lower->write_to(identities[0]);
  higher->write_to(identities[1]);
  auto stranger = bootstrap::connect_local(identities[0].socket_name);
  ASSERT_TRUE(stranger);
  peer::OfferHeader forged{peer::kExchangeVersion, 1, {}, 0, 0};
  ASSERT_TRUE(
      bootstrap::send_local(*stranger, std::as_bytes(std::span(&forged, 1)), {}, monotonic_ns() + kLongNs));
  auto short_one = bootstrap::connect_local(identities[0].socket_name);
  ASSERT_TRUE(short_one);
  ASSERT_TRUE(bootstrap::send_local(*short_one, std::as_bytes(std::span(&forged, 1)).first(5), {},
                                    monotonic_ns() + kLongNs));
  const Memory memory = shareable();
  std::vector<OfferedRegion> mine;
  mine.push_back(offer_region(memory));
  const std::uint32_t zero = 0;
  const std::uint32_t one = 1;
  std::thread other([&] {
    auto found = higher->run(identities, std::span(&zero, 1), mine, monotonic_ns() + kLongNs);
    ASSERT_TRUE(found.at(0)) << found.at(0).error().message;
  });
  auto found = lower->run(identities, std::span(&one, 1), mine, monotonic_ns() + kLongNs);
  other.join();
  ASSERT_TRUE(found.at(1)) << found.at(1).error().message;
  EXPECT_EQ(found.at(1)->offers.size(), 1u);
}

// It may hold up those behind it for a while, which is much shorter than the time that they have.
TEST_F(Peers, stranger_that_says_nothing_costs_the_ranks_behind_it_a_bounded_time) {
  auto lower = OfferExchange::listen(0);
  auto higher = OfferExchange::listen(1);
  ASSERT_TRUE(lower && higher);
  std::vector<peer::RankIdentity> identities(2);
  lower->write_to(identities[0]);
  higher->write_to(identities[1]);
  const auto silent = bootstrap::connect_local(identities[0].socket_name);
  ASSERT_TRUE(silent);
  const std::uint32_t zero = 0;
  const std::uint32_t one = 1;
  const std::uint64_t deadline_ns = monotonic_ns() + kLongNs;
  std::thread other([&] {
    const auto found = higher->run(identities, std::span(&zero, 1), {}, deadline_ns);
    EXPECT_TRUE(found.at(0)) << found.at(0).error().message;
  });
  const auto found = lower->run(identities, std::span(&one, 1), {}, deadline_ns);
  other.join();
  EXPECT_TRUE(found.at(1)) << found.at(1).error().message;
  EXPECT_LT(monotonic_ns(), deadline_ns) << "it cost them all their time";
}

// Rank 0's verdict on a rank 1 that knows the token, and says `header` with `offers` offers and no files.
Error verdict_on(const std::function<void(peer::OfferHeader&)>& spoil, std::size_t offers) {
  auto lower = OfferExchange::listen(0);
  if (!lower) return lower.error();
  std::vector<peer::RankIdentity> identities(2);
  lower->write_to(identities[0]);
  peer::OfferHeader header{peer::kExchangeVersion, 1, {}, 0, 0};
  std::copy(std::begin(identities[0].token), std::end(identities[0].token), header.token);
  spoil(header);
  std::vector<std::byte> bytes(sizeof header + offers * sizeof(peer::Offer));
  std::memcpy(bytes.data(), &header, sizeof header);
  const auto liar = bootstrap::connect_local(identities[0].socket_name);
  if (!liar) return liar.error();
  if (auto sent = bootstrap::send_local(*liar, bytes, {}, monotonic_ns() + kLongNs); !sent)
    return sent.error();
  const std::uint32_t one = 1;
  auto found = lower->run(identities, std::span(&one, 1), {}, monotonic_ns() + kLongNs);
  return found.at(1) ? Error{Status::kOk, "taken"} : found.at(1).error();
}

TEST_F(Peers, member_that_lies_about_its_offers_is_refused) {
  const auto count = [](std::uint32_t offers) {
    return [offers](peer::OfferHeader& header) { header.count = offers; };
  };
  EXPECT_EQ(verdict_on(count(1), 1).status, Status::kOk);
  EXPECT_EQ(verdict_on([](peer::OfferHeader& header) { ++header.version; }, 0).status,
            Status::kVersionMismatch);
  EXPECT_THAT(verdict_on(count(1), 0).message, HasSubstr("of another length"));
  EXPECT_THAT(verdict_on(count(0), 1).message, HasSubstr("of another length"));
  EXPECT_THAT(verdict_on(count(kMaxPeerWindows + 1), kMaxPeerWindows + 1).message,
              HasSubstr("of another length"));
  EXPECT_THAT(verdict_on(count(~0u), 1).message, HasSubstr("of another length"));
}

peer::Offer offer_of(std::uint64_t bytes) {
  peer::Offer offer{};
  offer.kind = peer::OfferKind::kHostFile;
  offer.access = kPeerWrite;
  offer.region = {0x10000, bytes, 7, 0};
  offer.part_count = 1;
  return offer;
}

std::vector<Descriptor> file_of(off_t bytes, int seals) {
  std::vector<Descriptor> files;
  files.emplace_back(memfd_create("offered", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(files[0].value(), bytes), 0);
  EXPECT_EQ(fcntl(files[0].value(), F_ADD_SEALS, seals), 0);
  return files;
}

TEST(MapRegion, what_no_honest_peer_offers_is_refused) {
  const auto refusal = [](const peer::Offer& offer, std::vector<Descriptor> files) {
    const auto mapped = map_region(offer, files, 0);
    return mapped ? std::string("mapped") : mapped.error().message;
  };
  const peer::Offer good = offer_of(8192);
  EXPECT_EQ(refusal(good, file_of(8192, F_SEAL_SHRINK)), "mapped");
  EXPECT_THAT(refusal(good, file_of(8192, F_SEAL_GROW)), HasSubstr("may shrink"));
  EXPECT_THAT(refusal(good, file_of(8191, F_SEAL_SHRINK)), HasSubstr("longer than its file"));
  EXPECT_THAT(refusal(offer_of(0), file_of(8192, F_SEAL_SHRINK)), HasSubstr("empty or wraps"));
  EXPECT_THAT(refusal(offer_of(~std::uint64_t{0}), file_of(8192, F_SEAL_SHRINK)), HasSubstr("wraps"));
  EXPECT_THAT(refusal(good, {}), HasSubstr("number of files"));
  peer::Offer bad = good;
  bad.offset = 4096;
  EXPECT_NE(refusal(bad, file_of(8192, F_SEAL_SHRINK)), "mapped");
  bad = good;
  bad.kind = static_cast<peer::OfferKind>(77);
  EXPECT_NE(refusal(bad, file_of(8192, F_SEAL_SHRINK)), "mapped");
  std::vector<Descriptor> no_file;
  no_file.emplace_back(::open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_THAT(refusal(good, std::move(no_file)), HasSubstr("may shrink"));
  bad = good;
  bad.kind = peer::OfferKind::kNone;
  bad.part_count = 0;
  std::fill(std::begin(bad.reason), std::end(bad.reason), '\n');
  EXPECT_EQ(refusal(bad, {}), std::string(sizeof bad.reason, '?')) << "no end, and not fit to be shown";
}

TEST(MapRegion, access_bits_that_are_no_remote_access_do_not_pass) {
  peer::Offer offer = offer_of(4096);
  offer.access = ~0u;
  auto files = file_of(4096, F_SEAL_SHRINK);
  const auto mapped = map_region(offer, files, 0);
  ASSERT_TRUE(mapped);
  EXPECT_EQ(mapped->window.access, kPeerWrite | kPeerRead | kPeerAtomic);
}

TEST(Node, processes_are_apart_by_boot_network_and_user_but_not_by_name) {
  const auto here = node_identity();
  ASSERT_TRUE(here) << here.error().message;
  EXPECT_EQ(apart(*here, *here), std::nullopt);
  peer::NodeIdentity other = *here;
  other.boot_id[3] ^= 1;
  EXPECT_THAT(apart(*here, other).value_or(""), HasSubstr("boot ids differ"));
  other = *here;
  other.network_inode ^= 1;
  EXPECT_THAT(apart(*here, other).value_or(""), HasSubstr("network namespace"));
  other = *here;
  other.user ^= 1;
  EXPECT_THAT(apart(*here, other).value_or(""), HasSubstr("another user"));
  const peer::NodeIdentity unknown{};
  EXPECT_NE(apart(unknown, unknown), std::nullopt) << "who knows nothing is near nobody";
  EXPECT_EQ(node_identity("/nowhere").error().status, Status::kSystem);
}

}  // namespace direct_test
}  // namespace gdx
