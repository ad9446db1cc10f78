// Copies that bypass this processor's caches, to memory that another processor reads next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace gdx::softhca::wire {

// Least length to stream, because the peer reads shorter copies from the cache.
inline constexpr std::size_t kStreamedBytes = 1024;

// Copies as memcpy does. Ordering: none; call stream_fence() before the store that publishes the copy.
inline void stream_copy(std::byte* to, const std::byte* from, std::size_t length_bytes) {
#ifdef __SSE2__
  constexpr std::size_t kLineBytes = 64;
  if (length_bytes >= kStreamedBytes) {
    // Streams whole lines, because the rest of a partial line would have to be fetched first.
    const std::size_t head_bytes = -reinterpret_cast<std::uintptr_t>(to) % kLineBytes;
    std::memcpy(to, from, head_bytes);
    to += head_bytes;
    from += head_bytes;
    length_bytes -= head_bytes;
    for (; length_bytes >= kLineBytes; length_bytes -= kLineBytes) {
      const auto* source = reinterpret_cast<const __m128i*>(from);
      auto* target = reinterpret_cast<__m128i*>(to);
      const __m128i quarters[4] = {_mm_loadu_si128(source), _mm_loadu_si128(source + 1),
                                   _mm_loadu_si128(source + 2), _mm_loadu_si128(source + 3)};
      for (int i = 0; i < 4; ++i) _mm_stream_si128(target + i, quarters[i]);
      to += kLineBytes;
      from += kLineBytes;
    }
  }
#endif
  std::memcpy(to, from, length_bytes);
}

// Ordering: earlier streamed stores become visible before later stores.
inline void stream_fence() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

}  // namespace gdx::softhca::wire
