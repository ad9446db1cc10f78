// A doorbell record that a queue pair cannot mean, after which the HCA tells a fatal event of it.
#pragma once

#include <atomic>
#include <cstdint>

#include "device/impl/wqe.h"
#include "proto/gpu/queue.h"

namespace gdx {

// Announces twice the WQEs that the send queue holds, and rings.
inline void announce_beyond_the_ring(const EndpointHandle& handle) {
  const std::uint32_t end = 2u << handle.log_send_queue;
  const auto control = device::impl::control_segment(mlx5::WqeOpcode::kRdmaWrite, end - 1,
                                                     device::impl::queue_pair_word(handle.qpn), 3, 0);
  std::atomic_ref(handle.send_record->raw).store(Be32(end).raw, std::memory_order_release);
  std::atomic_ref(*handle.doorbell).store(device::impl::doorbell_value(control), std::memory_order_release);
}

}  // namespace gdx
