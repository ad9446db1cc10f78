#include "driver-shim/softhca/transport/dcqcn.h"

#include <algorithm>

namespace gdx::softhca::transport {
namespace {

// Fraction that ends recovery, because averaging approaches the line's rate without reaching it.
constexpr double kRecovered = 0.999;

}  // namespace

void Dcqcn::on_notification(std::uint64_t now_ns) {
  advance(now_ns);
  if (!limited_) {
    limited_ = true;
    rate_gbps_ = config_.line_rate_gbps;
    alpha_ = 1;
  }
  target_gbps_ = rate_gbps_;
  rate_gbps_ = std::max(rate_gbps_ * (1 - alpha_ / 2), config_.min_rate_gbps);
  alpha_ = (1 - config_.alpha_gain) * alpha_ + config_.alpha_gain;
  alpha_at_ns_ = now_ns + config_.alpha_period_ns;
  increase_at_ns_ = now_ns + config_.increase_period_ns;
  counted_bytes_ = 0;
  timer_steps_ = 0;
  byte_steps_ = 0;
}

void Dcqcn::on_sent(std::uint64_t bytes) {
  if (!limited_) return;
  counted_bytes_ += bytes;
  while (limited_ && counted_bytes_ >= config_.increase_bytes) {
    counted_bytes_ -= config_.increase_bytes;
    ++byte_steps_;
    increase();
  }
}

void Dcqcn::advance(std::uint64_t now_ns) {
  while (limited_ && std::min(alpha_at_ns_, increase_at_ns_) <= now_ns) {
    if (alpha_at_ns_ <= increase_at_ns_) {
      alpha_ *= 1 - config_.alpha_gain;
      alpha_at_ns_ += config_.alpha_period_ns;
    } else {
      ++timer_steps_;
      increase_at_ns_ += config_.increase_period_ns;
      increase();
    }
  }
}

void Dcqcn::increase() {
  const std::uint32_t most = std::max(timer_steps_, byte_steps_);
  const std::uint32_t least = std::min(timer_steps_, byte_steps_);
  if (least > config_.recovery_steps) {
    target_gbps_ += config_.hyper_gbps;
  } else if (most >= config_.recovery_steps) {
    target_gbps_ += config_.additive_gbps;
  }
  target_gbps_ = std::min(target_gbps_, config_.line_rate_gbps);
  rate_gbps_ = (target_gbps_ + rate_gbps_) / 2;
  limited_ = rate_gbps_ < config_.line_rate_gbps * kRecovered;
}

}  // namespace gdx::softhca::transport
