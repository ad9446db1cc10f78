#include "driver-shim/softhca/engine/staging_audit.h"

#include <gtest/gtest.h>

#include <array>

namespace gdx::softhca {
namespace staging_audit_test {

class StagingAuditTest : public testing::Test {
 protected:
  std::array<std::byte, 1000> memory_{};  // the last granule is not a whole one
  StagingAudit audit_{memory_};
};

TEST_F(StagingAuditTest, disjoint_slots_and_reuse_after_release_are_clean) {
  const StagingHold a = audit_.acquire(0, 64);
  EXPECT_FALSE(audit_.held(64, 64));
  const StagingHold b = audit_.acquire(64, 64);
  EXPECT_TRUE(audit_.release(a));
  EXPECT_FALSE(audit_.held(0, 64));
  memory_[0] = std::byte{1};
  const StagingHold again = audit_.acquire(0, 64);
  EXPECT_TRUE(audit_.release(again));
  EXPECT_TRUE(audit_.release(b));
  EXPECT_FALSE(audit_.held(0, 1000));
}

TEST_F(StagingAuditTest, held_granule_is_seen_from_any_of_its_bytes) {
  const StagingHold hold = audit_.acquire(130, 4);
  EXPECT_TRUE(audit_.held(128, 1));
  EXPECT_TRUE(audit_.held(191, 1));
  EXPECT_TRUE(audit_.held(0, 1000));
  EXPECT_FALSE(audit_.held(127, 1));
  EXPECT_FALSE(audit_.held(192, 808));
  EXPECT_FALSE(audit_.held(130, 0));
  EXPECT_TRUE(audit_.release(hold));
}

TEST_F(StagingAuditTest, range_across_granules_holds_the_first_the_last_and_all_between) {
  const StagingHold hold = audit_.acquire(127, 130);  // of four
  EXPECT_FALSE(audit_.held(0, 64));
  for (std::size_t granule = 1; granule < 5; ++granule) EXPECT_TRUE(audit_.held(granule * 64, 1)) << granule;
  EXPECT_FALSE(audit_.held(320, 680));
  EXPECT_TRUE(audit_.release(hold));
  EXPECT_FALSE(audit_.held(0, 1000));
}

TEST_F(StagingAuditTest, second_holder_keeps_the_granule_held) {
  const StagingHold a = audit_.acquire(0, 32);
  const StagingHold b = audit_.acquire(32, 32);
  EXPECT_TRUE(audit_.held(0, 64));
  EXPECT_TRUE(audit_.release(a));
  EXPECT_TRUE(audit_.held(0, 64));
  EXPECT_TRUE(audit_.release(b));
}

TEST_F(StagingAuditTest, store_to_held_memory_is_found_at_release) {
  const StagingHold hold = audit_.acquire(960, 40);
  memory_[999] = std::byte{1};
  EXPECT_FALSE(audit_.release(hold));
  EXPECT_FALSE(audit_.held(960, 40));
}

}  // namespace staging_audit_test
}  // namespace gdx::softhca
