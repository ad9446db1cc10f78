// Doorbells of kernels that may not store to the HCA's registers themselves: they store to a word in host
// memory, and a thread of this process rings.
#pragma once

#include <cstdint>

namespace gdx {

// Rings `doorbell` with each value that appears in `word`, which it empties, during the object's lifetime.
// The thread serves all such objects of the process. It looks without a pause while doorbells come, and then
// every 20 us. Values that follow each other faster than it looks merge: the newest rings, and the doorbell
// record covers the others. Threads: any.
class HostRinger {
 public:
  HostRinger(std::uint64_t* word, std::uint64_t* doorbell);
  ~HostRinger();  // rings once more for what is in the word
  HostRinger(const HostRinger&) = delete;
  HostRinger& operator=(const HostRinger&) = delete;

 private:
  std::uint64_t* word_;
};

}  // namespace gdx
