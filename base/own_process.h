// The process that made an object. A child by fork has a copy of it without its threads, and the files and
// peers behind it are still the parent's: the copy's end must not reach them.
#pragma once

#include <unistd.h>

namespace gdx {

class OwnProcess {
 public:
  [[nodiscard]] bool is_here() const { return getpid() == id_; }
  [[nodiscard]] pid_t id() const { return id_; }

 private:
  pid_t id_ = getpid();
};

}  // namespace gdx
