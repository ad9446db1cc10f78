// Streams of the CPU layer. Each has a host thread of its own, which runs its launches in their order.
//
// Forward progress: launches of different streams never wait for each other's threads. A kernel that waits
// lets the software HCA run and yields its core, so kernels of more streams than cores may wait for each
// other. Events cannot close a circle: a wait names a record that was made before it.
//
// A process that was forked from the stream's has none of that thread: there all calls on it but
// destroy_stream are kInvalidArgument, with a line on stderr.
#pragma once

#include <functional>

#include "proto/status.h"

namespace gdx::exec {

class CpuStream;
class CpuEvent;
using Stream = CpuStream*;
using Event = CpuEvent*;

// Makes a stream with a thread of its own. Errors: kSystem without such a thread.
[[nodiscard]] Status create_stream(Stream* stream);
// Runs what was launched on the stream to its end, and ends the stream. A failure that nobody asked for goes
// to stderr. Null: nothing.
void destroy_stream(Stream stream);
// Says on stderr that a launch names what belongs to the process from which this one was forked. Returns
// kInvalidArgument.
Status refuse_in_child();
// Appends one launch. After a failed one it does not run, until synchronize() has told the failure. Errors:
// kInvalidArgument without a stream.
[[nodiscard]] Status enqueue(Stream stream, std::function<Status()> work);
// Waits until all that was launched on the stream before has ended. What it stored is then visible to this
// thread. Returns the first failure since the last call, and forgets it. Errors: those of the launches;
// kInvalidArgument without a stream. Threads: any but the stream's own.
[[nodiscard]] Status synchronize(Stream stream);
// Returns kPending while a launch of the stream has not ended, else kOk. It forgets no failure.
[[nodiscard]] Status query(Stream stream);

// Makes an event, a point in the order of a stream. Errors: none on this layer.
[[nodiscard]] Status create_event(Event* event);
void destroy_event(Event event);  // waits that were enqueued before go on
// Marks the end of what was launched on the stream before, also where that fails. A later record replaces an
// earlier one for later waits alone. Errors: kInvalidArgument for null.
[[nodiscard]] Status record(Event event, Stream stream);
// Lets later launches of the stream wait for the event's newest record; without one for nothing. Errors:
// kInvalidArgument for null.
[[nodiscard]] Status wait_for(Stream stream, Event event);
// Waits for the event's newest record on this thread, as synchronize(stream) does; without one for nothing.
// Errors: kInvalidArgument for null.
[[nodiscard]] Status synchronize(Event event);

}  // namespace gdx::exec
