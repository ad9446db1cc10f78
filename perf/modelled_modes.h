// Modelled times of each mode and size, in the form from which calibrations choose among modes.
#pragma once

#include <vector>

#include "host/calibration/mode_table.h"
#include "host/calibration/thresholds.h"
#include "proto/doorbell_kind.h"
#include "proto/gpu/queue.h"
#include "proto/path_class.h"

namespace gdx::perf {

inline constexpr ModeMeans kAllMeans[] = {{true, true}, {true, false}, {false, true}, {false, false}};
inline constexpr Placement kPlacements[] = {Placement::kHost, Placement::kGpu};
inline constexpr DoorbellKind kDoorbells[] = {DoorbellKind::kPlain, DoorbellKind::kBlueFlame};

// Put and completion of one message. By BlueFlame that is the "completed" column of
// papers/push-vs-pull/PATH.txt (queues in GPU memory) and PATH-host.txt, at its sizes.
[[nodiscard]] std::vector<MeasuredSize> modelled_sizes(PathClass path, Placement queues, ModeMeans means,
                                                       DoorbellKind doorbell);

// Returns the cost of `table` beyond `best` over all sizes: the sum of log(time by one / time by the other).
[[nodiscard]] double excess_over(const ModeTable& best, const ModeTable& table,
                                 const std::vector<MeasuredSize>& sizes);

}  // namespace gdx::perf
