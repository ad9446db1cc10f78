// CUDA's numbers of 16 bits, on both layers: __half and __nv_bfloat16. On the CPU layer operators work by
// conversion to float, and every result is rounded to nearest even, as a GPU rounds it.
#pragma once

#if defined(__CUDACC__)

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#else

#include <cstdint>
#include <cstring>

// NOLINTBEGIN(readability-identifier-naming)

namespace gdx::exec {

inline std::uint32_t bits_of(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline float float_of(std::uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Rounds to binary16. Source: IEEE 754-2019, 3.6 and 4.3.1.
inline std::uint16_t half_of(float value) {
  constexpr std::uint32_t kLeastNormal = 113u << 23;  // 2^-14
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t sign = bits >> 16 & 0x8000;
  const std::uint32_t size = bits & 0x7fffffff;
  if (size > 0x7f800000) return static_cast<std::uint16_t>(sign | 0x7fff);
  if (size >= 143u << 23) return static_cast<std::uint16_t>(sign | 0x7c00);
  if (size < kLeastNormal) {
    // The sum's last place is that of a subnormal, so the processor rounds.
    const std::uint32_t sum = bits_of(float_of(size) + 0.5f) - bits_of(0.5f);
    return static_cast<std::uint16_t>(sign | sum);
  }
  const std::uint32_t rounded = size - (112u << 23) + 0xfff + (size >> 13 & 1);
  return static_cast<std::uint16_t>(sign | rounded >> 13);
}
inline float from_half(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000u) << 16;
  const std::uint32_t exponent = half >> 10 & 31;
  const std::uint32_t fraction = half & 0x3ffu;
  if (exponent == 0) {
    const float size = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -size : size;
  }
  const std::uint32_t wide = exponent == 31 ? 255 : exponent + 112;
  return float_of(sign | wide << 23 | fraction << 13);
}

// Rounds to bfloat16, the upper half of a float.
inline std::uint16_t bfloat_of(float value) {
  const std::uint32_t bits = bits_of(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace gdx::exec

// Converts implicitly from and to float, as CUDA's types do.
struct __half {
  __half() = default;
  __half(float value) : bits(gdx::exec::half_of(value)) {}
  operator float() const { return gdx::exec::from_half(bits); }
  std::uint16_t bits;
};
struct __nv_bfloat16 {
  __nv_bfloat16() = default;
  __nv_bfloat16(float value) : bits(gdx::exec::bfloat_of(value)) {}
  operator float() const { return gdx::exec::float_of(std::uint32_t{bits} << 16); }
  std::uint16_t bits;
};

inline __half __float2half(float value) { return {value}; }
inline float __half2float(__half value) { return value; }
inline __nv_bfloat16 __float2bfloat16(float value) { return {value}; }
inline float __bfloat162float(__nv_bfloat16 value) { return value; }

// NOLINTEND(readability-identifier-naming)

#endif
