// The bring-up of a machine with a ConnectX, step by step: what each step tried, what came of it, and the
// bytes of its commands of host/queue, so that somebody far away can tell what is wrong.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "host/doctor/checks.h"
#include "host/doctor/environment.h"
#include "host/hca/hca.h"
#include "host/queue/queue_commands.h"

namespace gdx::doctor {

struct StepResult {
  Verdict verdict = Verdict::kUnknown;  // never kWarn
  std::string value;
  std::string advice = {};
  std::vector<std::pair<std::string, std::string>> facts = {};
};

// An HCA to be tried, and why it stands where it does among the others.
struct Candidate {
  std::string name;
  std::string why;
};
// Returns `names` by their distance from the first GPU that CUDA shows, the nearest first; without one, or
// at one distance, in their own order.
[[nodiscard]] std::vector<Candidate> rank_hcas(const Machine& machine, const std::vector<std::string>& names);

// State that steps share. The step that lists the HCAs opens one.
struct Bench {
  Machine machine;
  std::string wanted_hca = {};  // empty: $GDX_HCA, and failing that the first of rank_hcas() that serves
  std::optional<Hca> hca = std::nullopt;
  bool port_serves = false;                            // if not, its port is unread
  std::vector<commands::CommandRecord> commands = {};  // of the step that runs
};

enum class Needs : std::uint8_t { kNothing, kHca, kGpu, kPeer };  // each what is before it, too

struct Step {
  int number;
  const char* name;
  Needs needs;
  int after;                        // the step that must be OK; 0: none
  StepResult (*run)(Bench& bench);  // null: not built
};
[[nodiscard]] char section(const Step& step);  // A to D
[[nodiscard]] std::span<const Step> bring_up_steps();

struct StepReport {
  const Step* step;
  StepResult result;
  std::vector<commands::CommandRecord> commands = {};
};

struct BringUpReport {
  Environment environment;
  std::string hca;  // empty: none was opened
  bool software = false;
  int running = 0;  // the number of the step that runs; 0: none
  std::vector<StepReport> steps;
  std::vector<Diagnosis> findings;  // of the static checks, which run before the steps

  [[nodiscard]] bool is_complete() const { return steps.size() == bring_up_steps().size(); }
  // Of the steps and the findings. kUnknown at least where it is not complete.
  [[nodiscard]] Verdict worst() const;
};

// Uses `hca`; if that is empty, as Bench::wanted_hca says. Where no port serves, uses one that opens for the
// steps that need no port. Calls `progress` before each step and after the last one, with the report so far.
// A step is UNKNOWN where the step or the HCA that it needs is missing, and where it is not built.
// Threads: one.
[[nodiscard]] BringUpReport bring_up(const std::string& hca,
                                     const std::function<void(const BringUpReport&)>& progress);

// Result of a step that found no device memory for its staging pool.
[[nodiscard]] StepResult without_staging(const Error& error);

// The steps.
[[nodiscard]] StepResult look_at_machine(Bench& bench);
[[nodiscard]] StepResult look_at_hcas(Bench& bench);
[[nodiscard]] StepResult query_capabilities(Bench& bench);
[[nodiscard]] StepResult create_objects(Bench& bench);
[[nodiscard]] StepResult put_by_loopback(Bench& bench);
[[nodiscard]] StepResult probe_blueflame(Bench& bench);
[[nodiscard]] StepResult write_from_device_memory(Bench& bench);
[[nodiscard]] StepResult ask_gpu(Bench& bench);
[[nodiscard]] StepResult map_pages(Bench& bench);
[[nodiscard]] StepResult exchange_payload(Bench& bench);
[[nodiscard]] StepResult put_by_kernel(Bench& bench);
[[nodiscard]] StepResult push_by_kernel(Bench& bench);
[[nodiscard]] StepResult ring_backwards(Bench& bench);
[[nodiscard]] StepResult see_messages(Bench& bench);
[[nodiscard]] StepResult share_endpoint(Bench& bench);

}  // namespace gdx::doctor
