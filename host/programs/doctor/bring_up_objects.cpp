// Section A of the bring-up: the machine, its HCAs, what they say of themselves, and DevX objects.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/page_size.h"
#include "host/memory/gpu_registration.h"
#include "host/programs/doctor/bring_up.h"
#include "host/programs/doctor/loopback.h"
#include "host/queue/doorbell.h"
#include "host/queue/queue_commands.h"
#include "host/queue/queue_memory.h"
#include "proto/mlx5/prm.h"

namespace gdx::doctor {
namespace {

namespace prm = mlx5::prm;

constexpr char kSoftwareAdvice[] = "run it without gdx run on a machine with a ConnectX";
constexpr std::uint32_t kBlocks = 16;

std::string kernel_release() {
  utsname names{};
  return uname(&names) == 0 ? fmt::format("{} {}", names.release, names.machine) : "?";
}

std::string describe_hca(const Machine& machine, const Hca& hca) {
  const auto seen = std::ranges::find(machine.hcas, hca.name(), &HcaSeen::name);
  const bool known = seen != machine.hcas.end();
  return fmt::format(
      "{}{}: {}{}, port 1 active, MTU {}, GID {} {}, {} B of device memory, {}, firmware {}{}", hca.name(),
      hca.is_software() ? " (software)" : "",
      known && !seen->link_layer.empty() ? seen->link_layer : "link layer ?",
      hca.link_layer() == LinkLayer::kInfiniBand && hca.grh_required() ? " that requires a GRH" : "",
      hca.path_mtu_bytes(), hca.gid_index(), hca.address_text(), hca.device_memory_bytes(),
      describe_lag(hca.routing()), hca.firmware(),
      machine.exists(fmt::format("/sys/class/infiniband/{}/device/physfn", hca.name()))
          ? ", a virtual function"
          : "");
}

struct Field {
  const char* name;
  prm::PrmField field;
  const char* command;  // command that set the value
};

// Fields that QUERY_QP returns at the offsets at which these commands set them.
constexpr std::array kContextFields = {
    Field{"counter_set_id", prm::qp::kCounterSet, "RST2INIT_QP"},
    Field{"pkey_index", prm::qp::kPathPkeyIndex, "RST2INIT_QP"},
    Field{"rwe", prm::qp::kRemoteWrite, "RST2INIT_QP"},
    Field{"rre", prm::qp::kRemoteRead, "RST2INIT_QP"},
    Field{"rae", prm::qp::kRemoteAtomic, "RST2INIT_QP"},
    Field{"vhca_port_num", prm::qp::kPathPort, "RST2INIT_QP"},
    Field{"mtu", prm::qp::kMtu, "INIT2RTR_QP"},
    Field{"log_msg_max", prm::qp::kLogMaxMessage, "INIT2RTR_QP"},
    Field{"remote_qpn", prm::qp::kRemoteQpn, "INIT2RTR_QP"},
    Field{"next_rcv_psn", prm::qp::kNextReceivePsn, "INIT2RTR_QP"},
    Field{"min_rnr_nak", prm::qp::kMinRnrNak, "INIT2RTR_QP"},
    Field{"log_rra_max", prm::qp::kLogRraMax, "INIT2RTR_QP"},
    Field{"rlid", prm::qp::kPathRemoteLid, "INIT2RTR_QP"},
    Field{"rgid[0:8]", {prm::qp::kPathRemoteGidByte * 8, 64}, "INIT2RTR_QP"},
    Field{"rgid[8:16]", {prm::qp::kPathRemoteGidByte * 8 + 64, 64}, "INIT2RTR_QP"},
    Field{"next_send_psn", prm::qp::kNextSendPsn, "RTR2RTS_QP"},
    Field{"ack_timeout", prm::qp::kPathAckTimeout, "RTR2RTS_QP"},
    Field{"retry_count", prm::qp::kRetryCount, "RTR2RTS_QP"},
    Field{"rnr_retry", prm::qp::kRnrRetry, "RTR2RTS_QP"},
    Field{"log_sra_max", prm::qp::kLogSraMax, "RTR2RTS_QP"},
};

// The fields that the HCA tells otherwise than the first such commands said.
std::vector<std::string> differences(std::span<const commands::CommandRecord> sent,
                                     std::span<const std::uint8_t> context) {
  std::vector<std::string> found;
  if (const auto state = prm::get32(context, prm::qp::kState); state != prm::qp::kRts)
    found.push_back(fmt::format("state is {}, wanted {} (RTS)", state, static_cast<unsigned>(prm::qp::kRts)));
  for (const Field& field : kContextFields) {
    const auto command = std::ranges::find(sent, field.command, &commands::CommandRecord::name);
    if (command == sent.end()) continue;
    const std::uint64_t wanted = prm::get(command->input, field.field);
    const std::uint64_t told = prm::get(context, field.field);
    if (told != wanted) found.push_back(fmt::format("{} is {:#x}, wanted {:#x}", field.name, told, wanted));
  }
  return found;
}

// A page of doorbells of each type, or why there is none.
std::string allocate_uars(const Hca& hca) {
  std::string told;
  for (const auto& [name, type] : {std::pair<const char*, std::uint32_t>{"BF", MLX5DV_UAR_ALLOC_TYPE_BF},
                                   {"NC", MLX5DV_UAR_ALLOC_TYPE_NC},
                                   {"NC_DEDICATED", kDedicatedDoorbellPage}}) {
    const UarHandle uar(mlx5dv_devx_alloc_uar(hca.context(), type));
    const std::string outcome = uar ? fmt::format("page {:#x}", uar->page_id) : std::strerror(errno);
    told += fmt::format("{}{} {}", told.empty() ? "" : ", ", name, outcome);
  }
  return told;
}

// CREATE_QP with timestamps of `format`; the message where it is refused.
Result<void> create_queue_pair(const Hca& hca, std::uint32_t format) {
  const auto memory = GDX_TRY(QueueMemory::allocate(kBlocks, 0));
  const UarHandle uar(mlx5dv_devx_alloc_uar(hca.context(), MLX5DV_UAR_ALLOC_TYPE_NC));
  const UmemHandle umem(
      hca_verbs().reg_umem(hca.context(), memory.base(), memory.registered_bytes(), IBV_ACCESS_LOCAL_WRITE));
  if (!uar || !umem)
    return fail(Status::kSystem, fmt::format("no {}: {}", uar ? "umem" : "UAR page", std::strerror(errno)));
  const auto cq = GDX_TRY(
      commands::create_completion_queue(hca.context(), {.eqn = hca.eqn(),
                                                        .uar_page = uar->page_id,
                                                        .umem_id = umem->umem_id,
                                                        .ring_offset = memory.completion_queue_offset(),
                                                        .record_offset = memory.completion_record_offset(),
                                                        .log_entries = std::countr_zero(kBlocks)}));
  GDX_TRY(commands::create_queue_pair(hca.context(), {.pdn = hca.pdn(),
                                                      .cqn = cq.number,
                                                      .uar_page = uar->page_id,
                                                      .umem_id = umem->umem_id,
                                                      .record_offset = memory.queue_pair_record_offset(),
                                                      .log_blocks = std::countr_zero(kBlocks),
                                                      .timestamp_format = format}));
  return {};
}

}  // namespace

std::string describe_lag(const Routing& routing) {
  if (!routing.has_lag) return "LAG unknown";
  if (!*routing.has_lag) return "no LAG";
  if (routing.lag_ports == 0) return "a LAG whose port no queue pair may choose";
  return fmt::format("a LAG of {} ports", routing.lag_ports);
}

StepResult look_at_machine(Bench& bench) {
  const Machine& machine = bench.machine;
  StepResult result;
  result.facts = {{"page_bytes", fmt::format("{}", page_bytes())}, {"root", machine.is_root ? "yes" : "no"}};
  const auto names = list_hcas();
  if (!names || names->empty()) {
    const bool blind = machine.topology.pci_devices == 0;
    result.verdict = blind ? Verdict::kUnknown : Verdict::kFail;
    result.value = names ? "no RDMA device" : names.error().message;
    result.advice =
        blind ? "no PCI device is to be seen: run it outside the container, or mount /sys there"
              : "load mlx5_ib, and show /dev/infiniband to a container; for a software HCA: gdx run -- gdx "
                "doctor --hardware";
    return result;
  }
  const auto software = std::ranges::count_if(machine.hcas, &HcaSeen::software);
  result.value = fmt::format("kernel {}, pages of {} B, RDMA devices {}", kernel_release(), page_bytes(),
                             fmt::join(*names, ", "));
  result.verdict = software == 0 ? Verdict::kOk : Verdict::kUnknown;
  if (software == 0) return result;
  result.value = "a software HCA is below: nothing here speaks of hardware; " + result.value;
  result.advice = kSoftwareAdvice;
  return result;
}

StepResult look_at_hcas(Bench& bench) {
  StepResult result{Verdict::kFail, "no RDMA device"};
  const auto names = list_hcas().value_or(std::vector<std::string>{});
  for (const std::string& name : names) {
    const auto hca = Hca::open({.name = name, .in_this_process = true});
    result.facts.push_back({name, hca ? describe_hca(bench.machine, *hca) : hca.error().message});
  }
  if (names.empty()) {
    if (bench.machine.topology.pci_devices == 0) result.verdict = Verdict::kUnknown;
    return result;
  }
  if (names.size() > 1) result.advice = "--hca chooses another HCA";
  HcaOptions options{.name = bench.wanted_hca, .in_this_process = true, .gpu = 0};
  auto hca = Hca::open(options);
  bench.port_serves = hca.has_value();
  if (hca) {
    result.verdict = Verdict::kOk;
    result.value = fmt::format("{}; chosen {}", describe_hca(bench.machine, *hca),
                               bench.wanted_hca.empty() ? hca->chosen() : "by --hca");
  } else {
    result.value = hca.error().message;
    options.without_port = true;
    hca = Hca::open(options);
    if (hca) result.facts.push_back({"chosen", hca->name() + ", which opens, for what needs no port"});
  }
  if (hca) bench.hca.emplace(std::move(*hca));
  return result;
}

StepResult query_capabilities(Bench& bench) {
  namespace cap = prm::cap;
  StepResult result;
  ibv_context* const context = bench.hca->context();
  const auto general = commands::query_capability(context, cap::kGeneral);
  const auto roce = commands::query_capability(context, cap::kRoce);
  const auto atomic = commands::query_capability(context, cap::kAtomic);
  for (const auto* one : {&general, &roce, &atomic}) {
    if (*one) continue;
    return {Verdict::kFail, one->error().message, "upgrade firmware and driver, and see that DevX is on"};
  }
  const auto tell = [&](const char* name, const auto& output, prm::PrmField field) {
    const std::uint32_t value = prm::get32(output, field);
    result.facts.push_back({name, fmt::format("{}", value)});
    result.value += fmt::format("{}{} {}", result.value.empty() ? "" : ", ", name, value);
    return value;
  };
  std::vector<std::string> missing;
  tell("qp_ts_format", *roce, cap::kQpTimestamps);
  if (tell("cq_oi", *general, cap::kCqOverrunIgnore) == 0) missing.emplace_back("cq_oi is 0");
  tell("uar_4k", *general, cap::kUar4k);
  tell("bf", *general, cap::kBlueFlame);
  tell("log_bf_reg_size", *general, cap::kLogBlueFlameRegisterSize);
  if (tell("log_max_ra_req_qp", *general, cap::kLogMaxRequesterReads) < commands::kLogReadsInFlight)
    missing.push_back(fmt::format("log_max_ra_req_qp is below {}", commands::kLogReadsInFlight));
  if (tell("log_max_ra_res_qp", *general, cap::kLogMaxResponderReads) < commands::kLogReadsInFlight)
    missing.push_back(fmt::format("log_max_ra_res_qp is below {}", commands::kLogReadsInFlight));
  if ((tell("atomic_operations", *atomic, cap::kAtomicOperations) & cap::kFetchAdd) == 0)
    missing.emplace_back("no fetch-and-add");
  tell("cqe_version", *general, cap::kCqeVersion);
  result.verdict = missing.empty() ? Verdict::kOk : Verdict::kFail;
  if (missing.empty()) return result;
  result.value = fmt::format("gdx needs what is not there: {}; {}", fmt::join(missing, ", "), result.value);
  return result;
}

StepResult create_objects(Bench& bench) {
  const Hca& hca = *bench.hca;
  StepResult result{Verdict::kFail, {}};
  result.facts.push_back({"uar", allocate_uars(hca)});
  const auto free_running = create_queue_pair(hca, prm::qp::kFreeRunning);
  result.facts.push_back({"ts_format 0", free_running ? "created" : free_running.error().message});
  const auto by_default = create_queue_pair(hca, prm::qp::kDefaultTimestamps);
  result.facts.push_back({"ts_format 1", by_default ? "created" : by_default.error().message});
  if (!by_default) {
    result.value = "with ts_format 1: " + by_default.error().message;
    return result;
  }
  const std::string created = fmt::format("UAR {}; CREATE_QP: ts_format 1 created, 0 {}; ",
                                          result.facts.front().value, free_running ? "created" : "refused");
  if (!bench.port_serves)
    return {Verdict::kUnknown, created + "no loopback: step 2 is not OK", {}, result.facts};
  const auto loopback = Loopback::open(hca, {.blocks = kBlocks});
  if (!loopback) {
    result.value = "loopback to RTS: " + loopback.error().message;
    return result;
  }
  const auto context = loopback->endpoint().query_queue_pair();
  if (!context) {
    result.value = context.error().message;
    return result;
  }
  const auto different = differences(bench.commands, *context);
  for (const std::string& one : different) result.facts.push_back({"QUERY_QP", one});
  result.verdict = different.empty() ? Verdict::kOk : Verdict::kFail;
  const std::uint32_t force = prm::get32(*context, prm::qp::kOrderingForce);
  result.facts.push_back(
      {"dp_ordering_0, _1, _force", fmt::format("{}, {}, {}", prm::get32(*context, prm::qp::kOrderingLow),
                                                prm::get32(*context, prm::qp::kOrderingHigh), force)});
  const char* const grh = prm::get32(*context, prm::qp::kPathGrh) != 0 ? " with a GRH" : " without a GRH";
  result.value = created + "two queue pairs to each other in RTS";
  if (hca.link_layer() == LinkLayer::kInfiniBand) result.value += grh;
  result.value += "; ";
  result.value += different.empty() ? fmt::format("QUERY_QP tells its {} fields", kContextFields.size() + 1)
                                    : fmt::format("QUERY_QP differs: {}", fmt::join(different, ", "));
  // No failure, because no source says that firmware shows it, and fenced signals are right without.
  if (hca.routing().order_forced && force == 0)
    result.value += "; it shows no dp_ordering_force, so signals are fenced";
  return result;
}

}  // namespace gdx::doctor
