// Two endpoints of one process, connected to each other through the HCA, each with a buffer.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device/endpoint.h"
#include "host/gdx.h"

namespace gdx {

struct Side {
  std::unique_ptr<Endpoint> endpoint;
  std::unique_ptr<Memory> buffer;
  RemoteMemory peer{};  // the other side's buffer
};

class Pair : public ::testing::Test {
 protected:
  static constexpr std::size_t kBufferBytes = 1u << 20;
  static constexpr std::uint32_t kSlots = 16;
  static constexpr std::uint64_t kBouncePoolBytes = 256 * 1024;  // less than a buffer, as the NIC's memory
  static constexpr ModeTable kAutoModes{28, 16 * 1024, 128 * 1024};

  void SetUp() override;
  // RC would hide it: no packet may arrive damaged, nor, in shared memory where nothing is lost, leave a gap.
  // Timeouts alone may be the machine's.
  void TearDown() override;

  // Runs `body(endpoint)` in every thread of one block on side `from`'s endpoint, opened at scope S.
  template <Scope S = Scope::kThread, typename Body>
  void in_kernel(Side& from, Body body, unsigned threads = 1) {
    const auto kernel = [&](EndpointHandle handle) {
      device::Endpoint<S> endpoint(handle);
      body(endpoint);
    };
    ASSERT_EQ(exec::launch({.block = {threads}, .progress = progress_}, kernel, from.endpoint->handle()),
              Status::kOk);
  }

  // Returns a's fault as text must say it, of a request on b: "OPCODE of N B at ADDRESS (rkey KEY) of PEER".
  [[nodiscard]] std::string text_of(const char* opcode_and_bytes, const RemoteMemory& at) const;
  [[nodiscard]] std::uint64_t counter(const char* name) const;
  // Returns the violations since this test began: the counter is the process's.
  [[nodiscard]] std::uint64_t staging_violations() const {
    return counter("softhca_staging_violations") - violations_before_;
  }

  std::optional<DoorbellKind> doorbell_;  // of both endpoints; absent: as by default
  std::unique_ptr<Hca> hca_;
  std::unique_ptr<StagingPool> staging_;
  std::unique_ptr<StagingPool> bounce_;
  Side a_;
  Side b_;
  int (*progress_)() = progress;
  std::uint64_t violations_before_ = 0;
  std::vector<std::pair<const char*, std::uint64_t>> silent_before_;  // counters that must not move
};

}  // namespace gdx
