#include "host/programs/bench/kernels.h"

#include "host/programs/bench/collective.h"
#include "host/programs/bench/poster.h"

namespace gdx::bench {
namespace {

constexpr unsigned kBlockThreads = 128;

// For the thread that reports times alone: on the CPU layer the others' readings would be part of what is
// measured.
GDX_DEVICE std::uint64_t read_clock(bool leads) { return leads ? exec::now_ns() : 0; }
GDX_DEVICE std::uint64_t read_ticks(bool leads) { return leads ? exec::now_cycles() : 0; }
// Leaves out the making of a block's threads, which may cost more than its messages.
GDX_DEVICE std::uint64_t read_cpu([[maybe_unused]] bool leads) {
#if defined(__CUDACC__)
  return 0;
#else
  return leads ? process_cpu_ns() : 0;
#endif
}

// Requests messages of a thread of the host, which owns the endpoint; the kernel has words of host memory
// only.
template <Scope S>
class ProxiedPoster {
 public:
  GDX_DEVICE ProxiedPoster(const Lane& lane, const Load& load) : lane_(lane), load_(load) {}

  GDX_DEVICE Status status() const { return Status::kOk; }
  GDX_DEVICE bool leads() const { return exec::thread_rank<S>() == 0; }
  GDX_DEVICE Status post(std::uint64_t message) {
    exec::gather<S>();  // the leader's release covers what all have written
    asked_ = message + 1;
    if (leads()) exec::publish(&lane_.proxy->asked, asked_);
    return Status::kOk;
  }
  GDX_DEVICE Status flush() { return wait_for(&lane_.proxy->sent, asked_); }
  GDX_DEVICE Status wait(SignalWord word, std::uint64_t value) {
    return wait_for(lane_.signals + word, value);
  }
  GDX_DEVICE Status finish() { return Status::kOk; }  // by the thread, after its last message

 private:
  // The proxy's failure, or the endpoint's timeout, ends the wait.
  GDX_DEVICE Status wait_for(const std::uint64_t* word, std::uint64_t value) {
    std::uint64_t status = 0;
    if (leads()) {
      const std::uint64_t begun_ns = exec::now_ns();
      while (status == 0 && exec::load_acquire(word) < value) {
        status = exec::load_acquire(&lane_.proxy->failure);
        const bool late = exec::now_ns() - begun_ns > lane_.endpoint.timeout_ns;
        if (status == 0 && late) status = static_cast<std::uint64_t>(Status::kTimeout);
        exec::relax();
      }
    }
    return static_cast<Status>(exec::broadcast<S>(static_cast<std::uint32_t>(status)));
  }

  const Lane& lane_;
  const Load& load_;
  std::uint64_t asked_ = 0;
};

// One message at a time: `run` makes it and waits for its end.
template <typename Run>
GDX_DEVICE Status time_messages(Status status, bool leads, Run run, const Lane& lane, const Load& load,
                                LaneOutcome& outcome) {
  outcome.begin_ns = read_clock(leads);
  outcome.begin_ticks = read_ticks(leads);
  for (std::uint64_t m = 0; m < load.messages && status == Status::kOk; ++m) {
    const std::uint64_t start = read_ticks(leads);
    status = run(m);
    const std::uint64_t took = read_ticks(leads) - start;
    if (status != Status::kOk) break;
    if (leads) lane.latencies[m] = took < UINT32_MAX ? static_cast<std::uint32_t>(took) : UINT32_MAX;
    ++outcome.messages;
  }
  outcome.end_ticks = read_ticks(leads);
  outcome.end_ns = read_clock(leads);
  return status;
}

// As many messages at a time as the depth permits.
template <typename P>
GDX_DEVICE Status stream_messages(P& poster, const Load& load, LaneOutcome& outcome) {
  const bool leads = poster.leads();
  Status status = poster.status();
  outcome.begin_ns = read_clock(leads);
  for (std::uint64_t m = 0; m < load.messages && status == Status::kOk; ++m) {
    status = poster.post(m);
    const bool last = m + 1 == load.messages;
    if (status == Status::kOk && (last || (m + 1) % load.depth == 0)) status = poster.flush();
    if (status == Status::kOk) ++outcome.messages;
  }
  outcome.end_ns = read_clock(leads);
  return status;
}

template <bool Answered, typename P>
GDX_DEVICE void run_lane(P& poster, const Lane& lane, const Load& load, LaneOutcome* outcome) {
  LaneOutcome result{};
  result.begin_cpu_ns = read_cpu(poster.leads());
  if (load.sends) {
    // A put with a signal is complete when the peer's answer has come.
    const auto run = [&](std::uint64_t m) {
      const Status status = poster.post(m);
      if (status != Status::kOk) return status;
      return Answered ? poster.wait(kData, load.first_sequence + m) : poster.flush();
    };
    result.status = load.latency ? time_messages(poster.status(), poster.leads(), run, lane, load, result)
                                 : stream_messages(poster, load, result);
    if (result.status == Status::kOk) result.status = poster.finish();
  } else if (Answered && load.latency) {
    result.status = poster.status();
    for (std::uint64_t m = 0; m < load.messages && result.status == Status::kOk; ++m) {
      result.status = poster.wait(kData, load.first_sequence + m);
      if (result.status == Status::kOk) result.status = poster.post(m);
    }
    if (result.status == Status::kOk) result.status = poster.flush();
  }
  if (result.status == Status::kOk && (!load.sends || load.awaits_peer))
    result.status = poster.wait(kDone, load.first_sequence);
  result.end_cpu_ns = read_cpu(poster.leads());
  if (poster.leads()) *outcome = result;
}

template <Mode M, Scope S>
__global__ void run_collective(const Lane* lanes, Load load, LaneOutcome* outcomes) {
  LaneOutcome result{};
  const bool leads = exec::thread_rank<S>() == 0;
  result.begin_cpu_ns = read_cpu(leads);
  const auto run = [&](std::uint64_t m) { return make_round<M, S>(load, m); };
  result.status = time_messages(Status::kOk, leads, run, lanes[0], load, result);
  if (result.status == Status::kOk) result.status = gdx_quiet<S>(load.round.team);
  result.end_cpu_ns = read_cpu(leads);
  if (leads) *outcomes = result;
}

template <Operation O, Mode M, Scope S, Sharing Q>
__global__ void run_kernel(const Lane* lanes, Load load, LaneOutcome* outcomes) {
  const Lane lane = lanes[blockIdx.x];
  Poster<O, M, S, Q> poster(lane, load);
  run_lane<O == Operation::kPutSignal>(poster, lane, load, outcomes + blockIdx.x);
}

template <bool Answered, Scope S>
__global__ void run_proxied_kernel(const Lane* lanes, Load load, LaneOutcome* outcomes) {
  const Lane lane = lanes[blockIdx.x];
  ProxiedPoster<S> poster(lane, load);
  run_lane<Answered>(poster, lane, load, outcomes + blockIdx.x);
}

struct Launch {
  exec::LaunchConfig config;
  const Lane* lanes;
  const Load& load;
  LaneOutcome* outcomes;

  template <typename Kernel>
  Status operator()(Kernel kernel) const {
    return exec::launch(config, kernel, lanes, load, outcomes);
  }
};

template <Operation O, Mode M, Scope S>
Status launch_mode(const Launch& launch) {
  if constexpr (is_collective(O)) {
    return launch(run_collective<M, S>);  // tells them apart when it runs
  } else if constexpr (O == Operation::kPut) {
    const bool shares = launch.load.posters > launch.load.endpoints;
    return shares ? launch(run_kernel<O, M, S, Sharing::kShared>)
                  : launch(run_kernel<O, M, S, Sharing::kExclusive>);
  } else {
    return launch(run_kernel<O, M, S, Sharing::kExclusive>);
  }
}

template <Operation O, Scope S>
Status launch_way(const Launch& launch) {
  switch (launch.load.way) {
    case Way::kPull: return launch_mode<O, Mode::kPull, S>(launch);
    case Way::kPush: return launch_mode<O, Mode::kPush, S>(launch);
    case Way::kInline: return launch_mode<O, Mode::kInline, S>(launch);
    case Way::kBounce: return launch_mode<O, Mode::kBounce, S>(launch);
    case Way::kAuto: return launch_mode<O, Mode::kAuto, S>(launch);
    default: return Status::kInvalidArgument;
  }
}

template <Scope S>
Status launch_operation(const Launch& launch) {
  const Operation operation = launch.load.operation;
  if (launch.load.way == Way::kProxy) {
    return operation == Operation::kPutSignal ? launch(run_proxied_kernel<true, S>)
                                              : launch(run_proxied_kernel<false, S>);
  }
  switch (operation) {
    case Operation::kPut: return launch_way<Operation::kPut, S>(launch);
    case Operation::kPutSignal: return launch_way<Operation::kPutSignal, S>(launch);
    case Operation::kGet: return launch(run_kernel<Operation::kGet, Mode::kPull, S, Sharing::kExclusive>);
    case Operation::kFetchAdd:
      return launch(run_kernel<Operation::kFetchAdd, Mode::kPull, S, Sharing::kExclusive>);
    default: return launch_way<Operation::kAllToAll, S>(launch);
  }
  return Status::kInvalidArgument;
}

}  // namespace

Status run_lanes(const Lane* lanes, const Load& load, LaneOutcome* outcomes, int (*progress)()) {
  Launch launch{{}, lanes, load, outcomes};
  launch.config.grid = {load.posters};
  launch.config.progress = progress;
  launch.config.workers = load.workers;
  switch (load.scope) {
    case Threads::kThread: launch.config.block = {1}; return launch_operation<Scope::kThread>(launch);
    case Threads::kWarp: launch.config.block = {kWarpThreads}; return launch_operation<Scope::kWarp>(launch);
    case Threads::kBlock:
      launch.config.block = {kBlockThreads};
      return launch_operation<Scope::kBlock>(launch);
  }
  return Status::kInvalidArgument;
}

bool kernels_run_on_gpu() { return exec::kOnGpu; }

}  // namespace gdx::bench
