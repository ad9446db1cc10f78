// Preloaded into ibv_rc_pingpong: its queue pair outlives its last message for a while. The program leaves as
// soon as it is served itself. A peer whose last acknowledgement was lost would then repeat to nobody, on any
// HCA.
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <unistd.h>

constexpr useconds_t kLinger_us = 900'000;  // a dozen of the program's timeouts of 67 ms

extern "C" int ibv_destroy_qp(ibv_qp* qp) {
  usleep(kLinger_us);
  return reinterpret_cast<int (*)(ibv_qp*)>(dlvsym(RTLD_NEXT, "ibv_destroy_qp", "IBVERBS_1.1"))(qp);
}
