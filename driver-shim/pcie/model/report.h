// The model's results as rows, and rows as text or JSON. All output is marked as modelled.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "driver-shim/pcie/model/options.h"
#include "driver-shim/pcie/world/measure.h"

namespace gdx::pcie {

struct Row {
  Mode mode = Mode::kPull;
  std::uint64_t size_bytes = 0;
  Latency latency;
  std::optional<Rate> rate;  // none above most_messages_per_s
};

struct Report {
  WorldConfig world;
  std::vector<Row> rows;
  std::vector<std::string> not_possible;  // "MODE of SIZES B: why"
};

[[nodiscard]] Report run_model(const ModelRequest& request);
[[nodiscard]] std::string heading(const WorldConfig& world);

// Returns a line about the unmeasured number that decides most about this world; empty without one.
[[nodiscard]] std::string caveat(const WorldConfig& world);
// Returns a line about rows that nothing of today can do; empty without them.
[[nodiscard]] std::string proposals(const Report& report);
// Returns a line about rows without a rate; empty where all have one.
[[nodiscard]] std::string withheld(const Report& report);
[[nodiscard]] std::string to_text(const Report& report);
[[nodiscard]] std::string to_json(const Report& report);

}  // namespace gdx::pcie
