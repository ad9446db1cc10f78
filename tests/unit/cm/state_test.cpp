#include "driver-shim/softhca/cm/state.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace gdx::softhca::cm {
namespace state_test {

using enum Input;

// Written from the state diagrams of the specification, not from the code.
const std::map<State, std::set<Input>>& permitted_by_specification() {
  static const std::map<State, std::set<Input>> table = {
      {State::kIdle, {kConnect, kResolve}},
      {State::kReqSent, {kMra, kRej, kRep, kTimeout}},
      {State::kMraReceived, {kRej, kRep, kTimeout}},
      {State::kRepReceived, {kEstablish, kReject, kRej}},
      {State::kReqReceived, {kAccept, kReject, kReq, kRej}},
      {State::kRepSent, {kEstablish, kReject, kDisconnect, kReq, kMra, kRej, kRtu, kDreq, kTimeout}},
      {State::kEstablished, {kDisconnect, kRep, kRej, kDreq}},
      {State::kDreqSent, {kDreq, kDrep, kTimeout}},
      {State::kTimeWait, {kDreq, kReq, kTimeout}},
      {State::kSidrSent, {kSidrRep, kTimeout}},
      {State::kSidrReceived, {kReply, kReject}},
      {State::kClosed, {}},
  };
  return table;
}

TEST(CmState, every_input_in_every_state_is_permitted_or_forbidden_as_specified) {
  ASSERT_EQ(permitted_by_specification().size(), static_cast<std::size_t>(kStates));
  for (const auto& [state, inputs] : permitted_by_specification()) {
    for (int i = 0; i < kInputs; ++i) {
      const auto input = static_cast<Input>(i);
      EXPECT_EQ(permitted(state, input), inputs.contains(input))
          << "state " << static_cast<int>(state) << " input " << i;
    }
  }
}

}  // namespace state_test
}  // namespace gdx::softhca::cm
