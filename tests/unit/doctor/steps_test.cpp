// Steps of the bring-up in this process, on the software HCA and the fake CUDA driver, with few puts: each
// word that they tell. GDX_SOFTHCA_FAULT, which holds for a process, chooses the cases.
#include <dlfcn.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "base/commit.h"
#include "host/bootstrap/admission.h"
#include "host/programs/doctor/bring_up.h"
#include "host/programs/doctor/endpoint_pair.h"
#include "host/programs/doctor/kernel_steps.h"
#include "host/programs/doctor/step_kernels.h"
#include "host/staging/progress.h"
#include "tests/expected_text.h"

namespace gdx::doctor {
namespace steps_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kPeerMapping[] = "GDX_FAKE_CUDA_PEER_MAPPING";
constexpr StepSizes kFew{20, 4, 1'000'000, 3, 4, 6, 5, 1, 2};

std::byte* seen_by_kernels(std::byte* on_gpu) {
  using Seen = void* (*)(std::uintptr_t);
  const auto seen =
      reinterpret_cast<Seen>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "gdx_fake_cuda_seen_by_kernels"));
  return static_cast<std::byte*>(seen(reinterpret_cast<std::uintptr_t>(on_gpu)));
}

// The text of a step's result, without numbers that are the run's or the machine's.
std::string text_of(const std::string& step, const StepResult& result) {
  std::string text = fmt::format("{}: {} {}\n", step, name(result.verdict), result.value);
  if (!result.advice.empty()) text += fmt::format("  advice: {}\n", result.advice);
  for (const Fact& fact : result.facts) {
    text += fmt::format("  {}: {}{}{}\n", fact.name, fact.value, fact.verdict ? " " : "",
                        fact.verdict ? name(*fact.verdict) : "");
  }
  const std::pair<const char*, const char*> varying[] = {
      {"kernel [^,]*, pages of [0-9]+ B", "kernel K, pages of P B"},
      {"page_bytes: [0-9]+", "page_bytes: P"},
      {"root: (yes|no)", "root: R"},
      {"page 0x[0-9a-f]+", "page 0xU"},
      {"NC_DEDICATED [^;\n]+", "NC_DEDICATED N"},  // by libmlx5
      {"pages: 16", "pages: 32"},                  // newer ones put two queues on a page
      {"[0-9]+ ns each", "N ns each"},
      {"[0-9]+ of 200 copies", "C of 200 copies"},
      {"GID [0-9]+ [0-9a-f.:]+,", "GID I G,"},
      {" at 0x[0-9a-f]+", " at 0xA"},
      {"syndrome 0x[0-9a-f]{8}", "syndrome 0xS"},
      {"QP 0x[0-9a-f]+", "QP 0xQ"},
      {"cqe: [0-9a-f]+", "cqe: C"},
      {"(no-such-host.invalid:7'): [^;\n]*", "$1: E"}};  // the resolver's words
  return masked(std::move(text), varying);
}

class Steps : public ::testing::Test {
 protected:
  void TearDown() override {
    for (const char* variable : {kPeerMapping, "GDX_FAKE_CUDA_DMABUF", "GDX_FAKE_CUDA_MAJOR"})
      unsetenv(variable);
  }
  // Opens the HCA as the second step does.
  void SetUp() override {
    machine_step_ = look_at_machine(bench_);
    hcas_step_ = look_at_hcas(bench_);
  }
  // Step kernels by the CPU layer, on pages that are shown to the GPU.
  [[nodiscard]] std::string run_kernels(const Gpu* gpu) {
    static int calls = 0;
    std::string text;
    for (const KernelStep& step : kernel_steps()) {
      calls = 0;
      const KernelBench bench{*bench_.hca, gpu, kFew, [] { ++calls; }, seen_by_kernels};
      text += text_of(std::string(step.name), step.run(bench));
      text += fmt::format("  alive: {}\n", calls);
    }
    return text;
  }
  static Bench look() {
    Bench bench{this_whole_machine()};
    bench.machine.hcas = see_hcas(bench.machine);
    return bench;
  }
  Bench bench_ = look();
  StepResult machine_step_;
  StepResult hcas_step_;
};

TEST_F(Steps, of_the_processor_are_told_word_by_word) {
  ASSERT_TRUE(bench_.hca) << hcas_step_.value;
  EXPECT_TRUE(is_short(bench_));
  std::string text = text_of("machine", machine_step_);
  text += text_of("hcas", hcas_step_);
  for (const Step& step : bring_up_steps()) {
    if (step.number < 3 || step.number > 7) continue;
    const commands::CommandRecording recording(bench_.commands);
    text += text_of(step.name, step.run(bench_));
    bench_.commands.clear();
  }
  bench_.port_serves = false;
  text += text_of("devx without a port", create_objects(bench_));
  expect_text("steps_of_processor.txt", text);
}

TEST_F(Steps, of_a_gpu_are_told_word_by_word) {
  std::string text = text_of("gpu-attributes", ask_gpu(bench_)) + text_of("gpu-mappings", map_pages(bench_)) +
                     text_of("gpu-payload", exchange_payload(bench_));
  setenv(kPeerMapping, "0", 1);
  text += text_of("mappings that are not permitted", map_pages(bench_));
  unsetenv(kPeerMapping);
  for (const char* const way : {"0", "2"}) {
    setenv("GDX_FAKE_CUDA_DMABUF", way, 1);
    text += text_of(fmt::format("dmabuf {}", way), exchange_payload(bench_));
  }
  setenv("GDX_FAKE_CUDA_MAJOR", "7", 1);
  text += text_of("an old GPU", ask_gpu(bench_));
  expect_text("steps_of_gpu.txt", text);
}

TEST_F(Steps, of_kernels_are_told_word_by_word) {
  const auto gpu = Gpu::open();
  ASSERT_TRUE(gpu) << gpu.error().message;
  std::string text = "without a GPU\n" + run_kernels(nullptr) + "with a GPU\n" + run_kernels(&*gpu);
  setenv(kPeerMapping, "0", 1);
  text += "with a GPU that rings by the host\n" + run_kernels(&*gpu);
  expect_text("steps_of_kernels.txt", text);
}

// Programs of which kernels would be for a GPU: here they print what they like.
class StepsOfPrograms : public Steps {
 protected:
  ~StepsOfPrograms() override { std::filesystem::remove(program_); }
  void write(const std::string& script) const {
    std::ofstream(program_) << "#!/bin/sh\n" << script << "\n";
    std::filesystem::permissions(program_, std::filesystem::perms::owner_all);
  }
  std::string told(StepResult (*step)(Bench&), const std::string& script) {
    write(script);
    return replaced(replaced(text_of(script, step(bench_)), program_, "PROGRAM"), commit(), "COMMIT");
  }
  const std::string program_ = fmt::format("{}gdx_steps_{}", ::testing::TempDir(), getpid());
};

TEST_F(StepsOfPrograms, are_what_they_print) {
  bench_.kernel_program = program_;
  std::string text;
  const auto prints = [&](const std::string& json) { text += told(put_by_kernel, "echo '" + json + "'"); };
  const std::string head = fmt::format(R"({{"commit": "{}", "value": "v", )", commit());
  for (const char* const json : {"", "[]", R"({"value": "v", "facts": []})",
                                 R"({"verdict": "OK", "facts": []})", R"({"verdict": "OK", "value": "v"})",
                                 R"({"commit": "x", "verdict": "OK", "value": "v", "facts": []})",
                                 R"({"verdict": "OK", "value": "v", "facts": []})"})
    prints(json);
  for (const char* const verdict : {"OK", "UNKNOWN", "FAIL", "WARN"})
    prints(head + R"("verdict": ")" + verdict + R"(", "facts": [{"name": "n", "value": "1", "verdict": ")" +
           verdict + R"("}, {"name": "m", "value": "2"}]})");
  text += told(put_by_kernel, "exit 3");
  for (const auto step : {put_by_kernel, push_by_kernel, ring_backwards, see_messages, share_endpoint}) {
    text += told(
        step,
        fmt::format(R"(echo "{{\"commit\": \"{}\", \"verdict\": \"OK\", \"value\": \"$*\", \"facts\": []}}")",
                    commit()));
  }
  bench_.probe_program = program_;
  for (const char* const script :
       {"echo GPU N $*; echo a: 3 of 200 copies used; echo b; echo c: other",
        "echo CPU; echo a: 0 of 9 copies used", "echo GPU N; echo a: not offered here",
        "echo GPU N; echo a: not offered here; echo b: failed: late", "exit 4"})
    text += told(copy_by_kernel, script);
  bench_.kernel_program.clear();
  bench_.probe_program.clear();
  text += told(ring_backwards, "none") + told(copy_by_kernel, "none");
  expect_text("steps_of_programs.txt", text);
}

TEST_F(Steps, name_the_hca_that_was_asked_for) {
  const auto choose = [&](const char* option, const char* variable) {
    Bench bench = look();
    bench.wanted_hca = option;
    if (*variable != '\0') setenv("GDX_HCA", variable, 1);
    const StepResult result = look_at_hcas(bench);
    unsetenv("GDX_HCA");
    return text_of(
        fmt::format("--hca '{}', GDX_HCA '{}', {}", option, variable, bench.hca ? "opened" : "none"), result);
  };
  std::string text = choose("gdx0", "") + choose("", "gdx0") + choose("gdx0", "mlx5_7") +
                     choose("mlx5_7", "gdx0") + choose("", "mlx5_7");
  Bench layerless = look();
  layerless.machine.hcas[0].link_layer.clear();
  Bench unseen = look();
  unseen.machine.hcas.clear();
  text += text_of("no link layer", look_at_hcas(layerless));
  text += text_of("not seen", look_at_hcas(unseen)) + text_of("not seen", look_at_machine(unseen));
  expect_text("steps_of_names.txt", text);
}

TEST_F(Steps, of_kernels_are_unknown_on_the_cpu_layer_at_best) {
  const KernelBench bench{*bench_.hca, nullptr, kFew, [] {}};
  const StepResult done = run_kernel_step(kernel_steps()[0], bench);
  EXPECT_EQ(done.verdict, Verdict::kUnknown);
  EXPECT_THAT(done.value,
              ::testing::MatchesRegex("on the CPU layer as it should be: .*; not tried by kernels on a GPU"));
  EXPECT_EQ(on_cpu_layer({Verdict::kFail, "why"}).value, "on the CPU layer: why");
  EXPECT_EQ(on_cpu_layer({Verdict::kUnknown, "why"}).value, "why");
}

using Launch = std::function<Status(const EndpointHandle&, const PutJob&, KernelReport*)>;
Launch alone(PushKernel* launch) {
  return [launch](const EndpointHandle& handle, const PutJob& job, KernelReport* report) {
    return launch(handle, job, report, progress);
  };
}
Launch shared(SharedPutKernel* launch) {
  return [launch](const EndpointHandle& handle, const PutJob& job, KernelReport* report) {
    return launch(handle, 1, job, report, progress);
  };
}

// A put is posted, and its completion alone is an error.
TEST_F(Steps, put_that_is_refused_is_told_by_each_kernel) {
  auto nic = StagingPool::create(*bench_.hca);
  auto host = StagingPool::create(*bench_.hca, StagingOptions::in_host_memory());
  ASSERT_TRUE(nic && host);
  const std::pair<Sharing, Launch> kernels[] = {
      {Sharing::kExclusive, alone(launch_puts)},        {Sharing::kExclusive, alone(launch_push)},
      {Sharing::kExclusive, alone(launch_bulk_push)},   {Sharing::kShared, shared(launch_shared_pulls)},
      {Sharing::kShared, shared(launch_shared_pushes)}, {Sharing::kShared, shared(launch_shared_bounces)}};
  for (std::size_t i = 0; i < std::size(kernels); ++i) {
    const auto pair = EndpointPair::open(
        *bench_.hca, {.blocks = 128, .pools = {&*nic, &*host}, .sharing = kernels[i].first});
    ASSERT_TRUE(pair) << pair.error().message;
    PutJob job{pair->target.remote(), pair->source.local(), 8, pair->target.remote() + 4096, 1};
    job.to.rkey = pair->target.rkey() ^ 0x5a;
    KernelReport report{};
    EXPECT_EQ(kernels[i].second(pair->endpoint.handle(), job, &report), Status::kOk) << i;
    EXPECT_EQ(status_name(static_cast<Status>(report.status)), status_name(Status::kRemoteAccess)) << i;
  }
}

// Steps on HCAs that do otherwise than the others' tests have it, by their variables.
class StepsOnOtherHcas : public Steps {
 protected:
  [[nodiscard]] std::string run(const char* step_name, const Gpu* gpu, const StepSizes& sizes = kFew) const {
    const auto step = std::ranges::find(kernel_steps(), step_name, &KernelStep::name);
    return text_of(step_name, step->run({*bench_.hca, gpu, sizes, [] {}, seen_by_kernels}));
  }
};

// Signals of step 15 are fenced then, and arrive behind their payload.
TEST_F(StepsOnOtherHcas, dropped_force_is_told_and_fails_nothing) {
  const commands::CommandRecording recording(bench_.commands);
  const StepResult objects = create_objects(bench_);
  EXPECT_EQ(objects.verdict, Verdict::kOk) << objects.value;
  EXPECT_THAT(objects.value, HasSubstr("; it shows no dp_ordering_force, so signals are fenced"));
  StepSizes many = kFew;
  many.messages = 500;
  EXPECT_THAT(run("receiver-visibility", nullptr, many), HasSubstr("receiver-visibility: OK"));
}

TEST_F(StepsOnOtherHcas, no_gpu_atomics_fail_the_adds_alone) {
  setenv("GDX_FAKE_CUDA_DMABUF", "0", 1);  // by address, which the HCA tells from memory of the host
  const auto gpu = Gpu::open();
  ASSERT_TRUE(gpu) << gpu.error().message;
  expect_text("steps_no_gpu_atomics.txt", run("receiver-visibility", &*gpu) + run("shared-endpoint", &*gpu));
}

// Steps on an HCA that reads no records: the wait for a late one ends with the put.
constexpr StepSizes patient() {
  StepSizes sizes = kFew;
  sizes.record_late_ns = 60'000'000'000;
  return sizes;
}

TEST_F(StepsOnOtherHcas, unread_records_let_puts_go_before_them) {
  expect_text("steps_unread_records.txt",
              run("gpu-doorbells", nullptr, patient()) + run("doorbells-backwards", nullptr));
}

TEST_F(StepsOnOtherHcas, next_is_last_fails_where_the_next_one_is_named) {
  expect_text("steps_next_is_last.txt", run("gpu-doorbells", nullptr, patient()));
}

TEST(PartResults, part_that_fails_decides_whatever_was_not_tried) {
  PartResults parts;
  parts.add("a", "", "3 puts");
  parts.add("b", "", "", true);
  EXPECT_EQ(text_of("", parts.result()), ": OK a: 3 puts; b\n  a: 3 puts OK\n  b: \n");
  EXPECT_EQ(text_of("", parts.result("; c: not tried")),
            ": UNKNOWN a: 3 puts; b; c: not tried\n  a: 3 puts OK\n  b: \n");
  parts.add("d", "lost", "4 puts");
  parts.add("e", "late", "", true);
  EXPECT_EQ(text_of("", parts.result("; c: not tried")),
            ": FAIL d: lost; e: late; c: not tried\n  a: 3 puts OK\n  b: \n  d: lost FAIL\n  e: late FAIL\n");
}

TEST(PartResults, memory_that_others_hold_or_that_there_is_not_is_no_failure) {
  EXPECT_EQ(text_of("", without_staging({Status::kNoMemory, "a"})), ": UNKNOWN held by others: a\n");
  EXPECT_EQ(text_of("", without_staging({Status::kUnsupported, "b"})), ": UNKNOWN b\n");
  EXPECT_EQ(text_of("", without_staging({Status::kSystem, "c"})), ": FAIL c\n");
}

// Steps that need what a step before did not bring are not tried, and those behind them are.
class BringUpWithFault : public ::testing::Test {
 protected:
  std::string bring_up_all(const std::optional<PeerPlace>& peer) {
    const BringUpReport report =
        bring_up({"", peer, "", "", true, [this](const std::string& line) { told_.push_back(line); }},
                 [this](const BringUpReport& so_far) { running_.push_back(so_far.running); });
    EXPECT_TRUE(report.is_complete());
    EXPECT_EQ(report.worst(), Verdict::kFail);
    EXPECT_FALSE(report.findings.empty());
    std::string text = "HCA '" + report.hca + (report.software ? "', software\n" : "'\n");
    for (const StepReport& one : report.steps) {
      const StepResult& result = one.result;
      text += text_of(fmt::format("{} {}", section(*one.step), one.step->name),
                      {result.verdict, result.value, result.advice});
      EXPECT_GE(one.seconds, 0);
    }
    return text;
  }
  std::vector<std::string> told_;
  std::vector<int> running_;
};

TEST_F(BringUpWithFault, no_device_leaves_the_gpu_to_be_asked) {
  Bench blind{{}};
  blind.machine.probes = live_probes();
  setenv(kInsecureVariable, "1", 1);  // the other host has no address, secret or not
  const std::string in_a_container = text_of("nothing to be seen", look_at_machine(blind)) +
                                     text_of("nothing to be seen", look_at_hcas(blind));
  expect_text("bring_up_no_device.txt", bring_up_all(PeerPlace{"no-such-host.invalid", 7}) + in_a_container);
  EXPECT_THAT(told_,
              ElementsAre("no HCA here, so step 17 will fail on both hosts",
                          "meets the other host at no-such-host.invalid:7 within 5 min; run there: gdx "
                          "doctor --hardware --listen --port 7",
                          HasSubstr("no second host, so step 17 will fail: no address for the root")));
  ASSERT_EQ(running_.size(), 22u);
  EXPECT_EQ(running_.front(), 17);
  for (int step = 1; step <= 20; ++step) EXPECT_EQ(running_[static_cast<std::size_t>(step)], step);
  EXPECT_EQ(running_.back(), 0);
}

TEST_F(BringUpWithFault, timestamp_format_leaves_what_needs_no_queue) {
  expect_text("bring_up_timestamp_format.txt", bring_up_all(std::nullopt));
  EXPECT_TRUE(told_.empty());
}

}  // namespace steps_test
}  // namespace gdx::doctor
