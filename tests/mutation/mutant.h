// Switches of mutants: `gdx_mutant(N)` is true while the test that runs has mutant N switched on, and notes
// that N was reached. Switches are bytes of the file GDX_MUTATION, which all processes of a test map.
// Thread-safe.
#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>

namespace gdx::mutation {
inline constexpr unsigned char kReached = 1;
inline constexpr unsigned char kOn = 2;
inline constexpr unsigned kSwitches = 1 << 16;
inline unsigned char nowhere[kSwitches];

// System calls, because the software HCA stands before open, mmap and close, with mutants of its own.
inline unsigned char* map_switches() {
  const char* path = std::getenv("GDX_MUTATION");
  const long file = path ? ::syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC) : -1;
  if (file < 0) return nowhere;
  const long mapped = ::syscall(SYS_mmap, nullptr, static_cast<long>(kSwitches), PROT_READ | PROT_WRITE,
                                MAP_SHARED, file, 0L);
  ::syscall(SYS_close, file);
  return mapped < 0 ? nowhere : reinterpret_cast<unsigned char*>(mapped);
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
