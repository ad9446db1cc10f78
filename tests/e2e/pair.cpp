#include "tests/e2e/pair.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <utility>

namespace gdx {
namespace {

std::vector<const char*> silent_counters() {
  const char* const wire = std::getenv("GDX_SOFTHCA_WIRE");
  if (wire == nullptr || std::strcmp(wire, "shm") != 0)
    return {"softhca_icrc_errors", "softhca_forged_drops"};
  return {"softhca_icrc_errors", "softhca_forged_drops", "out_of_sequence", "rnr_nak_retry_err"};
}

}  // namespace

void Pair::SetUp() {
  auto hca = Hca::open();
  ASSERT_TRUE(hca) << hca.error().message;
  hca_ = std::make_unique<Hca>(std::move(*hca));
  violations_before_ = counter("softhca_staging_violations");
  for (const char* name : silent_counters()) silent_before_.emplace_back(name, counter(name));
  auto staging = StagingPool::create(*hca_);
  ASSERT_TRUE(staging) << staging.error().message;
  staging_ = std::make_unique<StagingPool>(std::move(*staging));
  StagingOptions in_host = StagingOptions::in_host_memory();
  in_host.pool_bytes = kBouncePoolBytes;
  in_host.slot_bytes = 16 * 1024;
  auto bounce = StagingPool::create(*hca_, in_host);
  ASSERT_TRUE(bounce) << bounce.error().message;
  bounce_ = std::make_unique<StagingPool>(std::move(*bounce));
  for (Side* side : {&a_, &b_}) {
    auto endpoint = Endpoint::create(*hca_, {staging_.get(), bounce_.get()},
                                     {.slot_count = kSlots,
                                      .bounce_slot_count = kSlots,
                                      .auto_modes = {.table = kAutoModes},
                                      .doorbell = doorbell_});
    ASSERT_TRUE(endpoint) << endpoint.error().message;
    side->endpoint = std::make_unique<Endpoint>(std::move(*endpoint));
    auto buffer = allocate_memory(*hca_, kBufferBytes);
    ASSERT_TRUE(buffer) << buffer.error().message;
    side->buffer = std::make_unique<Memory>(std::move(*buffer));
  }
  ASSERT_TRUE(a_.endpoint->connect(b_.endpoint->address()));
  ASSERT_TRUE(b_.endpoint->connect(a_.endpoint->address()));
  a_.peer = b_.buffer->remote();
  b_.peer = a_.buffer->remote();
}

void Pair::TearDown() {
  if (!hca_) return;
  for (const auto& [name, before] : silent_before_) EXPECT_EQ(counter(name), before) << name;
}

std::string Pair::text_of(const char* opcode_and_bytes, const RemoteMemory& at) const {
  return fmt::format("{}: {} at {:#x} (rkey {:#x}) of QP {:#x} at {}",
                     Endpoint::describe(a_.endpoint->fault()), opcode_and_bytes, at.address,
                     std::uint32_t{at.rkey}, b_.endpoint->address().qpn, hca_->address_text());
}

std::uint64_t Pair::counter(const char* name) const { return hca_->counter(name).value(); }

}  // namespace gdx
