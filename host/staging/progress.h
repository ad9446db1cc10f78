// For whoever waits: the work of others that can be done on the waiting thread.
#pragma once

namespace gdx {

class CreditService;

// One step of the software HCA, where this process has one, and one look of each staging pool's scheduler.
// Give it to launches on the CPU layer, whose kernels then depend on no other thread. Returns the number of
// things done, 0 when idle or when other threads are at it. Threads: any; does not block.
int progress();

namespace detail {
void add_service(CreditService& service);
void remove_service(CreditService& service);
}  // namespace detail

}  // namespace gdx
