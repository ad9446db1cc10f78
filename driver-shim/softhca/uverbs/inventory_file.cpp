#include "driver-shim/softhca/uverbs/inventory_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <optional>
#include <span>

#include "base/descriptor.h"
#include "base/log.h"
#include "base/process_stat.h"
#include "driver-shim/softhca/uverbs/config.h"

namespace gdx::softhca::uverbs {
namespace {

constexpr char kFileName[] = "/.inventory";
constexpr std::uint32_t kFirstRecords = 64;
constexpr std::uint32_t kGrowth = 4;
constexpr std::array<char, 8> kMagic = {'g', 'd', 'x', 'i', 'n', 'v', '0', '1'};  // ends with the version
constexpr int kReadings = 3;  // attempts to read a file that is written meanwhile

// The first record of a file. A process that cannot read its own start time writes 0, and others do not find
// it.
struct Head {
  std::array<char, 8> magic = kMagic;
  std::uint64_t started = 0;
  std::int32_t pid = 0;
  std::array<std::uint8_t, 44> unused{};
};

struct Record {
  std::uint32_t checksum = 0;  // checksum of all that follows
  std::uint8_t kind = 0;       // ResourceKind and 1; 0: a free record
  std::uint8_t hca = 0;
  std::uint8_t type = 0;
  std::uint8_t state = 0;
  std::uint32_t number = 0;
  std::uint32_t context = 0;
  std::uint32_t pd = 0;
  std::uint32_t users = 0;
  std::uint64_t extent = 0;
  std::uint64_t iova = 0;
  std::uint32_t remote_qpn = 0;
  std::uint32_t receive_psn = 0;
  std::uint32_t send_psn = 0;
  std::uint32_t port = 0;
  std::uint64_t unused = 0;
};
static_assert(sizeof(Head) == kRecordBytes && sizeof(Record) == kRecordBytes);

using Bytes = std::array<std::byte, kRecordBytes>;

// Returns the FNV-1a hash of a record behind its checksum.
std::uint32_t checksum_of(const Record& record) {
  Bytes bytes;
  std::memcpy(bytes.data(), &record, bytes.size());
  std::uint32_t sum = 2166136261u;
  for (const std::byte byte : std::span(bytes).subspan(sizeof record.checksum))
    sum = (sum ^ static_cast<std::uint32_t>(byte)) * 16777619u;
  return sum;
}

Record record_of(std::uint8_t hca, const Resource& resource) {
  Record record;
  record.kind = static_cast<std::uint8_t>(static_cast<unsigned>(resource.kind) + 1);
  record.hca = hca;
  record.type = static_cast<std::uint8_t>(resource.type);
  record.state = static_cast<std::uint8_t>(resource.attributes.state);
  record.number = resource.number;
  record.context = resource.context;
  record.pd = resource.pd;
  record.users = resource.users;
  record.extent = resource.extent;
  record.iova = resource.iova;
  record.remote_qpn = resource.attributes.remote_qpn;
  record.receive_psn = resource.attributes.receive_psn;
  record.send_psn = resource.attributes.send_psn;
  record.port = resource.attributes.port;
  record.checksum = checksum_of(record);
  return record;
}

// Returns the resource of a record; nullopt if the record is not whole or has impossible values.
std::optional<PlacedResource> resource_of(const Record& record, std::uint32_t pid) {
  const bool valid = record.checksum == checksum_of(record) &&
                     record.kind - 1 <= static_cast<int>(ResourceKind::kSrq) && record.hca < kMaxHcas &&
                     record.type <= static_cast<int>(QpType::kUd) &&
                     record.state <= static_cast<int>(QpState::kError);
  if (!valid) return std::nullopt;
  Resource resource;
  resource.kind = static_cast<ResourceKind>(record.kind - 1);
  resource.process = pid;
  resource.type = static_cast<QpType>(record.type);
  resource.attributes.state = static_cast<QpState>(record.state);
  resource.number = record.number;
  resource.context = record.context;
  resource.pd = record.pd;
  resource.users = record.users;
  resource.extent = record.extent;
  resource.iova = record.iova;
  resource.attributes.remote_qpn = record.remote_qpn;
  resource.attributes.receive_psn = record.receive_psn;
  resource.attributes.send_psn = record.send_psn;
  resource.attributes.port = static_cast<std::uint8_t>(record.port);
  return PlacedResource{record.hca, resource};
}

// Reads as many whole records as a file may have. A file of another kind has no length, or cannot be read.
std::vector<Bytes> read_records(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat found {};
  if (!file || ::fstat(file.value(), &found) != 0) return {};
  const auto file_records = static_cast<std::uint64_t>(found.st_size) / kRecordBytes;
  std::vector<Bytes> records(std::min<std::uint64_t>(file_records, kMaxRecords));
  const std::size_t wanted_bytes = records.size() * kRecordBytes;
  const ssize_t read_bytes = ::pread(file.value(), records.data(), wanted_bytes, 0);
  records.resize(read_bytes < 0 ? 0 : static_cast<std::size_t>(read_bytes) / kRecordBytes);
  return records;
}

// The process of a file, if that is another one, and lives.
std::optional<std::uint32_t> live_neighbour(const Bytes& first) {
  Head head;
  std::memcpy(&head, first.data(), sizeof head);
  if (head.magic != kMagic || head.pid <= 0 || head.pid == getpid() || head.started == 0) return std::nullopt;
  const ProcessStat stat = stat_of(head.pid);
  const bool ended = stat.state == 'Z' || stat.state == 'X';
  if (ended || stat.started != head.started) return std::nullopt;
  return static_cast<std::uint32_t>(head.pid);
}

}  // namespace

InventoryFile::InventoryFile(const std::string& root) noexcept {
  try {
    path_ = root + kFileName;
    if (!grow()) return;
    Head head;
    head.pid = getpid();
    head.started = stat_of(getpid()).started;
    std::memcpy(pages_.get(), &head, sizeof head);
  } catch (const std::exception&) {
    full_ = true;
  }
}

// Gives the file its blocks first, because a store to a page without one would end the program.
bool InventoryFile::grow() {
  const std::uint32_t wanted = capacity_ == 0 ? kFirstRecords : capacity_ * kGrowth;
  const std::size_t bytes = std::size_t{wanted} * kRecordBytes;
  const int create = capacity_ == 0 ? O_CREAT | O_EXCL : 0;
  const auto mapped = [&]() -> void* {
    if (wanted > kMaxRecords) return MAP_FAILED;
    const Descriptor file(::open(path_.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | create, 0600));
    if (!file || ::posix_fallocate(file.value(), 0, static_cast<off_t>(bytes)) != 0) return MAP_FAILED;
    return ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.value(), 0);
  };
  free_.reserve(wanted);
  void* const pages = mapped();
  if (pages == MAP_FAILED) {
    full_ = true;
    log::warn("`rdma resource` in other processes shows at most {} objects of this one: {} cannot grow",
              std::max(capacity_, 1u) - 1, path_);
    return false;
  }
  pages_ = MappedPages(static_cast<std::byte*>(pages), Unmap{bytes});
  capacity_ = wanted;
  return true;
}

std::uint32_t InventoryFile::take() noexcept {
  if (!free_.empty()) {
    const std::uint32_t record = free_.back();
    free_.pop_back();
    return record;
  }
  try {
    if (next_ == capacity_ && (full_ || !grow())) return 0;
  } catch (const std::exception&) {  // no memory: the next object tries again
    return 0;
  }
  return next_ < capacity_ ? next_++ : 0;
}

void InventoryFile::write(std::uint32_t record, std::uint8_t hca, const Resource& resource) noexcept {
  const Record content = record_of(hca, resource);
  std::byte* const at = pages_.get() + std::size_t{record} * kRecordBytes;
  if (std::memcmp(at, &content, sizeof content) != 0) std::memcpy(at, &content, sizeof content);
}

void InventoryFile::free(std::uint32_t record) noexcept {
  std::memset(pages_.get() + std::size_t{record} * kRecordBytes, 0, kRecordBytes);
  free_.push_back(record);
}

std::vector<PlacedResource> read_inventory(const std::string& root) {
  std::vector<PlacedResource> resources;
  for (int reading = 0; reading < kReadings; ++reading) {
    resources.clear();
    const std::vector<Bytes> records = read_records(root + kFileName);
    if (records.empty()) return {};
    const std::optional<std::uint32_t> pid = live_neighbour(records.front());
    if (!pid) return {};
    bool whole = true;
    for (const Bytes& bytes : std::span(records).subspan(1)) {
      Record record;
      std::memcpy(&record, bytes.data(), sizeof record);
      if (record.kind == 0) continue;
      if (const auto resource = resource_of(record, *pid)) {
        resources.push_back(*resource);
      } else {
        whole = false;
      }
    }
    if (whole) break;
  }
  return resources;
}

}  // namespace gdx::softhca::uverbs
