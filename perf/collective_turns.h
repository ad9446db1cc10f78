// Arguments and numbers that the programs of collectives.sh share: OPERATION BYTES CALLS.
#pragma once

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace gdx::turns {

struct Turn {
  bool all_reduce;    // else all-to-all
  std::size_t count;  // floats that a call reduces, or sends to each rank
  int calls;
};

inline Turn turn_of(int argc, char** argv) {
  const bool known =
      argc == 4 && (std::strcmp(argv[1], "allreduce") == 0 || std::strcmp(argv[1], "alltoall") == 0);
  const Turn turn{known && argv[1][3] == 'r', known ? std::strtoull(argv[2], nullptr, 10) / sizeof(float) : 0,
                  known ? std::atoi(argv[3]) : 0};
  if (turn.count != 0 && turn.calls > 0) return turn;
  std::fprintf(stderr, "usage: allreduce|alltoall BYTES CALLS, of 4 B and 1 call at least\n");
  std::exit(2);
}

// Small whole numbers, of which every sum is exact.
inline float value(unsigned rank, std::size_t i) { return static_cast<float>((rank + 1) * (1 + i % 97)); }

// Returns whether `to` is what one call makes of value() at every rank.
inline bool is_right(const Turn& turn, const float* to, unsigned rank, unsigned ranks) {
  for (std::size_t i = 0; i < (turn.all_reduce ? 1 : ranks) * turn.count; ++i) {
    float right = 0;
    if (turn.all_reduce) {
      for (unsigned r = 0; r < ranks; ++r) right += value(r, i);
    } else {
      right = value(static_cast<unsigned>(i / turn.count), rank * turn.count + i % turn.count);
    }
    if (to[i] != right) return false;
  }
  return true;
}

inline void print_calls_per_s(const Turn& turn, double seconds) {
  std::printf("calls_per_s %.6g\n", turn.calls / seconds);
}

}  // namespace gdx::turns
