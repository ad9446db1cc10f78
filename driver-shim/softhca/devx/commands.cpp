#include "driver-shim/softhca/devx/commands.h"

#include <algorithm>
#include <cerrno>

namespace gdx::softhca::devx {
namespace prm = mlx5::prm;
namespace {

prm::Opcode opcode_of(Input in) { return static_cast<prm::Opcode>(prm::get32(in, prm::kOpcode)); }

// Writes the header every answer begins with, and turns the outcome into the ioctl's errno.
Errno answer(Output out, Outcome outcome) {
  prm::set(out, prm::kStatus, static_cast<std::uint64_t>(outcome.status));
  prm::set(out, prm::kSyndrome, outcome.syndrome);
  return outcome.ok() ? 0 : EREMOTEIO;
}

bool buffers_hold_a_header(Input in, Output out) {
  return in.size() >= prm::kShortCommandBytes && out.size() >= prm::kShortCommandBytes;
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

Errno Commands::general(Input in, Output out) {
  if (!buffers_hold_a_header(in, out)) return EINVAL;
  std::fill(out.begin(), out.end(), std::uint8_t{0});
  switch (opcode_of(in)) {
    case prm::Opcode::kQueryHcaCap: return answer(out, query_hca_cap(hca_, in, out));
    case prm::Opcode::kQueryRoceAddress: return answer(out, query_roce_address(hca_, in, out));
    case prm::Opcode::kQueryNicVportContext: return answer(out, query_nic_vport_context(out));
    case prm::Opcode::kQueryLag: return answer(out, {});  // no bond: all zeros
    case prm::Opcode::kQueryHcaVportContext:
      return answer(out, refuse_with(prm::CommandStatus::kBadOperation, Syndrome::kUnsupportedCommand));
    default: return EINVAL;
  }
}

Answer<Object> Commands::create(Input in, Output out) {
  if (!buffers_hold_a_header(in, out)) return refuse(EINVAL);
  std::fill(out.begin(), out.end(), std::uint8_t{0});
  Object object{};
  Outcome outcome;
  switch (opcode_of(in)) {
    case prm::Opcode::kCreateCq: outcome = create_cq(hca_, umems_, in, object); break;
    case prm::Opcode::kCreateQp: outcome = create_qp(hca_, umems_, in, object); break;
    case prm::Opcode::kCreateMkey:
    case prm::Opcode::kCreateRmp:
    case prm::Opcode::kAllocPd:
      outcome = refuse_with(prm::CommandStatus::kBadOperation, Syndrome::kUnsupportedCommand);
      break;
    default: return refuse(EINVAL);
  }
  const Errno error = answer(out, outcome);
  if (error != 0) return refuse(error);
  prm::set(out, prm::kObjectId, object.number);
  for (const std::uint32_t id : object.umems) umems_.hold(id);
  return object;
}

Errno Commands::modify(const Object& object, Input in, Output out) {
  if (!buffers_hold_a_header(in, out)) return EINVAL;
  const prm::Opcode opcode = opcode_of(in);
  if (object.kind != ObjectKind::kQp || !is_transition(opcode)) return EINVAL;
  if (prm::get32(in, prm::kObjectId) != object.number) return EINVAL;
  std::fill(out.begin(), out.end(), std::uint8_t{0});
  return answer(out, modify_qp(hca_, opcode, object.number, in));
}

Errno Commands::query(const Object& object, Input in, Output out) {
  if (!buffers_hold_a_header(in, out)) return EINVAL;
  if (prm::get32(in, prm::kObjectId) != object.number) return EINVAL;
  std::fill(out.begin(), out.end(), std::uint8_t{0});
  switch (opcode_of(in)) {
    case prm::Opcode::kQueryQp:
      if (object.kind != ObjectKind::kQp) return EINVAL;
      return answer(out, query_qp(hca_, object.number, out));
    case prm::Opcode::kQueryCq:
      if (object.kind != ObjectKind::kCq) return EINVAL;
      return answer(out, refuse_with(prm::CommandStatus::kBadOperation, Syndrome::kUnsupportedCommand));
    default: return EINVAL;
  }
}

Errno Commands::destroy(const Object& object) {
  const Errno error =
      object.kind == ObjectKind::kCq ? hca_.destroy_cq(object.number) : hca_.destroy_qp(object.number);
  if (error != 0) return error;
  for (const std::uint32_t id : object.umems) umems_.release(id);
  return 0;
}

}  // namespace gdx::softhca::devx
