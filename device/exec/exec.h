// The execution layer: the operations of device code that depend on the machine. Code above this folder is
// one source for GPU and CPU. PTX, fences and #ifdef stand only here.
//
// Both layers provide, in namespace gdx::exec:
//   thread_rank<S>(), thread_count<S>()   this thread's place in its scope
//   sync<S>()                             barrier over the scope
//   gather<S>(all_wait)                   orders the scope's stores before later ones of its rank 0;
//                                         the other threads wait only with all_wait
//   broadcast<S>(v)                       the scope's rank 0 decides v for all
//   shuffle<S>(v)                         broadcast without ordering memory; warps only
//   any<S>(c)                             whether c holds in any thread of the scope; warps only
//   lanes_with(c)                         how many threads of the warp hold c, and how many before this one
//   permute_bytes<Selector>, swap_bytes, split, join   words, in one instruction
//   store_segment<Offset>(p, v), load_segment(p)   one access of 16 B
//   store_release<P>(p, v)                ordered after all earlier stores, for a NIC observer
//   publish(p, v)                         ordered after all earlier stores, for a host observer
//   publish_value(p, v)                   publish for a peer's kernel, aligned or not
//   fetch_add_in_system, compare_swap_in_system   words that the whole system changes
//   ring<P>(p, v)                         8 B to a doorbell register, ordered after all earlier stores
//   fence_release<P>(), then store_record, store_counter, store_doorbell   ring in single steps
//   fence_release<P>(), then store_blueflame<S>(p, w)   a WQE of one block with its doorbell, in one store
//   store_blueflame_piece(p, w, i)        a quarter of that, for probes
//   load_counter(p), fetch_add(p, n), compare_swap(p, e, d)   counters that threads of one GPU share
//   count_in(p, n)                        fetch_add without a result, a release after a fence_release
//   load_pair<O>(p)                       16 B at a fixed distance, unordered
//   load_acquire(p), load_flag(p)         memory that a NIC or the host writes
//   copy<S>(to, from, n)                  cooperative, 16 B stores where alignment allows
//   fill_slot<S>(slot, from, n)           the same to a slot, in 16 B stores alone, zeros behind
//   BulkStores                            the same by TMA, of a block, asynchronous until wait()
//   watch_endpoint(handle)                names it to the CPU layer's checker of stores and releases
//   store_word(p, v), add(p, n)           one 4 B store; an atomic add, relaxed
//   now_ns(), relax()                     for bounded waits; now_cycles() for measurements
//   yield()                               runs threads that share a core with this one
//   launch(config, kernel, args...)       runs a kernel to its end
//   launch_async(config, kernel, args...) the same on a stream, without a wait
//   make_word(p), free_word(p)            a word that the host and kernels reach
//   Stream, create_stream, synchronize    the order of launches; Event, record, wait_for between streams
//   gdx_dynamic_shared<T>()               the block's LaunchConfig::shared_bytes; in namespace gdx
//   kOnGpu                                true for the CUDA layer
// The CPU layer provides CUDA's own names too: cuda_names.h.
#pragma once

#if __cplusplus < 201703L
#error "gdx's device headers need C++17: compile with -std=c++17"
#endif

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "gdx's kernels need sm_80 or later: compile with nvcc -arch=sm_80"
#endif

#if defined(__CUDACC__)
#include "device/exec/cuda.h"
#include "device/exec/cuda_launch.h"
#else
#include "device/exec/cpu.h"
#include "device/exec/cuda_names.h"
#endif
