// Messages with open files between processes of one node: whole, closed on exec, bounded, and never leaked.
#include "host/bootstrap/local_socket.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "tests/open_files.h"
#include "tests/unit/host/loopback.h"

namespace gdx::bootstrap {
namespace local_socket_test {

using test::kLongNs;
using test::kShortNs;
using test::open_files;

std::uint64_t soon() { return monotonic_ns() + kLongNs; }
std::uint64_t at_once() { return monotonic_ns() + kShortNs; }
std::string own_name(const char* name) { return fmt::format("gdx-test-{}-{}", ::getpid(), name); }

struct Ends {
  Descriptor here;
  Descriptor there;
};
Ends connected(const char* name) {
  auto listener = listen_local(own_name(name));
  EXPECT_TRUE(listener);
  auto here = connect_local(own_name(name));
  EXPECT_TRUE(here);
  auto there = accept_local(*listener, soon());
  EXPECT_TRUE(there);
  return {std::move(*here), std::move(*there)};
}

TEST(LocalSocket, room_in_a_full_queue_is_waited_for) {
  const auto listener = listen_local(own_name("full"));
  ASSERT_TRUE(listener);
  ASSERT_EQ(::listen(listener->value(), 1), 0);
  std::vector<Result<Descriptor>> callers;
  do {
    callers.push_back(connect_local(own_name("full")));
  } while (callers.back());
  EXPECT_EQ(callers.back().error().status, Status::kBusy);
  EXPECT_EQ(connect_local(own_name("full"), at_once()).error().status, Status::kBusy);
  std::thread accepts([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    EXPECT_TRUE(accept_local(*listener, soon()));
  });
  EXPECT_TRUE(connect_local(own_name("full"), soon()));
  accepts.join();
}

TEST(LocalSocket, what_was_sent_before_a_close_arrives_though_the_close_left_something_unread) {
  Ends ends = connected("unread");
  const std::byte any{9};
  ASSERT_TRUE(send_local(ends.here, {&any, 1}, {}, soon()));
  ASSERT_TRUE(send_local(ends.there, {&any, 1}, {}, soon()));
  ends.there.close();
  EXPECT_TRUE(receive_local(ends.here, soon()));
  EXPECT_EQ(receive_local(ends.here, soon()).error().status, Status::kPeerGone);
}

TEST(LocalSocket, message_arrives_with_its_files_which_close_on_exec) {
  Ends ends = connected("files");
  Descriptor file(memfd_create("a", MFD_CLOEXEC));
  ASSERT_EQ(::write(file.value(), "gdx", 3), 3);
  const int twice[] = {file.value(), file.value()};
  const std::vector<std::byte> bytes(100, std::byte{7});
  ASSERT_TRUE(send_local(ends.here, bytes, twice, soon()));
  file.close();
  const auto message = receive_local(ends.there, soon());
  ASSERT_TRUE(message) << message.error().message;
  EXPECT_EQ(message->bytes, bytes);
  ASSERT_EQ(message->descriptors.size(), 2u);
  for (const Descriptor& received : message->descriptors) {
    EXPECT_NE(fcntl(received.value(), F_GETFD) & FD_CLOEXEC, 0);
    char text[3] = {};
    EXPECT_EQ(::pread(received.value(), text, 3, 0), 3);
    EXPECT_EQ(std::string(text, 3), "gdx");
  }
  for (const Descriptor* end : {&ends.here, &ends.there}) {
    EXPECT_NE(fcntl(end->value(), F_GETFD) & FD_CLOEXEC, 0);
  }
}

TEST(LocalSocket, most_files_at_once_arrive_and_all_are_closed_with_the_message) {
  Ends ends = connected("most");
  const std::size_t before = open_files();
  {
    const Descriptor file(memfd_create("a", MFD_CLOEXEC));
    const std::vector<int> many(kMaxLocalMessageDescriptors, file.value());
    const std::vector<std::byte> bytes(kMaxLocalMessageBytes);
    ASSERT_TRUE(send_local(ends.here, bytes, many, soon()));
    const auto message = receive_local(ends.there, soon());
    ASSERT_TRUE(message) << message.error().message;
    EXPECT_EQ(message->descriptors.size(), kMaxLocalMessageDescriptors);
    EXPECT_EQ(message->bytes.size(), kMaxLocalMessageBytes);
  }
  EXPECT_EQ(open_files(), before);
}

TEST(LocalSocket, message_beyond_the_limits_is_refused_by_both_ends_and_leaks_nothing) {
  Ends ends = connected("beyond");
  const std::size_t before = open_files();
  std::vector<std::byte> bytes(kMaxLocalMessageBytes + 1);
  EXPECT_EQ(send_local(ends.here, bytes, {}, soon()).error().status, Status::kInvalidLength);
  EXPECT_EQ(send_local(ends.here, {}, {}, soon()).error().status, Status::kInvalidLength);
  ASSERT_EQ(::send(ends.here.value(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  EXPECT_EQ(receive_local(ends.there, soon()).error().status, Status::kInvalidArgument);
  // More files than fit: Linux passes on what fits.
  std::vector<int> many(kMaxLocalMessageDescriptors + 20, ends.here.value());
  EXPECT_EQ(send_local(ends.here, std::span(bytes).first(1), many, soon()).error().status,
            Status::kInvalidLength);
  std::vector<std::byte> control(CMSG_SPACE(many.size() * sizeof(int)));
  iovec content{bytes.data(), 1};
  msghdr message{};
  message.msg_iov = &content;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(many.size() * sizeof(int));
  std::memcpy(CMSG_DATA(rights), many.data(), many.size() * sizeof(int));
  ASSERT_EQ(::sendmsg(ends.here.value(), &message, 0), 1);
  EXPECT_EQ(receive_local(ends.there, soon()).error().status, Status::kInvalidArgument);
  EXPECT_EQ(open_files(), before);
}

TEST(LocalSocket, used_up_descriptors_refuse_whoever_connects_and_nobody_else) {
  auto listener = listen_local(own_name("descriptors"));
  ASSERT_TRUE(listener);
  const auto accepted_at_once = [&] {
    const test::OpenFileLimit used_up(test::next_open_file());
    return accept_local(*listener, at_once()).error().status;
  };
  EXPECT_EQ(accepted_at_once(), Status::kTimeout);
  const auto here = connect_local(own_name("descriptors"));
  ASSERT_TRUE(here);
  EXPECT_EQ(accepted_at_once(), Status::kSystem);
}

TEST(LocalSocket, waits_end_at_their_deadline_and_with_the_other_end) {
  auto listener = listen_local(own_name("waits"));
  ASSERT_TRUE(listener);
  EXPECT_EQ(accept_local(*listener, at_once()).error().status, Status::kTimeout);
  auto here = connect_local(own_name("waits"));
  ASSERT_TRUE(here);
  EXPECT_EQ(receive_local(*here, at_once()).error().status, Status::kTimeout);
  auto there = accept_local(*listener, soon());
  ASSERT_TRUE(there);
  there->close();
  EXPECT_EQ(receive_local(*here, soon()).error().status, Status::kPeerGone);
  const std::byte byte{};
  EXPECT_EQ(send_local(*here, std::span(&byte, 1), {}, soon()).error().status, Status::kPeerGone);
}

TEST(LocalSocket, names_are_one_listeners_and_nobodys_afterwards) {
  {
    auto listener = listen_local(own_name("one"));
    ASSERT_TRUE(listener);
    EXPECT_EQ(listen_local(own_name("one")).error().status, Status::kBusy);
  }
  EXPECT_EQ(connect_local(own_name("one")).error().status, Status::kNotFound);
  EXPECT_EQ(connect_local("").error().status, Status::kInvalidArgument);
  EXPECT_EQ(connect_local(std::string(200, 'x')).error().status, Status::kInvalidArgument);
}

TEST(LocalSocket, other_ends_user_is_known) {
  Ends ends = connected("user");
  const auto peer = peer_of(ends.there);
  ASSERT_TRUE(peer);
  EXPECT_EQ(peer->uid, ::geteuid());
}

}  // namespace local_socket_test
}  // namespace gdx::bootstrap
