// The two halves of a queue pair's transport, of any service. Empty until they are started.
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>
#include <variant>

#include "driver-shim/softhca/transport/rc.h"
#include "driver-shim/softhca/transport/uc.h"
#include "driver-shim/softhca/transport/ud.h"

namespace gdx::softhca {

class SendSide {
 public:
  template <typename Requester, typename Config>
  void start(const Config& config, transport::RequesterPort& port) {
    side_.emplace<Requester>(config, port);
  }
  void stop() { side_.emplace<std::monostate>(); }
  [[nodiscard]] bool started() const { return !std::holds_alternative<std::monostate>(side_); }
  [[nodiscard]] transport::Requester* rc() { return std::get_if<transport::Requester>(&side_); }
  [[nodiscard]] transport::UdRequester* ud() { return std::get_if<transport::UdRequester>(&side_); }

  // Require a started side.
  void post(const transport::WorkRequest& request) {
    visit([&](auto& side) { side.post(request); });
  }
  std::uint32_t pump(std::uint64_t now_ns, std::uint32_t max_packets) {
    std::uint32_t sent = 0;
    visit([&](auto& side) { sent = side.pump(now_ns, max_packets); });
    return sent;
  }
  void fail_all(mlx5::Syndrome first) {
    visit([&](auto& side) {
      if (!side.in_error()) side.fail_all(first);
    });
  }

  // Work on a started or empty side.
  [[nodiscard]] bool idle() const {
    bool idle = true;
    visit([&](const auto& side) { idle = side.idle(); });
    return idle;
  }
  [[nodiscard]] bool can_send(std::uint64_t now_ns) const {
    bool can = false;
    visit([&](const auto& side) { can = side.can_send(now_ns); });
    return can;
  }
  [[nodiscard]] std::uint64_t next_deadline_ns() const {
    const auto* timed = std::get_if<transport::Requester>(&side_);
    return timed != nullptr ? timed->next_deadline_ns() : transport::kNever;
  }
  [[nodiscard]] std::uint32_t next_psn(std::uint32_t when_stopped) const {
    std::uint32_t psn = when_stopped;
    visit([&](const auto& side) { psn = side.next_psn(); });
    return psn;
  }
  [[nodiscard]] transport::TransportCounters counters() const {
    transport::TransportCounters counters;
    visit([&](const auto& side) { counters = side.counters(); });
    return counters;
  }
  [[nodiscard]] const char* check_invariants() const {
    const auto* const checked = std::get_if<transport::Requester>(&side_);
    return checked != nullptr ? checked->check_invariants() : nullptr;
  }

 private:
  using Side =
      std::variant<std::monostate, transport::Requester, transport::UcRequester, transport::UdRequester>;

  template <typename Visit>
  void visit(Visit visit_side) {
    std::visit(
        [&](auto& side) {
          if constexpr (!std::is_same_v<std::decay_t<decltype(side)>, std::monostate>) visit_side(side);
        },
        side_);
  }
  template <typename Visit>
  void visit(Visit visit_side) const {
    std::visit(
        [&](const auto& side) {
          if constexpr (!std::is_same_v<std::decay_t<decltype(side)>, std::monostate>) visit_side(side);
        },
        side_);
  }

  Side side_;
};

class ReceiveSide {
 public:
  template <typename Responder, typename Config>
  void start(const Config& config, transport::ResponderPort& port) {
    side_.emplace<Responder>(config, port);
  }
  void stop() { side_.emplace<std::monostate>(); }
  [[nodiscard]] bool started() const { return !std::holds_alternative<std::monostate>(side_); }
  [[nodiscard]] transport::Responder* rc() { return std::get_if<transport::Responder>(&side_); }
  [[nodiscard]] transport::UcResponder* uc() { return std::get_if<transport::UcResponder>(&side_); }
  [[nodiscard]] transport::UdResponder* ud() { return std::get_if<transport::UdResponder>(&side_); }

  // Sends answers of RC; UC and UD have nothing to send.
  std::uint32_t pump(std::uint64_t now_ns, std::uint32_t max_packets, std::uint32_t max_read_packets) {
    transport::Responder* const answering = rc();
    return answering != nullptr ? answering->pump(now_ns, max_packets, max_read_packets) : 0;
  }
  [[nodiscard]] bool can_send(bool reads = true) const {
    const auto* answering = std::get_if<transport::Responder>(&side_);
    return answering != nullptr && answering->can_send(reads);
  }
  [[nodiscard]] bool watches_receives() const {
    const auto* answering = std::get_if<transport::Responder>(&side_);
    return answering != nullptr && answering->watches_receives();
  }
  [[nodiscard]] std::uint32_t expected_psn(std::uint32_t when_stopped) const {
    if (const auto* acknowledging = std::get_if<transport::Responder>(&side_)) {
      return acknowledging->expected_psn();
    }
    const auto* silent = std::get_if<transport::UcResponder>(&side_);
    return silent != nullptr ? silent->expected_psn() : when_stopped;
  }
  [[nodiscard]] transport::TransportCounters counters() const {
    return std::visit(
        [](const auto& side) {
          if constexpr (std::is_same_v<std::decay_t<decltype(side)>, std::monostate>) {
            return transport::TransportCounters{};
          } else {
            return side.counters();
          }
        },
        side_);
  }
  [[nodiscard]] const char* check_invariants() const {
    const auto* const checked = std::get_if<transport::Responder>(&side_);
    return checked != nullptr ? checked->check_invariants() : nullptr;
  }

 private:
  std::variant<std::monostate, transport::Responder, transport::UcResponder, transport::UdResponder> side_;
};

}  // namespace gdx::softhca
