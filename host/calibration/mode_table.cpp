#include "host/calibration/mode_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/size_text.h"

namespace gdx {
namespace {

constexpr std::uint64_t kShortInlineBytes = 28;  // in a work request of one block, which BlueFlame carries
constexpr std::uint64_t kOneSlotBytes = 4096;
// Modelled, queues in host memory, one message: where a push ends to be faster than a pull (under a switch)
// or a bounce (across a root complex).
constexpr std::uint64_t kModelledPushBytes = 16 * 1024;
// Modelled, queues in GPU memory: where pulling ends to be faster than bouncing across one root complex, and
// between several. Under a switch it never does.
constexpr std::uint64_t kModelledPullBytes = 8 * 1024;
constexpr std::uint64_t kModelledFarPullBytes = 4 * 1024;

tl::unexpected<Error> refuse(std::string why) { return fail(Status::kInvalidArgument, std::move(why)); }

constexpr ModeTable kUnknownPath{kShortInlineBytes, kOneSlotBytes, kNoSizeLimit};

// Returns the longest inline message. BlueFlame carries short ones only, which saves them the reads that all
// others cost. By plain doorbells every mode costs these reads, so inline saves the payload's at any length.
// A push saves that too, and where all pay for system scope it costs less than data in several blocks.
std::uint64_t inline_limit(Placement queues, ModeMeans means, DoorbellKind doorbell) {
  const bool pushes = queues == Placement::kHost && means.push;
  return doorbell == DoorbellKind::kBlueFlame || pushes ? kShortInlineBytes : kMaxAutoInlineBytes;
}

// Every put pays for a fence of system scope, so modes that save reads win. Reads of a peer across a root
// complex are slow, so payload is stored there if that is possible.
ModeTable with_queues_in_host_memory(PathClass path, ModeMeans means, std::uint64_t inline_bytes) {
  if (!crosses_root_complex(path)) return {inline_bytes, kModelledPushBytes, kNoSizeLimit};
  if (means.bounce) return {inline_bytes, kModelledPushBytes, kModelledPushBytes};
  return {inline_bytes, kNoSizeLimit, kNoSizeLimit};
}

// A pull needs only a fence of GPU scope, which costs less than the read of a short payload.
ModeTable with_queues_in_gpu_memory(PathClass path, ModeMeans means, std::uint64_t inline_bytes) {
  if (!crosses_root_complex(path)) return {inline_bytes, inline_bytes, kNoSizeLimit};
  const bool near = path == PathClass::kPhb;
  if (means.bounce) return {inline_bytes, inline_bytes, near ? kModelledPullBytes : kModelledFarPullBytes};
  // A table has no push above a pull, and these cost less from end to end.
  if (near) return {inline_bytes, inline_bytes, kNoSizeLimit};
  return {inline_bytes, kNoSizeLimit, kNoSizeLimit};
}

std::string limit_text(std::uint64_t bytes) {
  return bytes == kNoSizeLimit ? "any size" : fmt::format("{} B", bytes);
}

}  // namespace

Result<void> check_mode_table(const ModeTable& table, ModeMeans means) {
  if (table.inline_bytes > kMaxAutoInlineBytes) {
    return refuse(fmt::format("mode table: inline up to {} does not fit a work request: use at most {} B",
                              limit_text(table.inline_bytes), kMaxAutoInlineBytes));
  }
  if (table.push_bytes < table.inline_bytes) {
    return refuse(
        fmt::format("mode table: push up to {} ends below inline up to {}: use at least that, which is none",
                    limit_text(table.push_bytes), limit_text(table.inline_bytes)));
  }
  if (table.pull_bytes < table.push_bytes) {
    return refuse(
        fmt::format("mode table: pull up to {} ends below push up to {}: use at least that, which is none",
                    limit_text(table.pull_bytes), limit_text(table.push_bytes)));
  }
  if (table.push_bytes != table.inline_bytes && !means.push) {
    return refuse(
        fmt::format("mode table: push up to {}, but the endpoint has no slots of the NIC's memory: give it "
                    "some, or use the {} of inline",
                    limit_text(table.push_bytes), limit_text(table.inline_bytes)));
  }
  if (table.pull_bytes != kNoSizeLimit && !means.bounce) {
    return refuse(
        fmt::format("mode table: pull up to {} leaves larger messages to bounce, but the endpoint has no "
                    "slots of host memory: give it some, or pull without a limit",
                    limit_text(table.pull_bytes)));
  }
  return {};
}

ModeTable default_mode_table(std::optional<PathClass> path, Placement queues, ModeMeans means,
                             DoorbellKind doorbell) {
  const std::uint64_t inline_bytes = inline_limit(queues, means, doorbell);
  const ModeTable table = !path ? kUnknownPath
                          : queues == Placement::kGpu
                              ? with_queues_in_gpu_memory(*path, means, inline_bytes)
                              : with_queues_in_host_memory(*path, means, inline_bytes);
  return with_pull_for_missing(table, means);
}

ModeTable with_pull_for_missing(const ModeTable& table, ModeMeans means) {
  ModeTable possible = table;
  if (!means.bounce) possible.pull_bytes = kNoSizeLimit;
  if (!means.push) {
    // Bounces sizes that would be pushed, together with the larger ones, if no size is pulled.
    if (table.pull_bytes == table.push_bytes && means.bounce) possible.pull_bytes = table.inline_bytes;
    possible.push_bytes = table.inline_bytes;
  }
  return possible;
}

std::string describe(const ModeTable& table) {
  std::string text;
  std::uint64_t below = 0;
  const auto add = [&](const char* mode, std::uint64_t limit) {
    if (limit == below) return;
    text += text.empty() ? "" : ", ";
    text += limit == kNoSizeLimit ? fmt::format("{}{}", below == 0 ? "always " : "then ", mode)
                                  : fmt::format("{} up to {}", mode, size_text(limit));
    below = limit;
  };
  add("inline", table.inline_bytes);
  add("push", table.push_bytes);
  add("pull", table.pull_bytes);
  add("bounce", kNoSizeLimit);
  return text;
}

}  // namespace gdx
