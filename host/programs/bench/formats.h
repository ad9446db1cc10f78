// A benchmark's document as text: gdx's own table, CSV, and the layouts of other benchmarks, so that scripts
// that read those read gdx's figures too.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace gdx::bench {

// Lines that a reader of the figures must not miss: damaged bytes, slots written without a credit, cases
// without figures, a run that ended early. Every layout has them and the conditions, as comments that begin
// with "# ".
[[nodiscard]] std::vector<std::string> warnings(const nlohmann::ordered_json& document);

// The table of gdx, at most 100 columns wide, with the conditions above and ratios to pull below.
[[nodiscard]] std::string table(const nlohmann::ordered_json& document);
// One line of names, then one of figures for each row, measured and modelled.
[[nodiscard]] std::string csv(const nlohmann::ordered_json& document);
// Columns of perftest 4.5: ib_write_lat, ib_write_bw.
[[nodiscard]] std::string perftest(const nlohmann::ordered_json& document);
// Columns of NVSHMEM's perftest/device/pt-to-pt; `machine_readable`: as with NVSHMEM_MACHINE_READABLE_OUTPUT.
[[nodiscard]] std::string nvshmem(const nlohmann::ordered_json& document, bool machine_readable);
// Columns of nccl-tests 2.
[[nodiscard]] std::string nccl_tests(const nlohmann::ordered_json& document);

// Lines that tell the conditions, each "name: text".
[[nodiscard]] std::vector<std::string> condition_lines(const nlohmann::ordered_json& document);

}  // namespace gdx::bench
