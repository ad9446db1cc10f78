#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "base/clock.h"
#include "driver-shim/softhca/wire/icrc_check.h"
#include "tests/unit/wire/shared_memory_ends.h"

namespace gdx::softhca::wire {
namespace shared_memory_hostile_test {

// A process of our own user, so that only what it does tells it from a peer.
class HostilePeer : public testing::Test {
 protected:
  void SetUp() override {
    Result<BoundSocket> made = bind_socket("", kSocketBufferBytes);
    ASSERT_TRUE(made) << made.error().message;
    held = std::move(*made);
  }

  Descriptor call(const SharedMemory::Made& made) {
    Result<Descriptor> socket = call_as(held.address, victim->local(), made.file.value());
    EXPECT_TRUE(socket) << (socket ? "" : socket.error().message);
    return socket ? std::move(*socket) : Descriptor();
  }

  // Returns whether the victim has closed `socket`.
  bool hung_up(const Descriptor& socket) {
    EXPECT_TRUE(receive_all(*victim).empty());
    return !drain_wakeups(socket.value());
  }

  BoundSocket held;
  std::unique_ptr<Wire> victim = open(Carrier::kSharedMemory);
};

TEST_F(HostilePeer, scribbled_index_closes_the_link) {
  Result<SharedMemory::Made> made = SharedMemory::create();
  ASSERT_TRUE(made);
  const Descriptor socket = call(*made);
  EXPECT_FALSE(hung_up(socket));
  made->memory.control().tail = ~std::uint64_t{63};
  EXPECT_TRUE(hung_up(socket));
}

TEST_F(HostilePeer, scribbled_length_closes_the_link) {
  Result<SharedMemory::Made> made = SharedMemory::create();
  ASSERT_TRUE(made);
  const Descriptor socket = call(*made);
  const RingRecord record{0xfffffff0, 0};
  std::memcpy(made->memory.data(), &record, sizeof record);
  made->memory.control().tail = kRecordAlignBytes;
  EXPECT_TRUE(hung_up(socket));
}

TEST_F(HostilePeer, caller_that_calls_again_has_one_link) {
  Result<SharedMemory::Made> first = SharedMemory::create();
  Result<SharedMemory::Made> second = SharedMemory::create();
  ASSERT_TRUE(first && second);
  const Descriptor before = call(*first);
  EXPECT_FALSE(hung_up(before));
  const Descriptor after = call(*second);
  EXPECT_FALSE(hung_up(after));
  EXPECT_TRUE(hung_up(before));
}

TEST_F(HostilePeer, record_too_short_for_its_icrc_is_dropped) {
  Result<SharedMemory::Made> made = SharedMemory::create();
  ASSERT_TRUE(made);
  const Descriptor socket = call(*made);
  const RingRecord record{3, kRecordHasIcrc};
  std::memcpy(made->memory.data(), &record, sizeof record);
  made->memory.control().tail = kRecordAlignBytes;
  EXPECT_FALSE(hung_up(socket));
  EXPECT_EQ(victim->counters().icrc_errors, 1u);
}

TEST_F(HostilePeer, scribbled_consumer_index_of_the_victims_own_link_is_abandoned) {
  const Result<Descriptor> listener = listen_for_calls(held.address);
  ASSERT_TRUE(listener) << listener.error().message;
  send(*victim, held.address, 1, 20);
  victim->flush();
  const Descriptor caller = accept_call(listener->value());
  Result<std::optional<Call>> call = receive_call(caller.value());
  ASSERT_TRUE(call && *call);
  const Result<SharedMemory> ring = SharedMemory::adopt((*call)->memory.value());
  ASSERT_TRUE(ring) << ring.error().message;
  ring->control().head = ~std::uint64_t{0};
  EXPECT_FALSE(hung_up(caller));
  static_cast<void>(victim->room(held.address));  // looks at the index
  send(*victim, held.address, 1, 20);
  EXPECT_TRUE(hung_up(caller));
}

TEST_F(HostilePeer, memory_that_could_be_cut_short_is_refused) {
  const Descriptor file(memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  Result<SharedMemory::Made> model = SharedMemory::create();
  ASSERT_TRUE(model);
  ASSERT_EQ(ftruncate(file.value(), lseek(model->file.value(), 0, SEEK_END)), 0);
  const auto unsealed = SharedMemory::adopt(file.value());
  ASSERT_FALSE(unsealed);
  EXPECT_EQ(unsealed.error().status, Status::kInvalidArgument);
  ASSERT_EQ(fcntl(file.value(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  EXPECT_TRUE(SharedMemory::adopt(file.value())) << "the seals were all that was missing";
}

TEST_F(HostilePeer, memory_of_another_size_is_refused) {
  const Descriptor file(memfd_create("small", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(file.value(), 4096), 0);
  ASSERT_EQ(fcntl(file.value(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  const Result<Descriptor> socket = call_as(held.address, victim->local(), file.value());
  ASSERT_TRUE(socket);
  EXPECT_TRUE(hung_up(*socket));
}

// The name of an address is free for all, the address is not.
TEST_F(HostilePeer, caller_for_an_address_that_it_does_not_hold_is_refused) {
  Result<SharedMemory::Made> made = SharedMemory::create();
  ASSERT_TRUE(made);
  const Address nobodys = Address::ipv4(0x7f000001);
  const Result<Descriptor> socket = call_as(nobodys, victim->local(), made->file.value());
  ASSERT_TRUE(socket);
  EXPECT_TRUE(hung_up(*socket));
}

TEST_F(HostilePeer, listener_for_an_address_that_it_does_not_hold_is_not_trusted) {
  const Address nobodys = Address::ipv4(0x7f000001);
  const Result<Descriptor> squatter = listen_for_calls(nobodys);
  ASSERT_TRUE(squatter) << squatter.error().message;
  const auto link = open_link(victim->local(), nobodys);
  ASSERT_FALSE(link);
  EXPECT_EQ(link.error().status, Status::kNotFound);
}

// Another user's process, in the name of an address that is ours.
TEST_F(HostilePeer, caller_of_another_user_than_the_holder_is_refused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user: run it as root";
  constexpr uid_t kNobody = 65534;
  const Address to = victim->local();
  Result<SharedMemory::Made> made = SharedMemory::create();
  ASSERT_TRUE(made);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(200);
    if (setresuid(kNobody, kNobody, kNobody) != 0) _exit(1);
    const Result<Descriptor> socket = call_as(held.address, to, made->file.value());
    if (!socket) _exit(2);
    pollfd file{socket->value(), POLLIN, 0};
    poll(&file, 1, 120'000);
    _exit((file.revents & POLLHUP) != 0 ? 0 : 3);
  }
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) EXPECT_TRUE(receive_all(*victim).empty());
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(HostilePeer, silent_and_babbling_callers_are_forgotten) {
  std::vector<Descriptor> callers;
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  const std::string text = "gdx-softhca-ring-1/" + victim->local().text();
  text.copy(name.sun_path + 1, text.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  testing::internal::CaptureStderr();
  for (int i = 0; i < 40; ++i) {
    Descriptor caller(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    ASSERT_EQ(connect(caller.value(), reinterpret_cast<const sockaddr*>(&name), length), 0);
    const bool babbles = i % 2 == 0;
    EXPECT_TRUE(!babbles || ::send(caller.value(), "babble", 6, 0) == 6);
    EXPECT_TRUE(receive_all(*victim).empty());
    callers.push_back(std::move(caller));
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, testing::EndsWith(victim->local().text() +
                                      ": a caller on this host sent no call of an HCA; refused\n"));
  EXPECT_EQ(std::ranges::count(said, '\n'), 1) << said;
  EXPECT_FALSE(drain_wakeups(callers[0].value())) << "babbled";
  EXPECT_FALSE(drain_wakeups(callers[1].value())) << "was silent for too long";
  EXPECT_TRUE(drain_wakeups(callers[39].value())) << "may yet speak";
}

TEST_F(HostilePeer, descriptors_that_no_call_needs_are_closed) {
  const auto open_files = [] {
    const std::filesystem::directory_iterator entries("/proc/self/fd");
    return std::distance(begin(entries), end(entries));
  };
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  const std::string text = "gdx-softhca-ring-1/" + victim->local().text();
  text.copy(name.sun_path + 1, text.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  const auto before = open_files();
  for (int i = 0; i < 20; ++i) {
    Descriptor caller(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    ASSERT_EQ(connect(caller.value(), reinterpret_cast<const sockaddr*>(&name), length), 0);
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(2 * sizeof(int))> control{};
    const std::array<int, 2> fds{caller.value(), caller.value()};
    char byte = 0;
    iovec vector{&byte, 1};
    msghdr message{};
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fds);
    std::memcpy(CMSG_DATA(header), fds.data(), sizeof fds);
    ASSERT_EQ(sendmsg(caller.value(), &message, 0), 1);
    EXPECT_TRUE(receive_all(*victim).empty());
  }
  EXPECT_LT(open_files() - before, 20);
}

}  // namespace shared_memory_hostile_test
}  // namespace gdx::softhca::wire
