// Spans of host work that a profiler shows by name (NVTX: Nsight Systems, CUPTI). Without NVTX headers at
// build time they do nothing. Without a profiler they cost a call and a test of a null pointer. Threads: any;
// a span ends on the thread that began it.
#pragma once

namespace gdx {

class TraceSpan {
 public:
  // `name` need not outlive the call.
  explicit TraceSpan(const char* name);
  ~TraceSpan();
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

  // Returns whether this build has spans.
  [[nodiscard]] static bool compiled_in();
};

}  // namespace gdx
