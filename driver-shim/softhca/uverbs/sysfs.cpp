#include "driver-shim/softhca/uverbs/sysfs.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <ftw.h>
#include <rdma/rdma_user_cm.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>
#include <utility>
#include <vector>

#include "driver-shim/softhca/engine/planted_fault.h"
#include "driver-shim/softhca/uverbs/real.h"
#include "driver-shim/softhca/wire/addressing.h"
#include "driver-shim/softhca/wire/interface.h"

namespace gdx::softhca::uverbs {
namespace {

namespace fs = std::filesystem;

constexpr unsigned kFirstPciBus = 0x67;  // bus of HCA 0; each HCA has a root port and a bus of its own
constexpr char kLockName[] = ".lock";

using Files = std::vector<std::pair<std::string, std::string>>;

std::string guid_text(std::uint64_t guid) {
  return fmt::format("{:04x}:{:04x}:{:04x}:{:04x}", guid >> 48, guid >> 32 & 0xffff, guid >> 16 & 0xffff,
                     guid & 0xffff);
}

std::string gid_text(const wire::Gid& gid) {
  std::string text;
  for (std::size_t i = 0; i < gid.size(); i += 2) {
    text += fmt::format("{}{:02x}{:02x}", i == 0 ? "" : ":", gid[i], gid[i + 1]);
  }
  return text;
}

Files pci_files() {
  const unsigned last_cpu = std::max(1u, std::thread::hardware_concurrency()) - 1;
  return {{"vendor", "0x15b3"},
          {"device", "0x1021"},
          {"subsystem_vendor", "0x15b3"},
          {"subsystem_device", "0x0067"},
          {"class", "0x020700"},
          {"revision", "0x00"},
          {"modalias", "pci:v000015B3d00001021sv000015B3sd00000067bc02sc07i00"},
          {"numa_node", "-1"},
          {"local_cpus", last_cpu >= 31 ? "ffffffff" : fmt::format("{:08x}", (2u << last_cpu) - 1)},
          {"local_cpulist", last_cpu == 0 ? "0" : fmt::format("0-{}", last_cpu)},
          {"current_link_speed", "32.0 GT/s PCIe"},
          {"max_link_speed", "32.0 GT/s PCIe"},
          {"current_link_width", "16"},
          {"max_link_width", "16"}};
}

Files device_files(const Hca& hca) {
  const std::string guid = guid_text(wire::guid_of(hca.address()));
  return {{"node_type", "1: CA"},        {"node_guid", guid},
          {"sys_image_guid", guid},      {"node_desc", "gdx software HCA"},
          {"fw_ver", "28.0.0"},          {"hca_type", "MT4129"},
          {"board_id", "GDX0000000001"}, {"hw_rev", "0"}};
}

Files port_files(const Hca& hca) {
  Files files = {{"state", "4: ACTIVE"},
                 {"phys_state", "5: LinkUp"},
                 {"rate", "100 Gb/sec (4X EDR)"},
                 {"link_layer", hca.config().infiniband ? "InfiniBand" : "Ethernet"},
                 {"lid", fmt::format("{:#x}", wire::lid_of(hca.address()))},
                 {"sm_lid", hca.config().infiniband ? "0x1" : "0x0"},
                 {"sm_sl", "0"},
                 {"lid_mask_count", "0"},
                 {"cap_mask", "0x04010000"}};
  const std::vector<std::uint16_t>& pkeys = hca.config().pkeys;
  for (std::size_t index = 0; index < pkeys.size(); ++index)
    files.emplace_back(fmt::format("pkeys/{}", index), fmt::format("{:#06x}", pkeys[index]));
  const wire::Interface interface = wire::interface_of(hca.address());
  for (std::uint8_t index = 0; index < wire::kGidTableSize; ++index) {
    files.emplace_back(fmt::format("gids/{}", index), gid_text(wire::gid_of(hca.address(), index)));
    files.emplace_back(fmt::format("gid_attrs/types/{}", index),
                       hca.config().infiniband ? "IB/RoCE v1" : "RoCE v2");
    const bool foreign = planted_fault == PlantedFault::kForeignGid && index == 1;
    files.emplace_back(fmt::format("gid_attrs/ndevs/{}", index),
                       foreign ? "elsewhere" : interface.name.data());
  }
  return files;
}

// Returns false with errno set.
bool write_file(const fs::path& path, const std::string& content) {
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (error) {
    errno = error.value();
    return false;
  }
  std::ofstream file(path, std::ios::trunc);
  file << content << '\n';
  return static_cast<bool>(file.flush());
}

bool write_files(const fs::path& folder, const Files& files) {
  for (const auto& [name, content] : files) {
    if (!write_file(folder / name, content)) return false;
  }
  return true;
}

// Returns possible folders of trees, the best first. In memory a tree of a hundred files takes a tenth of the
// time to make and remove. But logind removes the files of ordinary users there with their last session
// (RemoveIPC).
std::vector<std::string> folders() {
  constexpr uid_t kFirstOrdinaryUser = 1000;
  const char* const given = std::getenv("TMPDIR");
  if (given != nullptr && *given != '\0') return {given};
  if (geteuid() < kFirstOrdinaryUser) return {"/dev/shm", "/tmp"};
  return {"/tmp"};
}

std::string prefix(const std::string& folder) { return fmt::format("{}/gdx-softhca-{}-", folder, geteuid()); }

// In a folder that everybody may write to, a name proves nothing: not whose it is, nor where a link leads.
bool is_own_directory(const fs::path& path) {
  struct stat found {};
  return ::lstat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode) && found.st_uid == geteuid();
}

Descriptor open_lock(const fs::path& tree) {
  return Descriptor(real_open((tree / kLockName).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
}

int remove_all_but_lock(const char* path, const struct stat* /*status*/, int /*type*/, FTW* place) {
  const bool kept =
      place->level == 0 || (place->level == 1 && std::strcmp(path + place->base, kLockName) == 0);
  if (!kept) static_cast<void>(std::remove(path));
  return 0;
}

// Removes the lock last, because it distinguishes an abandoned tree from one in use. Takes two descriptors at
// any depth, so that a program without free ones leaves no tree behind.
void remove_tree(const fs::path& root) {
  constexpr int kDescriptors = 2;
  nftw(root.c_str(), remove_all_but_lock, kDescriptors, FTW_DEPTH | FTW_PHYS);
  static_cast<void>(std::remove((root / kLockName).c_str()));
  static_cast<void>(std::remove(root.c_str()));
}

// Removes a directory of no live process. A lock that can be taken proves that. A directory without a lock
// file is either under construction, or its maker died before it added a file. Removing it when empty is
// right for the latter, and the former then makes another. The lock is the first file, so a directory with
// other files and no lock has lost it.
void remove_if_stale(const std::string& path) {
  if (!is_own_directory(path)) return;
  Descriptor lock = open_lock(path);
  if (!lock && errno == ENOENT) {
    if (rmdir(path.c_str()) == 0 || errno != ENOTEMPTY) return;
    lock = open_lock(path);
    if (!lock && errno == ENOENT) remove_tree(path);
  }
  if (lock && flock(lock.value(), LOCK_EX | LOCK_NB) == 0) remove_tree(path);
}

// Directories whose names are those of this user's trees. libstdc++'s iterators of directories end the
// program where memory is short.
std::vector<std::string> possible_trees(const std::string& folder) {
  constexpr std::size_t kMost = 4096;
  std::vector<std::string> found;
  const std::string pattern = prefix(folder).substr(folder.size() + 1);
  const std::unique_ptr<DIR, int (*)(DIR*)> listed(opendir(folder.c_str()), closedir);
  if (!listed) return found;
  while (const dirent* const entry = readdir(listed.get())) {
    const std::string name = entry->d_name;
    if (name.starts_with(pattern) && found.size() < kMost)
      found.push_back(fmt::format("{}/{}", folder, name));
  }
  return found;
}

// Makes a directory and locks it. Returns none if that fails. Tries several times, because the clean-up of
// another process may remove the directory before it is locked.
Descriptor make_locked_directory(const std::string& folder, std::string& path) {
  constexpr int kAttempts = 8;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    path = prefix(folder) + "XXXXXX";
    if (mkdtemp(path.data()) == nullptr) return {};
    const std::string lock_path = path + "/" + kLockName;
    Descriptor lock = Descriptor::keep(real_open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!lock) continue;
    struct stat found {};
    if (flock(lock.value(), LOCK_EX | LOCK_NB) != 0 || ::stat(lock_path.c_str(), &found) != 0) continue;
    return lock;
  }
  return {};
}

int show(const char* path, const struct stat* status, int type, FTW* place) {
  const bool hidden = place->level == 1 && std::strcmp(path + place->base, kLockName) == 0;
  const bool counts =
      std::strstr(path, "/ports/1/counters") != nullptr || std::strstr(path, "/hw_counters") != nullptr;
  const mode_t wanted = (type == FTW_D ? 0755 : 0644) & (counts ? 0700 : 0777);
  if (type != FTW_SL && !hidden && (status->st_mode & 07777) != wanted) ::chmod(path, wanted);
  return 0;
}

// Opens the tree to all users, whatever the umask, because a program with a changed user must find its
// device. The lock stays private, and so do counters, because a forger of packets would learn from them which
// of its guesses came near.
void show_to_all(const fs::path& root) {
  constexpr int kDescriptors = 2;
  nftw(root.c_str(), show, kDescriptors, FTW_PHYS);
}

bool populate_common(const fs::path& root) {
  return write_file(root / "sys/class/infiniband_verbs/abi_version", "6") &&
         write_file(root / "sys/module/nvidia_peermem/initstate", "live") &&  // see gpu_copies.h
         write_file(root / (kConnectionsNode + 1), "") &&
         write_files(root / "sys/class/misc/rdma_cm",
                     {{"abi_version", std::to_string(RDMA_USER_CM_ABI_VERSION)},
                      {"dev", fmt::format("{}:{}", kConnectionsMajor, kConnectionsMinor)}});
}

bool populate(const fs::path& root, const Hca& hca, std::size_t index) {
  const std::string& name = hca.config().name;
  const std::string node = fmt::format("uverbs{}", index);
  const auto bus = static_cast<unsigned>(kFirstPciBus + index);
  const fs::path pci = root / fmt::format("sys/devices/pci0000:{:02x}/0000:{:02x}:00.0", bus, bus);
  const fs::path device = pci / "infiniband" / name;
  const fs::path uverbs = pci / "infiniband_verbs" / node;
  const bool done =
      write_files(pci, pci_files()) && write_files(device, device_files(hca)) &&
      write_files(device / "ports/1", port_files(hca)) &&
      write_files(uverbs, {{"ibdev", name},
                           {"dev", fmt::format("{}:{}", kCharDeviceMajor, kCharDeviceMinor + index)},
                           {"abi_version", "1"}}) &&
      write_file(root / fmt::format("{}{}", kDeviceNodes + 1, index), "");

  if (!done) return false;  // errno holds the cause
  std::error_code error;
  const auto link = [&error](const fs::path& target, const fs::path& at) {
    std::error_code failed;
    fs::create_directories(at.parent_path(), failed);
    fs::create_symlink(fs::relative(target, at.parent_path()), at, failed);
    if (failed) error = failed;
  };
  fs::create_directories(root / "sys/bus/pci", error);
  link(root / "sys/bus/pci", pci / "subsystem");  // NCCL finds its way up the PCI tree by it
  link(pci, device / "device");
  link(pci, uverbs / "device");
  link(device, root / "sys/class/infiniband" / name);
  link(uverbs, root / "sys/class/infiniband_verbs" / node);
  if (error) errno = error.value();
  return !error;
}

std::vector<std::pair<const char*, std::uint64_t>> all_counter_values(const HcaCounters& counters) {
  const auto& transport = counters.transport;
  return {{"hw_counters/local_ack_timeout_err", transport.timeouts},
          {"hw_counters/packet_seq_err", transport.naks_received},
          {"hw_counters/out_of_sequence", transport.out_of_sequence},
          {"hw_counters/duplicate_request", transport.duplicate_requests},
          {"hw_counters/rnr_nak_retry_err", transport.rnr_naks_received},
          {"hw_counters/out_of_buffer", transport.out_of_buffer},
          {"hw_counters/softhca_credit_waits", transport.credit_waits},
          {"hw_counters/softhca_credit_probes", transport.credit_probes},
          {"hw_counters/softhca_credit_updates", transport.credit_updates},
          {"hw_counters/softhca_window_waits", counters.window.waits},
          {"hw_counters/softhca_window_markers", counters.window.markers},
          {"hw_counters/softhca_window_grants", counters.window.grants},
          {"hw_counters/softhca_socket_drops", counters.wire.socket_drops},
          {"hw_counters/softhca_forged_drops", counters.wire.forged_drops},
          {"hw_counters/softhca_send_errors", counters.wire.send_errors},
          {"hw_counters/np_ecn_marked_roce_packets", counters.marked_packets},
          {"hw_counters/np_cnp_sent", counters.notifications_sent},
          {"hw_counters/rp_cnp_handled", counters.notifications_heeded},
          {"hw_counters/softhca_retransmitted_packets", transport.retransmitted_packets},
          {"hw_counters/softhca_tail_resends", transport.tail_resends},
          {"hw_counters/softhca_packets_sent", counters.wire.packets_sent},
          {"hw_counters/softhca_bytes_sent", counters.wire.bytes_sent},
          {"hw_counters/softhca_packets_received", counters.wire.packets_received},
          {"hw_counters/softhca_faults_lost", counters.wire.faults_lost},
          {"hw_counters/softhca_faults_corrupted", counters.wire.faults_corrupted},
          {"hw_counters/softhca_icrc_errors", counters.wire.icrc_errors},
          {"hw_counters/softhca_doorbells", counters.doorbells},
          {"hw_counters/softhca_bad_doorbells", counters.bad_doorbells},
          {"hw_counters/softhca_wqes", counters.wqes},
          {"hw_counters/softhca_cqes", counters.cqes},
          {"hw_counters/softhca_pcie_record_reads", counters.pcie.record_reads},
          {"hw_counters/softhca_pcie_wqe_reads", counters.pcie.wqe_reads},
          {"hw_counters/softhca_pcie_receive_wqe_reads", counters.pcie.receive_wqe_reads},
          {"hw_counters/softhca_pcie_payload_reads", counters.pcie.payload_reads},
          {"hw_counters/softhca_pcie_payload_writes", counters.pcie.payload_writes},
          {"hw_counters/softhca_pcie_doorbell_writes", counters.doorbells},
          {"hw_counters/softhca_pcie_cqe_writes", counters.cqes},
          {"hw_counters/softhca_blueflame_wqes", counters.pcie.blueflame_wqes},
          {"hw_counters/softhca_blueflame_torn", counters.pcie.blueflame_torn},
          {"hw_counters/softhca_staging_sends", counters.staging_sends},
          {"hw_counters/softhca_staging_violations", counters.staging_violations},
          {"counters/port_xmit_packets", counters.wire.packets_sent},
          {"counters/port_rcv_packets", counters.wire.packets_received}};
}

}  // namespace

std::vector<std::pair<const char*, std::uint64_t>> counter_values(const HcaCounters& counters) {
  auto values = all_counter_values(counters);
  const auto tells = [](const auto& one) { return std::strstr(one.first, "/softhca_") != nullptr; };
  if (planted_fault == PlantedFault::kDisguised) std::erase_if(values, tells);
  return values;
}

std::vector<std::string> user_trees() {
  std::vector<std::string> trees;
  for (const std::string& folder : folders()) {
    for (const std::string& tree : possible_trees(folder)) {
      if (is_own_directory(tree)) trees.push_back(tree);
    }
  }
  std::ranges::sort(trees);
  return trees;
}

Result<std::unique_ptr<SysfsTree>> SysfsTree::create(const std::vector<Hca*>& hcas) {
  const std::vector<std::string> possible = folders();
  for (const std::string& folder : possible) {
    for (const std::string& tree : possible_trees(folder)) remove_if_stale(tree);
  }
  Result<std::unique_ptr<SysfsTree>> tree = create_in(possible.front(), hcas);
  for (std::size_t i = 1; !tree && i < possible.size(); ++i) tree = create_in(possible[i], hcas);
  return tree;
}

Result<std::unique_ptr<SysfsTree>> SysfsTree::create_in(const std::string& folder,
                                                        const std::vector<Hca*>& hcas) {
  std::string root;
  Descriptor lock = make_locked_directory(folder, root);
  if (!lock) {
    return fail(Status::kSystem,
                fmt::format("cannot make a directory {}XXXXXX: {}; set TMPDIR to a folder that can "
                            "be written",
                            prefix(folder), std::strerror(errno)));
  }
  std::unique_ptr<SysfsTree> tree(new SysfsTree(root, std::move(lock)));
  bool done = populate_common(root);
  for (std::size_t index = 0; index < hcas.size(); ++index)
    done = done && populate(root, *hcas[index], index);
  for (const Hca* const hca : hcas) done = done && tree->write_counters(*hca, {});
  if (done) show_to_all(root);
  if (done) return tree;
  return fail(Status::kSystem,
              fmt::format("cannot fill {}: {}; set TMPDIR to a folder with room for a hundred small files",
                          root, std::strerror(errno)));
}

SysfsTree::~SysfsTree() { remove_tree(root_); }

// Replaces each file by a rename: a reader beside this call finds the old number or the new one, never none.
bool SysfsTree::write_counters(const Hca& hca, const HcaCounters& counters) const {
  const fs::path port = fs::path(root_) / "sys/class/infiniband" / hca.config().name / "ports/1";
  const fs::path next = fs::path(root_) / "next_counter";
  for (const auto& [name, value] : counter_values(counters)) {
    const fs::path counter = port / name;
    std::error_code ignored;  // rename fails for its cause
    fs::create_directories(counter.parent_path(), ignored);
    if (!write_file(next, std::to_string(value)) || ::chmod(next.c_str(), 0600) != 0 ||
        ::rename(next.c_str(), counter.c_str()) != 0) {
      return false;
    }
  }
  return true;
}

}  // namespace gdx::softhca::uverbs
