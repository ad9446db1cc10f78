#include "host/programs/proxy/explain.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace gdx::proxy {

std::string text_of(const std::vector<Explained>& all) {
  std::string text;
  for (const Explained& one : all) {
    if (!text.empty()) text += "\n";
    if (one.rows.empty()) {
      text += fmt::format("{}: not usable: {}\n", one.provider, one.unusable);
      continue;
    }
    text += fmt::format("{} (version {})\n", one.traits.provider, one.traits.version);
    for (const ContractRow& row : one.rows)
      text += fmt::format("  {:20} {:10} {}\n", row.subject, name(row.support), row.how);
  }
  return text;
}

std::string json_of(const std::vector<Explained>& all) {
  using Json = nlohmann::ordered_json;
  Json providers = Json::array();
  for (const Explained& one : all) {
    Json& shown = providers.emplace_back(Json{{"provider", one.provider}});
    if (one.rows.empty()) {
      shown["unusable"] = one.unusable;
      continue;
    }
    shown["provider"] = one.traits.provider;
    shown["version"] = one.traits.version;
    Json& contract = shown["contract"] = Json::array();
    for (const ContractRow& row : one.rows)
      contract.push_back(
          {{"subject", row.subject}, {"support", std::string(name(row.support))}, {"how", row.how}});
  }
  return Json{{"providers", providers}}.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace gdx::proxy
