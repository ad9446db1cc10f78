// The past of an endpoint's queue pair. It comes from a file of the software HCA's recorder, or from what
// memory still holds on hardware.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/flight_recorder.h"
#include "base/result.h"
#include "host/queue/queue_memory.h"

namespace gdx {

// Reads the recorder of a queue pair. `device_path`: of the HCA in sysfs. Errors: kNotFound (hardware has
// none), kSystem; those of parse_flight.
[[nodiscard]] Result<FlightRecord> read_flight_file(const std::string& device_path, std::uint32_t qpn);

// Makes a record of what memory holds: the doorbell record, the newest WQEs, the completions that were taken
// last or not yet, and the fault. Memory tells no times, so all have that of the call. A WQE's fetch says
// only that it was posted. Errors: kUnsupported (a queue in another process's GPU memory); those of
// GpuMemory::read.
[[nodiscard]] Result<FlightRecord> read_rings(const QueueMemory& memory, std::uint32_t blocks);

// Text of one event for readers, without its time and name: "WQE 5: RDMA WRITE of 64 B".
[[nodiscard]] const char* event_name(const FlightEvent& event);
[[nodiscard]] std::string event_text(const FlightEvent& event);
// Text of all events, a line each, with times in seconds.
[[nodiscard]] std::string flight_text(const FlightRecord& record);
// Text for the log of a fault: the newest 16 events up to the first failure, or why there are none. Without a
// failure it is of the newest.
[[nodiscard]] std::string fault_text(const Result<FlightRecord>& record);

}  // namespace gdx
