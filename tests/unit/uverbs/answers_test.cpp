// Files of the software HCA in /sys, and its answers by RDMA netlink: all of them, as text.
#include <rdma/rdma_netlink.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "driver-shim/softhca/uverbs/netlink_message.h"
#include "driver-shim/softhca/uverbs/rdma_netlink.h"
#include "driver-shim/softhca/uverbs/sysfs.h"
#include "tests/expected_text.h"
#include "tests/unit/uverbs/device_node.h"

namespace gdx::softhca::uverbs {
namespace answers_test {

namespace fs = std::filesystem;

// The kinds of address and link layer that a port may have.
class Tree : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "gdx-answers-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    const char* const before = std::getenv("TMPDIR");
    if (before != nullptr) before_ = before;
    setenv("TMPDIR", folder_.c_str(), 1);
    add("gdx0", "127.0.0.2", false);
    add("gdx1", "127.0.1.200", true);
    add("gdx2", "2001:db8::2:103", false);  // for documentation: no interface has it
  }
  void TearDown() override {
    if (before_.empty()) {
      unsetenv("TMPDIR");
    } else {
      setenv("TMPDIR", before_.c_str(), 1);
    }
    std::error_code error;
    fs::remove_all(folder_, error);
  }
  void add(const std::string& name, const std::string& address, bool infiniband) {
    HcaConfig config;
    config.name = name;
    config.infiniband = infiniband;
    if (infiniband) config.pkeys.push_back(0x0001);
    config.device_memory_bytes = 0;
    auto wire = std::make_unique<EchoWire>(*wire::Address::parse(address));
    made_.push_back(std::make_unique<Engine>(config, std::move(wire), nullptr, [] { return 1u; }));
    hcas_.push_back(made_.back().get());
  }
  // Replaces what is this process's, user's or machine's own.
  std::string plain(const std::string& text) const {
    return replaced(replaced(text, folder_, "TMPDIR"), fmt::format("-{}-", geteuid()), "-UID-");
  }
  std::string folder_;
  std::string before_;
  std::vector<std::unique_ptr<Hca>> made_;
  std::vector<Hca*> hcas_;
};

// A line for each file, folder and link: its mode, path, and content or target.
std::vector<std::string> lines_of(const fs::path& root) {
  std::vector<std::string> lines;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    struct stat status {};
    lstat(entry.path().c_str(), &status);
    std::string line = fmt::format("{} {:04o}", entry.path().lexically_relative(root).string(),
                                   entry.is_symlink() ? 0 : status.st_mode & 07777);
    if (entry.is_symlink()) {
      line += " -> ";
      line += fs::read_symlink(entry.path()).string();
    } else if (entry.is_regular_file()) {
      std::ifstream file(entry.path());
      const std::string content(std::istreambuf_iterator<char>(file), {});
      line += content.empty() ? ":" : ": ";
      line += replaced(content, "\n", "$");
    }
    lines.push_back(std::move(line));
  }
  std::ranges::sort(lines);
  return lines;
}

TEST_F(Tree, is_that_of_the_files_of_mlx5_whatever_the_umask) {
  const mode_t before = umask(0077);
  const auto tree = SysfsTree::create(hcas_);
  umask(before);
  ASSERT_TRUE(tree) << tree.error().message;
  const unsigned cpus = std::max(1u, std::thread::hardware_concurrency());
  const std::string mask = fmt::format("{:08x}", cpus >= 32 ? ~0u : (1u << cpus) - 1);
  const std::string list = cpus == 1 ? "0" : fmt::format("0-{}", cpus - 1);
  std::string text;
  for (const std::string& line : lines_of((*tree)->root())) {
    text += replaced(replaced(line, "local_cpus 0644: " + mask, "local_cpus 0644: ALL"),
                     "local_cpulist 0644: " + list, "local_cpulist 0644: ALL");
    text += '\n';
  }
  expect_text("sysfs.txt", text);
}

TEST_F(Tree, shows_each_counter_in_its_file_and_in_that_of_its_hca_alone) {
  const auto tree = SysfsTree::create(hcas_);
  ASSERT_TRUE(tree);
  std::array<std::uint64_t, sizeof(HcaCounters) / sizeof(std::uint64_t)> words{};
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = 1000 + i;
  ASSERT_TRUE((*tree)->write_counters(*hcas_[1], std::bit_cast<HcaCounters>(words)));
  std::string text;
  for (const std::string& line : lines_of((*tree)->root())) {
    if (line.find("counters/") == std::string::npos || line.ends_with(": 0$")) continue;
    text += line.substr(line.find("infiniband/"));
    text += '\n';
  }
  expect_text("counters.txt", text);
  fs::create_directory((*tree)->root() + "/next_counter");
  EXPECT_FALSE((*tree)->write_counters(*hcas_[1], {}));
}

TEST_F(Tree, that_cannot_be_made_names_its_folder_and_the_cause_and_leaves_nothing) {
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  rlimit none = before;
  none.rlim_cur = 0;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
  const auto full = SysfsTree::create(hcas_);
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  ASSERT_FALSE(full);
  std::string message = plain(full.error().message);
  message.replace(message.find("-UID-") + 5, 6, "XXXXXX");
  EXPECT_EQ(message,
            "cannot fill TMPDIR/gdx-softhca-UID-XXXXXX: File too large; set TMPDIR to a folder with room for "
            "a hundred small files");
  EXPECT_TRUE(fs::is_empty(folder_));
  setenv("TMPDIR", (folder_ + "/none").c_str(), 1);
  const auto nowhere = SysfsTree::create(hcas_);
  ASSERT_FALSE(nowhere);
  EXPECT_EQ(plain(nowhere.error().message),
            "cannot make a directory TMPDIR/none/gdx-softhca-UID-XXXXXX: No such file or directory; set "
            "TMPDIR to a folder that can be written");
}

// Attributes of RDMA_NLDEV by number and name. The name of one that holds others ends with {, that of a text
// with '. A line of its own begins at a *.
constexpr char kNames[] =
    "1 dev 2 name' 3 port 4 cap_flags 5 fw' 6 node_guid 7 sys_image_guid 12 state 13 phys_state "
    "14 node_type 15 summary{ 16 *entry{ 17 name' 18 current 19 qps{ 20 *qp{ 21 lqpn 22 rqpn 23 rq_psn "
    "24 sq_psn 25 path_mig_state 26 type 27 qp_state 28 pid 35 cqs{ 36 *cq{ 37 cqe 38 users 40 mrs{ "
    "41 *mr{ 42 rkey 43 lkey 44 iova 45 mrlen 46 pds{ 47 *pd{ 50 netdev 51 netdev_name' 60 pdn 61 cqn "
    "62 mrn 64 ctxn 66 netns_shared 67 protocol' 70 chardev_name' 71 abi 72 chardev 73 driver "
    "80 counters{ 81 *counter{ 82 name' 83 value 86 contexts{ 87 *context{ 88 srqs{ 89 *srq{ 90 srqn "
    "93 copy_on_fork";

template <typename T>
T head_of(std::span<const std::byte> bytes) {
  T head{};
  std::memcpy(&head, bytes.data(), std::min(sizeof head, bytes.size()));
  return head;
}

std::string name_of(int attribute) {
  std::istringstream names(kNames);
  std::string name;
  for (int number = 0; names >> number >> name;) {
    if (number == attribute) return name.starts_with('*') ? "\n    " + name.substr(1) : " " + name;
  }
  return fmt::format(" unknown {}", attribute);
}

// A number is followed by its bytes in parentheses.
std::string text_of(std::span<const std::byte> attributes) {
  std::string text;
  while (attributes.size() >= sizeof(nlattr)) {
    const auto header = head_of<nlattr>(attributes);
    const auto body = attributes.subspan(sizeof header, header.nla_len - sizeof header);
    const std::string name = name_of(header.nla_type);
    const std::string all(reinterpret_cast<const char*>(body.data()), body.size());
    text += name;
    if (name.ends_with('{')) {
      text += text_of(body);
      text += " }";
    } else if (name.ends_with('\'')) {
      text += replaced(all, std::string(1, '\0'), "'");
    } else {
      text += fmt::format(" {:#x}({})", head_of<std::uint64_t>(body), body.size());
    }
    attributes = attributes.subspan(std::min<std::size_t>(NLA_ALIGN(header.nla_len), attributes.size()));
  }
  return text;
}

std::string text_of_reply(const std::string& reply) {
  const auto bytes = std::as_bytes(std::span(reply));
  const auto header = head_of<nlmsghdr>(bytes);
  EXPECT_EQ(header.nlmsg_len, reply.size());
  const auto body = bytes.subspan(sizeof header);
  std::string text = fmt::format("  {:#06x} flags {:#x} to {}.{}:", header.nlmsg_type, header.nlmsg_flags,
                                 header.nlmsg_pid, header.nlmsg_seq);
  if (header.nlmsg_type == NLMSG_ERROR) {
    const auto error = head_of<nlmsgerr>(body);
    return text + fmt::format(" error {} of {:#06x} flags {:#x}\n", error.error, error.msg.nlmsg_type,
                              error.msg.nlmsg_flags);
  }
  if (header.nlmsg_type == NLMSG_DONE) return text + fmt::format(" done {}\n", head_of<int>(body));
  return text + text_of(body) + '\n';
}

using Numbers = std::vector<std::pair<std::uint16_t, std::uint32_t>>;
constexpr std::uint16_t kDev = RDMA_NLDEV_ATTR_DEV_INDEX;
constexpr std::uint16_t kPort = RDMA_NLDEV_ATTR_PORT_INDEX;

std::string request(std::uint16_t command, std::uint16_t flags, const Numbers& numbers,
                    const char* node_type = nullptr) {
  NetlinkMessage message(RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, command), NLM_F_REQUEST | flags, 17, 4);
  if (node_type != nullptr) message.put_text(RDMA_NLDEV_ATTR_CHARDEV_TYPE, node_type);
  for (const auto& [attribute, number] : numbers) message.put(attribute, number);
  return message.finish();
}

class RdmaNetlinkAnswers : public testing::Test {
 protected:
  RdmaNetlinkAnswers() {
    hcas_.push_back({"gdx0", wire::Address::ipv4(0x7f000002), {{"hw_counters/a", 1}}, {}});
    hcas_.push_back({"gdx1", *wire::Address::parse("2001:db8::2:103"), {}, {}});
    hcas_[0].counters.emplace_back("counters/b", 2);
    hcas_[0].counters.emplace_back("hw_counters/c", ~std::uint64_t{0});
    for (std::uint32_t i = 0; i < 24; ++i) {
      Resource one;
      one.kind = static_cast<ResourceKind>(i % 6);
      one.number = 0x10 + i;
      one.process = 0x7000 + i;
      one.context = 0x200 + i;
      one.pd = i < 18 ? 0x300 + i : 0;
      one.users = 0x400 + i;
      one.extent = 0x500'0000'0000 + i;
      one.iova = 0x600'0000'0000 + i;
      add(one, i);
    }
    for (std::uint32_t i = 0; i < 7; ++i) {
      Resource one;
      one.kind = ResourceKind::kQp;
      one.number = 0x60 + i;
      one.type = static_cast<QpType>(i % 3);
      one.attributes.state = static_cast<QpState>(i);
      add(one, i);
    }
  }
  void add(Resource& one, std::uint32_t i) {
    one.attributes.port = 1;
    one.attributes.remote_qpn = 0x90'0000 + i;
    one.attributes.receive_psn = 0xa0'0000 + i;
    one.attributes.send_psn = 0xb0'0000 + i;
    hcas_[0].resources.push_back(one);
  }
  // The text of the answers to a datagram, and of what of the inventory they took.
  std::string answers(const std::string& datagram, bool dumping = false) const {
    std::string text;
    const auto inventory = [&](bool of_all_processes) {
      text += of_all_processes ? "  all processes\n" : "  this process\n";
      return hcas_;
    };
    const auto replies =
        answer_netlink(std::as_bytes(std::span(datagram)), {.port = 9, .dumping = dumping}, inventory);
    for (const std::string& reply : replies) text += text_of_reply(reply);
    return text;
  }

  std::vector<HcaInventory> hcas_;
};

TEST_F(RdmaNetlinkAnswers, to_each_command_by_get_and_dump) {
  const std::pair<const char*, std::pair<std::uint16_t, Numbers>> questions[] = {
      {"get", {0, {}}},
      {"get of 0, port 1", {0, {{kDev, 0}, {kPort, 1}}}},
      {"get of 1, port 2", {0, {{kDev, 1}, {kPort, 2}}}},
      {"get of 2, port 1", {0, {{kDev, 2}, {kPort, 1}}}},
      {"dump", {NLM_F_DUMP, {}}},
      {"dump of 0", {NLM_F_DUMP, {{kDev, 0}}}},
      {"dump of 1", {NLM_F_DUMP, {{kDev, 1}}}},
      {"dump of 2", {NLM_F_DUMP, {{kDev, 2}}}}};
  std::string text;
  for (std::uint16_t command = 0; command < 40; ++command) {
    for (const auto& [what, question] : questions) {
      text += fmt::format("command {}, {}\n", command, what);
      text += answers(request(command, question.first, question.second));
    }
  }
  expect_text("netlink_commands.txt", text);
}

TEST_F(RdmaNetlinkAnswers, to_who_asks_for_one_resource_node_or_counter) {
  const std::pair<std::uint16_t, std::uint16_t> tables[] = {
      {RDMA_NLDEV_CMD_RES_PD_GET, RDMA_NLDEV_ATTR_RES_PDN},
      {RDMA_NLDEV_CMD_RES_CQ_GET, RDMA_NLDEV_ATTR_RES_CQN},
      {RDMA_NLDEV_CMD_RES_QP_GET, RDMA_NLDEV_ATTR_RES_LQPN},
      {RDMA_NLDEV_CMD_RES_MR_GET, RDMA_NLDEV_ATTR_RES_MRN},
      {RDMA_NLDEV_CMD_RES_CTX_GET, RDMA_NLDEV_ATTR_RES_CTXN},
      {RDMA_NLDEV_CMD_RES_SRQ_GET, RDMA_NLDEV_ATTR_RES_SRQN}};
  std::string text;
  for (const auto& [command, number] : tables) {
    for (std::uint32_t i = 0x16; i < 0x1d; ++i) {
      text += fmt::format("command {} of 0, {:#x}\n", command, i);
      text += answers(request(command, 0, {{kDev, 0}, {number, i}}));
    }
    text += answers(request(command, 0, {{kDev, 1}, {number, 0x16}}));
  }
  for (const char* const type : {"uverbs", "rdma_cm", "uverb", "uverbs0", "umad", ""}) {
    for (std::uint32_t hca = 0; hca < 3; ++hca) {
      text += fmt::format("node '{}' of {}\n", type, hca);
      text += answers(request(RDMA_NLDEV_CMD_GET_CHARDEV, 0, {{kDev, hca}}, type));
    }
  }
  text += "node 'uverbs' of none\n" + answers(request(RDMA_NLDEV_CMD_GET_CHARDEV, 0, {}, "uverbs"));
  NetlinkMessage bare(RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_GET_CHARDEV), NLM_F_REQUEST, 17, 4);
  bare.nest(RDMA_NLDEV_ATTR_CHARDEV_TYPE, [] {});
  text += "node without a type\n" + answers(bare.finish());
  text += "counters of a queue pair\n";
  text +=
      answers(request(RDMA_NLDEV_CMD_STAT_GET, 0, {{kDev, 0}, {kPort, 1}, {RDMA_NLDEV_ATTR_STAT_RES, 0x16}}));
  NetlinkMessage brief(RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_GET), NLM_F_REQUEST, 17, 4);
  brief.put(kDev, std::uint16_t{0});
  text += "HCA in two bytes\n" + answers(brief.finish());
  expect_text("netlink_single.txt", text);
}

TEST_F(RdmaNetlinkAnswers, to_datagrams_of_any_form) {
  std::string text;
  const auto ask = [&](const char* what, const std::string& datagram, bool dumping = false) {
    text += fmt::format("{}\n{}", what, answers(datagram, dumping));
  };
  const std::string get = request(RDMA_NLDEV_CMD_GET, 0, {{kDev, 0}});
  const std::string dump = request(RDMA_NLDEV_CMD_RES_PD_GET, NLM_F_DUMP, {{kDev, 0}});
  const auto changed = [&get](std::uint16_t type, std::uint16_t flags) {
    std::string message = get;
    std::memcpy(message.data() + offsetof(nlmsghdr, nlmsg_type), &type, sizeof type);
    std::memcpy(message.data() + offsetof(nlmsghdr, nlmsg_flags), &flags, sizeof flags);
    return message;
  };
  const auto sized = [&get](std::uint32_t bytes, std::size_t sent) {
    std::string message = get;
    std::memcpy(message.data(), &bytes, sizeof bytes);
    message.resize(sent);
    return message;
  };
  constexpr std::uint16_t kGet = RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_GET);
  ask("get, acknowledged", changed(kGet, NLM_F_REQUEST | NLM_F_ACK));
  ask("get, without a request's flag", changed(kGet, 0));
  ask("the same, acknowledged", changed(kGet, NLM_F_ACK));
  ask("last control message", changed(NLMSG_MIN_TYPE - 1, NLM_F_REQUEST));
  ask("first command", changed(NLMSG_MIN_TYPE, NLM_F_REQUEST));
  ask("another client", changed(RDMA_NL_GET_TYPE(RDMA_NL_LS, RDMA_NLDEV_CMD_GET), NLM_F_REQUEST));
  ask("another client's dump",
      changed(RDMA_NL_GET_TYPE(RDMA_NL_LS, RDMA_NLDEV_CMD_GET), NLM_F_REQUEST | NLM_F_DUMP));
  ask("dump while one is read", dump, true);
  ask("get while a dump is read", get, true);
  ask("dump of what has none", request(RDMA_NLDEV_CMD_SYS_GET, NLM_F_DUMP, {}), true);
  ask("dump and get and dump and get", dump + get + dump + get);
  ask("get and dump", get + dump);
  ask("get twice", get + get);
  ask("nothing", "");
  ask("half a header", get.substr(0, 15));
  ask("a header that is shorter than it is", sized(15, get.size()));
  ask("a header alone", sized(16, 16));
  ask("an attribute cut short", sized(20, 20));
  ask("an attribute's header cut short", sized(19, 19));
  ask("longer than the datagram", sized(25, get.size()));
  ask("a byte more than the attributes", sized(25, 25) + std::string(3, '\0') + get);
  hcas_[0].resources.resize(400, hcas_[0].resources[1]);
  for (const std::string& reply :
       answer_netlink(std::as_bytes(std::span(dump)), {}, [this](bool) { return hcas_; }))
    text += fmt::format("of 400 resources: {} bytes\n", reply.size());
  expect_text("netlink_forms.txt", text);
}

}  // namespace answers_test
}  // namespace gdx::softhca::uverbs
