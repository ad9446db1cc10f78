// A process with the archives in its program, which loads libgdx.so as a plugin's would.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "host/gdx.h"

namespace gdx {
namespace {

using testing::HasSubstr;

TEST(OnlyCopy, second_copy_is_refused_by_create_which_names_both) {
  const TeamOptions options = {.heap_bytes = kMinTeamHeapBytes};
  {
    const auto alone = Team::create(options);
    ASSERT_TRUE(alone) << alone.error().message;
  }
  void* const second = dlopen(GDX_SHARED, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(second, nullptr) << dlerror();
  const auto refused = Team::create(options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, Status::kUnsupported);
  EXPECT_THAT(refused.error().message,
              HasSubstr("2 copies of gdx: in the program itself and in " GDX_SHARED));

  Hca hca = Hca::open({}).value();
  World world = World::join({}).value();
  EXPECT_EQ(Team::create(hca, world, {}, options).error().message, refused.error().message);
}

}  // namespace
}  // namespace gdx
