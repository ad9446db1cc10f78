// Queues of memory for posting_bench: made as an endpoint's are, read back, and every WQE of them checked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "perf/machine.h"
#include "perf/posting.h"

namespace gdx::posting {

inline constexpr std::uint32_t kMaxBlocks = 32768;  // as an endpoint's

struct Result {
  bool ok;
  std::string reason;
};

class MemoryQueues {
 public:
  struct Findings {
    std::uint64_t wqes = 0;      // WRITEs that stand where they must
    std::uint64_t mistakes = 0;  // everything else: wrong, twice, not published, not rung for
  };

  // `puts` one-block WQEs fit each. None: no memory.
  static std::optional<MemoryQueues> make(std::uint32_t count, std::uint32_t puts, Sharing sharing,
                                          Placement placement, bool blueflame);
  [[nodiscard]] const Queues& queues() const { return queues_; }
  // After the kernel: what the queues hold of what `what` has posted.
  [[nodiscard]] Findings check(const PostCase& what);
  // Changes one WQE, or one byte of the last that was written to a BlueFlame register.
  void damage();
  void damage_blueflame();

 private:
  [[nodiscard]] Findings check_queue(const PostCase& what, std::uint32_t queue,
                                     std::vector<bool>& seen) const;
  // Returns whether the doorbell register of a queue at `base` holds the right value after `rings` rings. The
  // newest ring was for the WQE `last`.
  [[nodiscard]] bool is_rung(const std::byte* base, const std::byte* last, std::uint64_t rings,
                             bool with_wqe) const;

  machine::Memory arena_;
  machine::Memory states_;
  std::vector<std::byte> image_;  // the arena, on the host
  Queues queues_{};
  std::uint32_t count_ = 0;
};

}  // namespace gdx::posting
