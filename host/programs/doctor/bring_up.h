// The bring-up of a machine with a ConnectX, step by step, for a diagnosis from far away. Records what each
// step tried, its result, and the bytes of its commands of host/queue.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "host/bootstrap/world.h"
#include "host/hca/hca.h"
#include "host/programs/doctor/environment.h"
#include "host/programs/doctor/step_result.h"
#include "host/queue/queue_commands.h"

namespace gdx::doctor {

// Returns what an HCA said of its bond: "no LAG", for instance.
[[nodiscard]] std::string describe_lag(const Routing& routing);

// Place at which the second host is met.
struct PeerPlace {
  std::string host = {};   // empty: this one listens
  std::uint16_t port = 0;  // TCP
};

// State that steps share. Its HCA is there from the step on that lists the HCAs, which opens it.
struct Bench {
  Machine machine;
  std::string wanted_hca = {};  // empty: that which Hca::open() chooses for kernels on GPU 0
  std::optional<PeerPlace> peer = std::nullopt;
  std::string probe_program = {};   // gdx_calibrate_cuda; empty: not built
  std::string kernel_program = {};  // gdx_doctor_cuda; empty: not built
  std::optional<Hca> hca = std::nullopt;
  std::function<void(const std::string&)> tell = {};   // called as BringUpChoice::tell says
  std::unique_ptr<World> world = nullptr;              // world of both hosts, once they have met
  Error unmet = {};                                    // reason why they have not
  bool peer_lost = false;                              // told already
  std::string obstacle = {};                           // to step 17, which tells the other host
  bool wants_short = false;                            // steps of kShortSizes
  bool port_serves = false;                            // if not, its port is unread
  std::vector<commands::CommandRecord> commands = {};  // commands of the step that runs
};

// Returns whether steps are short. A software HCA takes short steps, because it shares a processor with
// posters.
[[nodiscard]] inline bool is_short(const Bench& bench) {
  return bench.wants_short || bench.hca->is_software();
}

enum class Needs : std::uint8_t { kNothing, kHca, kGpu, kPeer };  // each what is before it, too

struct Step {
  int number;
  const char* name;
  const char* tests;  // the sentence that is true where it is OK
  Needs needs;
  int after;  // the step that must be OK; 0: none
  StepResult (*run)(Bench& bench);
};
[[nodiscard]] char section(const Step& step);  // A to D
[[nodiscard]] std::span<const Step> bring_up_steps();

struct StepReport {
  const Step* step;
  StepResult result;
  std::vector<commands::CommandRecord> commands = {};
  double seconds = 0;
};

struct BringUpReport {
  Environment environment;
  std::string hca;  // empty: none was opened
  bool software = false;
  int running = 0;  // the number of the step that runs; 17 also while the hosts meet; 0: none
  std::vector<StepReport> steps;
  std::vector<Diagnosis> findings;  // findings of the static checks, which run before the steps

  [[nodiscard]] bool is_complete() const { return steps.size() == bring_up_steps().size(); }
  // Of the steps and the findings. kUnknown at least where it is not complete.
  [[nodiscard]] Verdict worst() const;
};

struct BringUpChoice {
  std::string hca;                // empty: as Bench::wanted_hca says
  std::optional<PeerPlace> peer;  // the second host, met before step 1, for section D
  // Paths of gdx_calibrate_cuda and gdx_doctor_cuda, whose kernels run on a GPU; empty: not built.
  std::string probe_program;
  std::string kernel_program;
  bool wants_short;                              // steps of kShortSizes
  std::function<void(const std::string&)> tell;  // takes a line before each wait for the second host
};

// Goes through all steps. Where no port serves, uses an HCA that opens for the steps that need no port. Calls
// `progress` before each step and after the last one, with the report so far.
// A step is UNKNOWN where the step or the HCA that it needs is missing. Threads: one.
[[nodiscard]] BringUpReport bring_up(const BringUpChoice& choice,
                                     const std::function<void(const BringUpReport&)>& progress);

// Judges step 20 by what a processor's puts and perftest reach, in GB/s; 0: perftest gave no figure. Puts of
// a software HCA may be slower, because one processor does all.
[[nodiscard]] StepResult judge_bandwidth(double puts, double perftest, bool software);

// The steps of the bring-up, in their order.
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
[[nodiscard]] StepResult copy_by_kernel(Bench& bench);
[[nodiscard]] StepResult ring_backwards(Bench& bench);
[[nodiscard]] StepResult see_messages(Bench& bench);
[[nodiscard]] StepResult share_endpoint(Bench& bench);
void join_peer(Bench& bench);   // waits for it; keeps the world, or why there is none
void watch_peer(Bench& bench);  // tells once that it has ended
[[nodiscard]] StepResult meet_peer(Bench& bench);
[[nodiscard]] StepResult put_all_ways(Bench& bench);
[[nodiscard]] StepResult lose_peer(Bench& bench);
[[nodiscard]] StepResult compare_bandwidth(Bench& bench);

}  // namespace gdx::doctor
