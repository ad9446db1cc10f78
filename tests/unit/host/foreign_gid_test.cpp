// GIDs of interfaces in another network namespace, which an HCA shows to all namespaces that share it: the
// software HCA with the fault `foreign_gid`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "host/hca/hca.h"

namespace gdx {
namespace foreign_gid_test {

TEST(ForeignGid, is_taken_only_where_it_is_named) {
  const auto own = Hca::open();
  ASSERT_TRUE(own) << own.error().message;
  EXPECT_EQ(own->gid_index(), 0) << "link-local, and of an interface here";
  const auto named = Hca::open({.gid_index = 1});
  ASSERT_TRUE(named) << named.error().message;
  EXPECT_EQ(named->gid_index(), 1);
  EXPECT_THAT(Hca::open({.gid_index = 2}).error().message, ::testing::HasSubstr("it has some at 0"));
}

}  // namespace foreign_gid_test
}  // namespace gdx
