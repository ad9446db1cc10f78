#include "driver-shim/softhca/devx/commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

#include "base/log.h"
#include "driver-shim/softhca/devx/refusals.h"
#include "proto/mlx5/umr.h"

namespace gdx::softhca::devx {
namespace prm = mlx5::prm;
namespace {

prm::Opcode opcode_of(Input in) { return static_cast<prm::Opcode>(prm::get32(in, prm::kOpcode)); }

bool travels_as(CommandKind kind, prm::Opcode opcode) {
  return devx::travels_as(kind, static_cast<std::uint16_t>(opcode));
}

// Writes the header every answer begins with, and turns the outcome into the ioctl's errno.
Errno answer(Output out, Outcome outcome) {
  prm::set(out, prm::kStatus, static_cast<std::uint64_t>(outcome.status));
  prm::set(out, prm::kSyndrome, outcome.syndrome);
  return outcome.ok() ? 0 : EREMOTEIO;
}

bool buffers_hold_a_header(Input in, Output out) {
  return in.size() >= prm::kShortCommandBytes && out.size() >= prm::kShortCommandBytes;
}

// Returns the length of a command's output. Shorter ones are refused, whatever the question. Source: Linux
// include/linux/mlx5/mlx5_ifc.h, struct query_hca_cap_out and the others.
std::size_t output_bytes(prm::Opcode opcode) {
  switch (opcode) {
    case prm::Opcode::kQueryHcaCap: return prm::kQueryHcaCapOutBytes;
    case prm::Opcode::kQueryNicVportContext: return prm::kQueryNicVportContextOutBytes;
    case prm::Opcode::kQueryRoceAddress: return prm::kQueryRoceAddressOutBytes;
    case prm::Opcode::kQueryQp: return prm::kQueryQpOutBytes;
    default: return prm::kShortCommandBytes;
  }
}

Outcome refuse_short_output() {
  return refuse_with(prm::CommandStatus::kBadOutputLength, Syndrome::kShortOutput);
}

bool is_transition(prm::Opcode opcode) {
  switch (opcode) {
    case prm::Opcode::kRst2Init:
    case prm::Opcode::kInit2Rtr:
    case prm::Opcode::kRtr2Rts:
    case prm::Opcode::kRts2Rts:
    case prm::Opcode::kInit2Init:
    case prm::Opcode::k2Err:
    case prm::Opcode::k2Rst: return true;
    default: return false;
  }
}

// Returns the object's number in commands.
std::uint32_t object_id(const Object& object) {
  return object.kind == ObjectKind::kMkey ? object.number >> mlx5::kMkeyTagBits : object.number;
}

Outcome refuse_unsupported(prm::Opcode opcode) {
  name_refusal(fmt::format("DevX command {:#x}", static_cast<std::uint32_t>(opcode)));
  return refuse_with(prm::CommandStatus::kBadOperation, Syndrome::kUnsupportedCommand);
}

prm::Opcode query_of(ObjectKind kind) {
  switch (kind) {
    case ObjectKind::kCq: return prm::Opcode::kQueryCq;
    case ObjectKind::kQp: return prm::Opcode::kQueryQp;
    case ObjectKind::kRmp: return prm::Opcode::kQueryRmp;
    case ObjectKind::kMkey: return prm::Opcode::kQueryMkey;
  }
  return prm::Opcode::kQueryQp;
}

}  // namespace

Outcome refuse_with(prm::CommandStatus status, Syndrome syndrome) {
  return {status, static_cast<std::uint32_t>(syndrome)};
}

Outcome outcome_of(Errno error) {
  if (error == 0) return {};
  const auto syndrome =
      static_cast<std::uint32_t>(Syndrome::kRefusedByEngine) | static_cast<std::uint32_t>(error);
  switch (error) {
    case ENOENT: return {prm::CommandStatus::kBadResource, syndrome};
    case EBUSY: return {prm::CommandStatus::kResourceBusy, syndrome};
    case ENOMEM: return {prm::CommandStatus::kNoResources, syndrome};
    default: return {prm::CommandStatus::kBadParameter, syndrome};
  }
}

Outcome Commands::query_capability(Input in, Output out) {
  const Outcome outcome = query_hca_cap(hca_, in, out);
  const std::uint32_t op_mod = prm::get32(in, prm::kOpMod);
  // Logs once a type, because libmlx5 and UCX query every type to find the existing ones.
  if (!outcome.ok() && reported_.insert(op_mod).second) {
    log::debug("the software HCA has no capabilities of type {:#x}; the program was told so", op_mod >> 1);
  }
  return outcome;
}

Errno Commands::general(Input in, Output out) {
  const prm::Opcode opcode = opcode_of(in);
  if (!buffers_hold_a_header(in, out) || !travels_as(CommandKind::kGeneral, opcode)) return EINVAL;
  std::fill(out.begin(), out.end(), std::uint8_t{0});
  if (out.size() < output_bytes(opcode)) return answer(out, refuse_short_output());
  switch (opcode) {
    case prm::Opcode::kQueryHcaCap: return answer(out, query_capability(in, out));
    case prm::Opcode::kQueryRoceAddress: return answer(out, query_roce_address(hca_, in, out));
    case prm::Opcode::kQueryNicVportContext: return answer(out, query_nic_vport_context(out));
    case prm::Opcode::kQueryLag: return answer(out, {});  // no bond: all zeros
    default: return answer(out, refuse_unsupported(opcode));
  }
}

Outcome Commands::create_object(prm::Opcode opcode, Input in, Object& object) {
  switch (opcode) {
    case prm::Opcode::kCreateCq: return create_cq(hca_, umems_, in, object);
    case prm::Opcode::kCreateQp: return create_qp(hca_, umems_, in, object);
    case prm::Opcode::kCreateMkey: return create_mkey(hca_, in, object);
    case prm::Opcode::kCreateRmp: return create_rmp(hca_, umems_, in, object);
    default: return refuse_unsupported(opcode);
  }
}

ErrnoOr<Object> Commands::create(Input in, Output out) {
  const prm::Opcode opcode = opcode_of(in);
  if (!buffers_hold_a_header(in, out) || !travels_as(CommandKind::kCreate, opcode)) return refuse(EINVAL);
  std::fill(out.begin(), out.end(), std::uint8_t{0});
  Object object{};
  Outcome outcome = hca_.config().strict ? check_owned(opcode, in, owns_) : Outcome{};
  if (outcome.ok()) outcome = create_object(opcode, in, object);
  const Errno error = answer(out, outcome);
  if (error != 0) return refuse(error);
  prm::set(out, prm::kObjectId, object_id(object));
  for (const std::uint32_t id : object.umems) umems_.hold(id);
  return object;
}

Errno Commands::modify(const Object& object, Input in, Output out) {
  if (!buffers_hold_a_header(in, out)) return EINVAL;
  const prm::Opcode opcode = opcode_of(in);
  if (!travels_as(CommandKind::kModify, opcode)) return EINVAL;
  if (is_transition(opcode) != (object.kind == ObjectKind::kQp)) return EINVAL;
  if (prm::get32(in, prm::kObjectId) != object_id(object)) return EINVAL;
  std::fill(out.begin(), out.end(), std::uint8_t{0});
  if (!is_transition(opcode)) return answer(out, refuse_unsupported(opcode));
  return answer(out, modify_qp(hca_, opcode, object.number, in));
}

Errno Commands::query(const Object& object, Input in, Output out) {
  const prm::Opcode opcode = opcode_of(in);
  if (!buffers_hold_a_header(in, out) || !travels_as(CommandKind::kQuery, opcode)) return EINVAL;
  if (prm::get32(in, prm::kObjectId) != object_id(object) || query_of(object.kind) != opcode) return EINVAL;
  std::fill(out.begin(), out.end(), std::uint8_t{0});
  if (out.size() < output_bytes(opcode)) return answer(out, refuse_short_output());
  if (opcode == prm::Opcode::kQueryQp) return answer(out, query_qp(hca_, object.number, out));
  return answer(out, refuse_unsupported(opcode));
}

Errno Commands::destroy(const Object& object) {
  Errno error = 0;
  switch (object.kind) {
    case ObjectKind::kCq: error = hca_.destroy_cq(object.number); break;
    case ObjectKind::kQp: error = hca_.destroy_qp(object.number); break;
    case ObjectKind::kRmp: error = hca_.destroy_srq(object.number); break;
    case ObjectKind::kMkey: error = hca_.deregister_memory(object.number); break;
  }
  if (error != 0) return error;
  for (const std::uint32_t id : object.umems) umems_.release(id);
  return 0;
}

}  // namespace gdx::softhca::devx
