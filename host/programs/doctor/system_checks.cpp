// Versions, limits and permissions of the system and of the container that this runs in.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/parse_number.h"
#include "host/programs/doctor/checks.h"

namespace gdx::doctor {
namespace {

constexpr char kLimits[] = "/proc/self/limits";
constexpr std::uint64_t kMiB = 1 << 20;

// Compares modules on disk, for the next boot, with the running ones.
std::vector<Finding> check_modules(const Machine& machine) {
  std::vector<Finding> findings;
  if (mlx5_hcas(machine).empty()) return findings;  // a software HCA shows modules of its own
  for (const char* module : {"mlx5_core", "mlx5_ib", "nvidia", "nvidia_peermem"}) {
    const std::string folder = fmt::format("/sys/module/{}", module);
    if (!machine.exists(folder)) continue;
    const std::string version = folder + "/version";  // a module of the kernel's own has none
    const std::string loaded = machine.read(version).value_or(machine.exists(version) ? "?" : "none");
    const auto text = machine.probes.run({"modinfo", "-F", "version", module});
    const std::string on_disk = text ? words_of(*text + " none").front() : text.error().message;
    findings.push_back(
        judge(module, text && loaded != "?" ? std::optional(on_disk == loaded) : std::nullopt,
              {fmt::format("{} {}", module, loaded), fmt::format("{} on disk is not the loaded one", module),
               fmt::format("which {} is on disk is not known", module)},
              fmt::format("{}: {}; {}{}", version, loaded, text ? "modinfo -F version: " : "", on_disk),
              "upgrade, and reboot so that what is on disk is loaded"));
  }
  return findings;
}

// Checks the version of rdma-core, which is that of the file's name behind two numbers: libmlx5.so.1.24.44.0
// is of version 44.0.
std::vector<Finding> check_rdma_core(const Machine& machine) {
  constexpr char kLeast[] = "44";
  const std::size_t at = machine.libmlx5.rfind(".so.");
  std::string version = at == std::string::npos ? "" : machine.libmlx5.substr(at + 4);
  for (int skipped = 0; skipped < 2 && !version.empty(); ++skipped)
    version = version.find('.') == std::string::npos ? "" : version.substr(version.find('.') + 1);
  return {judge("machine", version.empty() ? std::nullopt : std::optional(!older(version, kLeast)),
                {"rdma-core " + version, "older than 44, from which on gdx is tested",
                 "which rdma-core this is is not known"},
                "libmlx5: " + machine.libmlx5, "upgrade rdma-core")};
}

struct Limit {
  const char* title;  // in /proc/self/limits
  std::uint64_t least;
  const char* what;
  const char* fix;
};
// Source: NCCL's troubleshooting pages; limits.conf(5).
constexpr std::array<Limit, 3> kProcessLimits = {{
    {"Max locked memory", UINT64_MAX, "registered memory counts against it",
     "* soft memlock unlimited and * hard memlock unlimited in /etc/security/limits.conf; of containers "
     "--ulimit memlock=-1"},
    {"Max stack size", 8 * kMiB, "below the usual 8 MiB",
     "* soft stack unlimited and * hard stack unlimited in /etc/security/limits.conf; of containers --ulimit "
     "stack=67108864"},
    {"Max open files", 4096, "each peer and device takes some",
     "* soft nofile 1048576 and * hard nofile 1048576 in /etc/security/limits.conf; of containers --ulimit "
     "nofile=1048576"},
}};

Finding judge_limit(const Machine& machine, const std::string& text, const Limit& limit) {
  constexpr unsigned kIpcLock = 14;  // linux/capability.h
  const std::size_t at = text.find(limit.title);
  const auto words =
      at == std::string::npos
          ? std::vector<std::string>{}
          : words_of(first_line(std::string_view(text).substr(at + std::string_view(limit.title).size())));
  const auto soft = words.empty()             ? std::nullopt
                    : words[0] == "unlimited" ? std::optional(UINT64_MAX)
                                              : parse_unsigned(words[0]);
  if (!soft)
    return {"machine", Verdict::kUnknown, fmt::format("{} is not known", limit.title),
            machine.evidence(kLimits)};
  const std::string evidence = fmt::format("{}: {} {}", kLimits, limit.title, words[0]);
  if (*soft >= limit.least)
    return {"machine", Verdict::kOk, fmt::format("{}: {}", limit.title, words[0]), evidence};
  if (limit.least == UINT64_MAX && is_capable(machine, kIpcLock).value_or(false))
    return {"machine", Verdict::kOk, fmt::format("{}: no limit, by CAP_IPC_LOCK", limit.title), evidence};
  return {"machine", Verdict::kWarn, fmt::format("{}: {}", limit.title, limit.what), evidence, limit.fix};
}

template <std::size_t Index>
std::vector<Finding> check_limit(const Machine& machine) {
  return {judge_limit(machine, machine.read(kLimits).value_or(""), kProcessLimits[Index])};
}

std::vector<Finding> check_shared_memory(const Machine& machine) {
  const auto bytes = machine.shared_memory_bytes;
  return {judge("machine", bytes ? std::optional(*bytes >= 1024 * kMiB) : std::nullopt,
                {"/dev/shm is large enough", "/dev/shm is small", "the size of /dev/shm is not known"},
                bytes ? fmt::format("/dev/shm: {} MiB", *bytes / kMiB) : "statvfs of /dev/shm fails",
                "of containers --shm-size=1g")};
}

std::vector<Finding> check_devices(const Machine& machine) {
  std::vector<Finding> findings;
  std::vector<std::pair<std::string, std::string>> nodes;  // subject, path
  for (const HcaSeen& hca : mlx5_hcas(machine)) {
    const std::string folder = hca.folder() + "/device/infiniband_verbs";
    const auto verbs = machine.names(folder);
    if (!verbs.empty()) nodes.emplace_back(hca.name, "/dev/infiniband/" + verbs.front());
    if (verbs.empty())
      findings.push_back(
          {hca.name, Verdict::kUnknown, "which device it has is not known", folder + ": none"});
  }
  constexpr char kGpus[] = "/proc/driver/nvidia/gpus";
  for (const std::string& gpu : machine.names(kGpus)) {
    const auto text = machine.read(fmt::format("{}/{}/information", kGpus, gpu));
    const auto minor = text ? field(*text, "Device Minor") : std::nullopt;
    if (minor) nodes.emplace_back(gpu, "/dev/nvidia" + *minor);
  }
  if (!machine.names(kGpus).empty()) {
    nodes.emplace_back("machine", "/dev/nvidiactl");
    nodes.emplace_back("machine", "/dev/nvidia-uvm");
  }
  for (const auto& [subject, path] : nodes)
    findings.push_back(judge(subject, machine.probes.open_device(path),
                             {"its device opens", "its device does not open", "its device was not opened"},
                             path));
  return findings;
}

// The value of KEY=VALUE on the line of `hca` in rdma.max or rdma.current; absent: none, or "max".
std::optional<std::uint64_t> rdma_entry(const std::optional<std::string>& text, const std::string& hca,
                                        const std::string& key) {
  const std::size_t line = text ? ("\n" + *text).find("\n" + hca + " ") : std::string::npos;
  if (line == std::string::npos) return std::nullopt;
  for (const std::string& word : words_of(first_line(std::string_view(*text).substr(line)))) {
    if (word.starts_with(key + "=")) return parse_unsigned(word.substr(key.size() + 1));
  }
  return std::nullopt;
}

Finding judge_cgroup(const Machine& machine, const HcaSeen& hca, std::string folder) {
  Finding finding{hca.name, Verdict::kOk, "its control group sets no limit",
                  folder + "/rdma.max: absent or max"};
  // A group that lies in another has the limits of both.
  for (; folder.starts_with("/sys/fs/cgroup"); folder.resize(folder.rfind('/'))) {
    const auto most = machine.read(folder + "/rdma.max");
    const auto now = machine.read(folder + "/rdma.current");
    for (const char* key : {"hca_handle", "hca_object"}) {
      const auto limit = rdma_entry(most, hca.name, key);
      if (!limit) continue;
      const std::uint64_t used = rdma_entry(now, hca.name, key).value_or(0);
      const auto verdict = used >= *limit ? Verdict::kFail : Verdict::kWarn;
      if (verdict <= finding.verdict) continue;
      finding = {hca.name, verdict,
                 used >= *limit ? "its control group's limit is reached" : "its control group sets a limit",
                 fmt::format("{}/rdma.max: {}={}, now {}", folder, key, *limit, used)};
    }
  }
  return finding;
}

// A controller that is not there limits nothing, as in the root of all control groups.
std::vector<Finding> check_cgroup(const Machine& machine) {
  const auto hcas = mlx5_hcas(machine);
  if (hcas.empty()) return {};
  const auto groups = machine.read("/proc/self/cgroup");
  const std::size_t at = groups ? groups->find("0::") : std::string::npos;
  const std::string folder =
      at == std::string::npos ? "" : "/sys/fs/cgroup" + first_line(std::string_view(*groups).substr(at + 3));
  if (folder.empty() || !machine.exists(folder))
    return {{"machine", Verdict::kUnknown, "the control group is not known",
             machine.evidence("/proc/self/cgroup") + (folder.empty() ? "" : "; " + folder + ": absent")}};
  return each(hcas, [&](const HcaSeen& hca) { return judge_cgroup(machine, hca, folder); });
}

// No source says which a container needs: they are told, and nothing is advised.
std::vector<Finding> tell_capabilities(const Machine& machine) {
  const auto text = field(machine.read(kProcessStatus).value_or(""), "CapEff");
  const bool contained = machine.exists("/.dockerenv") || machine.exists("/run/.containerenv");
  std::string names;
  constexpr std::array<std::pair<unsigned, const char*>, 4> kOfInterest = {
      {{13, "NET_RAW"}, {14, "IPC_LOCK"}, {21, "SYS_ADMIN"}, {23, "SYS_NICE"}}};
  for (const auto& [number, name] : kOfInterest)
    names += is_capable(machine, number).value_or(false) ? fmt::format(" {}", name) : "";
  return {judge("machine", text ? std::optional(true) : std::nullopt,
                {fmt::format("{}capabilities of interest:{}", contained ? "a container; " : "",
                             names.empty() ? " none" : names),
                 "", "capabilities are not known"},
                fmt::format("{}: CapEff: {}", kProcessStatus, text.value_or("cannot be read")))};
}

// No source says how many huge pages there should be: they are told, and nothing is advised.
std::vector<Finding> tell_huge_pages(const Machine& machine) {
  const auto count = field(machine.read("/proc/meminfo").value_or(""), "HugePages_Total");
  return {judge("machine", count ? std::optional(true) : std::nullopt,
                {count.value_or("") + " huge pages", "", "huge pages are not known"},
                fmt::format("/proc/meminfo: HugePages_Total: {}", count.value_or("cannot be read")))};
}

constexpr Check kSystemChecks[] = {
    {"modules", "/sys/module/MODULE/version, modinfo -F version MODULE", check_modules},
    {"rdma-core", "the file of the loaded libmlx5", check_rdma_core},
    {"locked-memory", "/proc/self/limits, CAP_IPC_LOCK", check_limit<0>},
    {"stack", "/proc/self/limits", check_limit<1>},
    {"open-files", "/proc/self/limits", check_limit<2>},
    {"shared-memory", "the size of /dev/shm", check_shared_memory},
    {"devices", "/dev/infiniband/uverbsN, /dev/nvidia*: opened", check_devices},
    {"cgroup", "rdma.max and rdma.current of the control group", check_cgroup},
    {"capabilities", "/proc/self/status: CapEff", tell_capabilities},
    {"huge-pages", "/proc/meminfo", tell_huge_pages},
};

}  // namespace

std::span<const Check> system_checks() { return kSystemChecks; }

}  // namespace gdx::doctor
