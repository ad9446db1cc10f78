// The device's side of the DevX command interface. Source: PRM "Command Reference"; for which command
// may travel by which ioctl, Linux drivers/infiniband/hw/mlx5/devx.c.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "driver-shim/softhca/devx/command_kinds.h"
#include "driver-shim/softhca/devx/events.h"
#include "driver-shim/softhca/devx/umem_table.h"
#include "driver-shim/softhca/engine/hca.h"
#include "proto/mlx5/prm.h"

namespace gdx::softhca::devx {

using Input = std::span<const std::uint8_t>;
using Output = std::span<std::uint8_t>;

// Result of a command: the PRM status, and a syndrome that names the place of a refusal.
struct Outcome {
  mlx5::prm::CommandStatus status = mlx5::prm::CommandStatus::kOk;
  std::uint32_t syndrome = 0;
  [[nodiscard]] bool ok() const { return status == mlx5::prm::CommandStatus::kOk; }
};

// Syndromes of refusals. A real device's are firmware-private; these lie in a range of their own.
enum class Syndrome : std::uint32_t {
  kUnsupportedCommand = 0x67640001,
  kUnsupportedCapability = 0x67640002,
  kBadUmem = 0x67640003,
  kBadQueueSize = 0x67640004,
  kUnsupportedServiceType = 0x67640005,
  kUnsupportedPageOffset = 0x67640006,
  kBadTransition = 0x67640007,
  kBadMtu = 0x67640008,
  kNoSuchObject = 0x67640009,
  kBadIndex = 0x6764000a,
  kUnsupportedQueueType = 0x6764000b,
  kUnsupportedMkey = 0x6764000c,
  kUnknownOptionalParameter = 0x6764000e,
  kBadPath = 0x6764000f,  // a remote MAC that is not the GID's, no hops, no such GID index, port or key
  kBadLimit = 0x67640010,
  kBadEventQueue = 0x67640011,
  kUnsupportedTimestampFormat = 0x67640012,
  kReservedField = 0x67640013,  // not zero
  kNoSuchCounterSet = 0x67640014,
  kOrderNotForced = 0x67640015,  // order of data cannot be forced: the capability is not there
  kShortOutput = 0x67640016,
  kRefusedByEngine = 0x67640100,  // | errno
};

Outcome refuse_with(mlx5::prm::CommandStatus status, Syndrome syndrome);
Outcome outcome_of(Errno error);

struct Object {
  ObjectKind kind;
  std::uint32_t number;                            // number; for an mkey the whole key, tag included
  std::vector<std::uint32_t> umems;                // held during the object's lifetime
  std::shared_ptr<ObjectEvents> events = nullptr;  // events of objects made here
  std::uint32_t pd = 0;
  std::uint64_t extent = 0;  // entries of a completion queue, bytes under an mkey
};

// Objects that commands name by number.
enum class Named : std::uint8_t { kPd, kUar, kCq, kRmp };
// Returns whether the open device file made the object.
using Owns = std::function<bool(Named kind, std::uint32_t number)>;

// Commands of one open device file. Each call returns 0 or the errno of the ioctl; EREMOTEIO means that the
// output carries a status that is not OK. Commands that a driver would pass on and this device lacks are
// logged once. Threads: the caller serialises.
class Commands {
 public:
  Commands(Hca& hca, UmemTable& umems, Owns owns) : hca_(hca), umems_(umems), owns_(std::move(owns)) {}

  // Commands on no object. Errors: EINVAL for a command that is not of this kind.
  Errno general(Input in, Output out);
  ErrnoOr<Object> create(Input in, Output out);
  // Errors: EINVAL when the command is for another kind of object, or names another one.
  Errno modify(const Object& object, Input in, Output out);
  Errno query(const Object& object, Input in, Output out);
  Errno destroy(const Object& object);

 private:
  Outcome query_capability(Input in, Output out);
  Outcome create_object(mlx5::prm::Opcode opcode, Input in, Object& object);

  Hca& hca_;
  UmemTable& umems_;
  Owns owns_;
  std::set<std::uint32_t> reported_;  // op_mods of QUERY_HCA_CAP
};

// Commands' executions, in the order of the files that have them.
Outcome query_hca_cap(const Hca& hca, Input in, Output out);
Outcome query_roce_address(const Hca& hca, Input in, Output out);
Outcome query_nic_vport_context(Output out);
// Refuses nonzero fields that clients must leave zero in CREATE_CQ, CREATE_QP, and transitions. Strict HCAs
// alone call it.
Outcome check_reserved(mlx5::prm::Opcode opcode, Input in);
// Refuses a command that names an object of another open device file. Strict HCAs alone call it.
Outcome check_owned(mlx5::prm::Opcode opcode, Input in, const Owns& owns);
Outcome create_cq(Hca& hca, const UmemTable& umems, Input in, Object& object);
Outcome create_qp(Hca& hca, const UmemTable& umems, Input in, Object& object);
Outcome create_rmp(Hca& hca, const UmemTable& umems, Input in, Object& object);
Outcome create_mkey(Hca& hca, Input in, Object& object);
Outcome modify_qp(Hca& hca, mlx5::prm::Opcode opcode, std::uint32_t qpn, Input in);
Outcome query_qp(Hca& hca, std::uint32_t qpn, Output out);

}  // namespace gdx::softhca::devx
