// /dev/infiniband/rdma_cm: what librdmacm writes to it, below which connection management (../cm) runs.
// Source: <rdma/rdma_user_cm.h>; Linux drivers/infiniband/core/ucma.c and cma.c for what each call answers.
//
// Locks, in this order: this one, then the HCA's. The HCA calls on_datagram() with its own held, and that
// takes only the inbox's, below which nothing is taken. No lock is held while a program waits for an event.
#pragma once

#include <rdma/rdma_user_cm.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "driver-shim/softhca/cm/agent.h"
#include "driver-shim/softhca/engine/hca.h"
#include "driver-shim/softhca/rdma_cm/rdma_cm_file.h"

namespace gdx::softhca::uverbs {

inline constexpr std::uint8_t kPacketLifeTime = 14;  // life time of packets on a path, 4.096 us * 2^n
// 0.13 s, several round trips under load. Twice the life time, as Linux derives it.
inline constexpr std::uint8_t kAckTimeout = kPacketLifeTime + 1;
inline constexpr std::uint32_t kDatagramQkey = 0x01234567;  // RDMA_UDP_QKEY of librdmacm

class RdmaCm;

// One command: its fixed part, as far as it was given, and zeros behind.
struct CmCall {
  CmFile& file;
  std::array<std::byte, 1024> input{};
  std::size_t input_bytes = 0;
  std::size_t output_bytes = 0;

  template <typename T>
  [[nodiscard]] T read() const {
    static_assert(sizeof(T) <= sizeof input);
    T value;
    std::memcpy(&value, input.data(), sizeof value);
    return value;
  }
};

// One HCA's port to connection management.
class CmPort final : public ManagementAgent, private cm::Port {
 public:
  CmPort(RdmaCm& owner, Hca& hca, const Random& random);
  ~CmPort() override;
  CmPort(const CmPort&) = delete;
  CmPort& operator=(const CmPort&) = delete;

  void on_datagram(const wire::Address& source, std::span<const std::byte> datagram) override;
  int step(std::uint64_t now_ns) override;
  [[nodiscard]] std::uint64_t next_deadline_ns() const override;

  [[nodiscard]] Hca& hca() const { return hca_; }
  [[nodiscard]] cm::Agent& agent() { return agent_; }
  // Returns the path to another port: on InfiniBand by LID within the subnet, as its administrator would
  // tell.
  [[nodiscard]] gdx::cm::Path path_to(const wire::Address& remote, std::uint8_t type_of_service) const;
  void write_path(ib_uverbs_ah_attr& to, const gdx::cm::Path& path) const;
  // Notes when the agent wants to run next. Every use of the agent ends with it. Threads: the RdmaCm lock.
  void note_deadline() { agent_deadline_ns_.store(agent_.next_deadline_ns()); }

 private:
  struct Datagram {
    wire::Address source;
    std::vector<std::byte> bytes;
  };
  void send(const wire::Address& destination, const cm::Message& message) override;
  void raise(const cm::Event& event) override;

  RdmaCm& owner_;
  Hca& hca_;
  cm::Agent agent_;
  std::mutex inbox_mutex_;
  std::vector<Datagram> inbox_;
  std::atomic<bool> arrived_{false};
  std::atomic<std::uint64_t> agent_deadline_ns_{cm::kNever};
};

// An rdma_cm_id of a program.
struct CmId {
  enum class State : std::uint8_t {
    kIdle,
    kBound,
    kAddressResolved,
    kRouteResolved,
    kListening,
    kConnecting
  };

  std::uint32_t number = 0;
  std::uint64_t user_handle = 0;  // 0: its events have no receiver yet
  CmFile* file = nullptr;
  std::uint16_t port_space = 0;
  std::uint8_t qp_type = 0;  // enum ib_qp_type
  State state = State::kIdle;
  CmAddress source;
  CmAddress destination;
  CmPort* port = nullptr;        // the HCA, once it is known
  std::uint32_t connection = 0;  // number of the connection at port->agent(); 0: none
  std::uint32_t events_reported = 0;
  std::uint8_t tos = 0;
  std::optional<std::uint8_t> ack_timeout;  // as chosen by the program; 0 for none
  std::uint8_t packet_life_time = kPacketLifeTime;
  bool reuse_address = false;
  std::optional<bool> one_family;  // as chosen by the program, or by the bound address

  [[nodiscard]] bool is_datagram() const;
  // Returns whether its wildcard means addresses of its own family alone.
  [[nodiscard]] bool has_one_family() const { return one_family.value_or(source.family == AF_INET); }
  [[nodiscard]] std::uint64_t service_id(std::uint16_t at_port) const;
};

// Threads: every method locks.
class RdmaCm {
 public:
  // `random` returns 32 bits a call, as for an HCA.
  RdmaCm(const std::vector<Hca*>& hcas, Random random);
  ~RdmaCm();
  RdmaCm(const RdmaCm&) = delete;
  RdmaCm& operator=(const RdmaCm&) = delete;

  // Opens a file and returns the program's descriptor. `flags` are those of CmFile::open(). Errors: the errno
  // of socketpair(2).
  ErrnoOr<int> open_file(int flags);
  void close_file(int fd);
  // Returns whether any file is open. Takes no lock, because a child of fork calls it, whose parent may have
  // held it.
  [[nodiscard]] bool in_use() const { return open_files_.load() != 0; }
  // Executes the command of one write(2). Waits where GET_EVENT must. Errors: those of the kernel.
  Errno command(int fd, std::uint64_t address, std::size_t length_bytes);
  // Sends a goodbye to every peer that has not confirmed one, and returns how many those are. Does nothing
  // and returns nullopt if the lock cannot be had at once.
  std::optional<std::size_t> try_say_goodbye(std::uint64_t now_ns);

 private:
  friend class CmPort;
  using Handler = Errno (RdmaCm::*)(CmCall& call);

  static Handler handler_of(std::uint32_t command);
  // Writing to the device node can be cancelled, telling people why it fails cannot.
  static void name_refused(const std::string& what);
  // rdma_cm_commands.cpp
  Errno create_id(CmCall& call);
  Errno destroy_id(CmCall& call);
  Errno bind_ip(CmCall& call);
  Errno bind_address(CmCall& call);
  Errno resolve_ip(CmCall& call);
  Errno resolve_address(CmCall& call);
  Errno resolve_route(CmCall& call);
  Errno listen(CmCall& call);
  Errno get_event(CmCall& call);
  Errno set_option(CmCall& call);
  Errno migrate_id(CmCall& call);
  Errno join_multicast(CmCall& call);
  // rdma_cm_connect.cpp
  Errno connect(CmCall& call);
  Errno accept(CmCall& call);
  Errno reject(CmCall& call);
  Errno disconnect(CmCall& call);
  Errno notify(CmCall& call);
  // rdma_cm_query.cpp
  Errno query(CmCall& call);
  Errno query_route(CmCall& call);
  Errno init_qp_attributes(CmCall& call);

  void on_event(CmPort& port, const cm::Event& event);
  void on_request(CmPort& port, const cm::Event& event);
  // Removes a file with its ids, if it exists. Requires the lock.
  void forget_file(int fd);
  CmId& add_id(CmFile& file);
  void remove_id(CmId& id);
  ErrnoOr<CmId*> find_id(const CmFile& file, std::uint32_t number);
  [[nodiscard]] CmId* find_by_connection(const CmPort& port, std::uint32_t connection);
  void queue_event(CmId& id, ProgramEvent event, int status, const cm::Message* cause);
  ErrnoOr<CmPort*> port_at(const wire::Address& address);
  CmPort* port_towards(const CmId& id, const wire::Address& destination);
  Errno bind(CmId& id, const CmAddress& address);
  Errno resolve(CmId& id, const CmAddress& source, const CmAddress& destination);
  [[nodiscard]] bool port_number_taken(const CmId& id, const CmPort* port, std::uint16_t number) const;
  Errno start_connection(CmId& id, const rdma_ucm_conn_param& parameters);
  Errno start_resolution(CmId& id, const rdma_ucm_conn_param& parameters);
  cm::Connection* connection_of(const CmId& id);
  // Returns the path of an id with a destination. A passive side's is that of the peer's request.
  gdx::cm::Path path_of(const CmId& id);

  std::mutex mutex_;
  Random random_;
  std::vector<std::unique_ptr<CmPort>> ports_;
  std::map<std::uint32_t, std::unique_ptr<CmId>> ids_;
  std::map<int, std::shared_ptr<CmFile>> files_;
  std::atomic<std::size_t> open_files_{0};
};

}  // namespace gdx::softhca::uverbs
