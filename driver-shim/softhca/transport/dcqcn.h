// DCQCN's reaction point: the rate of one queue pair. It follows from received congestion notifications
// (CNPs), time and sent bytes. Pure. Source: Y. Zhu et al., "Congestion Control for Large-Scale RDMA
// Deployments" (SIGCOMM 2015), section 3.1, figure 7, equations 1 to 4; its names in brackets.
#pragma once

#include <cstdint>

namespace gdx::softhca::transport {

// Rates in 10^9 bits a second. Defaults are the paper's (sections 3.1 and 5.2) unless marked otherwise.
struct DcqcnConfig {
  double line_rate_gbps = 100;
  double min_rate_gbps = 0.01;                // not the paper's: lets a limited sender detect free capacity
  double alpha_gain = 1.0 / 256;              // [g]
  std::uint64_t alpha_period_ns = 55'000;     // [K]
  std::uint64_t increase_period_ns = 55'000;  // [T]
  std::uint64_t increase_bytes = 10'000'000;  // [B]
  std::uint32_t recovery_steps = 5;           // [F]
  double additive_gbps = 0.04;                // [R_AI]
  // [R_HAI], not the paper's, which names no value. Ten times R_AI is the ratio of ConnectX's defaults
  // (rpg_hai_rate 50, rpg_ai_rate 5).
  double hyper_gbps = 0.4;
};

// Least interval between two CNPs of a receiver for one queue pair [N].
inline constexpr std::uint64_t kNotificationIntervalNs = 50'000;

// States and their events:
//   free: no limit; a CNP to limited, at half of the line's rate
//   limited: CNPs cut the rate; timer and byte counter raise it, by fast recovery, then additive, then hyper
//   increase; back at the line's rate, to free, which discards all history
// Call advance() before any query about a moment.
class Dcqcn {
 public:
  explicit Dcqcn(const DcqcnConfig& config = {}) : config_(config) {}

  void on_notification(std::uint64_t now_ns);
  // Returns to the state without any notification.
  void release() { limited_ = false; }
  // Counts the bytes for the byte counter, at the rate before any raise.
  void on_sent(std::uint64_t bytes);
  // Runs the timers that are due.
  void advance(std::uint64_t now_ns);

  [[nodiscard]] bool limited() const { return limited_; }
  [[nodiscard]] double rate_gbps() const { return limited_ ? rate_gbps_ : config_.line_rate_gbps; }  // [R_C]
  [[nodiscard]] double target_gbps() const { return target_gbps_; }                                  // [R_T]
  [[nodiscard]] double alpha() const { return alpha_; }

 private:
  void increase();

  DcqcnConfig config_;
  bool limited_ = false;
  double rate_gbps_ = 0;
  double target_gbps_ = 0;
  double alpha_ = 1;
  std::uint64_t alpha_at_ns_ = 0;     // time of alpha's next decay
  std::uint64_t increase_at_ns_ = 0;  // time of the timer's next event
  std::uint64_t counted_bytes_ = 0;   // since the byte counter's last step
  std::uint32_t timer_steps_ = 0;     // since the last notification
  std::uint32_t byte_steps_ = 0;      // since the last notification
};

}  // namespace gdx::softhca::transport
