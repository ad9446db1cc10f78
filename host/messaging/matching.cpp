#include "host/messaging/matching.h"

#include <fmt/format.h>

#include <algorithm>

namespace gdx::messaging {

Result<void> SendMatcher::on_announcement(const Announcement& announcement) {
  const bool possible = announcement.group == groups_ && announcement.parts != 0 &&
                        announcement.parts <= kMostParts && receives_.size() < kMostSends;
  if (!possible) {
    return fail(Status::kRemoteInvalid,
                fmt::format("the peer announced group {} of {} receives where group {} was due",
                            announcement.group, announcement.parts, groups_));
  }
  for (std::uint32_t i = 0; i < announcement.parts; ++i)
    receives_.push_back({{announcement.group, i}, announcement.part[i]});
  ++groups_;
  return {};
}

Result<std::uint64_t> SendMatcher::post(std::int32_t tag, std::uint64_t bytes) {
  if (bytes > kMostBytes)
    return fail(Status::kInvalidLength, fmt::format("a send of {} B: at most {} B", bytes, kMostBytes));
  if (sends_.size() == kMostSends)
    return fail(Status::kBusy, fmt::format("{} sends wait for a receive of the peer", kMostSends));
  sends_.push_back({numbers_, tag, bytes});
  return numbers_++;
}

std::optional<SendMatcher::Match> SendMatcher::next_match() {
  for (auto send = sends_.begin(); send != sends_.end(); ++send) {
    const auto found =
        std::ranges::find_if(receives_, [&](const Receive& one) { return one.part.tag == send->tag; });
    if (found == receives_.end()) continue;
    Match match{send->number, found->place, found->part, send->bytes <= found->part.bytes};
    if (match.fits) match.receive.bytes = send->bytes;
    receives_.erase(found);
    sends_.erase(send);
    return match;
  }
  return std::nullopt;
}

Result<Announcement> ReceiveMatcher::post(std::span<const Part> parts) {
  if (parts.empty() || parts.size() > kMostParts)
    return fail(Status::kInvalidArgument,
                fmt::format("a group of {} receives: 1 to {} go together", parts.size(), kMostParts));
  if (std::ranges::any_of(parts, [](const Part& part) { return part.bytes > kMostBytes; }))
    return fail(Status::kInvalidLength, fmt::format("a receive has at most {} B", kMostBytes));
  Group& group = of(groups_);
  if (group.open) return fail(Status::kBusy, fmt::format("{} groups of receives are open", kMostGroups));
  group = {};
  group.open = true;
  group.missing = static_cast<std::uint32_t>(parts.size());
  group.announcement.group = groups_++;
  group.announcement.parts = group.missing;
  std::ranges::copy(parts, group.announcement.part.begin());
  return group.announcement;
}

Result<bool> ReceiveMatcher::on_word(const PartPlace& place, std::uint64_t word) {
  Group& group = of(place.group);
  const std::uint32_t bit = 1u << place.part;
  if ((group.marked & bit) != 0) return true;
  if (word >> kArrivalShift != pack_arrival(place.group, 0) >> kArrivalShift) return false;
  const Part& part = group.announcement.part[place.part];
  const std::uint64_t bytes = word & kTooLong;
  if (bytes == kTooLong && !group.refusal) {
    group.refusal =
        Error{Status::kInvalidLength,
              fmt::format("the peer's send to tag {} is longer than its receive of {} B: make both equal",
                          part.tag, part.bytes)};
  }
  if (bytes != kTooLong && bytes > part.bytes) {
    return fail(Status::kRemoteInvalid, fmt::format("the peer tells {} B for tag {}, a receive of {} B",
                                                    bytes, part.tag, part.bytes));
  }
  group.bytes[place.part] = bytes == kTooLong ? 0 : bytes;
  group.marked |= bit;
  --group.missing;
  ++arrived_;
  return true;
}

std::span<const std::uint64_t> ReceiveMatcher::complete(std::uint64_t number) const {
  const Group& group = of(number);
  if (!is_open(number) || group.missing != 0) return {};
  return std::span(group.bytes).first(group.announcement.parts);
}

bool ReceiveMatcher::need(std::uint64_t key, std::uint64_t address, std::uint64_t bytes) const {
  const auto needs = [&](const Group& group) {
    for (std::uint32_t place = 0; group.open && place < group.announcement.parts; ++place) {
      const Part& part = group.announcement.part[place];
      const bool is_there = part.bytes != 0 && part.key == key && part.address - address < bytes;
      if (is_there && (group.marked & 1u << place) == 0) return true;
    }
    return false;
  };
  return std::ranges::any_of(open_, needs);
}

void ReceiveMatcher::retire(std::uint64_t group) {
  if (is_open(group)) of(group).open = false;
}

bool ReceiveMatcher::is_open(std::uint64_t group) const {
  return of(group).open && of(group).announcement.group == group;
}

}  // namespace gdx::messaging
