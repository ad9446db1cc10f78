#include "host/programs/daemon/id_owner.h"

#include <cstdint>
#include <fstream>
#include <functional>
#include <optional>
#include <sstream>
#include <vector>

#include "base/parse_number.h"

namespace gdx::daemon {
namespace {

// Returns the fields of the first line of a file with colons that `fits`; none without one.
std::vector<std::string> find_line(const std::string& path,
                                   const std::function<bool(const std::vector<std::string>&)>& fits) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::vector<std::string> fields;
    std::istringstream text(line);
    for (std::string field; std::getline(text, field, ':');) fields.push_back(field);
    if (fields.size() >= 3 && fits(fields)) return fields;
  }
  return {};
}

}  // namespace

uid_t owner_of(uid_t user, const IdFiles& files) {
  const auto range = find_line(files.ranges, [&](const auto& fields) {
    const auto first = parse_unsigned(fields[1]);
    const auto count = parse_unsigned(fields[2]);
    return first && count && user >= *first && user - *first < *count;
  });
  if (range.empty()) return user;
  const auto is_of = [&](const auto& fields) { return fields[0] == range[0]; };
  std::optional<std::uint64_t> owner = parse_unsigned(range[0]);
  if (const auto entry = find_line(files.users, is_of); !owner && !entry.empty())
    owner = parse_unsigned(entry[2]);
  if (!owner) owner = parse_unsigned(find_line(files.ranges, is_of)[1]);
  return static_cast<uid_t>(owner.value_or(user));
}

}  // namespace gdx::daemon
