#include "host/staging/progress.h"

#include <dlfcn.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "host/staging/credit_service.h"
#include "proto/softhca.h"

namespace gdx {
namespace {

struct Services {
  std::mutex mutex;
  std::vector<CreditService*> all;
};

// Never destroyed, because pools with static storage may end after all else.
Services& services() {
  static auto& instance = *new Services;
  return instance;
}

}  // namespace

int progress() {
  static const auto softhca = reinterpret_cast<SofthcaProgress>(dlsym(RTLD_DEFAULT, kSofthcaProgressSymbol));
  int done = softhca == nullptr ? 0 : softhca();
  const std::unique_lock lock(services().mutex, std::try_to_lock);
  if (!lock) return done;
  for (CreditService* service : services().all) done += service->progress();
  return done;
}

namespace detail {

void add_service(CreditService& service) {
  const std::lock_guard lock(services().mutex);
  services().all.push_back(&service);
}

void remove_service(CreditService& service) {
  const std::lock_guard lock(services().mutex);
  std::erase(services().all, &service);
}

}  // namespace detail
}  // namespace gdx
