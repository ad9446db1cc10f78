#include "tests/interop/peer_link.h"

#include <netdb.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>

namespace gdx::interop {
namespace {

// First PSN, so near the end that the PSNs of either direction wrap within the first cases.
constexpr std::uint32_t kFirstPsn = 0xffffe0;
constexpr std::uint8_t kMaxReads = 4;

ibv_mtu mtu_of(std::uint32_t bytes) {
  switch (bytes) {
    case 256: return IBV_MTU_256;
    case 512: return IBV_MTU_512;
    case 1024: return IBV_MTU_1024;
    case 2048: return IBV_MTU_2048;
    case 4096: return IBV_MTU_4096;
    default: die("MTU {}: use 256, 512, 1024, 2048 or 4096", bytes);
  }
}

void limit_waits(int fd) {
  const timeval limit{.tv_sec = kWaitLimit_s, .tv_usec = 0};
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
}

int serve(std::uint16_t port) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  limit_waits(listener);
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(port);
  if (bind(listener, reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0 ||
      listen(listener, 1) != 0) {
    die("cannot listen on port {}: {}", port, std::strerror(errno));
  }
  const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  if (fd < 0) die("nobody called on port {}: {}", port, std::strerror(errno));
  close(listener);
  return fd;
}

int call(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0)
    die("{} is no address", host);
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  limit_waits(fd);
  if (connect(fd, found->ai_addr, found->ai_addrlen) != 0) {
    die("cannot reach {} port {}: {}", host, port, std::strerror(errno));
  }
  freeaddrinfo(found);
  return fd;
}

}  // namespace

Channel::Channel(const Options& options)
    : fd_(options.server.empty() ? serve(options.port) : call(options.server, options.port)) {
  limit_waits(fd_);
}

Channel::~Channel() { close(fd_); }

void Channel::send(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) die("the other side is gone: {}", std::strerror(errno));
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

void Channel::receive(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::recv(fd_, bytes.data(), bytes.size(), 0);
    if (n <= 0) die("the other side is gone: {}", n == 0 ? "it failed first" : std::strerror(errno));
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

void Channel::meet(std::uint32_t place) {
  const std::uint32_t other = exchange(place);
  if (other != place) die("this side is at step {}, the other at {}", place, other);
}

Device::Device(const Options& options)
    : gid_index_(options.gid_index), mtu_(mtu_of(options.mtu_bytes)), buffer_(kBufferBytes) {
  int count = 0;
  ibv_device** const devices = ibv_get_device_list(&count);
  if (devices == nullptr || count == 0) die("no RDMA device");
  context_ = ibv_open_device(devices[0]);
  ibv_free_device_list(devices);
  if (context_ == nullptr) die("cannot open the device");
  constexpr int kAccess =
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
  pd_ = ibv_alloc_pd(context_);
  cq_ = ibv_create_cq(context_, 2 * kQueueEntries, nullptr, nullptr, 0);
  if (pd_ == nullptr || cq_ == nullptr) die("no protection domain or completion queue");
  mr_ = ibv_reg_mr(pd_, buffer_.data(), buffer_.size(), kAccess);
  if (mr_ == nullptr) die("cannot register memory: {}", std::strerror(errno));
  if (ibv_query_gid(context_, 1, gid_index_, &gid_) != 0) die("no GID {}", gid_index_);
}

Device::~Device() {
  ibv_dereg_mr(mr_);
  ibv_destroy_cq(cq_);
  ibv_dealloc_pd(pd_);
  ibv_close_device(context_);
}

std::optional<std::uint64_t> Device::packets_lost() const {
  const std::string device = context_->device->ibdev_path;
  std::ifstream counter(device + "/ports/1/hw_counters/softhca_faults_lost");
  std::uint64_t packets = 0;
  if (!(counter >> packets)) return std::nullopt;
  return packets;
}

ibv_wc Device::wait() {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(kWaitLimit_s);
  ibv_wc wc{};
  while (true) {
    const int n = ibv_poll_cq(cq_, 1, &wc);
    if (n == 1) return wc;
    if (n < 0) die("polling failed");
    if (std::chrono::steady_clock::now() > deadline) die("no completion within {} s", kWaitLimit_s);
    sched_yield();
  }
}

Queue::Queue(Device& device, Channel& channel) : device_(device) {
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = device.cq();
  init.cap = {.max_send_wr = Device::kQueueEntries,
              .max_recv_wr = Device::kQueueEntries,
              .max_send_sge = 2,
              .max_recv_sge = 2,
              .max_inline_data = 0};
  init.qp_type = IBV_QPT_RC;
  qp_ = ibv_create_qp(device.pd(), &init);
  if (qp_ == nullptr) die("cannot create a queue pair: {}", std::strerror(errno));
  const Info mine{.address = device.address(),
                  .rkey = device.rkey(),
                  .qpn = qp_->qp_num,
                  .psn = kFirstPsn,
                  .mtu = device.mtu(),
                  .gid = device.gid()};
  remote_ = channel.exchange(mine);
  if (remote_.mtu != mine.mtu) die("the two sides were given different MTUs");
  connect(mine);
  channel.meet(remote_.qpn ^ mine.qpn);
}

Queue::~Queue() { ibv_destroy_qp(qp_); }

void Queue::connect(const Info& mine) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
  int error = ibv_modify_qp(qp_, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  if (error != 0) die("INIT: {}", std::strerror(error));

  attr = {};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = device_.mtu();
  attr.dest_qp_num = remote_.qpn;
  attr.rq_psn = remote_.psn;
  attr.max_dest_rd_atomic = kMaxReads;
  attr.min_rnr_timer = 12;  // 0.64 ms
  attr.ah_attr.is_global = 1;
  attr.ah_attr.port_num = 1;
  attr.ah_attr.grh.dgid = remote_.gid;
  attr.ah_attr.grh.sgid_index = device_.gid_index();
  attr.ah_attr.grh.hop_limit = 64;
  error = ibv_modify_qp(qp_, &attr,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (error != 0) die("RTR: {}", std::strerror(error));

  attr = {};
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = 16;  // 268 ms: an emulated guest is slow
  attr.retry_cnt = 7;
  attr.rnr_retry = 7;
  attr.sq_psn = mine.psn;
  attr.max_rd_atomic = kMaxReads;
  error = ibv_modify_qp(qp_, &attr,
                        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                            IBV_QP_MAX_QP_RD_ATOMIC);
  if (error != 0) die("RTS: {}", std::strerror(error));
}

Queue::Request Queue::request(ibv_wr_opcode opcode, std::size_t offset, std::size_t length_bytes) const {
  Request made;
  made.sge = {.addr = device_.address() + offset,
              .length = static_cast<std::uint32_t>(length_bytes),
              .lkey = device_.lkey()};
  made.wr.opcode = opcode;
  made.wr.send_flags = IBV_SEND_SIGNALED;
  return made;
}

Queue::Request Queue::rdma(ibv_wr_opcode opcode, std::size_t offset, std::size_t length_bytes,
                           std::size_t remote_offset) const {
  Request made = request(opcode, offset, length_bytes);
  made.wr.wr.rdma.remote_addr = remote_address(remote_offset);
  made.wr.wr.rdma.rkey = rkey();
  return made;
}

void Queue::post(Request& request) {
  if (const int error = try_post(request); error != 0) die("post: {}", std::strerror(error));
}

int Queue::try_post(Request& request) {
  request.wr.sg_list = &request.sge;
  request.wr.num_sge = request.sge.length == 0 ? 0 : 1;
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(qp_, &request.wr, &bad);
}

void Queue::post_receive(std::size_t offset, std::size_t length_bytes) {
  ibv_sge sge{.addr = device_.address() + offset,
              .length = static_cast<std::uint32_t>(length_bytes),
              .lkey = device_.lkey()};
  ibv_recv_wr wr{};
  wr.sg_list = &sge;
  wr.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  if (const int error = ibv_post_recv(qp_, &wr, &bad); error != 0) die("receive: {}", std::strerror(error));
}

}  // namespace gdx::interop
