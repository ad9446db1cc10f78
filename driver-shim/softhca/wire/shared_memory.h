// The memory of one ring, as a file without a name that one process makes and another adopts.
#pragma once

#include <cstddef>

#include "base/mapped_pages.h"
#include "base/result.h"
#include "driver-shim/softhca/wire/ring.h"
#include "driver-shim/softhca/wire/udp_socket.h"

namespace gdx::softhca::wire {

class SharedMemory {
 public:
  struct Made;
  // Errors: kSystem with errno's text.
  static Result<Made> create();
  // Maps a file that another process made. Errors: kInvalidArgument when it is not of a ring's size.
  // kInvalidArgument too when it can still be truncated, which would kill a reader. kSystem otherwise.
  static Result<SharedMemory> adopt(int fd);

  [[nodiscard]] RingControl& control() const { return *reinterpret_cast<RingControl*>(base_.get()); }
  [[nodiscard]] std::byte* data() const;

 private:
  static Result<SharedMemory> map(int fd);

  MappedPages base_;
};

struct SharedMemory::Made {
  SharedMemory memory;
  Descriptor file;  // to pass on; closing it leaves the memory
};

}  // namespace gdx::softhca::wire
