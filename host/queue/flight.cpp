#include "host/queue/flight.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <span>
#include <sstream>
#include <vector>

#include "base/clock.h"
#include "host/queue/wqe_text.h"
#include "proto/mlx5/doorbell.h"

namespace gdx {
namespace {

constexpr std::uint32_t kEntriesRead = 32;  // entries read of each ring
constexpr std::size_t kLoggedEvents = 16;   // newest events that the log shows of a fault

template <std::size_t Count>
const char* name_in(const char* const (&names)[Count], std::size_t number) {
  return number < Count ? names[number] : "unknown";
}

const char* state_name(std::uint8_t state) {
  static constexpr const char* kNames[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERROR"};
  return name_in(kNames, state);
}
const char* cause_name(std::uint8_t cause) {
  static constexpr const char* kNames[] = {"NAK", "a response was lost", "ACK timeout",
                                           "the peer has no receive", "no answer to the newest packets"};
  return name_in(kNames, cause);
}
const char* pool_name(std::uint8_t pool) {
  static constexpr const char* kNames[] = {"NIC memory", "host memory"};
  return name_in(kNames, pool);
}

// A block that begins no WQE has another index in its place, or data. `first`: index of the first block.
void append_wqes(const std::vector<mlx5::WqeBasicBlock>& blocks, std::uint16_t first, FlightRecord& record) {
  std::uint16_t index = first;
  for (const mlx5::WqeBasicBlock& block : blocks) {
    const mlx5::PutWqe wqe = read_wqe(block);
    if (mlx5::wqe_index(wqe.control) == index && mlx5::wqe_segments(wqe.control) != 0)
      record.events.push_back({.kind = FlightKind::kFetch,
                               .code = static_cast<std::uint8_t>(mlx5::wqe_opcode(wqe.control)),
                               .wqe = index,
                               .bytes = std::uint32_t{wqe.data.byte_count} & ~mlx5::kInlineFlag});
    ++index;
  }
}

FlightEvent event_of(const mlx5::Cqe64& cqe) {
  const bool failed = mlx5::is_requester_error(cqe.op_own);
  return {.kind = FlightKind::kCompletion,
          .code = failed ? std::bit_cast<mlx5::ErrorCqe>(cqe).syndrome : std::uint8_t{0},
          .wqe = cqe.wqe_counter,
          .bytes = failed ? 0 : std::uint32_t{cqe.byte_count}};
}

// Flushed WQEs tell nothing. `position`: cumulative index of the first entry.
void append_completions(const std::vector<mlx5::Cqe64>& entries, std::uint32_t position,
                        std::uint32_t ring_entries, FlightRecord& record) {
  for (const mlx5::Cqe64& cqe : entries) {
    const bool written = mlx5::is_written(cqe.op_own, position++, ring_entries);
    const FlightEvent event = event_of(cqe);
    if (written && event.code != static_cast<std::uint8_t>(mlx5::Syndrome::kFlushed))
      record.events.push_back(event);
  }
}

bool is_failure(const FlightEvent& event) {
  const bool ends = event.kind == FlightKind::kCompletion || event.kind == FlightKind::kRetirement;
  return ends && event.code != 0 && event.code != static_cast<std::uint8_t>(mlx5::Syndrome::kFlushed);
}

std::string text_of(std::span<const FlightEvent> events) {
  constexpr std::uint64_t kSecondNs = 1'000'000'000;
  std::string text;
  for (const FlightEvent& event : events)
    fmt::format_to(std::back_inserter(text), "{:>10}.{:09} {:<9} {}\n", event.time_ns / kSecondNs,
                   event.time_ns % kSecondNs, event_name(event), event_text(event));
  return text;
}

}  // namespace

Result<FlightRecord> read_flight_file(const std::string& device_path, std::uint32_t qpn) {
  const std::string path = fmt::format("{}/softhca_flight/{:#x}", device_path, qpn);
  std::ifstream file(path);
  if (!file) {
    const int error = errno;
    return fail(
        error == ENOENT ? Status::kNotFound : Status::kSystem,
        fmt::format("cannot read the events of QP {:#x} from {}: {}", qpn, path, std::strerror(error)));
  }
  std::ostringstream text;
  text << file.rdbuf();
  return parse_flight(text.str());
}

// After a fault the WQEs end with the one that failed, and the fault tells its completion: those behind it
// may be more than are read.
Result<FlightRecord> read_rings(const QueueMemory& memory, std::uint32_t blocks) {
  FlightRecord record;
  record.source = "rings";
  const std::uint16_t posted = GDX_TRY(memory.load_send_record());
  const QueueState state = GDX_TRY(memory.load_state());
  const bool failed = state.fault.syndrome != 0;
  const std::uint32_t count = std::min(kEntriesRead, blocks);
  const std::uint32_t first_block = (failed ? state.fault.wqe_counter + 1u : posted) - count;
  const bool shared = state.handle.sharing == Sharing::kShared;
  const std::uint32_t first_entry = (shared ? state.shared.completed : state.cq_consumer) - count / 2;
  const auto newest = GDX_TRY(memory.load_blocks(blocks, first_block, count));
  const auto entries = GDX_TRY(memory.load_completions(blocks, first_entry, count));
  record.events.reserve(std::size_t{2} * count + 2);
  record.events.push_back({.kind = FlightKind::kDoorbell, .wqe = posted});
  append_wqes(newest, static_cast<std::uint16_t>(first_block), record);
  append_completions(entries, first_entry, blocks, record);
  if (failed) {
    std::erase_if(record.events, is_failure);
    record.events.push_back(
        {.kind = FlightKind::kCompletion, .code = state.fault.syndrome, .wqe = state.fault.wqe_counter});
  }
  for (FlightEvent& event : record.events) event.time_ns = monotonic_ns();
  return record;
}

const char* event_name(const FlightEvent& event) {
  return kFlightKindNames[static_cast<std::size_t>(event.kind)];
}

std::string event_text(const FlightEvent& event) {
  switch (event.kind) {
    case FlightKind::kState: return state_name(event.code);
    case FlightKind::kDoorbell:
      return fmt::format("up to WQE {}{}", event.wqe,
                         event.word != 0 ? fmt::format(", {} new", event.word) : "");
    case FlightKind::kFetch:
      return fmt::format("WQE {}: {} of {} B{}", event.wqe,
                         opcode_name(static_cast<mlx5::WqeOpcode>(event.code)), event.bytes,
                         event.word != 0 ? ", with its doorbell" : "");
    case FlightKind::kSend:
      return fmt::format("WQE {}: first packet, {} B, PSN {:#x}", event.wqe, event.bytes, event.word);
    case FlightKind::kResend: return fmt::format("from PSN {:#x}: {}", event.word, cause_name(event.code));
    case FlightKind::kCompletion:
    case FlightKind::kRetirement:
      if (event.code == 0) return fmt::format("WQE {}", event.wqe);
      return fmt::format("WQE {}: syndrome {:#04x} ({})", event.wqe, event.code,
                         mlx5::syndrome_name(static_cast<mlx5::Syndrome>(event.code)));
    case FlightKind::kFlush: return fmt::format("{} WQEs flushed, up to WQE {}", event.word, event.wqe);
    case FlightKind::kGrant:
    case FlightKind::kReturn: return fmt::format("slot {} of {}", event.word, pool_name(event.code));
    case FlightKind::kLimit: return fmt::format("{} slots of {}", event.word, pool_name(event.code));
  }
  return {};
}

std::string flight_text(const FlightRecord& record) { return text_of(record.events); }

std::string fault_text(const Result<FlightRecord>& record) {
  if (!record) return record.error().message;
  const std::span<const FlightEvent> events = record->events;
  const auto failure = std::ranges::find_if(events, is_failure);
  const auto end = static_cast<std::size_t>(failure - events.begin()) + (failure != events.end() ? 1 : 0);
  return text_of(events.first(end).last(std::min(kLoggedEvents, end)));
}

}  // namespace gdx
