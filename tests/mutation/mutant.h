// Switches of mutants: `gdx_mutant(N)` is true while the test that runs has mutant N switched on, and notes
// that N was reached. Switches are bytes of the file GDX_MUTATION, which all processes of a test map.
// Thread-safe.
#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

namespace gdx::mutation {
inline constexpr unsigned char kReached = 1;
inline constexpr unsigned char kOn = 2;
inline constexpr unsigned kSwitches = 1 << 16;
inline unsigned char nowhere[kSwitches];

inline unsigned char* map_switches() {
  const char* path = std::getenv("GDX_MUTATION");
  const int file = path ? ::open(path, O_RDWR | O_CLOEXEC) : -1;
  struct stat status = {};
  void* mapped = MAP_FAILED;
  if (file >= 0 && ::fstat(file, &status) == 0 && status.st_size >= kSwitches)
    mapped = ::mmap(nullptr, kSwitches, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (file >= 0) ::close(file);
  return mapped == MAP_FAILED ? nowhere : static_cast<unsigned char*>(mapped);
}

inline bool switched(unsigned number) {
  static unsigned char* const switches = map_switches();
  const unsigned char state = switches[number];
  if (!(state & kReached)) switches[number] = state | kReached;
  return state & kOn;
}
}  // namespace gdx::mutation

constexpr bool gdx_mutant(unsigned number) {
  return !__builtin_is_constant_evaluated() && gdx::mutation::switched(number);
}
