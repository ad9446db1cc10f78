// Many RC queue pairs in one process, through the distribution's libibverbs and libmlx5.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "perf/rc_queue.h"

namespace gdx::perf {
namespace queues_test {

constexpr std::size_t kQueues = 1000;
constexpr std::uint32_t kBytes = sizeof(std::uint64_t);
constexpr int kDepth = 16;

// Value that queue `i` writes to a word of its own, behind the first. All of them gather inline from the
// first.
constexpr std::uint64_t value_of(std::size_t i) { return 0x1000000 + i; }
constexpr std::size_t word_of(std::size_t i) { return 1 + i; }

TEST(Queues, a_thousand_connected_each_moves_its_data) {
  Nic nic((1 + kQueues) * kBytes);
  std::vector<std::unique_ptr<RcQueue>> queues;
  for (std::size_t i = 0; i < kQueues; ++i) queues.push_back(std::make_unique<RcQueue>(nic, kDepth));
  for (std::size_t i = 0; i < kQueues; ++i) {
    RcAddress partner = queues[i ^ 1]->address();
    partner.buffer += word_of(i) * kBytes;
    queues[i]->connect(partner);
  }
  for (std::size_t i = 0; i < kQueues; ++i) {
    const std::uint64_t value = value_of(i);
    std::memcpy(nic.buffer(), &value, sizeof value);
    queues[i]->post_writes(kBytes, 1);
  }
  for (const auto& queue : queues) {
    while (queue->poll().sends == 0) {
    }
  }
  for (std::size_t i = 0; i < kQueues; ++i) {
    std::uint64_t landed = 0;
    std::memcpy(&landed, nic.buffer() + word_of(i) * kBytes, sizeof landed);
    EXPECT_EQ(landed, value_of(i)) << "queue " << i;
  }
}

}  // namespace queues_test
}  // namespace gdx::perf
