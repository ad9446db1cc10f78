// One RC queue pair through plain libibverbs, as any program would use it.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "perf/two_processes.h"

namespace gdx::perf {

// Address of a queue pair and of its buffer.
struct RcAddress {
  ibv_gid gid;
  std::uint32_t qpn;
  std::uint32_t psn;
  std::uint32_t rkey;
  std::uint64_t buffer;
};

struct Release {
  void operator()(ibv_context* it) const { ibv_close_device(it); }
  void operator()(ibv_pd* it) const { ibv_dealloc_pd(it); }
  void operator()(ibv_mr* it) const { ibv_dereg_mr(it); }
  void operator()(ibv_cq* it) const { ibv_destroy_cq(it); }
  void operator()(ibv_qp* it) const { ibv_destroy_qp(it); }
};
template <typename T>
using Owned = std::unique_ptr<T, Release>;

// Parts that the queues of one process share.
class Nic {
 public:
  explicit Nic(std::size_t buffer_bytes, int device = 0);

  [[nodiscard]] ibv_context* context() const { return context_.get(); }
  [[nodiscard]] ibv_pd* pd() const { return pd_.get(); }
  [[nodiscard]] std::uint32_t key() const { return mr_->lkey; }
  [[nodiscard]] std::byte* buffer() { return buffer_.data(); }

 private:
  std::vector<std::byte> buffer_;
  Owned<ibv_context> context_;
  Owned<ibv_pd> pd_;
  Owned<ibv_mr> mr_;
};

class RcQueue {
 public:
  static constexpr int kDepth = 512;  // work requests outstanding
  static constexpr std::uint32_t kInlineBytes = 32;

  explicit RcQueue(Nic& nic, int depth = kDepth);
  [[nodiscard]] RcAddress address() const;
  // Bytes of both work queues and of the completion queue, in libmlx5's layout.
  [[nodiscard]] std::size_t ring_bytes() const;
  static constexpr std::uint8_t kAckTimeout = 14;  // 67 ms
  // To RTS. Neither side may post before both are connected. `ack_timeout`: 4.096 us << n.
  void connect(const RcAddress& peer, std::uint8_t ack_timeout = kAckTimeout);

  // `count` writes of `length_bytes` to the peer's buffer, the last one signaled, with one doorbell.
  void post_writes(std::uint32_t length_bytes, int count);
  // From the peer's buffer.
  void post_read(std::uint32_t length_bytes);
  void post_send(std::uint32_t length_bytes);
  void post_receive(std::uint32_t length_bytes);
  struct Completed {
    int sends = 0;
    int receives = 0;
  };
  // Fails when a completion reports an error.
  Completed poll();

 private:
  Nic& nic_;
  Owned<ibv_cq> cq_;
  Owned<ibv_qp> qp_;
  RcAddress peer_{};
  std::vector<ibv_send_wr> batch_;
};

// Connects with the queue of equal number in the other process.
void connect(RcQueue& queue, const Peer& peer);

}  // namespace gdx::perf
