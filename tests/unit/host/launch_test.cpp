// Launchers as the environment shows them, what is refused, and the wire of PMI-1 with a launcher that fails.
// Real launchers: tests/cli/launch_test.sh.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/descriptor.h"
#include "host/bootstrap/meeting_place.h"
#include "host/bootstrap/world.h"
#include "host/launch/launcher.h"
#include "host/launch/meeting.h"
#include "host/launch/pmix.h"

#if GDX_HAS_PMIX_HEADER
#include <pmix.h>
#endif

namespace gdx {
namespace launch_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Variables = std::vector<std::pair<const char*, const char*>>;

// Every variable that decides.
constexpr std::array kAll = {"GDX_RANK",
                             "GDX_WORLD_SIZE",
                             "GDX_ROOT",
                             "GDX_BOOTSTRAP_TIMEOUT_S",
                             "PMIX_RANK",
                             "PMIX_NAMESPACE",
                             "PMI_RANK",
                             "PMI_SIZE",
                             "PMI_FD",
                             "PMI_PORT",
                             "PMI_ID",
                             "MPI_LOCALNRANKS",
                             "RANK",
                             "WORLD_SIZE",
                             "LOCAL_WORLD_SIZE",
                             "MASTER_ADDR",
                             "MASTER_PORT",
                             "TORCHELASTIC_RUN_ID",
                             "SLURM_PROCID",
                             "SLURM_NTASKS",
                             "SLURM_STEP_NUM_TASKS",
                             "SLURM_STEP_TASKS_PER_NODE",
                             "SLURM_LOCALID",
                             "LOCAL_RANK",
                             "MPI_LOCALRANKID",
                             "OMPI_COMM_WORLD_LOCAL_RANK",
                             "OMPI_COMM_WORLD_RANK",
                             "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_SIZE",
                             "MV2_COMM_WORLD_RANK",
                             "MV2_COMM_WORLD_SIZE",
                             "FLUX_TASK_RANK",
                             "FLUX_JOB_SIZE"};

class Launch : public ::testing::Test {
 protected:
  void SetUp() override { set({}); }
  void TearDown() override { set({}); }

  static void set(const Variables& variables) {
    for (const char* const name : kAll) unsetenv(name);
    for (const auto& [name, value] : variables) setenv(name, value, 1);
  }
  static std::string refusal(const Variables& variables) {
    set(variables);
    const auto options = WorldOptions::from_environment();
    return options ? "accepted" : options.error().message;
  }
  static std::string place(const Variables& variables) {
    set(variables);
    const auto options = WorldOptions::from_environment();
    return options ? launch::place_text(options->rank, options->size) + " " + options->root
                   : options.error().message;
  }
};

const Variables slurm = {{"SLURM_PROCID", "2"}, {"SLURM_STEP_NUM_TASKS", "4"}};
const Variables torch = {{"TORCHELASTIC_RUN_ID", "a"}, {"RANK", "3"},           {"WORLD_SIZE", "4"},
                         {"LOCAL_WORLD_SIZE", "4"},    {"MASTER_ADDR", "node"}, {"MASTER_PORT", "29500"}};

Variables with(Variables variables, const Variables& more) {
  variables.insert(variables.end(), more.begin(), more.end());
  return variables;
}

Variables without(Variables variables, const char* name) {
  std::erase_if(variables, [&](const auto& one) { return std::string_view(one.first) == name; });
  return variables;
}

TEST_F(Launch, each_launcher_with_one_variable_missing_is_refused_by_that_name) {
  const Variables pmi = {{"PMI_RANK", "0"}, {"PMI_SIZE", "4"}, {"PMI_FD", "900"}};
  const std::pair<Variables, std::vector<const char*>> launchers[] = {
      {{{"PMIX_RANK", "0"}, {"PMIX_NAMESPACE", "job"}}, {"PMIX_RANK", "PMIX_NAMESPACE"}},
      {pmi, {"PMI_RANK", "PMI_SIZE", "PMI_FD"}},
      {{{"PMI_PORT", "127.0.0.1:1"}, {"PMI_ID", "0"}}, {"PMI_ID"}},
      {torch, {"RANK", "WORLD_SIZE"}},
      {slurm, {"SLURM_PROCID"}},
      {{{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "4"}},
       {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}},
      {{{"MV2_COMM_WORLD_RANK", "0"}, {"MV2_COMM_WORLD_SIZE", "4"}},
       {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"}},
      {{{"FLUX_TASK_RANK", "0"}, {"FLUX_JOB_SIZE", "4"}}, {"FLUX_TASK_RANK", "FLUX_JOB_SIZE"}}};
  for (const auto& [whole, needed] : launchers) {
    for (const char* const name : needed) {
      const Variables half = without(whole, name);
      EXPECT_THAT(refusal(half),
                  AllOf(StartsWith(std::string(name) + " is not set"), HasSubstr("go together")));
      EXPECT_THAT(describe_launch(), StartsWith("refused: " + std::string(name)));
      EXPECT_EQ(place(with(half, {{"GDX_RANK", "0"}, {"GDX_WORLD_SIZE", "1"}})), "rank 0 of 1 ")
          << "gdx's own variables help";
    }
  }
}

TEST_F(Launch, rank_and_size_without_a_way_to_meet_need_a_root) {
  EXPECT_EQ(refusal(slurm),
            "srun started this as rank 2 of 4: start it by srun --mpi=pmi2 or --mpi=pmix, or set "
            "GDX_ROOT=HOST:PORT, where rank 0 is to listen");
  EXPECT_EQ(
      refusal(torch),
      "torchrun started this as rank 3 of 4: MASTER_PORT is torchrun's own: set GDX_ROOT=HOST:PORT, the "
      "same for all ranks, with a free port of rank 0's host");
  EXPECT_EQ(
      refusal({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "4"}}),
      "mpirun of Open MPI started this as rank 1 of 4: set GDX_ROOT=HOST:PORT, where rank 0 is to listen");
  const Variables root = {{"GDX_ROOT", "node:5000"}};
  EXPECT_EQ(place(with(slurm, root)), "rank 2 of 4 node:5000");
  EXPECT_EQ(place(with(torch, root)), "rank 3 of 4 node:5000");
  EXPECT_EQ(place({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "node"}, {"GDX_ROOT", "node:5000"}}),
            "rank 1 of 2 node:5000");
  EXPECT_EQ(
      describe_launch(),
      "rank 1 of 2 by torchrun, meeting at GDX_ROOT (order: GDX_ variables, torchrun, PMIx, PMI, variables "
      "of srun and of other launchers)");
}

// As Python does, by torchrun's store.
TEST_F(Launch, program_that_tells_its_ranks_where_they_meet_needs_no_root) {
  const auto options_by = [](const Variables& variables) {
    set(variables);
    return WorldOptions::from_environment([](const std::string&, std::uint64_t) { return "told"; }).value();
  };
  const WorldOptions alone = options_by(torch);
  EXPECT_EQ(launch::place_text(alone.rank, alone.size), "rank 3 of 4");
  EXPECT_TRUE(alone.one_host);
  EXPECT_EQ(alone.tell_root("", 0).value(), "told");
  const WorldOptions hosts = options_by(with(torch, {{"LOCAL_WORLD_SIZE", "2"}}));
  EXPECT_FALSE(hosts.one_host);
  EXPECT_THAT(hosts.secret_readers, HasSubstr("whoever reads its words can read it"));
  for (const Variables& other : {with(torch, {{"GDX_ROOT", "node:5000"}}), Variables{}})
    EXPECT_EQ(options_by(other).tell_root, nullptr);
}

TEST_F(Launch, what_is_no_launch_of_several_ranks_is_a_world_of_one) {
  for (const Variables& alone : std::initializer_list<Variables>{
           {},
           {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}},  // a batch script
           {{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}},
           {{"MASTER_ADDR", "node"}, {"MASTER_PORT", "29500"}},
           {{"RANK", "7"}, {"WORLD_SIZE", "8"}},  // names that other programs use
           with(torch, {{"RANK", "0"}, {"WORLD_SIZE", "1"}})})
    EXPECT_EQ(place(alone), "rank 0 of 1 ");
}

TEST_F(Launch, contradictions_are_refused_with_both_places) {
  const Variables given = {{"GDX_RANK", "1"}, {"GDX_WORLD_SIZE", "2"}, {"GDX_ROOT", "node:5000"}};
  const Variables pmi = {{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}, {"PMI_FD", "900"}};
  EXPECT_EQ(
      refusal(with(given, pmi)),
      "GDX_RANK and GDX_WORLD_SIZE say rank 1 of 2, PMI of mpiexec says rank 1 of 4: start ranks by one of "
      "them, under a launcher by `gdx run` without --ranks");
  EXPECT_EQ(place(with(given, with(pmi, {{"PMI_SIZE", "2"}}))), "rank 1 of 2 node:5000");
  EXPECT_EQ(place(with(given, with(pmi, {{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}))), "rank 1 of 2 node:5000");
  EXPECT_EQ(place(with(given, slurm)), "rank 1 of 2 node:5000") << "srun of daemons, inherited";
  const Variables pmix = {{"PMIX_RANK", "3"}, {"PMIX_NAMESPACE", "job"}, {"OMPI_COMM_WORLD_SIZE", "4"}};
  EXPECT_THAT(refusal(with(given, pmix)), HasSubstr("PMIx of mpirun says rank 3 of 4"));
  EXPECT_THAT(refusal(with(pmix, pmi)),
              StartsWith("PMIx of mpirun says rank 3 of 4 and PMI of mpiexec says rank 1 of 4: "));
  EXPECT_THAT(refusal(with(slurm, {{"SLURM_PROCID", "4"}})), StartsWith("srun says rank 4 of 4: "));
  EXPECT_THAT(refusal(with(torch, {{"RANK", "x"}})), StartsWith("RANK = 'x': use a number"));
}

// torchrun's workers inherit the variables of what started torchrun on each node.
TEST_F(Launch, torchrun_comes_before_what_started_it) {
  const Variables pmi = {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"PMI_FD", "900"}};
  EXPECT_THAT(refusal(with(torch, with(pmi, slurm))), StartsWith("torchrun started this as rank 3 of 4"));
  const Variables by_hand = without(torch, "TORCHELASTIC_RUN_ID");
  EXPECT_THAT(refusal(with(by_hand, pmi)), StartsWith("PMI_FD = '900' is no open socket"));
}

TEST_F(Launch, each_launcher_has_its_line_for_the_software_hca) {
  const auto command = [](const Variables& variables) {
    set(variables);
    return launch::find_launcher()->command;
  };
  EXPECT_EQ(command(torch), "`gdx run -- torchrun ...`");
  EXPECT_EQ(command(slurm), "`srun ... gdx run -- PROGRAM`");
  EXPECT_EQ(command({{"PMIX_RANK", "0"}, {"PMIX_NAMESPACE", "job"}}), "`mpirun ... gdx run -- PROGRAM`");
  EXPECT_EQ(command({{"PMI_PORT", "node:1"}, {"PMI_ID", "0"}}), "`mpiexec ... gdx run -- PROGRAM`");
  EXPECT_EQ(command({}), "");
}

TEST_F(Launch, place_on_the_host_is_the_launchers) {
  const auto local = [](const Variables& variables) {
    set(variables);
    const auto launcher = launch::find_launcher();
    return std::pair(launcher->local_rank.value_or(99), launcher->local_size.value_or(99));
  };
  const auto place_by = [&](const char* tasks) {
    return local(with(slurm, {{"SLURM_LOCALID", "1"}, {"SLURM_STEP_TASKS_PER_NODE", tasks}}));
  };
  EXPECT_EQ(place_by("4"), std::pair(1u, 4u));
  EXPECT_EQ(place_by("2(x2)"), std::pair(1u, 2u));
  EXPECT_EQ(place_by("1,3"), std::pair(1u, 3u));
  EXPECT_EQ(place_by("3,1"), std::pair(1u, 3u));
  EXPECT_EQ(place_by("many"), std::pair(1u, 99u));
  EXPECT_EQ(local(with(torch, {{"LOCAL_RANK", "3"}})), std::pair(3u, 4u));
  EXPECT_EQ(local({{"PMIX_RANK", "0"},
                   {"PMIX_NAMESPACE", "job"},
                   {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}}),
            std::pair(2u, 3u));
  EXPECT_EQ(local({{"PMI_RANK", "5"},
                   {"PMI_SIZE", "8"},
                   {"PMI_FD", "900"},
                   {"MPI_LOCALRANKID", "1"},
                   {"MPI_LOCALNRANKS", "4"}}),
            std::pair(1u, 4u));
}

// Answers each line of the client by the next of `answers`, and then ends the connection or stays mute.
class Server {
 public:
  Server(std::vector<std::string> answers, bool ends) {
    int ends_of[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends_of), 0);
    client_ = Descriptor(ends_of[0]);
    setenv("PMI_FD", std::to_string(client_.value()).c_str(), 1);
    setenv("PMI_RANK", "0", 1);
    setenv("PMI_SIZE", "2", 1);
    thread_ = std::thread([own = Descriptor(ends_of[1]), answers = std::move(answers), ends] {
      std::array<char, 4096> line{};
      for (const std::string& answer : answers) {
        if (recv(own.value(), line.data(), line.size(), 0) <= 0) return;
        send(own.value(), answer.data(), answer.size(), MSG_NOSIGNAL);
      }
      while (!ends && recv(own.value(), line.data(), line.size(), 0) > 0) {
      }
    });
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server() {
    client_.close();
    thread_.join();
  }

 private:
  Descriptor client_;
  std::thread thread_;
};

constexpr char kHello[] = "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n";
constexpr char kSpace[] = "cmd=my_kvsname kvsname=space\n";
constexpr std::uint64_t kSoonNs = 50'000'000;
constexpr std::uint64_t kLateNs = 60'000'000'000;

TEST_F(Launch, pmi_that_refuses_ends_or_is_mute_is_an_error_in_time) {
  const auto told = [](std::vector<std::string> answers, bool ends) {
    const Server server(std::move(answers), ends);
    const auto launcher = launch::find_launcher();
    // A mute server ends at a near deadline, so that the others do not wait for theirs.
    const auto pmi = launch::open_pmi(*launcher, monotonic_ns() + kLateNs);
    if (!pmi) return pmi.error().message;
    const auto got = (*pmi)->exchange("5000,10.0.0.1", monotonic_ns() + (ends ? kLateNs : kSoonNs));
    return got ? *got : got.error().message;
  };
  const std::vector<std::string> met = {kHello, kSpace, "cmd=put_result rc=0 msg=success\n",
                                        "cmd=barrier_out\n",
                                        "cmd=get_result rc=0 msg=success value=5000,10.0.0.1\n"};
  EXPECT_EQ(told(met, true), "5000,10.0.0.1");
  EXPECT_THAT(told({met.begin(), met.begin() + 3}, false),
              AllOf(StartsWith("rank 0 of 2 waited at the barrier"), HasSubstr("GDX_BOOTSTRAP_TIMEOUT_S")));
  for (std::size_t count = 0; count < met.size(); ++count) {
    const std::vector<std::string> first(met.begin(), met.begin() + static_cast<std::ptrdiff_t>(count));
    EXPECT_THAT(told(first, true), HasSubstr("PMI of mpiexec")) << count << " answers, then an end";
    auto refused = first;
    refused.emplace_back("cmd=none rc=-1 msg=no\n");
    EXPECT_THAT(told(refused, true), HasSubstr("answers 'cmd=none rc=-1 msg=no' to 'cmd=")) << count;
    const std::string name = met[count].substr(0, met[count].find_first_of(" \n"));
    auto unsuccessful = first;
    unsuccessful.push_back(name + " rc=-1\n");
    EXPECT_THAT(told(unsuccessful, true), HasSubstr("answers '" + name + " rc=-1' to 'cmd=")) << count;
    auto endless = first;
    endless.emplace_back(8192, 'x');
    EXPECT_THAT(told(endless, true), HasSubstr("no line of PMI-1")) << count;
  }
}

TEST(MeetingPlace, address_of_rank_0_is_one_that_leads_there) {
  using bootstrap::choose_address;
  using bootstrap::HostAddress;
  const auto bytes = [](std::initializer_list<int> numbers) {
    std::vector<std::byte> all;
    for (const int number : numbers) all.push_back(static_cast<std::byte>(number));
    return all;
  };
  const std::vector<HostAddress> own = {{"172.17.0.1", bytes({172, 17, 0, 1}), 16},
                                        {"10.1.0.2", bytes({10, 1, 0, 2}), 24}};
  const std::vector<std::string> near = {"172.17.0.1", "192.168.0.1", "10.1.0.1"};
  EXPECT_EQ(choose_address(near, own), "10.1.0.1") << "on a network of this host";
  const std::vector<std::string> far = {"172.17.0.1", "10.1.1.1", "192.168.0.1"};
  EXPECT_EQ(choose_address(far, own), "10.1.1.1") << "the first that is not a bridge here, too";
  const std::vector<std::string> same = {"172.17.0.1", "10.1.0.2"};
  EXPECT_EQ(choose_address(same, own), "172.17.0.1") << "this host";
}

TEST(MeetingPlace, interfaces_are_named_as_nccl_names_them) {
  const std::vector<bootstrap::HostAddress> own = {
      {"1", {}, 0, "eth0"}, {"2", {}, 0, "eth10"}, {"3", {}, 0, "ib0"}, {"4", {}, 0, "docker0"}};
  const auto named = [&](std::string_view words) {
    std::string texts;
    for (const auto& address : bootstrap::addresses_named(own, words)) texts += address.text;
    return texts;
  };
  EXPECT_EQ(named("eth"), "12");
  EXPECT_EQ(named("ib,eth1"), "23");
  EXPECT_EQ(named("=eth1"), "");
  EXPECT_EQ(named("=eth10,docker0"), "24");
  EXPECT_EQ(named("^docker,ib"), "12");
  EXPECT_EQ(named("^=eth0"), "234");
  EXPECT_EQ(named("lo"), "");
  EXPECT_EQ(named(""), "");
}

// Four ranks as threads, whose allgather is a barrier of this process.
TEST(ByAllgather, ranks_meet_by_the_programs_own_allgather) {
  static constexpr std::uint32_t kRanks = 4;
  std::mutex mutex;
  std::condition_variable all_here;
  std::vector<std::byte> shared(kRanks * 4096);
  std::uint32_t arrivals = 0;
  const auto rank_main = [&](std::uint32_t rank) {
    const auto barrier = [&] {
      std::unique_lock lock(mutex);
      const std::uint32_t round = arrivals++ / kRanks;
      all_here.notify_all();
      all_here.wait(lock, [&] { return arrivals / kRanks > round; });
    };
    const auto allgather = [&, rank](const void* mine, void* all, std::size_t count) {
      barrier();
      std::memcpy(shared.data() + rank * count, mine, count);
      barrier();
      std::memcpy(all, shared.data(), count * kRanks);
      return true;
    };
    const auto options = WorldOptions::by_allgather(rank, kRanks, allgather);
    ASSERT_TRUE(options) << options.error().message;
    EXPECT_TRUE(options->one_host);
    auto world = World::join(*options);
    ASSERT_TRUE(world) << world.error().message;
    const auto ranks = world->allgather_value(rank, kLateNs);
    ASSERT_TRUE(ranks);
    EXPECT_EQ(*ranks, (std::vector<std::uint32_t>{0, 1, 2, 3}));
    EXPECT_EQ(world->address(), "127.0.0.1");
  };
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) threads.emplace_back(rank_main, rank);
  for (auto& thread : threads) thread.join();
}

TEST(ByAllgather, failures_of_the_program_are_told) {
  const auto fails = [](const void*, void*, std::size_t) { return false; };
  EXPECT_EQ(WorldOptions::by_allgather(0, 2, fails).error().message,
            "the program's allgather failed: see what it says");
  EXPECT_EQ(WorldOptions::by_allgather(2, 2, fails).error().message,
            "rank 2 of 2 is impossible: use 1 to 16384 ranks, from rank 0");
  const auto zeroes = [](const void*, void* all, std::size_t bytes) {
    std::memset(all, 0, 2 * bytes);
    return true;
  };
  const auto options = WorldOptions::by_allgather(1, 2, zeroes);
  ASSERT_TRUE(options);
  EXPECT_FALSE(options->one_host);
  EXPECT_EQ(World::join(*options).error().message,
            "'' is not where a rank 0 listens: start the same program on all ranks");
}

#if GDX_HAS_PMIX_HEADER
TEST(Pmix, own_declarations_are_those_of_the_library) {
  namespace own = launch::pmix;
  EXPECT_EQ(sizeof(own::Process), sizeof(pmix_proc_t));
  EXPECT_EQ(offsetof(own::Process, rank), offsetof(pmix_proc_t, rank));
  EXPECT_EQ(sizeof(own::Value), sizeof(pmix_value_t));
  EXPECT_EQ(offsetof(own::Value, data), offsetof(pmix_value_t, data));
  EXPECT_EQ(own::kString, PMIX_STRING);
  EXPECT_EQ(own::kUint32, PMIX_UINT32);
  EXPECT_EQ(own::kGlobal, PMIX_GLOBAL);
  EXPECT_EQ(own::kEveryRank, PMIX_RANK_WILDCARD);
  EXPECT_EQ(own::kSuccess, PMIX_SUCCESS);
  EXPECT_STREQ(PMIX_JOB_SIZE, "pmix.job.size");
  EXPECT_STREQ(PMIX_LOCAL_SIZE, "pmix.local.size");
}
#endif

}  // namespace launch_test
}  // namespace gdx
