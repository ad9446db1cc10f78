// The transport's calls upward. Packets go to PacketOut and completions to Completions; what touches memory
// and keys is done here.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "driver-shim/softhca/engine/qp_completions.h"
#include "driver-shim/softhca/engine/qp_packets.h"

namespace gdx::softhca {

class RequestPort final : public transport::RequesterPort {
 public:
  RequestPort(QpParts& parts, PacketOut& packets, Completions& completions)
      : parts_(parts), packets_(packets), completions_(completions) {}

  mlx5::Syndrome send(const roce::Headers& headers, const transport::WorkRequest& request,
                      std::uint32_t offset_bytes, std::uint32_t length_bytes) override;
  mlx5::Syndrome scatter(const transport::WorkRequest& request, std::uint32_t offset_bytes,
                         std::span<const std::byte> payload) override;
  mlx5::Syndrome apply(const transport::WorkRequest& request) override;
  void complete(const transport::WorkRequest& request, mlx5::Syndrome syndrome) override;
  void note_resend(ResendCause cause, std::uint32_t psn) override;

 private:
  QpParts& parts_;
  PacketOut& packets_;
  Completions& completions_;
};

class ResponsePort final : public transport::ResponderPort {
 public:
  ResponsePort(QpParts& parts, PacketOut& packets, Completions& completions)
      : parts_(parts), packets_(packets), completions_(completions) {}

  void send(const roce::Headers& headers) override;
  bool send_from_memory(const roce::Headers& headers, std::uint32_t rkey, std::uint64_t address,
                        std::uint32_t length_bytes) override;
  bool check(transport::RemoteOperation operation, std::uint32_t rkey, std::uint64_t address,
             std::uint32_t length_bytes) override;
  bool write(std::uint32_t rkey, std::uint64_t address, std::span<const std::byte> payload) override;
  std::optional<std::uint64_t> execute(std::uint32_t rkey, std::uint64_t address,
                                       const transport::AtomicOperation& operation) override;
  bool take_receive() override;
  [[nodiscard]] std::optional<std::uint32_t> posted_receives() const override;
  mlx5::Syndrome scatter_receive(std::uint32_t offset_bytes, std::span<const std::byte> payload) override;
  void complete_receive(const transport::ReceiveCompletion& completion) override;
  bool invalidate(std::uint32_t rkey) override;
  void fatal(mlx5::Syndrome syndrome) override;

 private:
  void report_relaxed_signal(std::uint32_t rkey);

  QpParts& parts_;
  PacketOut& packets_;
  Completions& completions_;
  bool relaxed_signal_reported_ = false;
};

}  // namespace gdx::softhca
