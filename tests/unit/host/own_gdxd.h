#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "host/ipc/daemon.h"
#include "host/programs/daemon/server.h"

namespace gdx::test {

// gdxd, whose HCA is in this process, and its name in the environment.
class OwnGdxd {
 public:
  OwnGdxd() {
    const std::string path = testing::TempDir() + "gdxd-unit-" + std::to_string(getpid());
    auto server = daemon::Server::listen({.path = path});
    EXPECT_TRUE(server) << server.error().message;
    server_ = std::move(*server);
    thread_ = std::thread([this] { EXPECT_TRUE(server_->run()); });
    setenv(ipc::kDaemonVariable, ("unix:" + path).c_str(), 1);
  }
  ~OwnGdxd() {
    unsetenv(ipc::kDaemonVariable);
    stop();
  }
  OwnGdxd(const OwnGdxd&) = delete;
  OwnGdxd& operator=(const OwnGdxd&) = delete;
  void stop() {
    if (!thread_.joinable()) return;
    server_->stop();
    thread_.join();
    server_.reset();
  }

 private:
  std::unique_ptr<daemon::Server> server_;
  std::thread thread_;
};

}  // namespace gdx::test
