#include "base/process_stat.h"

#include <fstream>
#include <sstream>
#include <string>

namespace gdx {

// Source: proc(5), stat: the name before the state may hold any character; the parent is field 4, the
// start 22.
ProcessStat stat_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  // A process may end between open and read: then an iterator would throw, and getline fails.
  std::string text;
  std::getline(file, text, '\0');
  const auto name_end = text.rfind(')');
  if (name_end == std::string::npos) return {};
  constexpr int kFieldsBetween = 17;
  std::istringstream fields(text.substr(name_end + 1));
  ProcessStat stat;
  std::string skipped;
  fields >> stat.state >> stat.parent;
  for (int i = 0; i < kFieldsBetween; ++i) fields >> skipped;
  fields >> stat.started;
  return stat;
}

}  // namespace gdx
