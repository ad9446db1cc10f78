// Of section C of the bring-up what the CPU layer can do in place of a GPU, over any HCA. That it does as it
// should says nothing of a GPU, so no such step is OK here; one that fails has found something all the same.
#include <fmt/format.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>

#include "device/gdx.h"
#include "device/shared.h"
#include "host/doctor/bring_up.h"
#include "host/doctor/loopback.h"
#include "host/staging/progress.h"

namespace gdx::doctor {
namespace {

constexpr std::uint32_t kBlocks = 128;
constexpr std::uint64_t kWordBytes = sizeof(std::uint64_t);

// Returns the word that signals are added to, at the end of the target.
RemoteMemory signal_of(const Loopback& loopback) {
  return loopback.target().remote() + (Loopback::kBufferBytes - kWordBytes);
}

// The message where the signal is not `wanted`.
std::string check_signal(const Loopback& loopback, std::uint64_t wanted) {
  std::uint64_t value = 0;
  std::memcpy(&value, loopback.target().data() + (Loopback::kBufferBytes - kWordBytes), sizeof value);
  return value == wanted ? "" : fmt::format("the signal is {}, wanted {}", value, wanted);
}

std::string check_launch(Status launched, Status put) {
  if (launched != Status::kOk) return fmt::format("the kernel: {}", status_name(launched));
  return put == Status::kOk ? "" : fmt::format("a put: {}", status_name(put));
}

// `failure` is empty where all was as it should be.
StepResult on_cpu_layer(const std::string& failure, const std::string& done) {
  if (!failure.empty()) return {Verdict::kFail, "on the CPU layer: " + failure};
  return {Verdict::kUnknown, fmt::format("on the CPU layer as it should be: {}; not tried on a GPU", done)};
}

}  // namespace

StepResult put_by_kernel(Bench& bench) {
  constexpr std::uint64_t kPuts = 20'000;
  auto loopback = Loopback::open(*bench.hca, kBlocks);
  if (!loopback) return on_cpu_layer(loopback.error().message, {});
  fill_pattern(loopback->source().span().first(kWordBytes), 1);
  Status put = Status::kOk;
  const auto kernel = [&](EndpointHandle handle) {
    device::Endpoint<> endpoint(handle);
    for (std::uint64_t i = 0; i < kPuts && put == Status::kOk; ++i) {
      put = gdx_put_signal<Mode::kPull>(endpoint, loopback->target().remote(), loopback->source().local(),
                                        kWordBytes, signal_of(*loopback), 1, SignalOp::kAdd);
    }
    if (put == Status::kOk) put = gdx_flush(endpoint);
  };
  const auto begin = std::chrono::steady_clock::now();
  const Status launched = exec::launch({.block = {1}, .progress = progress}, kernel, loopback->handle());
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
  std::string failure = check_launch(launched, put);
  if (failure.empty()) failure = first_mismatch(loopback->target().data(), kWordBytes, 1);
  if (failure.empty()) failure = check_signal(*loopback, kPuts);
  return on_cpu_layer(failure, fmt::format("{} puts with signals by plain doorbells, {:.0f} ns each", kPuts,
                                           took.count() / kPuts));
}

StepResult push_by_kernel(Bench& bench) {
  constexpr std::uint32_t kLongest = 4097;
  if (bench.hca->device_memory_bytes() == 0) return {Verdict::kUnknown, "the HCA has no device memory"};
  auto pool = StagingPool::create(*bench.hca);
  if (!pool) return without_staging(pool.error());
  auto loopback = Loopback::open(*bench.hca, kBlocks, &*pool);
  if (!loopback) return on_cpu_layer(loopback.error().message, {});
  std::string failure;
  for (std::uint32_t bytes = 1; bytes <= kLongest && failure.empty(); ++bytes) {
    fill_pattern(loopback->source().span().first(bytes), bytes);
    std::atomic<Status> put{Status::kOk};
    const auto kernel = [&](EndpointHandle handle) {
      device::Endpoint<Scope::kWarp> endpoint(handle);
      Status status =
          gdx_put<Mode::kPush>(endpoint, loopback->target().remote(), loopback->source().local(), bytes);
      if (status == Status::kOk) status = gdx_flush(endpoint);
      if (status != Status::kOk) put = status;
    };
    const Status launched =
        exec::launch({.block = {kWarpThreads}, .progress = progress}, kernel, loopback->handle());
    failure = check_launch(launched, put);
    if (failure.empty()) failure = first_mismatch(loopback->target().data(), bytes, bytes);
  }
  return on_cpu_layer(failure, fmt::format("pushes of 1 to {} B by a warp", kLongest));
}

StepResult share_endpoint(Bench& bench) {
  constexpr std::uint32_t kWarps = 32;
  constexpr std::uint64_t kEach = 4;
  constexpr std::uint64_t kPuts = kWarps * kWarpThreads * kEach;
  auto loopback = Loopback::open(*bench.hca, kBlocks, nullptr, Sharing::kShared);
  if (!loopback) return on_cpu_layer(loopback.error().message, {});
  fill_pattern(loopback->source().span().first(kWordBytes), 1);
  std::atomic<Status> put{Status::kOk};
  const auto kernel = [&](EndpointHandle handle) {
    device::SharedEndpoint<> endpoint(handle);
    Status status = Status::kOk;
    for (std::uint64_t i = 0; i < kEach && status == Status::kOk; ++i) {
      status = gdx_put_signal<Mode::kPull>(endpoint, loopback->target().remote(), loopback->source().local(),
                                           kWordBytes, signal_of(*loopback), 1, SignalOp::kAdd);
    }
    if (status == Status::kOk) status = gdx_flush(endpoint);
    if (status != Status::kOk) put = status;
  };
  const Status launched = exec::launch({.grid = {kWarps}, .block = {kWarpThreads}, .progress = progress},
                                       kernel, loopback->handle());
  std::string failure = check_launch(launched, put);
  if (failure.empty()) failure = first_mismatch(loopback->target().data(), kWordBytes, 1);
  if (failure.empty()) failure = check_signal(*loopback, kPuts);
  return on_cpu_layer(failure,
                      fmt::format("{} puts with signals by {} warps on one endpoint", kPuts, kWarps));
}

}  // namespace gdx::doctor
