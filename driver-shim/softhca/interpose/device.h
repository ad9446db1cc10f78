// The software HCAs of a process, made at its first access to RDMA devices.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/descriptor.h"
#include "base/flight_recorder.h"
#include "base/fork_mutex.h"
#include "driver-shim/softhca/interpose/tracked_files.h"
#include "driver-shim/softhca/rdma_cm/rdma_cm.h"
#include "driver-shim/softhca/uverbs/adapter.h"
#include "driver-shim/softhca/uverbs/context.h"
#include "driver-shim/softhca/uverbs/counters_file.h"
#include "driver-shim/softhca/uverbs/engine_thread.h"
#include "driver-shim/softhca/uverbs/inventory.h"
#include "driver-shim/softhca/uverbs/inventory_file.h"
#include "driver-shim/softhca/uverbs/sysfs.h"

namespace gdx::softhca::uverbs {

struct HcaIdentity {
  std::string name;
  wire::Address address;
};

// Threads: all methods lock, but for progress. None is a point of cancellation, but where a command
// of the connection manager waits for an event.
class Device : public ChannelRegistry {
 public:
  // Never destroyed: libraries may still close files after the last destructor of ours has run.
  static Device& instance();
  // Returns whether instance() has ever been called. For the end of the process.
  static bool exists();

  // Returns the root of the devices' files; empty after a failure, which is logged once.
  std::string files_root();
  // Opens an HCA's node once more. Errors: ENOENT for a node that is not there, EINVAL where the HCA cannot
  // be made, ENODEV, EMFILE.
  ErrnoOr<int> open_node(std::uint8_t hca, bool close_on_exec);
  Errno request(int fd, std::uint64_t request_address);
  // A further open of the connection manager's node with the flags of open(2), and what a program writes to
  // it. Errors: ENODEV, EMFILE; of a command: as the kernel's.
  ErrnoOr<int> open_connections(int flags);
  Errno write_connections(int fd, std::uint64_t address, std::size_t length_bytes);
  // Closes a descriptor, one of the devices' or not, as close(2).
  int close(int fd);
  void refresh_counters();
  // Makes the file of a queue pair's events that `path` names, in memory. Errors: none, and errno.
  Descriptor make_flight_file(std::string_view path);
  // Returns the identity of every HCA; empty if there can be none.
  std::vector<HcaIdentity> identities();
  // Returns the HCAs with the objects that this process has made on them.
  std::vector<HcaInventory> inventory();
  // Tells every context an event of its device or port. Returns the number of contexts.
  int raise(int event);
  // Ends the context of an open with the close of this descriptor, whatever locks the file has.
  void share(int fd);
  // Ends the sleep of the threads that drive the HCAs.
  void wake();
  // One step of every HCA that is in use, on the calling thread: a program waits for whichever it has.
  int progress();
  // Runs progress() for a waiting thread; it may yield the processor before the step.
  int progress_of_waiter();
  // Ends the engines after letting them finish what they have at hand. The end of the process calls it.
  void shut_down();
  // Begins anew in a child by fork, whose first act calls it.
  void after_fork_in_child();

  ErrnoOr<std::shared_ptr<EventChannel>> open_channel() override;
  ErrnoOr<std::shared_ptr<EventChannel>> find_channel(int user_fd) override;

 private:
  // Closing order is the reverse: contexts, threads, connections, inventory, tree, HCAs.
  struct Parts {
    Adapters adapters;
    std::unique_ptr<SysfsTree> tree;
    std::unique_ptr<InventoryFile> inventory;
    std::unique_ptr<CountersFile> counters;
    std::array<std::uint64_t, kMaxHcas> failures_shown{};  // failed_queue_pairs() of each HCA that were shown
    std::unique_ptr<RdmaCm> connections;
    std::vector<std::unique_ptr<EngineThread>> threads;          // thread of each HCA
    std::map<std::uint32_t, std::unique_ptr<Context>> contexts;  // by their number, as in DeviceFile
    std::map<int, std::shared_ptr<EventChannel>> channels;  // channels of a parent's contexts, in its child
    Parts* abandoned_before = nullptr;
  };

  bool ensure_locked();
  [[nodiscard]] bool in_child() const;
  Result<std::unique_ptr<Parts>> make_parts();
  Result<std::unique_ptr<Parts>> make_parts_or_error();
  ErrnoOr<FlightRecord> read_flight(std::string_view path);
  void abandon_lost_parts_locked();
  // Leaves parts to whatever still uses them, and within reach of leak checkers. Allocates nothing.
  void abandon_parts();
  void run_housekeeping();
  void flush_channels();
  void forget_channel(int fd);
  void drop_ended_contexts_locked(std::uint32_t closed_context, int closed = -1);
  void park_unused_locked();
  void show_failures_locked();

  enum class State { kUntouched, kReady, kFailed, kClosed };
  ForkMutex mutex_;
  State state_ = State::kUntouched;
  Parts* abandoned_ = nullptr;  // the newest
  std::unique_ptr<Parts> parts_;
  std::uint32_t last_context_ = 0;
  ForkMutex channels_mutex_;
  std::map<int, std::shared_ptr<EventChannel>> channels_;
  std::array<std::atomic<Hca*>, kMaxHcas> running_{};  // HCAs in use, which progress() drives
  std::atomic<RdmaCm*> connections_{nullptr};
  std::atomic<int> progressing_{0};  // threads inside progress()
  std::atomic<int> commanding_{0};   // threads inside a command of connections_
  std::atomic<std::uint64_t> driven_at_ns_{0};
  std::atomic<std::uint64_t> housekept_ns_{0};  // time of the last run_housekeeping()
  std::atomic<pid_t> owner_pid_{0};             // process that made parts_
};

}  // namespace gdx::softhca::uverbs
