#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/command_line.h"
#include "base/output.h"
#include "host/programs/cli/commands.h"
#include "host/programs/cli/doctor_report.h"
#include "host/programs/doctor/checks.h"

namespace gdx {
namespace {

using doctor::Diagnosis;
using doctor::Verdict;

constexpr int kExitUntold = 5;       // the verdict is not to be had from what was written
constexpr std::size_t kIndent = 27;  // column at which a finding's text begins
constexpr std::array kVerdicts = {Verdict::kFail, Verdict::kWarn, Verdict::kUnknown, Verdict::kOk};

// Prints a finding, in one line if that has room for the evidence, too.
void print_finding(const Diagnosis& one) {
  const doctor::Finding& finding = one.finding;
  const std::string head = fmt::format("  {:7} {}", doctor::name(finding.verdict), one.check->name);
  const std::string both = fmt::format("{} ({})", finding.what, finding.evidence);
  if (finding.verdict != Verdict::kOk && both.size() <= kReportColumns - kIndent) {
    print_wrapped(head, both, kIndent);
    return;
  }
  print_wrapped(head, finding.what, kIndent);
  if (finding.verdict != Verdict::kOk) print_wrapped("", finding.evidence, kIndent);
}

// The machine first, since what is wrong with it shows everywhere; then who has the worst news.
std::vector<std::string> subjects_by_verdict(const std::vector<Diagnosis>& all) {
  std::map<std::string, Verdict> verdicts;
  for (const Diagnosis& one : all) {
    Verdict& verdict = verdicts[one.finding.subject];
    verdict = std::max(verdict, one.finding.verdict);
  }
  std::vector<std::string> subjects;
  for (const auto& [subject, verdict] : verdicts) subjects.push_back(subject);
  std::ranges::stable_sort(subjects, [&](const std::string& a, const std::string& b) {
    if ((a == "machine") != (b == "machine")) return a == "machine";
    return verdicts[a] > verdicts[b];
  });
  return subjects;
}

void print_findings(const std::vector<Diagnosis>& all) {
  for (const std::string& subject : subjects_by_verdict(all)) {
    print("{}\n", subject);
    for (const Verdict verdict : kVerdicts) {
      for (const Diagnosis& one : all) {
        if (one.finding.subject == subject && one.finding.verdict == verdict) print_finding(one);
      }
    }
  }
  // A fix is for copying: it stays on one line, however long. One fix may mend several subjects.
  std::set<std::pair<std::string, std::string>> told;
  for (const Verdict verdict : kVerdicts) {
    for (const Diagnosis& one : all) {
      const doctor::Finding& finding = one.finding;
      if (finding.verdict != verdict || finding.fix.empty() ||
          !told.emplace(one.check->name, finding.fix).second)
        continue;
      if (told.size() == 1) print("documented fixes\n");
      print("  {:24} {}\n", one.check->name, finding.fix);
    }
  }
}

// Prints the findings that are to be mended, and counts all.
void print_troubles(std::vector<Diagnosis> findings) {
  const auto counts = count_verdicts(findings, verdict_of_finding);
  std::erase_if(findings, [](const Diagnosis& one) { return one.finding.verdict < Verdict::kWarn; });
  print_findings(findings);
  print("findings of the checks: {}\n", counts_text(counts));
}

OrderedJson diagnoses_json(const std::vector<Diagnosis>& all) {
  return {{"gdx_version", GDX_VERSION},
          {"verdict", doctor::name(doctor::worst(all))},
          {"counts", counts_json(count_verdicts(all, verdict_of_finding))},
          {"findings", findings_json(all)}};
}

std::string text_of(const OrderedJson& json) {
  return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

struct DoctorOptions {
  bool as_json = false;
  bool hardware = false;
  std::string hca;
  std::string output;
  std::string peer;
  bool listens = false;
  bool wants_short = false;
  std::uint32_t port = 18520;
};

// Returns whether the file may be replaced whenever the report grows. A device, a pipe or a link may not, so
// it is written once, at the end.
bool is_replaceable(const std::string& path) {
  std::error_code ignored;
  const auto status = std::filesystem::symlink_status(path, ignored);
  return !std::filesystem::is_other(status) && !std::filesystem::is_symlink(status);
}

// Writes `text` to the file at `path`. A replaceable file is whole at any time, because it is replaced by a
// rename. Errors: kSystem with a message for the user.
Result<void> write_report(const std::string& path, const std::string& text) {
  const bool replace = is_replaceable(path);
  const std::string written = replace ? path + ".part" : path;
  std::ofstream file(written, std::ios::trunc);
  file << text;
  file.close();
  if (file && (!replace || std::rename(written.c_str(), path.c_str()) == 0)) return {};
  const int error = errno;
  if (replace) static_cast<void>(std::remove(written.c_str()));
  return fail(Status::kSystem,
              fmt::format("cannot write {}: {}; name another file by --output", path, std::strerror(error)));
}

bool write_report(const DoctorOptions& options, const OrderedJson& json) {
  if (options.output.empty()) return true;
  const auto written = write_report(options.output, text_of(json));
  if (!written) print_error("gdx: {}\n", written.error().message);
  return written.has_value();
}

// Puts the report into `json`.
Verdict examine_hardware(const DoctorOptions& options, OrderedJson& json) {
  OrderedJson environment;
  Progress running;
  const auto progress = [&](const doctor::BringUpReport& so_far) {
    if (environment.is_null()) environment = environment_json(so_far.environment);
    running.show("");
    if (!options.as_json) print_newest_step(so_far);
    flush_output();
    if (so_far.running != 0) {
      const doctor::Step& step = doctor::bring_up_steps()[static_cast<std::size_t>(so_far.running) - 1];
      running.show("step {} of {} runs: {}", step.number, doctor::bring_up_steps().size(), step.name);
    }
    // A failure is told at the end, where it shows again.
    if (!options.output.empty() && is_replaceable(options.output))
      static_cast<void>(write_report(options.output, text_of(bring_up_json(so_far, environment))));
  };
  std::optional<doctor::PeerPlace> peer;
  if (options.listens || !options.peer.empty())
    peer.emplace(doctor::PeerPlace{options.peer, static_cast<std::uint16_t>(options.port)});
  const std::string probe_program = sibling_program("gdx_calibrate_cuda", "../calibrate").value_or("");
  const std::string kernel_program = sibling_program("gdx_doctor_cuda", "../doctor").value_or("");
  const auto tell = [&](const std::string& line) {
    running.show("");
    print_error("gdx doctor: {}\n", line);
  };
  const doctor::BringUpReport report = doctor::bring_up(
      {options.hca, peer, probe_program, kernel_program, options.wants_short, tell}, progress);
  json = bring_up_json(report, environment);
  if (options.as_json) return report.worst();
  print_troubles(report.findings);
  print_step_counts(report);
  if (report.worst() == Verdict::kFail && options.output.empty())
    print("for somebody far away: run it again with --output FILE, which keeps all of it\n");
  return report.worst();
}

Verdict examine_files(const DoctorOptions& options, OrderedJson& json) {
  const std::vector<Diagnosis> all = doctor::diagnose(doctor::this_whole_machine());
  json = diagnoses_json(all);
  if (options.as_json) return doctor::worst(all);
  print_findings(all);
  print("{}\n", counts_text(count_verdicts(all, verdict_of_finding)));
  return doctor::worst(all);
}

int examine(const DoctorOptions& options) {
  OrderedJson json;
  // A report that cannot be kept is refused before the steps, which may take minutes or hang.
  if (options.hardware && is_replaceable(options.output) &&
      !write_report(options, bring_up_json(doctor::BringUpReport{}, nullptr)))
    return kExitUntold;
  const Verdict verdict = options.hardware ? examine_hardware(options, json) : examine_files(options, json);
  if (options.as_json) write_output(text_of(json));
  const bool told = flush_output();
  return write_report(options, json) && told ? doctor::exit_status(verdict) : kExitUntold;
}

}  // namespace

void add_doctor_command(command_line::Command app, int& exit_status) {
  const command_line::Command doctor = app.add_command(
      "doctor",
      "What of this machine breaks or slows GPU-initiated RDMA, and the documented fix. Exit status: 0 "
      "all OK, 1 a FAIL, 3 a WARN and no FAIL, 4 nothing worse than UNKNOWN, 5 the report could not be "
      "written. A machine without a GPU or a ConnectX has a FAIL; without a second host --hardware is "
      "UNKNOWN at best");
  const auto options = std::make_shared<DoctorOptions>();
  doctor.add_flag("--json", options->as_json, "As JSON");
  const auto hardware = doctor.add_flag("--hardware", options->hardware,
                                        "Bring-up step by step: creates queues on an HCA, and sends to "
                                        "itself, and to a second host that is named by --peer");
  doctor
      .add_option(
          "--hca", options->hca,
          "The HCA to bring up; else $GDX_HCA's, else the nearest to CUDA's first GPU of those that serve")
      .check(command_line::not_empty("the name of an HCA"))
      .needs(hardware);
  doctor.add_flag("--short", options->wants_short, "Few puts in each step, as on a software HCA")
      .needs(hardware);
  const auto listen =
      doctor.add_flag("--listen", options->listens, "Wait for a second host, which names this one by --peer")
          .needs(hardware);
  doctor
      .add_option(
          "--peer", options->peer,
          "Host that waits with --listen, its name or IPv4 address: both go through section D together")
      .check(command_line::not_empty("a host"))
      .check([](const std::string& host) {
        return host.find(':') == std::string::npos ? ""
                                                   : "use a host's name or IPv4 address; --port has its port";
      })
      .needs(hardware)
      .excludes(listen);
  doctor.add_option("--port", options->port, "TCP port at which they meet (18520)")
      .check(command_line::whole(1, 65535))
      .needs(hardware);
  doctor.add_option("--output", options->output, "Write the JSON to this file, too")
      .check(command_line::not_empty("a file name"));
  doctor.show_examples({"gdx doctor", "gdx doctor --hardware --output report.json",
                        "gdx run -- gdx doctor --hardware", "gdx doctor --hardware --listen",
                        "gdx doctor --hardware --peer 10.0.0.1"});
  doctor.when_chosen([options, &exit_status] { exit_status = examine(*options); });
}

}  // namespace gdx
