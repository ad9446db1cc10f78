#include "host/programs/bench/counters.h"

#include <initializer_list>

namespace gdx::bench {

Counters read_counters(const Hca& hca) {
  Counters now{};
  now.has_pcie = true;
  const auto sum = [&](std::initializer_list<const char*> names) {
    std::uint64_t total = 0;
    for (const char* const counter_name : names) {
      const auto count = hca.counter(counter_name);
      now.has_pcie = now.has_pcie && count;
      total += count.value_or(0);
    }
    return total;
  };
  now.pcie_record_reads = sum({"softhca_pcie_record_reads"});
  now.pcie_reads = sum({"softhca_pcie_record_reads", "softhca_pcie_wqe_reads",
                        "softhca_pcie_receive_wqe_reads", "softhca_pcie_payload_reads"});
  now.pcie_writes =
      sum({"softhca_pcie_payload_writes", "softhca_pcie_doorbell_writes", "softhca_pcie_cqe_writes"});
  const auto packets = hca.counter("softhca_retransmitted_packets");
  now.retransmissions =
      packets ? *packets
              : hca.counter("packet_seq_err").value_or(0) + hca.counter("local_ack_timeout_err").value_or(0);
  return now;
}

Counters operator-(Counters after, const Counters& before) {
  after.cpu_ns -= before.cpu_ns;
  after.stalls -= before.stalls;
  after.retransmissions -= before.retransmissions;
  after.pcie_reads -= before.pcie_reads;
  after.pcie_record_reads -= before.pcie_record_reads;
  after.pcie_writes -= before.pcie_writes;
  return after;
}

std::uint64_t stalls_of(const QueueState& state) { return state.staging.stalls + state.bounce.stalls; }

}  // namespace gdx::bench
