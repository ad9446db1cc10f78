// A client of the RDMA netlink family.
#pragma once

#include <gtest/gtest.h>
#include <linux/netlink.h>
#include <rdma/rdma_netlink.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "driver-shim/softhca/uverbs/netlink_message.h"

namespace gdx::abi_tests {

using softhca::uverbs::netlink_attributes;
using softhca::uverbs::NetlinkAttributes;
using softhca::uverbs::NetlinkMessage;

class Netlink {
 public:
  using Numbers = std::initializer_list<std::pair<std::uint16_t, std::uint32_t>>;

  Netlink() : fd_(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_RDMA)) {
    EXPECT_GE(fd_, 0) << errno;
    const timeval limit{.tv_sec = 20, .tv_usec = 0};
    EXPECT_EQ(setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
    sockaddr_nl any{};
    any.nl_family = AF_NETLINK;
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&any), sizeof any), 0) << errno;
  }
  ~Netlink() { close(fd_); }
  Netlink(const Netlink&) = delete;
  Netlink& operator=(const Netlink&) = delete;
  [[nodiscard]] int fd() const { return fd_; }

  bool send(const std::string& datagram) const {
    sockaddr_nl kernel{};
    kernel.nl_family = AF_NETLINK;
    return sendto(fd_, datagram.data(), datagram.size(), 0, reinterpret_cast<sockaddr*>(&kernel),
                  sizeof kernel) == static_cast<ssize_t>(datagram.size());
  }
  bool ask(std::uint16_t command, std::uint16_t flags, Numbers numbers = {}) const {
    NetlinkMessage request(type_of(command), static_cast<std::uint16_t>(NLM_F_REQUEST | flags), kSequence, 0);
    for (const auto& [attribute, value] : numbers) request.put(attribute, value);
    return send(request.finish());
  }
  // The next datagram's message; its header alone where it is none of the kernel's.
  std::vector<std::byte> receive() {
    std::vector<std::byte> bytes(8192);
    iovec piece{bytes.data(), bytes.size()};
    sockaddr_nl from{};
    msghdr message{};
    message.msg_name = &from;
    message.msg_namelen = sizeof from;
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    const ssize_t length = recvmsg(fd_, &message, 0);
    EXPECT_GE(length, static_cast<ssize_t>(sizeof(nlmsghdr))) << errno;
    EXPECT_EQ(message.msg_namelen, sizeof from);
    EXPECT_EQ(from.nl_family, AF_NETLINK);
    EXPECT_EQ(message.msg_flags & MSG_TRUNC, 0);
    bytes.resize(length < 0 ? 0 : static_cast<std::size_t>(length));
    bytes.resize(std::max(bytes.size(), sizeof(nlmsghdr)));
    EXPECT_EQ(header_of(bytes).nlmsg_len, bytes.size());
    return bytes;
  }
  static nlmsghdr header_of(std::span<const std::byte> message) {
    nlmsghdr header{};
    std::memcpy(&header, message.data(), sizeof header);
    return header;
  }
  static NetlinkAttributes attributes_of(std::span<const std::byte> message) {
    return netlink_attributes(message.subspan(sizeof(nlmsghdr)));
  }
  // The errno of an error or of the end of a dump; none of any other message.
  static std::optional<int> error_of(std::span<const std::byte> message) {
    const nlmsghdr header = header_of(message);
    if (header.nlmsg_type != NLMSG_ERROR && header.nlmsg_type != NLMSG_DONE) return std::nullopt;
    int error = 0;
    std::memcpy(&error, message.data() + sizeof header, sizeof error);
    return -error;
  }
  template <typename T = std::uint32_t>
  static T value(const NetlinkAttributes& attributes, std::uint16_t attribute) {
    T result{};
    const auto found = attributes.find(attribute);
    if (found == attributes.end() || found->second.size() < sizeof result) {
      ADD_FAILURE() << "no attribute " << attribute;
      return result;
    }
    std::memcpy(&result, found->second.data(), sizeof result);
    return result;
  }

  static std::uint16_t type_of(std::uint32_t command) {
    return static_cast<std::uint16_t>(RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, command));
  }

  struct Entry {
    std::vector<std::byte> bytes;
    [[nodiscard]] NetlinkAttributes attributes() const { return netlink_attributes(bytes); }
  };
  // This process's entries of a dumped table of HCA 0.
  std::vector<Entry> dump(std::uint16_t command, std::uint16_t table) {
    EXPECT_TRUE(ask(command, NLM_F_DUMP, {{RDMA_NLDEV_ATTR_DEV_INDEX, 0}}));
    std::vector<Entry> entries;
    for (;;) {
      const std::vector<std::byte> message = receive();
      if (const auto error = error_of(message)) {
        EXPECT_EQ(*error, 0);
        return entries;
      }
      const NetlinkAttributes attributes = attributes_of(message);
      if (!attributes.contains(table)) return entries;
      for (std::span<const std::byte> rest = attributes.at(table); rest.size() >= sizeof(nlattr);) {
        nlattr header{};
        std::memcpy(&header, rest.data(), sizeof header);
        const std::span<const std::byte> body = rest.subspan(sizeof header, header.nla_len - sizeof header);
        Entry entry{{body.begin(), body.end()}};
        const bool own =
            value(entry.attributes(), RDMA_NLDEV_ATTR_RES_PID) == static_cast<std::uint32_t>(getpid());
        if (own) entries.push_back(std::move(entry));
        rest = rest.subspan(std::min<std::size_t>(NLA_ALIGN(header.nla_len), rest.size()));
      }
    }
  }
  std::optional<Entry> find(std::uint16_t command, std::uint16_t table, std::uint16_t attribute,
                            std::uint32_t wanted) {
    for (Entry& entry : dump(command, table)) {
      if (value(entry.attributes(), attribute) == wanted) return std::move(entry);
    }
    return std::nullopt;
  }

  static constexpr std::uint32_t kSequence = 17;

  // The lines of iproute2's `rdma resource show ARGUMENTS`, a process of its own, about this process. kNoRdma
  // without that program.
  static std::string lines_of_rdma(const std::string& arguments) {
    const std::string command =
        "PATH=$PATH:/usr/sbin:/sbin; command -v rdma > /dev/null || exit 77; "
        "LD_PRELOAD=$GDX_TEST_PRELOAD rdma resource show " +
        arguments + " pid " + std::to_string(getpid());
    std::string lines;
    FILE* const output = popen(command.c_str(), "r");
    std::array<char, 512> line{};
    while (output != nullptr && fgets(line.data(), line.size(), output) != nullptr) lines += line.data();
    const int status = output == nullptr ? -1 : pclose(output);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) return kNoRdma;
    EXPECT_EQ(status, 0) << command << '\n' << lines;
    return lines;
  }
  static constexpr char kNoRdma[] = "SKIPPED: rdma is missing; install Debian's iproute2 to run this test";

 private:
  int fd_;
};

}  // namespace gdx::abi_tests
