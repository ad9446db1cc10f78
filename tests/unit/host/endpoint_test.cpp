// The host library against an HCA, through libibverbs and libmlx5: CTest preloads the software one.
#include "host/queue/endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <tuple>
#include <vector>

#include "host/hca/hca.h"
#include "host/memory/memory.h"
#include "host/staging/staging_pool.h"
#include "tests/refused_calls.h"
#include "tests/unit/host/handle_pointers.h"

namespace gdx {
namespace endpoint_test {

using ::testing::HasSubstr;

class OnHca : public ::testing::Test {
 protected:
  void SetUp() override {
    unsetenv(kHcaVariable);
    auto opened = Hca::open();
    ASSERT_TRUE(opened) << opened.error().message;
    hca_ = std::make_unique<Hca>(std::move(*opened));
  }
  [[nodiscard]] const Hca& hca() const { return *hca_; }

 private:
  std::unique_ptr<Hca> hca_;
};

TEST_F(OnHca, open_by_default_finds_an_active_port_with_an_ipv4_address) {
  EXPECT_NE(hca().name(), "");
  EXPECT_GE(hca().path_mtu_bytes(), 256u);
  EXPECT_LE(hca().path_mtu_bytes(), 4096u);
  EXPECT_THAT(hca().address_text(), ::testing::StartsWith("127."));
  EXPECT_GE(hca().device_memory_bytes(), 64u * 1024);
}

TEST_F(OnHca, open_by_name_and_by_variable_finds_the_same) {
  const auto by_name = Hca::open({hca().name()});
  ASSERT_TRUE(by_name) << by_name.error().message;
  EXPECT_EQ(by_name->name(), hca().name());
  setenv(kHcaVariable, hca().name().c_str(), 1);
  EXPECT_TRUE(Hca::open());
  setenv(kHcaVariable, "no_such_hca", 1);
  EXPECT_EQ(Hca::open().error().status, Status::kNotFound);
  EXPECT_TRUE(Hca::open({hca().name()})) << "a name goes before the variable";
  unsetenv(kHcaVariable);
}

[[noreturn]] void do_without_threads(const Hca& hca) {
  alarm(60);
  if (!test::refuse_threads()) _exit(2);
  for (const StagingOptions& options : {StagingOptions(), StagingOptions::in_host_memory()}) {
    const auto pool = StagingPool::create(hca, options);
    if (pool) _exit(3);
    if (pool.error().message.find("ulimit -u") == std::string::npos) _exit(4);
  }
  const auto endpoint = Endpoint::create(hca, {});
  if (endpoint || endpoint.error().message.find("ulimit -u") == std::string::npos) _exit(5);
  _exit(0);
}

using OnHcaDeathTest = OnHca;
TEST_F(OnHcaDeathTest, pool_or_endpoint_without_a_thread_is_an_error_of_the_call) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(do_without_threads(hca()), ::testing::ExitedWithCode(0), "");
}

TEST_F(OnHca, unknown_hca_open_lists_those_that_exist) {
  const auto unknown = Hca::open({"no_such_hca"});
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().status, Status::kNotFound);
  EXPECT_THAT(unknown.error().message, HasSubstr("no_such_hca"));
  EXPECT_THAT(unknown.error().message, HasSubstr(hca().name()));
}

TEST_F(OnHca, counter_is_read_from_sysfs) {
  const auto timeouts = hca().counter("local_ack_timeout_err");
  ASSERT_TRUE(timeouts) << timeouts.error().message;
  EXPECT_EQ(*timeouts, 0u);
}

TEST_F(OnHca, unknown_counter_is_not_found) {
  EXPECT_EQ(hca().counter("no_such_counter").error().status, Status::kNotFound);
  EXPECT_EQ(hca().counter("../../node_guid").error().status, Status::kNotFound);
  EXPECT_EQ(hca().counter("").error().status, Status::kNotFound);
}

TEST_F(OnHca, memory_registered_has_keys_and_a_descriptor) {
  auto memory = allocate_memory(hca(), 10'000);
  ASSERT_TRUE(memory) << memory.error().message;
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory->data()) % 4096, 0u);
  EXPECT_EQ(memory->bytes(), 10'000u);
  const RemoteMemory remote = memory->remote();
  EXPECT_EQ(remote.address, reinterpret_cast<std::uintptr_t>(memory->data()));
  EXPECT_EQ(remote.rkey, memory->rkey());
}

TEST_F(OnHca, memory_moved_and_assigned_is_all_that_it_was) {
  const auto all_of = [](const Memory& memory) {
    return std::tuple(memory.data(), memory.bytes(), memory.lkey(), memory.rkey(), memory.file(),
                      memory.registered_by(), memory.access());
  };
  auto made = allocate_shareable_memory(hca(), 10'000, Access::kLocalWrite | Access::kRemoteRead);
  auto memory = allocate_memory(hca(), 64);
  ASSERT_TRUE(made && memory);
  const auto before = all_of(*made);
  Memory moved = std::move(*made);
  EXPECT_EQ(all_of(moved), before);
  *memory = std::move(moved);
  EXPECT_EQ(all_of(*memory), before);
  memory->data()[9'999] = std::byte{1};
}

TEST_F(OnHca, impossible_memory_is_refused) {
  std::vector<std::byte> buffer(64);
  const auto status_of = [](const Result<Memory>& memory) {
    return memory ? Status::kOk : memory.error().status;
  };
  EXPECT_EQ(status_of(register_memory(hca(), buffer.data(), 0)), Status::kInvalidArgument);
  EXPECT_EQ(status_of(register_memory(hca(), nullptr, 64)), Status::kInvalidArgument);
  EXPECT_EQ(status_of(register_memory(hca(), buffer.data(), std::numeric_limits<std::size_t>::max())),
            Status::kInvalidArgument);
  for (const Access changes : {Access::kRemoteWrite, Access::kRemoteAtomic}) {
    EXPECT_EQ(status_of(register_memory(hca(), buffer.data(), 64, changes)), Status::kInvalidArgument);
  }
  EXPECT_EQ(status_of(allocate_memory(hca(), 0)), Status::kInvalidArgument);
  EXPECT_EQ(status_of(allocate_memory(hca(), std::numeric_limits<std::size_t>::max())),
            Status::kInvalidArgument);
  EXPECT_EQ(status_of(register_memory(hca(), buffer.data(), buffer.size())), Status::kOk);
}

// An endpoint's part of the credits, in ordinary memory.
struct Channel {
  explicit Channel(std::uint32_t slot_count) : granted_slots(slot_count), returned_slots(slot_count) {}
  CreditChannel channel() { return {&grants, granted_slots.data(), &requests, returned_slots.data()}; }

  std::uint64_t grants = 0;
  CreditRequests requests{};
  std::vector<std::uint32_t> granted_slots;
  std::vector<std::uint32_t> returned_slots;
};

TEST_F(OnHca, staging_pool_is_mapped_and_leases_hold_their_minimum) {
  auto pool = StagingPool::create(hca(), {.minimum_slots = 2});
  ASSERT_TRUE(pool) << pool.error().message;
  EXPECT_EQ(pool->slot_count(), pool->bytes() / kDefaultSlotBytes);
  Channel first(pool->slot_count());
  Channel second(pool->slot_count());
  {
    auto a = pool->lease(first.channel(), 8);
    const auto b = pool->lease(second.channel(), 8);
    ASSERT_TRUE(a && b);
    EXPECT_EQ(a->base(), b->base());
    a->base()[0] = std::byte{0x5a};
    a->base()[pool->bytes() - 1] = std::byte{0xa5};
    EXPECT_EQ(a->base()[0], std::byte{0x5a});
    EXPECT_EQ(first.grants, pack_grants(2, 2));
    EXPECT_EQ(second.grants, pack_grants(2, 2));
    EXPECT_NE(first.granted_slots[0], second.granted_slots[0]);
    EXPECT_EQ(pool->leased_slots(), 4u);
    EXPECT_EQ(pool->leased_slots() + pool->free_slots(), pool->slot_count());
    EXPECT_EQ(
        std::tuple(a->base(), a->nic_offset(), a->lkey(), a->slot_bytes(), a->slot_count()),
        std::tuple(pool->base(), pool->nic_offset(), pool->lkey(), pool->slot_bytes(), pool->slot_count()));
    *a = StagingLease();
    EXPECT_EQ(pool->leased_slots(), 2u) << "of the second alone";
  }
  EXPECT_EQ(pool->leased_slots(), 0u);
}

TEST_F(OnHca, staging_lease_tells_which_slots_of_which_pool_it_got) {
  for (const bool on_host : {false, true}) {
    auto pool = StagingPool::create(hca(), on_host ? StagingOptions::in_host_memory() : StagingOptions{});
    ASSERT_TRUE(pool) << pool.error().message;
    Channel channel(pool->slot_count());
    const auto lease = pool->lease(channel.channel(), 1);
    ASSERT_TRUE(lease) << lease.error().message;
    FlightRecord record = lease->flight();
    for (FlightEvent& event : record.events) event.time_ns = 0;
    EXPECT_EQ(encode_flight(record),
              fmt::format("flight credits 0\n0 limit {0} 0 0 1\n0 grant {0} 0 0 0\n", on_host ? 1 : 0));
    const StagingLease reference = pool->reference(4);
    EXPECT_TRUE(reference.flight().events.empty());
    EXPECT_EQ(reference.minimum_slots(), 1u);
  }
}

TEST_F(OnHca, staging_lease_outlives_the_pool) {
  std::optional<Channel> channel;
  StagingLease lease;
  {
    auto pool = StagingPool::create(hca());
    ASSERT_TRUE(pool);
    channel.emplace(pool->slot_count());
    lease = *pool->lease(channel->channel(), 4);
  }
  lease.base()[0] = std::byte{1};
  EXPECT_EQ(lease.slot_count(), 32u);
  EXPECT_EQ(lease.minimum_slots(), 1u);
}

TEST_F(OnHca, device_memory_taken_next_pool_is_refused) {
  const auto all = StagingPool::create(hca(), {.pool_bytes = hca().device_memory_bytes()});
  ASSERT_TRUE(all) << all.error().message;
  const auto more = StagingPool::create(hca());
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().status, Status::kNoMemory);
}

// To a driver a process is a context, whose memory it takes back when that is closed.
struct Process {
  static Process on(const Hca& first) { return {Hca::open({.name = first.name()}), std::nullopt}; }
  Result<StagingPool>& lease(const StagingOptions& options) {
    return pool.emplace(StagingPool::create(*hca, options));
  }

  Result<Hca> hca;
  std::optional<Result<StagingPool>> pool;
};

TEST_F(OnHca, processes_that_know_their_number_lease_even_parts) {
  std::list<Process> processes;
  for (int i = 0; i < 4; ++i) {
    Process& process = processes.emplace_back(Process::on(hca()));
    ASSERT_TRUE(process.hca) << process.hca.error().message;
    const auto& pool = process.lease({.processes = 4});
    ASSERT_TRUE(pool) << pool.error().message;
    EXPECT_EQ(pool->bytes(), hca().device_memory_bytes() / 4);
    EXPECT_EQ(pool->slot_count(), 8u);
  }
  const auto fifth = StagingPool::create(hca(), {.processes = 4});
  ASSERT_FALSE(fifth);
  EXPECT_EQ(fifth.error().status, Status::kNoMemory);
  EXPECT_THAT(fifth.error().message, HasSubstr(kProcessesVariable));
  processes.pop_front();
  const auto successor = StagingPool::create(hca(), {.processes = 4});
  ASSERT_TRUE(successor) << successor.error().message;
  EXPECT_EQ(successor->bytes(), hca().device_memory_bytes() / 4);
}

TEST_F(OnHca, leases_of_processes_are_different_memory) {
  Process first = Process::on(hca());
  Process second = Process::on(hca());
  ASSERT_TRUE(first.hca && second.hca);
  Channel ours(16);
  Channel theirs(16);
  ASSERT_TRUE(first.lease({.processes = 2}) && second.lease({.processes = 2}));
  const auto a = (*first.pool)->lease(ours.channel(), 4);
  const auto b = (*second.pool)->lease(theirs.channel(), 4);
  ASSERT_TRUE(a && b);
  std::fill_n(a->base(), (*first.pool)->bytes(), std::byte{0xaa});
  std::fill_n(b->base(), (*second.pool)->bytes(), std::byte{0x55});
  EXPECT_EQ(std::count(a->base(), a->base() + (*first.pool)->bytes(), std::byte{0xaa}),
            static_cast<std::ptrdiff_t>((*first.pool)->bytes()));
}

TEST_F(OnHca, process_that_names_no_size_leases_what_others_left) {
  const std::uint64_t all_bytes = hca().device_memory_bytes();
  Process greedy = Process::on(hca());
  testing::internal::CaptureStderr();
  ASSERT_TRUE(greedy.hca && greedy.lease({.pool_bytes = all_bytes / 2}));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << "it has what it named";
  Process modest = Process::on(hca());
  ASSERT_TRUE(modest.hca && modest.lease({.pool_bytes = all_bytes / 4}));
  {
    testing::internal::CaptureStderr();
    const auto rest = StagingPool::create(hca(), {.minimum_slots = 8});
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                HasSubstr(fmt::format("{} bytes instead of {}, since other processes hold the rest of {};",
                                      all_bytes / 4, all_bytes, all_bytes)));
    ASSERT_TRUE(rest) << rest.error().message;
    EXPECT_EQ(rest->bytes(), all_bytes / 4);
  }
  const auto too_small = StagingPool::create(hca(), {.minimum_slots = 9});
  ASSERT_FALSE(too_small) << "less than its minimum is of no use";
  EXPECT_EQ(too_small.error().status, Status::kNoMemory);
  const auto named = StagingPool::create(hca(), {.pool_bytes = all_bytes / 2});
  ASSERT_FALSE(named) << "a size that was named is meant";
  EXPECT_EQ(named.error().status, Status::kNoMemory);
}

TEST_F(OnHca, number_of_processes_comes_from_the_environment) {
  ::setenv(kProcessesVariable, "2", 1);
  const auto half = StagingPool::create(hca());
  ::setenv(kProcessesVariable, "none", 1);
  const auto refused = StagingPool::create(hca());
  const auto elsewhere = StagingPool::create(hca(), StagingOptions::in_host_memory());
  ::unsetenv(kProcessesVariable);
  ASSERT_TRUE(half) << half.error().message;
  EXPECT_EQ(half->bytes(), hca().device_memory_bytes() / 2);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, Status::kInvalidArgument);
  EXPECT_TRUE(elsewhere) << "host memory is nobody else's";
}

TEST_F(OnHca, two_endpoints_connect_to_each_other) {
  auto pool = StagingPool::create(hca());
  ASSERT_TRUE(pool) << pool.error().message;
  auto first = Endpoint::create(hca(), &*pool, {.slot_count = 8});
  ASSERT_TRUE(first) << first.error().message;
  auto second = Endpoint::create(hca(), &*pool, {.send_queue_blocks = 16, .slot_count = 8});
  ASSERT_TRUE(second) << second.error().message;
  EXPECT_NE(first->address().qpn, second->address().qpn);
  EXPECT_EQ(first->reopen().error().message, "the endpoint is not connected: connect it first");
  EXPECT_NE(*first->handle().owner, first->handle().owner_free);
  const auto forth = first->connect(second->address());
  ASSERT_TRUE(forth) << forth.error().message;
  const auto back = second->connect(first->address());
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(first->connect(second->address()).error().message,
            "the endpoint is connected already: make another");
  EXPECT_EQ(*first->handle().owner, first->handle().owner_free);
  *first->handle().owner += 1;  // as of a kernel that traps
  EXPECT_TRUE(first->reopen());
  EXPECT_EQ(*first->handle().owner, first->handle().owner_free);
  EXPECT_FALSE(first->host_rings());
  EXPECT_EQ(first->fault().status, Status::kOk);
}

TEST_F(OnHca, gid_is_the_index_that_option_or_variable_asks_for) {
  EXPECT_EQ(hca().gid_index(), 1u) << "its IPv4 address";
  const auto link_local = Hca::open({.gid_index = 0});
  ASSERT_TRUE(link_local) << link_local.error().message;
  EXPECT_EQ(link_local->gid_index(), 0u);
  EXPECT_THAT(link_local->address_text(), ::testing::StartsWith("fe80"));
  setenv(kGidIndexVariable, "0", 1);
  EXPECT_EQ(Hca::open()->gid_index(), 0u);
  EXPECT_EQ(Hca::open({.gid_index = 1})->gid_index(), 1u) << "an option goes before the variable";
  setenv(kGidIndexVariable, "256", 1);
  EXPECT_EQ(Hca::open().error().message, "GDX_GID_INDEX = '256': use a number from 0 to 255");
  unsetenv(kGidIndexVariable);
  EXPECT_THAT(Hca::open({.gid_index = 9}).error().message, HasSubstr("no RoCE v2 address at GID index 9"));
}

// An index with no address is refused by who looks at the port alone.
TEST_F(OnHca, port_is_left_alone_where_that_is_asked_for) {
  const auto opened = Hca::open({.gid_index = 9, .without_port = true});
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(opened->name(), hca().name());
  EXPECT_EQ(opened->path_mtu_bytes(), 0u);
  EXPECT_EQ(opened->counter_set(), 0u);
  EXPECT_NE(opened->pdn(), 0u);
  EXPECT_EQ(opened->device_memory_bytes(), hca().device_memory_bytes());
}

TEST_F(OnHca, counter_set_of_the_port_is_found) {
  EXPECT_EQ(hca().counter_set(), 1u) << "the software HCA's";
}

TEST_F(OnHca, call_that_would_time_out_before_its_retries_is_refused) {
  const auto refused = Endpoint::create(hca(), nullptr, {.timeout_ns = 1'000'000'000});
  EXPECT_EQ(refused.error().status, Status::kInvalidArgument);
  EXPECT_THAT(refused.error().message, HasSubstr("1.000 s) before a dead peer is found, in 1.775 s"));
}

TEST_F(OnHca, handle_has_every_field_that_a_kernel_needs) {
  auto pool = StagingPool::create(hca());
  ASSERT_TRUE(pool);
  auto endpoint = Endpoint::create(
      hca(), &*pool,
      {.send_queue_blocks = 64, .slot_count = 16, .timeout_ns = 77, .may_time_out_before_retries = true});
  ASSERT_TRUE(endpoint) << endpoint.error().message;
  const EndpointHandle handle = endpoint->handle();
  EXPECT_EQ(handle.layout_version, kQueueLayoutVersion);
  EXPECT_EQ(handle.qpn, endpoint->address().qpn);
  for (const void* const pointer : pointers_of(handle)) EXPECT_NE(pointer, nullptr);
  EXPECT_EQ(handle.blueflame_half_bytes, 0u) << "doorbells are plain unless asked for";
  EXPECT_EQ(1u << handle.log_send_queue, 64u);
  EXPECT_GE(1u << handle.log_completion_queue, 64u);
  EXPECT_EQ(handle.timeout_ns, 77u);
  EXPECT_EQ(handle.staging.slot_count, pool->slot_count());
  EXPECT_EQ(handle.staging.slot_bytes, kDefaultSlotBytes);
  EXPECT_EQ(*handle.abort, 0u);
  endpoint->abort();
  EXPECT_EQ(*handle.abort, 1u);
}

TEST_F(OnHca, aborted_endpoint_may_hold_no_slot_of_either_pool) {
  auto nic = StagingPool::create(hca());
  auto host = StagingPool::create(hca(), StagingOptions::in_host_memory());
  ASSERT_TRUE(nic && host);
  auto endpoint = Endpoint::create(hca(), {&*nic, &*host}, {.slot_count = 2, .bounce_slot_count = 2});
  ASSERT_TRUE(endpoint) << endpoint.error().message;
  const EndpointHandle handle = endpoint->handle();
  for (const StagingHandle& pool : {handle.staging, handle.bounce}) EXPECT_EQ(limit_of(*pool.grants), 1u);
  endpoint->abort();
  for (const StagingHandle& pool : {handle.staging, handle.bounce}) EXPECT_EQ(limit_of(*pool.grants), 0u);
}

std::ptrdiff_t entries_of(const std::string& folder) {
  std::error_code error;
  return std::distance(std::filesystem::directory_iterator(folder, error), {});
}

TEST_F(OnHca, newest_events_leave_no_file_behind) {
  const std::string device = "/sys/class/infiniband/" + hca().name();
  std::string file;
  std::ptrdiff_t before = 0;
  for (int round = 0; round < 5; ++round) {
    auto endpoint = Endpoint::create(hca(), nullptr, {});
    ASSERT_TRUE(endpoint) << endpoint.error().message;
    const auto events = endpoint->newest_events();
    ASSERT_TRUE(events) << events.error().message;
    file = fmt::format("{}/softhca_flight/{:#x}", device, endpoint->address().qpn);
    EXPECT_TRUE(std::ifstream(file)) << file;
    if (round == 0) before = entries_of("/proc/self/fd");
    EXPECT_EQ(entries_of("/proc/self/fd"), before);
  }
  EXPECT_EQ(entries_of(device + "/softhca_flight"), 0);
  EXPECT_FALSE(std::ifstream(file)) << "of a queue pair that has gone";
  EXPECT_EQ(errno, ENOENT);
}

TEST_F(OnHca, endpoints_share_no_register) {
  for (const DoorbellKind kind : {DoorbellKind::kPlain, DoorbellKind::kBlueFlame}) {
    std::vector<Endpoint> endpoints;
    std::set<std::uint64_t*> registers;
    std::set<std::uint32_t> psns;
    for (int i = 0; i < 3; ++i) {
      auto endpoint = Endpoint::create(hca(), nullptr, {.doorbell = kind});
      ASSERT_TRUE(endpoint) << endpoint.error().message;
      EXPECT_EQ(endpoint->handle().blueflame_half_bytes, kind == DoorbellKind::kBlueFlame ? 256u : 0u);
      registers.insert(endpoint->handle().doorbell);
      psns.insert(endpoint->address().psn);
      endpoints.push_back(std::move(*endpoint));
    }
    EXPECT_EQ(registers.size(), 3u) << name(kind);
    EXPECT_EQ(psns.size(), 3u) << "they are random";
  }
}

// Kernels believe in slots without end; the scheduler knows of none.
TEST_F(OnHca, endpoint_without_credits_has_every_slot_and_holds_none) {
  auto pool = StagingPool::create(hca());
  ASSERT_TRUE(pool);
  testing::internal::CaptureStderr();
  auto endpoint = Endpoint::create(hca(), &*pool, {.slot_count = 4, .unsafe_push_without_credits = true});
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("warning: endpoint option unsafe_push_without_credits: payload of HCA " +
                        hca().name() + "'s staging pool will be damaged"));
  ASSERT_TRUE(endpoint) << endpoint.error().message;
  const StagingHandle staging = endpoint->handle().staging;
  EXPECT_EQ(*staging.grants, pack_grants(0, kUnlimitedSlots));
  EXPECT_EQ(staging.minimum_slots, kUnlimitedSlots);
  for (std::uint32_t slot = 0; slot < 32; ++slot) EXPECT_EQ(staging.held[slot].slot, slot);
  const StagingState state = endpoint->state().staging;
  EXPECT_EQ(std::tuple(state.ready, state.limit, state.taken), std::tuple(1u << 31, kUnlimitedSlots, 0u));
  endpoint->abort();
  EXPECT_EQ(pool->leased_slots(), 0u);
}

TEST_F(OnHca, options_of_auto_arrive_in_the_handle) {
  const ModeTable table{60, 60, kNoSizeLimit};
  for (const Sharing sharing : {Sharing::kExclusive, Sharing::kShared}) {
    const auto endpoint =
        Endpoint::create(hca(), nullptr, {.sharing = sharing, .auto_modes = {.table = table}});
    ASSERT_TRUE(endpoint) << endpoint.error().message;
    const std::uint64_t inline_bytes = sharing == Sharing::kShared ? kSharedInlineBytes : 60;
    EXPECT_EQ(endpoint->handle().modes, (ModeTable{inline_bytes, table.push_bytes, table.pull_bytes}));
    EXPECT_EQ(endpoint->handle().sharing, sharing);
  }
}

TEST_F(OnHca, endpoint_closes_its_slots_come_back) {
  auto pool = StagingPool::create(hca());
  ASSERT_TRUE(pool);
  for (int round = 0; round < 3; ++round) {
    std::vector<Endpoint> endpoints;
    for (std::uint32_t i = 0; i < pool->slot_count(); ++i) {
      auto endpoint = Endpoint::create(hca(), &*pool, {.slot_count = pool->slot_count()});
      ASSERT_TRUE(endpoint) << endpoint.error().message;
      endpoints.push_back(std::move(*endpoint));
    }
    EXPECT_EQ(pool->free_slots(), 0u);
    const auto refused = Endpoint::create(hca(), &*pool, {.slot_count = 1});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().status, Status::kBusy);
    EXPECT_THAT(refused.error().message, HasSubstr("32 are promised"));
  }
  EXPECT_EQ(pool->leased_slots(), 0u);
}

TEST_F(OnHca, endpoint_without_staging_has_an_empty_staging_handle) {
  const auto endpoint = Endpoint::create(hca(), nullptr);
  ASSERT_TRUE(endpoint) << endpoint.error().message;
  EXPECT_EQ(endpoint->handle().staging.slot_count, 0u);
  EXPECT_EQ(endpoint->handle().staging.base, nullptr);
  EXPECT_EQ(Endpoint::create(hca(), nullptr, {.slot_count = 4}).error().status, Status::kInvalidArgument);
}

TEST_F(OnHca, impossible_peer_address_is_refused_and_the_endpoint_stays_usable) {
  auto endpoint = Endpoint::create(hca(), nullptr);
  auto peer = Endpoint::create(hca(), nullptr);
  ASSERT_TRUE(endpoint && peer);
  auto address = peer->address();
  address.qpn = 0;
  EXPECT_EQ(endpoint->connect(address).error().status, Status::kInvalidArgument);
  EXPECT_TRUE(endpoint->connect(peer->address()));
}

TEST_F(OnHca, peer_on_a_port_of_the_other_link_layer_is_refused) {
  auto endpoint = Endpoint::create(hca(), nullptr);
  ASSERT_TRUE(endpoint);
  auto address = endpoint->address();
  address.lid = address.lid == 0 ? 7 : 0;
  const auto refused = endpoint->connect(address);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, Status::kInvalidArgument);
  EXPECT_THAT(refused.error().message, HasSubstr("InfiniBand"));
  EXPECT_TRUE(endpoint->connect(endpoint->address()));
}

TEST_F(OnHca, moved_hca_endpoints_made_before_still_connect) {
  auto opened = Hca::open();
  ASSERT_TRUE(opened);
  std::optional<Hca> home;  // before the endpoint, which it must outlive
  auto endpoint = Endpoint::create(*opened, nullptr);
  ASSERT_TRUE(endpoint);
  home.emplace(std::move(*opened));
  EXPECT_TRUE(endpoint->connect(endpoint->address()));
}

TEST_F(OnHca, assigned_to_the_old_device_is_closed_and_the_new_one_works) {
  auto first = Hca::open();
  auto second = Hca::open();
  ASSERT_TRUE(first && second);
  Hca hca = std::move(*first);
  hca = std::move(*second);
  EXPECT_TRUE(allocate_memory(hca, 64));
}

}  // namespace endpoint_test
}  // namespace gdx
