// A job's secret as a user makes it, for this process and those that it starts.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <fstream>
#include <string>

#include "host/bootstrap/admission.h"

namespace gdx::test {

struct SecretFile {
  explicit SecretFile(std::size_t bytes = bootstrap::kSecretBytes, mode_t mode = 0600, char fill = 's')
      : path(testing::TempDir() + "/gdx_secret_" + std::to_string(getpid())) {
    std::ofstream(path) << std::string(bytes, fill);
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    setenv(kSecretFileVariable, path.c_str(), 1);
  }
  ~SecretFile() {
    unsetenv(kSecretFileVariable);
    unlink(path.c_str());
  }
  SecretFile(const SecretFile&) = delete;
  SecretFile& operator=(const SecretFile&) = delete;

  std::string path;
};

}  // namespace gdx::test
