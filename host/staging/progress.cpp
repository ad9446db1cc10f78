#include "host/staging/progress.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

#include "base/fork_mutex.h"
#include "proto/softhca.h"

namespace gdx {
namespace {

struct Services {
  ForkMutex mutex;
  std::vector<ProgressService*> all;
};

// Never destroyed, because pools with static storage may end after all else.
Services& services() {
  static auto& instance = *new Services;
  return instance;
}

std::atomic<int> served_elsewhere{0};

}  // namespace

int progress() {
  static const auto softhca = reinterpret_cast<SofthcaProgress>(dlsym(RTLD_DEFAULT, kSofthcaProgressSymbol));
  int done = softhca == nullptr ? 0 : softhca();
  if (const std::unique_lock lock(services().mutex, std::try_to_lock); lock) {
    for (ProgressService* service : services().all) done += service->progress();
  }
  return done == 0 && served_elsewhere.load(std::memory_order_relaxed) != 0 ? -1 : done;
}

void wake_software_hca() {
  static const auto wake = reinterpret_cast<SofthcaWake>(dlsym(RTLD_DEFAULT, kSofthcaWakeSymbol));
  if (wake != nullptr) wake();
}

namespace detail {

void add_served_elsewhere(int endpoints) { served_elsewhere.fetch_add(endpoints); }

void add_service(ProgressService& service) {
  const std::lock_guard lock(services().mutex);
  services().all.push_back(&service);
}

void remove_service(ProgressService& service) {
  const std::lock_guard lock(services().mutex);
  std::erase(services().all, &service);
}

}  // namespace detail
}  // namespace gdx
