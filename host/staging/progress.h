// Work of other components that a waiting thread can do.
#pragma once

namespace gdx {

class CreditService;

// Runs one step of the software HCA, if this process has one, and one poll of each staging pool's scheduler.
// Launches on the CPU layer take it as their progress function, so that their kernels depend on no other
// thread. Returns the number of things done: 0 when idle or when other threads do them. Threads: any; does
// not block.
int progress();

namespace detail {
void add_service(CreditService& service);
void remove_service(CreditService& service);
}  // namespace detail

}  // namespace gdx
