// Calls to a peer's memory that is mapped here: the threads of the scope load and store. Each call begins
// with a barrier, which orders earlier stores of the scope's other threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/exec/exec.h"
#include "device/impl/wqe.h"

namespace gdx::device::impl {

// Copies by the whole scope. The source may be reused at return.
template <Scope S>
GDX_DEVICE void copy_direct(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  exec::sync<S>();
  exec::copy<S>(to, from, bytes);
  exec::sync<S>();  // no thread returns before all have loaded their parts of the source
}

// Stores a word after all earlier stores of the scope.
template <Scope S>
GDX_DEVICE void set_direct(std::uint64_t* word, std::uint64_t value) {
  exec::sync<S>();
  if (exec::thread_rank<S>() == 0) exec::publish(word, value);
}

// Runs one atomic in the leader. `change(word)` returns the old value, which goes to `original` unless null.
template <Scope S, typename Change>
GDX_DEVICE void change_direct(std::uint64_t* word, std::byte* original, Change change) {
  exec::sync<S>();
  if (exec::thread_rank<S>() == 0) {
    const std::uint64_t was = change(word);
    if (original != nullptr) *reinterpret_cast<std::uint64_t*>(original) = was;
  }
  exec::sync<S>();
}

// Stores a value after all earlier stores of the scope. Its 16 B may become visible in two parts.
template <Scope S, std::size_t Bytes>
GDX_DEVICE void put_value_direct(std::byte* at, const ValueBits& bits) {
  exec::sync<S>();
  if (exec::thread_rank<S>() != 0) return;
  if constexpr (Bytes == 1) exec::publish_value(at, static_cast<std::uint8_t>(bits.low));
  if constexpr (Bytes == 2) exec::publish_value(at, static_cast<std::uint16_t>(bits.low));
  if constexpr (Bytes == 4) exec::publish_value(at, static_cast<std::uint32_t>(bits.low));
  if constexpr (Bytes >= 8) exec::publish_value(at, bits.low);
  if constexpr (Bytes == 16) exec::publish_value(at + sizeof bits.low, bits.high);
}

}  // namespace gdx::device::impl
