// One direction of the shared-memory wire: a ring of packets with one producer and one consumer. Both ends
// can write its memory. Each end validates the other: it reads every index and length once and checks it.
// After an invalid one the end reports a broken ring and reads no more.
//
//   producer: reserve, fill, commit ... publish(tail, release) ---> consumer: take(acquire) ... release(head)
//
// Ownership: [head, tail) of the data is the consumer's, the rest the producer's.
// Layout: RingControl, then (one page on) the data. A record is a RingRecord, the packet and padding to a
// multiple of kRecordAlignBytes. The data is mapped twice in a row, so a record never wraps.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace gdx::softhca::wire {

inline constexpr std::size_t kRecordAlignBytes = 64;  // small packets share no cache line
// Larger than a core's private cache: when a line is written again, its last reader has evicted it. So the
// writer need not take it from another core's cache (papers/softhca-shm.md).
inline constexpr std::size_t kRingDataBytes = std::size_t{1} << 22;
inline constexpr std::size_t kMaxRecordPayloadBytes = 4096 + 64 + 4;  // BTH to ICRC

// All counters are cumulative, in bytes of records, and never wrap in 64 bits.
struct RingControl {
  alignas(64) std::atomic<std::uint64_t> tail;             // written by the producer
  alignas(64) std::atomic<std::uint64_t> head;             // written by the consumer
  alignas(64) std::atomic<std::uint32_t> consumer_sleeps;  // set by the consumer, taken by the producer
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

struct RingRecord {
  std::uint32_t length_bytes;  // length of the packet behind it
  std::uint32_t flags;         // kRecordHasIcrc, kRecordMarked
};
inline constexpr std::uint32_t kRecordHasIcrc = 1;  // the packet's last four bytes are its ICRC
inline constexpr std::uint32_t kRecordMarked = 2;   // it met congestion on its way (ECN)

constexpr std::size_t record_bytes(std::size_t packet_bytes) {
  return (sizeof(RingRecord) + packet_bytes + kRecordAlignBytes - 1) / kRecordAlignBytes * kRecordAlignBytes;
}
inline constexpr std::size_t kMaxRecordBytes = record_bytes(kMaxRecordPayloadBytes);

// `data`: kRingDataBytes, mapped twice in a row. The memory must outlive the ring's end.
// Threads: one at a time per end; the two ends are independent.
class RingProducer {
 public:
  RingProducer(RingControl& control, std::byte* data) : control_(control), data_(data) {}

  // Returns the bytes of records that still fit. Errors: 0 for ever after an invalid index of the consumer.
  [[nodiscard]] std::size_t free_bytes();
  // Returns the place of the next packet; empty without room.
  [[nodiscard]] std::span<std::byte> reserve(std::size_t packet_bytes);
  // Adds the packet just written to the ring. Invisible to the consumer until publish().
  void commit(std::size_t packet_bytes, std::uint32_t flags);
  // Publishes committed packets. True: the consumer sleeps, and must be woken. Ordering: release.
  [[nodiscard]] bool publish();
  [[nodiscard]] std::size_t unpublished_bytes() const { return tail_ - published_; }
  // Returns the consumer's position, as last read.
  [[nodiscard]] std::uint64_t consumed() const { return head_; }
  [[nodiscard]] bool broken() const { return broken_; }

 private:
  RingControl& control_;
  std::byte* data_;
  std::uint64_t tail_ = 0;
  std::uint64_t published_ = 0;
  std::uint64_t head_ = 0;
  bool broken_ = false;
};

class RingConsumer {
 public:
  struct Packet {
    std::span<const std::byte> bytes;  // in shared memory: its producer can still write it
    bool has_icrc = false;
    bool marked = false;
  };

  RingConsumer(RingControl& control, const std::byte* data) : control_(control), data_(data) {}

  // Returns the next packet, valid until release(); nullopt: none, or broken().
  [[nodiscard]] std::optional<Packet> take();
  // Returns the room of all taken packets to the producer.
  void release();
  [[nodiscard]] std::size_t unreleased_bytes() const { return head_ - released_; }
  // Announces that this end is about to sleep. False: packets wait, so it must not.
  [[nodiscard]] bool arm();
  void disarm() { control_.consumer_sleeps.store(0, std::memory_order_relaxed); }
  // Returns true after an invalid index or record of the producer: the link is unusable.
  [[nodiscard]] bool broken() const { return broken_; }

 private:
  [[nodiscard]] bool refresh(std::memory_order order);

  RingControl& control_;
  const std::byte* data_;
  std::uint64_t head_ = 0;
  std::uint64_t released_ = 0;
  std::uint64_t tail_ = 0;
  bool broken_ = false;
};

}  // namespace gdx::softhca::wire
