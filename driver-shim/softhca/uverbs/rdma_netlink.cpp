#include "driver-shim/softhca/uverbs/rdma_netlink.h"

#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/rdma_netlink.h>
#include <rdma/rdma_user_cm.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "driver-shim/softhca/uverbs/netlink_message.h"
#include "driver-shim/softhca/uverbs/sysfs.h"
#include "driver-shim/softhca/wire/addressing.h"
#include "driver-shim/softhca/wire/interface.h"

namespace gdx::softhca::uverbs {
namespace {

constexpr std::uint8_t kChannelAdapter = 1;  // enum rdma_node_type
constexpr std::uint8_t kPortActive = 4;
constexpr std::uint8_t kPhysicalLinkUp = 5;
constexpr std::uint64_t kPortCapabilities = IB_UVERBS_PCF_CM_SUP | IB_UVERBS_PCF_IP_BASED_GIDS;
constexpr std::uint32_t kUverbsAbi = 1;
constexpr std::uint8_t kSharedByNamespaces = 1;
// A reader's buffer may be no larger than a page.
constexpr std::size_t kMaxTableBytes = 3000;

// One request, and the data for its answer.
struct Question {
  const nlmsghdr& header;
  NetlinkAttributes attributes;
  const NetlinkAsker& asker;
  const std::vector<HcaInventory>& hcas;
  std::vector<std::string>& replies;

  [[nodiscard]] NetlinkMessage reply(std::uint16_t more_flags = 0) const {
    return {header.nlmsg_type, more_flags, header.nlmsg_seq, asker.port};
  }
  // Errors: EINVAL for one that is not there or too short.
  [[nodiscard]] ErrnoOr<std::uint32_t> number(std::uint16_t attribute) const {
    const auto found = attributes.find(attribute);
    std::uint32_t value = 0;
    if (found == attributes.end() || found->second.size() < sizeof value) return refuse(EINVAL);
    std::memcpy(&value, found->second.data(), sizeof value);
    return value;
  }
  // The HCA that the request names. Errors: EINVAL for none, or one that is not there.
  [[nodiscard]] ErrnoOr<std::uint32_t> hca() const {
    const ErrnoOr<std::uint32_t> index = number(RDMA_NLDEV_ATTR_DEV_INDEX);
    if (index && *index >= hcas.size()) return refuse(EINVAL);
    return index;
  }
};

void put_hca(NetlinkMessage& message, const Question& question, std::uint32_t index) {
  message.put(RDMA_NLDEV_ATTR_DEV_INDEX, index);
  message.put_text(RDMA_NLDEV_ATTR_DEV_NAME, question.hcas[index].name);
}

std::string describe_hca(const Question& question, std::uint32_t index, std::uint16_t flags) {
  const std::uint64_t guid = wire::guid_of(question.hcas[index].address);
  NetlinkMessage message = question.reply(flags);
  put_hca(message, question, index);
  message.put(RDMA_NLDEV_ATTR_PORT_INDEX, std::uint32_t{1});
  message.put_text(RDMA_NLDEV_ATTR_FW_VERSION, "28.0.0");
  message.put(RDMA_NLDEV_ATTR_NODE_GUID, guid);
  message.put(RDMA_NLDEV_ATTR_SYS_IMAGE_GUID, guid);
  message.put(RDMA_NLDEV_ATTR_DEV_NODE_TYPE, kChannelAdapter);
  message.put_text(RDMA_NLDEV_ATTR_DEV_PROTOCOL, "roce");
  return message.finish();
}

Errno get_hca(const Question& question) {
  const ErrnoOr<std::uint32_t> index = question.hca();
  if (!index) return index.error();
  question.replies.push_back(describe_hca(question, *index, 0));
  return 0;
}

Errno dump_hcas(const Question& question) {
  for (std::uint32_t index = 0; index < question.hcas.size(); ++index) {
    question.replies.push_back(describe_hca(question, index, NLM_F_MULTI));
  }
  return 0;
}

std::string describe_port(const Question& question, std::uint32_t index, std::uint16_t flags) {
  const wire::Interface interface = wire::interface_of(question.hcas[index].address);
  NetlinkMessage message = question.reply(flags);
  put_hca(message, question, index);
  message.put(RDMA_NLDEV_ATTR_PORT_INDEX, std::uint32_t{1});
  message.put(RDMA_NLDEV_ATTR_CAP_FLAGS, kPortCapabilities);
  message.put(RDMA_NLDEV_ATTR_PORT_STATE, kPortActive);
  message.put(RDMA_NLDEV_ATTR_PORT_PHYS_STATE, kPhysicalLinkUp);
  message.put(RDMA_NLDEV_ATTR_NDEV_INDEX, interface.index);
  message.put_text(RDMA_NLDEV_ATTR_NDEV_NAME, interface.name.data());
  return message.finish();
}

// The HCA of the request, whose port must be named and be 1.
ErrnoOr<std::uint32_t> hca_of_port(const Question& question) {
  const ErrnoOr<std::uint32_t> index = question.hca();
  const ErrnoOr<std::uint32_t> port = question.number(RDMA_NLDEV_ATTR_PORT_INDEX);
  if (!port || *port != 1) return refuse(EINVAL);
  return index;
}

Errno get_port(const Question& question) {
  const ErrnoOr<std::uint32_t> index = hca_of_port(question);
  if (!index) return index.error();
  question.replies.push_back(describe_port(question, *index, 0));
  return 0;
}

Errno dump_ports(const Question& question) {
  const ErrnoOr<std::uint32_t> index = question.hca();
  if (!index) return index.error();
  question.replies.push_back(describe_port(question, *index, NLM_F_MULTI));
  return 0;
}

Errno get_counters(const Question& question) {
  const ErrnoOr<std::uint32_t> index = hca_of_port(question);
  if (!index) return index.error();
  // Refuses counters of single queue pairs or regions, because there are none.
  if (question.attributes.contains(RDMA_NLDEV_ATTR_STAT_RES)) return EOPNOTSUPP;
  NetlinkMessage message = question.reply();
  put_hca(message, question, *index);
  message.put(RDMA_NLDEV_ATTR_PORT_INDEX, std::uint32_t{1});
  message.nest(RDMA_NLDEV_ATTR_STAT_HWCOUNTERS, [&] {
    constexpr std::string_view kFolder = "hw_counters/";
    for (const auto& counter : question.hcas[*index].counters) {
      const std::string_view file = counter.first;
      if (!file.starts_with(kFolder)) continue;
      message.nest(RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY, [&] {
        message.put_text(RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_NAME, file.substr(kFolder.size()));
        message.put(RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_VALUE, counter.second);
      });
    }
  });
  question.replies.push_back(message.finish());
  return 0;
}

// No queue pair is bound to counters of its own.
Errno dump_counters(const Question& question) {
  const ErrnoOr<std::uint32_t> index = question.hca();
  return index ? 0 : index.error();
}

// enum ib_qp_type.
std::uint8_t verbs_type(QpType type) {
  switch (type) {
    case QpType::kRc: return 2;
    case QpType::kUc: return 3;
    default: return 4;
  }
}

void put_queue_pair(NetlinkMessage& message, const Resource& resource) {
  const QpAttributes& attributes = resource.attributes;
  if (attributes.state != QpState::kReset) {  // no port is set before
    message.put(RDMA_NLDEV_ATTR_PORT_INDEX, std::uint32_t{attributes.port});
  }
  if (resource.type != QpType::kUd) {
    message.put(RDMA_NLDEV_ATTR_RES_RQPN, attributes.remote_qpn);
    message.put(RDMA_NLDEV_ATTR_RES_RQ_PSN, attributes.receive_psn);
    message.put(RDMA_NLDEV_ATTR_RES_PATH_MIG_STATE, std::uint8_t{0});
  }
  message.put(RDMA_NLDEV_ATTR_RES_SQ_PSN, attributes.send_psn);
  message.put(RDMA_NLDEV_ATTR_RES_TYPE, verbs_type(resource.type));
  message.put(RDMA_NLDEV_ATTR_RES_STATE, static_cast<std::uint8_t>(attributes.state));
}

void put_completion_queue(NetlinkMessage& message, const Resource& resource) {
  message.put(RDMA_NLDEV_ATTR_RES_CQE, static_cast<std::uint32_t>(resource.extent));
  message.put(RDMA_NLDEV_ATTR_RES_USECNT, std::uint64_t{resource.users});
  message.put(RDMA_NLDEV_ATTR_RES_CTXN, resource.context);
}

void put_region(NetlinkMessage& message, const Resource& resource) {
  message.put(RDMA_NLDEV_ATTR_RES_RKEY, resource.number);
  message.put(RDMA_NLDEV_ATTR_RES_LKEY, resource.number);
  message.put(RDMA_NLDEV_ATTR_RES_IOVA, resource.iova);
  message.put(RDMA_NLDEV_ATTR_RES_MRLEN, resource.extent);
}

void put_domain(NetlinkMessage& message, const Resource& resource) {
  message.put(RDMA_NLDEV_ATTR_RES_USECNT, std::uint64_t{resource.users});
  message.put(RDMA_NLDEV_ATTR_RES_CTXN, resource.context);
}

void put_shared_queue(NetlinkMessage& message, const Resource&) {
  message.put(RDMA_NLDEV_ATTR_RES_TYPE, std::uint8_t{IB_UVERBS_SRQT_BASIC});
}

void put_nothing(NetlinkMessage&, const Resource&) {}

// Commands and attributes of each kind of resource.
struct Table {
  ResourceKind kind;
  std::uint16_t command;
  std::uint16_t table;
  std::uint16_t entry;
  std::uint16_t number;
  const char* name;
  void (*put)(NetlinkMessage&, const Resource&);
};
constexpr Table kTables[] = {
    {ResourceKind::kPd, RDMA_NLDEV_CMD_RES_PD_GET, RDMA_NLDEV_ATTR_RES_PD, RDMA_NLDEV_ATTR_RES_PD_ENTRY,
     RDMA_NLDEV_ATTR_RES_PDN, "pd", put_domain},
    {ResourceKind::kCq, RDMA_NLDEV_CMD_RES_CQ_GET, RDMA_NLDEV_ATTR_RES_CQ, RDMA_NLDEV_ATTR_RES_CQ_ENTRY,
     RDMA_NLDEV_ATTR_RES_CQN, "cq", put_completion_queue},
    {ResourceKind::kQp, RDMA_NLDEV_CMD_RES_QP_GET, RDMA_NLDEV_ATTR_RES_QP, RDMA_NLDEV_ATTR_RES_QP_ENTRY,
     RDMA_NLDEV_ATTR_RES_LQPN, "qp", put_queue_pair},
    {ResourceKind::kMr, RDMA_NLDEV_CMD_RES_MR_GET, RDMA_NLDEV_ATTR_RES_MR, RDMA_NLDEV_ATTR_RES_MR_ENTRY,
     RDMA_NLDEV_ATTR_RES_MRN, "mr", put_region},
    {ResourceKind::kContext, RDMA_NLDEV_CMD_RES_CTX_GET, RDMA_NLDEV_ATTR_RES_CTX,
     RDMA_NLDEV_ATTR_RES_CTX_ENTRY, RDMA_NLDEV_ATTR_RES_CTXN, "ctx", put_nothing},
    {ResourceKind::kSrq, RDMA_NLDEV_CMD_RES_SRQ_GET, RDMA_NLDEV_ATTR_RES_SRQ, RDMA_NLDEV_ATTR_RES_SRQ_ENTRY,
     RDMA_NLDEV_ATTR_RES_SRQN, "srq", put_shared_queue},
};

const Table* table_of(std::uint16_t command) {
  const auto* const found = std::ranges::find(kTables, command, &Table::command);
  return found == std::end(kTables) ? nullptr : found;
}

void put_resource(NetlinkMessage& message, const Table& table, const Resource& resource) {
  message.put(table.number, resource.number);
  if (resource.pd != 0 && resource.kind != ResourceKind::kPd)
    message.put(RDMA_NLDEV_ATTR_RES_PDN, resource.pd);
  table.put(message, resource);
  message.put(RDMA_NLDEV_ATTR_RES_PID, resource.process);
}

Errno get_resource(const Question& question, const Table& table) {
  const ErrnoOr<std::uint32_t> index = question.hca();
  if (!index) return index.error();
  const ErrnoOr<std::uint32_t> number = question.number(table.number);
  if (!number) return number.error();
  const auto& resources = question.hcas[*index].resources;
  const auto wanted = std::ranges::find_if(resources, [&](const Resource& resource) {
    return resource.kind == table.kind && resource.number == *number;
  });
  if (wanted == resources.end()) return ENOENT;
  NetlinkMessage message = question.reply();
  put_hca(message, question, *index);
  put_resource(message, table, *wanted);
  question.replies.push_back(message.finish());
  return 0;
}

// Answers with the resources of an HCA, in as many messages as they take.
Errno dump_resources(const Question& question, const Table& table) {
  const ErrnoOr<std::uint32_t> index = question.hca();
  if (!index) return index.error();
  const auto& resources = question.hcas[*index].resources;
  for (auto next = resources.begin(); next != resources.end();) {
    NetlinkMessage message = question.reply(NLM_F_MULTI);
    put_hca(message, question, *index);
    bool any = false;
    message.nest(table.table, [&] {
      for (; next != resources.end() && message.size() < kMaxTableBytes; ++next) {
        if (next->kind != table.kind) continue;
        any = true;
        message.nest(table.entry, [&] { put_resource(message, table, *next); });
      }
    });
    if (any) question.replies.push_back(message.finish());
  }
  return 0;
}

std::string summarise(const Question& question, std::uint32_t index, std::uint16_t flags) {
  NetlinkMessage message = question.reply(flags);
  put_hca(message, question, index);
  message.nest(RDMA_NLDEV_ATTR_RES_SUMMARY, [&] {
    for (const Table& table : kTables) {
      const auto count = std::ranges::count(question.hcas[index].resources, table.kind, &Resource::kind);
      message.nest(RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY, [&] {
        message.put_text(RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_NAME, table.name);
        message.put(RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_CURR, static_cast<std::uint64_t>(count));
      });
    }
  });
  return message.finish();
}

Errno get_summary(const Question& question) {
  const ErrnoOr<std::uint32_t> index = question.hca();
  if (!index) return index.error();
  question.replies.push_back(summarise(question, *index, 0));
  return 0;
}

Errno dump_summaries(const Question& question) {
  for (std::uint32_t index = 0; index < question.hcas.size(); ++index) {
    question.replies.push_back(summarise(question, index, NLM_F_MULTI));
  }
  return 0;
}

// Memory of a process stays its own across a fork: the HCA writes through the process's own page tables.
Errno get_system(const Question& question) {
  NetlinkMessage message = question.reply();
  message.put(RDMA_NLDEV_SYS_ATTR_NETNS_MODE, kSharedByNamespaces);
  message.put(RDMA_NLDEV_SYS_ATTR_COPY_ON_FORK, std::uint8_t{1});
  question.replies.push_back(message.finish());
  return 0;
}

// Returns a device number as the kernel's huge_encode_dev() encodes it.
std::uint64_t encode_device(std::uint32_t major, std::uint32_t minor) {
  return (minor & 0xff) | std::uint64_t{major} << 8 | std::uint64_t{minor & ~0xffu} << 12;
}

void put_node(NetlinkMessage& message, std::uint64_t device, std::uint32_t abi, const std::string& name) {
  message.put(RDMA_NLDEV_ATTR_CHARDEV, device);
  message.put(RDMA_NLDEV_ATTR_CHARDEV_ABI, std::uint64_t{abi});
  message.put_text(RDMA_NLDEV_ATTR_CHARDEV_NAME, name);
}

Errno get_node(const Question& question) {
  const auto found = question.attributes.find(RDMA_NLDEV_ATTR_CHARDEV_TYPE);
  if (found == question.attributes.end() || found->second.empty()) return EINVAL;
  const auto* const text = reinterpret_cast<const char*>(found->second.data());
  const std::string_view type(text, strnlen(text, found->second.size()));
  NetlinkMessage message = question.reply();
  if (type == "rdma_cm") {
    put_node(message, encode_device(kConnectionsMajor, kConnectionsMinor), RDMA_USER_CM_ABI_VERSION,
             "rdma_cm");
  } else if (type == "uverbs") {
    const ErrnoOr<std::uint32_t> index = question.hca();
    if (!index) return index.error();
    message.put(RDMA_NLDEV_ATTR_UVERBS_DRIVER_ID, std::uint32_t{RDMA_DRIVER_MLX5});
    put_node(message, encode_device(kCharDeviceMajor, kCharDeviceMinor + *index), kUverbsAbi,
             "uverbs" + std::to_string(*index));
  } else {
    return EOPNOTSUPP;
  }
  question.replies.push_back(message.finish());
  return 0;
}

// A command and its handlers, of one object and of all. Either handler may be null.
struct Command {
  std::uint16_t number;
  Errno (*get)(const Question&);
  Errno (*dump)(const Question&);
};
constexpr Command kCommands[] = {
    {RDMA_NLDEV_CMD_GET, get_hca, dump_hcas},
    {RDMA_NLDEV_CMD_PORT_GET, get_port, dump_ports},
    {RDMA_NLDEV_CMD_STAT_GET, get_counters, dump_counters},
    {RDMA_NLDEV_CMD_RES_GET, get_summary, dump_summaries},
    {RDMA_NLDEV_CMD_SYS_GET, get_system, nullptr},
    {RDMA_NLDEV_CMD_GET_CHARDEV, get_node, nullptr},
};

// Commands of Linux that are not offered here. Any other number is unknown.
constexpr std::uint16_t kNotOffered[] = {RDMA_NLDEV_CMD_SET,
                                         RDMA_NLDEV_CMD_NEWLINK,
                                         RDMA_NLDEV_CMD_DELLINK,
                                         RDMA_NLDEV_CMD_SYS_SET,
                                         RDMA_NLDEV_CMD_RES_CM_ID_GET,
                                         RDMA_NLDEV_CMD_STAT_SET,
                                         RDMA_NLDEV_CMD_STAT_DEL,
                                         RDMA_NLDEV_CMD_RES_QP_GET_RAW,
                                         RDMA_NLDEV_CMD_RES_CQ_GET_RAW,
                                         RDMA_NLDEV_CMD_RES_MR_GET_RAW,
                                         RDMA_NLDEV_CMD_STAT_GET_STATUS};

Errno answer_command(const Question& question, bool dump) {
  const auto number = static_cast<std::uint16_t>(RDMA_NL_GET_OP(question.header.nlmsg_type));
  if (const Table* const table = table_of(number)) {
    return dump ? dump_resources(question, *table) : get_resource(question, *table);
  }
  const auto* const command = std::ranges::find(kCommands, number, &Command::number);
  if (command == std::end(kCommands)) {
    return std::ranges::find(kNotOffered, number) == std::end(kNotOffered) ? EINVAL : EOPNOTSUPP;
  }
  const auto handler = dump && command->dump != nullptr ? command->dump : command->get;
  return handler(question);
}

bool can_dump(std::uint16_t type) {
  const auto number = static_cast<std::uint16_t>(RDMA_NL_GET_OP(type));
  if (table_of(number) != nullptr) return true;
  const auto* const command = std::ranges::find(kCommands, number, &Command::number);
  return command != std::end(kCommands) && command->dump != nullptr;
}

bool asks_for_resources(const nlmsghdr& header) {
  const auto number = static_cast<std::uint16_t>(RDMA_NL_GET_OP(header.nlmsg_type));
  return number == RDMA_NLDEV_CMD_RES_GET || table_of(number) != nullptr;
}

std::string error_reply(const nlmsghdr& header, std::uint32_t port, Errno error) {
  NetlinkMessage message(NLMSG_ERROR, 0, header.nlmsg_seq, port);
  const nlmsgerr body{-error, header};
  message.append(&body, sizeof body);
  return message.finish();
}

std::string end_of_dump(const nlmsghdr& header, std::uint32_t port, Errno error) {
  NetlinkMessage message(NLMSG_DONE, NLM_F_MULTI, header.nlmsg_seq, port);
  const int result = -error;
  message.append(&result, sizeof result);
  return message.finish();
}

// Answers as the kernel's rdma_nl_rcv_msg(): serves only requests and commands, acknowledges others on
// request.
void answer_message(std::span<const std::byte> message, NetlinkAsker& asker,
                    const std::vector<HcaInventory>& hcas, std::vector<std::string>& replies) {
  nlmsghdr header{};
  std::memcpy(&header, message.data(), sizeof header);
  Errno error = 0;
  if ((header.nlmsg_flags & NLM_F_REQUEST) != 0 && header.nlmsg_type >= NLMSG_MIN_TYPE) {
    const Question question{header, netlink_attributes(message.subspan(sizeof header)), asker, hcas, replies};
    const bool ours = RDMA_NL_GET_CLIENT(header.nlmsg_type) == RDMA_NL_NLDEV;
    const bool dump = ours && (header.nlmsg_flags & NLM_F_DUMP) != 0 && can_dump(header.nlmsg_type);
    const bool busy = dump && std::exchange(asker.dumping, true);
    error = !ours ? EINVAL : busy ? EBUSY : answer_command(question, dump);
    if (dump && !busy) {
      replies.push_back(end_of_dump(header, asker.port, error));
      return;
    }
  }
  if (error != 0 || (header.nlmsg_flags & NLM_F_ACK) != 0) {
    // GCC 12 warns of a move into the vector at -O3.
    replies.emplace_back() = error_reply(header, asker.port, error);
  }
}

}  // namespace

// Ends the datagram at a malformed request, without an answer.
std::vector<std::string> answer_netlink(std::span<const std::byte> datagram, NetlinkAsker asker,
                                        const std::function<std::vector<HcaInventory>(bool)>& inventory) {
  std::vector<std::string> replies;
  std::optional<std::vector<HcaInventory>> hcas;
  bool all_processes = false;
  while (datagram.size() >= sizeof(nlmsghdr)) {
    nlmsghdr header{};
    std::memcpy(&header, datagram.data(), sizeof header);
    if (header.nlmsg_len < sizeof header || header.nlmsg_len > datagram.size()) break;
    const bool widens = !all_processes && asks_for_resources(header);
    all_processes = all_processes || widens;
    if (!hcas || widens) hcas = inventory(all_processes);
    answer_message(datagram.first(header.nlmsg_len), asker, *hcas, replies);
    datagram = datagram.subspan(std::min<std::size_t>(NLMSG_ALIGN(header.nlmsg_len), datagram.size()));
  }
  return replies;
}

}  // namespace gdx::softhca::uverbs
