#include "host/calibration/calibration_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/size_text.h"
#include "host/calibration/mode_table.h"

namespace gdx {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr char kFormat[] = "gdx calibration";
constexpr std::uintmax_t kMaxFileBytes = 1 << 20;
constexpr std::size_t kMaxTables = 1000;
constexpr std::size_t kMaxTextBytes = 400;
constexpr std::size_t kMaxReasons = 8;
constexpr ModeMeans kAllMeans{true, true};

tl::unexpected<Error> refuse(const std::string& file, const std::string& why) {
  return fail(Status::kInvalidArgument,
              fmt::format("{} is no calibration: {}; measure anew with gdx calibrate, after moving it away",
                          file, why));
}

// Reads fields of one table; the first that is wrong stays in why().
class Fields {
 public:
  explicit Fields(const Json& json) : json_(json) {
    if (!json.is_object()) why_ = "a table is not an object";
  }

  std::uint64_t number(const char* name, std::uint64_t most) {
    const Json* field = find(name);
    if (field == nullptr) return 0;
    if (field->is_number_unsigned() && field->get<std::uint64_t>() <= most)
      return field->get<std::uint64_t>();
    spoil(name, "a whole number in range");
    return 0;
  }
  std::uint32_t number32(const char* name) {
    return static_cast<std::uint32_t>(number(name, std::numeric_limits<std::uint32_t>::max()));
  }
  // `null` is no limit.
  std::uint64_t limit(const char* name) {
    const Json* field = find(name);
    if (field != nullptr && field->is_null()) return kNoSizeLimit;
    return number(name, std::numeric_limits<std::uint64_t>::max() - 1);
  }
  std::string text(const char* name) {
    const Json* field = find(name);
    return field == nullptr ? std::string() : text_of(name, *field);
  }
  std::vector<std::string> texts(const char* name) {
    std::vector<std::string> all;
    const Json* field = find(name);
    if (field == nullptr) return all;
    if (!field->is_array() || field->size() > kMaxReasons) {
      spoil(name, "a short list of texts");
      return all;
    }
    for (const Json& one : *field) all.push_back(text_of(name, one));
    return all;
  }
  bool flag(const char* name) {
    const Json* field = find(name);
    if (field == nullptr) return false;
    if (field->is_boolean()) return field->get<bool>();
    spoil(name, "true or false");
    return false;
  }
  // Returns the one of two values that has this name.
  template <typename Choice>
  Choice one_of(const char* field_name, Choice first, Choice second) {
    const Json* field = find(field_name);
    if (field == nullptr) return first;
    if (*field == name(first)) return first;
    if (*field != name(second)) spoil(field_name, fmt::format("{} or {}", name(first), name(second)).c_str());
    return second;
  }
  std::optional<PathClass> path(const char* name) {
    const Json* field = find(name);
    if (field == nullptr || field->is_null()) return std::nullopt;
    const auto path = field->is_string() ? path_class(field->get_ref<const std::string&>()) : std::nullopt;
    if (!path) spoil(name, "PIX, PXB, PHB, NODE, SYS or null");
    return path;
  }
  [[nodiscard]] const std::string& why() const { return why_; }

 private:
  const Json* find(const char* name) {
    if (!why_.empty()) return nullptr;
    const auto found = json_.find(name);
    if (found != json_.end()) return &*found;
    why_ = fmt::format("a table has no {}", name);
    return nullptr;
  }
  // It will be shown on a terminal.
  std::string text_of(const char* name, const Json& field) {
    if (field.is_string()) {
      const auto& text = field.get_ref<const std::string&>();
      const bool plain = std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
      if (plain && !text.empty() && text.size() <= kMaxTextBytes) return text;
    }
    spoil(name, "a line of plain text");
    return {};
  }
  void spoil(const char* name, const char* wanted) {
    if (why_.empty()) why_ = fmt::format("{} of a table is not {}", name, wanted);
  }

  const Json& json_;
  std::string why_;
};

Result<std::string> read_text(const std::string& file) {
  std::error_code error;
  const fs::file_status status = fs::status(file, error);
  if (!fs::exists(status)) {
    return fail(Status::kNotFound,
                fmt::format("there is no calibration {}; make it with gdx calibrate", file));
  }
  if (!fs::is_regular_file(status)) return refuse(file, "not a regular file");
  if (fs::file_size(file, error) > kMaxFileBytes || error) return refuse(file, "more than 1 MiB");
  std::ifstream in(file, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (!in.good() && !in.eof()) {
    return fail(Status::kSystem, fmt::format("cannot read {}: {}", file, std::strerror(errno)));
  }
  return text;
}

QueueShape shape_of(Fields& fields) {
  return {.queues = fields.one_of("queues", Placement::kHost, Placement::kGpu),
          .slot_count = fields.number32("slot_count"),
          .slot_bytes = fields.number32("slot_bytes"),
          .bounce_slot_count = fields.number32("bounce_slot_count"),
          .bounce_slot_bytes = fields.number32("bounce_slot_bytes"),
          .blueflame = fields.flag("blueflame")};
}

Result<Calibration> table_of(const std::string& file, const Json& json) {
  Fields fields(json);
  Calibration table;
  table.key.hca = fields.text("hca");
  table.key.kernels = fields.one_of("kernels", Processor::kCpu, Processor::kGpu);
  table.key.payload = fields.one_of("payload", Placement::kHost, Placement::kGpu);
  table.key.path = fields.path("path_class");
  table.key.shape = shape_of(fields);
  table.key.queue_layout_version = fields.number32("queue_layout_version");
  table.modes = {fields.limit("inline_bytes"), fields.limit("push_bytes"), fields.limit("pull_bytes")};
  table.rounds = static_cast<std::uint32_t>(fields.number("rounds", kMaxCalibrationRounds));
  table.measured_on = fields.text("measured_on");
  table.why = fields.texts("why");
  if (!fields.why().empty()) return refuse(file, fields.why());
  if (const auto checked = check_calibration_key(table.key); !checked)
    return refuse(file, checked.error().message);
  if (const auto checked = check_mode_table(table.modes, kAllMeans); !checked)
    return refuse(file, checked.error().message);
  return table;
}

Json limit_json(std::uint64_t bytes) { return bytes == kNoSizeLimit ? Json(nullptr) : Json(bytes); }

Json to_json(const Calibration& table) {
  const QueueShape& shape = table.key.shape;
  return {{"hca", table.key.hca},
          {"kernels", name(table.key.kernels)},
          {"payload", name(table.key.payload)},
          {"path_class", table.key.path ? Json(name(*table.key.path)) : Json(nullptr)},
          {"queues", name(shape.queues)},
          {"slot_count", shape.slot_count},
          {"slot_bytes", shape.slot_bytes},
          {"bounce_slot_count", shape.bounce_slot_count},
          {"bounce_slot_bytes", shape.bounce_slot_bytes},
          {"blueflame", shape.blueflame},
          {"queue_layout_version", table.key.queue_layout_version},
          {"inline_bytes", limit_json(table.modes.inline_bytes)},
          {"push_bytes", limit_json(table.modes.push_bytes)},
          {"pull_bytes", limit_json(table.modes.pull_bytes)},
          {"rounds", table.rounds},
          {"measured_on", table.measured_on},
          {"why", table.why}};
}

Result<void> replace_file(const std::string& file, const std::string& text) {
  const auto cannot = [&](const std::string& why) {
    return fail(Status::kSystem,
                fmt::format("cannot write {}: {}; choose another place with --output", file, why));
  };
  std::error_code error;
  const fs::path folder = fs::path(file).parent_path();
  if (!folder.empty() && !fs::is_directory(folder, error)) {
    error.clear();
    fs::create_directories(folder, error);
    if (error) return cannot(error.message());
  }
  const std::string fresh = fmt::format("{}.{}", file, getpid());
  {
    std::ofstream out(fresh, std::ios::binary | std::ios::trunc);
    out << text;
    out.close();
    if (!out) return cannot(std::strerror(errno));
  }
  fs::rename(fresh, file, error);
  if (!error) return {};
  const std::string why = error.message();
  fs::remove(fresh, error);
  return cannot(why);
}

}  // namespace

std::string describe(const QueueShape& shape) {
  const auto slots = [](std::uint32_t count, const char* kind, std::uint32_t bytes) {
    return count == 0 ? fmt::format("no {}slots", kind)
                      : fmt::format("{} {}slots of {}", count, kind, size_text(bytes));
  };
  return fmt::format("queues in {} memory, {}, {}, {}", name(shape.queues),
                     slots(shape.slot_count, "", shape.slot_bytes),
                     slots(shape.bounce_slot_count, "bounce ", shape.bounce_slot_bytes),
                     shape.blueflame ? "BlueFlame" : "plain doorbells");
}

std::string describe(const CalibrationKey& key) {
  if (key.kernels == Processor::kCpu) return fmt::format("HCA {}, kernels on a CPU", key.hca);
  return fmt::format("HCA {}, kernels on a GPU with payload in {} memory, {}", key.hca,
                     key.payload == Placement::kGpu ? "its" : "host",
                     key.path ? fmt::format("{} path", name(*key.path)) : "path of unknown class");
}

Result<void> check_calibration_key(const CalibrationKey& key) {
  if (key.kernels == Processor::kGpu || (!key.path && key.payload == Placement::kHost)) return {};
  return fail(Status::kInvalidArgument,
              "kernels on a CPU have no path from a GPU, and no payload in its memory");
}

std::string default_calibration_file() {
  const auto folder_in = [](const char* variable) {
    const char* folder = std::getenv(variable);
    return folder != nullptr && folder[0] == '/' ? std::string(folder) : std::string();
  };
  std::string base = folder_in("XDG_CONFIG_HOME");
  if (base.empty()) {
    const std::string home = folder_in("HOME");
    if (!home.empty()) base = home + "/.config";
  }
  return base.empty() ? base : base + "/gdx/calibration.json";
}

Result<std::vector<Calibration>> read_calibrations(const std::string& file) {
  const auto text = GDX_TRY(read_text(file));
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded() || !json.is_object()) return refuse(file, "not a JSON object");
  const auto format = json.find("format");
  if (format == json.end() || *format != kFormat)
    return refuse(file, fmt::format("its format is not '{}'", kFormat));
  const auto version = json.find("version");
  if (version == json.end() || !version->is_number_unsigned()) return refuse(file, "it has no version");
  if (*version != kCalibrationVersion) {
    return fail(
        Status::kVersionMismatch,
        fmt::format("{} is a calibration of version {}, this gdx reads {}; measure anew with gdx calibrate, "
                    "after moving it away",
                    file, version->dump(), kCalibrationVersion));
  }
  const auto tables = json.find("tables");
  if (tables == json.end() || !tables->is_array() || tables->size() > kMaxTables)
    return refuse(file, "it has no list of tables");
  std::vector<Calibration> all;
  for (const Json& one : *tables) {
    auto table = GDX_TRY(table_of(file, one));
    const bool twice = std::ranges::any_of(all, [&](const Calibration& a) { return a.key == table.key; });
    if (twice) return refuse(file, fmt::format("two tables for {}", describe(table.key)));
    all.push_back(std::move(table));
  }
  return all;
}

Result<void> store_calibration(const std::string& file, const Calibration& calibration) {
  auto all = read_calibrations(file);
  if (!all && all.error().status != Status::kNotFound) return tl::unexpected(all.error());
  Json tables = Json::array();
  if (all) {
    for (const Calibration& other : *all) {
      if (other.key != calibration.key) tables.push_back(to_json(other));
    }
  }
  tables.push_back(to_json(calibration));
  const Json json = {{"format", kFormat}, {"version", kCalibrationVersion}, {"tables", std::move(tables)}};
  return replace_file(file, json.dump(2) + "\n");
}

}  // namespace gdx
