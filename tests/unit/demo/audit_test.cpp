#include "demo/audit.h"

#include <gtest/gtest.h>

namespace gdx::demo {
namespace audit_test {

TEST(Audit, number_is_said_only_where_somebody_counts) {
  EXPECT_EQ(audit_text(0), "slots written without a credit: 0");
  EXPECT_EQ(audit_text(3), "slots written without a credit: 3");
  EXPECT_EQ(audit_text(std::nullopt), "slots written without a credit: not audited");
}

}  // namespace audit_test
}  // namespace gdx::demo
