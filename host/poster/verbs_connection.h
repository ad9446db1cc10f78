// One rank's queue pair, with the messages' buffers and the credits by which no message finds no receive.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "base/result.h"
#include "host/poster/port.h"
#include "host/poster/verbs_library.h"
#include "proto/poster/verbs.h"

namespace gdx::verbs {

// Bounds of a queue pair, as the device permits them.
struct Bounds {
  std::uint32_t messages = 128;    // that a rank may have sent and this one not read
  std::uint32_t operations = 256;  // in flight, without returns of credits
  std::uint8_t reads = 16;         // in flight
};

class Connection {
 public:
  // Makes the queue pair of an id whose route is resolved, or that asks for a connection, and posts all
  // receives. `ack_timeout`: as of VerbsOptions. Errors: those of the device.
  [[nodiscard]] static Result<std::unique_ptr<Connection>> open(Id id, ibv_pd* domain, const Bounds& bounds,
                                                                std::uint8_t ack_timeout);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  [[nodiscard]] const rdma_cm_id* id() const { return id_.get(); }
  // Calls rdma_connect or rdma_accept. `parameters`: with private data, and what the caller has agreed.
  [[nodiscard]] Result<void> connect(rdma_conn_param& parameters);
  [[nodiscard]] Result<void> accept(rdma_conn_param& parameters);
  // Takes the number of messages that the rank's receives hold.
  void set_credits(std::uint32_t messages) { credits_ = messages; }
  // Says that messages may be sent. The side that connected says so once it is established, and sends a
  // frame, because iWARP's other side must not send before it has received; the first frame opens that side.
  void open_as_caller();
  [[nodiscard]] bool is_open() const { return open_; }

  // Those of Port. Errors: failure().
  [[nodiscard]] Result<Posting> transfer(ibv_wr_opcode opcode, PortSource local, PortTarget remote,
                                         std::uint64_t bytes, PortContext* context);
  [[nodiscard]] Result<Posting> send(const std::byte* message, PortContext* context);
  [[nodiscard]] Result<void> poll(std::vector<PortEvent>& events);

  // Ends the connection for that reason: what is in flight completes with it, and nothing more is posted.
  void fail_with(Error error);
  [[nodiscard]] const Error& failure() const { return failure_; }

 private:
  // A SEND, in memory of this connection.
  struct Buffer {
    Frame frame;
    std::array<std::byte, kPortMessageBytes> message;
  };
  Connection(Id id, const Bounds& bounds) : bounds_(bounds), id_(std::move(id)) {}

  [[nodiscard]] Result<void> make(ibv_pd* domain, std::uint8_t ack_timeout);
  [[nodiscard]] Result<void> post_receive(std::uint32_t buffer);
  // Posts the buffer's frame; `context`: null, for credits alone.
  [[nodiscard]] Result<void> post_frame(std::uint32_t buffer, PortContext* context);
  [[nodiscard]] Result<void> post(ibv_send_wr& request, const char* what);
  void return_credits();
  void take(const ibv_wc& completion, std::vector<PortEvent>& events);
  void take_received(const ibv_wc& completion, std::vector<PortEvent>& events);

  Bounds bounds_;
  Id id_;
  Completions completions_;      // of this queue pair alone
  std::vector<Buffer> buffers_;  // of receives, then of SENDs
  Region region_;
  std::vector<std::uint32_t> free_;  // buffers of SENDs
  std::uint32_t in_flight_ = 0;      // operations
  std::uint32_t credits_ = 0;        // messages that may be sent
  std::uint32_t owed_ = 0;           // receives that are free again, which the rank does not know
  bool open_ = false;
  Error failure_{Status::kOk, {}};
};

}  // namespace gdx::verbs
