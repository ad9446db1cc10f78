// The connection of this process to gdxd, the daemon that owns HCAs (host/programs/daemon). Data crosses no
// socket: messages make and end objects, and carry the files in which payload, queues and doorbells lie.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/descriptor.h"
#include "base/mapped_pages.h"
#include "base/own_process.h"
#include "base/result.h"
#include "host/ipc/message.h"

namespace gdx::ipc {

inline constexpr char kDaemonVariable[] = "GDX_DAEMON";
inline constexpr char kDaemonUserVariable[] = "GDX_DAEMON_USER";  // name or number
inline constexpr char kSocketName[] = "gdx/gdxd.sock";            // below /run, or $XDG_RUNTIME_DIR

// Places at which gdxd may listen, in the order of the search.
struct DaemonPlaces {
  std::vector<std::string> paths;
  bool required = false;  // false: if gdxd serves at none, the process opens its HCA by itself
};

// Reads $GDX_DAEMON: off; unix:PATH; auto, the default: $XDG_RUNTIME_DIR/gdx/gdxd.sock, then
// /run/gdx/gdxd.sock, if they exist. Errors: kInvalidArgument.
[[nodiscard]] Result<DaemonPlaces> daemon_places_from_environment();
// Returns the path at which gdxd listens without configuration.
[[nodiscard]] std::string default_socket_path();

template <typename Answer>
struct Reply {
  Answer answer;
  std::vector<Descriptor> files;
};

// One connection, which serves one Hca. Threads: any thread may call any method.
class Daemon {
 public:
  // Connects, and agrees on a version. Whoever listens gets the files of this process's memory: that must be
  // root, this process's user or that of $GDX_DAEMON_USER. Waits some seconds for a place in a full queue.
  // Errors: kNotFound (no listener), kBusy (the queue stays full), kVersionMismatch, kUnsupported (gdxd
  // refuses this user, or is another's), kInvalidArgument ($GDX_DAEMON_USER), kTimeout, kSystem.
  [[nodiscard]] static Result<std::shared_ptr<Daemon>> connect(const std::string& path);
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  // Sends a request and its open files, and waits for the answer. Errors: those of gdxd; kDaemonGone once
  // gdxd has ended, or has not answered for 30 s; kHcaFailed once it has told that.
  template <typename Answer, typename Request>
  [[nodiscard]] Result<Reply<Answer>> call(const Request& request, std::span<const int> files = {}) {
    Received received = GDX_TRY(exchange(Request::kKind, encode(Request::kKind, request), files));
    const auto answer = GDX_TRY(parse_body<Answer>(received.message));
    return Reply<Answer>{answer, std::move(received.files)};
  }

  // Wakes gdxd's software HCA, whose thread may sleep; once in kWakeEveryNs. Does not block, and sends
  // nothing where it would.
  void wake();

  // Registers a function that the connection's thread calls once gdxd has ended, within 100 ms, or its HCA
  // has failed; at once if that was before. Returns a number for forget().
  [[nodiscard]] std::uint64_t on_loss(std::function<void()> act);
  // Returns after the function, if it runs.
  void forget(std::uint64_t number);

  [[nodiscard]] bool lost() const { return lost_.load(); }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const HelloAnswer& limits() const { return limits_; }

 private:
  struct Received {
    std::vector<std::byte> bytes;
    Parsed message;
    std::vector<Descriptor> files;
  };
  explicit Daemon(std::string path) : path_(std::move(path)) {}
  Result<Received> exchange(Kind kind, const std::vector<std::byte>& request, std::span<const int> files);
  Result<void> greet();
  [[nodiscard]] tl::unexpected<Error> gone() const;
  void watch();
  // Returns whether there may be more.
  bool read_notices();
  void lose();

  OwnProcess process_;
  std::string path_;
  HelloAnswer limits_{};
  std::mutex call_mutex_;
  Descriptor socket_;  // guarded by call_mutex_, like the next
  std::uint64_t woken_ns_ = 0;
  std::mutex notices_mutex_;
  Descriptor notices_;
  std::atomic<bool> lost_{false};
  std::atomic<bool> hca_failed_{false};
  std::atomic<bool> kicked_{false};
  std::atomic<bool> closing_{false};
  std::mutex acts_mutex_;
  std::map<std::uint64_t, std::function<void()>> acts_;  // guarded by acts_mutex_, like the next
  std::uint64_t last_act_ = 0;
  std::thread watcher_;
};

// Maps `bytes` of `file` from `offset` on, which is a multiple of the page size. Errors: kNoMemory.
[[nodiscard]] Result<MappedPages> map_shared(const Descriptor& file, std::uint64_t offset, std::size_t bytes);

// Returns the text of an answer that came in a file. Errors: kSystem.
[[nodiscard]] Result<std::string> read_text(const Reply<StatisticsAnswer>& reply);

}  // namespace gdx::ipc
