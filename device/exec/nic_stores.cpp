#include "device/exec/nic_stores.h"

#include <iterator>
#include <utility>

#include "proto/byte_order.h"

namespace gdx::exec {
namespace {

constexpr std::uint64_t kWordBytes = 4;
constexpr std::uintptr_t kBlueFlameHalf =
    256;  // the halves of a register, which doorbells of a queue alternate between

}  // namespace

void NicStores::watch(const void* base, std::uint64_t bytes, Memory memory) {
  if (base == nullptr || bytes == 0) return;
  const std::lock_guard lock(mutex_);
  watched_.insert_or_assign(reinterpret_cast<std::uintptr_t>(base), Range{bytes, memory});
}

const std::pair<const std::uintptr_t, NicStores::Range>* NicStores::find(const void* at) const {
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  const auto next = watched_.upper_bound(address);
  if (next == watched_.begin()) return nullptr;
  const auto& range = *std::prev(next);
  return address - range.first < range.second.bytes ? &range : nullptr;
}

void NicStores::stored(const void* thread, const void* to, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto* const range = find(to);
  if (range == nullptr) return;
  Unreleased& unreleased = unreleased_[thread];
  (range->second.memory == Memory::kGpu ? unreleased.for_gpu : unreleased.for_host) = true;
  const std::uint64_t offset = reinterpret_cast<std::uintptr_t>(to) - range->first;
  if (range->second.memory != Memory::kNic || (offset % kWordBytes == 0 && bytes % kWordBytes == 0)) return;
  offend("stores " + std::to_string(bytes) + " B at offset " + std::to_string(offset) +
         " of a NIC's staging memory, which takes aligned words of 4 B: use exec::fill_slot");
}

void NicStores::released(const void* thread, Placement observed) {
  const std::lock_guard lock(mutex_);
  ++(observed == Placement::kHost ? releases_of_host_ : releases_of_gpu_);
  const auto found = unreleased_.find(thread);
  if (found == unreleased_.end()) return;
  found->second.for_gpu = false;
  if (observed == Placement::kHost) found->second.for_host = false;
}

void NicStores::handed_over(const void* thread, const void* to_thread) {
  if (thread == to_thread) return;
  const std::lock_guard lock(mutex_);
  const auto found = unreleased_.find(thread);
  if (found == unreleased_.end()) return;
  const Unreleased handed = std::exchange(found->second, {});
  Unreleased& all = unreleased_[to_thread];
  all.for_gpu |= handed.for_gpu;
  all.for_host |= handed.for_host;
}

// Only once for each store: what is announced is announced.
void NicStores::announce(const void* thread, const char* how) {
  const Unreleased open = std::exchange(unreleased_[thread], {});
  if (open.for_host) {
    offend(std::string(how) + " what was stored to memory of the host or the NIC without a release of host " +
           "scope: use Placement::kHost");
  } else if (open.for_gpu) {
    offend(std::string(how) + " what was stored to a queue without a release: use exec::fence_release");
  }
}

void NicStores::recorded(const void* thread, const void* record) {
  const std::lock_guard lock(mutex_);
  announce(thread, "announces in a doorbell record");
  if (const auto* const range = find(record); range != nullptr) {
    Unreleased& unreleased = unreleased_[thread];
    (range->second.memory == Memory::kGpu ? unreleased.for_gpu : unreleased.for_host) = true;
  }
}

void NicStores::counted(const void* thread, const std::uint32_t* counter, std::uint32_t value) {
  const std::lock_guard lock(mutex_);
  const auto* const range = find(counter);
  if (value != 0 && range != nullptr && range->second.memory == Memory::kMarks) announce(thread, "marks");
}

void NicStores::rang(const void* thread, const std::uint64_t* doorbell, std::uint64_t value) {
  const std::uint32_t qpn = byte_swap(static_cast<std::uint32_t>(value >> 32)) >> 8;
  const auto index = static_cast<std::uint16_t>(byte_swap(static_cast<std::uint32_t>(value)) >> 8);
  const std::lock_guard lock(mutex_);
  announce(thread, "rings for");
  const auto doorbell_register = reinterpret_cast<std::uintptr_t>(doorbell) & ~kBlueFlameHalf;
  const auto [at, first] = rung_.try_emplace({doorbell_register, qpn}, index);
  if (first) return;
  // Allows as many blocks between two doorbells as a queue can have.
  if (static_cast<std::uint16_t>(index - at->second) > 0x8000) {
    offend("rings for WQE " + std::to_string(index) + " of queue pair " + std::to_string(qpn) +
           " after WQE " + std::to_string(at->second) + ": ring before the turn is handed on");
  }
  at->second = index;
}

std::uint64_t NicStores::releases(Placement observed) const {
  const std::lock_guard lock(mutex_);
  return observed == Placement::kHost ? releases_of_host_ : releases_of_gpu_;
}

std::string NicStores::report() const {
  const std::lock_guard lock(mutex_);
  if (offences_ < 2) return first_;
  return first_ + " (first of " + std::to_string(offences_) + ")";
}

void NicStores::offend(std::string what) {
  if (offences_++ == 0) first_ = std::move(what);
}

}  // namespace gdx::exec
