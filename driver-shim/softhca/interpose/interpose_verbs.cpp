// Interposed calls of libibverbs. Programs that spin on ibv_poll_cq() starve the thread that would bring
// their completions. So an empty poll makes a step of progress: opening a device puts that step around the
// provider's poll_cq. The list of devices is sorted into the kernel's order. Without netlink libibverbs lists
// a directory, and programs without a chosen HCA take the first.
#include <dlfcn.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <string_view>
#include <utility>

#include "driver-shim/softhca/interpose/device.h"

namespace gdx::softhca::uverbs {
namespace {

using GetDeviceList = ibv_device**(int*);
using OpenDevice = ibv_context*(ibv_device*);
using PollCq = int(ibv_cq*, int, ibv_wc*);

// One for all contexts, because every device that a program finds here is a software HCA.
std::atomic<PollCq*> provider_poll_cq{nullptr};

int poll_cq(ibv_cq* cq, int entries, ibv_wc* completions) {
  PollCq* const provider = provider_poll_cq.load(std::memory_order_relaxed);
  const int found = provider(cq, entries, completions);
  if (found != 0) return found;
  // Yields before the step, not after the poll, because "nothing" must be true at its return, not earlier.
  // Programs check their connections next, and close those whose peer has gone.
  Device::instance().progress_of_waiter();
  return provider(cq, entries, completions);
}

// A context whose provider polls in another way than the first one's keeps its own.
void put_progress_before_polls(ibv_context& context) {
  PollCq* first = nullptr;
  provider_poll_cq.compare_exchange_strong(first, context.ops.poll_cq);
  if (provider_poll_cq.load() == context.ops.poll_cq) context.ops.poll_cq = poll_cq;
}

// Tries libibverbs by name, because it may be in the scope of a plugin only, which RTLD_NEXT does not search.
template <typename Function>
Function* find_in_libibverbs(const char* name) {
  void* found = dlsym(RTLD_NEXT, name);
  if (found == nullptr) {
    void* const library = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (library != nullptr) found = dlsym(library, name);
  }
  if (found == nullptr) errno = ENOSYS;
  return reinterpret_cast<Function*>(found);
}

// Returns whether one device comes before another, by number: gdx2 before gdx10.
bool comes_before(const ibv_device* left, const ibv_device* right) {
  const std::string_view a(left->name);
  const std::string_view b(right->name);
  return std::pair(a.size(), a) < std::pair(b.size(), b);
}

}  // namespace
}  // namespace gdx::softhca::uverbs

extern "C" __attribute__((visibility("default"))) ibv_context* ibv_open_device(ibv_device* device) {
  using namespace gdx::softhca::uverbs;  // NOLINT: the function itself is C's
  OpenDevice* const real = find_in_libibverbs<OpenDevice>("ibv_open_device");
  if (real == nullptr) return nullptr;
  ibv_context* const context = real(device);
  if (context != nullptr) put_progress_before_polls(*context);
  return context;
}

#undef ibv_get_device_list  // a macro of the header, for statically linked providers
extern "C" __attribute__((visibility("default"))) ibv_device** ibv_get_device_list(int* count) {
  using namespace gdx::softhca::uverbs;  // NOLINT: the function itself is C's
  if (count != nullptr) *count = 0;
  GetDeviceList* const real = find_in_libibverbs<GetDeviceList>("ibv_get_device_list");
  if (real == nullptr) return nullptr;
  int listed = 0;
  ibv_device** const devices = real(&listed);
  if (devices != nullptr) std::sort(devices, devices + listed, comes_before);
  if (count != nullptr) *count = listed;
  return devices;
}
