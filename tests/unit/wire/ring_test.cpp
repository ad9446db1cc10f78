#include "driver-shim/softhca/wire/ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "driver-shim/softhca/wire/shared_memory.h"

namespace gdx::softhca::wire {
namespace ring_test {

using Bytes = std::vector<std::byte>;

class Ring : public testing::Test {
 protected:
  void SetUp() override {
    Result<SharedMemory::Made> made = SharedMemory::create();
    ASSERT_TRUE(made) << made.error().message;
    memory = std::move(made->memory);
    producer = std::make_unique<RingProducer>(memory.control(), memory.data());
    consumer = std::make_unique<RingConsumer>(memory.control(), memory.data());
  }

  bool put(std::size_t length_bytes, std::uint8_t tag, std::uint32_t flags = 0) {
    const std::span<std::byte> place = producer->reserve(length_bytes);
    if (place.empty()) return false;
    std::ranges::fill(place, std::byte{tag});
    producer->commit(length_bytes, flags);
    return true;
  }

  SharedMemory memory;
  std::unique_ptr<RingProducer> producer;
  std::unique_ptr<RingConsumer> consumer;
};

TEST_F(Ring, packets_are_unseen_until_published) {
  ASSERT_TRUE(put(100, 1));
  EXPECT_FALSE(consumer->take());
  EXPECT_FALSE(producer->publish());
  const auto packet = consumer->take();
  ASSERT_TRUE(packet);
  EXPECT_EQ(Bytes(packet->bytes.begin(), packet->bytes.end()), Bytes(100, std::byte{1}));
  EXPECT_FALSE(packet->has_icrc);
  EXPECT_FALSE(consumer->take());
}

TEST_F(Ring, packets_of_all_sizes_cross_the_end_whole) {
  std::uint8_t tag = 0;
  for (std::size_t round = 0; round < 3; ++round) {
    for (std::size_t length = 1; length <= kMaxRecordPayloadBytes; length += 37) {
      ASSERT_TRUE(put(length, ++tag, kRecordHasIcrc));
      static_cast<void>(producer->publish());
      const auto packet = consumer->take();
      ASSERT_TRUE(packet) << length;
      ASSERT_EQ(Bytes(packet->bytes.begin(), packet->bytes.end()), Bytes(length, std::byte{tag}));
      EXPECT_TRUE(packet->has_icrc);
      consumer->release();
    }
  }
  EXPECT_EQ(producer->free_bytes(), kRingDataBytes);
}

TEST_F(Ring, full_ring_refuses_until_room_is_released) {
  std::size_t packets = 0;
  while (put(kMaxRecordPayloadBytes, 7)) ++packets;
  EXPECT_EQ(packets, kRingDataBytes / kMaxRecordBytes);
  static_cast<void>(producer->publish());
  ASSERT_TRUE(consumer->take());
  EXPECT_FALSE(put(kMaxRecordPayloadBytes, 7)) << "taken is not yet released";
  consumer->release();
  EXPECT_TRUE(put(kMaxRecordPayloadBytes, 7));
}

TEST_F(Ring, place_of_one_record_is_room_for_one) {
  while (put(56, 1)) {
  }
  static_cast<void>(producer->publish());
  ASSERT_TRUE(consumer->take());
  consumer->release();
  EXPECT_TRUE(put(56, 1));
  EXPECT_FALSE(put(1, 1));
}

TEST_F(Ring, packet_beyond_the_largest_is_refused) { EXPECT_FALSE(put(kMaxRecordPayloadBytes + 1, 1)); }

TEST_F(Ring, sleeper_is_woken_once_and_waking_reader_never) {
  ASSERT_TRUE(consumer->arm());
  ASSERT_TRUE(put(10, 1));
  EXPECT_TRUE(producer->publish());
  ASSERT_TRUE(put(10, 1));
  EXPECT_FALSE(producer->publish()) << "one call is enough";
  EXPECT_FALSE(consumer->arm()) << "packets wait";
  while (consumer->take()) {
  }
  ASSERT_TRUE(consumer->arm());
  consumer->disarm();
  ASSERT_TRUE(put(10, 1));
  EXPECT_FALSE(producer->publish());
}

TEST_F(Ring, filled_to_the_last_byte_and_emptied_its_flags_arrive_with_each_packet) {
  constexpr std::size_t kRecords = kRingDataBytes / kRecordAlignBytes;
  for (std::uint32_t round = 0; round < 2; ++round) {
    for (std::uint32_t i = 0; i < kRecords; ++i) ASSERT_TRUE(put(56, 1, i % 4)) << i;
    EXPECT_FALSE(put(1, 1));
    EXPECT_EQ(producer->unpublished_bytes(), kRingDataBytes);
    EXPECT_FALSE(producer->publish());
    EXPECT_EQ(producer->unpublished_bytes(), 0u);
    for (std::uint32_t i = 0; i < kRecords; ++i) {
      const auto packet = consumer->take();
      ASSERT_TRUE(packet) << i;
      ASSERT_EQ(packet->has_icrc, (i & kRecordHasIcrc) != 0);
      ASSERT_EQ(packet->marked, (i & kRecordMarked) != 0);
    }
    EXPECT_EQ(consumer->unreleased_bytes(), kRingDataBytes);
    EXPECT_EQ(producer->free_bytes(), 0u);
    consumer->release();
    EXPECT_EQ(producer->free_bytes(), kRingDataBytes);
    EXPECT_EQ(producer->consumed(), (round + 1) * kRingDataBytes);
  }
  EXPECT_TRUE(producer->reserve(kMaxRecordPayloadBytes + 1).empty());
}

// Values that a peer may store over the producer's index.
TEST_F(Ring, consumer_finds_impossible_index_broken) {
  ASSERT_TRUE(put(56, 1));  // a record that could be taken
  for (const std::uint64_t tail : std::initializer_list<std::uint64_t>{
           1, kRecordAlignBytes - 1, kRingDataBytes + kRecordAlignBytes, ~std::uint64_t{0} - 63}) {
    RingConsumer fresh(memory.control(), memory.data());
    memory.control().tail = tail;
    EXPECT_FALSE(fresh.take()) << tail;
    EXPECT_TRUE(fresh.broken()) << tail;
    memory.control().tail = kRecordAlignBytes;
    EXPECT_FALSE(fresh.take()) << "never looks again";
    EXPECT_FALSE(fresh.arm());
  }
}

TEST_F(Ring, consumer_finds_index_that_goes_back_broken) {
  ASSERT_TRUE(put(10, 1));
  static_cast<void>(producer->publish());
  ASSERT_TRUE(consumer->take());
  memory.control().tail = 0;
  EXPECT_FALSE(consumer->take());
  EXPECT_TRUE(consumer->broken());
}

TEST_F(Ring, consumer_finds_impossible_length_broken) {
  for (const std::uint32_t length : std::initializer_list<std::uint32_t>{
           0, 57, kMaxRecordPayloadBytes + 1, 0x7fffffff, 0xfffffff8, 0xffffffff}) {
    RingProducer fresh_producer(memory.control(), memory.data());
    RingConsumer fresh(memory.control(), memory.data());
    memory.control().tail = 0;
    memory.control().head = 0;
    ASSERT_FALSE(fresh_producer.reserve(56).empty());
    fresh_producer.commit(56, 0);  // one cache line: 57 would reach into what is not published
    static_cast<void>(fresh_producer.publish());
    std::memcpy(memory.data(), &length, sizeof length);
    EXPECT_FALSE(fresh.take()) << length;
    EXPECT_TRUE(fresh.broken()) << length;
  }
}

TEST_F(Ring, producer_finds_impossible_index_broken_and_stops) {
  ASSERT_TRUE(put(10, 1));
  static_cast<void>(producer->publish());
  memory.control().head = 2 * kRecordAlignBytes;  // more than was ever published
  EXPECT_EQ(producer->free_bytes(), 0u);
  EXPECT_TRUE(producer->broken());
  memory.control().head = 0;
  EXPECT_TRUE(producer->reserve(10).empty());
}

// Two threads at full speed with sleeping and waking: each packet arrives once, in order, unharmed, and a
// sleeper is always woken. The semaphore stands for the wake-up call.
TEST_F(Ring, two_threads_lose_nothing) {
  constexpr std::uint32_t kPackets = 20'000;
  std::atomic<std::uint32_t> calls{0};
  std::thread sender([&] {
    for (std::uint32_t i = 0; i < kPackets;) {
      const std::size_t length = 4 + i * 31 % 900;
      const std::span<std::byte> place = producer->reserve(length);
      if (!place.empty()) {
        std::ranges::fill(place, static_cast<std::byte>(i));
        std::memcpy(place.data(), &i, sizeof i);
        producer->commit(length, 0);
        ++i;
      }
      if (place.empty() || i % 5 == 0 || i == kPackets) {
        if (producer->publish()) {
          calls.fetch_add(1);
          calls.notify_one();
        }
      }
      if (place.empty()) std::this_thread::yield();
    }
  });
  std::uint32_t wrong = 0;
  std::uint32_t heard = 0;
  for (std::uint32_t i = 0; i < kPackets;) {
    const auto packet = consumer->take();
    if (!packet) {
      consumer->release();
      if (!consumer->arm()) continue;
      calls.wait(heard);
      heard = calls.load();
      consumer->disarm();
      continue;
    }
    std::uint32_t number = 0;
    std::memcpy(&number, packet->bytes.data(), sizeof number);
    wrong += number != i || packet->bytes.size() != 4 + i * 31 % 900;
    for (const std::byte byte : packet->bytes.subspan(4)) wrong += byte != static_cast<std::byte>(i);
    if (consumer->unreleased_bytes() > kRingDataBytes / 16) consumer->release();
    ++i;
  }
  sender.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_FALSE(consumer->broken());
}

}  // namespace ring_test
}  // namespace gdx::softhca::wire
