// Series of gdx model beside a document's rows: of the same doorbell, queues, endpoints and batch.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "host/programs/bench/plan.h"

namespace gdx::bench {

// One run of gdx model, but for its path class, and the fields that the rows made of it have.
struct ModelQuestion {  // NOLINT(bugprone-exception-escape): moving the JSON throws nothing
  std::vector<std::string> options;
  nlohmann::ordered_json fields;
  double round_messages = 0;  // of a round of experts; 0: of puts
};

// Returns what to ask for the puts, and the rounds of experts, that a document has rows of; rounds also for
// 64 ranks, which nothing here runs. Shared endpoints have no model. `doorbell`: of endpoints that are not
// asked for another.
[[nodiscard]] std::vector<ModelQuestion> questions_of(const nlohmann::ordered_json& document,
                                                      const Plan& plan, const std::string& doorbell);

// Adds rows of `gdx model --json`'s output, as a series that is labelled modelled.
void add_modelled(nlohmann::ordered_json& document, const nlohmann::ordered_json& model,
                  const ModelQuestion& question);

}  // namespace gdx::bench
