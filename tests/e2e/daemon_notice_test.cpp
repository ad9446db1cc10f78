// gdxd passes on what its HCA tells: a port that goes down, and the end of the HCA. It counts what clients
// post.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/descriptor.h"
#include "device/endpoint.h"
#include "host/bootstrap/local_socket.h"
#include "host/gdx.h"
#include "host/ipc/daemon.h"
#include "host/programs/daemon/server.h"
#include "host/queue/queue_memory.h"
#include "proto/mlx5/doorbell.h"
#include "proto/softhca.h"
#include "tests/e2e/comes_true.h"
#include "tests/e2e/must.h"
#include "tests/e2e/stderr_file.h"
#include "tests/e2e/vain_wait.h"
#include "tests/e2e/wild_record.h"
#include "tests/fuzz/daemon_attacker.h"

namespace gdx::daemon {
namespace daemon_notice_test {

constexpr std::size_t kPage = 4096;
constexpr std::uint64_t kLongNs = 200'000'000'000;

class Notices : public ::testing::Test {
 protected:
  Notices() {
    path_ = (std::filesystem::temp_directory_path() / ("gdxd-notice-" + std::to_string(getpid()))).string();
    server_ = must(Server::listen({.path = path_}));
    thread_ = std::thread([this] { EXPECT_TRUE(server_->run()); });
    setenv(ipc::kDaemonVariable, ("unix:" + path_).c_str(), 1);
    raise_ = reinterpret_cast<SofthcaRaise>(dlsym(RTLD_DEFAULT, kSofthcaRaiseSymbol));
  }
  ~Notices() override {
    unsetenv(ipc::kDaemonVariable);
    server_->stop();
    thread_.join();
  }

  std::string path_;
  std::unique_ptr<Server> server_;
  std::thread thread_;
  SofthcaRaise raise_ = nullptr;
};

TEST_F(Notices, of_a_port_reach_each_client_once_and_change_nothing) {
  const Hca hca = must(Hca::open());
  const Hca other = must(Hca::open());
  const StderrFile log;
  EXPECT_EQ(raise_(IBV_EVENT_PORT_ERR), 1);
  EXPECT_EQ(raise_(IBV_EVENT_GID_CHANGE), 1);
  EXPECT_EQ(raise_(IBV_EVENT_PORT_ACTIVE), 1);
  std::string said;
  const auto count = [&](const std::string& text) {
    int found = 0;
    for (auto at = said.find(text); at != std::string::npos; at = said.find(text, at + 1)) ++found;
    return found;
  };
  EXPECT_TRUE(comes_true([&] {
    said = log.text();
    return count("gdxd tells: port 1 of HCA gdx0 is up") == 2;
  }));
  EXPECT_EQ(count("gdxd tells: port 1 of HCA gdx0 is down"), 2) << said;
  EXPECT_EQ(count("gdxd tells: port 1 of HCA gdx0 is up"), 2) << said;
  EXPECT_EQ(count("gdxd tells: "), 4) << said;
  EXPECT_EQ(count("gdxd, to user "), 2) << said;
  EXPECT_TRUE(allocate_memory(hca, kPage));
  EXPECT_TRUE(allocate_memory(other, kPage));
}

TEST_F(Notices, of_a_failed_hca_abort_kernels_and_name_it_and_it_opens_again) {
  const Hca hca = must(Hca::open());
  Memory memory = must(allocate_memory(hca, kPage));
  Endpoint a = must(Endpoint::create(hca, {}, {.timeout_ns = kMaxWaitNs}));
  Endpoint b = must(Endpoint::create(hca, {}, {.timeout_ns = kMaxWaitNs}));
  must(a.connect(b.address()));
  must(b.connect(a.address()));
  Status ended = Status::kPending;
  std::atomic<bool> waits{false};
  std::thread kernel([&] { ended = wait_in_vain(a, memory, waits); });
  while (!waits.load()) std::this_thread::yield();
  EXPECT_EQ(raise_(IBV_EVENT_DEVICE_FATAL), 1);
  kernel.join();
  EXPECT_EQ(ended, Status::kAborted);
  // The kernel's memory has the event before gdxd ends the connection.
  EXPECT_TRUE(comes_true([&] {
    const auto asked = allocate_memory(hca, kPage);
    return !asked && asked.error().status == Status::kHcaFailed;
  }));
  EXPECT_EQ(a.query_queue_pair().error().status, Status::kHcaFailed);
  // Refused until the sessions of the failed one have ended.
  EXPECT_TRUE(comes_true([] {
    const auto again = Hca::open();
    EXPECT_TRUE(again || again.error().status == Status::kBusy) << again.error().message;
    return again && allocate_memory(*again, kPage);
  }));
}

// gdxd stores into the client's words, so the connection lives on.
TEST_F(Notices, of_a_failed_queue_pair_end_its_waits_and_name_it) {
  const Hca hca = must(Hca::open());
  Memory memory = must(allocate_memory(hca, kPage));
  const EndpointOptions patient{.timeout_ns = kMaxWaitNs, .probe_after_ns = kMaxWaitNs - kLongNs};
  Endpoint a = must(Endpoint::create(hca, {}, patient));
  Endpoint b = must(Endpoint::create(hca, {}, patient));
  must(a.connect(b.address()));
  must(b.connect(a.address()));
  Status ended = Status::kPending;
  std::atomic<bool> waits{false};
  std::thread kernel([&] { ended = wait_in_vain(a, memory, waits); });
  while (!waits.load()) std::this_thread::yield();
  announce_beyond_the_ring(a.handle());
  kernel.join();
  EXPECT_EQ(ended, Status::kAborted);
  EXPECT_EQ(a.fault().status, Status::kQueueError);
  EXPECT_EQ(b.fault().status, Status::kOk);
  EXPECT_TRUE(allocate_memory(hca, kPage));
}

TEST_F(Notices, of_a_failed_hca_end_the_connection_of_a_client_that_reads_none) {
  const auto client = must(bootstrap::connect_local(path_));
  const auto call = [&](const auto& request) {
    const auto bytes = ipc::encode(request.kKind, request);
    must(bootstrap::send_local(client, bytes, {}, monotonic_ns() + kLongNs));
    return bootstrap::receive_local(client, monotonic_ns() + kLongNs);
  };
  const auto greeted = must(call(ipc::Hello{ipc::kVersion, ipc::kVersion, 0, "deaf"}));
  must(call(ipc::OpenHca{{}, -1, 0}));
  EXPECT_EQ(raise_(IBV_EVENT_DEVICE_FATAL), 1);
  const auto ended = bootstrap::receive_local(client, monotonic_ns() + kLongNs);
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().status, Status::kPeerGone);
  const auto told = must(bootstrap::receive_local(greeted.descriptors.at(0), monotonic_ns() + kLongNs));
  const auto notice = must(ipc::parse_body<ipc::Notice>(must(ipc::parse_message(told.bytes))));
  EXPECT_EQ(notice.event, static_cast<std::uint32_t>(ipc::Event::kHcaFailed));
}

// The doorbell record counts modulo 2^16.
TEST_F(Notices, statistics_count_every_block_that_was_posted) {
  const Hca hca = must(Hca::open());
  Memory memory = must(allocate_memory(hca, kPage));
  Endpoint a = must(Endpoint::create(hca, {}, {}));
  Endpoint b = must(Endpoint::create(hca, {}, {}));
  must(a.connect(b.address()));
  must(b.connect(a.address()));
  constexpr std::uint32_t kRounds = 140;
  constexpr std::uint32_t kBatch = 500;
  const auto body = [&](const EndpointHandle& handle) {
    device::Endpoint<Scope::kThread> open(handle);
    for (std::uint32_t i = 0; i < kRounds * kBatch; ++i) {
      ASSERT_EQ(gdx_get(open, memory.local(), memory.remote(), 8), Status::kOk);
      if (i % kBatch == 0) {
        ASSERT_EQ(gdx_flush(open), Status::kOk);
      }
    }
    ASSERT_EQ(gdx_flush(open), Status::kOk);
  };
  ASSERT_EQ(exec::launch({}, body, a.handle()), Status::kOk);
  const auto all = nlohmann::json::parse(server_->statistics(0));
  for (const auto& endpoint : all["clients"][0]["endpoints"]) {
    const std::uint32_t posted = endpoint["qpn"] == a.address().qpn ? kRounds * kBatch : 0;
    EXPECT_EQ(endpoint["posted_blocks"], posted);
    EXPECT_EQ(endpoint["completed_blocks"], posted);
  }
  EXPECT_EQ(all["clients"][0]["endpoints"].size(), 2u);
  EXPECT_EQ(all["clients"][0]["hca"], hca.name());
}

// An endpoint of a client that stores into its state and records as it likes.
class StoringClient {
 public:
  explicit StoringClient(const std::string& path)
      : client_(must(ipc::Daemon::connect(path))), queues_(must(QueueMemory::allocate_in_file(16, 0, 0))) {
    must(client_->call<ipc::HcaAnswer>(ipc::OpenHca{{}, -1, 0}));
    const int file = queues_.file();
    must(client_->call<ipc::EndpointAnswer>(plain_endpoint(queues_.host_memory().size()),
                                            std::span(&file, 1)));
  }
  [[nodiscard]] QueueState& state() const { return queues_.control()->state; }
  // Stores the record first, because a reader between the two takes it for newer than what is complete.
  void post_up_to(std::uint32_t blocks) const {
    queues_.control()->queue_pair_record[mlx5::kSendRecord] = blocks & 0xffff;
    std::atomic_ref(state().completed).store(blocks);
  }

 private:
  std::shared_ptr<ipc::Daemon> client_;
  QueueMemory queues_;
};

TEST_F(Notices, statistics_count_stalls_for_either_pool) {
  const StoringClient client(path_);
  client.state().staging.stalls = 3;
  client.state().bounce.stalls = 40;
  const auto all = nlohmann::json::parse(server_->statistics(0));
  EXPECT_EQ(all["clients"][0]["endpoints"][0]["stalls"], 43);
}

// Blocks are counted modulo 2^32.
TEST_F(Notices, top_tells_the_rate_of_an_endpoint_whose_count_wraps) {
  const StoringClient client(path_);
  client.post_up_to(0xfffffff0);
  FILE* const top = ::popen("'" GDX "' top --count 2 --interval-s 0.5", "r");
  ASSERT_NE(top, nullptr);
  std::vector<std::string> rates;
  std::array<char, 512> line{};
  while (std::fgets(line.data(), line.size(), top) != nullptr) {
    std::istringstream text(line.data());
    const std::vector<std::string> words{std::istream_iterator<std::string>(text), {}};
    if (words.size() < 6 || words[2] != program_invocation_short_name) continue;
    rates.push_back(words[words.size() - 2]);  // before the fault
    client.post_up_to(0x10);
  }
  EXPECT_EQ(::pclose(top), 0);
  ASSERT_EQ(rates.size(), 2u);
  EXPECT_EQ(rates[0], "-") << "nothing came before";
  EXPECT_LE(std::stod(rates[1]), 64) << "32 blocks in half a second or longer";
}

// A call may see the end of its connection before the thread that reads notices does.
TEST_F(Notices, of_a_failed_hca_explain_the_end_of_a_call) {
  for (int i = 0; i < 5; ++i) {
    const auto hca = [] {
      auto opened = Hca::open();
      while (!opened && opened.error().status == Status::kBusy) opened = Hca::open();
      return must(std::move(opened));
    }();
    raise_(IBV_EVENT_DEVICE_FATAL);
    Result<Memory> memory = allocate_memory(hca, kPage);
    while (memory) memory = allocate_memory(hca, kPage);
    ASSERT_EQ(memory.error().status, Status::kHcaFailed) << memory.error().message;
  }
}

// Clients can store faults as they like, so most of many go unwarned of: all but one a second.
TEST_F(Notices, faults_are_warned_of_with_their_events_and_not_each) {
  constexpr int kEndpoints = 40;
  const auto client = must(ipc::Daemon::connect(path_));
  must(client->call<ipc::HcaAnswer>(ipc::OpenHca{{}, -1, 0}));
  const auto end_some = [&](std::uint8_t syndrome) {
    const StderrFile log;
    for (int i = 0; i < kEndpoints; ++i) {
      const QueueMemory queues = must(QueueMemory::allocate_in_file(16, 0, 0));
      const auto request = plain_endpoint(queues.host_memory().size());
      const int file = queues.file();
      const auto made = must(client->call<ipc::EndpointAnswer>(request, std::span(&file, 1)));
      queues.control()->state.fault.syndrome = syndrome;
      must(client->call<ipc::Done>(ipc::DestroyEndpoint{made.answer.endpoint}));
    }
    const std::string text = log.text();
    int warnings = 0;
    for (auto at = text.find("ends with syndrome 0x15; its newest events"); at != std::string::npos;
         at = text.find("ends with syndrome 0x15; its newest events", at + 1)) {
      ++warnings;
    }
    return warnings;
  };
  EXPECT_EQ(end_some(0), 0);
  const std::uint64_t begun_ns = monotonic_ns();
  const int warnings = end_some(0x15);
  const auto seconds = static_cast<int>((monotonic_ns() - begun_ns) / 1'000'000'000);
  EXPECT_GE(warnings, 1);
  EXPECT_LE(warnings, seconds + 2);
}

}  // namespace daemon_notice_test
}  // namespace gdx::daemon
