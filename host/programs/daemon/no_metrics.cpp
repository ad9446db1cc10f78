// Takes the place of metrics.cpp where prometheus-cpp is missing.
#include "host/programs/daemon/metrics.h"

namespace gdx::daemon {

Result<std::unique_ptr<Metrics>> Metrics::serve(const MetricsAddress&, std::function<std::string()>,
                                                std::function<bool(uid_t)>) {
  return fail(Status::kUnsupported,
              "--metrics: this gdxd was built without prometheus-cpp: build it where prometheus-cpp-dev is "
              "installed, or leave metrics out");
}

}  // namespace gdx::daemon
