#include "host/programs/bench/modelled.h"

#include <fmt/format.h>

#include <algorithm>

#include "host/programs/bench/document.h"
#include "host/programs/bench/experts.h"

namespace gdx::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kNsOfUs = 1e3;
constexpr std::uint64_t kMostModelledBytes = 16 << 20;
constexpr std::uint32_t kModelledRanks = 64;  // more than run

// Returns "gpu" or "host": where the row's queues are, by its condition or that of the run.
std::string queues_of(const Json& document, const Json& row) {
  auto asked = row.at("queues").get<std::string>();
  if (asked != kDefault) return asked;
  const Json& ranks = document.at("conditions");
  const std::string places = ranks.empty() ? "" : ranks[0].value("queues", "");
  return places.find("kernels' in gpu memory") == std::string::npos ? "host" : "gpu";
}

ModelQuestion question_of(const Json& document, const Json& row, std::uint32_t ranks,
                          const std::string& doorbell) {
  const bool experts = ranks != 0;  // on a team: plain doorbells, queues in host memory
  const auto asked = row.at("doorbell").get<std::string>();
  const std::string rings(experts             ? gdx::name(DoorbellKind::kPlain)
                          : asked == kDefault ? std::string_view(doorbell)
                                              : asked);
  const auto endpoints = experts ? ranks - 1 : row.at("endpoints").get<std::uint32_t>();
  ModelQuestion question;
  question.options = {"--queues",    experts ? "host" : queues_of(document, row),
                      "--doorbell",  rings,
                      "--endpoints", fmt::format("{}", endpoints),
                      "--batch",     row.at("batch").dump()};
  question.fields = {{"operation", experts ? row.at("operation") : Json("put")},
                     {"ranks", experts ? ranks : 2},
                     {"endpoints", endpoints},
                     {"batch", row.at("batch")},
                     {"doorbell", row.at("doorbell")},
                     {"queues", row.at("queues")},
                     {"latency_of", experts ? "round" : "completion"}};
  if (experts) {
    const Operation operation =
        row.at("operation") == name(Operation::kCombine) ? Operation::kCombine : Operation::kDispatch;
    question.round_messages = messages_to_others(operation, 0, ranks);
  }
  return question;
}

}  // namespace

std::vector<ModelQuestion> questions_of(const Json& document, const Plan& plan, const std::string& doorbell) {
  std::vector<std::string> modes = plan.ways;
  std::erase(modes, "auto");
  std::vector<std::uint64_t> sizes = plan.sizes_bytes;
  std::erase_if(sizes, [](std::uint64_t bytes) { return bytes > kMostModelledBytes; });
  std::vector<ModelQuestion> questions;
  if (modes.empty() || sizes.empty()) return questions;
  const auto ask = [&](const Json& row, std::uint32_t ranks) {
    ModelQuestion question = question_of(document, row, ranks, doorbell);
    const auto same = [&](const ModelQuestion& other) { return other.fields == question.fields; };
    if (std::ranges::any_of(questions, same)) return;
    question.options.insert(question.options.end(),
                            {"--mode", fmt::format("{}", fmt::join(modes, ",")), "--size-bytes",
                             fmt::format("{}", fmt::join(sizes, ",")), "--json"});
    questions.push_back(std::move(question));
  };
  for (const Json& row : document.at("rows")) {
    const auto operation = row.at("operation").get<std::string>();
    const bool shared = row.at("posters").get<std::uint64_t>() > row.at("endpoints").get<std::uint64_t>();
    if (operation.starts_with("put") && !shared) ask(row, 0);
    if (std::ranges::count(expert_tests(), operation) == 0) continue;
    ask(row, row.at("ranks").get<std::uint32_t>());
    ask(row, kModelledRanks);
  }
  return questions;
}

void add_modelled(Json& document, const Json& model, const ModelQuestion& question) {
  const Json& fields = question.fields;
  const bool experts = question.round_messages != 0;
  const std::string label = fmt::format(
      "modelled by gdx model: {}, PCIe {} x{}, {} platform, {} doorbells, records {}, queues in {} memory, "
      "{} endpoint{}{}{}",
      model.at("path").get<std::string>(), model.at("generation").get<int>(), model.at("lanes").get<int>(),
      model.at("platform").get<std::string>(), model.at("doorbell").get<std::string>(),
      model.at("record").get<std::string>(), model.at("queues").get<std::string>(),
      fields.at("endpoints").dump(), fields.at("endpoints") == 1 ? "" : "s",
      fields.at("batch") == 1 ? "" : fmt::format(", batches of {}", fields.at("batch").dump()),
      experts ? fmt::format(", {} ranks, by its rate", fields.at("ranks").dump()) : "");
  for (const Json& row : model.at("rows")) {
    // The model withholds rates that no NIC is known to serve.
    const Json& rate = row.at("messages_per_s");
    if (experts && rate.is_null()) continue;
    const auto rate_times = [&rate](double factor) {
      return rate.is_null() ? Json() : Json(rounded(rate.get<double>() * factor));
    };
    // Of a round: its last message leaves when all others have, and must arrive.
    const double us = experts ? row.at("delivered_ns").get<double>() / kNsOfUs +
                                    (question.round_messages - 1) / rate.get<double>() * 1e6
                              : row.at("completed_ns").get<double>() / kNsOfUs;
    Json one = {{"series", label}};
    one.update(fields);
    one.update(Json{{"mode", row.at("mode")},
                    {"bytes", row.at("size_bytes")},
                    {"latency_us", rounded(us)},
                    {"messages_per_s", rate_times(1)},
                    {"gigabytes_per_s", rate_times(row.at("size_bytes").get<double>() / 1e9)}});
    document["modelled"].push_back(std::move(one));
  }
  add_fastest(document);
}

}  // namespace gdx::bench
