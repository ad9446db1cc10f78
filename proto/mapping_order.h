// The order that a word carries from one mapping of a page to another. Processors keep it by the word's store
// and load. ThreadSanitizer uses addresses, which differ after an HCA has imported the page as a dmabuf, or
// copied it.
#pragma once

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#include <unistd.h>

#include <cstdio>
#endif

namespace gdx {

// The direction of a word. Records order nothing among kernels: they would, if completions shared their
// address. Payload of peers goes toward the host, which reads it after a message between the ranks. The
// host's own use of memory goes toward peers' payload, which follows such a message.
enum class Toward { kHca, kKernel, kHost, kPeers };

#if defined(__SANITIZE_THREAD__)
// Returns an address that all libraries of the process share.
inline void* shared_by_mappings(Toward toward) {
  switch (toward) {
    case Toward::kHca: return static_cast<void*>(&environ);
    case Toward::kKernel: return static_cast<void*>(&stderr);
    case Toward::kHost: return static_cast<void*>(&stdin);
    case Toward::kPeers: return static_cast<void*>(&stdout);
  }
  return nullptr;
}
#endif

// Runs before a store with release.
inline void release_to_mappings([[maybe_unused]] Toward toward) {
#if defined(__SANITIZE_THREAD__)
  __tsan_release(shared_by_mappings(toward));
#endif
}

// Runs after a load with acquire.
inline void acquire_from_mappings([[maybe_unused]] Toward toward) {
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(shared_by_mappings(toward));
#endif
}

}  // namespace gdx
