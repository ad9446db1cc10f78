// Shared by the examples' main programs: a failure ends a rank with one line and exit status 1.
#pragma once

#include <errno.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "host/gdx.h"

namespace example {

template <typename... Args>
[[noreturn]] void stop(const char* format, Args... args) {
  std::fprintf(stderr, "%s: ", program_invocation_short_name);
  std::fprintf(stderr, format, args...);
  std::fputc('\n', stderr);
  std::exit(1);
}

// Ends the rank unless the launch and all `count` parts of the kernel succeeded. Meets the other ranks first:
// a rank that goes is unreachable to its neighbours, but the world knows whose end was the first.
inline void check(gdx::Team& team, gdx::Status launched, const gdx::Status* parts, std::uint32_t count) {
  gdx::Status failed = launched;
  for (std::uint32_t i = 0; i < count && failed == gdx::Status::kOk; ++i) failed = parts[i];
  if (failed == gdx::Status::kOk) return;
  const std::string fault = team.describe_fault();
  const auto met = team.barrier();
  stop("rank %u: kernel: %s; team: %s; world: %s", team.rank(), gdx::status_name(failed), fault.c_str(),
       met ? "all ranks are there" : met.error().message.c_str());
}

// Ends the rank unless number `i` of a result is right.
inline void expect_equal(const gdx::Team& team, const char* numbers, std::uint32_t i, float is, float right) {
  if (is != right)
    stop("rank %u: %s %u is %g, not %g", team.rank(), numbers, i, static_cast<double>(is),
         static_cast<double>(right));
}

// Returns argument `index` of the command line as a number from 1, or `usual` without one.
inline std::uint32_t number(int argc, char** argv, int index, std::uint32_t usual) {
  if (index >= argc) return usual;
  char* end = nullptr;
  const unsigned long value = std::strtoul(argv[index], &end, 10);
  if (*end != 0 || value == 0 || value > 1'000'000'000)
    stop("argument '%s': use 1 to 1000000000", argv[index]);
  return static_cast<std::uint32_t>(value);
}

}  // namespace example
