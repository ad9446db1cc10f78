// gdxd and its clients in virtual time. gdxd is production code whole: Server, Session, Group and sockets.
// Honest clients are production code too (host/ipc). Others send flawed messages, read late or never, and
// close at any message. Operators kick and drain. gdxd ends, and another serves at the same path.
//
// The ledger expects each answer, and no answer is lost. No client is dropped without a cause, or kept
// against the rules. After each client's end, and one in twenty other changes, gdxd's statistics equal the
// ledger. In the end nothing is left.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "host/ipc/daemon.h"
#include "host/programs/daemon/server.h"
#include "tests/sim/daemon/ledger.h"
#include "tests/sim/daemon/requests.h"
#include "tests/sim/daemon/stage.h"

namespace gdx::sim {

// One connection, as both of its ends see it.
struct Line {
  struct Sent {
    std::vector<std::byte> bytes;
    FilesFacts files;
  };
  uid_t user = 0;
  pid_t process = 0;
  bool is_accepted = false;
  ClientBook* book = nullptr;                  // while gdxd has not joined its thread
  Status refusal = Status::kOk;                // of the connection as a whole
  std::deque<Sent> sent;                       // and not received yet
  std::deque<std::vector<std::byte>> answers;  // in the socket, unread
  std::optional<Sent> current;                 // received, and its answer has not left
  std::vector<std::byte> answer;               // to it
  bool is_booked = false;                      // gdxd has acted on `current`
  FilesFacts next_files;                       // of the message that the client sends next
  std::uint64_t begun_ns = 0;
  std::uint64_t stuck_ns = 0;     // since the answer waits for room; 0: none does
  std::uint64_t received_ns = 0;  // time of the current message
  std::uint64_t lost_ns = 0;      // its end at gdxd; 0: it lives
  bool client_closed = false;
  bool is_excused = false;  // the client has to expect an end
};

struct DaemonOutcome {
  std::string problem;  // empty: every promise was kept
  std::uint64_t steps = 0, answers = 0, grants = 0, refusals = 0, connections = 0, turned_away = 0,
                deaths = 0, full_sockets = 0, dropped = 0, kicked = 0, daemons = 0, gone = 0, checks = 0;
  void add(const DaemonOutcome& other);
};

class DaemonWorld final : public Observer {
 public:
  // `on_problem` gets it. It does not return, because the threads of a stage have no other end.
  using Fail = void (*)(std::uint64_t seed, const std::string& problem);
  DaemonWorld(std::uint64_t seed, Fail on_problem);
  DaemonOutcome run();

 private:
  struct Client {
    pid_t process = 0;
    uid_t user = 0;
    double flawed = 0;   // share of its messages
    double dies = 0;     // chance, at each message
    double patient = 1;  // share of messages after which it reads all answers
    double deaf = 0;     // chance of a long pause, at each message
    unsigned messages = 0;
    unsigned lives = 1;
    bool is_raw = false;  // not production code's client
  };

  ucred accepted() override;
  void refuses(std::span<const std::byte> answer) override;
  std::shared_ptr<Line> connection_begins() override;
  void received(Line& line) override;
  void answers(Line& line, std::span<const std::byte> answer) override;
  void answer_left(Line& line) override;
  void shuts_down(Line& line) override;
  void connection_ends(Line& line) override;
  void joined(Line& line) override;
  void accept_ends() override;
  void sent(Line& line, std::span<const std::byte> message) override;

  void draw();
  void be_daemon();
  void direct();
  void be_honest(const Client& client);
  void live_honestly(const Client& client, Requests& requests);
  void ask(ipc::Daemon& daemon, Line& line, Requests& requests, const Request& request);
  void check_answer(Line& line, Status told, const std::string& reason);
  void be_raw(const Client& client);
  void live_rawly(const Client& client, Requests& requests);
  bool send_any(const Client& client, const Descriptor& socket, Line& line, Requests& requests,
                std::deque<std::optional<Request>>& asked);
  bool send(const Descriptor& socket, Line& line, const std::vector<std::byte>& bytes,
            const std::vector<int>& files, const FilesFacts& facts);
  bool read_answers(const Descriptor& socket, Line& line, Requests& requests,
                    std::deque<std::optional<Request>>& asked);
  std::shared_ptr<Line> dial(const Client& client);
  void nobody_listens(const std::shared_ptr<Line>& line, const Error& error);
  void check();
  void session_ends(Line& line);
  void check_patience();
  void fail(const std::string& problem) { fail_(seed_, problem); }

  std::uint64_t seed_;
  Fail fail_;
  Random random_;
  daemon::Limits limits_;
  std::string path_;
  std::vector<Client> clients_;
  unsigned daemons_ = 1;
  Stage stage_;
  DaemonOutcome outcome_;
  std::optional<Ledger> ledger_;       // of the gdxd that serves
  daemon::Server* server_ = nullptr;   // that serves, and has not been told to end
  daemon::Server* serving_ = nullptr;  // the one that answers statistics
  unsigned clients_left_ = 0;
  std::deque<std::shared_ptr<Line>> dialled_;  // and not accepted yet
  std::shared_ptr<Line> accepting_;
  std::vector<std::shared_ptr<Line>> lines_;  // with a thread of gdxd
  std::uint64_t changes_ = 0;                 // of what clients own
  std::uint64_t seen_ = 0;                    // of them, when they were seen last
  bool is_end_ = false;                       // a client's end is among those since
};

}  // namespace gdx::sim
