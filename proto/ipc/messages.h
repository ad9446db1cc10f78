// Messages between gdxd and its clients, the processes of one machine, on a UNIX socket of type
// SOCK_SEQPACKET. Each request but kWake has one answer, in order. A message is a Header, a body whose type
// follows from the kind, and open files. Byte order is the machine's own.
//
//   client                                       gdxd
//     |-- kHello            versions, name ------->|
//     |<------- version, limits, notice socket ----|
//     |-- kOpenHca          name, GID index ------>|   once a connection
//     |-- kRegisterMemory   file, iova, rights --->|
//     |-- kOpenPool         rules ---------------->|
//     |<-------- device file, its place, key ------|
//     |-- kCreateEndpoint   queue file, options -->|
//     |<-------- QPN, doorbell's place, keys ------|
//     |-- kConnectEndpoint  address of the peer -->|
//
// An answer repeats the kind of its request. Its status is not 0 where the request was refused; then the body
// is text. The end of a connection ends all that was made by it. On the notice socket gdxd alone can send.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace gdx::ipc {

inline constexpr std::uint32_t kMagic = 0x67647864;  // "gdxd"
inline constexpr std::uint16_t kVersion = 1;
inline constexpr std::size_t kNameBytes = 64;  // of texts, which end with a zero
inline constexpr std::size_t kMaxReasonBytes = 1024;
inline constexpr std::size_t kQueryBytes = 0x110;  // QUERY_QP's output

enum class Kind : std::uint16_t {
  kHello = 1,
  kOpenHca = 2,
  kRegisterMemory = 3,
  kDeregisterMemory = 4,
  kOpenPool = 5,
  kClosePool = 6,
  kReadPool = 7,
  kCreateEndpoint = 8,
  kConnectEndpoint = 9,
  kRetireEndpoint = 10,
  kQueryEndpoint = 11,
  kDestroyEndpoint = 12,
  kReadCounter = 13,
  kReadStatistics = 14,
  kKick = 15,
  kDrain = 16,
  kNotice = 17,  // from gdxd, on the notice socket
  kWake = 18,    // without an answer
  kReadFlight = 19,
};
inline constexpr std::uint16_t kLastKind = 19;

struct Header {
  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t kind;
  std::uint32_t status;  // enum Status; of a request 0
  std::uint32_t reserved;
};

struct Hello {
  static constexpr Kind kKind = Kind::kHello;
  std::uint16_t oldest_version;
  std::uint16_t newest_version;
  std::uint32_t reserved;
  char program[kNameBytes];
};
// With one open file: the notice socket.
struct HelloAnswer {
  std::uint16_t version;
  std::uint16_t reserved;
  std::uint32_t max_endpoints;  // limits of the client's group
  std::uint64_t max_registered_bytes;
  char daemon_version[kNameBytes];
};

struct OpenHca {
  static constexpr Kind kKind = Kind::kOpenHca;
  char name[kNameBytes];   // empty: the first
  std::int32_t gid_index;  // -1: gdxd chooses
  std::uint32_t without_port;
};
struct HcaAnswer {
  char name[kNameBytes];
  char firmware[kNameBytes];
  std::uint8_t gid[16];
  std::uint64_t device_memory_bytes;
  std::uint32_t path_mtu_bytes;
  std::uint8_t gid_index;
  std::uint8_t is_software;
  std::uint16_t lid;  // of an InfiniBand port; 0: the port is Ethernet's
  std::uint8_t grh_required;
  std::uint8_t reserved[7];
};

// With one open file, whose bytes from `file_offset` on are registered: of a memfd, or of a dmabuf. The
// offset and the address lie at the same place in their pages.
struct RegisterMemory {
  static constexpr Kind kKind = Kind::kRegisterMemory;
  std::uint64_t file_offset;
  std::uint64_t bytes;
  std::uint64_t iova;    // address by which work requests name the first byte
  std::uint32_t access;  // enum ibv_access_flags
  std::uint32_t source;  // enum Source
};
enum class Source : std::uint32_t { kFile = 0, kDmabuf = 1 };
struct RegisterAnswer {
  std::uint32_t region;
  std::uint32_t lkey;
  std::uint32_t rkey;
  std::uint32_t reserved;
};
struct DeregisterMemory {
  static constexpr Kind kKind = Kind::kDeregisterMemory;
  std::uint32_t region;
};

// The fields of StagingOptions. Clients of a group that ask for equal ones share a pool.
struct OpenPool {
  static constexpr Kind kKind = Kind::kOpenPool;
  std::uint64_t pool_bytes;
  std::uint32_t on_host;
  std::uint32_t slot_bytes;
  std::uint32_t minimum_slots;
  std::uint32_t threshold_percent;
};
// With one open file, to be mapped from `map_offset` on.
struct PoolAnswer {
  std::uint32_t pool;
  std::uint32_t lkey;
  std::uint64_t bytes;
  std::uint64_t nic_offset;
  std::uint64_t map_offset;
  std::uint32_t within_page;  // distance of the pool from the mapping's beginning
  std::uint32_t reserved;
};
struct ClosePool {
  static constexpr Kind kKind = Kind::kClosePool;
  std::uint32_t pool;
};
struct ReadPool {
  static constexpr Kind kKind = Kind::kReadPool;
  std::uint32_t pool;
};
struct PoolFigures {
  std::uint32_t leased_slots;
  std::uint32_t free_slots;
  std::uint64_t bad_returns;
};

// With one open file: queue memory as host/queue/queue_memory.h lays it out. A second one is the dmabuf of a
// queue in GPU memory; then the first is the host's part alone.
struct CreateEndpoint {
  static constexpr Kind kKind = Kind::kCreateEndpoint;
  std::uint64_t queue_bytes;
  std::uint64_t queue_address;  // of the file's first byte in the client
  std::uint64_t dmabuf_offset;  // of the queue, in the second file
  std::uint32_t send_queue_blocks;
  std::uint32_t slot_count;         // most slots that it may hold, of `pool`; 0: none
  std::uint32_t bounce_slot_count;  // of `bounce_pool`
  std::uint32_t pool;
  std::uint32_t bounce_pool;
  std::uint16_t pkey;     // of the partition; 0: gdxd chooses
  std::uint8_t sharing;   // enum Sharing
  std::uint8_t doorbell;  // enum DoorbellKind
  std::uint8_t ack_timeout;
  std::uint8_t retry_count;
  std::uint8_t rnr_retry;
  std::uint8_t min_rnr_timer;
  std::uint8_t hop_limit;
  std::uint8_t traffic_class;
  std::uint8_t service_level;
  std::uint8_t queue_in_dmabuf;  // 1: a second file came
  std::uint8_t adaptive_routing;
  std::uint8_t reserved[7];
};
// With one open file, of which the page at `map_offset` holds the doorbell register.
struct EndpointAnswer {
  std::uint32_t endpoint;
  std::uint32_t qpn;
  std::uint32_t psn;
  std::uint32_t scratch_lkey;
  std::uint64_t map_offset;
  std::uint32_t register_offset;  // in that page
  std::uint16_t blueflame_half_bytes;
  std::uint16_t data_order;  // enum DataOrder
  std::uint16_t pkey;        // as the port's table has it
  std::uint8_t reserved[6];
};
struct ConnectEndpoint {
  static constexpr Kind kKind = Kind::kConnectEndpoint;
  std::uint32_t endpoint;
  std::uint8_t peer[40];  // EndpointAddress
};
struct RetireEndpoint {
  static constexpr Kind kKind = Kind::kRetireEndpoint;
  std::uint32_t endpoint;
};
struct QueryEndpoint {
  static constexpr Kind kKind = Kind::kQueryEndpoint;
  std::uint32_t endpoint;
};
struct QueryAnswer {
  std::uint8_t output[kQueryBytes];
};
struct DestroyEndpoint {
  static constexpr Kind kKind = Kind::kDestroyEndpoint;
  std::uint32_t endpoint;
};

struct ReadCounter {
  static constexpr Kind kKind = Kind::kReadCounter;
  char name[kNameBytes];
};
struct CounterAnswer {
  std::uint64_t value;
};

// Statistics as JSON, in the open file that comes with the answer. Those of other users are for root and
// gdxd's own user alone.
struct ReadStatistics {
  static constexpr Kind kKind = Kind::kReadStatistics;
};
struct StatisticsAnswer {
  std::uint64_t bytes;  // of the file
};

// Newest events of endpoints, in the open file that comes with the answer. Of one of this client's endpoints
// they come as base/flight_recorder.h encodes them. Endpoint 0: as JSON, of the endpoints that `process` and
// `qpn` choose, where 0 chooses all. Those of other users are for root and gdxd's own user alone.
struct ReadFlight {
  static constexpr Kind kKind = Kind::kReadFlight;
  std::uint32_t endpoint;
  std::uint32_t process;  // process id, as gdxd sees it
  std::uint32_t qpn;
};

// Ends a client's connection. For root and gdxd's own user, and for the client's.
struct Kick {
  static constexpr Kind kKind = Kind::kKick;
  std::uint32_t process;  // process id, as gdxd sees it
};
// Lets gdxd refuse new clients, and end with its last one. For root and gdxd's own user.
struct Drain {
  static constexpr Kind kKind = Kind::kDrain;
};

// A doorbell of this client has been rung for kWakeEveryNs, and a software HCA has not seen it: its thread
// sleeps. Never answered, whatever is wrong with it. More than one in kWakeEveryNs have no effect.
struct Wake {
  static constexpr Kind kKind = Kind::kWake;
};
inline constexpr std::uint64_t kWakeEveryNs = 300'000;

struct Done {};  // the answer to what returns nothing

// Of the HCA that the client has open.
enum class Event : std::uint32_t {
  kPortUp = 1,
  kPortDown = 2,
  kHcaFailed = 3,  // gdxd ends the connection next
  kKicked = 4,     // likewise
};
struct Notice {
  static constexpr Kind kKind = Kind::kNotice;
  std::uint32_t event;  // enum Event
  std::uint32_t reserved;
  char reason[kNameBytes * 2];
};

inline constexpr std::size_t kMaxMessageBytes = sizeof(Header) + kMaxReasonBytes;

static_assert(sizeof(Header) == 16 && sizeof(CreateEndpoint) == 64 && sizeof(EndpointAnswer) == 40);
static_assert(sizeof(OpenPool) == 24 && sizeof(PoolAnswer) == 40 && sizeof(HcaAnswer) == 168);
static_assert(std::is_trivially_copyable_v<CreateEndpoint>);

}  // namespace gdx::ipc
