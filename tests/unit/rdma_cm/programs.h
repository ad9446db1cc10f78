// Programs with an open node of the connection manager, above HCAs whose QP 1s a test joins. Time passes in
// deliver_all() alone.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <rdma/rdma_user_cm.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "driver-shim/softhca/rdma_cm/rdma_cm.h"
#include "proto/mad/cm_codec.h"
#include "tests/unit/devx/commands_fixture.h"

namespace gdx::softhca::uverbs {

// An HCA with nothing but its QP 1.
class PortHca final : public testing::NiceMock<devx::MockHca> {
 public:
  PortHca(std::vector<PortHca*>& network, const std::string& address, const HcaConfig& config)
      : network_(network), address_(*wire::Address::parse(address)), config_(config) {
    network_.push_back(this);
  }
  ~PortHca() override { std::erase(network_, this); }
  PortHca(const PortHca&) = delete;
  PortHca& operator=(const PortHca&) = delete;

  const HcaConfig& config() const override { return config_; }
  const wire::Address& address() const override { return address_; }
  void set_management_agent(ManagementAgent* agent) override { agent_ = agent; }
  void send_management(const wire::Address& destination, std::span<const std::byte> datagram) override {
    sent.push_back(*gdx::cm::decode(datagram));
    for (PortHca* const port : network_) {
      if (port->address_ == destination) port->agent_->on_datagram(address_, datagram);
    }
  }
  [[nodiscard]] ManagementAgent& agent() const { return *agent_; }

  std::vector<gdx::cm::Message> sent;

 private:
  std::vector<PortHca*>& network_;
  const wire::Address address_;
  const HcaConfig config_;
  ManagementAgent* agent_ = nullptr;
};

// Steps every port until no datagram is under way.
inline void deliver_all(const std::vector<PortHca*>& network, std::uint64_t after_ns = 0) {
  const std::uint64_t now_ns = monotonic_ns() + after_ns;
  for (int arrivals = 1; arrivals > 0;) {
    arrivals = 0;
    for (const PortHca* const port : network) arrivals += port->agent().step(now_ns);
  }
}

inline CmAddress address_of(const std::string& text, std::uint16_t port) {
  CmAddress made;
  made.address = *wire::Address::parse(text);
  made.family = made.address.is_ipv4() ? AF_INET : AF_INET6;
  made.port = port;
  return made;
}

inline sockaddr_in6 field_of(const CmAddress& address) {
  __kernel_sockaddr_storage storage;
  write_address(address, storage);
  sockaddr_in6 field;
  std::memcpy(&field, &storage, sizeof field);
  return field;
}

class Program {
 public:
  static constexpr std::uint64_t kHandle = 0x1122334455667788;  // of the first id; of the next one more

  Program(std::vector<PortHca*>& network, const std::vector<std::string>& addresses, std::uint64_t seed,
          const HcaConfig& config)
      : hcas(make_hcas(network, addresses, config)),
        node(pointers(),
             [bits = std::make_shared<std::mt19937>(static_cast<std::mt19937::result_type>(seed))] {
               return static_cast<std::uint32_t>((*bits)());
             }),
        fd(open()) {}
  ~Program() {
    node.close_file(fd);
    ::close(fd);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  int open() {
    const ErrnoOr<int> opened = node.open_file(O_CLOEXEC | O_NONBLOCK);
    EXPECT_TRUE(opened);
    return opened.value_or(-1);
  }

  template <typename Body>
  Errno command_at(int file, std::uint32_t number, const Body& body, std::size_t output_bytes = 0) {
    struct {
      rdma_ucm_cmd_hdr header;
      Body body;
    } record{{number, sizeof body, static_cast<std::uint16_t>(output_bytes)}, body};
    return node.command(file, reinterpret_cast<std::uintptr_t>(&record), sizeof record);
  }
  template <typename Body>
  Errno command(std::uint32_t number, const Body& body, std::size_t output_bytes = 0) {
    return command_at(fd, number, body, output_bytes);
  }
  // A command with an answer. Its address comes first in `Body`, or first but for an id.
  template <typename Answer, typename Body>
  Answer ask(std::uint32_t number, Body body, Errno expected = 0) {
    Answer answer{};
    body.response = reinterpret_cast<std::uintptr_t>(&answer);
    EXPECT_EQ(command(number, body, sizeof answer), expected);
    return answer;
  }

  std::uint32_t create(std::uint16_t space = RDMA_PS_TCP, std::uint8_t qp_type = 0) {
    rdma_ucm_create_id body{};
    body.uid = kHandle + created_++;
    body.ps = space;
    body.qp_type = qp_type;
    return ask<rdma_ucm_create_id_resp>(RDMA_USER_CM_CMD_CREATE_ID, body).id;
  }
  // Returns how many events the program has read for it.
  std::uint32_t destroy(std::uint32_t id) {
    rdma_ucm_destroy_id body{};
    body.id = id;
    return ask<rdma_ucm_destroy_id_resp>(RDMA_USER_CM_CMD_DESTROY_ID, body).events_reported;
  }
  Errno bind(std::uint32_t id, const CmAddress& address) {
    rdma_ucm_bind_ip body{};
    body.addr = field_of(address);
    body.id = id;
    return command(RDMA_USER_CM_CMD_BIND_IP, body);
  }
  Errno listen(std::uint32_t id, std::uint32_t backlog = 8) {
    return command(RDMA_USER_CM_CMD_LISTEN, rdma_ucm_listen{.id = id, .backlog = backlog});
  }
  std::uint32_t listen_at(const CmAddress& address, std::uint16_t space = RDMA_PS_TCP,
                          std::uint32_t backlog = 8) {
    const std::uint32_t id = create(space);
    EXPECT_EQ(bind(id, address), 0);
    EXPECT_EQ(listen(id, backlog), 0);
    return id;
  }
  Errno resolve(std::uint32_t id, const CmAddress& destination, const CmAddress& source = {}) {
    rdma_ucm_resolve_ip body{};
    body.src_addr = field_of(source);
    body.dst_addr = field_of(destination);
    body.id = id;
    return command(RDMA_USER_CM_CMD_RESOLVE_IP, body);
  }
  Errno resolve_route(std::uint32_t id) {
    return command(RDMA_USER_CM_CMD_RESOLVE_ROUTE, rdma_ucm_resolve_route{.id = id, .timeout_ms = 1});
  }
  // An id with a route to `destination`, whose two events are read.
  std::uint32_t routed(const CmAddress& destination, std::uint16_t space = RDMA_PS_TCP,
                       std::uint8_t qp_type = 0) {
    const std::uint32_t id = create(space, qp_type);
    EXPECT_EQ(resolve(id, destination), 0);
    expect_event(ProgramEvent::kAddressResolved);
    EXPECT_EQ(resolve_route(id), 0);
    expect_event(ProgramEvent::kRouteResolved);
    return id;
  }
  Errno connect(std::uint32_t id, const rdma_ucm_conn_param& parameters) {
    rdma_ucm_connect body{};
    body.conn_param = parameters;
    body.id = id;
    return command(RDMA_USER_CM_CMD_CONNECT, body);
  }
  Errno accept(std::uint32_t id, const rdma_ucm_conn_param& parameters, std::uint64_t handle = 0) {
    rdma_ucm_accept body{};
    body.uid = handle;
    body.conn_param = parameters;
    body.id = id;
    return command(RDMA_USER_CM_CMD_ACCEPT, body);
  }
  Errno reject(std::uint32_t id, std::uint8_t reason, std::uint8_t length_bytes) {
    rdma_ucm_reject body{};
    body.id = id;
    body.reason = reason;
    body.private_data_len = length_bytes;
    std::fill_n(body.private_data, sizeof body.private_data, std::uint8_t{0x7e});
    return command(RDMA_USER_CM_CMD_REJECT, body);
  }
  Errno set_option(std::uint32_t id, std::uint32_t name, std::int32_t value, std::uint32_t length_bytes) {
    const rdma_ucm_set_option body{.optval = reinterpret_cast<std::uintptr_t>(&value),
                                   .id = id,
                                   .level = RDMA_OPTION_ID,
                                   .optname = name,
                                   .optlen = length_bytes};
    return command(RDMA_USER_CM_CMD_SET_OPTION, body);
  }
  void expect_event(ProgramEvent expected) {
    const rdma_ucm_event_resp next = event();
    EXPECT_EQ(next.event, static_cast<std::uint32_t>(expected));
    EXPECT_EQ(next.status, 0u);
  }
  // The oldest event. The descriptor is readable while there is one.
  rdma_ucm_event_resp event(Errno expected = 0) {
    pollfd waited{.fd = fd, .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&waited, 1, 0), expected == 0 ? 1 : 0);
    return ask<rdma_ucm_event_resp>(RDMA_USER_CM_CMD_GET_EVENT, rdma_ucm_get_event{}, expected);
  }

  std::vector<std::unique_ptr<PortHca>> hcas;
  RdmaCm node;
  const int fd;

 private:
  static std::vector<std::unique_ptr<PortHca>> make_hcas(std::vector<PortHca*>& network,
                                                         const std::vector<std::string>& addresses,
                                                         const HcaConfig& config) {
    std::vector<std::unique_ptr<PortHca>> made;
    for (const std::string& address : addresses)
      made.push_back(std::make_unique<PortHca>(network, address, config));
    return made;
  }
  [[nodiscard]] std::vector<Hca*> pointers() const {
    std::vector<Hca*> all;
    for (const auto& hca : hcas) all.push_back(hca.get());
    return all;
  }

  std::uint64_t created_ = 0;
};

// Compares all bytes of two values, for EXPECT_PRED_FORMAT2.
template <typename T>
testing::AssertionResult same_bytes(const char* name, const char* /*other*/, const T& actual,
                                    const T& expected) {
  const auto have = std::as_bytes(std::span(&actual, 1));
  const auto want = std::as_bytes(std::span(&expected, 1));
  const auto [at, other] = std::ranges::mismatch(have, want);
  if (at == have.end()) return testing::AssertionSuccess();
  return testing::AssertionFailure() << name << ", byte " << at - have.begin() << ": "
                                     << std::to_integer<int>(*at) << " instead of "
                                     << std::to_integer<int>(*other);
}

}  // namespace gdx::softhca::uverbs
