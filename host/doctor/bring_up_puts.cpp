// Section B of the bring-up: the processor drives the HCA, by work requests of an endpoint to itself.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "device/exec/exec.h"
#include "host/doctor/bring_up.h"
#include "host/doctor/loopback.h"
#include "host/gpu/gpu_memory.h"
#include "host/memory/memory.h"
#include "host/staging/progress.h"
#include "proto/mlx5/prm.h"

namespace gdx::doctor {
namespace {

namespace prm = mlx5::prm;
using mlx5::Syndrome;
using mlx5::WqeOpcode;

constexpr std::uint32_t kBlocks = 16;
constexpr std::uint32_t kPutBytes = 64;

// The result of one part of a step: `failure` is empty where the HCA did as it should.
struct Outcome {
  std::string failure;
  std::string value;
};
struct Part {
  const char* name;
  std::function<Outcome(Loopback&)> run;
};

// Keeps what the HCA shows of a part that failed; QUERY_QP's bytes are kept with the commands.
void add_evidence(StepResult& result, const std::string& name, const Loopback& loopback) {
  result.facts.emplace_back(name + ": cqe", loopback.newest_entry());
  const auto context = loopback.endpoint().query_queue_pair();
  result.facts.emplace_back(
      name + ": query_qp",
      context ? fmt::format("state {}", prm::get32(*context, prm::qp::kState)) : context.error().message);
}

// Each on an endpoint of its own, since errors end one. All are tried, whatever comes of those before.
StepResult run_parts(const Hca& hca, std::span<const Part> parts, std::uint32_t blocks,
                     StagingPool* pool = nullptr, DoorbellKind doorbell = DoorbellKind::kPlain) {
  StepResult result{Verdict::kOk, {}};
  std::vector<std::string> done;
  std::vector<std::string> failed;
  for (const Part& part : parts) {
    auto loopback = Loopback::open(hca, blocks, pool, Sharing::kExclusive, doorbell);
    const Outcome outcome = loopback ? part.run(*loopback) : Outcome{loopback.error().message, {}};
    if (!outcome.failure.empty()) {
      failed.push_back(fmt::format("{}: {}", part.name, outcome.failure));
    } else {
      done.push_back(outcome.value.empty() ? part.name : fmt::format("{}: {}", part.name, outcome.value));
    }
    result.facts.emplace_back(part.name, outcome.failure.empty() ? "done " + outcome.value : outcome.failure);
    if (!outcome.failure.empty() && loopback) add_evidence(result, part.name, *loopback);
  }
  result.verdict = failed.empty() ? Verdict::kOk : Verdict::kFail;
  result.value = fmt::format("{}", fmt::join(failed.empty() ? done : failed, "; "));
  return result;
}

// The next completion is that of the WQE at `index`, of this opcode and syndrome; else what it is instead.
std::string await(Loopback& loopback, std::uint16_t index, WqeOpcode opcode,
                  Syndrome wanted = Syndrome::kNone) {
  const auto completed = loopback.poll();
  if (!completed) return fmt::format("no completion of WQE {} in {} s", index, Loopback::kWaitS);
  const auto kind =
      wanted == Syndrome::kNone ? mlx5::CqeOpcode::kRequester : mlx5::CqeOpcode::kRequesterError;
  const bool right = completed->opcode() == kind && completed->wqe_counter() == index &&
                     completed->qpn() == loopback.handle().qpn && completed->syndrome() == wanted &&
                     (wanted != Syndrome::kNone || completed->send_opcode() == opcode);
  if (right) return {};
  return fmt::format(
      "the completion is {}; wanted opcode {}, WQE {} (opcode {:#x}), QP {:#x}, syndrome {:#04x}",
      completed->text(), static_cast<unsigned>(kind), index, static_cast<unsigned>(opcode),
      loopback.handle().qpn, static_cast<unsigned>(wanted));
}

std::uint64_t address_of(const std::byte* at) { return reinterpret_cast<std::uintptr_t>(at); }

WorkRequest pull(const Loopback& loopback, std::uint32_t bytes) {
  WorkRequest request(WqeOpcode::kRdmaWrite);
  request.remote(address_of(loopback.target().data()), loopback.target().rkey())
      .gather(address_of(loopback.source().data()), loopback.source().lkey(), bytes);
  return request;
}

// One put of pattern `seed`, its completion, and what arrived.
std::string put(Loopback& loopback, std::uint32_t seed) {
  fill_pattern(loopback.source().span().first(kPutBytes), seed);
  const std::uint16_t index = loopback.post(pull(loopback, kPutBytes));
  loopback.ring();
  if (auto wrong = await(loopback, index, WqeOpcode::kRdmaWrite); !wrong.empty()) return wrong;
  return first_mismatch(loopback.target().data(), kPutBytes, seed);
}

Outcome pull_once(Loopback& loopback) { return {put(loopback, 1), {}}; }

Outcome three_laps(Loopback& loopback) {
  for (std::uint32_t i = 0; i < 3 * kBlocks + 1; ++i) {
    if (auto wrong = put(loopback, i); !wrong.empty()) return {fmt::format("put {}: {}", i, wrong), {}};
  }
  return {};
}

Outcome inline_across_end(Loopback& loopback) {
  constexpr std::size_t kInlineBytes = 4 * mlx5::kWqeBasicBlockBytes - 2 * mlx5::kSegmentBytes - sizeof(Be32);
  for (std::uint32_t i = 0; i < kBlocks - 2; ++i) {
    if (auto wrong = put(loopback, i); !wrong.empty()) return {wrong, {}};
  }
  std::array<std::byte, kInlineBytes> payload{};
  fill_pattern(payload, 99);
  WorkRequest request(WqeOpcode::kRdmaWrite);
  request.remote(address_of(loopback.target().data()), loopback.target().rkey()).inlined(payload);
  const std::uint16_t index = loopback.post(request);
  loopback.ring();
  if (auto wrong = await(loopback, index, WqeOpcode::kRdmaWrite); !wrong.empty()) return {wrong, {}};
  return {first_mismatch(loopback.target().data(), kInlineBytes, 99), {}};
}

Outcome add_to_signal(Loopback& loopback) {
  constexpr std::uint64_t kAddend = 5;
  constexpr std::uint64_t kPoison = ~0ull;
  const std::atomic_ref word(*reinterpret_cast<std::uint64_t*>(loopback.target().data()));
  const std::atomic_ref returned(*reinterpret_cast<std::uint64_t*>(loopback.source().data()));
  for (const std::uint64_t before : {std::uint64_t{0}, kAddend}) {
    returned.store(kPoison);
    WorkRequest request(WqeOpcode::kAtomicFetchAdd);
    request.remote(address_of(loopback.target().data()), loopback.target().rkey())
        .operand(kAddend)
        .gather(address_of(loopback.source().data()), loopback.source().lkey(), sizeof(std::uint64_t));
    const std::uint16_t index = loopback.post(request);
    loopback.ring();
    if (auto wrong = await(loopback, index, WqeOpcode::kAtomicFetchAdd); !wrong.empty()) return {wrong, {}};
    if (const std::uint64_t is = word.load(); is != before + kAddend)
      return {fmt::format("the word is {:#x}, wanted {:#x}", is, before + kAddend), {}};
    if (const std::uint64_t is = returned.load(); is != before)
      return {fmt::format("the add returned {:#x}, wanted {:#x}", is, before), {}};
  }
  return {{}, "returned 0, then 5"};
}

Outcome probe_of_no_bytes(Loopback& loopback) {
  WorkRequest request(WqeOpcode::kRdmaWrite);
  const std::uint16_t index = loopback.post(request.remote(0, 0));
  loopback.ring();
  return {await(loopback, index, WqeOpcode::kRdmaWrite), {}};
}

Outcome bad_rkey(Loopback& loopback) {
  constexpr std::uint32_t kOtherTag = 0x5a;
  WorkRequest request(WqeOpcode::kRdmaWrite);
  request.remote(address_of(loopback.target().data()), loopback.target().rkey() ^ kOtherTag)
      .gather(address_of(loopback.source().data()), loopback.source().lkey(), kPutBytes);
  const std::uint16_t refused = loopback.post(request);
  const std::uint16_t flushed = loopback.post(pull(loopback, kPutBytes));
  loopback.ring();
  if (auto wrong = await(loopback, refused, WqeOpcode::kRdmaWrite, Syndrome::kRemoteAccess); !wrong.empty())
    return {wrong, {}};
  if (auto wrong = await(loopback, flushed, WqeOpcode::kRdmaWrite, Syndrome::kFlushed); !wrong.empty())
    return {wrong, {}};
  return {{}, "0x13, then 0x05"};
}

// The stores that copy a WQE into a doorbell register.
enum class Copy : std::uint8_t { kNone, kEightBytes, kSixteenBytes };

// The first 8 B go last, and with the last store: whoever sees them in memory sees the rest. ThreadSanitizer
// would take a vector for a plain store.
[[gnu::no_sanitize_thread]] void store_copy(std::uint64_t* half, const exec::Segment (&wqe)[4], Copy copy) {
  if (copy == Copy::kEightBytes) return exec::store_blueflame<Scope::kWarp>(half, wqe);
#ifdef __SSE2__
  for (int i = 3; i >= 0; --i) {
    _mm_store_si128(reinterpret_cast<__m128i*>(half) + i,
                    _mm_load_si128(reinterpret_cast<const __m128i*>(&wqe[i])));
  }
  exec::write_combining_barrier();
#endif
}

// NOPs that complete only where the copy, in which they ask for it, is what the HCA executed; the last one
// asks in the ring. Source: Linux drivers/infiniband/hw/mlx5/mem.c, mlx5_ib_test_wc.
template <Copy kCopy>
Outcome ring_nops(Loopback& loopback) {
  constexpr std::uint32_t kNops = 200;
  // A software HCA reads a doorbell as memory, and must read it before the next one is there: progress()
  // makes it.
  constexpr auto kPause = std::chrono::microseconds(20);
  const EndpointHandle& handle = loopback.handle();
  std::size_t half_bytes = 0;
  for (std::uint32_t i = 0; i < kNops; ++i) {
    const std::uint16_t index = loopback.post(WorkRequest(WqeOpcode::kNop, 0));
    if constexpr (kCopy == Copy::kNone) {
      loopback.ring();
      continue;
    }
    loopback.publish();
    alignas(16) exec::Segment wqe[4];
    const auto signalled = WorkRequest(WqeOpcode::kNop).encode(index, handle.qpn);
    std::memcpy(wqe, signalled.data(), sizeof wqe);
    store_copy(reinterpret_cast<std::uint64_t*>(reinterpret_cast<std::byte*>(handle.doorbell) + half_bytes),
               wqe, kCopy);
    half_bytes ^= handle.blueflame_half_bytes;
    progress();
    std::this_thread::sleep_for(kPause);
  }
  const std::uint16_t last = loopback.post(WorkRequest(WqeOpcode::kNop));
  loopback.ring();
  std::uint32_t copies = 0;
  for (;; ++copies) {
    const auto completed = loopback.poll();
    if (!completed) return {fmt::format("no completion of the last NOP in {} s", Loopback::kWaitS), {}};
    if (completed->opcode() != mlx5::CqeOpcode::kRequester) return {completed->text(), {}};
    if (completed->wqe_counter() == last) break;
  }
  if (kCopy == Copy::kNone && copies != 0)
    return {fmt::format("{} of {} completed that did not ask for it", copies, kNops), {}};
  if (kCopy == Copy::kNone) return {{}, fmt::format("{} NOPs, none completed unasked", kNops)};
  return {{}, fmt::format("{} of {} copies used", copies, kNops)};
}

// Stores to device memory as the processor's words or bytes, as it may be mapped write-combining.
template <typename T>
void store_by(std::byte* to, std::span<const std::byte> from) {
  for (std::size_t i = 0; i + sizeof(T) <= from.size(); i += sizeof(T)) {
    T piece{};
    std::memcpy(&piece, from.data() + i, sizeof piece);
    std::atomic_ref<T>(*reinterpret_cast<T*>(to + i)).store(piece, std::memory_order_relaxed);
  }
  exec::write_combining_barrier();
}

struct LengthsWritten {
  std::string failure = {};  // ended the tries: a completion that failed, or a byte too many
  std::string wrong = {};    // the first mismatch, and all lengths with one
};

// Every length from 1 to 67, each padded to whole pieces of T; what lies behind it in the target stays.
template <typename T>
LengthsWritten write_lengths(Loopback& loopback) {
  constexpr std::uint32_t kLongest = 67;
  constexpr std::size_t kPadded = (kLongest + sizeof(T) - 1) / sizeof(T) * sizeof(T);
  const StagingHandle& memory = loopback.handle().staging;
  std::string first;
  std::vector<std::uint32_t> wrong_lengths;
  for (std::uint32_t bytes = 1; bytes <= kLongest; ++bytes) {
    std::array<std::byte, kPadded> payload{};
    fill_pattern(payload, bytes);
    std::memset(loopback.target().data(), 0, kPadded + 1);
    const std::size_t stored = (bytes + sizeof(T) - 1) / sizeof(T) * sizeof(T);
    store_by<T>(memory.base, std::span(payload).first(stored));
    WorkRequest request(WqeOpcode::kRdmaWrite);
    request.remote(address_of(loopback.target().data()), loopback.target().rkey())
        .gather(memory.nic_offset, memory.lkey, bytes);
    const std::uint16_t index = loopback.post(request);
    loopback.ring();
    if (auto failed = await(loopback, index, WqeOpcode::kRdmaWrite); !failed.empty()) return {failed};
    if (loopback.target().data()[bytes] != std::byte{0})
      return {fmt::format("of {} bytes, one more was written", bytes)};
    const std::string mismatch = first_mismatch(loopback.target().data(), bytes, bytes);
    if (mismatch.empty()) continue;
    if (wrong_lengths.empty()) first = mismatch;
    wrong_lengths.push_back(bytes);
  }
  if (wrong_lengths.empty()) return {};
  return {{}, fmt::format("{}; wrong lengths: {}", first, fmt::join(wrong_lengths, " "))};
}

Outcome words_to_device_memory(Loopback& loopback) {
  const LengthsWritten words = write_lengths<std::uint64_t>(loopback);
  return {words.failure.empty() ? words.wrong : words.failure, {}};
}

// A ConnectX takes words alone: that a byte is wrong on it is no failure.
Outcome bytes_to_device_memory(Loopback& loopback) {
  const LengthsWritten bytes = write_lengths<std::uint8_t>(loopback);
  return {bytes.failure, bytes.wrong.empty() ? "right, too" : "wrong, as on hardware: " + bytes.wrong};
}

// Two posted, and the doorbell of the newer one first; that of the older at once, or when both are complete.
template <const StepSizes& sizes>
Outcome newest_first(Loopback& loopback) {
  constexpr std::uint32_t kPairs = sizes.backward_pairs;
  constexpr std::uint32_t kPausedPairs = 100;
  for (std::uint32_t i = 0; i < kPairs; ++i) {
    fill_pattern(loopback.source().span().first(kPutBytes), i);
    const std::uint16_t older = loopback.post(pull(loopback, kPutBytes));
    const std::uint16_t newer = loopback.post(pull(loopback, kPutBytes));
    loopback.ring();
    if (i % 2 == 0) loopback.ring_for(older);
    for (const std::uint16_t index : {older, newer}) {
      const std::string wrong = await(loopback, index, WqeOpcode::kRdmaWrite);
      if (!wrong.empty()) return {fmt::format("pair {}: {}", i, wrong), {}};
    }
    if (i % 2 != 0) {
      loopback.ring_for(older);
      // A software HCA reads its registers by turns, and may miss this doorbell before the next pair's.
      if (i < kPausedPairs) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (auto wrong = first_mismatch(loopback.target().data(), kPutBytes, i); !wrong.empty())
      return {wrong, {}};
  }
  return {{}, fmt::format("{} pairs", kPairs)};
}

// Memory of the host or of the GPU, to which messages come. The driver's copies read the GPU's.
struct Place {
  std::optional<GpuMemory> on_gpu;  // freed after its registration
  Memory memory;

  [[nodiscard]] Result<void> read(std::span<std::byte> to) const {
    if (on_gpu) return on_gpu->read(0, to);
    std::memcpy(to.data(), memory.data(), to.size());
    return {};
  }
  [[nodiscard]] Result<std::uint64_t> read_signal() const {
    auto& word = *reinterpret_cast<std::uint64_t*>(memory.data());
    if (!on_gpu) return std::atomic_ref(word).load(std::memory_order_acquire);
    std::uint64_t value = 0;
    GDX_TRY(on_gpu->read(0, std::as_writable_bytes(std::span(&value, 1))));
    return value;
  }
};

// `gpu`: null for memory of the host.
Result<Place> make_place(const Hca& hca, const Gpu* gpu) {
  if (gpu == nullptr) {
    auto memory = GDX_TRY(allocate_memory(hca, kPutBytes));
    return Place{std::nullopt, std::move(memory)};
  }
  auto on_gpu = GDX_TRY(GpuMemory::allocate(*gpu, kGpuPageBytes));
  GDX_TRY(on_gpu.write(0, std::array<std::byte, kPutBytes>{}));
  auto memory = GDX_TRY(register_memory(hca, on_gpu.address(), on_gpu.bytes()));
  return Place{std::move(on_gpu), std::move(memory)};
}

// One message: payload by a pull, then a signal of its number. Returns the index of the signal's WQE.
std::uint16_t send_message(Loopback& loopback, const Place& payload, const Place& signal,
                           const std::uint64_t& number) {
  const RemoteMemory to = payload.memory.remote();
  WorkRequest put(WqeOpcode::kRdmaWrite);
  loopback.post(put.remote(to.address, payload.memory.rkey())
                    .gather(address_of(loopback.source().data()), loopback.source().lkey(), kPutBytes));
  WorkRequest set(WqeOpcode::kRdmaWrite);
  const std::uint16_t last = loopback.post(set.remote(signal.memory.remote().address, signal.memory.rkey())
                                               .inlined(std::as_bytes(std::span(&number, 1))));
  loopback.ring();
  return last;
}

// A kernel that reads the signal reads the payload too.
Outcome payload_before_signal(Loopback& loopback, const Place& payload, const Place& signal,
                              std::uint64_t messages) {
  std::uint64_t stale = 0;
  std::string first;
  for (std::uint64_t i = 1; i <= messages; ++i) {
    const auto seed = static_cast<std::uint32_t>(i);
    fill_pattern(loopback.source().span().first(kPutBytes), seed);
    const std::uint16_t last = send_message(loopback, payload, signal, i);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(Loopback::kWaitS);
    auto seen = signal.read_signal();
    while (seen && *seen != i && std::chrono::steady_clock::now() < deadline) seen = signal.read_signal();
    if (!seen) return {seen.error().message, {}};
    std::array<std::byte, kPutBytes> got{};
    if (const auto read = payload.read(got); !read) return {read.error().message, {}};
    const std::string wrong = first_mismatch(got.data(), kPutBytes, seed);
    if (*seen == i && !wrong.empty() && stale++ == 0) first = wrong;
    for (const auto index : {static_cast<std::uint16_t>(last - 1), last}) {
      if (auto failed = await(loopback, index, WqeOpcode::kRdmaWrite); !failed.empty())
        return {*seen == i ? failed : fmt::format("signal {} never came: {}", i, failed), {}};
    }
    if (*seen != i) return {fmt::format("signal {} never came, and both WRITEs completed", i), {}};
  }
  if (stale != 0) return {fmt::format("{} of {} messages stale; the first: {}", stale, messages, first), {}};
  return {{}, fmt::format("{} messages, 0 stale", messages)};
}

struct Placements {
  const char* name;
  bool payload_on_gpu;
  bool signal_on_gpu;
};

Outcome see_placement(Loopback& loopback, const Hca& hca, const Gpu* gpu, const Placements& where,
                      const StepSizes& sizes) {
  const auto payload = make_place(hca, where.payload_on_gpu ? gpu : nullptr);
  if (!payload) return {payload.error().message, {}};
  const auto signal = make_place(hca, where.signal_on_gpu ? gpu : nullptr);
  if (!signal) return {signal.error().message, {}};
  const bool on_gpu = where.payload_on_gpu || where.signal_on_gpu;
  return payload_before_signal(loopback, *payload, *signal, on_gpu ? sizes.copied : sizes.messages);
}

// For a step of a GPU: what the processor finds in its place is a failure, or says nothing of it.
StepResult without_gpu(StepResult result) {
  if (result.verdict != Verdict::kOk) return result;
  result.verdict = Verdict::kUnknown;
  result.value =
      fmt::format("by the processor as it should be: {}; not tried by kernels on a GPU", result.value);
  return result;
}

}  // namespace

std::string put_once(Loopback& loopback) { return put(loopback, 1); }

StepResult without_staging(const Error& error) {
  if (error.status == Status::kNoMemory) return {Verdict::kUnknown, "held by others: " + error.message};
  return {Verdict::kFail, error.message};
}

StepResult ring_backwards(Bench& bench) {
  const Part part{"newest first", is_short(bench) ? newest_first<kShortSizes> : newest_first<kFullSizes>};
  return without_gpu(run_parts(*bench.hca, std::span(&part, 1), kBlocks));
}

StepResult see_messages(Bench& bench) {
  static constexpr Placements kPlacements[] = {{"payload host, signal host", false, false},
                                               {"payload GPU, signal GPU", true, true},
                                               {"payload GPU, signal host", true, false},
                                               {"payload host, signal GPU", false, true}};
  const auto opened = Gpu::open();
  // Step 10 judges the HCA's way to the GPU. Here memory that it refuses is left untried.
  const auto reached = opened ? make_place(*bench.hca, &*opened) : Result<Place>(fail(Status::kNoDevice, ""));
  const Gpu* const gpu = reached ? &*opened : nullptr;
  const StepSizes& sizes = is_short(bench) ? kShortSizes : kFullSizes;
  std::vector<Part> parts;
  for (const Placements& where : kPlacements) {
    if (gpu == nullptr && (where.payload_on_gpu || where.signal_on_gpu)) continue;
    parts.push_back({where.name, [&bench, gpu, &where, &sizes](Loopback& loopback) {
                       return see_placement(loopback, *bench.hca, gpu, where, sizes);
                     }});
  }
  StepResult result = without_gpu(run_parts(*bench.hca, parts, kBlocks));
  if (opened && !reached) result.facts.emplace_back("GPU memory", "not tried: " + reached.error().message);
  return result;
}

StepResult put_by_loopback(Bench& bench) {
  const Part parts[] = {
      Part{"pull of 64 B", pull_once},
      Part{"3 laps of the ring", three_laps},
      Part{"4 blocks inline across the ring's end", inline_across_end},
      Part{"signal add", add_to_signal},
      Part{"probe of no bytes", probe_of_no_bytes},
      Part{"bad rkey", bad_rkey},
  };
  return run_parts(*bench.hca, parts, kBlocks);
}

StepResult probe_blueflame(Bench& bench) {
  const Part parts[] = {
      Part{"plain", ring_nops<Copy::kNone>},
      Part{"8 x 8 B", ring_nops<Copy::kEightBytes>},
#ifdef __SSE2__
      Part{"4 x 16 B", ring_nops<Copy::kSixteenBytes>},
#endif
  };
  constexpr std::uint32_t kNopBlocks = 256;  // more than all of a part
  {
    const auto looked_at =
        Loopback::open(*bench.hca, kBlocks, nullptr, Sharing::kExclusive, DoorbellKind::kBlueFlame);
    if (looked_at && looked_at->handle().blueflame_half_bytes == 0)
      return {Verdict::kUnknown, "the HCA gave no BlueFlame register"};
  }
  StepResult result = run_parts(*bench.hca, parts, kNopBlocks, nullptr, DoorbellKind::kBlueFlame);
#ifndef __SSE2__
  result.facts.emplace_back("4 x 16 B", "not tried here: the processor has no SSE2");
#endif
  return result;
}

StepResult write_from_device_memory(Bench& bench) {
  if (bench.hca->device_memory_bytes() == 0)
    return {Verdict::kUnknown, "the HCA has no device memory", "use another mode than push"};
  auto pool = StagingPool::create(*bench.hca);
  if (!pool) return without_staging(pool.error());
  const Part parts[] = {
      Part{"words in, 1 to 67 B out", words_to_device_memory},
      Part{"bytes in", bytes_to_device_memory},
  };
  return run_parts(*bench.hca, parts, kBlocks, &*pool);
}

}  // namespace gdx::doctor
