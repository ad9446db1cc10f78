// A gdxd in a process of its own that has no descriptor or no memory left: the request is refused by a typed
// error, and other clients go on. The refused one goes on once there is room again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "host/ipc/daemon.h"
#include "host/memory/memory.h"
#include "host/memory/shared_file.h"
#include "host/programs/daemon/server.h"
#include "host/queue/queue_memory.h"
#include "tests/e2e/comes_true.h"
#include "tests/e2e/must.h"
#include "tests/fuzz/daemon_attacker.h"

namespace gdx::daemon {
namespace daemon_limits_test {

using ::testing::HasSubstr;

constexpr std::size_t kPage = 4096;
constexpr std::size_t kBytes = 16 * kPage;
constexpr rlim_t kStandardFiles = 3;

// A gdxd in a child process.
class ServingProcess {
 public:
  ServingProcess()
      : path_(
            (std::filesystem::temp_directory_path() / ("gdxd-limits-" + std::to_string(getpid()))).string()),
        process_(fork()) {
    if (process_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    auto server = Server::listen({.path = path_});
    _exit(server && (*server)->run() ? 0 : 1);
  }
  ~ServingProcess() {
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
    std::filesystem::remove(path_);
    std::filesystem::remove(path_ + ".lock");
  }
  ServingProcess(const ServingProcess&) = delete;
  ServingProcess& operator=(const ServingProcess&) = delete;

  // A client that has the HCA open.
  [[nodiscard]] std::shared_ptr<ipc::Daemon> client() const {
    auto connected = ipc::Daemon::connect(path_);
    EXPECT_TRUE(comes_true([&] {
      if (!connected) connected = ipc::Daemon::connect(path_);
      return connected || connected.error().status != Status::kNotFound;
    })) << "it does not listen";
    auto daemon = must(std::move(connected));
    must(daemon->call<ipc::HcaAnswer>(ipc::OpenHca{{}, -1, 0}));
    return daemon;
  }
  [[nodiscard]] Status newcomer() const {
    const auto connected = ipc::Daemon::connect(path_);
    return connected ? Status::kOk : connected.error().status;
  }
  // Lowers or restores a limit of the process. Returns the one before.
  rlimit set(__rlimit_resource resource, rlim_t limit) const {
    rlimit before{};
    EXPECT_EQ(prlimit(process_, resource, nullptr, &before), 0);
    const rlimit changed{limit, before.rlim_max};
    EXPECT_EQ(prlimit(process_, resource, &changed, nullptr), 0);
    return before;
  }
  [[nodiscard]] std::ptrdiff_t files() const {
    return std::distance(std::filesystem::directory_iterator("/proc/" + std::to_string(process_) + "/fd"),
                         std::filesystem::directory_iterator());
  }
  [[nodiscard]] rlim_t mapped_bytes() const {
    std::ifstream pages("/proc/" + std::to_string(process_) + "/statm");
    rlim_t count = 0;
    pages >> count;
    return count * kPage;
  }

 private:
  std::string path_;
  pid_t process_;
};

auto register_file(ipc::Daemon& daemon, const SharedFile& file) {
  const ipc::RegisterMemory request{0, kBytes, 0x10000, static_cast<std::uint32_t>(Access::kAll), 0};
  const int number = file.file.value();
  return daemon.call<ipc::RegisterAnswer>(request, std::span(&number, 1));
}

auto create_endpoint(ipc::Daemon& daemon, const QueueMemory& queues) {
  const ipc::CreateEndpoint request = plain_endpoint(queues.host_memory().size());
  const int number = queues.file();
  return daemon.call<ipc::EndpointAnswer>(request, std::span(&number, 1));
}

// Requests that need nothing new of gdxd.
void expect_service(ipc::Daemon& daemon, std::uint32_t endpoint) {
  EXPECT_TRUE(daemon.call<ipc::QueryAnswer>(ipc::QueryEndpoint{endpoint}));
  EXPECT_EQ(daemon.call<ipc::PoolFigures>(ipc::ReadPool{99}).error().status, Status::kNotFound);
}

TEST(DaemonLimits, without_descriptors_requests_are_refused_and_newcomers_wait) {
  const ServingProcess gdxd;
  const auto other = gdxd.client();
  const auto client = gdxd.client();
  const SharedFile file = must(make_shared_file(kBytes));
  const QueueMemory queues = must(QueueMemory::allocate_in_file(16, 0, 0));
  const std::uint32_t endpoint = must(create_endpoint(*other, queues)).answer.endpoint;
  const std::ptrdiff_t files = gdxd.files();
  const rlimit before = gdxd.set(RLIMIT_NOFILE, kStandardFiles);
  const auto region = register_file(*client, file);
  ASSERT_FALSE(region);
  EXPECT_EQ(region.error().status, Status::kInvalidArgument);
  EXPECT_THAT(region.error().message, HasSubstr("ulimit -n"));
  EXPECT_EQ(create_endpoint(*client, queues).error().status, Status::kInvalidArgument);
  EXPECT_EQ(client->call<ipc::StatisticsAnswer>(ipc::ReadStatistics{}).error().status, Status::kNoMemory);
  expect_service(*other, endpoint);
  std::shared_ptr<ipc::Daemon> newcomer;
  std::thread waits([&] { newcomer = gdxd.client(); });
  expect_service(*other, endpoint);
  gdxd.set(RLIMIT_NOFILE, before.rlim_cur);
  waits.join();
  EXPECT_TRUE(newcomer);
  newcomer.reset();
  const auto again = register_file(*client, file);
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_TRUE(client->call<ipc::Done>(ipc::DeregisterMemory{again->answer.region}));
  // The newcomer's session ends on a thread of its own.
  EXPECT_TRUE(comes_true([&] { return gdxd.files() <= files; }));
  EXPECT_EQ(gdxd.files(), files) << "what was refused keeps no descriptor";
}

TEST(DaemonLimits, without_memory_requests_are_refused) {
  const ServingProcess gdxd;
  const auto other = gdxd.client();
  const auto client = gdxd.client();
  const SharedFile file = must(make_shared_file(kBytes));
  const QueueMemory queues = must(QueueMemory::allocate_in_file(16, 0, 0));
  const std::uint32_t endpoint = must(create_endpoint(*other, queues)).answer.endpoint;
  const rlimit before = gdxd.set(RLIMIT_AS, gdxd.mapped_bytes());
  const auto region = register_file(*client, file);
  ASSERT_FALSE(region);
  EXPECT_EQ(region.error().status, Status::kNoMemory);
  EXPECT_EQ(create_endpoint(*client, queues).error().status, Status::kNoMemory);
  EXPECT_EQ(gdxd.newcomer(), Status::kNoMemory) << "no thread is no end of gdxd";
  expect_service(*other, endpoint);
  gdxd.set(RLIMIT_AS, before.rlim_cur);
  EXPECT_TRUE(register_file(*client, file));
  EXPECT_TRUE(create_endpoint(*client, queues));
}

}  // namespace daemon_limits_test
}  // namespace gdx::daemon
