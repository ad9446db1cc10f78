#include "driver-shim/softhca/uverbs/modify_rules.h"

#include <array>

namespace gdx::softhca::uverbs {
namespace {

struct Rule {
  std::uint32_t required;
  std::uint32_t optional;
};
struct Row {
  QpState from;
  QpState to;
  Rule rc;
  Rule uc;
  Rule ud;
};

constexpr std::uint32_t kPath = kQpAddress | kQpPathMtu | kQpDestinationQpn | kQpReceivePsn;
constexpr std::uint32_t kSends = kCurrentStateAttribute | kQpAccessFlags | kMigrationStateAttribute;
constexpr Rule kInitConnected{kQpPkeyIndex | kQpPort | kQpAccessFlags, 0};
constexpr Rule kReinitConnected{0, kQpPkeyIndex | kQpPort | kQpAccessFlags};

constexpr std::array kRows{
    Row{QpState::kReset,
        QpState::kInit,
        kInitConnected,
        kInitConnected,
        {kQpPkeyIndex | kQpPort | kQpQkey, 0}},
    Row{QpState::kInit,
        QpState::kInit,
        kReinitConnected,
        kReinitConnected,
        {0, kQpPkeyIndex | kQpPort | kQpQkey}},
    Row{QpState::kInit,
        QpState::kRtr,
        {kPath | kQpMaxDestRdAtomic | kQpMinRnrTimer, kQpAccessFlags | kQpPkeyIndex},
        {kPath, kQpAccessFlags | kQpPkeyIndex},
        {0, kQpPkeyIndex | kQpQkey}},
    Row{QpState::kRtr,
        QpState::kRts,
        {kQpTimeout | kQpRetryCount | kQpRnrRetry | kQpSendPsn | kQpMaxRdAtomic, kSends | kQpMinRnrTimer},
        {kQpSendPsn, kSends},
        {kQpSendPsn, kCurrentStateAttribute | kQpQkey}},
    Row{QpState::kRts,
        QpState::kRts,
        {0, kSends | kQpMinRnrTimer},
        {0, kSends},
        {0, kCurrentStateAttribute | kQpQkey}},
    // Unused for RC, which never enters SQE.
    Row{QpState::kSqe,
        QpState::kRts,
        {0, 0},
        {0, kCurrentStateAttribute | kQpAccessFlags},
        {0, kCurrentStateAttribute | kQpQkey}},
};

const Rule& rule_for(const Row& row, QpType type) {
  switch (type) {
    case QpType::kRc: return row.rc;
    case QpType::kUc: return row.uc;
    case QpType::kUd: return row.ud;
  }
  return row.rc;
}

}  // namespace

bool may_modify(QpType type, QpState from, QpState to, std::uint32_t mask) {
  const std::uint32_t given = mask & ~std::uint32_t{kQpState};
  if (to == QpState::kReset) return given == 0;
  if (to == QpState::kError) return from != QpState::kReset && given == 0;  // DevX has a command for that
  for (const Row& row : kRows) {
    if (row.from != from || row.to != to) continue;
    const Rule& rule = rule_for(row, type);
    return (given & rule.required) == rule.required && (given & ~(rule.required | rule.optional)) == 0;
  }
  return false;
}

}  // namespace gdx::softhca::uverbs
