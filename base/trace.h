// Spans of host work that a profiler shows by name (NVTX: Nsight Systems, CUPTI). Where the build found no
// NVTX headers they are nothing; where no profiler listens they cost a call and a test of a null pointer.
// Threads: any; a span ends on the thread that began it.
#pragma once

namespace gdx {

class TraceSpan {
 public:
  // `name` need not outlive the call.
  explicit TraceSpan(const char* name);
  ~TraceSpan();
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

  // Can this build's spans be seen at all?
  [[nodiscard]] static bool compiled_in();
};

}  // namespace gdx
