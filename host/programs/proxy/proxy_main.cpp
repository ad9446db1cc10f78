// gdx_proxy, which `gdx proxy` runs: what the host's poster does over each provider of libfabric here, and
// over RDMA devices without it.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "base/command_line.h"
#include "base/output.h"
#include "host/poster/contract.h"
#include "host/poster/libfabric_port.h"
#include "host/poster/verbs_port.h"
#include "host/programs/proxy/explain.h"

namespace gdx::proxy {
namespace {

constexpr int kExitFailure = 1;
constexpr int kExitNotFound = 127;

int report(const Error& error) {
  print_error("gdx proxy: {}\n", error.message);
  if (error.status == Status::kInvalidArgument) return command_line::kExitUsage;
  return error.status == Status::kNotFound ? kExitNotFound : kExitFailure;
}

Result<PortTraits> traits_of(const std::string& provider, bool insecure) {
  const auto verbs = verbs_options_of(provider);
  if (!verbs) return libfabric_traits({.provider = provider, .address = {}, .insecure = insecure});
  const auto port = GDX_TRY(open_verbs_port(*verbs));
  return port->traits();
}

Result<Explained> explain_one(const std::string& provider, bool insecure) {
  const PortTraits traits = GDX_TRY(traits_of(provider, insecure));
  return Explained{provider, traits, contract_of(traits, signal_order_of(traits)), {}};
}

// A provider that was named must be usable; of the others all are shown.
Result<std::vector<Explained>> explain(const std::string& named) {
  const bool insecure = GDX_TRY(insecure_from_environment());
  std::vector<Explained> all;
  if (!named.empty()) {
    all.push_back(GDX_TRY(explain_one(named, insecure)));
    return all;
  }
  auto providers = libfabric_providers();
  if (!providers) {
    all.push_back({"libfabric", {}, {}, providers.error().message});
    providers.emplace();
  }
  providers->emplace_back(kVerbsPort);
  for (const std::string& provider : *providers) {
    auto one = explain_one(provider, insecure);
    all.push_back(one ? std::move(*one) : Explained{provider, {}, {}, one.error().message});
  }
  return all;
}

int run(std::vector<std::string> arguments) {
  std::string provider;
  bool as_json = false;
  command_line::App app(
      "What the host's poster does itself, emulates or lacks over libfabric's providers here, and over "
      "ibverbs",
      "gdx proxy");
  const auto explains = app.add_flag("--explain", "The contract of each provider, or of one");
  app.add_option("--provider", provider, "One provider, as fi_info -l names it; ibverbs, ibverbs:DEVICE")
      .check(command_line::not_empty("the name of a provider"));
  app.add_flag("--json", as_json, "As JSON");
  app.show_examples({"gdx proxy --explain", "gdx proxy --explain --provider tcp --json"});
  if (const auto ended = app.parse("gdx proxy", std::move(arguments))) return *ended;
  if (!explains.given())
    return report({Status::kInvalidArgument, "nothing to do: give --explain; see gdx proxy --help"});
  const auto all = explain(provider);
  if (!all) return report(all.error());
  write_output(as_json ? json_of(*all) : text_of(*all));
  return 0;
}

}  // namespace
}  // namespace gdx::proxy

int main(int argc, char** argv) {
  return gdx::run_program("gdx proxy", [&] { return gdx::proxy::run({argv + 1, argv + argc}); });
}
