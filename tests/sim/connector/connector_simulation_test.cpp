#include <gtest/gtest.h>

#include "tests/sim/connector/seeds.h"

namespace gdx::sim {
namespace {

TEST(ConnectorSimulation, seeds_keep_every_promise) {
  const ConnectorReport report = run_connector_seeds(1, 2000);
  EXPECT_EQ(report.sum.problem, "") << "seed " << report.seed;
}

}  // namespace
}  // namespace gdx::sim
