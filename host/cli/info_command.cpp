#include <arpa/inet.h>
#include <fmt/format.h>

#include <array>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/command_line.h"
#include "host/calibration/choose_modes.h"
#include "host/cli/commands.h"
#include "host/gpu/gpu.h"
#include "host/hca/hca.h"
#include "host/memory/gpu_registration.h"

namespace gdx {
namespace {

using Json = nlohmann::ordered_json;

std::string gid_text(const ibv_gid& gid) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  inet_ntop(AF_INET6, gid.raw, text.data(), text.size());
  return text.data();
}

// How kernels of a GPU would reach this HCA's doorbell registers: its pages decide.
Result<std::string> doorbell_mapping(const Hca& hca) {
  const UarHandle uar(mlx5dv_devx_alloc_uar(hca.context(), MLX5DV_UAR_ALLOC_TYPE_NC));
  if (!uar) return fail(Status::kSystem, fmt::format("HCA {} gives no doorbell page", hca.name()));
  const auto pages = page_kind(uar->base_addr, kHostPageBytes);
  if (!pages) return tl::unexpected(pages.error());
  const auto choice = mapping_choice_from_environment();
  if (!choice) return tl::unexpected(choice.error());
  return fmt::format("{} ({} pages)", mapping_name(choose_mapping(*pages, *choice)),
                     *pages == PageKind::kDevice ? "device" : "ordinary");
}

// A GPU, and how its memory would be registered with this HCA.
Json describe_gpu(const Hca& hca, int ordinal) {
  const auto gpu = Gpu::open(ordinal);
  if (!gpu) return {{"ordinal", ordinal}, {"reason", gpu.error().message}};
  const auto facts = read_registration_facts(hca, {PointerKind::kDevice, ordinal});
  if (!facts) return {{"ordinal", ordinal}, {"reason", facts.error().message}};
  const RegistrationWay way = decide_registration(*facts);
  Json described{{"ordinal", ordinal},
                 {"name", gpu->name()},
                 {"pci", gpu->pci_bus_id()},
                 {"compute_capability", gpu->compute_capability()},
                 {"registration", registration_name(way)},
                 {"queue_placements", {"host"}}};
  if (way == RegistrationWay::kRefused) {
    described["reason"] = refusal_advice(*facts);
  } else {
    described["queue_placements"].push_back("gpu");
  }
  return described;
}

// The GPUs as this HCA would serve them, or why there are none.
Json describe_gpus(const Hca& hca) {
  const auto count = Gpu::count();
  if (!count) return {{"none", count.error().message}};
  const auto doorbells = doorbell_mapping(hca);
  Json described{{"driver", cuda::version_text((*cuda::driver())->version)},
                 {"doorbells", doorbells ? *doorbells : doorbells.error().message}};
  for (int ordinal = 0; ordinal < *count; ++ordinal) described["gpus"].push_back(describe_gpu(hca, ordinal));
  return described;
}

// What an endpoint with slots of both memories would go by.
void add_auto_modes(const Hca& hca, Json& described) {
  const ModeMeans means{hca.device_memory_bytes() != 0, true};
  const auto choice = choose_modes(hca.name(), {}, means);
  const auto& path = choice ? choice->path : std::nullopt;
  described["path_class"] = path ? Json(std::string(name(*path))) : Json(nullptr);
  described["auto"] = choice ? Json(describe(choice->modes)) : Json(nullptr);
  described["auto_why"] = choice ? choice->why : choice.error().message;
}

Json describe(const Hca& hca) {
  Json described = {{"name", hca.name()},
                    {"usable", true},
                    {"devx", true},
                    {"firmware", hca.firmware()},
                    {"address", hca.address_text()},
                    {"gid", gid_text(hca.gid())},
                    {"gid_index", hca.gid_index()},
                    {"path_mtu_bytes", hca.path_mtu_bytes()},
                    {"device_memory_bytes", hca.device_memory_bytes()},
                    {"cuda", describe_gpus(hca)}};
  add_auto_modes(hca, described);
  return described;
}

Json describe_unusable(const std::string& name, const Error& error) {
  return {{"name", name}, {"usable", false}, {"reason", error.message}};
}

void print_gpus(const Json& cuda) {
  if (cuda.contains("none")) {
    fmt::print("  GPUs           none: {}\n", cuda["none"].get<std::string>());
    return;
  }
  fmt::print("  CUDA driver    {}\n  doorbells      shown to a GPU by {}\n",
             cuda["driver"].get<std::string>(), cuda["doorbells"].get<std::string>());
  for (const Json& gpu : cuda["gpus"]) {
    const std::string reason = gpu.value("reason", "");
    fmt::print("  GPU {}          ", gpu["ordinal"].get<int>());
    if (gpu.contains("name")) {
      fmt::print("{} at {}, sm_{}; queues in {}; memory by {}", gpu["name"].get<std::string>(),
                 gpu["pci"].get<std::string>(), gpu["compute_capability"].get<int>(),
                 gpu["queue_placements"].size() == 1 ? "host memory" : "host memory or its own",
                 gpu["registration"].get<std::string>());
    }
    fmt::print("{}{}\n", gpu.contains("name") && !reason.empty() ? ": " : "", reason);
  }
}

void print_text(const Json& hca) {
  if (!hca["usable"].get<bool>()) {
    fmt::print("{}\n  usable         no: {}\n", hca["name"].get<std::string>(),
               hca["reason"].get<std::string>());
    return;
  }
  fmt::print("{}\n  usable         yes\n  DevX           yes\n  firmware       {}\n",
             hca["name"].get<std::string>(), hca["firmware"].get<std::string>());
  fmt::print("  address        {}\n  GID            {} (index {})\n", hca["address"].get<std::string>(),
             hca["gid"].get<std::string>(), hca["gid_index"].get<int>());
  fmt::print("  path MTU       {} B\n  device memory  {} B\n", hca["path_mtu_bytes"].get<std::uint32_t>(),
             hca["device_memory_bytes"].get<std::uint64_t>());
  const Json& modes = hca["auto"];
  fmt::print("  auto           {}\n                 {}\n",
             modes.is_null() ? "refused" : modes.get<std::string>(), hca["auto_why"].get<std::string>());
  print_gpus(hca["cuda"]);
}

int print_info(const std::string& wanted, bool as_json) {
  std::vector<std::string> names{wanted};
  if (wanted.empty()) {
    auto listed = list_hcas();
    if (!listed) return report(listed.error());
    if (!listed->empty()) names = std::move(*listed);
  }
  Json hcas = Json::array();
  int exit_status = kExitFailure;
  for (const std::string& name : names) {
    const auto hca = Hca::open({name});
    if (hca) exit_status = 0;
    // One that was asked for by name, or none at all: the error is the answer.
    if (!hca && names.size() == 1) return report(hca.error());
    hcas.push_back(hca ? describe(*hca) : describe_unusable(name, hca.error()));
  }
  if (as_json) {
    fmt::print("{}\n", hcas.dump(2, ' ', false, Json::error_handler_t::replace));
  } else {
    for (const Json& hca : hcas) print_text(hca);
  }
  return exit_status;
}

}  // namespace

void add_info_command(CLI::App& app, int& exit_status) {
  struct Chosen {
    std::string name;
    bool as_json = false;
  };
  auto chosen = std::make_shared<Chosen>();
  CLI::App* info = app.add_subcommand("info", "Show the HCAs of this machine");
  info->add_option("--hca", chosen->name, "Only this one")
      ->check(command_line::not_empty("the name of an HCA"));
  info->add_flag("--json", chosen->as_json, "As JSON");
  info->callback([chosen, &exit_status] { exit_status = print_info(chosen->name, chosen->as_json); });
}

}  // namespace gdx
