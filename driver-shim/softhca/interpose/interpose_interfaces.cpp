// Lists the software HCA's address at an interface of the HCA's name, because programs find RoCE ports by
// interface addresses. Otherwise the address is often not listed (127.0.0.0/8 is all of lo's), or at a
// loopback interface, which programs skip.
#include <dlfcn.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>

#include "driver-shim/softhca/interpose/device.h"
#include "driver-shim/softhca/interpose/no_memory.h"
#include "driver-shim/softhca/uverbs/real.h"

namespace gdx::softhca::uverbs {
namespace {

// Entry of this library, distinguished from libc's by its data, which no interface has.
struct Entry {
  ifaddrs head{};
  sockaddr_storage address{};
  sockaddr_storage netmask{};
  char name[64]{};
};
const char entry_mark = 0;

bool is_ours(const ifaddrs& entry) { return entry.ifa_data == &entry_mark; }

// Returns whether the program has a connection manager; others find no RDMA by addresses, and shall not pay
// for it.
bool looks_for_rdma() {
  void* const library = dlopen("librdmacm.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (library != nullptr) dlclose(library);
  return library != nullptr;
}

void fill(sockaddr_storage& to, const wire::Address& address) {
  if (address.is_ipv4()) {
    auto& v4 = reinterpret_cast<sockaddr_in&>(to);
    v4.sin_family = AF_INET;
    v4.sin_addr.s_addr = htonl(address.ipv4_host_order());
  } else {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(to);
    v6.sin6_family = AF_INET6;
    std::copy(address.gid.begin(), address.gid.end(), v6.sin6_addr.s6_addr);
  }
}

void fill_netmask(sockaddr_storage& to, const wire::Address& address) {
  if (address.is_ipv4()) {
    constexpr std::uint32_t kClassA = 0xff000000;
    fill(to, wire::Address::ipv4(kClassA));
  } else {
    wire::Address mask;
    mask.gid.fill(0xff);
    fill(to, mask);
  }
}

bool same_host(const sockaddr* left, const sockaddr_storage& right) {
  if (left == nullptr || left->sa_family != right.ss_family) return false;
  if (left->sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(left)->sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in&>(right).sin_addr.s_addr;
  }
  return std::memcmp(&reinterpret_cast<const sockaddr_in6*>(left)->sin6_addr,
                     &reinterpret_cast<const sockaddr_in6&>(right).sin6_addr, sizeof(in6_addr)) == 0;
}

void append(ifaddrs** list, const HcaIdentity& hca) {
  auto* const entry = new (std::nothrow) Entry;
  if (entry == nullptr) return;
  fill(entry->address, hca.address);
  fill_netmask(entry->netmask, hca.address);
  std::snprintf(entry->name, sizeof entry->name, "%s", hca.name.c_str());
  entry->head.ifa_name = entry->name;
  entry->head.ifa_flags = IFF_UP | IFF_RUNNING;
  entry->head.ifa_addr = reinterpret_cast<sockaddr*>(&entry->address);
  entry->head.ifa_netmask = reinterpret_cast<sockaddr*>(&entry->netmask);
  entry->head.ifa_data = const_cast<char*>(&entry_mark);
  ifaddrs** end = list;
  for (; *end != nullptr; end = &(*end)->ifa_next) {
    const bool loopback = ((*end)->ifa_flags & IFF_LOOPBACK) != 0;
    if (!loopback && same_host((*end)->ifa_addr, entry->address)) {
      delete entry;
      return;
    }
  }
  *end = &entry->head;
}

}  // namespace
}  // namespace gdx::softhca::uverbs

extern "C" __attribute__((visibility("default"))) int getifaddrs(ifaddrs** list) {
  using namespace gdx::softhca::uverbs;  // NOLINT: the function itself is C's
  static GDX_REAL_FUNCTION RealFunction<int(ifaddrs**)> real("getifaddrs");
  const int result = real(list);
  if (result != 0 || !looks_for_rdma()) return result;
  const int done = or_no_memory(-1, [&] {
    for (const HcaIdentity& hca : Device::instance().identities()) append(list, hca);
    return 0;
  });
  if (done != 0) {
    freeifaddrs(*list);
    errno = ENOMEM;
  }
  return done;
}

extern "C" __attribute__((visibility("default"))) void freeifaddrs(ifaddrs* list) {
  using namespace gdx::softhca::uverbs;  // NOLINT: the function itself is C's
  static GDX_REAL_FUNCTION RealFunction<void(ifaddrs*)> real("freeifaddrs");
  for (ifaddrs** at = &list; *at != nullptr;) {
    if (is_ours(**at)) {
      auto* const entry = reinterpret_cast<Entry*>(*at);
      *at = entry->head.ifa_next;
      delete entry;
    } else {
      at = &(*at)->ifa_next;
    }
  }
  real(list);
}
