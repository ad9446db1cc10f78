// One pass of a waiting thread, in a process without a software HCA.
#include "host/staging/progress.h"

#include <gtest/gtest.h>

#include <vector>

namespace gdx {
namespace progress_test {

class Service final : public ProgressService {
 public:
  explicit Service(int done) : done_(done) { detail::add_service(*this); }
  ~Service() override { detail::remove_service(*this); }
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;
  int progress() override {
    ++passes;
    return done_;
  }

  int passes = 0;

 private:
  int done_;
};

TEST(Progress, pass_serves_all_services_once_and_returns_their_sum) {
  EXPECT_EQ(progress(), 0) << "nobody is there";
  Service idle(0);
  Service one(1);
  Service several(20);
  Service last(300);
  EXPECT_EQ(progress(), 321);
  {
    const Service gone(4000);
    EXPECT_EQ(progress(), 4321);
  }
  EXPECT_EQ(progress(), 321);
  for (const Service* service : {&idle, &one, &several, &last}) EXPECT_EQ(service->passes, 3);
}

TEST(Progress, idle_pass_tells_of_endpoints_that_another_process_serves) {
  detail::add_served_elsewhere(1);
  detail::add_served_elsewhere(1);
  EXPECT_EQ(progress(), -1);
  detail::add_served_elsewhere(-1);
  {
    const Service idle(0);
    EXPECT_EQ(progress(), -1);
    const Service busy(2);
    EXPECT_EQ(progress(), 2) << "what was done here is told first";
  }
  EXPECT_EQ(progress(), -1);
  detail::add_served_elsewhere(-1);
  EXPECT_EQ(progress(), 0);
  wake_software_hca();  // of none
}

}  // namespace progress_test
}  // namespace gdx
