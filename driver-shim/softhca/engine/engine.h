// The HCA itself: its tables of objects by number, and the step that advances all of them.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/clock.h"
#include "driver-shim/softhca/engine/blueflame.h"
#include "driver-shim/softhca/engine/fair_scheduler.h"
#include "driver-shim/softhca/engine/hca.h"
#include "driver-shim/softhca/engine/link_clock.h"
#include "driver-shim/softhca/engine/queue_pair.h"
#include "driver-shim/softhca/engine/scattered_numbers.h"

namespace gdx::softhca {

using Clock = std::function<std::uint64_t()>;

class Engine : public Hca {
 public:
  // `random` returns 32 bits a call, for keys and numbers. `clock` returns the time in ns, never
  // backwards.
  Engine(const HcaConfig& config, std::unique_ptr<wire::Wire> wire, std::byte* device_memory, Random random,
         Clock clock = monotonic_ns);

  const HcaConfig& config() const override { return parts_.config; }
  const wire::Address& address() const override { return parts_.wire->local(); }

  ErrnoOr<std::uint32_t> alloc_pd() override;
  Errno dealloc_pd(std::uint32_t pd) override;
  ErrnoOr<std::uint32_t> register_memory(const MemoryRegionSpec& spec) override;
  Errno deregister_memory(std::uint32_t mkey) override;
  Errno replace_memory(std::uint32_t mkey, const MemoryRegionSpec& spec) override;
  Errno prefetch(std::uint32_t pd, std::uint32_t mkey, std::uint64_t address, std::uint64_t length_bytes,
                 Prefetch what) override;
  void add_foreign(const std::byte* first, std::size_t length_bytes,
                   std::shared_ptr<CopyEngine> copies) override;
  void remove_foreign(const std::byte* first, std::size_t length_bytes) override;
  ErrnoOr<std::uint32_t> add_uar(const UarSpec& spec) override;
  Errno remove_uar(std::uint32_t uar) override;
  ErrnoOr<std::uint32_t> create_cq(const CompletionQueueSpec& spec) override;
  Errno resize_cq(std::uint32_t cqn, std::byte* ring, std::uint32_t log_entries) override;
  Errno destroy_cq(std::uint32_t cqn) override;
  ErrnoOr<std::uint32_t> create_srq(const SharedReceiveQueueSpec& spec) override;
  Errno set_srq_limit(std::uint32_t srqn, std::uint32_t limit) override;
  ErrnoOr<std::uint32_t> srq_limit(std::uint32_t srqn) override;
  Errno destroy_srq(std::uint32_t srqn) override;
  ErrnoOr<std::uint32_t> create_qp(const QueuePairSpec& spec) override;
  Errno modify_qp(std::uint32_t qpn, std::uint32_t mask, const QpAttributes& attributes) override;
  ErrnoOr<QpAttributes> query_qp(std::uint32_t qpn) override;
  ErrnoOr<FlightRecord> read_flight(std::uint32_t qpn) override;
  Errno destroy_qp(std::uint32_t qpn) override;
  void set_management_agent(ManagementAgent* agent) override { agent_.store(agent); }
  void send_management(const wire::Address& destination, std::span<const std::byte> datagram) override;

  int progress() override;
  std::uint64_t idle_ns() override;
  std::uint64_t rung_at_ns() const override { return rung_at_ns_.load(std::memory_order_relaxed); }
  std::uint64_t failed_queue_pairs() const override {
    return parts_.failed_queue_pairs.load(std::memory_order_relaxed);
  }
  int poll_fd() const override { return parts_.wire->poll_fd(); }
  bool wire_is_lost() const override { return parts_.wire->lost(); }
  HcaCounters counters() override;
  // Returns the first broken invariant of its queues and windows; nullptr: all hold.
  [[nodiscard]] const char* check_invariants();

 private:
  // A queue pair of a page, and the registers in which its doorbells were seen, a bit each.
  struct Ringer {
    QueuePair* qp = nullptr;
    std::uint32_t registers = 0;
  };
  struct Uar {
    std::byte* page = nullptr;
    std::vector<Ringer> ringers;
    std::vector<DoorbellWrite> late;  // writes that the next poll finds
    std::uint64_t newest_ring = 0;    // newest doorbell, for a planted fault
  };
  struct SharedQueue {
    std::uint32_t pd = 0;
    ReceiveQueue queue;
  };

  struct ManagementArrival {
    wire::Address source;
    std::vector<std::byte> datagram;
  };

  // Returns the next number that `draw` gives and `table` has not. The caller has refused a full table
  // before, because no such number would be found in it.
  template <typename Table, typename Draw>
  static std::uint32_t free_number(const Table& table, Draw draw);
  // Returns a number of 24 bits that tells nothing of the others.
  template <typename Table>
  std::uint32_t free_number(const Table& table);
  [[nodiscard]] Errno check(const QueuePairSpec& spec) const;
  [[nodiscard]] Errno check(const MemoryRegionSpec& spec) const;
  [[nodiscard]] bool is_foreign(const void* at) const;
  [[nodiscard]] QueuePair* find_qp(std::uint32_t qpn);
  void activate(QueuePair& qp);
  int poll_doorbells();
  int take_rings(Uar& uar);
  int poll_uar(Uar& uar);
  void spoil_copies(Uar& uar);
  void note_bad_doorbell(std::uint64_t value);
  int serve_active();
  void charge_link();
  void accept(const wire::Address& source, std::span<const std::byte> datagram);
  bool accept_management(const wire::Address& source, const roce::Decoded& packet);
  void send_window(const wire::Address& peer, roce::Opcode opcode, const roce::WindowGrant& body);
  int step();
  void finish_step();

  std::mutex mutex_;
  HcaParts parts_;
  Random random_;
  Clock clock_;
  std::atomic<std::uint64_t> wire_checked_ns_{0};
  ScatteredNumbers numbers_;
  std::uint32_t next_uar_ = 0;
  std::unordered_set<std::uint32_t> pds_;
  std::unordered_map<std::uint32_t, Uar> uars_;
  std::unordered_map<std::uint32_t, std::unique_ptr<CompletionQueue>> cqs_;
  std::unordered_map<std::uint32_t, SharedQueue> srqs_;
  std::unordered_map<std::uint32_t, std::unique_ptr<QueuePair>> qps_;
  QueuePair* last_found_ = nullptr;   // the queue pair of the last packet, often also the next one's
  std::vector<DoorbellWrite> rings_;  // doorbells of the page being polled
  // First queue pair that the poll in progress found rung; for a planted fault.
  std::uint32_t first_rung_qpn_ = 0;
  std::mt19937_64 spoils_;
  // Queue pairs with something to send, to wait for or to flush, by protection domain: gdxd gives each user
  // one.
  OwnerScheduler<QueuePair> scheduler_;
  LinkClock link_;
  std::uint64_t charged_bytes_ = 0;  // part of parts_.link_bytes charged to the link
  bool arrivals_left_ = false;
  std::atomic<std::uint64_t> rung_at_ns_{0};
  bool recordless_reported_ = false;
  std::atomic<ManagementAgent*> agent_{nullptr};
  std::uint32_t management_psn_ = 0;
  std::vector<ManagementArrival> management_arrivals_;  // arrivals of this step
  transport::TransportCounters closed_;                 // counters of queue pairs that are gone
};

}  // namespace gdx::softhca
