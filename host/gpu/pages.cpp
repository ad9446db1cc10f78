#include "host/gpu/pages.h"

#include <fmt/format.h>

#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

namespace gdx {
namespace {

struct Area {
  std::uintptr_t first;
  std::uintptr_t end;
};

// "7ffff7fc1000-7ffff7fc5000 r--p 00000000 00:00 0   [vvar]"; none for the lines that describe an area.
std::optional<Area> parse_area(const std::string& line) {
  Area area{};
  const char* const text_end = line.data() + line.size();
  const auto low = std::from_chars(line.data(), text_end, area.first, 16);
  if (low.ec != std::errc{} || low.ptr == text_end || *low.ptr != '-') return std::nullopt;
  const auto high = std::from_chars(low.ptr + 1, text_end, area.end, 16);
  if (high.ec != std::errc{} || high.ptr == text_end || *high.ptr != ' ') return std::nullopt;
  return area;
}

std::optional<PageKind> parse_flags(const std::string& line) {
  if (!line.starts_with("VmFlags:")) return std::nullopt;
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    if (word == "io" || word == "pf") return PageKind::kDevice;
  }
  return PageKind::kOrdinary;
}

}  // namespace

Result<PageKind> parse_page_kind(std::istream& smaps, std::uintptr_t first, std::size_t bytes) {
  const auto range = [&] { return fmt::format("{} bytes at {:#x}", bytes, first); };
  std::optional<PageKind> kind;
  std::optional<Area> area;      // that holds the first byte not yet looked at
  std::uintptr_t known = first;  // up to here
  std::string line;
  while (known - first < bytes && std::getline(smaps, line)) {
    if (const auto begun = parse_area(line)) {
      area = begun->first <= known && known < begun->end ? begun : std::nullopt;
    } else if (const auto flags = area ? parse_flags(line) : std::nullopt) {
      if (kind && *kind != *flags) {
        return fail(Status::kInvalidArgument, range() + " are partly device pages: give ranges of one kind");
      }
      kind = flags;
      known = area->end;
    }
  }
  if (!kind || known - first < bytes) {
    return fail(Status::kInvalidArgument, range() + " are not all mapped: map them, or check the length");
  }
  return *kind;
}

Result<PageKind> page_kind(const void* address, std::size_t bytes) {
  std::ifstream smaps("/proc/self/smaps");
  if (!smaps) return fail(Status::kSystem, "cannot read /proc/self/smaps: mount /proc");
  return parse_page_kind(smaps, reinterpret_cast<std::uintptr_t>(address), bytes);
}

}  // namespace gdx
