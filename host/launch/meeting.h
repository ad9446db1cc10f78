// Connection to the server of a launcher, through which rank 0 tells the others where it listens. The ranks
// themselves then meet over TCP, whatever started them, so that the errors of a world are the same.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "host/launch/launcher.h"

namespace gdx::launch {

// Threads: one at a time.
class Meeting {
 public:
  Meeting() = default;
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;
  virtual ~Meeting() = default;

  [[nodiscard]] std::uint32_t rank() const { return rank_; }
  [[nodiscard]] std::uint32_t size() const { return size_; }
  [[nodiscard]] bool one_host() const { return one_host_; }

  // Returns the `text` of rank 0, for worlds in the order of the calls. Other ranks give none.
  // Errors: kTimeout; kPeerGone (the launcher's end is gone); kInvalidLength (more than kMaxTextBytes);
  // kSystem with the server's reason.
  [[nodiscard]] virtual Result<std::string> exchange(const std::string& text, std::uint64_t deadline_ns) = 0;

 protected:
  std::uint32_t rank_ = 0;
  std::uint32_t size_ = 1;
  bool one_host_ = false;
};

inline constexpr std::size_t kMaxTextBytes = 1000;  // Source: vallen_max of hydra's and Slurm's PMI, 1024

// Opens the connection that `launcher` offers by PMIx or PMI. A process has one, until it ends, because
// launchers take a process that leaves without a farewell for a failed one, and let none come back after it.
// Errors: kUnsupported (no libpmix; a program whose MPI has the connection), kInvalidArgument (a descriptor
// that is not open), kVersionMismatch, those of Meeting::exchange.
[[nodiscard]] Result<std::shared_ptr<Meeting>> meet_by(const Launcher& launcher, std::uint64_t deadline_ns);

// Open the meeting of one launcher's kind. meet_by and tests alone call them.
[[nodiscard]] Result<std::shared_ptr<Meeting>> open_pmix(const Launcher& launcher, std::uint64_t deadline_ns);
[[nodiscard]] Result<std::shared_ptr<Meeting>> open_pmi(const Launcher& launcher, std::uint64_t deadline_ns);

}  // namespace gdx::launch
