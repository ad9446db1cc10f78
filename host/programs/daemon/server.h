// The socket of gdxd, and a thread for each client.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/descriptor.h"
#include "base/result.h"
#include "host/programs/daemon/group.h"
#include "host/programs/daemon/id_owner.h"
#include "host/programs/daemon/limits.h"
#include "host/programs/daemon/session.h"

namespace gdx::daemon {

struct ServerOptions {
  std::string path;           // absolute path of the socket
  std::uint32_t mode = 0600;  // rights of the socket's file: who may connect
  std::int64_t group = -1;    // its group id; -1: that of the process
  Limits limits = {};
  IdFiles ids = {};
  std::set<uid_t> monitors = {};  // users that see what root sees, and end nothing
};

class Server final : public Operator {
 public:
  // Listens. Replaces a socket that nobody serves. Errors: kBusy (another gdxd listens there),
  // kInvalidArgument (a file that is no socket), kSystem.
  [[nodiscard]] static Result<std::unique_ptr<Server>> listen(const ServerOptions& options);
  // Takes over a listening socket that a service manager has made.
  [[nodiscard]] static std::unique_ptr<Server> adopt(Descriptor listener, const ServerOptions& options);
  ~Server() override;
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Serves clients until stop(). Then ends every client's objects. Errors: kSystem.
  [[nodiscard]] Result<void> run();
  // Makes run() return. May be called from a signal handler.
  void stop();

  [[nodiscard]] std::string statistics(uid_t viewer) override;
  [[nodiscard]] std::string flights(uid_t viewer, pid_t process, std::uint32_t qpn) override;
  [[nodiscard]] Result<void> kick(uid_t who, pid_t process) override;
  [[nodiscard]] Result<void> drain(uid_t who) override;
  [[nodiscard]] bool draining() const override { return draining_.load(); }
  [[nodiscard]] bool may_see_counters(uid_t viewer, const Hca& hca) override;
  // Returns whether `user` sees the figures of all users.
  [[nodiscard]] bool sees_all(uid_t user) const { return rules(user) || options_.monitors.contains(user); }

 private:
  enum class Place : std::uint8_t { kClient, kOperator };
  struct Client {
    Descriptor socket;  // only this client's thread takes it away, under mutex_
    pid_t process = 0;
    std::uint64_t connected_ns = 0;
    uid_t user = 0;
    Place place = Place::kClient;
    std::unique_ptr<Session> session;  // null: the session has ended
    std::atomic<bool> session_open{false};
    std::shared_mutex use;  // held shared while another thread uses the session, and whole while it ends
    std::atomic<bool> ending{false};
    std::atomic<bool> abandoned{false};  // it ends though its answers are not read
    std::atomic<bool> ended{false};
    std::thread thread;
  };
  Server(Descriptor listener, ServerOptions options);
  Result<void> accept_client();
  Result<std::shared_ptr<Group>> group_of(uid_t user, bool beyond_limit);
  Result<std::unique_ptr<Session>> client_session(uid_t user, std::uint64_t served);
  Result<std::unique_ptr<Session>> new_session(uid_t user);
  void serve(Client& client);
  static void serve_session(Client& client);
  static bool wait_for_turn(Client& client, const Result<bootstrap::LocalMessage>& message);
  // Keeps a session from ending while it is looked at.
  struct Hold {
    Client* client;
    std::shared_lock<std::shared_mutex> use;
  };
  // Holds the sessions that `viewer` may see: those of `process`, or all for 0.
  [[nodiscard]] std::vector<Hold> hold_sessions(uid_t viewer, pid_t process);
  void join_ended();
  void pass_on_events();
  [[nodiscard]] static bool rules(uid_t user);

  ServerOptions options_;
  Descriptor lock_;  // lock of the path, so that one gdxd alone serves it
  Descriptor listener_;
  Descriptor stop_;     // an eventfd
  ino_t own_file_ = 0;  // inode of the socket that listen() made
  std::atomic<bool> draining_{false};
  std::mutex telling_;  // statistics() and flights() go one at a time; before mutex_
  std::mutex mutex_;    // guards the members below, which this thread alone changes
  std::map<uid_t, std::weak_ptr<Group>> groups_;
  std::list<Client> clients_;
};

}  // namespace gdx::daemon
