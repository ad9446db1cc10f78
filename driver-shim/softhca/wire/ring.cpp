#include "driver-shim/softhca/wire/ring.h"

#include <algorithm>
#include <cstring>

#include "driver-shim/softhca/wire/streaming.h"

namespace gdx::softhca::wire {

std::size_t RingProducer::free_bytes() {
  if (broken_) return 0;
  // Acquire: the consumer has read what it gives back before we write there again.
  const std::uint64_t head = control_.head.load(std::memory_order_acquire);
  if (head < head_ || head > published_) {
    broken_ = true;
    return 0;
  }
  head_ = head;
  return kRingDataBytes - static_cast<std::size_t>(tail_ - head_);
}

std::span<std::byte> RingProducer::reserve(std::size_t packet_bytes) {
  const std::size_t needed = record_bytes(packet_bytes);
  // The copy of head is looked at first: the line belongs to the consumer.
  const bool fits = kRingDataBytes - static_cast<std::size_t>(tail_ - head_) >= needed;
  if (packet_bytes > kMaxRecordPayloadBytes || broken_ || (!fits && free_bytes() < needed)) return {};
  return {data_ + tail_ % kRingDataBytes + sizeof(RingRecord), packet_bytes};
}

void RingProducer::commit(std::size_t packet_bytes, std::uint32_t flags) {
  const RingRecord record{static_cast<std::uint32_t>(packet_bytes), flags};
  std::memcpy(data_ + tail_ % kRingDataBytes, &record, sizeof record);
  tail_ += record_bytes(packet_bytes);
  // The header of the next packet comes first, with nothing to do meanwhile.
  __builtin_prefetch(data_ + tail_ % kRingDataBytes, 1);
}

bool RingProducer::publish() {
  published_ = tail_;
  stream_fence();  // payload may have been streamed into the ring
  // Sequentially consistent, as in arm(). One side stores tail and then reads consumer_sleeps; the other
  // stores consumer_sleeps and then reads tail. At least one reads the other's store, so no packet waits for
  // a sleeping consumer. The store is also the release that publishes the packets.
  control_.tail.store(tail_, std::memory_order_seq_cst);
  if (control_.consumer_sleeps.load(std::memory_order_seq_cst) == 0) return false;
  return control_.consumer_sleeps.exchange(0, std::memory_order_relaxed) != 0;
}

// Reads the producer's index. False: nothing new, or broken.
bool RingConsumer::refresh(std::memory_order order) {
  const std::uint64_t tail = control_.tail.load(order);
  if (tail < tail_ || tail - released_ > kRingDataBytes || tail % kRecordAlignBytes != 0) {
    broken_ = true;
    return false;
  }
  tail_ = tail;
  return tail_ != head_;
}

std::optional<RingConsumer::Packet> RingConsumer::take() {
  if (broken_) return std::nullopt;
  // Acquire: the records before the index are written.
  if (head_ == tail_ && !refresh(std::memory_order_acquire)) return std::nullopt;
  const std::byte* at = data_ + head_ % kRingDataBytes;
  RingRecord record;
  std::memcpy(&record, at, sizeof record);
  // Uses the checked copy, because the producer may change the memory meanwhile.
  std::atomic_signal_fence(std::memory_order_acquire);
  const bool whole = record.length_bytes > 0 && record.length_bytes <= kMaxRecordPayloadBytes &&
                     record_bytes(record.length_bytes) <= tail_ - head_;
  if (!whole) {
    broken_ = true;
    return std::nullopt;
  }
  head_ += record_bytes(record.length_bytes);
  __builtin_prefetch(data_ + head_ % kRingDataBytes);  // the next header, while this packet is copied
  return Packet{.bytes = {at + sizeof record, record.length_bytes},
                .has_icrc = (record.flags & kRecordHasIcrc) != 0,
                .marked = (record.flags & kRecordMarked) != 0};
}

void RingConsumer::release() {
  if (released_ == head_) return;
  released_ = head_;
  // Release: our reads of the packets come before the producer's next writes there.
  control_.head.store(head_, std::memory_order_release);
}

bool RingConsumer::arm() {
  control_.consumer_sleeps.store(1, std::memory_order_seq_cst);  // see publish()
  if (broken_ || head_ != tail_ || refresh(std::memory_order_seq_cst) || broken_) {
    disarm();
    return false;
  }
  return true;
}

}  // namespace gdx::softhca::wire
