#include "host/programs/doctor/step_result.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "proto/mlx5/prm.h"

namespace gdx::doctor {

namespace prm = mlx5::prm;

StepResult without_staging(const Error& error) {
  if (error.status == Status::kNoMemory) return {Verdict::kUnknown, "held by others: " + error.message};
  if (error.status == Status::kUnsupported) return {Verdict::kUnknown, error.message};
  return {Verdict::kFail, error.message};
}

void PartResults::add(const std::string& part, const std::string& failure, const std::string& value,
                      bool deviates) {
  std::optional<Verdict> verdict = failure.empty() ? Verdict::kOk : Verdict::kFail;
  if (failure.empty() && deviates) verdict.reset();
  result_.facts.push_back({part, failure.empty() ? value : failure, verdict});
  if (!failure.empty()) {
    failed_.push_back(fmt::format("{}: {}", part, failure));
  } else {
    done_.push_back(value.empty() ? part : fmt::format("{}: {}", part, value));
  }
}

void PartResults::add_evidence(const std::string& part, const std::string& cqe, const Endpoint& endpoint) {
  result_.facts.push_back({part + ": cqe", cqe});
  const auto context = endpoint.query_queue_pair();
  result_.facts.push_back(
      {part + ": query_qp",
       context ? fmt::format("state {}", prm::get32(*context, prm::qp::kState)) : context.error().message});
}

StepResult PartResults::result(const std::string& unlike) {
  const Verdict best = unlike.empty() ? Verdict::kOk : Verdict::kUnknown;
  result_.verdict = failed_.empty() ? best : Verdict::kFail;
  result_.value = fmt::format("{}{}", fmt::join(failed_.empty() ? done_ : failed_, "; "), unlike);
  return result_;
}

}  // namespace gdx::doctor
