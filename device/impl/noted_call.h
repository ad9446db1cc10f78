// Comparison of what the threads of a scope pass to one call. Threads that disagree would lose puts in
// silence, because the leader's arguments alone count. The CPU layer compares always, a GPU where
// GDX_CHECK_ARGUMENTS is defined.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "device/exec/exec.h"
#include "proto/gpu/memory.h"

namespace gdx::device::impl {

GDX_DEVICE std::uint64_t bits_to_compare(const RemoteMemory& memory) {
  return memory.address ^ std::uint64_t{memory.rkey.raw} << 32;
}
GDX_DEVICE std::uint64_t bits_to_compare(const LocalMemory& memory) {
  return reinterpret_cast<std::uint64_t>(memory.address) ^ std::uint64_t{memory.lkey.raw} << 32;
}
// Values of other types may have padding, which differs where nothing else does, so they are left out.
template <typename T>
GDX_DEVICE std::uint64_t bits_to_compare(const T& value) {
  std::uint64_t bits = 0;
  if constexpr (std::is_pointer_v<T>) {
    bits = reinterpret_cast<std::uint64_t>(value);
  } else if constexpr (std::is_scalar_v<T> && sizeof(T) <= sizeof bits) {
    memcpy(&bits, &value, sizeof value);
  }
  return bits;
}

// Begins a call of a scope. `name` is a literal.
template <Scope S, typename... Arguments>
GDX_DEVICE void note_call([[maybe_unused]] const char* name, [[maybe_unused]] const Arguments&... arguments) {
  if constexpr (S != Scope::kThread && exec::kComparesCalls) {
    std::uint64_t mixed = 0;
    ((mixed = (mixed ^ bits_to_compare(arguments)) * 0x9e3779b97f4a7c15u, mixed ^= mixed >> 32), ...);
    exec::note_call(S, name, mixed);
  }
}

}  // namespace gdx::device::impl
