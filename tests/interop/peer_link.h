// Two processes, a TCP channel and RC queue pairs between them. A failure of any kind ends the process with
// status 1 and one line. The other side then sees a closed channel.
#pragma once

#include <fmt/format.h>
#include <infiniband/verbs.h>

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace gdx::interop {

template <typename... Args>
[[noreturn]] void die(fmt::format_string<Args...> format, Args&&... args) {
  fmt::print(stderr, "FAILED: {}\n", fmt::format(format, std::forward<Args>(args)...));
  std::exit(1);
}

inline constexpr int kWaitLimit_s = 90;  // only ends a hang

struct Options {
  std::uint16_t port = 0;
  std::uint8_t gid_index = 0;
  std::uint32_t mtu_bytes = 0;
  bool refusals = false;  // also what must be refused
  std::string server;     // empty: this is the server
};

class Channel {
 public:
  explicit Channel(const Options& options);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Sends `mine` and returns what the other side sent at the same place.
  template <typename T>
  T exchange(const T& mine) {
    T theirs{};
    send(std::as_bytes(std::span(&mine, 1)));
    receive(std::as_writable_bytes(std::span(&theirs, 1)));
    return theirs;
  }
  // Returns when both sides are here.
  void meet(std::uint32_t place);

 private:
  void send(std::span<const std::byte> bytes);
  void receive(std::span<std::byte> bytes);

  int fd_ = -1;
};

// The first RDMA device, one buffer registered for everything, one completion queue.
class Device {
 public:
  static constexpr std::size_t kBufferBytes = std::size_t{1} << 20;
  static constexpr int kQueueEntries = 256;

  explicit Device(const Options& options);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  [[nodiscard]] std::span<std::byte> buffer() { return buffer_; }
  [[nodiscard]] std::uint64_t address() const { return reinterpret_cast<std::uint64_t>(buffer_.data()); }
  [[nodiscard]] std::uint32_t lkey() const { return mr_->lkey; }
  [[nodiscard]] std::uint32_t rkey() const { return mr_->rkey; }
  [[nodiscard]] ibv_gid gid() const { return gid_; }
  [[nodiscard]] std::uint8_t gid_index() const { return gid_index_; }
  [[nodiscard]] ibv_mtu mtu() const { return mtu_; }
  [[nodiscard]] ibv_pd* pd() { return pd_; }
  [[nodiscard]] ibv_cq* cq() { return cq_; }
  // The next completion, whatever its status.
  ibv_wc wait();
  // Returns the packets that the device has dropped on purpose; nullopt unless it is a software HCA.
  [[nodiscard]] std::optional<std::uint64_t> packets_lost() const;

 private:
  std::uint8_t gid_index_;
  ibv_mtu mtu_;
  std::vector<std::byte> buffer_;
  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_cq* cq_ = nullptr;
  ibv_mr* mr_ = nullptr;
  ibv_gid gid_{};
};

// A connected queue pair; both sides construct theirs at the same place.
class Queue {
 public:
  Queue(Device& device, Channel& channel);
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // Common part of every request: its local piece at `offset` of the buffer, signalled.
  struct Request {
    ibv_send_wr wr{};
    ibv_sge sge{};
  };
  [[nodiscard]] Request request(ibv_wr_opcode opcode, std::size_t offset, std::size_t length_bytes) const;
  // Builds a request with its local piece, and with `remote_offset` of the other side's buffer.
  [[nodiscard]] Request rdma(ibv_wr_opcode opcode, std::size_t offset, std::size_t length_bytes,
                             std::size_t remote_offset) const;
  void post(Request& request);
  [[nodiscard]] int try_post(Request& request);  // 0 or errno
  void post_receive(std::size_t offset, std::size_t length_bytes);
  [[nodiscard]] std::uint64_t remote_address(std::size_t offset) const { return remote_.address + offset; }
  [[nodiscard]] std::uint32_t rkey() const { return remote_.rkey; }

 private:
  struct Info {
    std::uint64_t address;
    std::uint32_t rkey;
    std::uint32_t qpn;
    std::uint32_t psn;
    std::uint32_t mtu;
    ibv_gid gid;
  };
  void connect(const Info& mine);

  Device& device_;
  ibv_qp* qp_ = nullptr;
  Info remote_{};
};

}  // namespace gdx::interop
