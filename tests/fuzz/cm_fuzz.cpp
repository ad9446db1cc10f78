// Connection management datagrams from a hostile peer, between the calls of an honest user.
#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "driver-shim/softhca/cm/agent.h"
#include "proto/mad/cm_codec.h"
#include "tests/fuzz/input.h"

namespace gdx::softhca::cm {
namespace {

constexpr std::uint32_t kBacklog = 3;
constexpr std::uint64_t kService = 7;
constexpr std::size_t kMaxConnections = 64;
constexpr int kMaxTimers = 1 << 14;

wire::Address host(std::uint32_t last) { return wire::Address::ipv4(0x7f000000u | last); }

class Recorder final : public Port {
 public:
  void send(const wire::Address& /*destination*/, const Message& message) override {
    ++sent;
    // Decodes each sent message again, because it must be readable.
    fuzz::expect(gdx::cm::decode(gdx::cm::encode(message)).has_value(), "what is sent can be decoded");
  }
  void raise(const Event& event) override {
    if (event.type == EventType::kRequest) {
      requests.push_back(event.id);
    } else {
      fuzz::expect(++told[event.id][event.type] == 1, "a user is told of each thing once");
    }
  }

  std::size_t sent = 0;
  std::vector<std::uint32_t> requests;
  std::map<std::uint32_t, std::map<EventType, int>> told;
};

class Run {
 public:
  explicit Run(fuzz::Input& input) : input_(input), agent_(config(), port_) {
    fuzz::expect(agent_.listen(kService, 1, kBacklog), "a first listener is let in");
  }

  void step() {
    switch (input_.take<std::uint8_t>() % 8) {
      case 0: return connect();
      case 1: return call();
      case 2: now_ns_ += input_.take<std::uint32_t>(); return agent_.on_timer(now_ns_);
      case 3: return raw();
      default: return message();
    }
  }

  void finish() {
    agent_.release_all(now_ns_);
    for (int timer = 0; timer < kMaxTimers && agent_.next_deadline_ns() != kNever; ++timer) {
      now_ns_ = std::max(now_ns_, agent_.next_deadline_ns());
      agent_.on_timer(now_ns_);
    }
    fuzz::expect(agent_.connections() == 0, "nothing outlives its user for ever");
  }

 private:
  static AgentConfig config() {
    AgentConfig config;
    config.address = host(1);
    config.random = [bits = std::mt19937(3)]() mutable { return static_cast<std::uint32_t>(bits()); };
    return config;
  }

  void connect() {
    if (agent_.connections() >= kMaxConnections) return;
    Connection& connection = agent_.make(host(2));
    ids_.push_back(connection.id());
    Message request;
    request.path.ack_timeout = input_.take<std::uint8_t>() % 32;
    if (input_.take<std::uint8_t>() % 4 == 0) {
      connection.resolve(now_ns_, request);
    } else {
      connection.connect(now_ns_, request);
    }
  }

  // Any id that there is, or was: the user's, or one that a request has brought.
  std::uint32_t some_id() {
    const std::size_t known = ids_.size() + port_.requests.size();
    if (known == 0) return 0;
    const std::size_t chosen = input_.take<std::uint8_t>() % known;
    return chosen < ids_.size() ? ids_[chosen] : port_.requests[chosen - ids_.size()];
  }

  void call() {
    const std::uint32_t id = some_id();
    Connection* const connection = agent_.find(id);
    if (connection == nullptr) return;
    const State before = connection->state();
    switch (input_.take<std::uint8_t>() % 6) {
      case 0: return expect_as_permitted(connection->accept(now_ns_, {}, {}), before, Input::kAccept);
      case 1: return expect_as_permitted(connection->establish(), before, Input::kEstablish);
      case 2:
        return expect_as_permitted(connection->reject(now_ns_, RejectReason::kConsumerDefined, {}), before,
                                   Input::kReject);
      case 3: return expect_as_permitted(connection->disconnect(now_ns_), before, Input::kDisconnect);
      case 4: return expect_as_permitted(connection->reply({}), before, Input::kReply);
      default: agent_.release(now_ns_, id);
    }
  }
  static void expect_as_permitted(bool done, State before, Input input) {
    fuzz::expect(done == permitted(before, input), "a call succeeds where its state permits it");
  }

  void message() {
    Message message;
    message.type = static_cast<MessageType>(0x10 + input_.take<std::uint8_t>() % 9);
    message.local_id = input_.take<std::uint8_t>() % 8;
    message.remote_id = some_id();
    if (message.type == MessageType::kSidrRep) message.local_id = message.remote_id;
    message.service_id = kService + input_.take<std::uint8_t>() % 2;
    message.endpoint.qpn = input_.take<std::uint8_t>();
    message.path_mtu = input_.take<std::uint8_t>() % 8;
    message.path.ack_timeout = input_.take<std::uint8_t>() % 32;
    message.transport = static_cast<gdx::cm::Transport>(input_.take<std::uint8_t>() % 3);
    message.answered = static_cast<gdx::cm::Answered>(input_.take<std::uint8_t>() % 3);
    message.reason = input_.take<std::uint8_t>() % 4;
    message.service_timeout = input_.take<std::uint8_t>() % 32;
    deliver(gdx::cm::encode(message));
  }

  void raw() {
    gdx::cm::Mad mad{};
    const auto bytes = std::as_bytes(input_.take_bytes(input_.take<std::uint16_t>() % (mad.size() + 1)));
    std::copy(bytes.begin(), bytes.end(), mad.begin());
    deliver(std::span<const std::byte>(mad).first(bytes.size()));
    deliver(mad);
  }

  void deliver(std::span<const std::byte> datagram) {
    const std::size_t before = port_.sent;
    agent_.on_datagram(now_ns_, host(2 + input_.take<std::uint8_t>() % 2), datagram);
    // The REJ of a stale request, and the DREQ of the connection that it betrays.
    fuzz::expect(port_.sent - before <= 2, "a datagram does not draw a flood");
    std::uint32_t unanswered = 0;
    for (const std::uint32_t id : port_.requests) {
      const Connection* const connection = agent_.find(id);
      if (connection == nullptr) continue;
      const State state = connection->state();
      if (state == State::kReqReceived || state == State::kSidrReceived) ++unanswered;
    }
    fuzz::expect(unanswered <= kBacklog, "no more requests wait than the backlog");
  }

  fuzz::Input& input_;
  Recorder port_;
  Agent agent_;
  std::uint64_t now_ns_ = 0;
  std::vector<std::uint32_t> ids_;
};

}  // namespace
}  // namespace gdx::softhca::cm

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  gdx::fuzz::Input input(data, size);
  gdx::softhca::cm::Run run(input);
  while (!input.empty()) run.step();
  run.finish();
  return 0;
}
