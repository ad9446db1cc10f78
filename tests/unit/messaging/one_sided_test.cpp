// Two ranks of this process over a real provider: puts, gets and signals between shared memory, and errors of
// the wire, which end every request.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>

#include "base/clock.h"
#include "host/messaging/one_sided.h"
#include "tests/unit/messaging/links.h"

namespace gdx::messaging {
namespace {

constexpr std::size_t kBytes = 1 << 20;
constexpr std::uint32_t kRanks = 3;  // the last is never connected

std::unique_ptr<OneSided> rank_of(std::uint32_t rank, Trouble* trouble = nullptr) {
  auto port = open_libfabric_port({.provider = "tcp", .address = {}, .insecure = false});
  if (!port) std::abort();
  if (trouble != nullptr) *port = std::make_unique<TroubledPort>(std::move(*port), *trouble);
  return OneSided::open(std::move(*port), rank, kRanks).value();
}

class OneSidedTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(one_->connect(1, other_->card()));
    ASSERT_TRUE(other_->connect(0, one_->card()));
    here_ = one_->add_memory(source_).value();
    there_ = other_->add_memory(target_).value();
    const std::array<MemoryPlace, kRanks> places{one_->place_of(*here_), other_->place_of(*there_), {}};
    OneSided::share(*here_, places, 1);
    OneSided::share(*there_, places, 1);
  }
  bool reaches(const std::function<bool()>& done) {
    for (const std::uint64_t began = monotonic_ns(); monotonic_ns() - began < kHangNs;) {
      (void)one_->progress(monotonic_ns());
      (void)other_->progress(monotonic_ns());
      if (done()) return true;
    }
    return false;
  }
  // Returns how the request ends; kPending for none that does.
  Status end_of(const OneSidedRequest& request) {
    Status status = Status::kPending;
    (void)reaches([&] {
      const auto complete = one_->is_complete(request);
      if (complete && !*complete) return false;
      status = complete ? Status::kOk : complete.error().status;
      return true;
    });
    return status;
  }
  [[nodiscard]] MemoryPart part(std::uint64_t offset) const { return {here_, offset}; }
  Result<OneSidedRequest> put(std::uint64_t bytes, bool more = false) {
    return one_->put(1, part(0), part(0), bytes, std::nullopt, more);
  }
  std::uint64_t word(std::size_t offset) {
    auto& at = *reinterpret_cast<std::uint64_t*>(target_.data() + offset);
    return std::atomic_ref(at).load(std::memory_order_acquire);
  }

  std::vector<std::byte> source_ = std::vector<std::byte>(kBytes, std::byte{7});
  std::vector<std::byte> target_ = std::vector<std::byte>(kBytes);
  Trouble trouble_;
  SharedMemory* here_ = nullptr;
  SharedMemory* there_ = nullptr;
  std::unique_ptr<OneSided> one_ = rank_of(0, &trouble_);
  std::unique_ptr<OneSided> other_ = rank_of(1);
};

TEST_F(OneSidedTest, signal_follows_all_puts_before_it) {
  constexpr std::uint64_t kWordAt = kBytes - 8;
  for (std::uint64_t round = 1; round <= 600; ++round) {  // more signals than may be unanswered
    source_[0] = static_cast<std::byte>(round);
    ASSERT_TRUE(put(round % 2 == 0 ? 1 : kBytes / 2, true));
    const auto signal = one_->put(1, {}, {}, 0, WordSignal{part(kWordAt), 2}, false);
    ASSERT_TRUE(signal);
    ASSERT_TRUE(reaches([&] { return word(kWordAt) == 2 * round; })) << round;
    ASSERT_EQ(target_[0], static_cast<std::byte>(round)) << round;
  }
  EXPECT_EQ(end_of(*one_->flush(1)), Status::kOk);
}

TEST_F(OneSidedTest, get_sees_the_put_before_it) {
  source_[8] = std::byte{9};
  const auto written = one_->put(1, part(8), part(0), 1, std::nullopt, false);
  const auto got = one_->get(1, part(0), part(4096), 1);
  ASSERT_TRUE(written && got);
  EXPECT_EQ(end_of(*got), Status::kOk);
  EXPECT_EQ(source_[4096], std::byte{9});
}

TEST_F(OneSidedTest, own_rank_is_reached_without_the_wire) {
  source_[0] = std::byte{3};
  const auto sent = one_->put(0, part(0), part(8), 1, WordSignal{part(16), 1}, false);
  ASSERT_TRUE(sent);
  EXPECT_TRUE(*one_->is_complete(*sent));
  EXPECT_EQ(source_[8], std::byte{3});
  EXPECT_EQ(source_[16], std::byte{8}) << "7, and one more";
  EXPECT_TRUE(*one_->is_complete(*one_->flush(0)));
}

TEST_F(OneSidedTest, what_the_memory_does_not_hold_is_refused) {
  const auto refuses = [](const Result<OneSidedRequest>& made) {
    return !made && made.error().status == Status::kInvalidArgument;
  };
  EXPECT_TRUE(refuses(put(kBytes + 1)));
  EXPECT_TRUE(refuses(one_->put(1, part(1), part(0), kBytes, std::nullopt, false)));
  EXPECT_TRUE(refuses(one_->put(1, part(0), part(1), kBytes, std::nullopt, false)));
  EXPECT_TRUE(refuses(one_->put(1, part(0), part(~std::uint64_t{0}), 8, std::nullopt, false)));
  EXPECT_TRUE(refuses(one_->put(1, {}, part(0), 8, std::nullopt, false)));
  EXPECT_TRUE(refuses(one_->put(1, {}, {}, 0, WordSignal{part(4), 1}, false)));
  EXPECT_TRUE(refuses(one_->put(1, {}, {}, 0, WordSignal{part(kBytes - 4), 1}, false)));
  EXPECT_TRUE(refuses(one_->get(1, part(1), part(0), kBytes)));
  EXPECT_TRUE(refuses(one_->get(kRanks, part(0), part(0), 8)));
  EXPECT_TRUE(refuses(one_->put(2, part(0), part(0), 8, std::nullopt, false))) << "a rank without a part";
  EXPECT_EQ(end_of(*put(8)), Status::kOk);
}

// An error completion is no "not yet" (nccl#2383): each request ends with it, and each later call.
TEST_F(OneSidedTest, error_of_the_wire_ends_all_requests_of_its_rank) {
  trouble_.error = {Status::kPeerUnreachable, "retries ran out"};
  trouble_.fails = true;
  const auto first = put(4096);
  const auto signal = one_->put(1, part(0), part(0), 8, WordSignal{part(16), 1}, false);
  const auto got = one_->get(1, part(0), part(8192), 8);
  const auto flushed = one_->flush(1);
  ASSERT_TRUE(first && signal && got && flushed);
  for (const OneSidedRequest& request : {*first, *signal, *got, *flushed})
    EXPECT_EQ(end_of(request), Status::kPeerUnreachable) << request.index;
  EXPECT_EQ(put(8).error().status, Status::kPeerUnreachable);
  EXPECT_EQ(one_->flush(1).error().status, Status::kPeerUnreachable);
  ASSERT_TRUE(one_->failure());
  EXPECT_NE(one_->failure()->message.find("retries ran out"), std::string::npos);
}

TEST_F(OneSidedTest, signal_into_memory_that_has_gone_is_told) {
  other_->forget_memory(there_);
  const auto signal = one_->put(1, {}, {}, 0, WordSignal{part(16), 1}, false);
  ASSERT_TRUE(signal);
  EXPECT_TRUE(reaches([&] { return one_->failure().has_value(); }));
  EXPECT_EQ(one_->failure()->status, Status::kRemoteAccess);
  EXPECT_EQ(word(16), 0u);
}

TEST_F(OneSidedTest, memory_of_open_requests_ends_all_and_of_none_by_itself) {
  auto* const second = one_->add_memory(source_).value();  // the same memory again
  EXPECT_EQ(end_of(*put(8)), Status::kOk);
  one_->forget_memory(second);
  EXPECT_FALSE(one_->failure());
  trouble_.withholds = true;
  const auto open = put(8);
  ASSERT_TRUE(open);
  one_->forget_memory(here_);
  EXPECT_EQ(one_->is_complete(*open).error().status, Status::kInvalidArgument);
  EXPECT_EQ(one_->flush(1).error().status, Status::kInvalidArgument);
}

}  // namespace
}  // namespace gdx::messaging
