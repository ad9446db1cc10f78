// Work of other components that a waiting thread can do.
#pragma once

namespace gdx {

// Work that waits for somebody's turn.
class ProgressService {
 public:
  virtual ~ProgressService() = default;
  // Does one step, and returns the number of things done. Does not block.
  virtual int progress() = 0;
};

// Runs one step of the software HCA, if this process has one, and one poll of each staging pool's scheduler.
// Launches on the CPU layer take it as their progress function, so that their kernels depend on no other
// thread. Returns the number of things done: 0 when idle or when other threads do them; negative when idle in
// a process whose endpoints another process's software HCA serves. Threads: any; does not block.
int progress();

// Ends the sleep of the software HCA's thread, if this process has one. Threads: any; does not block.
void wake_software_hca();

namespace detail {
void add_service(ProgressService& service);
void remove_service(ProgressService& service);
// Counts endpoints that another process's software HCA serves.
void add_served_elsewhere(int endpoints);
}  // namespace detail

}  // namespace gdx
