// Kernels written with CUDA's own names, for both layers. Each function runs one to its end and returns what
// launch() does. Memory is that of machine::allocate.
#pragma once

#include <cstdint>

#include "proto/status.h"

namespace gdx::cuda_names_tests {

// Sums of `threads` values for each block: by shuffles in a warp, by shared memory between warps. `threads`
// is a multiple of 32.
[[nodiscard]] Status sum_blocks(unsigned blocks, unsigned threads, const unsigned* values, unsigned* sums);
// Of a square of n * n, by tiles of 32 * 32 in shared memory.
[[nodiscard]] Status transpose(unsigned n, const float* from, float* to);
inline constexpr unsigned kBins = 48;
[[nodiscard]] Status count(unsigned blocks, unsigned n, const unsigned char* values, unsigned* bins);

// Each block fills its static shared variables, meets all other blocks, and counts what is not its own.
inline constexpr unsigned kMeetings = 3;
inline constexpr unsigned kMeetingThreads = 8;
struct Meeting {
  unsigned arrived;  // 0 before
  unsigned wrong;    // 0 before
};
[[nodiscard]] Status meet_with_shared(unsigned blocks, unsigned workers, Meeting* meeting);
// The same by gdx_dynamic_shared of `shared_bytes`.
[[nodiscard]] Status meet_with_dynamic_shared(unsigned blocks, unsigned shared_bytes, Meeting* meeting);

// Results of a warp's exchanges, by lane.
struct Exchanges {
  int from[32];     // lane 5 of 8
  int up[32];       // from 3 before, of 16
  int down[32];     // from 5 behind, of 32
  int swapped[32];  // from the lane ^ 9, of 8
  long long wide[32];
  float single[32];
  double twofold[32];
};
[[nodiscard]] Status exchange(Exchanges* out);  // lane l gives 100 + l, plus fractions where there are such

struct Votes {
  unsigned thirds[32];  // lanes that 3 divides
  unsigned active[32];  // 1: __activemask has the lane itself
  int any_of_none, any_of_one, all_of_most, all_of_all;
  unsigned of_parts[32];        // even lanes among the first 20, odd ones among the others
  int sum_of_parts[32];         // of lane indices, in the parts
  int broadcast_of_few[3];      // lane 2's word, by lanes 0 to 2 after the others have returned
  unsigned shared_of_part[20];  // the next lane's index, by a barrier of the first 20
  unsigned passed;
};
[[nodiscard]] Status vote(Votes* out);

// Words that each of `threads` threads of 2 blocks changes once by its index among all, from 1 on.
struct Words {
  int added;
  unsigned added_unsigned;
  unsigned long long added_long;
  float added_float;
  double added_double;
  int subtracted;
  unsigned long long swapped;  // changed by compare and swap in a loop
  int least;
  unsigned most;
  unsigned turning_up;    // 0 to 6
  unsigned turning_down;  // the same
  unsigned anded;
  unsigned ored;
  unsigned xored;
  unsigned exchanged;      // an index
  unsigned long long sum;  // of what the exchanges have returned
  int in_system;
  int least_of_block[2];
};
[[nodiscard]] Status change(unsigned threads, Words* words);

// Threads take a lock by compare and swap in a loop, without a pause, and add 1 each.
struct Locked {
  unsigned lock;
  unsigned value;
};
[[nodiscard]] Status add_under_lock(unsigned blocks, unsigned threads, Locked* locked);

// Results of functions that need one thread.
struct Single {
  int bits[10];
  float sum_of_vectors;
  int constants;
  unsigned long long aligned;  // addresses of shared variables, ored
};
[[nodiscard]] Status call_by_one(Single* out);

}  // namespace gdx::cuda_names_tests
