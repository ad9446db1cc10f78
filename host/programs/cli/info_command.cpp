#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/command_line.h"
#include "base/environment.h"
#include "base/output.h"
#include "base/size_text.h"
#include "host/bootstrap/world.h"
#include "host/calibration/calibration_file.h"
#include "host/calibration/choose_modes.h"
#include "host/calibration/mode_table.h"
#include "host/direct/peer_mapping.h"
#include "host/gpu/mapping_choice.h"
#include "host/hca/hca.h"
#include "host/ipc/daemon.h"
#include "host/memory/gpu_registration.h"
#include "host/poster/contract.h"
#include "host/programs/cli/commands.h"
#include "host/programs/cli/describe_hca.h"
#include "host/queue/endpoint.h"
#include "host/staging/staging_pool.h"
#include "host/team/team_options.h"

namespace gdx {
namespace {

using Json = nlohmann::ordered_json;

Json describe_unusable(const std::string& name, const Error& error) {
  return {{"name", name}, {"gdx_version", GDX_VERSION}, {"usable", false}, {"reason", error.message}};
}

void print_row(const char* label, const std::string& text) { print("  {:14} {}\n", label, text); }

std::string string_of(const Json& json) { return json.get<std::string>(); }

void print_auto(const Json& described) {
  const Json& modes = described["auto"];
  print_row("auto", modes.is_null() ? "refused" : string_of(modes));
  print_row("", string_of(described["auto_why"]));
}

void print_gpus(const Json& cuda) {
  if (cuda.contains("none")) {
    print_row("GPUs", "none: " + string_of(cuda["none"]));
    return;
  }
  print_row("CUDA driver", string_of(cuda["driver"]));
  for (const Json& gpu : cuda["gpus"]) {
    const std::string label = fmt::format("GPU {}", gpu["ordinal"].get<int>());
    const std::string reason = gpu.value("reason", "");
    if (!gpu.contains("name")) {
      print_row(label.c_str(), reason);
      continue;
    }
    const std::string path =
        gpu["path_class"].is_null() ? "path of unknown class" : string_of(gpu["path_class"]) + " path";
    const char* const queues = gpu["queue_placements"].size() == 1 ? "host memory" : "host memory or its own";
    print_row(label.c_str(),
              fmt::format("{} at {}, sm_{}, {}; queues in {}; memory of {} by {}{}{}", string_of(gpu["name"]),
                          string_of(gpu["pci"]), gpu["compute_capability"].get<int>(), path, queues,
                          string_of(gpu["allocation"]), string_of(gpu["registration"]),
                          reason.empty() ? "" : ": ", reason));
    print_auto(gpu);
    if (gpu.contains("with_queues_in_gpu_memory")) print_auto(gpu["with_queues_in_gpu_memory"]);
  }
}

std::string port_text(const Json& port) {
  if (port.contains("reason")) return string_of(port["reason"]);
  std::string text =
      fmt::format("{}, {} Gb/s, {}, MTU {} B of {}", string_of(port["state"]),
                  port["rate_gbps"].get<double>(), string_of(port["link"]),
                  port["mtu_bytes"].get<std::uint32_t>(), port["max_mtu_bytes"].get<std::uint32_t>());
  if (port["link"] == name(LinkLayer::kEthernet)) return text;
  return fmt::format("{}, {}, P_Keys {}", text,
                     port["grh_required"].get<bool>() ? "requires a GRH" : "requires no GRH",
                     fmt::join(port["pkeys"].get<std::vector<std::string>>(), " "));
}

std::string place_text(const Json& hca) {
  if (hca["pci"].is_null()) return "nowhere that the topology shows";
  return fmt::format("{}, NUMA node {}", string_of(hca["pci"]),
                     hca["numa_node"].is_null() ? "unknown" : hca["numa_node"].dump());
}

std::string staging_text(const Json& staging) {
  const auto slots = [&](const char* count, const char* bytes) {
    const auto number = staging[count].get<std::uint32_t>();
    return number == 0
               ? "no slots"
               : fmt::format("{} slots of {}", number, size_text(staging[bytes].get<std::uint32_t>()));
  };
  return fmt::format("push {}, bounce {} of host memory, by default", slots("slot_count", "slot_bytes"),
                     slots("bounce_slot_count", "bounce_slot_bytes"));
}

std::string teams_text(const Json& provider) {
  if (provider.is_null())
    return fmt::format("by this HCA, and by loads and stores; without it by {} (gdx proxy --explain)",
                       kProviderVariable);
  return fmt::format("a thread of the host posts: {}={}", kProviderVariable, string_of(provider));
}

void print_text(const Json& hca) {
  print("{}\n", string_of(hca["name"]));
  print_row("gdx", string_of(hca["gdx_version"]));
  print_row("launch", string_of(hca["launch"]));
  print_row("teams", teams_text(hca["provider"]));
  if (!hca["usable"].get<bool>()) {
    print_row("usable", "no: " + string_of(hca["reason"]));
    return;
  }
  print_row("usable", "yes");
  if (hca.contains("chosen")) print_row("chosen", string_of(hca["chosen"]));
  print_row("kind", string_of(hca["kind"]) + " HCA");
  print_row("DevX", "yes");
  print_row("firmware", string_of(hca["firmware"]));
  print_row("QP timestamps", string_of(hca["qp_timestamps"]));
  print_row("PCI", place_text(hca));
  print_row("port", port_text(hca["port"]));
  print_row("address", string_of(hca["address"]));
  print_row("GID", fmt::format("{} (index {})", string_of(hca["gid"]), hca["gid_index"].get<int>()));
  print_row("path MTU", fmt::format("{} B", hca["path_mtu_bytes"].get<std::uint32_t>()));
  print_row("signals", string_of(hca["data_order"]["signals"]));
  const Json& doorbell = hca["doorbell"];
  print_row("doorbell", fmt::format("{}, shown to a GPU by {}", string_of(doorbell["kind"]),
                                    string_of(doorbell["mapping"])));
  print_row(
      "device memory",
      fmt::format("{} B{}{}", hca["device_memory_bytes"].get<std::uint64_t>(),
                  hca["device_memory_mapping"].is_null() ? "" : ", shown to a GPU by ",
                  hca["device_memory_mapping"].is_null() ? "" : string_of(hca["device_memory_mapping"])));
  print_row("host memory", "shown to a GPU by " + string_of(hca["host_memory_mapping"]));
  print_row("staging", staging_text(hca["staging"]));
  print_auto(hca);
  print_gpus(hca["cuda"]);
}

// Adds the way on which a machine without an HCA has teams.
Error with_other_way(Error error) {
  if (error.status == Status::kNoDevice) {
    error.message += fmt::format(
        "; teams need none with {}=tcp, where a thread of the host posts (gdx proxy "
        "--explain)",
        kProviderVariable);
  }
  return error;
}

// Refuses a variable whose value a program would meet later, and that no row shows.
Result<void> check_environment() {
  GDX_TRY(number_from_environment(kProcessesVariable, 1, kMaxProcessesPerHca));
  GDX_TRY(direct_choice_from_environment());
  GDX_TRY(registration_choice_from_environment());
  GDX_TRY(mapping_choice_from_environment());
  GDX_TRY(emulation_from_environment());
  GDX_TRY(insecure_from_environment());
  GDX_TRY(ipc::daemon_places_from_environment());
  const char* const calibration = std::getenv(kCalibrationVariable);
  if (calibration != nullptr && *calibration != '\0') GDX_TRY(read_calibrations(calibration));
  return {};
}

// Opens an HCA whose endpoints the environment permits.
Result<Hca> open_usable(const std::string& name) {
  auto hca = GDX_TRY(Hca::open({.name = name, .in_this_process = true}));
  GDX_TRY(resolve_endpoint_options({}, hca.is_software(), hca.link_layer()));
  // Permits a lack of a table, which is told beside the HCA and the queue that have none.
  const auto modes = choose_modes(hca.name(), {}, {});
  if (!modes && modes.error().status == Status::kInvalidArgument) return tl::unexpected(modes.error());
  return hca;
}

// Marks the HCA that a program gets which names none and whose kernels run on GPU 0. Errors: those of a name
// in the environment; without one none.
Result<void> mark_chosen(Json& hcas) {
  const auto chosen = Hca::open({.in_this_process = true, .gpu = 0});
  if (!chosen && std::getenv(kHcaVariable) != nullptr) return tl::unexpected(chosen.error());
  if (!chosen) return {};
  for (Json& hca : hcas) {
    if (hca["name"] == chosen->name()) hca["chosen"] = chosen->chosen();
  }
  return {};
}

int print_info(const std::string& wanted, bool as_json) {
  if (const auto checked = check_environment(); !checked) return report(checked.error());
  // Without a way to meet, programs that bring their own run all the same.
  Status refusal = Status::kOk;
  const std::string launch = describe_launch(&refusal);
  std::vector<std::string> names{wanted};
  if (wanted.empty()) {
    auto listed = list_hcas();
    if (!listed) return report(listed.error());
    if (!listed->empty()) names = std::move(*listed);
  }
  Json hcas = Json::array();
  int exit_status = kExitFailure;
  for (const std::string& name : names) {
    const auto hca = open_usable(name);
    if (hca && refusal != Status::kInvalidArgument) exit_status = 0;
    // Reports the error alone for an HCA that was named, or for the only one.
    if (!hca && names.size() == 1) return report(with_other_way(hca.error()));
    hcas.push_back(hca ? describe_hca(*hca) : describe_unusable(name, hca.error()));
  }
  const char* const provider = std::getenv(kProviderVariable);
  for (Json& hca : hcas) {
    hca["launch"] = launch;
    hca["provider"] = provider == nullptr ? Json() : Json(provider);
  }
  if (wanted.empty()) {  // last, because it loads the driver
    if (const auto marked = mark_chosen(hcas); !marked) return report(marked.error());
  }
  if (as_json) {
    print("{}\n", hcas.dump(2, ' ', false, Json::error_handler_t::replace));
  } else {
    for (const Json& hca : hcas) print_text(hca);
  }
  return exit_status;
}

}  // namespace

void add_info_command(command_line::Command app, int& exit_status) {
  struct Chosen {
    std::string name;
    bool as_json = false;
  };
  auto chosen = std::make_shared<Chosen>();
  const command_line::Command info = app.add_command("info", "Show the HCAs of this machine");
  info.add_option("--hca", chosen->name, "Only this one")
      .check(command_line::not_empty("the name of an HCA"));
  info.add_flag("--json", chosen->as_json, "As JSON");
  info.show_examples({"gdx info", "gdx run -- gdx info --json", "gdx info --hca mlx5_0"});
  info.when_chosen([chosen, &exit_status] { exit_status = print_info(chosen->name, chosen->as_json); });
}

}  // namespace gdx
