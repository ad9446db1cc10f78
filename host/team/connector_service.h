// Runs the connector of one rank: a thread with sockets of its own. Ranks thus connect while their other
// threads wait for kernels.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/result.h"
#include "host/bootstrap/connection.h"
#include "host/bootstrap/reception.h"
#include "host/team/connector.h"
#include "host/team/connector_letter.h"

namespace gdx {

struct ConnectorOptions {
  std::uint32_t rank = 0;
  std::uint32_t size = 1;
  std::uint32_t lanes = 1;
  // Numeric address by which the other ranks reach this one, or "unix:" if all are on this host.
  std::string host = "127.0.0.1";
  // Less than the kernels' bound, so that they report an unreachable peer and no timeout.
  ConnectorRules rules = {};
  bootstrap::Secret::Ptr secret = nullptr;  // secret of the job, by which ranks recognise each other
};

// Costs less than one percent of a core at rest: it looks once in 8 ms then, and more often
// right after something has happened. Threads: any thread may call connect().
class ConnectorService final : private ConnectorPort {
 public:
  // Listens. The next steps are to gather all ranks' identities, and start().
  // Errors: kInvalidArgument naming the option; kSystem.
  [[nodiscard]] static Result<std::unique_ptr<ConnectorService>> listen(const ConnectorOptions& options);
  ConnectorService(const ConnectorService&) = delete;
  ConnectorService& operator=(const ConnectorService&) = delete;
  // Ends the thread. Ranks that are ready stay connected; others find this rank gone.
  ~ConnectorService() override;

  [[nodiscard]] bootstrap::ConnectorIdentity identity() const;

  // Starts the thread. `identities` are all ranks', by rank. From then on that thread calls `host`. `asked`
  // has lanes x size words of host memory, those of lane 0 first; null: no kernel asks. A kernel stores 1 to
  // the word of a rank, and the service clears it; asking again has no effect. Both outlive this object.
  // Errors: kInvalidArgument, kVersionMismatch, naming the rank; kNoMemory (no thread).
  [[nodiscard]] Result<void> start(std::span<const bootstrap::ConnectorIdentity> identities,
                                   ConnectorHost& host, std::uint32_t* asked = nullptr);

  // Connects to `rank` on `lane`, and waits. A call of ConnectorHost must not call it, because the thread
  // that makes those calls is the one that connects. Errors: kInvalidArgument; kTimeout; kAborted; those with
  // which the rank is gone.
  [[nodiscard]] Result<void> connect(std::uint32_t rank, std::uint32_t lane, std::uint64_t timeout_ns);
  // Ends every wait of connect(), also later ones. Threads: any.
  void abort();

 private:
  struct Channel {
    bootstrap::Connection connection;
    bool connecting = false;  // true until the socket is connected
    bool opened = false;      // a dialled one: the handshake has ended, too
    std::string to;           // numeric address, of a dialled one
  };
  using Key = std::pair<std::uint32_t, std::uint32_t>;  // rank, lane

  ConnectorService(const ConnectorOptions& options, Descriptor listener, std::uint64_t token);

  Result<EndpointAddress> create(std::uint32_t rank, std::uint32_t lane) override;
  Result<void> connect(std::uint32_t rank, std::uint32_t lane, const EndpointAddress& peer) override;
  void ready(std::uint32_t rank, std::uint32_t lane) override;
  void gone(std::uint32_t rank, std::uint32_t lane, const Error& why) override;
  ChannelId dial(std::uint32_t rank) override;
  void send(ChannelId channel, std::uint32_t rank, const ConnectorLetter& letter) override;
  void close(ChannelId channel) override;

  void serve();
  // Returns the time of the deadlines. It stands still while the thread pauses or makes an endpoint for long,
  // because nothing is sent or read then.
  [[nodiscard]] std::uint64_t running_ns();
  // Begins for a few words at most, because sockets wait meanwhile; true if it has begun any.
  [[nodiscard]] bool take_asks();
  [[nodiscard]] bool take_requests();
  // Waits for a socket, until the pause ends or something else is due; true if a socket is ready.
  [[nodiscard]] bool wait(std::uint64_t pause_ns);
  [[nodiscard]] bool take_arrivals();
  [[nodiscard]] bool serve_channels();
  // Returns whether anything happened on the channel.
  [[nodiscard]] bool serve_channel(ChannelId id);
  [[nodiscard]] bool take_frame(ChannelId id, const bootstrap::Frame& frame);
  void lose(ChannelId id, const Error& why);

  [[nodiscard]] bootstrap::ChannelPlace channel_place() const;
  [[nodiscard]] Result<bootstrap::Connection> begin_connection(std::uint32_t rank) const;

  ConnectorPlace place_;
  ConnectorRules rules_;
  bootstrap::Secret::Ptr secret_;
  std::uint64_t token_;
  Descriptor listener_;  // listens until start() takes it over
  std::string address_;
  std::vector<std::string> addresses_;  // addresses of all ranks' listeners
  ConnectorHost* host_ = nullptr;
  std::uint32_t* asked_ = nullptr;

  // Members below are the thread's alone.
  std::optional<Connector> connector_;
  std::optional<bootstrap::Reception> reception_;
  std::map<ChannelId, Channel> channels_;
  std::vector<std::pair<ChannelId, Error>> refused_;  // dialled, and ended at once
  ChannelId last_channel_ = 0;
  std::uint64_t listen_again_ns_ = 0;  // the listener rests until then
  std::uint64_t running_ns_ = 0;
  std::uint64_t looked_ns_ = 0;  // time of the last look, by the system's clock

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Key> requests_;                     // guarded by mutex_
  std::map<Key, std::optional<Error>> outcomes_;  // guarded by mutex_; nullopt: ready
  bool aborted_ = false;                          // guarded by mutex_
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace gdx
