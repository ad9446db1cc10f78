// Description of the software HCA beside the fake GPU, with each command answered and with commands refused.
#include "host/programs/cli/describe_hca.h"

#include <gtest/gtest.h>
#include <infiniband/mlx5dv.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "tests/expected_text.h"

namespace {
int command_error = 0;  // of general commands
int object_error = 0;   // of questions for device memory
}  // namespace

// The linker gives gdx's own code these (--wrap).
int real_general_cmd(ibv_context* context, const void* in, std::size_t in_bytes, void* out,
                     std::size_t out_bytes) noexcept asm("__real_mlx5dv_devx_general_cmd");
int maybe_general_cmd(ibv_context* context, const void* in, std::size_t in_bytes, void* out,
                      std::size_t out_bytes) noexcept asm("__wrap_mlx5dv_devx_general_cmd");
int maybe_general_cmd(ibv_context* context, const void* in, std::size_t in_bytes, void* out,
                      std::size_t out_bytes) noexcept {
  return command_error != 0 ? command_error : real_general_cmd(context, in, in_bytes, out, out_bytes);
}
int real_init_obj(mlx5dv_obj* object, std::uint64_t type) noexcept asm("__real_mlx5dv_init_obj");
int maybe_init_obj(mlx5dv_obj* object, std::uint64_t type) noexcept asm("__wrap_mlx5dv_init_obj");
int maybe_init_obj(mlx5dv_obj* object, std::uint64_t type) noexcept {
  return object_error != 0 ? object_error : real_init_obj(object, type);
}

namespace gdx {
namespace {

using Json = nlohmann::ordered_json;

TEST(DescribeHca, each_part_is_told_and_a_part_that_fails_has_the_reason) {
  const auto hca = Hca::open();
  ASSERT_TRUE(hca) << hca.error().message;
  const Json sound = describe_hca(*hca);
  EXPECT_EQ(sound["name"], hca->name());
  EXPECT_EQ(sound["address"], hca->address_text());
  EXPECT_EQ(sound["gdx_version"], GDX_VERSION);
  EXPECT_EQ(sound["gid"], "::ffff:" + hca->address_text());
  Json told = sound;
  // Timestamps are those of a strict HCA or not.
  for (const char* const varying : {"address", "gdx_version", "gid", "qp_timestamps"}) told.erase(varying);
  expect_text("describe_hca.txt", told.dump(1) + "\n");

  // Since the first description the driver is loaded.
  Json refused = describe_hca(*hca);
  EXPECT_EQ(refused["qp_timestamps"], sound["qp_timestamps"]);
  command_error = ENOMEM;
  object_error = EINVAL;
  refused["qp_timestamps"] = "unknown: the kernel refused QUERY_HCA_CAP: Cannot allocate memory";
  refused["device_memory_mapping"] = "not mapped";
  EXPECT_EQ(describe_hca(*hca).dump(1), refused.dump(1));
  command_error = object_error = 0;
}

}  // namespace
}  // namespace gdx
