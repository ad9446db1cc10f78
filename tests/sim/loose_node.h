// One UC or UD queue pair of the simulation, with its books: what it sent, and what it may receive.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "driver-shim/softhca/transport/uc.h"
#include "driver-shim/softhca/transport/ud.h"
#include "tests/sim/node.h"
#include "tests/sim/random.h"

namespace gdx::sim {

enum class Service { kUc, kUd };

struct LooseConfig {
  Service service = Service::kUc;
  std::uint32_t number = 0;  // even: of the first host. UC: connected to number ^ 1
  std::uint32_t mtu_bytes = 256;
  std::uint32_t send_psn = 0;
  std::uint32_t receive_psn = 0;
};

class LooseNode final : transport::RequesterPort, transport::ResponderPort {
 public:
  using Transmit = std::function<void(std::vector<std::byte>)>;

  LooseNode(const LooseConfig& config, ReceivePool& receives, Transmit transmit);

  // UC hears its peer, UD every queue pair of the other host.
  static bool may_hear(const LooseNode& hearer, const LooseNode& sender);
  void expect_from(LooseNode& sender) { senders_.push_back({.node = &sender}); }
  // A random request; for UD to one of the other host's `pairs` queue pairs, or with a wrong Q_Key.
  void post(Random& random, std::uint32_t pairs);
  void pump(std::uint32_t max_packets);
  [[nodiscard]] bool can_send() const;
  // Ignores what is for another queue pair.
  void on_datagram(std::span<const std::byte> datagram);

  [[nodiscard]] std::uint32_t posted() const { return static_cast<std::uint32_t>(posted_.size()); }
  [[nodiscard]] std::uint64_t completed() const { return completed_; }
  [[nodiscard]] std::uint64_t received() const { return received_; }
  [[nodiscard]] const std::string& problem() const { return problem_; }
  // At the end. `nothing_lost`: everything must have arrived; `may_repeat`: the link made copies.
  [[nodiscard]] std::string verdict(bool nothing_lost, bool may_repeat) const;

 private:
  struct Posted {
    WorkRequest request;
    bool deliverable = true;  // key and Q_Key are right
    std::uint32_t deliveries = 0;
  };
  struct Sender {
    LooseNode* node = nullptr;
    std::size_t next = 0;  // UC: what came before this one is past
  };

  mlx5::Syndrome send(const roce::Headers& headers, const WorkRequest& request, std::uint32_t offset_bytes,
                      std::uint32_t length_bytes) override;
  mlx5::Syndrome scatter(const WorkRequest& request, std::uint32_t offset_bytes,
                         std::span<const std::byte> payload) override;
  mlx5::Syndrome apply(const WorkRequest& request) override;
  void complete(const WorkRequest& request, mlx5::Syndrome syndrome) override;

  void send(const roce::Headers& headers) override;
  bool send_from_memory(const roce::Headers& headers, std::uint32_t rkey, std::uint64_t address,
                        std::uint32_t length_bytes) override;
  bool check(transport::RemoteOperation operation, std::uint32_t rkey, std::uint64_t address,
             std::uint32_t length_bytes) override;
  bool write(std::uint32_t rkey, std::uint64_t address, std::span<const std::byte> payload) override;
  std::optional<std::uint64_t> execute(std::uint32_t rkey, std::uint64_t address,
                                       const transport::AtomicOperation& operation) override;
  bool take_receive() override;
  mlx5::Syndrome scatter_receive(std::uint32_t offset_bytes, std::span<const std::byte> payload) override;
  void complete_receive(const transport::ReceiveCompletion& completion) override;
  bool invalidate(std::uint32_t rkey) override;
  void fatal(mlx5::Syndrome syndrome) override;

  [[nodiscard]] std::byte payload_byte(std::uint64_t cookie, std::uint32_t offset) const;
  [[nodiscard]] bool arrived(const WorkRequest& request, const LooseNode& sender,
                             const transport::ReceiveCompletion& completion) const;
  [[nodiscard]] std::uint32_t header_bytes() const;
  [[nodiscard]] std::string verdict_of_packets() const;
  void note(std::string problem);

  LooseConfig config_;
  ReceivePool& receives_;
  Transmit transmit_;
  std::vector<std::byte> memory_;
  std::vector<std::bitset<256>> allowed_;  // per byte of it: the values that some WRITE may have left
  std::vector<Sender> senders_;
  std::vector<Posted> posted_;
  std::uint64_t completed_ = 0;
  std::uint64_t received_ = 0;
  std::uint64_t packets_sent_ = 0;
  std::uint64_t packets_arrived_ = 0;
  std::uint64_t key_faults_caused_ = 0;
  std::vector<std::byte> buffer_;
  bool taken_ = false;
  bool dead_ = false;
  std::string problem_;
  transport::UcRequester uc_requester_;
  transport::UcResponder uc_responder_;
  transport::UdRequester ud_requester_;
  transport::UdResponder ud_responder_;
};

}  // namespace gdx::sim
