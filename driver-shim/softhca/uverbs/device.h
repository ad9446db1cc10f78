// The one software HCA of a process, made when something first looks for RDMA devices.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "driver-shim/softhca/uverbs/context.h"
#include "driver-shim/softhca/uverbs/engine_thread.h"
#include "driver-shim/softhca/uverbs/rdma_cm.h"
#include "driver-shim/softhca/uverbs/sysfs.h"

namespace gdx::softhca::uverbs {

// How a file descriptor of this process concerns the device.
enum class FileKind : std::uint8_t { kForeign = 0, kNode, kEvents, kConnections };

struct HcaIdentity {
  std::string name;
  wire::Address address;
};

// Threads: all methods lock, but for file_kind and progress.
class Device : public ChannelRegistry {
 public:
  // Never destroyed: libraries may still close files after the last destructor of ours has run.
  static Device& instance();
  // Whether instance() has ever been called. For the end of the process.
  static bool exists();

  // What `fd` is, kForeign once it has come to refer to another file. Async-signal-safe, no lock: every
  // close of the process asks.
  static FileKind file_kind(int fd);

  // The root of the device's files, or empty where the device cannot be: a line has said why, once.
  std::string files_root();
  // A further open of the device node. Errors: ENODEV, EMFILE.
  Answer<int> open_node(bool close_on_exec);
  Errno request(int fd, std::uint64_t request_address);
  // A further open of the connection manager's node, and what a program writes to it.
  // Errors: ENODEV, EMFILE; of a command: as the kernel's.
  Answer<int> open_connections(bool close_on_exec);
  Errno write_connections(int fd, std::uint64_t address, std::size_t length_bytes);
  // To be called before the descriptor is closed.
  void before_close(int fd);
  void refresh_counters();
  // Of every HCA; none where the device cannot be.
  std::vector<HcaIdentity> identities();
  // One step of the engine on the calling thread; 0 where there is no device.
  int progress();
  // Ends the engine after letting it finish what it has at hand. For the end of the process.
  void shut_down();

  Answer<std::shared_ptr<EventChannel>> open_channel() override;
  Answer<std::shared_ptr<EventChannel>> find_channel(int user_fd) override;

 private:
  // Closing order is the reverse: contexts, thread, connections, tree, HCA, pages.
  struct Parts {
    explicit Parts(PageFile&& file) : pages(std::move(file)) {}
    PageFile pages;
    std::unique_ptr<Hca> hca;
    std::unique_ptr<SysfsTree> tree;
    std::unique_ptr<RdmaCm> connections;
    std::unique_ptr<EngineThread> thread;
    std::map<int, std::unique_ptr<Context>> contexts;
  };

  bool ensure_locked();
  [[nodiscard]] bool in_child() const;
  void after_fork();
  Result<std::unique_ptr<Parts>> make_parts();
  void flush_channels();
  void park_if_unused_locked();

  enum class State { kUntouched, kReady, kFailed, kClosed };
  std::mutex mutex_;
  State state_ = State::kUntouched;
  std::unique_ptr<Parts> parts_;
  std::mutex channels_mutex_;
  std::map<int, std::shared_ptr<EventChannel>> channels_;
  std::atomic<Hca*> running_{nullptr};  // what progress() may drive
  std::atomic<RdmaCm*> connections_{nullptr};
  std::atomic<int> progressing_{0};  // threads inside progress()
  std::atomic<int> commanding_{0};   // threads inside a command of connections_
  std::atomic<std::uint64_t> driven_at_ns_{0};
  std::atomic<pid_t> owner_pid_{0};  // of the process that made parts_
};

}  // namespace gdx::softhca::uverbs
