// The text that stderr takes, while an object lives.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <string>

#include "base/descriptor.h"

namespace gdx {

class StderrFile {
 public:
  StderrFile() : file_(::memfd_create("stderr", MFD_CLOEXEC)), stderr_(::dup(STDERR_FILENO)) {
    ::dup2(file_.value(), STDERR_FILENO);
  }
  ~StderrFile() { ::dup2(stderr_.value(), STDERR_FILENO); }
  StderrFile(const StderrFile&) = delete;
  StderrFile& operator=(const StderrFile&) = delete;
  [[nodiscard]] std::string text() const {
    std::string text(1 << 16, '\0');
    const ssize_t bytes = ::pread(file_.value(), text.data(), text.size(), 0);
    text.resize(bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
    return text;
  }

 private:
  Descriptor file_;
  Descriptor stderr_;
};

}  // namespace gdx
