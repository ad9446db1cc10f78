// The two halves of a queue pair's transport, of any service. Empty until they are started.
#pragma once

#include <cstdint>
#include <type_traits>
#include <variant>

#include "driver-shim/softhca/transport/rc.h"
#include "driver-shim/softhca/transport/uc.h"
#include "driver-shim/softhca/transport/ud.h"
#include "proto/roce/codec.h"

namespace gdx::softhca {

template <typename Rc, typename Uc, typename Ud>
class TransportSide {
 public:
  template <typename Port>
  void start(const transport::RcConfig& config, Port& port) {
    side_.template emplace<Rc>(config, port);
  }
  template <typename Port>
  void start(const transport::UcConfig& config, Port& port) {
    side_.template emplace<Uc>(config, port);
  }
  template <typename Port>
  void start(const transport::UdConfig& config, Port& port) {
    side_.template emplace<Ud>(config, port);
  }
  void stop() { side_.template emplace<std::monostate>(); }
  [[nodiscard]] bool started() const { return !std::holds_alternative<std::monostate>(side_); }

  // Return the transport of a service; null: the half is empty or of another service.
  [[nodiscard]] Rc* rc() { return std::get_if<Rc>(&side_); }
  [[nodiscard]] const Rc* rc() const { return std::get_if<Rc>(&side_); }
  [[nodiscard]] Uc* uc() { return std::get_if<Uc>(&side_); }
  [[nodiscard]] const Uc* uc() const { return std::get_if<Uc>(&side_); }
  [[nodiscard]] Ud* ud() { return std::get_if<Ud>(&side_); }

  [[nodiscard]] transport::TransportCounters counters() const {
    return visit([](const auto& side) { return side.counters(); });
  }
  [[nodiscard]] const char* check_invariants() const {
    return rc() != nullptr ? rc()->check_invariants() : nullptr;
  }

 protected:
  // Return what `work` returns of the transport; of an empty half a value-initialised result.
  template <typename Work>
  auto visit(Work work) {
    return visit(side_, work);
  }
  template <typename Work>
  auto visit(Work work) const {
    return visit(side_, work);
  }

 private:
  template <typename Side, typename Work>
  static auto visit(Side& side, Work& work) {
    using Result = std::invoke_result_t<Work&, Rc&>;
    return std::visit(
        [&work](auto& started) -> Result {
          if constexpr (std::is_same_v<std::remove_cvref_t<decltype(started)>, std::monostate>) {
            return Result();
          } else {
            return work(started);
          }
        },
        side);
  }

  std::variant<std::monostate, Rc, Uc, Ud> side_;
};

class SendSide : public TransportSide<transport::Requester, transport::UcRequester, transport::UdRequester> {
 public:
  void post(const transport::WorkRequest& request) {
    visit([&](auto& side) { side.post(request); });
  }
  void pump(std::uint64_t now_ns, std::uint32_t max_packets) {
    visit([&](auto& side) { side.pump(now_ns, max_packets); });
  }
  // Takes a response. False: only RC has requests that are answered.
  bool on_packet(std::uint64_t now_ns, const roce::Decoded& packet) {
    if (rc() == nullptr) return false;
    rc()->on_packet(now_ns, packet.headers, packet.payload);
    return true;
  }
  void fail_all(mlx5::Syndrome first) {
    visit([&](auto& side) {
      if (!side.in_error()) side.fail_all(first);
    });
  }
  [[nodiscard]] bool idle() const {
    return !started() || visit([](const auto& side) { return side.idle(); });
  }
  [[nodiscard]] bool can_send(std::uint64_t now_ns) const {
    return visit([&](const auto& side) { return side.can_send(now_ns); });
  }
  [[nodiscard]] std::uint64_t next_deadline_ns() const {
    return rc() != nullptr ? rc()->next_deadline_ns() : transport::kNever;
  }
  [[nodiscard]] std::uint32_t next_psn(std::uint32_t when_stopped) const {
    return started() ? visit([](const auto& side) { return side.next_psn(); }) : when_stopped;
  }
};

class ReceiveSide
    : public TransportSide<transport::Responder, transport::UcResponder, transport::UdResponder> {
 public:
  // Takes a request. False: the half is stopped. `grh`: returns what precedes the payload, called for UD
  // alone.
  template <typename Grh>
  bool on_packet(std::uint64_t now_ns, const roce::Decoded& packet, Grh grh) {
    if (rc() != nullptr) {
      rc()->on_packet(now_ns, packet.headers, packet.payload);
    } else if (uc() != nullptr) {
      uc()->on_packet(packet.headers, packet.payload);
    } else if (ud() != nullptr) {
      ud()->on_packet(packet.headers, grh(), packet.payload);
    } else {
      return false;
    }
    return true;
  }
  // Sends answers of RC; UC and UD have nothing to send.
  std::uint32_t pump(std::uint64_t now_ns, std::uint32_t max_packets, std::uint32_t max_read_packets) {
    return rc() != nullptr ? rc()->pump(now_ns, max_packets, max_read_packets) : 0;
  }
  [[nodiscard]] bool can_send(bool reads = true) const { return rc() != nullptr && rc()->can_send(reads); }
  [[nodiscard]] std::uint64_t next_deadline_ns() const {
    return rc() != nullptr ? rc()->next_deadline_ns() : transport::kNever;
  }
  [[nodiscard]] bool watches_receives() const { return rc() != nullptr && rc()->watches_receives(); }
  [[nodiscard]] std::uint32_t expected_psn(std::uint32_t when_stopped) const {
    if (rc() != nullptr) return rc()->expected_psn();
    return uc() != nullptr ? uc()->expected_psn() : when_stopped;
  }
};

}  // namespace gdx::softhca
