// Bad keys, bad ranges and broken credits: one clear status each, and the audit counts the violations.
#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "device/endpoint.h"
#include "tests/e2e/pair.h"

namespace gdx {
namespace fault_test {

// The end of a fault's text.
std::string local_text(const LocalMemory& local) {
  return fmt::format(", local {} (lkey {:#x})", fmt::ptr(local.address), std::uint32_t{local.lkey});
}

class Fault : public Pair {
 protected:
  // Posts one operation that must end as `status` with `syndrome`, and nothing may have changed at the peer.
  template <typename Post>
  void expect_fault(Post post, Status status, mlx5::Syndrome syndrome) {
    std::fill_n(b_.buffer->data(), kBufferBytes, std::byte{0xee});
    in_kernel(a_, [&](auto& ep) {
      EXPECT_EQ(post(ep), Status::kOk) << "posting succeeds, completion does not";
      EXPECT_EQ(gdx_flush(ep), status);
      EXPECT_EQ(post(ep), status) << "the error is sticky";
    });
    EXPECT_EQ(a_.endpoint->fault().status, status);
    EXPECT_EQ(a_.endpoint->fault().syndrome, static_cast<std::uint8_t>(syndrome));
    const std::vector<std::byte> untouched(kBufferBytes, std::byte{0xee});
    EXPECT_EQ(std::memcmp(b_.buffer->data(), untouched.data(), kBufferBytes), 0);
  }
};

TEST_F(Fault, put_with_a_wrong_rkey_is_remote_access) {
  RemoteMemory wrong = a_.peer;
  wrong.rkey = wrong.rkey ^ 0x10001u;
  expect_fault([&](auto& ep) { return gdx_put<Mode::kPull>(ep, wrong, a_.buffer->local(), 64); },
               Status::kRemoteAccess, mlx5::Syndrome::kRemoteAccess);
  EXPECT_EQ(a_.endpoint->describe_fault(),
            text_of("RDMA WRITE of 64 B", wrong) + local_text(a_.buffer->local()));
  const auto events = a_.endpoint->newest_events();
  ASSERT_TRUE(events) << events.error().message;
  const std::size_t fetched = events->find(" fetch     WQE 0: RDMA WRITE of 64 B");
  const std::size_t failed = events->find(" complete  WQE 0: syndrome 0x13 (remote access error)");
  const std::size_t ended = events->find(" state     ERROR");
  EXPECT_TRUE(fetched < failed && failed < ended && ended != std::string::npos) << *events;
}

TEST_F(Fault, put_one_byte_beyond_the_region_is_remote_access) {
  expect_fault(
      [&](auto& ep) {
        return gdx_put<Mode::kPull>(ep, a_.peer + (kBufferBytes - 63), a_.buffer->local(), 64);
      },
      Status::kRemoteAccess, mlx5::Syndrome::kRemoteAccess);
}

TEST_F(Fault, put_from_unregistered_memory_is_local_protection) {
  std::vector<std::byte> unregistered(64);
  const LocalMemory local{unregistered.data(), 64, 0x12345, 0};
  expect_fault([&](auto& ep) { return gdx_put<Mode::kPull>(ep, a_.peer, local, 64); },
               Status::kLocalProtection, mlx5::Syndrome::kLocalProtection);
}

TEST_F(Fault, put_from_beyond_the_region_is_local_protection) {
  expect_fault(
      [&](auto& ep) {
        return gdx_put<Mode::kPull>(ep, a_.peer, a_.buffer->local() + (kBufferBytes - 63), 64);
      },
      Status::kLocalProtection, mlx5::Syndrome::kLocalProtection);
}

TEST_F(Fault, get_into_unregistered_memory_is_local_protection) {
  std::vector<std::byte> unregistered(64);
  const LocalMemory local{unregistered.data(), 64, 0x12345, 0};
  expect_fault([&](auto& ep) { return gdx_get(ep, local, a_.peer, 64); }, Status::kLocalProtection,
               mlx5::Syndrome::kLocalProtection);
  EXPECT_EQ(a_.endpoint->describe_fault(), text_of("RDMA READ of 64 B", a_.peer) + local_text(local));
}

TEST_F(Fault, atomic_at_a_misaligned_address_is_remote_invalid) {
  expect_fault([&](auto& ep) { return gdx_fetch_add(ep, a_.buffer->local(), a_.peer + 4, 1); },
               Status::kRemoteInvalid, mlx5::Syndrome::kRemoteInvalidRequest);
  EXPECT_EQ(a_.endpoint->describe_fault(),
            text_of("atomic fetch-and-add of 8 B", a_.peer + 4) + local_text(a_.buffer->local()));
}

TEST_F(Fault, write_without_remote_write_permission_is_remote_access) {
  auto read_only = allocate_memory(*hca_, 4096, Access::kLocalWrite | Access::kRemoteRead);
  ASSERT_TRUE(read_only) << read_only.error().message;
  expect_fault(
      [&](auto& ep) { return gdx_put<Mode::kInline>(ep, read_only->remote(), a_.buffer->local(), 8); },
      Status::kRemoteAccess, mlx5::Syndrome::kRemoteAccess);
  EXPECT_EQ(a_.endpoint->describe_fault(), text_of("RDMA WRITE of 8 B", read_only->remote()));
}

using Open = Pair;

TEST_F(Open, two_blocks_on_one_endpoint_lose_no_call_that_said_ok) {
  constexpr unsigned kAdds = 100;
  std::atomic<unsigned> posted = 0;
  std::atomic<unsigned> refused = 0;
  std::atomic<unsigned> opened = 0;
  const auto kernel = [&](EndpointHandle handle) {
    device::Endpoint<> ep(handle);
    ++opened;
    while (opened != 2) exec::yield();
    for (unsigned i = 0; i < kAdds; ++i) {
      const Status status = gdx_signal(ep, a_.peer, 1, SignalOp::kAdd);
      (status == Status::kOk ? posted : refused) += status == Status::kOk || status == Status::kBusy;
    }
    EXPECT_EQ(gdx_flush(ep), ep.status());
  };
  ASSERT_EQ(exec::launch({.grid = {2}, .progress = progress_}, kernel, a_.endpoint->handle()), Status::kOk);
  EXPECT_EQ(posted, kAdds);
  EXPECT_EQ(refused, kAdds);
  EXPECT_EQ(*reinterpret_cast<const std::uint64_t*>(b_.buffer->data()), kAdds);
}

TEST_F(Open, kernel_that_never_closed_is_followed_after_reopen) {
  const auto open_and_leave = [](EndpointHandle handle) {
    EXPECT_EQ(device::impl::take_endpoint(handle), Status::kOk);
  };
  ASSERT_EQ(exec::launch({}, open_and_leave, a_.endpoint->handle()), Status::kOk);
  in_kernel(a_, [&](auto& ep) { EXPECT_EQ(gdx_signal(ep, a_.peer, 1), Status::kBusy); });
  ASSERT_TRUE(a_.endpoint->reopen());
  in_kernel(a_, [&](auto& ep) {
    EXPECT_EQ(gdx_signal(ep, a_.peer, 1), Status::kOk);
    EXPECT_EQ(gdx_flush(ep), Status::kOk);
  });
}

// Tries every endpoint of `handles` by its sharing, and expects kNotConnected.
void expect_not_connected(std::span<const EndpointHandle> handles) {
  for (const EndpointHandle& of : handles) {
    const auto kernel = [](EndpointHandle handle) {
      const auto refuse = [](auto& ep) {
        EXPECT_EQ(ep.status(), Status::kNotConnected);
        EXPECT_EQ(gdx_signal(ep, RemoteMemory{}, 1), Status::kNotConnected);
        EXPECT_EQ(gdx_flush(ep), Status::kNotConnected);
      };
      if (handle.sharing == Sharing::kShared) {
        device::SharedEndpoint<> ep(handle);
        refuse(ep);
      } else {
        device::Endpoint<> ep(handle);
        refuse(ep);
      }
    };
    ASSERT_EQ(exec::launch({}, kernel, of), Status::kOk);
  }
}

TEST_F(Open, endpoints_not_connected_or_destroyed_are_refused_and_reuse_of_their_words_changes_nothing) {
  std::vector<EndpointHandle> handles;
  const auto make = [&](Sharing sharing) {
    auto endpoint = Endpoint::create(*hca_, nullptr, {.sharing = sharing});
    EXPECT_TRUE(endpoint) << endpoint.error().message;
    EXPECT_EQ(endpoint->reopen().error().status, Status::kNotConnected);
    handles.push_back(endpoint->handle());
    return endpoint;
  };
  for (const Sharing sharing : {Sharing::kExclusive, Sharing::kShared}) {
    auto endpoint = make(sharing);
    expect_not_connected(handles);
    ASSERT_TRUE(endpoint->connect(endpoint->address()));
    in_kernel(a_, [](auto& ep) { EXPECT_EQ(ep.status(), Status::kOk); });
  }
  expect_not_connected(handles);
  for (const Sharing sharing : {Sharing::kExclusive, Sharing::kShared}) {
    auto endpoint = make(sharing);
    ASSERT_TRUE(endpoint->connect(endpoint->address()));
    EXPECT_EQ(handles.back().owner, handles.front().owner) << "the word is used again";
    expect_not_connected(std::span(handles).first(handles.size() - 1));
  }
  expect_not_connected(handles);
}

// The audit must be able to fire: slots sent again before they are free, and stores to a slot in flight.
class Audit : public Pair {};

TEST_F(Audit, push_without_credits_is_counted_as_a_violation) {
  const std::uint64_t before = staging_violations();
  // Every slot twice behind one doorbell: the HCA fetches both uses before it has sent the first.
  const auto kernel = [&](EndpointHandle h) {
    device::Endpoint<> ep(h);
    auto& open = device::impl::Access::state_of(ep);
    for (std::uint32_t round = 0; round < 2; ++round) {
      for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
        ASSERT_EQ(open.reserve_blocks(1), Status::kOk);
        const std::uint64_t at = static_cast<std::uint64_t>(slot) * h.staging.slot_bytes;
        const std::uint32_t index = open.take_blocks(1);
        device::impl::store_wqe(open, index,
                                device::impl::transfer_wqe(open, index, mlx5::WqeOpcode::kRdmaWrite, a_.peer,
                                                           device::impl::slot_memory(h.staging, at), 64));
      }
    }
    ASSERT_EQ(gdx_flush(ep), Status::kOk);
  };
  ASSERT_EQ(exec::launch({.progress = progress_}, kernel, a_.endpoint->handle()), Status::kOk);
  EXPECT_EQ(staging_violations() - before, kSlots);
}

TEST_F(Audit, store_to_a_held_slot_is_counted_as_a_violation) {
  const std::uint64_t before = staging_violations();
  b_.endpoint.reset();  // no peer acknowledges: the slot stays held until the transport gives up
  const auto kernel = [&](EndpointHandle h) {
    device::Endpoint<> ep(h);
    ASSERT_EQ(gdx_put<Mode::kPush>(ep, a_.peer, a_.buffer->local(), 64), Status::kOk);
    // A count of 8 B never comes back to what it was when the WQE was fetched.
    for (std::uint64_t turn = 1; ep.status() == Status::kOk; ++turn) {
      std::memcpy(h.staging.base, &turn, sizeof turn);
      exec::relax();
      device::impl::Access::state_of(ep).drain();
    }
    EXPECT_EQ(ep.status(), Status::kPeerUnreachable);
  };
  ASSERT_EQ(exec::launch({.progress = progress_}, kernel, a_.endpoint->handle()), Status::kOk);
  EXPECT_EQ(staging_violations() - before, 1u);
}

}  // namespace fault_test
}  // namespace gdx
