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
#include "host/programs/doctor/bring_up.h"
#include "host/programs/doctor/loopback.h"
#include "host/staging/progress.h"

namespace gdx::doctor {
namespace {

using mlx5::Syndrome;
using mlx5::WqeOpcode;

constexpr std::uint32_t kBlocks = 16;

// The result of one part of a step: `failure` is empty where the HCA did as it should.
struct Outcome {
  std::string failure;
  std::string value;
  bool deviates = false;  // as of PartResults::add()
};
struct Part {
  const char* name;
  std::function<Outcome(Loopback&)> run;
};

// Each on an endpoint of its own, since errors end one. All are tried, whatever comes of those before.
StepResult run_parts(const Hca& hca, std::span<const Part> parts, std::uint32_t blocks,
                     StagingPool* pool = nullptr, DoorbellKind doorbell = DoorbellKind::kPlain) {
  PartResults results;
  for (const Part& part : parts) {
    auto loopback = Loopback::open(hca, {.blocks = blocks, .pools = pool, .doorbell = doorbell});
    const Outcome outcome = loopback ? part.run(*loopback) : Outcome{loopback.error().message, {}};
    results.add(part.name, outcome.failure, outcome.value, outcome.deviates);
    if (!outcome.failure.empty() && loopback)
      results.add_evidence(part.name, loopback->newest_entry(), loopback->endpoint());
  }
  return results.result();
}

// The next completion is that of the WQE at `index`, of this opcode and syndrome; else what it is instead.
std::string await(Loopback& loopback, std::uint16_t index, WqeOpcode opcode,
                  Syndrome wanted = Syndrome::kNone) {
  const auto completed = loopback.poll();
  if (!completed) return fmt::format("no completion of WQE {} in {} s", index, kWaitS);
  const auto kind =
      wanted == Syndrome::kNone ? mlx5::CqeOpcode::kRequester : mlx5::CqeOpcode::kRequesterError;
  const bool right = completed->opcode() == kind && completed->wqe_counter() == index &&
                     completed->qpn() == loopback.handle().qpn && completed->syndrome() == wanted &&
                     (wanted != Syndrome::kNone || completed->send_opcode() == opcode);
  if (right) return {};
  return describe_wrong(*completed, index, opcode, loopback.handle().qpn, wanted);
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
    if (!completed) return {fmt::format("no completion of the last NOP in {} s", kWaitS), {}};
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
  if (bytes.wrong.empty()) return {bytes.failure, "right, too"};
  return {bytes.failure, "wrong, as on hardware: " + bytes.wrong, true};
}

}  // namespace

std::string put_once(Loopback& loopback) { return put(loopback, 1); }

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
        Loopback::open(*bench.hca, {.blocks = kBlocks, .doorbell = DoorbellKind::kBlueFlame});
    if (looked_at && looked_at->handle().blueflame_half_bytes == 0)
      return {Verdict::kUnknown, "the HCA gave no BlueFlame register"};
  }
  StepResult result = run_parts(*bench.hca, parts, kNopBlocks, nullptr, DoorbellKind::kBlueFlame);
#ifndef __SSE2__
  result.facts.push_back({"4 x 16 B", "not tried here: the processor has no SSE2"});
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
