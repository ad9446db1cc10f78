// Rate of a link or of a queue pair, as a virtual clock. The clock is the time until which sent bytes keep it
// busy.
// Pure: time comes as an argument.
#pragma once

#include <algorithm>
#include <cstdint>

namespace gdx::softhca {

inline constexpr double kBitsPerByte = 8;

// Returns a queue pair's turn to send: `quantum_bytes` at most. With a link rate it is the bytes of 5 us, but
// one packet at least. Staging credits leave a queue pair few packets to send. With a longer turn, an
// endpoint would keep its turn if a credit returned before its last packet has left. An endpoint with one
// credit would get a fraction of the others' share.
[[nodiscard]] inline std::uint32_t turn_bytes(double rate_gbps, std::uint32_t quantum_bytes,
                                              std::uint32_t packet_bytes) {
  constexpr double kTurnNs = 5'000;  // 64 KiB at 100 Gb/s
  if (rate_gbps == 0) return quantum_bytes;
  const double carried_bytes = std::max<double>(rate_gbps * kTurnNs / kBitsPerByte, packet_bytes);
  return static_cast<std::uint32_t>(std::min<double>(carried_bytes, quantum_bytes));
}

class LinkClock {
 public:
  // Sets the rate. 1 Gb/s is 10^9 bits a second; 0: no limit. After a pause, or a late call, up to
  // `burst_bytes` leave at once.
  LinkClock(double rate_gbps, std::uint64_t burst_bytes) : burst_bytes_(burst_bytes) {
    set_rate(0, rate_gbps);
  }

  // Sets the rate from now on. The debt stays in bytes and is paid at the new rate; without a rate, at once.
  void set_rate(std::uint64_t now_ns, double rate_gbps) {
    const double before = ns_per_byte_;
    ns_per_byte_ = rate_gbps > 0 ? kBitsPerByte / rate_gbps : 0;
    if (busy_until_ns_ > now_ns && before > 0) {
      const double owed_ns = static_cast<double>(busy_until_ns_ - now_ns) * (ns_per_byte_ / before);
      busy_until_ns_ = now_ns + static_cast<std::uint64_t>(owed_ns);
    }
    burst_ns_ = static_cast<std::uint64_t>(static_cast<double>(burst_bytes_) * ns_per_byte_);
  }

  // Returns the bytes that may be begun now; a packet that goes beyond becomes debt.
  [[nodiscard]] std::uint64_t budget_bytes(std::uint64_t now_ns) const {
    if (ns_per_byte_ == 0) return ~std::uint64_t{0};
    const std::uint64_t until_ns = now_ns + burst_ns_;
    if (busy_until_ns_ >= until_ns) return 0;
    const std::uint64_t free_ns = std::min(until_ns - busy_until_ns_, burst_ns_);
    return static_cast<std::uint64_t>(static_cast<double>(free_ns) / ns_per_byte_);
  }
  void charge(std::uint64_t now_ns, std::uint64_t bytes) {
    if (ns_per_byte_ == 0 || bytes == 0) return;
    const double busy_ns = static_cast<double>(bytes) * ns_per_byte_ + fraction_ns_;
    const auto whole_ns = static_cast<std::uint64_t>(busy_ns);
    fraction_ns_ = busy_ns - static_cast<double>(whole_ns);
    busy_until_ns_ = std::max(busy_until_ns_, now_ns) + whole_ns;
  }
  // Returns the time until budget_bytes() is at least one byte.
  [[nodiscard]] std::uint64_t wait_ns(std::uint64_t now_ns) const {
    if (ns_per_byte_ == 0) return 0;
    const std::uint64_t free_at_ns = busy_until_ns_ + static_cast<std::uint64_t>(ns_per_byte_) + 1;
    return free_at_ns > now_ns + burst_ns_ ? free_at_ns - now_ns - burst_ns_ : 0;
  }

 private:
  std::uint64_t burst_bytes_;
  double ns_per_byte_ = 0;
  std::uint64_t burst_ns_ = 0;
  std::uint64_t busy_until_ns_ = 0;
  double fraction_ns_ = 0;  // rest of the time charged, because a byte does not take a whole number of ns
};

}  // namespace gdx::softhca
