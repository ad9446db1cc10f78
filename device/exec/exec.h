// The execution layer: what device code needs of the machine that runs it. Everything above this
// folder is one source for GPU and CPU; PTX, fences and #ifdef live below it and nowhere else.
//
// Both layers provide, in namespace gdx::exec:
//   thread_rank<S>(), thread_count<S>()   this thread's place in its scope
//   sync<S>()                             barrier over the scope
//   broadcast<S>(v)                       the scope's rank 0 decides v for all
//   shuffle<S>(v)                         the same without ordering memory; warps only
//   any<S>(c)                             does c hold in any thread of the scope; warps only
//   permute_bytes<Selector>, swap_bytes, split, join   words, in one instruction
//   store_segment<Offset>(p, v), load_segment(p)   one access of 16 B
//   store_release<P>(p, v)                ordered after all earlier stores, for a NIC observer
//   publish(p, v)                         ordered after all earlier stores, for a host observer
//   publish_value(p, v)                   the same for a peer's kernel, aligned or not
//   fetch_add_in_system, compare_swap_in_system   words that the whole system changes
//   ring<P>(p, v)                         8 B to a doorbell register, ordered after all earlier stores
//   fence_release<P>(), then store_record, store_counter, store_doorbell   the same in single steps
//   fence_release<P>(), then store_blueflame(p, w)   a WQE of one block with its doorbell
//   load_counter(p), fetch_add(p, n), compare_swap(p, e, d)   counters that threads of one GPU share
//   load_acquire(p), load_flag(p)         memory that a NIC, or the host, writes
//   copy<S>(to, from, n)                  cooperative, 16 B stores where alignment allows
//   BulkStores                            the same by TMA, of a block, asynchronous until wait()
//   store_word(p, v), add(p, n)           one 4 B store; an atomic add, relaxed
//   now_ns(), relax()                     for bounded waits; now_cycles() for measurements
//   yield()                               lets threads in that share a core with this one
//   launch(config, kernel, args...)       runs a kernel to its end
//   kOnGpu                                which of the two layers this is
#pragma once

#if defined(__CUDACC__)
#include "device/exec/cuda.h"
#else
#include "device/exec/cpu.h"
#endif
